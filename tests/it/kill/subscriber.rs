//! Subscriptions that come and go.

use std::{collections::BTreeSet, net::SocketAddr};

use crate::support::{
    Broker, Client, Connect, Lost, PATIENCE, Packet, Random,
    wire::{self, PUBACK},
};

use super::{Actor, Check, Receiver, is_refusal};

const FILTERS: u64 = 8;

pub(super) struct Subscriber {
    receiver: Receiver,
    /// Whether each is subscribed to; none where a change was not acknowledged.
    subscribed: Vec<Option<bool>>,
    random: Random,
}

impl Subscriber {
    pub(super) fn new(broker: &Broker, random: Random) -> Self {
        let receiver = Receiver::subscribed(broker, &Connect::v5("subscriber"), "probe/marker", 1);
        Self { receiver, subscribed: vec![Some(false); FILTERS as usize], random }
    }

    /// Subscribes and unsubscribes until the connection is lost.
    fn change(&mut self, address: SocketAddr) -> Result<(), Lost> {
        let mut client = self.receiver.connect(address)?;
        for id in 1..=u16::MAX {
            let on = self.random.below(2) == 0;
            let chosen: BTreeSet<usize> =
                (0..=self.random.below(3)).map(|_| self.random.below(FILTERS) as usize).collect();
            chosen.iter().for_each(|filter| self.subscribed[*filter] = None);
            let names: Vec<String> = chosen.iter().map(|filter| format!("probe/{filter}")).collect();
            let subscribe: Vec<(&str, u8)> = names.iter().map(|name| (&**name, 1)).collect();
            let unsubscribe: Vec<&str> = names.iter().map(|name| &**name).collect();
            client.try_send(&match on {
                true => wire::subscribe(true, id, &[], &subscribe),
                false => wire::unsubscribe(true, id, &unsubscribe),
            })?;
            acknowledged(&mut client, on, id)?;
            chosen.iter().for_each(|filter| self.subscribed[*filter] = Some(on));
        }
        Ok(())
    }
}

/// Waits for SUBACK or UNSUBACK; what was delivered before the end of the last round and not known to be settled may come again.
fn acknowledged(client: &mut Client, on: bool, wanted: u16) -> Result<(), Lost> {
    loop {
        match client.try_receive(PATIENCE)? {
            packet if is_refusal(&packet) => return Err(Lost::Closed),
            Packet::SubAck { id, codes, .. } if on && id == wanted => {
                assert!(codes.iter().all(|code| *code == 1), "SUBACK {codes:x?}");
                return Ok(());
            }
            Packet::UnsubAck { id, codes, .. } if !on && id == wanted => {
                assert!(codes.iter().all(|code| *code < 0x80), "UNSUBACK {codes:x?}");
                return Ok(());
            }
            Packet::Publish(publish) => client.try_send(&wire::ack(PUBACK, publish.id))?,
            other => panic!("{other:?}"),
        }
    }
}

impl Actor for Subscriber {
    fn work(&mut self, address: SocketAddr) {
        let _ = self.change(address);
    }

    fn check(&mut self, check: &Check<'_>) {
        let mut prober = check.broker.v4("prober");
        for filter in 0..FILTERS {
            prober.publish(&format!("probe/{filter}"), check.round.to_be_bytes(), 1);
        }
        prober.publish("probe/marker", check.round.to_be_bytes(), 1);
        let mut client = self.receiver.connect(check.broker.address()).expect("a session");
        let mut got = vec![false; self.subscribed.len()];
        loop {
            let publish = self.receiver.take(&mut client, PATIENCE).expect("a marker").expect("a message");
            if publish.payload != check.round.to_be_bytes() {
                continue;
            }
            match publish.topic["probe/".len()..].parse::<usize>() {
                Ok(filter) => got[filter] = true,
                Err(_) => break,
            }
        }
        client.disconnect();
        for (filter, (subscribed, got)) in self.subscribed.iter_mut().zip(got).enumerate() {
            assert!(
                subscribed.is_none_or(|subscribed| subscribed == got),
                "probe/{filter} is {got}, not {subscribed:?}"
            );
            *subscribed = Some(got);
        }
    }
}
