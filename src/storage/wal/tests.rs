//! Logs as crashes and damage leave them.

use super::*;

/// The oldest log that is needed.
const OLDEST: u64 = 7;

/// A batch of one change with number `first`.
fn batch(first: u64, synced: u64, oldest: u64, payload: usize) -> Vec<u8> {
    let mut bytes = [&first.to_le_bytes()[..], &1u32.to_le_bytes(), &[LOG_DATA, 16]].concat();
    bytes.extend_from_slice(&Mark { synced, oldest }.encode());
    bytes.resize(bytes.len() + payload, 0xA5);
    bytes
}

/// Batches that follow each other, each synced before the next one.
fn synced(numbers: std::ops::RangeInclusive<u64>) -> Vec<Vec<u8>> {
    numbers.map(|first| batch(first, first - 1, OLDEST, 300)).collect()
}

fn framed(records: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    records.iter().for_each(|record| frames::append(&mut out, record));
    out
}

/// Where it was cut, if it was; `None` where that is refused, with nothing touched.
fn cut_of(logs: &[Vec<u8>], synced: &BTreeMap<u64, u64>) -> Option<Option<(u64, u64)>> {
    let dir = tempfile::tempdir().unwrap();
    let path = |at: usize| dir.path().join(format!("{:06}.log", OLDEST + at as u64));
    logs.iter().enumerate().for_each(|(at, log)| fs::write(path(at), log).unwrap());
    match cut_torn_end(dir.path(), synced) {
        Ok(torn) => Some(torn.map(|torn| {
            let first = logs.iter().enumerate().find(|(at, _)| path(*at) == torn.log).unwrap().0;
            assert_eq!(fs::read(&torn.saved).unwrap(), logs[first][torn.at as usize..], "what is cut off is kept");
            assert_eq!(fs::read(&torn.log).unwrap(), logs[first][..torn.at as usize]);
            (OLDEST + first as u64, torn.at)
        })),
        Err(Error::DamagedLog { .. }) => {
            logs.iter().enumerate().for_each(|(at, log)| assert_eq!(fs::read(path(at)).unwrap(), *log));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn cut(logs: &[Vec<u8>]) -> Option<Option<(u64, u64)>> {
    cut_of(logs, &BTreeMap::new())
}

#[test]
fn damage_is_not_a_torn_end_also_within_a_block() {
    let mut log = framed(&synced(1..=50));
    assert_eq!(cut(&[log.clone()]), Some(None));
    let end = log.len() as u64;
    log.truncate(log.len() - 5);
    assert_eq!(cut(&[log.clone()]), Some(Some((OLDEST, end / 50 * 49))));
    let at = log.len() / 50 * 9 + 100;
    log[at] ^= 1;
    assert_eq!(cut(&[log]), None);
}

#[test]
fn a_damaged_batch_of_many_blocks_does_not_hide_those_behind_it() {
    let large = batch(5, 4, OLDEST, 100_000);
    let records = [synced(1..=4), vec![large], synced(6..=9)].concat();
    let log = framed(&records);
    // Its first fragment, one between, and one that leaves it without an end.
    for at in [5_000, 50_000, 95_000] {
        let mut log = log.clone();
        log[at] ^= 1;
        assert_eq!(cut(&[log]), None, "{at}");
    }
    let mut log = framed(&records[..5]);
    log.truncate(32 << 10);
    log.extend_from_slice(&framed(&records[5..]));
    assert_eq!(cut(&[log]), None, "a batch without an end");
}

#[test]
fn the_first_batch_of_a_log_may_be_torn() {
    let mut torn = framed(&synced(1..=1));
    torn.truncate(100);
    assert_eq!(cut(&[torn.clone()]), Some(Some((OLDEST, 0))));
    // Synced before the log was said to be the oldest.
    torn.resize(32 << 10, 0);
    let mut damaged = torn.clone();
    damaged.extend_from_slice(&framed(&[batch(9, 3, OLDEST, 300)]));
    assert_eq!(cut(&[damaged]), None);
    // The one before it went a moment ago.
    torn.extend_from_slice(&framed(&[batch(9, 3, OLDEST - 1, 300)]));
    assert_eq!(cut(&[torn]), Some(Some((OLDEST, 0))));
}

#[test]
fn an_oldest_log_that_lost_everything_is_damaged() {
    assert_eq!(cut(&[Vec::new(), framed(&synced(30..=40))]), None);
    assert_eq!(cut(&[framed(&synced(20..=29)), framed(&synced(30..=40))]), Some(None));
}

#[test]
fn a_log_that_was_synced_as_a_whole_is_never_cut() {
    let mut log = framed(&synced(1..=10));
    let size = log.len() as u64;
    log.truncate(log.len() - 5);
    assert_eq!(cut_of(&[log.clone()], &BTreeMap::from([(OLDEST, size)])), None);
    assert!(cut_of(&[log], &BTreeMap::from([(OLDEST - 1, size)])).flatten().is_some());
}

#[test]
fn a_number_beyond_all_is_no_batch() {
    assert_eq!(cut(&[framed(&[batch(u64::MAX, 0, OLDEST, 9)])]), Some(Some((OLDEST, 0))));
}
