//! Who publishes.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::support::{
    Client, Connect, Lost, PATIENCE, Packet, Random,
    client::publish_of,
    wire::{self, PUBACK, PUBCOMP, PUBREC, PUBREL, Publish},
};

use super::{is_refusal, login};

const WINDOW: usize = 30;
/// One acknowledgement in so many is the last thing that the client sees before it dies itself.
const DIES_IN: u64 = 200;

/// How far a message is.
#[derive(Clone, Copy, PartialEq)]
enum Step {
    /// No acknowledgement yet.
    Sent,
    /// PUBREC came: PUBREL goes out.
    Received,
    /// Its handshake is over.
    Done,
}

/// A publisher with a persistent session and a memory of its own, which resumes its handshakes as [MQTT-4.4.0-1] wants.
pub(super) struct Publisher {
    index: usize,
    connect: Connect,
    qos: u8,
    /// The number of its next message.
    pub(super) next: u64,
    /// What is not over, in order.
    open: VecDeque<(u16, u64, Step)>,
    connected_before: bool,
    random: Random,
}

impl Publisher {
    pub(super) fn new(index: usize, level: u8, qos: u8, random: Random) -> Self {
        let connect = Connect::new(level, &format!("publisher-{index}")).persistent();
        Self { index, connect, qos, next: 0, open: VecDeque::new(), connected_before: false, random }
    }

    /// Publishes until the broker is gone.
    pub(super) fn stream(&mut self, address: SocketAddr, acknowledged: &AtomicU64) {
        loop {
            match self.resume(address) {
                Ok(client) => drop(self.live(client, acknowledged)),
                Err(Lost::Io(_)) => return,
                Err(_) => {}
            }
        }
    }

    /// Publishes until the connection is lost, or the client dies.
    fn live(&mut self, mut client: Client, acknowledged: &AtomicU64) -> Result<(), Lost> {
        loop {
            let mut bytes = Vec::new();
            while self.open.len() < WINDOW {
                let id = (self.next % 65_535) as u16 + 1;
                self.open.push_back((id, self.next, Step::Sent));
                bytes.extend(self.encode(id, self.next, false));
                self.next += 1;
            }
            client.try_send(&bytes)?;
            let answer = self.acknowledgement(&mut client)?;
            acknowledged.fetch_add(1, Ordering::Relaxed);
            if self.random.below(DIES_IN) == 0 {
                return Ok(());
            }
            client.try_send(&answer)?;
        }
    }

    /// Brings every handshake to its end.
    pub(super) fn finish(&mut self, address: SocketAddr) {
        let mut client = self.resume(address).expect("a connection");
        while !self.open.is_empty() {
            let answer = self.acknowledgement(&mut client).expect("acknowledgements");
            client.send(&answer);
        }
        client.disconnect();
    }

    /// Connects and sends again what is not over.
    fn resume(&mut self, address: SocketAddr) -> Result<Client, Lost> {
        let (mut client, session_present) = login(address, &self.connect)?;
        assert!(session_present || !self.connected_before, "the session of publisher {} is gone", self.index);
        self.connected_before = true;
        let mut bytes = Vec::new();
        for (id, number, step) in &self.open {
            match step {
                Step::Sent => bytes.extend(self.encode(*id, *number, true)),
                Step::Received => bytes.extend(wire::ack(PUBREL, *id)),
                Step::Done => {}
            }
        }
        client.try_send(&bytes)?;
        Ok(client)
    }

    /// Takes one acknowledgement; what is to be said to it.
    fn acknowledgement(&mut self, client: &mut Client) -> Result<Vec<u8>, Lost> {
        let packet = client.try_receive(PATIENCE)?;
        if is_refusal(&packet) {
            return Err(Lost::Closed);
        }
        let Packet::Ack { kind, id, code, .. } = packet else { panic!("{packet:?} is not an acknowledgement") };
        // "Packet Identifier not found" is no error while a handshake is recovered (3.7.2.1): its PUBCOMP was lost.
        assert!(code < 0x80 || (kind == PUBCOMP && code == 0x92), "refused with {code:#x}");
        let open = self.open.iter_mut().find(|(open, ..)| *open == id).expect("an id that is in flight");
        let mut answer = Vec::new();
        match (kind, open.2) {
            (PUBACK, Step::Sent) | (PUBCOMP, Step::Received) => open.2 = Step::Done,
            (PUBREC, Step::Sent | Step::Received) => {
                open.2 = Step::Received;
                answer = wire::ack(PUBREL, id);
            }
            (kind, _) => panic!("an acknowledgement of kind {kind} at the wrong time"),
        }
        while self.open.front().is_some_and(|(.., step)| *step == Step::Done) {
            self.open.pop_front();
        }
        Ok(answer)
    }

    fn encode(&self, id: u16, number: u64, dup: bool) -> Vec<u8> {
        let mut payload = number.to_be_bytes().to_vec();
        // Some are large enough to be stored once for all receivers, some to be written in several pieces.
        let len = match number {
            _ if number.is_multiple_of(31) => 40_000,
            _ if number.is_multiple_of(7) => 3_000,
            _ => 40,
        };
        payload.resize(len, self.index as u8 + 1);
        let topic = format!("load/{}", self.index);
        wire::publish(self.connect.level == 5, &Publish { id, dup, ..publish_of(&topic, payload, self.qos) })
    }
}

/// Which publisher a message is of, and its number; for a marker none, and the round.
pub(super) fn number_of(publish: &Publish) -> (Option<usize>, u64) {
    let number = u64::from_be_bytes(publish.payload[..8].try_into().unwrap());
    (publish.topic["load/".len()..].parse().ok(), number)
}
