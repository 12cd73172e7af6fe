//! An engine for tests: it fails when told to, and forgets at a power cut what was not synced.
//!
//! Must not know what keys and values mean.

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{Engine, Error, Ops, Table, Visit, memory::Tables};

/// A disk that can be pulled. After [`FaultyEngine::power_cut`] it is dead; what it leaves is the next one.
#[derive(Debug, Default)]
pub struct FaultyEngine {
    state: Mutex<State>,
    released: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// What a reader sees.
    visible: Tables,
    /// What the disk holds for sure.
    synced: Tables,
    /// What was written since, in order.
    unsynced: Vec<Ops>,
    fault: Fault,
    /// Writes and syncs before the fault.
    countdown: u64,
    held: bool,
    waiting: usize,
    /// After a fault, until it is opened anew.
    broken: bool,
    dead: bool,
    closed: bool,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// A write is refused and leaves nothing behind.
    Write,
    /// A write is applied but its sync fails: it may or may not be on the disk.
    Sync,
    /// [`Engine::reopen`] fails too, as on a full disk.
    Lasting,
}

impl FaultyEngine {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// After `writes` more writes or syncs, the next one meets `fault`, and so does every later one until the engine is opened anew.
    pub fn fail_after(&self, writes: u64, fault: Fault) {
        let mut state = self.state.lock();
        state.fault = fault;
        state.countdown = writes;
    }

    /// Heals [`Fault::Lasting`].
    pub fn heal(&self) {
        self.state.lock().fault = Fault::None;
    }

    /// Writes wait from now on until [`FaultyEngine::release`].
    pub fn hold(&self) {
        self.state.lock().held = true;
    }

    /// Lets the held writes go.
    pub fn release(&self) {
        self.state.lock().held = false;
        self.released.notify_all();
    }

    /// Whether a write is being held.
    #[must_use]
    pub fn is_holding(&self) -> bool {
        self.state.lock().waiting > 0
    }

    /// How many writes are not synced.
    #[must_use]
    pub fn unsynced(&self) -> usize {
        self.state.lock().unsynced.len()
    }

    /// Kills this engine. The disk keeps what was synced, and of the later writes the first `survivors`, as the operating system may
    /// have written them out by itself.
    #[must_use]
    pub fn power_cut(&self, survivors: usize) -> Self {
        let mut state = self.state.lock();
        state.dead = true;
        state.held = false;
        self.released.notify_all();
        let mut tables = state.synced.clone();
        state.unsynced.iter().take(survivors).for_each(|ops| tables.apply(ops));
        drop(state);
        Self::holding(tables)
    }

    /// Kills this engine as the death of the process does: whatever was written stays.
    #[must_use]
    pub fn kill(&self) -> Self {
        self.power_cut(usize::MAX)
    }

    /// Overwrites one stored value behind the store's back, as bad memory or a bad disk may.
    pub fn corrupt(&self, table: Table, key: &[u8], value: &[u8]) {
        let mut ops = Ops::default();
        ops.put(table, key, |out| out.extend_from_slice(value));
        let mut state = self.state.lock();
        state.visible.apply(&ops);
        state.synced.apply(&ops);
    }

    fn holding(tables: Tables) -> Self {
        Self {
            state: Mutex::new(State { visible: tables.clone(), synced: tables, ..State::default() }),
            released: Condvar::new(),
        }
    }

    fn alive(&self) -> Result<MutexGuard<'_, State>, Error> {
        let state = self.state.lock();
        match (state.dead, state.closed || state.broken) {
            (true, _) => Err(failure("the power is off")),
            (_, true) => Err(Error::Closed),
            _ => Ok(state),
        }
    }
}

impl Engine for FaultyEngine {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn write(&self, ops: &Ops, sync: bool) -> Result<(), Error> {
        let mut state = self.alive()?;
        state.waiting += 1;
        self.released.wait_while(&mut state, |state| state.held);
        state.waiting -= 1;
        if state.dead {
            return Err(failure("the power is off"));
        }
        let meets_fault = state.meets_fault();
        if !meets_fault || state.fault == Fault::Sync {
            state.visible.apply(ops);
            state.unsynced.push(ops.clone());
        }
        if meets_fault {
            return Err(failure("a fault was asked for"));
        }
        if sync {
            state.sync();
        }
        Ok(())
    }

    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.alive()?.visible.get(table, key))
    }

    fn scan(&self, table: Table, from: &[u8], to: &[u8], each: &mut Visit<'_>) -> Result<(), Error> {
        self.alive()?.visible.scan(table, from, to, each);
        Ok(())
    }

    fn last_key(&self, table: Table, from: &[u8], to: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.alive()?.visible.last_key(table, from, to))
    }

    fn sync(&self) -> Result<(), Error> {
        let mut state = self.alive()?;
        if state.meets_fault() {
            return Err(failure("a fault was asked for"));
        }
        state.sync();
        Ok(())
    }

    fn reopen(&self) -> Result<(), Error> {
        let mut state = self.state.lock();
        if state.dead {
            return Err(failure("the power is off"));
        }
        if state.fault == Fault::Lasting {
            state.broken = true;
            return Err(failure("a fault was asked for"));
        }
        state.fault = Fault::None;
        (state.broken, state.closed) = (false, false);
        // Opening writes all that it finds out again, and syncs it.
        state.sync();
        Ok(())
    }

    fn close(&self) -> Result<(), Error> {
        self.state.lock().closed = true;
        Ok(())
    }
}

impl State {
    fn meets_fault(&mut self) -> bool {
        if self.fault != Fault::None && self.countdown == 0 {
            self.broken = true;
        }
        self.countdown = self.countdown.saturating_sub(1);
        self.broken
    }

    fn sync(&mut self) {
        self.unsynced.drain(..).for_each(|ops| self.synced.apply(&ops));
    }
}

fn failure(cause: &'static str) -> Error {
    Error::Engine { doing: "testing", cause: cause.into() }
}
