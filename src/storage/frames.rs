//! The framing that RocksDB gives its write-ahead logs and its MANIFEST: blocks of 32 KiB, in them fragments with a masked CRC-32C, a
//! length and a type, out of which records are put together.
//!
//! Stricter than RocksDB's own reader, which drops what is left of a block without a word where a length runs beyond the end of the file
//! or where zeros stand: what cannot be read is a hole. Must not know what the records hold.

use std::io::{self, Read};

/// What comes next in a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame<'a> {
    /// A whole record.
    Record(&'a [u8]),
    /// Bytes that belong to no whole record.
    Hole {
        /// Where they begin in the file.
        at: u64,
        /// How many there are.
        len: u64,
    },
}

/// Reads the frames of one file, block by block.
pub(super) struct Frames<R> {
    input: R,
    block: Vec<u8>,
    /// Where the block stands in the file.
    block_at: u64,
    /// How much of the block has been taken.
    taken: usize,
    record: Vec<u8>,
    /// Where the record that is being put together begins, after its first fragment.
    begun_at: Option<u64>,
    searches: bool,
}

impl<R: Read> Frames<R> {
    /// A hole ends with its fragment, or where the head of that makes no sense with its block. What stands within is not looked at: a payload
    /// may hold what looks like a fragment.
    pub(super) fn new(input: R) -> Self {
        Self { input, block: Vec::new(), block_at: 0, taken: 0, record: Vec::new(), begun_at: None, searches: false }
    }

    /// A hole ends with the next fragment that is whole: for a file that no peer writes into.
    pub(super) fn searching(input: R) -> Self {
        Self { searches: true, ..Self::new(input) }
    }

    /// Where the frame that was given last ends in the file.
    pub(super) fn position(&self) -> u64 {
        self.block_at + self.taken as u64
    }

    /// The next frame; none at the end of the file.
    pub(super) fn next(&mut self) -> io::Result<Option<Frame<'_>>> {
        loop {
            let rest = self.block.get(self.taken..).unwrap_or_default();
            let at = self.block_at + self.taken as u64;
            // What is left of a full block is too short for a fragment, and filled with zeros.
            let is_filler = self.block.len() == BLOCK && rest.len() < HEADER && rest.iter().all(|byte| *byte == 0);
            if rest.is_empty() || is_filler {
                if self.read_block()? {
                    continue;
                }
                let end = self.block_at + self.block.len() as u64;
                return Ok(self.begun_at.take().map(|at| Frame::Hole { at, len: end - at }));
            }
            let Some((kind, body)) = fragment(rest) else {
                return Ok(Some(self.hole(self.begun_at.unwrap_or(at))));
            };
            let fits = self.begun_at.is_some() == matches!(kind, MIDDLE | LAST);
            if !fits {
                // A record without its end, or an end without its record.
                if let Some(begun) = self.begun_at.take() {
                    return Ok(Some(Frame::Hole { at: begun, len: at - begun }));
                }
                self.taken += HEADER + body.len();
                let len = (HEADER + body.len()) as u64;
                return Ok(Some(Frame::Hole { at, len }));
            }
            if matches!(kind, FULL | FIRST) {
                self.record.clear();
            }
            self.record.extend_from_slice(body);
            self.taken += HEADER + body.len();
            self.begun_at = match kind {
                FULL | LAST => None,
                _ => Some(self.begun_at.unwrap_or(at)),
            };
            if matches!(kind, FULL | LAST) {
                return Ok(Some(Frame::Record(&self.record)));
            }
        }
    }

    /// From `from` to where reading goes on.
    fn hole(&mut self, from: u64) -> Frame<'_> {
        self.begun_at = None;
        let next = if self.searches {
            let is_whole = |at: &usize| self.block.get(*at..).and_then(fragment).is_some();
            (self.taken + 1..self.block.len()).find(is_whole)
        } else {
            self.block.get(self.taken..).and_then(len).map(|len| self.taken + len)
        };
        self.taken = next.unwrap_or(self.block.len());
        Frame::Hole { at: from, len: self.block_at + self.taken as u64 - from }
    }

    /// Whether there is another block.
    fn read_block(&mut self) -> io::Result<bool> {
        // A block that was not full was the last.
        if !self.block.is_empty() && self.block.len() < BLOCK {
            return Ok(false);
        }
        let mut next = Vec::with_capacity(BLOCK);
        (&mut self.input).take(BLOCK as u64).read_to_end(&mut next)?;
        if next.is_empty() {
            return Ok(false);
        }
        self.block_at += self.block.len() as u64;
        self.block = next;
        self.taken = 0;
        Ok(true)
    }
}

/// Adds a record to a file, framed as RocksDB does it.
pub(super) fn append(file: &mut Vec<u8>, record: &[u8]) {
    let mut rest = record;
    let mut is_first = true;
    loop {
        let left = BLOCK - file.len() % BLOCK;
        if left < HEADER {
            file.resize(file.len() + left, 0);
            continue;
        }
        let (now, later) = rest.split_at(rest.len().min(left - HEADER));
        let kind = match (is_first, later.is_empty()) {
            (true, true) => FULL,
            (true, false) => FIRST,
            (false, true) => LAST,
            (false, false) => MIDDLE,
        };
        let covered = [&[kind], now].concat();
        file.extend_from_slice(&masked(crc32c(&covered)).to_le_bytes());
        file.extend_from_slice(&(now.len() as u16).to_le_bytes());
        file.extend_from_slice(&covered);
        if later.is_empty() {
            return;
        }
        (rest, is_first) = (later, false);
    }
}

/// The fragment at the beginning of `bytes`: its type and body. None where there is none that is whole.
fn fragment(bytes: &[u8]) -> Option<(u8, &[u8])> {
    let (checksum, rest) = bytes.split_first_chunk::<4>()?;
    let (length, rest) = rest.split_first_chunk::<2>()?;
    let length = usize::from(u16::from_le_bytes(*length));
    let covered = rest.get(..=length)?;
    let (kind, body) = covered.split_first()?;
    let is_whole = (FULL..=LAST).contains(kind) && masked(crc32c(covered)) == u32::from_le_bytes(*checksum);
    is_whole.then_some((*kind, body))
}

/// The length that the head of the fragment at the beginning of `bytes` tells, whole or not. None where it cannot be.
fn len(bytes: &[u8]) -> Option<usize> {
    let &[_, _, _, _, low, high, kind] = bytes.first_chunk::<HEADER>()?;
    let len = HEADER + usize::from(u16::from_le_bytes([low, high]));
    ((FULL..=LAST).contains(&kind) && len <= bytes.len()).then_some(len)
}

/// As it is stored: a checksum of bytes that hold checksums would be weak.
fn masked(checksum: u32) -> u32 {
    checksum.rotate_right(15).wrapping_add(0xa282_ead8)
}

fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| (crc >> 8) ^ TABLE.get((crc as u8 ^ byte) as usize).copied().unwrap_or_default())
}

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut value = index as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { (value >> 1) ^ 0x82F6_3B78 } else { value >> 1 };
            bit += 1;
        }
        #[allow(clippy::indexing_slicing, reason = "when this is compiled")]
        {
            table[index] = value;
        }
        index += 1;
    }
    table
};

const BLOCK: usize = 32 << 10;
const HEADER: usize = 7;
const FULL: u8 = 1;
const FIRST: u8 = 2;
const MIDDLE: u8 = 3;
const LAST: u8 = 4;

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The records of a file.
    pub(crate) fn framed(records: &[Vec<u8>]) -> Vec<u8> {
        let mut out = Vec::new();
        records.iter().for_each(|record| append(&mut out, record));
        out
    }

    fn read(bytes: &[u8]) -> (Vec<Vec<u8>>, Vec<(u64, u64)>) {
        all(Frames::searching(bytes))
    }

    fn all(mut frames: Frames<&[u8]>) -> (Vec<Vec<u8>>, Vec<(u64, u64)>) {
        let (mut records, mut holes) = (Vec::new(), Vec::new());
        while let Some(frame) = frames.next().unwrap() {
            match frame {
                Frame::Record(record) => records.push(record.to_vec()),
                Frame::Hole { at, len } => holes.push((at, len)),
            }
        }
        (records, holes)
    }

    /// Small ones, and one that spans blocks.
    fn records() -> Vec<Vec<u8>> {
        let sizes = [10, 500, 0, 70_000, 3, 32_000, 900, 40];
        sizes.iter().enumerate().map(|(i, size)| vec![0x40 + i as u8; *size]).collect()
    }

    #[test]
    fn the_checksum_is_the_known_one() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        assert_eq!(read(&framed(&records())), (records(), vec![]));
        assert_eq!(read(b""), (vec![], vec![]));
    }

    #[test]
    fn whatever_byte_is_hit_the_other_records_are_read() {
        let records = records();
        let bytes = framed(&records);
        for at in (0..bytes.len()).step_by(997) {
            let mut hit = bytes.clone();
            hit[at] ^= 0x20;
            let (read, holes) = read(&hit);
            let expected = (0..records.len()).filter(|i| read.contains(&records[*i])).count();
            assert_eq!(expected, records.len() - 1, "all but one, for byte {at}");
            assert!(!holes.is_empty() && holes[0].0 <= at as u64, "{holes:?} for byte {at}");
        }
    }

    /// What a client has put into a payload is never a record; what follows the fragment is.
    #[test]
    fn a_forged_fragment_within_a_hole_is_not_read() {
        let forged = framed(&[b"forged".to_vec()]);
        let mut bytes = framed(&[b"first".to_vec(), [b"payload ", &forged[..], &[0; 50]].concat(), b"last".to_vec()]);
        let at = bytes.windows(7).position(|bytes| bytes == b"payload").unwrap();
        bytes[at] ^= 1;
        let (read, holes) = all(Frames::new(&bytes[..]));
        assert_eq!((read, holes.len()), (vec![b"first".to_vec(), b"last".to_vec()], 1));
    }

    #[test]
    fn a_cut_file_ends_in_a_hole_unless_it_is_cut_between_two_records() {
        let records = records();
        let bytes = framed(&records);
        let ends: Vec<usize> = (0..=records.len()).map(|count| framed(&records[..count]).len()).collect();
        for len in (0..bytes.len()).step_by(613).chain(ends.iter().copied()) {
            let (read, holes) = read(&bytes[..len]);
            let whole = ends.iter().filter(|end| **end <= len).count() - 1;
            assert_eq!(read, records[..whole], "of {len} bytes");
            let lost: u64 = holes.iter().map(|(_, len)| len).sum();
            // Filler before the cut is no loss.
            assert!(lost as usize + 6 >= len - ends[whole] && lost as usize <= len - ends[whole], "of {len} bytes");
        }
    }
}
