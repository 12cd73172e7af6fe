//! The data representations of MQTT (1.5): integers, Variable Byte Integers, text, binary data.
//!
//! Must not know of packets.

use std::num::NonZeroU16;

use super::{PacketId, codec::TooLong, malformed::Malformed};

/// Reads fields off the front of a body that is there as a whole: what is missing never arrives.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(body: &'a [u8]) -> Self {
        Self(body)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What was not read yet.
    pub(super) fn rest(self) -> &'a [u8] {
        self.0
    }

    /// Checks that all was read.
    pub(super) fn finish(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed::TrailingBytes) }
    }

    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        let (&byte, rest) = self.0.split_first().ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    /// A Variable Byte Integer [MQTT-1.5.5-1].
    pub(super) fn varint(&mut self) -> Result<u32, Malformed> {
        let mut value = 0;
        for shift in [0, 7, 14, 21] {
            let byte = self.u8()?;
            value |= u32::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                let minimal = shift == 0 || byte != 0;
                return if minimal { Ok(value) } else { Err(Malformed::VariableByteInteger) };
            }
        }
        Err(Malformed::VariableByteInteger)
    }

    /// A UTF-8 Encoded String [MQTT-1.5.4-1], [MQTT-1.5.4-2].
    pub(super) fn text(&mut self) -> Result<&'a str, Malformed> {
        let text = self.text_with_nul()?;
        if text.as_bytes().contains(&0) { Err(Malformed::Nul) } else { Ok(text) }
    }

    /// As [`Self::text`], for one whose own check finds NUL.
    pub(super) fn text_with_nul(&mut self) -> Result<&'a str, Malformed> {
        str::from_utf8(self.binary()?).map_err(|_| Malformed::Utf8)
    }

    pub(super) fn binary(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.u16()?;
        self.take(usize::from(len))
    }

    pub(super) fn packet_id(&mut self) -> Result<PacketId, Malformed> {
        NonZeroU16::new(self.u16()?).ok_or(Malformed::PacketIdZero)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (array, rest) = self.0.split_first_chunk().ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(*array)
    }
}

pub(super) fn put_u16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_be_bytes());
}

/// `value` is at most [`VARINT_MAX`].
pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Bytes that [`put_varint`] writes.
pub(super) fn varint_len(value: u32) -> usize {
    match value {
        0..=0x7F => 1,
        0x80..=0x3FFF => 2,
        0x4000..=0x1F_FFFF => 3,
        _ => 4,
    }
}

pub(super) fn put_binary(out: &mut Vec<u8>, data: &[u8]) -> Result<(), TooLong> {
    put_u16(out, u16::try_from(data.len()).map_err(|_| TooLong)?);
    out.extend_from_slice(data);
    Ok(())
}

/// Writes what `write` appends, with its length as a Variable Byte Integer before it.
pub(super) fn put_with_length(
    out: &mut Vec<u8>,
    write: impl FnOnce(&mut Vec<u8>) -> Result<(), TooLong>,
) -> Result<(), TooLong> {
    let start = out.len();
    write(out)?;
    let len = u32::try_from(out.len() - start).ok().filter(|&len| len <= VARINT_MAX).ok_or(TooLong)?;
    put_varint(out, len);
    let digits = varint_len(len);
    if let Some(written) = out.get_mut(start..) {
        written.rotate_right(digits);
    }
    Ok(())
}

/// The largest Variable Byte Integer (1.5.5).
pub(super) const VARINT_MAX: u32 = 268_435_455;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_byte_integers() {
        #[track_caller]
        fn check(bytes: &[u8], expected: Result<u32, Malformed>) {
            assert_eq!(Reader::new(bytes).varint(), expected);
            if let Ok(value) = expected {
                let mut out = Vec::new();
                put_varint(&mut out, value);
                assert_eq!((&*out, varint_len(value)), (bytes, bytes.len()));
            }
        }
        check(&[0], Ok(0));
        check(&[0x7F], Ok(127));
        check(&[0x80, 1], Ok(128));
        check(&[0xFF, 0x7F], Ok(16_383));
        check(&[0x80, 0x80, 1], Ok(16_384));
        check(&[0xFF, 0xFF, 0x7F], Ok(2_097_151));
        check(&[0x80, 0x80, 0x80, 1], Ok(2_097_152));
        check(&[0xFF, 0xFF, 0xFF, 0x7F], Ok(VARINT_MAX));
        check(&[0x80, 0], Err(Malformed::VariableByteInteger));
        check(&[0xFF, 0x80, 0], Err(Malformed::VariableByteInteger));
        check(&[0xFF, 0xFF, 0xFF, 0xFF], Err(Malformed::VariableByteInteger));
        check(&[0xFF, 0xFF, 0xFF, 0xFF, 1], Err(Malformed::VariableByteInteger));
        check(&[0x80], Err(Malformed::Short));
        check(&[], Err(Malformed::Short));
    }

    #[test]
    fn lengths_before_what_they_count() {
        for len in [0, 1, 127, 128, 20_000] {
            let mut out = vec![9];
            put_with_length(&mut out, |out| {
                out.resize(out.len() + len, 7);
                Ok(())
            })
            .unwrap();
            let mut reader = Reader::new(&out[1..]);
            assert_eq!((out[0], reader.varint(), reader.rest()), (9, Ok(len as u32), &*vec![7; len]));
        }
    }

    #[test]
    fn text() {
        #[track_caller]
        fn check(bytes: &[u8], expected: Result<&str, Malformed>) {
            assert_eq!(Reader::new(bytes).text(), expected);
        }
        check(b"\0\x02ab", Ok("ab"));
        check(b"\0\0", Ok(""));
        check(b"\0\x03\xEF\xBB\xBF", Ok("\u{feff}"));
        check(b"\0\x03ab", Err(Malformed::Short));
        check(b"\0", Err(Malformed::Short));
        check(b"\0\x01\0", Err(Malformed::Nul));
        check(b"\0\x01\xFF", Err(Malformed::Utf8));
        check(b"\0\x03\xED\xA0\x80", Err(Malformed::Utf8));
    }
}
