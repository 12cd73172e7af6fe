//! Who gets everything, in order.

use std::{net::SocketAddr, time::Duration};

use crate::support::{Broker, Connect, Lost, PATIENCE, wire::Publish};

use super::{Check, Receiver, publisher::number_of};

pub(super) struct Sink {
    receiver: Receiver,
    /// The next number of each publisher.
    expected: Vec<u64>,
    /// The round of the last marker.
    marker: Option<u64>,
}

impl Sink {
    pub(super) fn new(broker: &Broker, connect: &Connect, qos: u8, publishers: usize) -> Self {
        let receiver = Receiver::subscribed(broker, connect, "load/#", qos);
        Self { receiver, expected: vec![0; publishers], marker: None }
    }

    /// Reads so many packets at most, and dies over the last one; ends early where the connection is lost or nothing comes.
    pub(super) fn read(&mut self, address: SocketAddr, count: usize) {
        let Ok(mut client) = self.receiver.connect(address) else { return };
        let patience = if count == usize::MAX { PATIENCE } else { Duration::from_millis(100) };
        for left in (0..count).rev() {
            let Ok((publish, answer)) = self.receiver.hear(&mut client, patience) else { return };
            publish.iter().for_each(|publish| self.arrived(publish));
            if left > 0 && client.try_send(&answer).is_err() {
                return;
            }
        }
    }

    /// Reads up to the marker of this round.
    pub(super) fn check(&mut self, check: &Check<'_>) {
        let mut client = self.receiver.connect(check.broker.address()).expect("a session");
        while self.marker != Some(check.round) || !self.receiver.is_settled() {
            match self.receiver.take(&mut client, PATIENCE) {
                Ok(publish) => publish.iter().for_each(|publish| self.arrived(publish)),
                Err(lost) => self.fail(&lost, check),
            }
        }
        client.disconnect();
        if check.is_last {
            assert_eq!(self.expected, check.published, "{}", self.receiver.name());
        }
    }

    fn fail(&self, lost: &Lost, check: &Check<'_>) -> ! {
        let (name, round, published) = (self.receiver.name(), check.round, check.published);
        panic!("{name}: {lost:?} in round {round}; expects {:?} of {published:?}", self.expected)
    }

    fn arrived(&mut self, publish: &Publish) {
        let (Some(publisher), number) = number_of(publish) else {
            self.marker = Some(number_of(publish).1);
            return;
        };
        let (name, dup, expected) = (self.receiver.name(), publish.dup, &mut self.expected[publisher]);
        assert!(
            number <= *expected,
            "{name}: {number} of publisher {publisher} before {expected}: lost, or out of order"
        );
        let again = number < *expected;
        // A message that went out twice is the same one only at QoS 1, on either side.
        assert!(!again || publish.qos == 1, "{name}: {number} of publisher {publisher} twice at QoS 2, DUP {dup}");
        if !again {
            *expected += 1;
        }
    }
}
