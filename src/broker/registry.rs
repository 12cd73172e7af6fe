//! Client id to session: who owns it, take-over, parking.
//!
//! A session has exactly one owner: its connection while online, the registry while offline. It always passes through here, and the
//! latest connection that claims it wins [MQTT-3.1.4-3]. Must not know what a session does.

use std::sync::Arc;

use dashmap::{DashMap, Entry};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::{auth::Identity, metrics::Limit, mqtt::Timestamp, session::rate::Bucket};

use super::{Broker, Client, Signal};

/// Every client id that is online or has a session.
#[derive(Debug, Default)]
pub struct Registry {
    slots: DashMap<Arc<str>, Arc<Slot>, foldhash::fast::RandomState>,
}

#[derive(Debug)]
struct Slot {
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// Left the map; who finds it here asks again.
    Gone,
    Parked(Box<Client>),
    /// In a box: most are parked.
    Owned(Box<Owned>),
}

#[derive(Debug)]
struct Owned {
    identity: Identity,
    signal: Arc<Signal>,
    claim: Option<Claim>,
    /// How often it changed hands of late, where it did at all.
    takeovers: Option<Bucket>,
}

#[derive(Debug)]
struct Claim {
    signal: Arc<Signal>,
    owner: oneshot::Sender<Owner>,
}

/// What became of a claim.
enum Claimed {
    Now(Owner),
    /// The present owner yields once it is told, which it is to be at the given time.
    Later(oneshot::Receiver<Owner>, Arc<Signal>, Option<Timestamp>),
    /// The place changed meanwhile.
    Again,
}

/// Why a client id cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The session belongs to another identity.
    OtherIdentity,
    /// A later connection claims it too.
    TakenOver,
    /// The store does not work, and the session needs it.
    StoreFailed,
    /// There are as many sessions as there may be.
    TooManySessions,
}

/// The ownership of one client id, with its session where there is one. Dropped, it goes back to the registry, whatever happened.
#[derive(Debug)]
pub struct Owner {
    broker: Arc<Broker>,
    client_id: Arc<str>,
    signal: Arc<Signal>,
    /// The session; none until the broker has made one.
    pub client: Option<Box<Client>>,
    /// How the connection ended: set before the drop, where it is known.
    pub ended: Ended,
    armed: bool,
}

/// How a connection ended, as far as its session is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It got no CONNACK with Success: its Will was never accepted.
    Unanswered,
    /// The client said DISCONNECT with Success: the Will is discarded [MQTT-3.14.4-3].
    Normally,
    /// Any other way: the Will is due [MQTT-3.1.2-8].
    Abnormally,
    /// The broker is stopping: the Will stays in the store, and is published after the start unless the client comes back.
    Stopping,
    /// The store failed: what is in memory is not kept.
    StoreFailed,
}

impl Registry {
    /// Claims `client_id` for a connection. Waits until the present owner yields, which it does at the end of its turn. Where several
    /// clients take the id from each other without end, each has it for a while: nobody is to bear the cost of that.
    ///
    /// # Errors
    /// [`Refused`]; the owner and the session are then not disturbed.
    pub async fn claim(
        &self,
        broker: &Arc<Broker>,
        client_id: &Arc<str>,
        identity: &Identity,
        signal: &Arc<Signal>,
    ) -> Result<Owner, Refused> {
        loop {
            let (mut owner, present, at) = match self.try_claim(broker, client_id, identity, signal)? {
                Claimed::Now(owner) => return Ok(owner),
                Claimed::Later(owner, present, at) => (owner, present, at),
                Claimed::Again => continue,
            };
            if let Some(at) = at {
                broker.metrics.limited(Limit::Takeovers);
                let due = tokio::time::sleep_until(crate::clock::instant(at).into());
                tokio::select! {
                    owner = &mut owner => return owner.map_err(|_| Refused::TakenOver),
                    () = due => {}
                }
            }
            present.raise(Signal::TAKEN_OVER);
            return owner.await.map_err(|_| Refused::TakenOver);
        }
    }

    fn try_claim(
        &self,
        broker: &Arc<Broker>,
        client_id: &Arc<str>,
        identity: &Identity,
        signal: &Arc<Signal>,
    ) -> Result<Claimed, Refused> {
        // A session whose place is empty meanwhile is not gone.
        let rebuilding = broker.rebuilding.read();
        if *rebuilding {
            return Err(Refused::StoreFailed);
        }
        let owned = || {
            let (identity, signal) = (identity.clone(), signal.clone());
            State::Owned(Box::new(Owned { identity, signal, claim: None, takeovers: None }))
        };
        let owner = |client| Owner::new(broker, client_id, signal, client);
        let slot = match self.slots.entry(client_id.clone()) {
            Entry::Vacant(vacant) => {
                vacant.insert(Arc::new(Slot { state: Mutex::new(owned()) }));
                return Ok(Claimed::Now(owner(None)));
            }
            Entry::Occupied(occupied) => occupied.get().clone(),
        };
        let mut state = slot.state.lock();
        match &mut *state {
            State::Gone => Ok(Claimed::Again),
            State::Parked(client) if client.receiver.identity != *identity => Err(Refused::OtherIdentity),
            State::Owned(owned) if owned.identity != *identity => Err(Refused::OtherIdentity),
            State::Parked(_) => match std::mem::replace(&mut *state, owned()) {
                State::Parked(client) => Ok(Claimed::Now(owner(Some(client)))),
                _ => Ok(Claimed::Again),
            },
            State::Owned(owned) => {
                let Owned { signal: present, claim, takeovers, .. } = &mut **owned;
                let now = crate::clock::now();
                let takeovers = takeovers.get_or_insert_with(|| Bucket::new(TAKEOVERS_PER_SEC, now));
                let (send, receive) = oneshot::channel();
                // One that takes the place of an earlier claim takes nothing from the owner that the earlier one would have left it.
                if claim.replace(Claim { signal: signal.clone(), owner: send }).is_none() {
                    takeovers.take(1, now);
                }
                let at = takeovers.resumes_at().filter(|at| *at > now);
                Ok(Claimed::Later(receive, present.clone(), at))
            }
        }
    }

    /// The owner gives `client_id` up, with the session where that goes on.
    fn leave(&self, broker: &Arc<Broker>, client_id: &Arc<str>, signal: &Arc<Signal>, client: Option<Box<Client>>) {
        let Some(slot) = self.slots.get(client_id).map(|slot| slot.clone()) else { return };
        let mut state = slot.state.lock();
        let State::Owned(owned) = &mut *state else { return };
        let Owned { signal: present, claim, .. } = &mut **owned;
        if !Arc::ptr_eq(present, signal) {
            return;
        }
        let mut client = client;
        if let Some(claim) = claim.take() {
            *present = claim.signal.clone();
            let owner = Owner::new(broker, client_id, &claim.signal, client.take());
            match claim.owner.send(owner) {
                Ok(()) => return,
                // The claimant is gone. The slot is locked here, so that its ownership must not pass through it again.
                Err(mut owner) => {
                    owner.armed = false;
                    client = owner.client.take();
                }
            }
        }
        match client {
            Some(client) => {
                let receiver = client.receiver.clone();
                *state = State::Parked(client);
                drop(state);
                if receiver.parked() {
                    broker.drop_oldest_of_parked(receiver);
                }
            }
            None => {
                *state = State::Gone;
                drop(state);
                self.slots.remove_if(client_id, |_, present| Arc::ptr_eq(present, &slot));
            }
        }
    }

    /// Puts a session that the store remembers in its place.
    pub fn park(&self, client: Box<Client>) {
        let slot = Arc::new(Slot { state: Mutex::new(State::Parked(client)) });
        let client_id = match &*slot.state.lock() {
            State::Parked(client) => client.session.client_id.clone(),
            _ => return,
        };
        self.slots.insert(client_id, slot);
    }

    /// Takes the parked session of `client_id` away if `due` says so.
    pub fn evict(&self, client_id: &str, due: impl FnOnce(&Client) -> bool) -> Option<Box<Client>> {
        let slot = self.slots.get(client_id).map(|slot| slot.clone())?;
        let mut state = slot.state.lock();
        match &*state {
            State::Parked(client) if due(client) => {}
            _ => return None,
        }
        let State::Parked(client) = std::mem::replace(&mut *state, State::Gone) else { return None };
        drop(state);
        self.slots.remove_if(client_id, |_, present| Arc::ptr_eq(present, &slot));
        Some(client)
    }

    /// Lets `change` have the parked session of `client_id`.
    pub fn with_parked<R>(&self, client_id: &str, change: impl FnOnce(&mut Client) -> R) -> Option<R> {
        let slot = self.slots.get(client_id).map(|slot| slot.clone())?;
        match &mut *slot.state.lock() {
            State::Parked(client) => Some(change(client)),
            _ => None,
        }
    }

    /// Takes all parked sessions away.
    pub fn evict_all(&self) -> Vec<Box<Client>> {
        let ids: Vec<_> = self.slots.iter().map(|slot| slot.key().clone()).collect();
        ids.iter().filter_map(|client_id| self.evict(client_id, |_| true)).collect()
    }

    /// Wakes every connection.
    pub fn raise_all(&self, what: u32) {
        for slot in &self.slots {
            if let State::Owned(owned) = &*slot.state.lock() {
                owned.signal.raise(what);
            }
        }
    }

    /// How many client ids are online or have a session.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
}

impl Owner {
    fn new(broker: &Arc<Broker>, client_id: &Arc<str>, signal: &Arc<Signal>, client: Option<Box<Client>>) -> Self {
        Self {
            broker: broker.clone(),
            client_id: client_id.clone(),
            signal: signal.clone(),
            client,
            ended: Ended::Unanswered,
            armed: true,
        }
    }

    /// The client id that it owns.
    #[must_use]
    pub fn client_id(&self) -> &Arc<str> {
        &self.client_id
    }
}

/// How often one client id may change hands in a second.
const TAKEOVERS_PER_SEC: u32 = 10;

impl Drop for Owner {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        let kept = self.client.take().and_then(|client| self.broker.leave(client, self.ended));
        self.broker.registry.leave(&self.broker, &self.client_id, &self.signal, kept);
    }
}
