//! Every key of the store, in one table. Numbers are big-endian, so that what belongs together is one contiguous range.
//!
//! ```text
//! table     key                                         value
//! meta      "format"                                    format version
//!           "next_id"                                   first id that no restart has given out
//!           "time"                                      the time when the broker last ran
//!           "garbage" log                               what is left of a discarded log
//! sessions  1 owner 1                                   session
//!           1 owner 2                                   group
//!           1 owner 3                                   log state
//!           1 owner 4 filter                            subscription
//!           1 owner 5 packet-id                         inbound QoS 2 id
//!           1 owner 6 seq                               open entry of the owner's log
//!           2 session                                   will
//! logs      log seq                                     entry
//! retained  topic                                       message
//! bodies    1 body                                      message
//!           2 body                                      how many entries refer to it
//! ```
//!
//! An owner is a session or a group: its id is that of its log. Must not know what the values hold.

use smallvec::SmallVec;

use super::{BodyId, LogId, Seq, SessionId};
use crate::mqtt::PacketId;

/// A key: on the stack unless a long filter or topic is in it.
pub type Key = SmallVec<[u8; 40]>;

/// `meta`: the format version.
pub const FORMAT: &[u8] = b"format";
/// `meta`: the high-water mark of ids.
pub const NEXT_ID: &[u8] = b"next_id";
/// `meta`: the time when the broker last ran.
pub const TIME: &[u8] = b"time";
/// Greater than all topics, which are UTF-8: the end of `retained`.
pub const TOPICS_END: &[u8] = &[0xFF];

const GARBAGE: &[u8] = b"garbage";
const OWNER: u8 = 1;
const WILL: u8 = 2;
const BODY: u8 = 1;
const COUNT: u8 = 2;

const SESSION: u8 = 1;
const GROUP: u8 = 2;
const LOG_STATE: u8 = 3;
const SUBSCRIPTION: u8 = 4;
const RECEIVED: u8 = 5;
const OPEN: u8 = 6;

/// What stands behind an owner's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum OwnerKey<'a> {
    Session,
    Group,
    LogState,
    Subscription(&'a str),
    Received(PacketId),
    Open(Seq),
}

/// `sessions`: one record of an owner.
#[must_use]
pub fn owner(id: LogId, key: OwnerKey<'_>) -> Key {
    let mut bytes = spaced(OWNER, id);
    match key {
        OwnerKey::Session => bytes.push(SESSION),
        OwnerKey::Group => bytes.push(GROUP),
        OwnerKey::LogState => bytes.push(LOG_STATE),
        OwnerKey::Subscription(filter) => {
            bytes.push(SUBSCRIPTION);
            bytes.extend_from_slice(filter.as_bytes());
        }
        OwnerKey::Received(packet_id) => {
            bytes.push(RECEIVED);
            bytes.extend_from_slice(&packet_id.get().to_be_bytes());
        }
        OwnerKey::Open(seq) => {
            bytes.push(OPEN);
            bytes.extend_from_slice(&seq.to_be_bytes());
        }
    }
    bytes
}

/// Reads a key of [`owner`].
#[must_use]
pub fn parse_owner(key: &[u8]) -> Option<(LogId, OwnerKey<'_>)> {
    let (id, rest) = key.strip_prefix(&[OWNER])?.split_first_chunk()?;
    let (kind, rest) = rest.split_first()?;
    let parsed = match (*kind, rest) {
        (SESSION, []) => OwnerKey::Session,
        (GROUP, []) => OwnerKey::Group,
        (LOG_STATE, []) => OwnerKey::LogState,
        (SUBSCRIPTION, filter) => OwnerKey::Subscription(std::str::from_utf8(filter).ok()?),
        (RECEIVED, id) => OwnerKey::Received(PacketId::new(u16::from_be_bytes(id.try_into().ok()?))?),
        (OPEN, seq) => OwnerKey::Open(u64::from_be_bytes(seq.try_into().ok()?)),
        _ => return None,
    };
    Some((u64::from_be_bytes(*id), parsed))
}

/// `sessions`: all records of an owner, as a range.
#[must_use]
pub fn owner_range(id: LogId) -> (Key, Key) {
    (spaced(OWNER, id), spaced(OWNER, id.saturating_add(1)))
}

/// `sessions`: the records of all owners, as a range.
#[must_use]
pub fn owners() -> (Key, Key) {
    (Key::from_slice(&[OWNER]), Key::from_slice(&[OWNER + 1]))
}

/// `sessions`: a will.
#[must_use]
pub fn will(session: SessionId) -> Key {
    spaced(WILL, session)
}

/// Reads a key of [`will`].
#[must_use]
pub fn parse_will(key: &[u8]) -> Option<SessionId> {
    Some(u64::from_be_bytes(key.strip_prefix(&[WILL])?.try_into().ok()?))
}

/// `sessions`: all wills, as a range.
#[must_use]
pub fn wills() -> (Key, Key) {
    (Key::from_slice(&[WILL]), Key::from_slice(&[WILL + 1]))
}

/// `logs`: one entry. `entry(log, 0)` stands before all entries of the log.
#[must_use]
pub fn entry(log: LogId, seq: Seq) -> Key {
    let mut bytes = Key::from_slice(&log.to_be_bytes());
    bytes.extend_from_slice(&seq.to_be_bytes());
    bytes
}

/// Reads a key of [`entry`].
#[must_use]
pub fn parse_entry(key: &[u8]) -> Option<(LogId, Seq)> {
    let (log, seq) = key.split_first_chunk()?;
    Some((u64::from_be_bytes(*log), u64::from_be_bytes(seq.try_into().ok()?)))
}

/// `bodies`: the message.
#[must_use]
pub fn body(id: BodyId) -> Key {
    spaced(BODY, id)
}

/// Reads a key of [`body`].
#[must_use]
pub fn parse_body(key: &[u8]) -> Option<BodyId> {
    Some(u64::from_be_bytes(key.strip_prefix(&[BODY])?.try_into().ok()?))
}

/// `bodies`: how many entries refer to it.
#[must_use]
pub fn body_count(id: BodyId) -> Key {
    spaced(COUNT, id)
}

/// Reads a key of [`body_count`].
#[must_use]
pub fn parse_body_count(key: &[u8]) -> Option<BodyId> {
    Some(u64::from_be_bytes(key.strip_prefix(&[COUNT])?.try_into().ok()?))
}

/// `bodies`: all counts, as a range.
#[must_use]
pub fn body_counts() -> (Key, Key) {
    (Key::from_slice(&[COUNT]), Key::from_slice(&[COUNT + 1]))
}

/// `meta`: what is left of a discarded log.
#[must_use]
pub fn garbage(log: LogId) -> Key {
    let mut bytes = Key::from_slice(GARBAGE);
    bytes.extend_from_slice(&log.to_be_bytes());
    bytes
}

/// Reads a key of [`garbage`].
#[must_use]
pub fn parse_garbage(key: &[u8]) -> Option<LogId> {
    Some(u64::from_be_bytes(key.strip_prefix(GARBAGE)?.try_into().ok()?))
}

/// `meta`: what is left of all discarded logs, as a range.
#[must_use]
pub fn all_garbage() -> (Key, Key) {
    (Key::from_slice(GARBAGE), Key::from_slice(b"garbagf"))
}

fn spaced(space: u8, id: u64) -> Key {
    let mut bytes = Key::from_slice(&[space]);
    bytes.extend_from_slice(&id.to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_read_as_they_were_written_and_stand_in_their_ranges() {
        for id in [1, 255, 256, u64::MAX - 1] {
            let kinds = [
                OwnerKey::Session,
                OwnerKey::Group,
                OwnerKey::LogState,
                OwnerKey::Subscription(""),
                OwnerKey::Subscription("$share/g/ü/#"),
                OwnerKey::Received(PacketId::MIN),
                OwnerKey::Received(PacketId::MAX),
                OwnerKey::Open(0),
                OwnerKey::Open(u64::MAX),
            ];
            let (from, to) = owner_range(id);
            let keys: Vec<_> = kinds.iter().map(|&kind| owner(id, kind)).collect();
            assert!(keys.is_sorted());
            for (key, kind) in keys.iter().zip(kinds) {
                assert_eq!(parse_owner(key), Some((id, kind)));
                assert!(from <= *key && *key < to && owners().0 <= *key && *key < owners().1);
            }
            let key = will(id);
            assert_eq!(parse_will(&key), Some(id));
            assert!(wills().0 <= key && key < wills().1 && parse_owner(&key).is_none());
            let key = body_count(id);
            assert_eq!(parse_body_count(&key), Some(id));
            assert!(body_counts().0 <= key && key < body_counts().1);
            assert!(body(id) < body_counts().0 && parse_body_count(&body(id)).is_none());
            assert_eq!((parse_body(&body(id)), parse_body(&key)), (Some(id), None));
            let key = garbage(id);
            assert_eq!(parse_garbage(&key), Some(id));
            assert!(all_garbage().0 <= key && key < all_garbage().1);
            for seq in [0, 1, 256, u64::MAX] {
                let key = entry(id, seq);
                assert_eq!(parse_entry(&key), Some((id, seq)));
                assert!(entry(id, 0) <= key && key < entry(id + 1, 0));
            }
        }
        assert!(entry(1, 255) < entry(1, 256) && entry(1, u64::MAX) < entry(2, 1));
        for other in [FORMAT, NEXT_ID, TIME] {
            assert!(all_garbage().0.as_slice() > other || all_garbage().1.as_slice() <= other);
        }
        assert!("\u{10FFFF}".as_bytes() < TOPICS_END);
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let owner_keys: [&[u8]; 7] = [
            &[],
            &[OWNER, 0, 0, 0, 0, 0, 0, 0],
            &[OWNER, 0, 0, 0, 0, 0, 0, 0, 1],
            &[OWNER, 0, 0, 0, 0, 0, 0, 0, 1, SESSION, 0],
            &[OWNER, 0, 0, 0, 0, 0, 0, 0, 1, RECEIVED, 0, 0],
            &[OWNER, 0, 0, 0, 0, 0, 0, 0, 1, SUBSCRIPTION, 0xFF],
            &[OWNER, 0, 0, 0, 0, 0, 0, 0, 1, 99],
        ];
        for key in owner_keys {
            assert_eq!(parse_owner(key), None, "{key:?}");
        }
        assert_eq!(parse_entry(&[0; 15]), None);
        assert_eq!(parse_entry(&[0; 17]), None);
    }
}
