//! The stored values: what each record holds, and its bytes. Every record opens with a version byte, so that a later release
//! may write it otherwise and still read this one. Numbers are LEB128, strings and byte strings carry their length.
//!
//! Must not know where a record stands (`keys`) nor what is done with it.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{BodyId, LogId, Seq, SessionId, UNSTORED, Unreadable, garbage::Garbage};
use crate::mqtt::{
    Message, QoS, Timestamp, TopicName,
    packet::{RetainHandling, SubscriptionOptions},
    topic_map::Place,
};

/// A persistent session. Its id is the id of its log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSession {
    /// Never given to another session or log.
    pub id: SessionId,
    /// The Client Identifier.
    pub client_id: String,
    /// The identity that made it; another one may not have it.
    pub username: Option<String>,
    /// Session Expiry Interval, in seconds; 0xFFFF_FFFF never expires.
    pub expiry_secs: u32,
    /// Whether its client was connected when this was written: after a crash, expiry counts from the start of the broker then.
    pub connected: bool,
    /// When it went offline; meaningless while `connected`.
    pub disconnected_at: Timestamp,
    /// The highest sequence number of its log that may have been sent: what carries DUP when it is sent again.
    pub sent_until: Seq,
}

/// A subscription of a persistent session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSubscription {
    /// As sent, with its `$share` prefix.
    pub filter: String,
    /// Subscription Options.
    pub options: SubscriptionOptions,
    /// Subscription Identifier.
    pub subscription_id: Option<u32>,
    /// Where the retained messages begin that it is still to be sent; none where it was sent all.
    pub replay: Option<Place>,
}

/// A moment at which the broker ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredTime {
    /// The time of the broker, which all other records go by.
    pub time: Timestamp,
    /// The wall clock then.
    pub wall: Timestamp,
}

/// The Will of a session, persistent or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredWill {
    /// Whose it is.
    pub session: SessionId,
    /// Its Client Identifier, for the ACL at publication.
    pub client_id: String,
    /// Its identity, for the ACL at publication.
    pub username: Option<String>,
    /// What will be published; its expiry is counted from the publication.
    pub message: Message,
    /// Will Delay Interval, in seconds.
    pub delay_secs: u32,
    /// Message Expiry Interval, in seconds from the publication.
    pub expiry_secs: Option<u32>,
    /// Session Expiry Interval, in seconds: the end of the session publishes the will too [MQTT-3.1.3-9].
    pub session_expiry_secs: u32,
    /// When it is published, once the connection is gone.
    pub due_at: Option<Timestamp>,
}

/// Who published a retained message, as the ACL is asked for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Author {
    /// The identity; None for an anonymous client.
    pub username: Option<Arc<str>>,
    /// The Client Identifier.
    pub client_id: Arc<str>,
}

/// A `$share` group with a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredGroup {
    /// The group's log, and its id.
    pub log: LogId,
    /// The ShareName.
    pub share: String,
    /// The Topic Filter.
    pub filter: String,
    /// Entries up to this one may have been sent to a persistent member, when the last of them went offline.
    pub sent_until: Seq,
}

/// Which entries of a log are settled.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogState {
    /// All entries up to this one are settled.
    pub head: Seq,
    /// What is settled beyond `head`: inclusive ranges, ascending, apart from each other and from `head`.
    pub settled: Vec<(Seq, Seq)>,
    /// All entries up to this one have been removed. Others that are settled may have been, too.
    pub trimmed: Seq,
    /// The bytes of all entries that are settled, as [`EntryHead::log_bytes`] counts them.
    pub settled_bytes: u64,
}

/// An entry in flight whose state must survive: a QoS 2 step, a Packet Identifier that does not follow from the sequence number, a
/// lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenEntry {
    /// The entry.
    pub seq: Seq,
    /// Who holds it; 0: the log's own session.
    pub holder: SessionId,
    /// The Packet Identifier that it was sent with; 0: the one that follows from `seq`.
    pub packet_id: u16,
    /// How far it has come.
    pub step: Step,
}

/// How far an entry in flight has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The PUBLISH was sent.
    Sent,
    /// PUBREC was received; PUBREL is due.
    Released,
}

/// What one receiver's copy of a message adds to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryHead {
    /// The QoS that it is sent with.
    pub qos: QoS,
    /// RETAIN as sent to this receiver.
    pub retain: bool,
    /// The Subscription Identifiers of the subscriptions that matched.
    pub subscription_ids: SmallVec<[u32; 2]>,
    /// In the log of a shared group: stands for its publisher; 0 elsewhere.
    pub publisher: u64,
    /// The bytes of all entries that the log ever had, up to and with this one: what its queue holds is known at a start without reading it.
    pub log_bytes: u64,
}

/// How an entry holds its message when it is written.
pub(super) enum EntryBody<'a> {
    Shared(BodyId),
    Message(&'a Message),
    /// A message that [`put_message`] has encoded.
    Encoded(&'a [u8]),
}

/// How an entry holds its message when it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EntryMessage {
    Shared(BodyId),
    Inline(Message),
}

pub(super) fn put_format(out: &mut Vec<u8>, format: u32) {
    out.extend_from_slice(&format.to_be_bytes());
}

pub(super) fn get_format(bytes: &[u8]) -> Result<u32, Unreadable> {
    Ok(u32::from_be_bytes(bytes.try_into().map_err(|_| Unreadable::Invalid("length"))?))
}

/// The value of a record that says all by its key.
pub(super) fn put_nothing(out: &mut Vec<u8>) {
    out.push(V1);
}

pub(super) fn get_nothing(bytes: &[u8]) -> Result<(), Unreadable> {
    read(bytes, |_| Ok(()))
}

pub(super) fn put_id(out: &mut Vec<u8>, id: u64) {
    out.push(V1);
    put_number(out, id);
}

pub(super) fn get_id(bytes: &[u8]) -> Result<u64, Unreadable> {
    read(bytes, Reader::number)
}

pub(super) fn put_time(out: &mut Vec<u8>, StoredTime { time, wall }: StoredTime) {
    out.push(V1);
    put_number(out, time.0);
    put_number(out, wall.0);
}

pub(super) fn get_time(bytes: &[u8]) -> Result<StoredTime, Unreadable> {
    read(bytes, |r| Ok(StoredTime { time: Timestamp(r.number()?), wall: Timestamp(r.number()?) }))
}

pub(super) fn put_count(out: &mut Vec<u8>, count: u32) {
    put_id(out, count.into());
}

pub(super) fn get_count(bytes: &[u8]) -> Result<u32, Unreadable> {
    read(bytes, |r| r.number_as("count"))
}

pub(super) fn put_session(out: &mut Vec<u8>, session: &StoredSession) {
    out.push(V1);
    put_text(out, &session.client_id);
    put_optional_text(out, session.username.as_deref());
    put_number(out, session.expiry_secs.into());
    out.push(session.connected.into());
    put_number(out, session.disconnected_at.0);
    put_number(out, session.sent_until);
}

pub(super) fn get_session(id: SessionId, bytes: &[u8]) -> Result<StoredSession, Unreadable> {
    read(bytes, |r| {
        Ok(StoredSession {
            id,
            client_id: r.text()?.to_owned(),
            username: r.optional_text()?,
            expiry_secs: r.number_as("session expiry")?,
            connected: r.flag()?,
            disconnected_at: Timestamp(r.number()?),
            sent_until: r.number()?,
        })
    })
}

pub(super) fn put_subscription(out: &mut Vec<u8>, subscription: &StoredSubscription) {
    let options = &subscription.options;
    out.push(V2);
    // The bits of the Subscription Options byte (3.8.3.1).
    out.push(
        qos_bits(options.qos)
            | u8::from(options.no_local) << 2
            | u8::from(options.retain_as_published) << 3
            | (options.retain_handling as u8) << 4,
    );
    put_number(out, subscription.subscription_id.unwrap_or(0).into());
    out.push(subscription.replay.is_some().into());
    if let Some(replay) = &subscription.replay {
        put_text(out, &replay.text());
    }
}

pub(super) fn get_subscription(filter: &str, bytes: &[u8]) -> Result<StoredSubscription, Unreadable> {
    read_up_to(V2, bytes, |version, r| {
        let bits = r.byte()?;
        let retain_handling = match bits >> 4 {
            0 => RetainHandling::Send,
            1 => RetainHandling::SendIfNew,
            2 => RetainHandling::Never,
            _ => return Err(Unreadable::Invalid("retain handling")),
        };
        let options = SubscriptionOptions {
            qos: qos(bits)?,
            no_local: bits & 4 != 0,
            retain_as_published: bits & 8 != 0,
            retain_handling,
        };
        let subscription_id = Some(r.number_as("subscription identifier")?).filter(|&id| id != 0);
        // The first releases sent all at once.
        let replay = if version > V1 && r.flag()? { Some(Place::from_text(r.text()?)) } else { None };
        Ok(StoredSubscription { filter: filter.to_owned(), options, subscription_id, replay })
    })
}

pub(super) fn put_will(out: &mut Vec<u8>, will: &StoredWill) {
    out.push(V1);
    put_text(out, &will.client_id);
    put_optional_text(out, will.username.as_deref());
    put_number(out, will.delay_secs.into());
    put_optional(out, will.expiry_secs.map(u64::from));
    put_number(out, will.session_expiry_secs.into());
    put_optional(out, will.due_at.map(|at| at.0));
    put_message(out, &will.message);
}

pub(super) fn get_will(session: SessionId, bytes: &[u8]) -> Result<StoredWill, Unreadable> {
    read(bytes, |r| {
        Ok(StoredWill {
            session,
            client_id: r.text()?.to_owned(),
            username: r.optional_text()?,
            delay_secs: r.number_as("will delay")?,
            expiry_secs: r.optional()?.map(|secs| narrow(secs, "message expiry")).transpose()?,
            session_expiry_secs: r.number_as("session expiry")?,
            due_at: r.optional()?.map(Timestamp),
            message: get_message(r.rest())?,
        })
    })
}

pub(super) fn put_group(out: &mut Vec<u8>, group: &StoredGroup) {
    out.push(V2);
    put_text(out, &group.share);
    put_text(out, &group.filter);
    put_number(out, group.sent_until);
}

pub(super) fn get_group(log: LogId, bytes: &[u8]) -> Result<StoredGroup, Unreadable> {
    read_up_to(V2, bytes, |version, r| {
        let (share, filter) = (r.text()?.to_owned(), r.text()?.to_owned());
        // The first releases do not tell: anything may have been sent.
        let sent_until = if version == V1 { Seq::MAX } else { r.number()? };
        Ok(StoredGroup { log, share, filter, sent_until })
    })
}

pub(super) fn put_log_state(out: &mut Vec<u8>, state: &LogState) {
    out.push(V2);
    put_number(out, state.trimmed);
    put_number(out, state.settled_bytes);
    put_number(out, state.head);
    put_number(out, state.settled.len() as u64);
    let mut last = state.head;
    for &(from, to) in &state.settled {
        put_number(out, from.saturating_sub(last));
        put_number(out, to.saturating_sub(from));
        last = to;
    }
}

pub(super) fn get_log_state(bytes: &[u8]) -> Result<LogState, Unreadable> {
    read_up_to(V2, bytes, |version, r| r.log_state(version))
}

pub(super) fn put_open(out: &mut Vec<u8>, open: &OpenEntry) {
    out.push(V1);
    put_number(out, open.holder);
    put_number(out, open.packet_id.into());
    out.push(match open.step {
        Step::Sent => 0,
        Step::Released => 1,
    });
}

pub(super) fn get_open(seq: Seq, bytes: &[u8]) -> Result<OpenEntry, Unreadable> {
    read(bytes, |r| {
        Ok(OpenEntry {
            seq,
            holder: r.number()?,
            packet_id: r.number_as("packet identifier")?,
            step: match r.byte()? {
                0 => Step::Sent,
                1 => Step::Released,
                _ => return Err(Unreadable::Invalid("step")),
            },
        })
    })
}

pub(super) fn put_garbage(out: &mut Vec<u8>, garbage: &Garbage) {
    out.push(V1);
    put_number(out, garbage.from);
    put_number(out, garbage.to);
    put_log_state(out, &garbage.state);
}

pub(super) fn get_garbage(log: LogId, bytes: &[u8]) -> Result<Garbage, Unreadable> {
    read(bytes, |r| Ok(Garbage { log, from: r.number()?, to: r.number()?, state: get_log_state(r.rest())? }))
}

/// The publisher's QoS, its RETAIN flag and whether it expires share one byte; the payload is last.
pub(super) fn put_message(out: &mut Vec<u8>, message: &Message) {
    out.reserve(message.topic.as_str().len() + message.properties.len() + message.payload.len() + 32);
    out.push(V1);
    out.push(qos_bits(message.qos) | u8::from(message.retain) << 2 | u8::from(message.expires_at.is_some()) << 3);
    // An id that the next process gives to somebody else must not be taken for the publisher's.
    put_number(out, if message.publisher < UNSTORED { message.publisher } else { 0 });
    if let Some(at) = message.expires_at {
        put_number(out, at.0);
    }
    put_text(out, message.topic.as_str());
    put_bytes(out, &message.properties);
    out.extend_from_slice(&message.payload);
}

pub(super) fn get_message(bytes: &[u8]) -> Result<Message, Unreadable> {
    read(bytes, |r| {
        let bits = r.byte()?;
        if bits >> 4 != 0 {
            return Err(Unreadable::Invalid("flags"));
        }
        Ok(Message {
            qos: qos(bits)?,
            retain: bits & 4 != 0,
            publisher: r.number()?,
            expires_at: if bits & 8 != 0 { Some(Timestamp(r.number()?)) } else { None },
            topic: TopicName::parse(r.text()?).map_err(|_| Unreadable::Invalid("topic"))?,
            properties: r.bytes()?.into(),
            payload: r.rest().into(),
        })
    })
}

/// Who published it stands before the message; where that is not known, the record is the message alone, as older releases wrote it.
pub(super) fn put_retained(out: &mut Vec<u8>, message: &Message, author: Option<&Author>) {
    if let Some(author) = author {
        out.push(V2);
        put_optional_text(out, author.username.as_deref());
        put_text(out, &author.client_id);
    }
    put_message(out, message);
}

pub(super) fn get_retained(bytes: &[u8]) -> Result<(Message, Option<Author>), Unreadable> {
    let Some((&V2, rest)) = bytes.split_first() else { return Ok((get_message(bytes)?, None)) };
    let mut reader = Reader(rest);
    let author = Author { username: reader.optional_text()?.map(Arc::from), client_id: reader.text()?.into() };
    Ok((get_message(reader.rest())?, Some(author)))
}

/// QoS, RETAIN, whether the body stands apart and whether a publisher is named share one byte.
pub(super) fn put_entry(out: &mut Vec<u8>, head: &EntryHead, body: EntryBody<'_>) {
    let shared = matches!(body, EntryBody::Shared(_));
    out.push(V1);
    out.push(
        qos_bits(head.qos)
            | u8::from(head.retain) << 2
            | u8::from(shared) << 3
            | u8::from(head.publisher > 0) << 4
            | COUNTED,
    );
    put_number(out, head.log_bytes);
    if head.publisher > 0 {
        put_number(out, head.publisher);
    }
    put_number(out, head.subscription_ids.len() as u64);
    for &id in &head.subscription_ids {
        put_number(out, id.into());
    }
    match body {
        EntryBody::Shared(id) => put_number(out, id),
        EntryBody::Message(message) => put_message(out, message),
        EntryBody::Encoded(bytes) => out.extend_from_slice(bytes),
    }
}

pub(super) fn get_entry(bytes: &[u8]) -> Result<(EntryHead, EntryMessage), Unreadable> {
    read(bytes, |r| {
        let (head, shared) = r.entry_head()?;
        let message = match shared {
            Some(id) => EntryMessage::Shared(id),
            None => EntryMessage::Inline(get_message(r.rest())?),
        };
        Ok((head, message))
    })
}

/// The head of an entry, and its shared body, if it has one; an inline message is not looked at.
pub(super) fn get_entry_head(bytes: &[u8]) -> Result<(EntryHead, Option<BodyId>), Unreadable> {
    read(bytes, |r| {
        let (head, shared) = r.entry_head()?;
        if shared.is_none() {
            r.rest();
        }
        Ok((head, shared))
    })
}

fn qos_bits(qos: QoS) -> u8 {
    match qos {
        QoS::AtMostOnce => 0,
        QoS::AtLeastOnce => 1,
        QoS::ExactlyOnce => 2,
    }
}

fn qos(bits: u8) -> Result<QoS, Unreadable> {
    match bits & 3 {
        0 => Ok(QoS::AtMostOnce),
        1 => Ok(QoS::AtLeastOnce),
        2 => Ok(QoS::ExactlyOnce),
        _ => Err(Unreadable::Invalid("QoS")),
    }
}

fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_bytes(out, text.as_bytes());
}

fn put_optional(out: &mut Vec<u8>, number: Option<u64>) {
    out.push(number.is_some().into());
    if let Some(number) = number {
        put_number(out, number);
    }
}

fn put_optional_text(out: &mut Vec<u8>, text: Option<&str>) {
    out.push(text.is_some().into());
    if let Some(text) = text {
        put_text(out, text);
    }
}

/// Reads a whole record: its version, what `body` takes, and nothing behind it.
fn read<'a, T>(bytes: &'a [u8], body: impl FnOnce(&mut Reader<'a>) -> Result<T, Unreadable>) -> Result<T, Unreadable> {
    read_up_to(V1, bytes, |_, reader| body(reader))
}

/// The same, where there are versions up to `newest`.
fn read_up_to<'a, T>(
    newest: u8,
    bytes: &'a [u8],
    body: impl FnOnce(u8, &mut Reader<'a>) -> Result<T, Unreadable>,
) -> Result<T, Unreadable> {
    let mut reader = Reader(bytes);
    let version = reader.byte()?;
    if !(V1..=newest).contains(&version) {
        return Err(Unreadable::Version(version));
    }
    let value = body(version, &mut reader)?;
    reader.end(value)
}

fn narrow<T: TryFrom<u64>>(number: u64, name: &'static str) -> Result<T, Unreadable> {
    number.try_into().map_err(|_| Unreadable::Invalid(name))
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Result<u8, Unreadable> {
        let (first, rest) = self.0.split_first().ok_or(Unreadable::Short)?;
        self.0 = rest;
        Ok(*first)
    }

    /// `value`, if nothing stands behind it.
    fn end<T>(&self, value: T) -> Result<T, Unreadable> {
        match self.0.len() {
            0 => Ok(value),
            trailing => Err(Unreadable::Trailing(trailing)),
        }
    }

    fn flag(&mut self) -> Result<bool, Unreadable> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Unreadable::Invalid("flag")),
        }
    }

    fn number(&mut self) -> Result<u64, Unreadable> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7F);
            number |= bits << shift;
            if byte & 0x80 == 0 {
                let fits = bits << shift >> shift == bits;
                return if fits { Ok(number) } else { Err(Unreadable::Invalid("number")) };
            }
        }
        Err(Unreadable::Invalid("number"))
    }

    fn number_as<T: TryFrom<u64>>(&mut self, name: &'static str) -> Result<T, Unreadable> {
        narrow(self.number()?, name)
    }

    fn optional(&mut self) -> Result<Option<u64>, Unreadable> {
        if self.flag()? { self.number().map(Some) } else { Ok(None) }
    }

    fn bytes(&mut self) -> Result<&'a [u8], Unreadable> {
        let len = self.number_as("length")?;
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Unreadable::Short)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn text(&mut self) -> Result<&'a str, Unreadable> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Unreadable::Invalid("text"))
    }

    fn optional_text(&mut self) -> Result<Option<String>, Unreadable> {
        if self.flag()? { Ok(Some(self.text()?.to_owned())) } else { Ok(None) }
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    fn log_state(&mut self, version: u8) -> Result<LogState, Unreadable> {
        let trimmed = self.number()?;
        let settled_bytes = if version == V1 { 0 } else { self.number()? };
        let head = self.number()?;
        let ranges = self.number()?;
        let mut settled = Vec::new();
        let mut last = head;
        for _ in 0..ranges {
            let (gap, more) = (self.number()?, self.number()?);
            let from = last.checked_add(gap).filter(|_| gap > 1).ok_or(Unreadable::Invalid("range"))?;
            last = from.checked_add(more).ok_or(Unreadable::Invalid("range"))?;
            settled.push((from, last));
        }
        Ok(LogState { head, settled, trimmed, settled_bytes })
    }

    /// The head, and the shared body if there is one; else the message follows.
    fn entry_head(&mut self) -> Result<(EntryHead, Option<BodyId>), Unreadable> {
        let bits = self.byte()?;
        if bits & !(COUNTED | 0x1F) != 0 {
            return Err(Unreadable::Invalid("flags"));
        }
        // Those of the first releases do not count.
        let log_bytes = if bits & COUNTED != 0 { self.number()? } else { 0 };
        let publisher = if bits & 16 != 0 { self.number()? } else { 0 };
        let mut subscription_ids = SmallVec::new();
        for _ in 0..self.number()? {
            subscription_ids.push(self.number_as("subscription identifier")?);
        }
        let shared = if bits & 8 != 0 { Some(self.number()?) } else { None };
        let head = EntryHead { qos: qos(bits)?, retain: bits & 4 != 0, subscription_ids, publisher, log_bytes };
        Ok((head, shared))
    }
}

const V1: u8 = 1;
const V2: u8 = 2;
/// The bit of an entry that says that its `log_bytes` follow.
const COUNTED: u8 = 0x20;

#[cfg(test)]
mod tests;
