//! Retained messages that are set and cleared.

use std::net::SocketAddr;

use crate::support::{
    Client, Connect, Lost, PATIENCE, Packet, Random,
    client::publish_of,
    wire::{self, PUBACK, PUBCOMP, PUBREC, PUBREL, Publish},
};

use super::{Actor, Check, is_refusal, login};

const TOPICS: u64 = 8;

pub(super) struct Retained {
    /// Of each topic the value that was acknowledged last, then those that were sent after it. An empty one clears.
    values: Vec<Vec<String>>,
    next: u64,
    random: Random,
}

impl Retained {
    pub(super) fn new(random: Random) -> Self {
        Self { values: vec![vec![String::new()]; TOPICS as usize], next: 0, random }
    }

    /// Sets or clears one after the other until the connection is lost.
    fn publish(&mut self, address: SocketAddr) -> Result<(), Lost> {
        let (mut client, _) = login(address, &Connect::v5("keeper"))?;
        loop {
            let topic = self.random.below(TOPICS) as usize;
            let value = if self.random.below(4) == 0 { String::new() } else { self.next.to_string() };
            self.values[topic].push(value.clone());
            let (qos, id) = (1 + (topic % 2) as u8, (self.next % 65_535) as u16 + 1);
            let publish = Publish { id, retain: true, ..publish_of(&format!("retained/{topic}"), value, qos) };
            client.try_send(&wire::publish(true, &publish))?;
            acknowledged(&mut client, if qos == 1 { PUBACK } else { PUBREC }, id)?;
            // It counts from here on, whatever becomes of the rest of its handshake.
            let last = self.values[topic].len() - 1;
            self.values[topic].drain(..last);
            if qos == 2 {
                client.try_send(&wire::ack(PUBREL, id))?;
                acknowledged(&mut client, PUBCOMP, id)?;
            }
            self.next += 1;
        }
    }
}

impl Actor for Retained {
    fn work(&mut self, address: SocketAddr) {
        let _ = self.publish(address);
    }

    fn check(&mut self, check: &Check<'_>) {
        let mut left: Vec<String> = vec![String::new(); self.values.len()];
        let mut client = check.broker.v4("reader");
        let count = check.broker.status_number("retained_messages");
        client.subscribe("retained/#", 1);
        for _ in 0..count {
            let message = client.message();
            let topic: usize = message.topic["retained/".len()..].parse().unwrap();
            left[topic] = String::from_utf8(message.payload).unwrap();
        }
        for (topic, (value, possible)) in left.iter().zip(&self.values).enumerate() {
            assert!(possible.contains(value), "retained/{topic} is {value:?}, not one of {possible:?}");
        }
        client.disconnect();
    }
}

fn acknowledged(client: &mut Client, wanted: u8, wanted_id: u16) -> Result<(), Lost> {
    match client.try_receive(PATIENCE)? {
        Packet::Ack { kind, id, code, .. } if (kind, id) == (wanted, wanted_id) && code < 0x80 => Ok(()),
        other if is_refusal(&other) => Err(Lost::Closed),
        other => panic!("{other:?}"),
    }
}
