//! How the engine's write-ahead logs end after a crash.
//!
//! A power cut leaves of what was not synced anything: an end that is torn, or pages that were never written, with later ones behind them. The
//! engine takes the one for damage, and reads on behind the other as if nothing were missing. Here the logs are cut before their first gap, so
//! that what is replayed is a beginning of what was written; unless what stands behind it says that the gap was synced: that is damage, and
//! nothing is touched. Each batch says so by its [`Mark`]. Must not know what else the batches hold.

use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io::{self, BufReader},
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

/// Cuts the logs in `dir` before their first gap. The directory must be in nobody's use.
///
/// # Errors
/// [`Error::DamagedLog`], where nothing was touched; [`Error::Engine`].
pub(super) fn cut_torn_end(dir: &Path) -> Result<Option<Torn>, Error> {
    let read = |cause: io::Error| Error::Engine { doing: "reading the write-ahead log", cause: cause.into() };
    let logs = needed(logs(dir).map_err(read)?).map_err(read)?;
    let mut survey = Survey::default();
    for (at, log) in logs.iter().enumerate() {
        survey.read(at, log).map_err(read)?;
    }
    let Some((first, at)) = survey.gap else { return Ok(None) };
    if survey.unmarked_behind {
        // The engine knows logs of earlier releases better.
        return Ok(None);
    }
    let Some((log, later)) = logs.get(first..).and_then(<[_]>::split_first) else { return Ok(None) };
    if survey.synced_behind >= survey.next {
        return Err(Error::DamagedLog { log: log.clone(), at });
    }
    let cut = || {
        let mut bytes = fs::metadata(log)?.len() - at;
        OpenOptions::new().write(true).open(log)?.set_len(at)?;
        for log in later {
            bytes += fs::metadata(log)?.len();
            OpenOptions::new().write(true).open(log)?.set_len(0)?;
        }
        Ok(Torn { log: log.clone(), at, bytes })
    };
    cut()
        .map(Some)
        .map_err(|cause: io::Error| Error::Engine { doing: "cutting the write-ahead log", cause: cause.into() })
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

/// Without those that the newest mark says are not needed.
fn needed(mut logs: Vec<PathBuf>) -> io::Result<Vec<PathBuf>> {
    for log in logs.iter().rev() {
        let mut records = Records::open(log)?;
        let mut oldest = None;
        while let Some(step) = records.next()? {
            if let Step::Batch(Batch { mark: Some(mark), .. }) = step {
                oldest = oldest.max(Some(mark.oldest));
            }
        }
        if oldest.is_some() {
            logs.retain(|log| number(log) >= oldest);
            break;
        }
    }
    Ok(logs)
}

/// What the logs hold before the first gap, and what those behind it say.
#[derive(Default)]
struct Survey {
    /// The sequence number that comes next before the gap; 0 before the first batch.
    next: u64,
    /// In which log it is, and where.
    gap: Option<(usize, u64)>,
    synced_behind: u64,
    unmarked_behind: bool,
}

impl Survey {
    fn read(&mut self, at: usize, log: &Path) -> io::Result<()> {
        let mut records = Records::open(log)?;
        let mut end = 0;
        while let Some(step) = records.next()? {
            match step {
                Step::Batch(batch) if self.gap.is_none() && (self.next == 0 || batch.first == self.next) => {
                    (self.next, end) = (batch.first + u64::from(batch.count), batch.end);
                }
                Step::Batch(batch) => {
                    self.gap.get_or_insert((at, end));
                    self.synced_behind = self.synced_behind.max(batch.mark.unwrap_or_default().synced);
                    self.unmarked_behind |= batch.mark.is_none();
                }
                Step::Gap => {
                    self.gap.get_or_insert((at, end));
                }
            }
        }
        Ok(())
    }
}

enum Step {
    Batch(Batch),
    /// Something that is no record, or one that is not whole.
    Gap,
}

struct Batch {
    /// Its sequence numbers.
    first: u64,
    count: u32,
    mark: Option<Mark>,
    /// Where it ends in its log.
    end: u64,
}

impl Batch {
    /// From the beginning of its bytes.
    fn parse(head: &[u8], end: u64) -> Option<Self> {
        let (first, rest) = head.split_first_chunk()?;
        let (count, rest) = rest.split_first_chunk()?;
        let mark = rest.strip_prefix(&[LOG_DATA, 16]).and_then(|rest| {
            let (synced, rest) = rest.split_first_chunk()?;
            let (oldest, _) = rest.split_first_chunk()?;
            Some(Mark { synced: u64::from_le_bytes(*synced), oldest: u64::from_le_bytes(*oldest) })
        });
        Some(Self { first: u64::from_le_bytes(*first), count: u32::from_le_bytes(*count), mark, end })
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
                    next = Some(batch.first + u64::from(batch.count));
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
