//! One slow clock for all that expires: sessions, Wills, retained messages. Must not read the time: it is told.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;

use crate::mqtt::{Shown, Timestamp};

use super::{Broker, Client, Turn};

#[derive(Debug, Default)]
pub(super) struct Sweep {
    pending: Mutex<Pending>,
}

#[derive(Debug, Default)]
struct Pending {
    due: BTreeMap<(Timestamp, u64), Due>,
    /// Where each stands in `due`: at most once, however often a client comes and goes.
    known: HashMap<Due, (Timestamp, u64)>,
    numbers: u64,
}

/// What may be due. It is looked at again when its time has come: it may have changed meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Due {
    Session(Arc<str>),
    Will(Arc<str>),
}

impl Sweep {
    pub(super) fn session_expires(&self, client: &Client) {
        if let Some(at) = client.expires_at() {
            self.at(at, Due::Session(client.session.client_id.clone()));
        }
    }

    pub(super) fn will_due(&self, client: &Client, at: Timestamp) {
        self.at(at, Due::Will(client.session.client_id.clone()));
    }

    pub(super) fn session_ended(&self, client: &Client) {
        let client_id = &client.session.client_id;
        self.cancel(&Due::Session(client_id.clone()));
        self.cancel(&Due::Will(client_id.clone()));
    }

    fn cancel(&self, due: &Due) {
        let mut pending = self.pending.lock();
        if let Some(place) = pending.known.remove(due) {
            pending.due.remove(&place);
        }
    }

    /// What is due earlier already is looked at then, and again at its new time.
    fn at(&self, at: Timestamp, due: Due) {
        let mut pending = self.pending.lock();
        if let Some(place) = pending.known.get(&due).copied() {
            if place.0 <= at {
                return;
            }
            pending.due.remove(&place);
        }
        pending.numbers += 1;
        let place = (at, pending.numbers);
        pending.known.insert(due.clone(), place);
        pending.due.insert(place, due);
    }

    fn take_due(&self, now: Timestamp) -> Option<Due> {
        let mut pending = self.pending.lock();
        let first = pending.due.first_entry().filter(|first| first.key().0 <= now)?;
        let due = first.remove();
        pending.known.remove(&due);
        Some(due)
    }
}

impl Broker {
    /// Does what is due at `now`, at most `limit` things; `true` where more is due.
    pub fn sweep(self: &Arc<Self>, now: Timestamp, limit: usize) -> bool {
        self.tell_drops(now);
        for _ in 0..limit {
            let rebuilding = self.rebuilding.read();
            if *rebuilding {
                return false;
            }
            let Some(due) = self.sweep.take_due(now) else { return self.expire_retained(now, limit) };
            match due {
                Due::Session(client_id) => self.expire_session(&client_id, now),
                Due::Will(client_id) => {
                    let mut turn = Turn::default();
                    self.registry.with_parked(&client_id, |client| match client.will_due_at() {
                        Some(at) if at <= now => self.publish_will(client, &mut turn, now),
                        Some(at) => self.sweep.will_due(client, at),
                        None => {}
                    });
                    self.finish(&mut turn);
                }
            }
        }
        true
    }

    fn expire_session(&self, client_id: &str, now: Timestamp) {
        // What it waits for goes while it still has its place: the next session of this client id may take it at once.
        let expired = |client: &Client| {
            let expired = client.has_expired(now);
            if expired {
                self.sweep.session_ended(client);
            }
            expired
        };
        if let Some(client) = self.registry.evict(client_id, expired) {
            let mut turn = Turn::default();
            tracing::info!(client = %Shown(client_id), "session expired");
            turn.counts.sessions_expired += 1;
            self.end_session(client, &mut turn, now);
            self.finish(&mut turn);
        } else {
            self.registry.with_parked(client_id, |client| self.sweep.session_expires(client));
        }
    }
}

impl Client {
    /// Whether the session has ended by itself, though the sweep may not have seen it.
    pub(super) fn has_expired(&self, now: Timestamp) -> bool {
        self.expires_at().is_some_and(|at| at <= now)
    }

    /// When the session ends, if it is offline and ever ends.
    fn expires_at(&self) -> Option<Timestamp> {
        let since = self.disconnected_at?;
        (self.session.expiry_secs != NEVER).then(|| since.plus_secs(u64::from(self.session.expiry_secs)))
    }

    fn will_due_at(&self) -> Option<Timestamp> {
        Some(self.will.as_ref()?.due_at(self.disconnected_at?))
    }
}

/// A Session Expiry Interval that never ends the session (3.1.2.11.2).
pub(super) const NEVER: u32 = u32::MAX;
