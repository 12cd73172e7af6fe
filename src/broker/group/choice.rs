//! Who of a shared group gets a message: the strategies.
//!
//! Must not know how a message gets there.

use crate::{auth::Access, broker::config::Strategy};

use super::{
    super::Broker,
    state::{Entry, Member, State},
};

/// Who of a group gets a message.
pub(super) enum Choice {
    /// The member at this place.
    Member(usize),
    /// One who has the right to it, and cannot take it now.
    NoRoom,
    /// Nobody has the right to it, online or not.
    Denied,
}

impl State {
    /// The member that gets `entry`, of those that `may` take a message and have the right to it.
    pub(super) fn choose(&mut self, broker: &Broker, entry: &Entry, may: impl Fn(&Member) -> bool) -> Choice {
        let rules = broker.auth.rules();
        let has_right = |member: &Member| {
            let who = member.receiver.identity.who(&member.receiver.client_id);
            rules.verdict(who, Access::Receive, &entry.message.topic).allowed
        };
        let chosen = match broker.config.shared_subscriptions.strategy {
            Strategy::RoundRobin => self.in_turn(|member| may(member) && has_right(member)),
            Strategy::LeastInFlight => self.least_in_flight(|member| may(member) && has_right(member)),
            Strategy::Sticky => self.sticky(has_right),
            Strategy::HashPublisher => self.of_publisher(entry.publisher, has_right),
        };
        if let Some(at) = chosen.filter(|at| self.members.get(*at).is_some_and(&may)) {
            return Choice::Member(at);
        }
        // Members of a group that the store remembers may still be to come.
        let waits = chosen.is_some()
            || self.members.is_empty()
            || self.members.iter().any(|member| !may(member) && has_right(member));
        if waits { Choice::NoRoom } else { Choice::Denied }
    }

    /// The members, beginning with the one whose turn it is.
    fn beginning_with_next(&self) -> impl Iterator<Item = (usize, &Member)> {
        let (before, from) = self.members.split_at(self.next.min(self.members.len()));
        let start = before.len();
        from.iter().enumerate().map(move |(at, one)| (start + at, one)).chain(before.iter().enumerate())
    }

    fn in_turn(&mut self, takes: impl Fn(&Member) -> bool) -> Option<usize> {
        let (at, _) = self.beginning_with_next().find(|(_, member)| takes(member))?;
        self.next = (at + 1) % self.members.len();
        Some(at)
    }

    /// The next in turn of those with the fewest leases.
    fn least_in_flight(&mut self, takes: impl Fn(&Member) -> bool) -> Option<usize> {
        let mut best: Option<(usize, usize)> = None;
        for (at, member) in self.beginning_with_next() {
            if best.is_none_or(|(_, fewest)| member.leases < fewest) && takes(member) {
                best = Some((at, member.leases));
            }
        }
        let (at, _) = best?;
        self.next = (at + 1) % self.members.len();
        Some(at)
    }

    /// The one whose turn it is keeps it while it is there. What it has no right to goes to the first one after it that has.
    fn sticky(&mut self, has_right: impl Fn(&Member) -> bool) -> Option<usize> {
        let online = self.beginning_with_next().find(|(_, member)| member.online).map(|(at, _)| at);
        self.next = online.unwrap_or(self.next);
        self.beginning_with_next().find(|(_, member)| member.online && has_right(member)).map(|(at, _)| at)
    }

    /// The member that still has something of the publisher in flight, else the one that its hash says (rendezvous hashing): when a member
    /// comes or goes, no publisher moves between two others, and none moves while the new one could overtake the old.
    fn of_publisher(&self, publisher: u64, has_right: impl Fn(&Member) -> bool) -> Option<usize> {
        if let Some((holder, _)) = self.pinned.get(&publisher) {
            let is_it = |member: &Member| member.receiver.session == *holder && member.online && has_right(member);
            if let Some(at) = self.members.iter().position(is_it) {
                return Some(at);
            }
        }
        let mut best: Option<(usize, u64)> = None;
        for (at, member) in self.members.iter().enumerate().filter(|(_, member)| member.online) {
            let score = mix(publisher ^ mix(member.key));
            if best.is_none_or(|(_, highest)| score > highest) && has_right(member) {
                best = Some((at, score));
            }
        }
        best.map(|(at, _)| at)
    }
}

/// A number for a client id, never 0. Logs keep it: it must stay as it is (FNV-1a).
pub(in crate::broker) fn hash_of(client_id: &str) -> u64 {
    let hash = client_id
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    hash.max(1)
}

/// Spreads all bits (the end of splitmix64).
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}
