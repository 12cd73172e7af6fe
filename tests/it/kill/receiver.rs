//! What all who receive have in common.

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use crate::support::{
    Broker, Client, Connect, Lost, Packet,
    wire::{self, PUBACK, PUBCOMP, PUBREC, PUBREL, Publish},
};

use super::{is_refusal, login};

/// A receiver with a persistent session and a memory of its own, as a device with flash has.
pub(super) struct Receiver {
    connect: Connect,
    /// QoS 2 messages that are received and not released.
    unreleased: BTreeSet<u16>,
}

impl Receiver {
    /// With a session that has this subscription.
    pub(super) fn subscribed(broker: &Broker, connect: &Connect, filter: &str, qos: u8) -> Self {
        let connect = connect.clone().persistent();
        let mut client = broker.connect(&connect);
        client.subscribe(filter, qos);
        client.disconnect();
        Self { connect, unreleased: BTreeSet::new() }
    }

    pub(super) fn name(&self) -> &str {
        &self.connect.client_id
    }

    /// Connects to a broker that may be gone; the session must be there.
    pub(super) fn connect(&self, address: SocketAddr) -> Result<Client, Lost> {
        let (client, session_present) = login(address, &self.connect)?;
        assert!(session_present, "the session of {} is gone", self.name());
        Ok(client)
    }

    /// Takes the next packet and keeps in mind what came, but does not say so yet: a message, if it is a new one, and what is to be said.
    pub(super) fn hear(&mut self, client: &mut Client, patience: Duration) -> Result<(Option<Publish>, Vec<u8>), Lost> {
        match client.try_receive(patience)? {
            Packet::Publish(publish) if publish.qos == 2 => {
                let (id, is_new) = (publish.id, self.unreleased.insert(publish.id));
                assert!(is_new || publish.dup, "an id that is not released yet, for a new message");
                Ok((is_new.then_some(publish), wire::ack(PUBREC, id)))
            }
            Packet::Publish(publish) => {
                let answer = wire::ack(PUBACK, publish.id);
                Ok((Some(publish), answer))
            }
            Packet::Ack { kind: PUBREL, id, .. } => {
                self.unreleased.remove(&id);
                Ok((None, wire::ack(PUBCOMP, id)))
            }
            other if is_refusal(&other) => Err(Lost::Closed),
            other => panic!("{}: {other:?}", self.name()),
        }
    }

    /// Takes the next packet and answers it.
    pub(super) fn take(&mut self, client: &mut Client, patience: Duration) -> Result<Option<Publish>, Lost> {
        let (publish, answer) = self.hear(client, patience)?;
        // What it has heard stays heard, also where the answer does not leave any more.
        let _ = client.try_send(&answer);
        Ok(publish)
    }

    /// Whether no handshake is open.
    pub(super) fn is_settled(&self) -> bool {
        self.unreleased.is_empty()
    }
}
