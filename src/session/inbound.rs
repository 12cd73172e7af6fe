//! What comes from the client: QoS 1 and 2 of its PUBLISHes, topic aliases, and the replies that wait their turn.
//!
//! Must not know what the broker does for a request.

use std::collections::{HashMap, VecDeque};

use crate::mqtt::{
    Outbox, Packet, PacketId, QoS, ReasonCode, TopicName, Version,
    packet::{AckKind, Disconnect, Publish, SubAck, Subscribe, Unsubscribe},
};

use super::{Commit, Delivery, Source, Terms, Violation};

/// What the broker is asked to do for a packet.
#[derive(Debug)]
pub enum Request<'a> {
    /// Nothing more.
    Nothing,
    /// Publish this message, whose topic is `alias` where the packet named none. Answer QoS 1 by PUBACK, QoS 2 by PUBREC.
    Publish {
        /// The packet.
        publish: Publish<'a>,
        /// The topic that its alias stands for.
        alias: Option<TopicName>,
    },
    /// A QoS 2 PUBLISH that is here already [MQTT-4.3.3-10]: answer by PUBREC, once the first is durable.
    Duplicate(PacketId),
    /// PUBREL: forget the packet id, then answer by PUBCOMP.
    Release(PacketId),
    /// SUBSCRIBE.
    Subscribe(Subscribe),
    /// UNSUBSCRIBE.
    Unsubscribe(Unsubscribe),
    /// The client acknowledged a delivery.
    Settled(Settled),
    /// DISCONNECT.
    Disconnect(Disconnect),
    /// The client goes on proving who it is, see [`super::Authentication`].
    Authenticate {
        /// A new exchange begins.
        begins: bool,
        /// Authentication Data.
        data: Option<Box<[u8]>>,
    },
}

/// What an acknowledgement of the client did to a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// Its packet id.
    pub packet_id: PacketId,
    /// Where the delivery came from.
    pub source: Source,
    /// It is complete. Else: PUBREC came, and PUBREL must follow once that is recorded.
    pub complete: bool,
    /// The client refused the message (0x80 or more).
    pub refused: bool,
}

/// A packet that waits for its turn, or for a commit.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// One of the four acknowledgements of a PUBLISH.
    Ack(AckKind, PacketId, ReasonCode),
    /// SUBACK.
    SubAck(SubAck),
    /// UNSUBACK.
    UnsubAck(SubAck),
    /// A delivery whose packet id is recorded before it leaves.
    Publish(Box<Delivery>, PacketId),
}

/// Waits for the next [`Inbound::ticket`].
const UNNUMBERED: u64 = u64::MAX;

#[derive(Debug, Default)]
pub(super) struct Inbound {
    /// QoS 2 ids whose PUBREL has not come [MQTT-4.3.3-10], with whether this connection sent the PUBLISH.
    received: HashMap<PacketId, bool, foldhash::fast::RandomState>,
    /// PUBLISHes of this connection that count towards Receive Maximum: QoS 1 until PUBACK has left, QoS 2 until PUBREL has come
    /// [MQTT-4.9.0-1].
    open: usize,
    receive_maximum: u16,
    /// MQTT 5: a PUBREC can say that a message was not taken, which ends its exchange.
    tells_reasons: bool,
    aliases: HashMap<u16, TopicName, foldhash::fast::RandomState>,
    alias_maximum: u16,
    replies: VecDeque<(u64, Reply)>,
    /// Replies ever queued.
    queued: u64,
}

impl Inbound {
    pub(super) fn restore(&mut self, received: impl IntoIterator<Item = PacketId>) {
        self.received = received.into_iter().map(|packet_id| (packet_id, false)).collect();
    }

    pub(super) fn connected(&mut self, terms: &Terms) {
        self.disconnected();
        self.tells_reasons = terms.version.is_v5();
        self.receive_maximum = if terms.version.is_v5() { terms.receive_maximum } else { u16::MAX };
        self.alias_maximum = terms.topic_alias_maximum;
    }

    pub(super) fn disconnected(&mut self) {
        self.aliases = HashMap::default();
        for (_, reply) in std::mem::take(&mut self.replies) {
            // It was not taken, and its client does not know: as it comes again it is no duplicate.
            if let Reply::Ack(AckKind::PubRec, packet_id, reason) = reply
                && reason.is_failure()
                && self.tells_reasons
            {
                self.received.remove(&packet_id);
            }
        }
        self.open = 0;
        self.received.values_mut().for_each(|sent_now| *sent_now = false);
        self.received.shrink_to_fit();
    }

    /// Whether nothing of the client is kept beyond its connection.
    pub(super) fn is_blank(&self) -> bool {
        self.received.is_empty()
    }

    pub(super) fn publish<'a>(&mut self, publish: Publish<'a>, terms: &Terms) -> Result<Request<'a>, Violation> {
        let alias = self.resolve(&publish)?;
        // Before the packet id is taken: else what is refused here would be a duplicate when it comes again.
        if publish.retain {
            terms.packet.retained(alias.as_ref().map_or(publish.topic, TopicName::as_str))?;
        }
        let Some(packet_id) = publish.packet_id else { return Ok(Request::Publish { publish, alias }) };
        let known = self.received.get(&packet_id).filter(|_| publish.qos == QoS::ExactlyOnce).copied();
        if known == Some(true) {
            return Ok(Request::Duplicate(packet_id));
        }
        if terms.version.is_v5() && self.open >= usize::from(self.receive_maximum) {
            return Err(Violation::ReceiveMaximumExceeded(self.receive_maximum));
        }
        self.open += 1;
        if publish.qos == QoS::ExactlyOnce {
            self.received.insert(packet_id, true);
        }
        Ok(if known.is_some() { Request::Duplicate(packet_id) } else { Request::Publish { publish, alias } })
    }

    /// The topic that a Topic Alias stands for, where the packet names no topic; remembers a new one.
    fn resolve(&mut self, publish: &Publish<'_>) -> Result<Option<TopicName>, Violation> {
        let Some(alias) = publish.topic_alias else { return Ok(None) };
        let alias = alias.get();
        if alias > self.alias_maximum {
            return Err(Violation::TopicAliasInvalid(alias));
        }
        if publish.topic.is_empty() {
            return self.aliases.get(&alias).cloned().map(Some).ok_or(Violation::TopicAliasUnknown(alias));
        }
        let topic = TopicName::parse(publish.topic).map_err(|_| Violation::TopicAliasInvalid(alias))?;
        self.aliases.insert(alias, topic.clone());
        Ok(Some(topic))
    }

    pub(super) fn pubrel(&mut self, packet_id: PacketId, version: Version) -> Request<'static> {
        if self.forget(packet_id) {
            return Request::Release(packet_id);
        }
        let unknown = if version.is_v5() { ReasonCode::PacketIdentifierNotFound } else { ReasonCode::Success };
        self.acknowledge(Reply::Ack(AckKind::PubComp, packet_id, unknown), false);
        Request::Nothing
    }

    /// `true` where it was known.
    fn forget(&mut self, packet_id: PacketId) -> bool {
        let known = self.received.remove(&packet_id);
        self.open = self.open.saturating_sub(usize::from(known == Some(true)));
        known.is_some()
    }

    pub(super) fn acknowledge(&mut self, reply: Reply, durable: bool) {
        self.queued += 1;
        self.replies.push_back((if durable { UNNUMBERED } else { 0 }, reply));
    }

    /// The reply that was the `queued`th.
    pub(super) fn refuse(&mut self, queued: u64) -> bool {
        let left = self.queued - self.replies.len() as u64;
        let at = queued.checked_sub(left + 1).and_then(|at| usize::try_from(at).ok());
        if let Some((_, Reply::Ack(AckKind::PubAck | AckKind::PubRec, _, reason))) =
            at.and_then(|at| self.replies.get_mut(at))
        {
            *reason = ReasonCode::QuotaExceeded;
            return true;
        }
        false
    }

    pub(super) fn ticket(&mut self, lsn: u64) {
        for (ticket, _) in self.replies.iter_mut().rev() {
            if *ticket == UNNUMBERED {
                *ticket = lsn;
            } else if *ticket != 0 {
                break;
            }
        }
    }

    pub(super) fn awaited(&self) -> Option<u64> {
        self.replies.front().map(|(ticket, _)| *ticket).filter(|ticket| *ticket != UNNUMBERED)
    }

    pub(super) fn waiting(&self) -> usize {
        self.replies.len()
    }

    pub(super) fn is_at_rest(&self) -> bool {
        self.open == 0 && self.replies.is_empty()
    }

    pub(super) fn queued(&self) -> u64 {
        self.queued
    }

    /// The first reply, if it may leave; `true` where what it stands for failed.
    pub(super) fn due(&mut self, commit: &mut impl FnMut(u64) -> Commit) -> Option<(Reply, bool)> {
        let (ticket, _) = self.replies.front()?;
        let failed = match *ticket {
            0 => false,
            UNNUMBERED => return None,
            lsn => match commit(lsn) {
                Commit::Pending => return None,
                Commit::Done => false,
                Commit::Failed => true,
            },
        };
        let (_, reply) = self.replies.pop_front()?;
        if self.replies.is_empty() {
            self.replies.shrink_to(16);
        }
        Some((reply, failed))
    }

    /// Encodes `reply`. A failed commit is said by a Reason Code where the packet has one that says so.
    pub(super) fn send(
        &mut self,
        reply: Reply,
        failed: bool,
        logged: bool,
        version: Version,
        outbox: &mut Outbox,
    ) -> Result<(), Violation> {
        match reply {
            Reply::Ack(kind, packet_id, reason) => {
                let reason = match kind {
                    AckKind::PubAck if failed && version.is_v5() => ReasonCode::QuotaExceeded,
                    // Where the store keeps the session, its record of the packet id may have survived: a client that is told to
                    // forget the id would find it taken. It sends the PUBLISH again instead.
                    AckKind::PubRec if failed && version.is_v5() && !logged => ReasonCode::QuotaExceeded,
                    _ if failed => return Err(Violation::NotDurable),
                    _ => reason,
                };
                match kind {
                    AckKind::PubAck => self.open = self.open.saturating_sub(1),
                    AckKind::PubRec if reason.is_failure() && version.is_v5() => {
                        self.forget(packet_id);
                    }
                    _ => {}
                }
                outbox.ack(kind, packet_id, reason);
            }
            Reply::SubAck(mut suback) => {
                if failed {
                    suback.reasons.fill(ReasonCode::ImplementationSpecificError);
                }
                outbox.packet(&Packet::SubAck(suback)).map_err(|_| Violation::AnswerTooLarge)?;
            }
            Reply::UnsubAck(_) if failed && !version.is_v5() => return Err(Violation::NotDurable),
            Reply::UnsubAck(mut unsuback) => {
                if failed {
                    unsuback.reasons.fill(ReasonCode::ImplementationSpecificError);
                }
                outbox.packet(&Packet::UnsubAck(unsuback)).map_err(|_| Violation::AnswerTooLarge)?;
            }
            Reply::Publish(..) => return Err(Violation::NotDurable),
        }
        Ok(())
    }
}
