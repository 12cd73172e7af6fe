//! How the engine's write-ahead logs end after a crash.
//!
//! A power cut leaves of what was not synced anything: an end that is torn, or pages that were never written, with later ones behind them. The
//! engine takes the one for damage, and reads on behind the other as if nothing were missing. Here the logs are cut before their first gap, so
//! that what is replayed is a beginning of what was written; unless what stands behind it says that the gap was synced: that is damage, and
//! nothing is touched. Each batch says so by its [`Mark`]. Must not know what else the batches hold.

use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, File, OpenOptions},
    io::{self, BufReader, Seek, SeekFrom},
    iter,
    path::{Path, PathBuf},
};

use super::{
    Error,
    frames::{self, Frame, Frames},
};

/// What a batch says of the time when it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Mark {
    /// All up to this sequence number was synced.
    pub(super) synced: u64,
    /// Logs with lower numbers were not needed any more. The engine may find them again after a power cut.
    pub(super) oldest: u64,
}

/// What was cut off.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Torn {
    /// The log that has the gap.
    pub(super) log: PathBuf,
    /// Where it ends now.
    pub(super) at: u64,
    /// Bytes that stood behind, in this log and in later ones.
    pub(super) bytes: u64,
    /// The file that has those of this log; beside it are those of later ones.
    pub(super) saved: PathBuf,
}

impl Mark {
    /// What goes into a batch, as its log data and before all else.
    pub(super) fn encode(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        let (synced, oldest) = bytes.split_at_mut(8);
        synced.copy_from_slice(&self.synced.to_le_bytes());
        oldest.copy_from_slice(&self.oldest.to_le_bytes());
        bytes
    }
}

/// Cuts the logs in `dir` before their first gap. What is cut off is kept beside them until the next time. `synced`: the sizes of logs that
/// are known to have been synced as a whole, by number. The directory must be in nobody's use.
///
/// # Errors
/// [`Error::DamagedLog`], where nothing was touched; [`Error::Engine`].
pub(super) fn cut_torn_end(dir: &Path, synced: &BTreeMap<u64, u64>) -> Result<Option<Torn>, Error> {
    let failed = |doing| move |cause: io::Error| Error::Engine { doing, cause: cause.into() };
    let logs = needed(dir).map_err(failed("reading the write-ahead log"))?;
    let Some(Gap { first, at, next, behind }) = Gap::find(&logs) else { return Ok(None) };
    if behind.is_unmarked {
        // The engine knows logs of earlier releases better.
        return Ok(None);
    }
    let cuts: Vec<_> = logs.iter().skip(first).zip([at].into_iter().chain(iter::repeat(0))).collect();
    let Some((log, _)) = cuts.first() else { return Ok(None) };
    let was_synced = match behind.synced {
        // Nothing before the gap tells where it begins; but what stood at the beginning of the oldest log was synced before that was the oldest.
        Some(upto) if next == 0 => behind.oldest >= log.number || behind.first.is_some_and(|first| upto + 1 >= first),
        upto => upto.is_some_and(|upto| upto >= next),
    };
    let is_whole =
        |(log, at): &(&Log, u64)| log.number.and_then(|number| synced.get(&number)).is_none_or(|size| at >= size);
    if was_synced || !cuts.iter().all(is_whole) {
        return Err(Error::DamagedLog { log: log.path.clone(), at });
    }
    let bytes = cut(dir, &cuts).map_err(failed("cutting the write-ahead log"))?;
    Ok(Some(Torn { log: log.path.clone(), at, bytes, saved: torn_off(&log.path) }))
}

/// Cuts each log at its place, once what stands behind is on the disk in a file of its own; the bytes of all of them.
fn cut(dir: &Path, cuts: &[(&Log, u64)]) -> io::Result<u64> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == TORN) {
            fs::remove_file(path)?;
        }
    }
    let mut bytes = 0;
    for (log, at) in cuts {
        let mut file = File::open(&log.path)?;
        file.seek(SeekFrom::Start(*at))?;
        let mut saved = File::create(torn_off(&log.path))?;
        bytes += io::copy(&mut file, &mut saved)?;
        saved.sync_all()?;
    }
    File::open(dir)?.sync_all()?;
    for (log, at) in cuts {
        OpenOptions::new().write(true).open(&log.path)?.set_len(*at)?;
    }
    Ok(bytes)
}

fn torn_off(log: &Path) -> PathBuf {
    log.with_added_extension(TORN)
}

/// All logs, oldest first.
pub(super) fn logs(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut logs = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if number(&path).is_some() {
            logs.push(path);
        }
    }
    logs.sort_by_key(|path| number(path));
    Ok(logs)
}

pub(super) fn number(log: &Path) -> Option<u64> {
    log.file_name()?.to_str()?.strip_suffix(".log")?.parse().ok()
}

/// What the logs hold, oldest first, without those that the newest mark says are not needed.
fn needed(dir: &Path) -> io::Result<Vec<Log>> {
    let mut needed = Vec::new();
    let mut oldest = None;
    for path in logs(dir)?.into_iter().rev() {
        if oldest.is_some() && number(&path) < oldest {
            break;
        }
        let log = Log::read(path)?;
        oldest = oldest.or(log.all.oldest);
        needed.push(log);
    }
    needed.reverse();
    Ok(needed)
}

/// What one log holds.
struct Log {
    path: PathBuf,
    number: Option<u64>,
    /// The sequence number at its beginning, and the one that comes next before its first gap.
    runs: Option<(u64, u64)>,
    gap: Option<u64>,
    /// What the batches behind the gap say.
    behind: Said,
    all: Said,
}

/// What some batches say.
#[derive(Default, Clone, Copy)]
struct Said {
    /// The first of their sequence numbers.
    first: Option<u64>,
    synced: Option<u64>,
    oldest: Option<u64>,
    is_unmarked: bool,
}

impl Said {
    fn with(self, later: Self) -> Self {
        Self {
            first: self.first.or(later.first),
            synced: self.synced.max(later.synced),
            oldest: self.oldest.max(later.oldest),
            is_unmarked: self.is_unmarked || later.is_unmarked,
        }
    }
}

impl Log {
    fn read(path: PathBuf) -> io::Result<Self> {
        let mut records = Records::open(&path)?;
        let (number, said) = (number(&path), Said::default());
        let mut log = Self { path, number, runs: None, gap: None, behind: said, all: said };
        let mut end = 0;
        while let Some(step) = records.next()? {
            let Step::Batch(batch) = step else {
                log.gap.get_or_insert(end);
                continue;
            };
            let said = batch.said();
            log.all = log.all.with(said);
            match log.runs {
                None if log.gap.is_none() => log.runs = Some((batch.first, batch.next)),
                Some((first, next)) if log.gap.is_none() && next == batch.first => log.runs = Some((first, batch.next)),
                _ => {
                    log.gap.get_or_insert(end);
                    log.behind = log.behind.with(said);
                }
            }
            if log.gap.is_none() {
                end = batch.end;
            }
        }
        Ok(log)
    }
}

/// The first gap.
struct Gap {
    /// The log that it is in.
    first: usize,
    at: u64,
    /// The sequence number that comes next before it; 0 where there is none.
    next: u64,
    behind: Said,
}

impl Gap {
    fn find(logs: &[Log]) -> Option<Self> {
        let mut found: Option<Self> = None;
        let mut next = 0;
        for (at, log) in logs.iter().enumerate() {
            if let Some(gap) = &mut found {
                gap.behind = gap.behind.with(log.all);
                continue;
            }
            found = match log.runs {
                // The oldest log that is needed has lost all that it held.
                Some(_) if next == 0 && at > 0 => Some(Self { first: 0, at: 0, next, behind: log.all }),
                Some((first, _)) if next > 0 && first != next => Some(Self { first: at, at: 0, next, behind: log.all }),
                runs => {
                    next = runs.map_or(next, |(_, next)| next);
                    log.gap.map(|gap| Self { first: at, at: gap, next, behind: log.behind })
                }
            };
        }
        found
    }
}

enum Step {
    Batch(Batch),
    /// Something that is no record, or one that is not whole.
    Gap,
}

struct Batch {
    /// Its first sequence number, and that of the batch behind it.
    first: u64,
    next: u64,
    mark: Option<Mark>,
    /// Where it ends in its log.
    end: u64,
}

impl Batch {
    /// From the beginning of its bytes.
    fn parse(head: &[u8], end: u64) -> Option<Self> {
        let (first, rest) = head.split_first_chunk()?;
        let (count, rest) = rest.split_first_chunk()?;
        let first = u64::from_le_bytes(*first);
        let next = first.checked_add(u32::from_le_bytes(*count).into())?;
        let mark = rest.strip_prefix(&[LOG_DATA, 16]).and_then(|rest| {
            let (synced, rest) = rest.split_first_chunk()?;
            let (oldest, _) = rest.split_first_chunk()?;
            Some(Mark { synced: u64::from_le_bytes(*synced), oldest: u64::from_le_bytes(*oldest) })
        });
        Some(Self { first, next, mark, end })
    }

    fn said(&self) -> Said {
        Said {
            first: Some(self.first),
            synced: self.mark.map(|mark| mark.synced),
            oldest: self.mark.map(|mark| mark.oldest),
            is_unmarked: self.mark.is_none(),
        }
    }
}

/// One log. A record is a batch.
struct Records(Frames<BufReader<File>>);

impl Records {
    fn open(log: &Path) -> io::Result<Self> {
        Ok(Self(Frames::new(BufReader::new(File::open(log)?))))
    }

    fn next(&mut self) -> io::Result<Option<Step>> {
        let step = self.0.next()?.map(|frame| match frame {
            Frame::Record(record) => Batch::parse(record, 0).map_or(Step::Gap, Step::Batch),
            Frame::Hole { .. } => Step::Gap,
        });
        let end = self.0.position();
        Ok(step.map(|step| match step {
            Step::Batch(batch) => Step::Batch(Batch { end, ..batch }),
            gap => gap,
        }))
    }
}

/// What of a log cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unread {
    log: PathBuf,
    at: u64,
    bytes: u64,
    /// How many changes it held, where what stands behind it tells.
    changes: Option<u64>,
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} bytes from byte {} on cannot be read", self.log.display(), self.bytes, self.at)?;
        self.changes.map_or(Ok(()), |changes| write!(f, ", and held {changes} changes"))
    }
}

/// Writes all whole records of the logs in `dir` to files of the same name in `copy`, for a salvage: the engine itself would leave out what
/// stands behind a damaged one, too.
pub(super) fn copy_whole_records(dir: &Path, copy: &Path) -> io::Result<Vec<Unread>> {
    let mut all = Vec::new();
    let mut next: Option<u64> = None;
    for log in logs(dir)? {
        let mut frames = Frames::new(BufReader::new(File::open(&log)?));
        let mut whole = Vec::new();
        let mut unread: Option<Unread> = None;
        while let Some(frame) = frames.next()? {
            match frame {
                Frame::Hole { at, len } => {
                    let none = || Unread { log: log.clone(), at, bytes: 0, changes: None };
                    unread.get_or_insert_with(none).bytes += len;
                }
                Frame::Record(record) => {
                    frames::append(&mut whole, record);
                    let Some(batch) = Batch::parse(record, 0) else { continue };
                    if let Some(unread) = unread.take() {
                        let changes = next.and_then(|next| batch.first.checked_sub(next));
                        all.push(Unread { changes, ..unread });
                    }
                    next = Some(batch.next);
                }
            }
        }
        all.extend(unread);
        fs::write(copy.join(log.file_name().unwrap_or_default()), whole)?;
    }
    Ok(all)
}

/// The number of the first change in these logs, unless something stands before it that cannot be read.
pub(super) fn first_change(logs: &[PathBuf]) -> io::Result<Option<u64>> {
    for log in logs {
        match Records::open(log)?.next()? {
            Some(Step::Batch(batch)) => return Ok(Some(batch.first)),
            Some(Step::Gap) => return Ok(None),
            None => {}
        }
    }
    Ok(None)
}

/// In a batch: log data follow.
const LOG_DATA: u8 = 3;
/// What ends the names of files that hold what was cut off.
const TORN: &str = "torn";

#[cfg(test)]
mod tests;
