//! Who may open a connection now: how many are open, and how fast they come, in all and for each address.
//!
//! A refused one costs a lock and no line of the log. Must not know sockets, nor MQTT.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use parking_lot::Mutex;
use thiserror::Error;

use super::Config;
use crate::{broker::Throttle, clock, metrics::Limit, mqtt::Timestamp, session::rate::Bucket};

/// Counts the connections of all listeners.
#[derive(Debug)]
pub struct Admission {
    max_connections: u32,
    open: AtomicU32,
    rate: Option<Mutex<Bucket>>,
    addresses: Option<Mutex<Addresses>>,
    said: [Throttle; 5],
}

/// Why a connection is closed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(super) enum Full {
    #[error("{0} connections are open through this listener (max_connections)")]
    Listener(u32),
    #[error("{0} connections are open (network.max_connections, or the limit of open files)")]
    All(u32),
    #[error("{0} connections are open from its address (network.max_connections_per_address)")]
    Address(u32),
    #[error("more than {0} connections came within a second (network.max_new_connections_per_sec)")]
    Rate(u32),
    #[error(
        "more than {0} connections came within a second from its address \
         (network.max_new_connections_per_sec_per_address)"
    )]
    AddressRate(u32),
}

impl Full {
    pub(super) fn limit(self) -> Limit {
        match self {
            Self::Listener(_) | Self::All(_) => Limit::Connections,
            Self::Address(_) => Limit::ConnectionsOfAddress,
            Self::Rate(_) | Self::AddressRate(_) => Limit::ConnectionRate,
        }
    }
}

/// A connection that counts until this is dropped.
#[derive(Debug)]
pub(super) struct Admitted {
    admission: Arc<Admission>,
    address: Option<IpAddr>,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.admission.open.fetch_sub(1, Ordering::AcqRel);
        if let (Some(address), Some(addresses)) = (self.address, &self.admission.addresses) {
            addresses.lock().left(address, clock::now());
        }
    }
}

impl Admission {
    /// As configured; `most` is what the limit of open files allows.
    #[must_use]
    pub fn new(config: &Config, most: u32) -> Self {
        let (max, per_sec) = (config.max_connections_per_address, config.max_new_connections_per_sec_per_address);
        let addresses = Addresses { max, per_sec, known: HashMap::default(), look_at: LOOK_AT };
        let rate = Some(config.max_new_connections_per_sec).filter(|per_sec| *per_sec > 0);
        Self {
            max_connections: if config.max_connections == 0 { most } else { config.max_connections.min(most) },
            open: AtomicU32::new(0),
            rate: rate.map(|per_sec| Mutex::new(Bucket::new(per_sec, clock::now()))),
            addresses: (max > 0 || per_sec > 0).then(|| Mutex::new(addresses)),
            said: [const { Throttle::new(1) }; 5],
        }
    }

    /// Lets one more connection in from `address`, and counts it.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr, now: Timestamp) -> Result<Admitted, Full> {
        let open = self.open.fetch_add(1, Ordering::AcqRel);
        let mut admitted = Admitted { admission: self.clone(), address: None };
        if open >= self.max_connections {
            return Err(Full::All(self.max_connections));
        }
        if let Some(addresses) = &self.addresses {
            // Before the rate of all: who comes too often takes nothing from the others.
            let address = network(address);
            addresses.lock().came(address, now)?;
            admitted.address = Some(address);
        }
        if let Some(rate) = &self.rate {
            let mut rate = rate.lock();
            if !rate.try_take(now) {
                return Err(Full::Rate(rate.per_sec()));
            }
        }
        Ok(admitted)
    }

    /// Whether the log may say so now, and how many such lines it did not get since the last one.
    pub(super) fn may_say(&self, why: Full) -> Option<u64> {
        let [listener, all, address, rate, address_rate] = &self.said;
        let throttle = match why {
            Full::Listener(_) => listener,
            Full::All(_) => all,
            Full::Address(_) => address,
            Full::Rate(_) => rate,
            Full::AddressRate(_) => address_rate,
        };
        throttle.pass(clock::now())
    }
}

/// The addresses that have connections, or had some within the last second.
#[derive(Debug)]
struct Addresses {
    max: u32,
    per_sec: u32,
    known: HashMap<IpAddr, Address, foldhash::fast::RandomState>,
    /// When so many are known, those that need not be are forgotten.
    look_at: usize,
}

#[derive(Debug)]
struct Address {
    open: u32,
    rate: Option<Bucket>,
}

impl Addresses {
    fn came(&mut self, address: IpAddr, now: Timestamp) -> Result<(), Full> {
        if self.known.len() >= self.look_at && !self.known.contains_key(&address) {
            self.forget(now);
        }
        let per_sec = self.per_sec;
        let known = self
            .known
            .entry(address)
            .or_insert_with(|| Address { open: 0, rate: (per_sec > 0).then(|| Bucket::new(per_sec, now)) });
        if self.max > 0 && known.open >= self.max {
            return Err(Full::Address(self.max));
        }
        if known.rate.as_mut().is_some_and(|rate| !rate.try_take(now)) {
            return Err(Full::AddressRate(per_sec));
        }
        known.open += 1;
        Ok(())
    }

    fn left(&mut self, address: IpAddr, now: Timestamp) {
        let Some(known) = self.known.get_mut(&address) else { return };
        known.open = known.open.saturating_sub(1);
        if known.is_new(now) {
            self.known.remove(&address);
        }
    }

    /// What is left is bounded by the connections that are open; those of the last second alone are remembered up to a bound.
    fn forget(&mut self, now: Timestamp) {
        self.known.retain(|_, address| !address.is_new(now));
        if self.known.values().filter(|address| address.open == 0).count() >= LOOK_AT {
            self.known.retain(|_, address| address.open > 0);
        }
        self.known.shrink_to(LOOK_AT);
        self.look_at = LOOK_AT.max(self.known.len() * 2);
    }
}

impl Address {
    /// Whether an address that was never heard of would be treated the same.
    fn is_new(&mut self, now: Timestamp) -> bool {
        self.open == 0 && self.rate.as_mut().is_none_or(|rate| rate.is_full(now))
    }
}

/// What counts as one address: of IPv6 a /64, which one customer has as a rule.
pub(super) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

/// From so many addresses on it is looked whether they must still be known.
const LOOK_AT: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    /// The time when the test begins: connections are dropped at the time that the clock says.
    fn admission(config: &Config) -> (Arc<Admission>, Timestamp) {
        (Arc::new(Admission::new(config, u32::MAX)), clock::now())
    }

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn so_many_are_open_in_all_and_for_each_address() {
        let config = Config { max_connections: 3, max_connections_per_address: 2, ..Config::default() };
        let (admission, start) = admission(&config);
        let come = |from| admission.admit(address(from), start);
        let first = come("192.0.2.1").expect("room");
        let second = come("::ffff:192.0.2.1").expect("room");
        assert_eq!(come("192.0.2.1").err(), Some(Full::Address(2)));
        let third = come("192.0.2.2").expect("the refused one does not count");
        assert_eq!(come("192.0.2.3").err(), Some(Full::All(3)));
        drop((first, third));
        let again = [come("192.0.2.1").expect("room again"), come("2001:db8::1").expect("room again")];
        assert_eq!(come("192.0.2.1").err(), Some(Full::All(3)));
        drop((second, again));
        assert_eq!(admission.open.load(Ordering::Acquire), 0);
        assert!(admission.addresses.as_ref().expect("counted").lock().known.is_empty(), "nothing is left of it");
    }

    #[test]
    fn so_many_come_in_a_second() {
        let config =
            Config { max_new_connections_per_sec: 5, max_new_connections_per_sec_per_address: 2, ..Config::default() };
        let (admission, start) = admission(&config);
        // Held, so that no time counts but the one that is said here.
        let mut held = Vec::new();
        let mut come = |from, millis| {
            admission.admit(address(from), start.plus_millis(millis)).map(|admitted| held.push(admitted)).err()
        };
        assert_eq!(come("2001:db8:0:1::1", 0), None);
        assert_eq!(come("2001:db8:0:1::2", 0), None);
        for n in 0..20 {
            assert_eq!(come("2001:db8:0:1:ffff::3", n), Some(Full::AddressRate(2)), "one /64 is one address");
        }
        assert_eq!(come("2001:db8:0:2::1", 20), None, "they take nothing from others");
        assert_eq!(come("192.0.2.1", 20), None);
        assert_eq!(come("192.0.2.2", 20), None);
        assert_eq!(come("192.0.2.3", 20), Some(Full::Rate(5)));
        assert_eq!(come("192.0.2.3", 220), None);
        assert_eq!(come("2001:db8:0:1::1", 520), None);
    }

    #[test]
    fn the_table_of_addresses_is_bounded() {
        let config = Config { max_new_connections_per_sec_per_address: 1, ..Config::default() };
        let (admission, start) = admission(&config);
        let known = || admission.addresses.as_ref().expect("counted").lock().known.len();
        let held = admission.admit(address("198.51.100.1"), start).expect("room");
        for n in 0..100_000_u32 {
            drop(admission.admit(IpAddr::V4((0x0a00_0000 + n).into()), start));
            assert!(known() <= 2 * LOOK_AT, "{} of {n} addresses are remembered", known());
        }
        // Who has a connection is not forgotten.
        assert_eq!(admission.admit(address("198.51.100.1"), start).err(), Some(Full::AddressRate(1)));
        drop(held);
    }
}
