//! Cuts whole packets out of a read buffer, and refuses what the fixed header alone (2.1) shows to be wrong.
//!
//! Must not know what is in a packet, nor where the bytes come from.

use super::{
    codec::{self, Framing},
    malformed::Malformed,
    packet::Version,
};

/// A whole Control Packet, borrowed from the read buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Packet type and flags: such as some version has.
    pub first: u8,
    /// What follows the fixed header.
    pub body: &'a [u8],
    /// Bytes of the whole packet: what to consume.
    pub len: usize,
}

impl Frame<'_> {
    /// Whether it is a PUBLISH.
    #[must_use]
    pub fn is_publish(&self) -> bool {
        self.first >> 4 == 3
    }
}

/// What a read buffer begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut<'a> {
    /// A whole packet.
    Whole(Frame<'a>),
    /// The beginning of one.
    Partial {
        /// How many bytes the buffer must hold before another try is worth it: the whole packet once its length is known.
        needed: usize,
    },
}

/// Cuts the first packet out of `buf`. `max_packet_size` counts the whole packet, fixed header included.
///
/// # Errors
/// What the fixed header shows as soon as its bytes are there, whatever the version; the body need not have arrived.
pub fn cut(buf: &[u8], max_packet_size: u32) -> Result<Cut<'_>, Malformed> {
    let Some(&first) = buf.first() else { return Ok(Cut::Partial { needed: 2 }) };
    check_flags(first, Version::V3_1)?;
    let (header, len) = match codec::framing(buf)? {
        Framing::Unknown => return Ok(Cut::Partial { needed: buf.len().max(1) + 1 }),
        Framing::Known { header, len } => (header, len),
    };
    if len > max_packet_size as usize {
        return Err(Malformed::PacketTooLarge);
    }
    Ok(match buf.get(header..len) {
        Some(body) => Cut::Whole(Frame { first, body, len }),
        None => Cut::Partial { needed: len },
    })
}

/// Refuses the packet type or flags of a fixed header (2.1.3) that `version` does not have. Outside PUBLISH, MQTT 3.1 uses at most DUP and
/// QoS, of PUBREL, SUBSCRIBE and UNSUBSCRIBE, and leaves open what stands in the others.
///
/// # Errors
/// What is wrong with them.
pub fn check_flags(first: u8, version: Version) -> Result<(), Malformed> {
    let flags = first & 0x0F;
    let open = if version == Version::V3_1 { 0b1001 } else { 0 };
    match first >> 4 {
        0 => Err(Malformed::PacketType),
        3 if flags & 0b0110 == 0b0110 => Err(Malformed::QoS),
        3 if flags & 0b1110 == 0b1000 => Err(Malformed::DupWithQoS0),
        3 => Ok(()),
        6 | 8 | 10 if flags & !open == 0b0010 => Ok(()),
        6 | 8 | 10 => Err(Malformed::FixedHeaderFlags),
        _ if flags != 0 && version != Version::V3_1 => Err(Malformed::FixedHeaderFlags),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(buf: &[u8], max: u32, expected: Result<Cut<'_>, Malformed>) {
        assert_eq!(cut(buf, max), expected);
    }

    #[test]
    fn whole_packets_and_parts() {
        check(&[], 100, Ok(Cut::Partial { needed: 2 }));
        check(&[0x30], 100, Ok(Cut::Partial { needed: 2 }));
        check(&[0x30, 0x80], 100, Ok(Cut::Partial { needed: 3 }));
        check(&[0x30, 0x80, 0x80, 0x80], 100, Ok(Cut::Partial { needed: 5 }));
        check(&[0x30, 3, 0], 100, Ok(Cut::Partial { needed: 5 }));
        check(&[0x30, 3, 0, 1, 2, 9], 100, Ok(Cut::Whole(Frame { first: 0x30, body: &[0, 1, 2], len: 5 })));
        check(&[0xC0, 0], 100, Ok(Cut::Whole(Frame { first: 0xC0, body: &[], len: 2 })));
        let mut long = vec![0x30, 0x80, 1];
        check(&long, 1000, Ok(Cut::Partial { needed: 131 }));
        long.extend([7; 129]);
        check(&long, 1000, Ok(Cut::Whole(Frame { first: 0x30, body: &[7; 128], len: 131 })));
    }

    /// Case D76: the limit counts the fixed header.
    #[test]
    fn sizes() {
        check(&[0x30, 3, 0, 1, 2], 5, Ok(Cut::Whole(Frame { first: 0x30, body: &[0, 1, 2], len: 5 })));
        check(&[0x30, 4, 0, 1, 2], 5, Err(Malformed::PacketTooLarge));
        check(&[0x30, 3, 0, 1, 2], 4, Err(Malformed::PacketTooLarge));
        check(&[0x30, 0xFF, 0xFF, 0xFF, 0x7F], u32::MAX, Ok(Cut::Partial { needed: 268_435_460 }));
        check(&[0x30, 0xFF, 0xFF, 0xFF, 0x7F], 1 << 20, Err(Malformed::PacketTooLarge));
        for long in [
            &[0x30, 0x80, 0][..],
            &[0x30, 0xFF, 0x80, 0],
            &[0x30, 0x80, 0x80, 0x80, 0x80],
            &[0x30, 0xFF, 0xFF, 0xFF, 0xFF, 1],
        ] {
            check(long, u32::MAX, Err(Malformed::VariableByteInteger));
        }
    }

    /// [MQTT-2.1.3-1]: every first byte in every version, the rest of the packet still missing.
    #[test]
    fn flags() {
        for version in [Version::V3_1, Version::V3_1_1, Version::V5] {
            for first in 0..=u8::MAX {
                let old = version == Version::V3_1;
                let expected = match (first >> 4, first & 0x0F) {
                    (0, _) => Err(Malformed::PacketType),
                    (3, flags) if flags & 0b0110 == 0b0110 => Err(Malformed::QoS),
                    (3, 0b1000 | 0b1001) => Err(Malformed::DupWithQoS0),
                    (3, _) | (6 | 8 | 10, 0b0010) => Ok(()),
                    (6 | 8 | 10, 0b0011 | 0b1010 | 0b1011) if old => Ok(()),
                    (6 | 8 | 10, _) => Err(Malformed::FixedHeaderFlags),
                    (_, flags) if flags == 0 || old => Ok(()),
                    _ => Err(Malformed::FixedHeaderFlags),
                };
                assert_eq!(check_flags(first, version), expected, "{first:#04x}");
                if old {
                    check(&[first], 100, expected.map(|()| Cut::Partial { needed: 2 }));
                }
            }
        }
    }
}
