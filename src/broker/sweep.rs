//! One slow clock for all that expires: sessions, Wills, retained messages. Must not read the time: it is told.

use std::{collections::BTreeSet, sync::Arc};

use parking_lot::Mutex;

use crate::mqtt::{Shown, Timestamp};

use super::{Broker, Client, Turn};

#[derive(Debug, Default)]
pub(super) struct Sweep {
    pending: Mutex<Pending>,
}

/// What may be due, each at most once, however often a client comes and goes. It is looked at again when its time has come: it may have
/// changed meanwhile. When that is for a session, its [`Client`] remembers.
#[derive(Debug, Default)]
struct Pending {
    sessions: BTreeSet<(Timestamp, u64)>,
    wills: BTreeSet<(Timestamp, u64)>,
}

/// What is due; sessions by their numbers.
#[derive(Debug)]
enum Due {
    Session(u64),
    Will(u64),
}

/// When a session, and its Will, was last said to be due.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Said {
    session: Timestamp,
    will: Timestamp,
}

/// What is due earlier already is looked at then, and again at its new time.
fn put(due: &mut BTreeSet<(Timestamp, u64)>, said: &mut Timestamp, at: Timestamp, id: u64) {
    let stands = due.contains(&(*said, id));
    if stands && *said <= at {
        return;
    }
    if stands {
        due.remove(&(*said, id));
    }
    due.insert((at, id));
    *said = at;
}

impl Sweep {
    pub(super) fn session_expires(&self, client: &mut Client) {
        if let Some(at) = client.expires_at() {
            put(&mut self.pending.lock().sessions, &mut client.said.session, at, client.session.id);
        }
    }

    pub(super) fn will_due(&self, client: &mut Client, at: Timestamp) {
        put(&mut self.pending.lock().wills, &mut client.said.will, at, client.session.id);
    }

    pub(super) fn session_ended(&self, client: &Client) {
        let mut pending = self.pending.lock();
        pending.sessions.remove(&(client.said.session, client.session.id));
        pending.wills.remove(&(client.said.will, client.session.id));
    }

    fn take_due(&self, now: Timestamp) -> Option<Due> {
        let take = |due: &mut BTreeSet<(Timestamp, u64)>| {
            due.first().filter(|(at, _)| *at <= now)?;
            due.pop_first().map(|(_, id)| id)
        };
        let mut pending = self.pending.lock();
        let will = take(&mut pending.wills).map(Due::Will);
        will.or_else(|| take(&mut pending.sessions).map(Due::Session))
    }
}

impl Broker {
    /// Does what is due at `now`, at most `limit` things; `true` where more is due. Retained messages are only looked at: more of them.
    pub fn sweep(self: &Arc<Self>, now: Timestamp, limit: usize) -> bool {
        self.tell_drops(now);
        for _ in 0..limit {
            let rebuilding = self.rebuilding.read();
            if *rebuilding {
                return false;
            }
            let Some(due) = self.sweep.take_due(now) else { return self.expire_retained(now, 16 * limit) };
            match due {
                Due::Session(id) => {
                    if let Some(client_id) = self.client_id_of(id) {
                        self.expire_session(&client_id, now);
                    }
                }
                Due::Will(id) => {
                    let Some(client_id) = self.client_id_of(id) else { continue };
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

    fn client_id_of(&self, session: u64) -> Option<Arc<str>> {
        self.receivers.get(&session).map(|receiver| receiver.client_id.clone())
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
