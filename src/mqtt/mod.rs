//! The vocabulary of the MQTT specification: bytes in, values out.
//!
//! Knows nothing of sockets, clocks, locks, tasks, or any other room of the house.

pub mod codec;
mod connect;
#[cfg(test)]
mod differential;
pub mod frame;
pub mod malformed;
pub mod message;
pub mod outbox;
pub mod packet;
pub mod property;
pub mod publish;
pub mod reason;
mod shown;
pub mod topic;
pub mod topic_map;
pub mod trie;
mod wire;

pub use codec::QoS;
pub use malformed::Malformed;
pub use message::{Message, Timestamp};
pub use outbox::{Outbox, Tally};
pub use packet::{Packet, PacketId, Version};
pub use reason::ReasonCode;
pub use shown::Shown;
pub use topic::{Filter, TopicFilter, TopicName};
pub use topic_map::TopicMap;
pub use trie::TopicTrie;
