//! A shared group of two: between them they get everything, and what is of QoS 2 once.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::Mutex,
    time::{Duration, Instant},
};

use crate::support::{Broker, Connect, Lost, PATIENCE, Random, wire::Publish};

use super::{Actor, Check, Receiver, publisher::number_of};

pub(super) struct Group {
    members: [Receiver; 2],
    /// Publisher and number of what has arrived.
    arrived: Mutex<BTreeSet<(usize, u64)>>,
    random: Random,
}

impl Group {
    pub(super) fn new(broker: &Broker, random: Random) -> Self {
        let member = |name| Receiver::subscribed(broker, &Connect::v5(name), "$share/group/load/#", 2);
        Self { members: [member("member-1"), member("member-2")], arrived: Mutex::default(), random }
    }
}

impl Actor for Group {
    /// Each member reads for a while, and dies over what it heard last.
    fn work(&mut self, address: SocketAddr) {
        let Self { members, arrived, random } = self;
        std::thread::scope(|scope| {
            for member in members {
                let (count, arrived) = (random.below(400), &*arrived);
                scope.spawn(move || -> Result<(), Lost> {
                    let mut client = member.connect(address)?;
                    for left in (0..count).rev() {
                        let (publish, answer) = member.hear(&mut client, PATIENCE)?;
                        publish.iter().for_each(|publish| note(arrived, publish));
                        if left > 0 {
                            client.try_send(&answer)?;
                        }
                    }
                    Ok(())
                });
            }
        });
    }

    fn check(&mut self, check: &Check<'_>) {
        if !check.is_last {
            return;
        }
        let all: BTreeSet<_> =
            check.published.iter().enumerate().flat_map(|(of, count)| (0..*count).map(move |n| (of, n))).collect();
        let mut clients =
            self.members.each_ref().map(|member| member.connect(check.broker.address()).expect("a session"));
        let mut deadline = Instant::now() + PATIENCE;
        let is_missing = |group: &Self| group.arrived.lock().unwrap().len() < all.len();
        while is_missing(self) || !self.members.iter().all(Receiver::is_settled) {
            for (member, client) in self.members.iter_mut().zip(&mut clients) {
                while let Ok(publish) = member.take(client, Duration::from_millis(1)) {
                    deadline = Instant::now() + PATIENCE;
                    publish.iter().for_each(|publish| note(&self.arrived, publish));
                }
            }
            if Instant::now() > deadline {
                let missing: Vec<_> = all.difference(&self.arrived.lock().unwrap()).copied().collect();
                panic!("the group has not got {missing:?}");
            }
        }
    }
}

fn note(arrived: &Mutex<BTreeSet<(usize, u64)>>, publish: &Publish) {
    if let (Some(publisher), number) = number_of(publish) {
        let is_new = arrived.lock().unwrap().insert((publisher, number));
        let dup = publish.dup;
        assert!(
            is_new || publish.qos == 1,
            "the group got {number} of publisher {publisher} twice at QoS 2, DUP {dup}"
        );
    }
}
