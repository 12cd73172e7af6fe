//! How the engine's write-ahead logs end after a crash.
//!
//! A power cut leaves of what was not synced anything: an end that is torn, or pages that were never written, with later ones behind them. The
//! engine takes the one for damage, and reads on behind the other as if nothing were missing. Here the logs are cut before their first gap, so
//! that what is replayed is a beginning of what was written; unless what stands behind it says that the gap was synced: that is damage, and
//! nothing is touched. Each batch says so by its [`Mark`]. Must not know what else the batches hold.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
};

use super::Error;

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
fn logs(dir: &Path) -> io::Result<Vec<PathBuf>> {
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

fn number(log: &Path) -> Option<u64> {
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
    /// Something that is no record, or one that is not whole. What comes next stands in a later block.
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

/// One log: blocks, in which stand fragments, of which records are made. A record is a batch.
struct Records {
    file: BufReader<File>,
    /// What is left of the present block.
    block: Vec<u8>,
    used: usize,
    is_last: bool,
    /// Where the present block ends.
    end: u64,
    /// The beginning of the record whose fragments are being read.
    head: Option<Vec<u8>>,
}

impl Records {
    fn open(log: &Path) -> io::Result<Self> {
        let file = BufReader::new(File::open(log)?);
        Ok(Self { file, block: Vec::new(), used: 0, is_last: false, end: 0, head: None })
    }

    fn next(&mut self) -> io::Result<Option<Step>> {
        loop {
            let rest = self.block.get(self.used..).unwrap_or_default();
            if rest.len() < HEADER {
                if self.is_last {
                    self.used = self.block.len();
                    // A record that has no end is one that is not whole.
                    let is_whole = rest.is_empty() && self.head.take().is_none();
                    return Ok((!is_whole).then_some(Step::Gap));
                }
                self.read_block()?;
                continue;
            }
            let Some((kind, bytes)) = fragment(rest) else { return Ok(Some(self.gap())) };
            self.used += HEADER + bytes.len();
            let (is_first, is_end) = match kind {
                FULL => (true, true),
                FIRST => (true, false),
                MIDDLE => (false, false),
                LAST => (false, true),
                // Of the log itself.
                _ => continue,
            };
            if is_first != self.head.is_none() {
                return Ok(Some(self.gap()));
            }
            let mut head = self.head.take().unwrap_or_default();
            let wanted = HEAD.saturating_sub(head.len()).min(bytes.len());
            head.extend_from_slice(bytes.get(..wanted).unwrap_or_default());
            if !is_end {
                self.head = Some(head);
                continue;
            }
            let end = self.end - (self.block.len() - self.used) as u64;
            return Ok(Some(Batch::parse(&head, end).map_or(Step::Gap, Step::Batch)));
        }
    }

    /// The rest of the block means nothing: where the next fragment begins is not known.
    fn gap(&mut self) -> Step {
        self.used = self.block.len();
        self.head = None;
        Step::Gap
    }

    fn read_block(&mut self) -> io::Result<()> {
        self.block.clear();
        self.used = 0;
        let read = self.file.by_ref().take(BLOCK).read_to_end(&mut self.block)? as u64;
        self.end += read;
        self.is_last = read < BLOCK;
        Ok(())
    }
}

/// The fragment at the beginning of `bytes`, if it is sound: its kind and what it holds.
fn fragment(bytes: &[u8]) -> Option<(u8, &[u8])> {
    let (&[a, b, c, d, low, high, kind], rest) = bytes.split_first_chunk::<HEADER>()?;
    let content = rest.get(..u16::from_le_bytes([low, high]).into())?;
    let checksum = crc32c(&[kind], content);
    let masked = checksum.rotate_right(15).wrapping_add(0xa282_ead8);
    (masked == u32::from_le_bytes([a, b, c, d])).then_some((kind, content))
}

/// CRC-32C of both.
fn crc32c(first: &[u8], second: &[u8]) -> u32 {
    !first.iter().chain(second).fold(!0, |sum, byte| {
        let at = (sum ^ u32::from(*byte)) & 0xff;
        (sum >> 8) ^ CRC.get(at as usize).copied().unwrap_or_default()
    })
}

const CRC: [u32; 256] = {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 256 {
        let (mut sum, mut bit) = (at as u32, 0);
        while bit < 8 {
            sum = (sum >> 1) ^ (if sum & 1 == 1 { 0x82f6_3b78 } else { 0 });
            bit += 1;
        }
        #[allow(clippy::indexing_slicing, reason = "when this is compiled")]
        {
            table[at] = sum;
        }
        at += 1;
    }
    table
};

/// Bytes of a block, and of the head of a fragment in it. A fragment does not cross blocks.
const BLOCK: u64 = 32 << 10;
const HEADER: usize = 7;
const FULL: u8 = 1;
const FIRST: u8 = 2;
const MIDDLE: u8 = 3;
const LAST: u8 = 4;
/// In a batch: log data follow.
const LOG_DATA: u8 = 3;
/// The part of a batch that is looked at: sequence number, count, and a mark with its tag and length.
const HEAD: usize = 8 + 4 + 2 + 16;
