//! Wills of clients that die with the broker, before it, or say goodbye.

use std::{collections::BTreeMap, net::SocketAddr};

use crate::support::{Broker, Client, Connect, Lost, PATIENCE, Random, Will, wire};

use super::{Actor, Check, Receiver, login};

const MORTALS: usize = 3;

pub(super) struct Wills {
    watcher: Receiver,
    /// Those that have not come, and whether they must.
    open: BTreeMap<String, bool>,
    next: u64,
    marker: Option<u64>,
    random: Random,
}

impl Wills {
    pub(super) fn new(broker: &Broker, random: Random) -> Self {
        let watcher = Receiver::subscribed(broker, &Connect::v5("watcher"), "will/#", 2);
        Self { watcher, open: BTreeMap::new(), next: 0, marker: None, random }
    }

    /// Clients come with a will, and go by DISCONNECT or without a word.
    fn live_and_die(&mut self, address: SocketAddr) -> Result<(), Lost> {
        let mut living: [Option<(Client, String)>; MORTALS] = Default::default();
        loop {
            let at = self.random.below(MORTALS as u64) as usize;
            match living[at].take() {
                None => living[at] = self.be_born(address, at)?,
                Some((client, _)) if self.random.below(2) == 0 => client.cut(),
                Some((mut client, will)) => {
                    // It has no acknowledgement that a crash could not overtake.
                    self.open.insert(will, false);
                    client.try_send(&wire::DISCONNECT)?;
                }
            }
        }
    }

    /// One of them keeps its session.
    fn be_born(&mut self, address: SocketAddr, at: usize) -> Result<Option<(Client, String)>, Lost> {
        let (name, payload) = (format!("mortal-{at}"), format!("{at}/{}", self.next));
        self.next += 1;
        let connect = Connect::v5(&name).will(Will::new(&format!("will/{at}"), &payload).qos(2));
        let connect = if at == 0 { connect.persistent() } else { connect };
        self.open.insert(payload.clone(), false);
        let (client, _) = login(address, &connect)?;
        self.open.insert(payload.clone(), true);
        Ok(Some((client, payload)))
    }
}

impl Actor for Wills {
    fn work(&mut self, address: SocketAddr) {
        let _ = self.live_and_die(address);
    }

    fn check(&mut self, check: &Check<'_>) {
        check.mark("will/marker");
        let mut client = self.watcher.connect(check.broker.address()).expect("a session");
        while self.marker != Some(check.round)
            || self.open.values().any(|must_come| *must_come)
            || !self.watcher.is_settled()
        {
            let publish = match self.watcher.take(&mut client, PATIENCE) {
                Ok(None) => continue,
                Ok(Some(publish)) => publish,
                Err(lost) => panic!("the watcher: {lost:?} in round {}; open are {:?}", check.round, self.open),
            };
            if publish.topic == "will/marker" {
                self.marker = Some(u64::from_be_bytes(publish.payload[..].try_into().unwrap()));
                continue;
            }
            let will = String::from_utf8(publish.payload).unwrap();
            assert!(self.open.remove(&will).is_some(), "the will {will} came twice");
        }
        client.disconnect();
    }
}
