//! The lines of an export: each one JSON object, told apart by its `kind`. README.md has the manual.
//!
//! Text stands as text where MQTT requires UTF-8; payloads and correlation data are base64; times are milliseconds since the Unix epoch,
//! QoS is 0 to 2. Must not know how a store keeps any of it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    mqtt::{
        self, PacketId, QoS, Timestamp, TopicName,
        packet::{RetainHandling, SubscriptionOptions},
        property,
        topic_map::Place,
    },
    storage::{
        self, Content, EntryHead, Item, LogState, OpenEntry, Recovered, RecoveredLog, Step, StoredGroup, StoredSession,
        StoredSubscription, StoredTime, StoredWill,
    },
};

/// One line. The first is a `header`, the last an `end`; sessions and groups come before their entries, bodies before what refers to them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Line {
    Header {
        format: String,
        version: u32,
        broker: String,
        /// The first id that the store has not given to anything.
        next_id: u64,
    },
    /// The time of the broker, which all times go by, and the wall clock then.
    Time {
        time: u64,
        wall: u64,
    },
    Session {
        id: u64,
        client_id: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        username: Option<String>,
        /// 4294967295 never expires.
        expiry_secs: u32,
        connected: bool,
        disconnected_at: u64,
        /// Entries of the queue up to this one may have been sent.
        sent_until: u64,
        #[serde(default)]
        subscriptions: Vec<Subscription>,
        /// Packet Identifiers of inbound QoS 2 messages that are not released.
        #[serde(default)]
        received: Vec<PacketId>,
        #[serde(default)]
        queue: Queue,
    },
    Group {
        id: u64,
        share: String,
        filter: String,
        sent_until: u64,
        #[serde(default)]
        queue: Queue,
    },
    Body {
        id: u64,
        message: Message,
    },
    Entry {
        /// The id of the session or group.
        queue: u64,
        seq: u64,
        #[serde(with = "qos")]
        qos: QoS,
        retain: bool,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        subscription_ids: Vec<u32>,
        /// In the queue of a group: stands for its publisher.
        #[serde(default, skip_serializing_if = "is_zero")]
        publisher: u64,
        /// The bytes of all entries that the queue ever had, up to and with this one.
        queue_bytes: u64,
        /// Either the message, or the id of its body.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<Message>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        body: Option<u64>,
    },
    Retained {
        message: Message,
        /// Who published it, where that is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        author: Option<Author>,
    },
    Will {
        session: u64,
        client_id: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        username: Option<String>,
        delay_secs: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expiry_secs: Option<u32>,
        session_expiry_secs: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        due_at: Option<u64>,
        message: Message,
    },
    End,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Subscription {
    filter: String,
    #[serde(with = "qos")]
    qos: QoS,
    #[serde(default)]
    no_local: bool,
    #[serde(default)]
    retain_as_published: bool,
    /// 0 to 2, as in 3.8.3.1.
    #[serde(default)]
    retain_handling: u8,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    subscription_id: Option<u32>,
    /// It is still to be sent what is retained, from this topic on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    replay: Option<String>,
}

/// Which entries are settled, and what is in flight.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Queue {
    /// All up to this one are settled.
    head: u64,
    /// Settled beyond it: first and last of each range.
    settled: Vec<(u64, u64)>,
    trimmed: u64,
    settled_bytes: u64,
    in_flight: Vec<InFlight>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct InFlight {
    seq: u64,
    /// In the queue of a group: the session that holds it.
    #[serde(default, skip_serializing_if = "is_zero")]
    holder: u64,
    /// 0: the one that follows from `seq`.
    packet_id: u16,
    /// PUBREC was received: PUBREL is due.
    released: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Author {
    client_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    username: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Message {
    topic: String,
    #[serde(with = "base64_text")]
    payload: Vec<u8>,
    #[serde(with = "qos")]
    qos: QoS,
    #[serde(default)]
    retain: bool,
    /// In the order in which they were published.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    properties: Vec<Property>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_at: Option<u64>,
    /// The id of the session that published it; 0: none that is stored.
    #[serde(default, skip_serializing_if = "is_zero")]
    publisher: u64,
}

/// Those that are forwarded with a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Property {
    PayloadFormatIndicator(bool),
    ContentType(String),
    ResponseTopic(String),
    #[serde(with = "base64_text")]
    CorrelationData(Vec<u8>),
    #[serde(rename = "user_property")]
    User(String, String),
}

impl Line {
    /// The first line of an export.
    pub(super) fn header(next_id: u64) -> Self {
        let (format, broker) = (FORMAT.to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        Self::Header { format, version: VERSION, broker, next_id }
    }

    /// The first free id, if this is the first line of an export that can be read.
    pub(super) fn as_header(&self) -> Result<u64, String> {
        match self {
            Self::Header { format, version: VERSION, next_id, .. } if format == FORMAT => Ok(*next_id),
            Self::Header { format, version, broker, .. } => Err(format!(
                "it is format {format:?}, version {version}, of pinnace {broker}; this release reads {FORMAT:?}, version {VERSION}"
            )),
            _ => Err("the first line must be the header of an export".to_owned()),
        }
    }

    /// What is to be stored, or what is wrong with it; none at the end.
    pub(super) fn into_item(self) -> Result<Option<Item>, String> {
        Ok(Some(match self {
            Self::End => return Ok(None),
            Self::Header { .. } => return Err("a second header".to_owned()),
            Self::Time { time, wall } => Item::Time(StoredTime { time: Timestamp(time), wall: Timestamp(wall) }),
            Self::Body { id, message } => Item::Body { id, message: Arc::new(message.read()?) },
            Self::Entry { queue, seq, qos, retain, subscription_ids, publisher, queue_bytes, message, body } => {
                if let Some(&id) = subscription_ids.iter().find(|&&id| !is_subscription_id(id)) {
                    return Err(format!("{id} is no subscription identifier"));
                }
                let content = match (message, body) {
                    (Some(message), None) => Content::Message(Arc::new(message.read()?)),
                    (None, Some(id)) => Content::Body(id),
                    _ => return Err("an entry has either a message or a body".to_owned()),
                };
                let subscription_ids = subscription_ids.into();
                let head = EntryHead { qos, retain, subscription_ids, publisher, log_bytes: queue_bytes };
                Item::Entry { log: queue, seq, head, content }
            }
            Self::Retained { message, author } => {
                let author = author.map(|Author { client_id, username }| storage::Author {
                    username: username.map(Arc::from),
                    client_id: client_id.into(),
                });
                Item::Record(Recovered::Retained(Arc::new(message.read()?), author))
            }
            record => Item::Record(record.read_record()?),
        }))
    }

    fn read_record(self) -> Result<Recovered, String> {
        Ok(match self {
            Self::Session {
                id,
                client_id,
                username,
                expiry_secs,
                connected,
                disconnected_at,
                sent_until,
                subscriptions,
                received,
                queue,
            } => {
                let disconnected_at = Timestamp(disconnected_at);
                let session =
                    StoredSession { id, client_id, username, expiry_secs, connected, disconnected_at, sent_until };
                let subscriptions = subscriptions.into_iter().map(Subscription::read).collect::<Result<_, _>>()?;
                Recovered::Session { session, subscriptions, received, log: queue.read() }
            }
            Self::Group { id, share, filter, sent_until, queue } => {
                Recovered::Group { group: StoredGroup { log: id, share, filter, sent_until }, log: queue.read() }
            }
            Self::Will {
                session,
                client_id,
                username,
                delay_secs,
                expiry_secs,
                session_expiry_secs,
                due_at,
                message,
            } => Recovered::Will(StoredWill {
                session,
                client_id,
                username,
                message: message.read()?,
                delay_secs,
                expiry_secs,
                session_expiry_secs,
                due_at: due_at.map(Timestamp),
            }),
            other => return Err(format!("no record: {other:?}")),
        })
    }
}

impl From<Item> for Line {
    fn from(item: Item) -> Self {
        match item {
            Item::Time(StoredTime { time, wall }) => Self::Time { time: time.0, wall: wall.0 },
            Item::Body { id, message } => Self::Body { id, message: Message::from(&*message) },
            Item::Entry { log, seq, head, content } => {
                let (message, body) = match content {
                    Content::Message(message) => (Some(Message::from(&*message)), None),
                    Content::Body(id) => (None, Some(id)),
                };
                let EntryHead { qos, retain, subscription_ids, publisher, log_bytes } = head;
                Self::Entry {
                    queue: log,
                    seq,
                    qos,
                    retain,
                    subscription_ids: subscription_ids.into_vec(),
                    publisher,
                    queue_bytes: log_bytes,
                    message,
                    body,
                }
            }
            Item::Record(Recovered::Session { session, subscriptions, received, log }) => Self::Session {
                id: session.id,
                client_id: session.client_id,
                username: session.username,
                expiry_secs: session.expiry_secs,
                connected: session.connected,
                disconnected_at: session.disconnected_at.0,
                sent_until: session.sent_until,
                subscriptions: subscriptions.into_iter().map(Subscription::from).collect(),
                received,
                queue: Queue::from(log),
            },
            Item::Record(Recovered::Group { group, log }) => {
                let StoredGroup { log: id, share, filter, sent_until } = group;
                Self::Group { id, share, filter, sent_until, queue: Queue::from(log) }
            }
            Item::Record(Recovered::Retained(message, author)) => {
                let author = author.map(|author| Author {
                    client_id: author.client_id.as_ref().to_owned(),
                    username: author.username.as_deref().map(str::to_owned),
                });
                Self::Retained { message: Message::from(&*message), author }
            }
            Item::Record(Recovered::Will(will)) => Self::Will {
                session: will.session,
                client_id: will.client_id,
                username: will.username,
                delay_secs: will.delay_secs,
                expiry_secs: will.expiry_secs,
                session_expiry_secs: will.session_expiry_secs,
                due_at: will.due_at.map(|at| at.0),
                message: Message::from(&will.message),
            },
        }
    }
}

impl Subscription {
    fn read(self) -> Result<StoredSubscription, String> {
        let Self { filter, qos, no_local, retain_as_published, retain_handling, subscription_id, replay } = self;
        let retain_handling = match retain_handling {
            0 => RetainHandling::Send,
            1 => RetainHandling::SendIfNew,
            2 => RetainHandling::Never,
            other => return Err(format!("the retain handling of {filter:?} is {other}; it is 0 to 2")),
        };
        if let Some(id) = subscription_id.filter(|&id| !is_subscription_id(id)) {
            return Err(format!("{id} is no subscription identifier"));
        }
        let options = SubscriptionOptions { qos, no_local, retain_as_published, retain_handling };
        let replay = replay.map(|from| Place::from_text(&from));
        Ok(StoredSubscription { filter, options, subscription_id, replay })
    }
}

impl From<StoredSubscription> for Subscription {
    fn from(stored: StoredSubscription) -> Self {
        let SubscriptionOptions { qos, no_local, retain_as_published, retain_handling } = stored.options;
        let (filter, subscription_id) = (stored.filter, stored.subscription_id);
        let (retain_handling, replay) = (retain_handling as u8, stored.replay.map(|from| from.text()));
        Self { filter, qos, no_local, retain_as_published, retain_handling, subscription_id, replay }
    }
}

impl Queue {
    /// The end of the log, and what waits in it, follow from its entries.
    fn read(self) -> RecoveredLog {
        let Self { head, settled, trimmed, settled_bytes, in_flight } = self;
        let open = in_flight.into_iter().map(|InFlight { seq, holder, packet_id, released }| {
            let step = if released { Step::Released } else { Step::Sent };
            OpenEntry { seq, holder, packet_id, step }
        });
        let state = LogState { head, settled, trimmed, settled_bytes };
        RecoveredLog { state, open: open.collect(), ..RecoveredLog::default() }
    }
}

impl From<RecoveredLog> for Queue {
    fn from(log: RecoveredLog) -> Self {
        let LogState { head, settled, trimmed, settled_bytes } = log.state;
        let in_flight = log.open.into_iter().map(|OpenEntry { seq, holder, packet_id, step }| InFlight {
            seq,
            holder,
            packet_id,
            released: step == Step::Released,
        });
        Self { head, settled, trimmed, settled_bytes, in_flight: in_flight.collect() }
    }
}

impl Message {
    fn read(self) -> Result<mqtt::Message, String> {
        let properties = self.properties.iter().map(|property| match property {
            Property::PayloadFormatIndicator(is) => property::Property::PayloadFormatIndicator(*is),
            Property::ContentType(text) => property::Property::ContentType(text),
            Property::ResponseTopic(topic) => property::Property::ResponseTopic(topic),
            Property::CorrelationData(data) => property::Property::CorrelationData(data),
            Property::User(name, value) => property::Property::UserProperty((name, value)),
        });
        Ok(mqtt::Message {
            properties: property::keep(properties).map_err(|problem| format!("properties: {problem}"))?,
            topic: TopicName::parse(&self.topic).map_err(|problem| format!("topic {:?}: {problem}", self.topic))?,
            payload: self.payload.into(),
            qos: self.qos,
            retain: self.retain,
            expires_at: self.expires_at.map(Timestamp),
            publisher: self.publisher,
        })
    }
}

impl From<&mqtt::Message> for Message {
    fn from(message: &mqtt::Message) -> Self {
        // They were checked when the message came, and so were those of no other kind.
        let properties = property::kept(&message.properties).map_while(Result::ok).filter_map(|property| {
            Some(match property {
                property::Property::PayloadFormatIndicator(is) => Property::PayloadFormatIndicator(is),
                property::Property::ContentType(text) => Property::ContentType(text.to_owned()),
                property::Property::ResponseTopic(topic) => Property::ResponseTopic(topic.to_owned()),
                property::Property::CorrelationData(data) => Property::CorrelationData(data.to_owned()),
                property::Property::UserProperty((name, value)) => Property::User(name.to_owned(), value.to_owned()),
                _ => return None,
            })
        });
        Self {
            topic: message.topic.as_str().to_owned(),
            payload: message.payload.to_vec(),
            qos: message.qos,
            retain: message.retain,
            properties: properties.collect(),
            expires_at: message.expires_at.map(|at| at.0),
            publisher: message.publisher,
        }
    }
}

/// 3.8.2.1.2
fn is_subscription_id(id: u32) -> bool {
    (1..=268_435_455).contains(&id)
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

mod qos {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use super::QoS;

    pub(super) fn serialize<S: Serializer>(qos: &QoS, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u8(*qos as u8)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<QoS, D::Error> {
        match u8::deserialize(from)? {
            0 => Ok(QoS::AtMostOnce),
            1 => Ok(QoS::AtLeastOnce),
            2 => Ok(QoS::ExactlyOnce),
            other => Err(D::Error::custom(format!("the QoS is {other}; it is 0 to 2"))),
        }
    }
}

mod base64_text {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        STANDARD.decode(text).map_err(|problem| D::Error::custom(format!("no base64: {problem}")))
    }
}

const FORMAT: &str = "pinnace-export";
const VERSION: u32 = 1;

#[cfg(test)]
mod tests;
