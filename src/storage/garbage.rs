//! Discarded logs: removed in the background, page by page. A page goes in one batch with the release of its bodies, so that a start
//! that finds the note of a discarded log takes it up with what is left.
//!
//! Must not know why a log was discarded.

use std::{collections::VecDeque, ops::ControlFlow};

use parking_lot::{Condvar, Mutex};

use super::{BodyId, Engine, Error, LogId, LogState, Lsn, Outcome, Seq, Table, commit::Committer, keys, record};

/// What is left of a discarded log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Garbage {
    pub(super) log: LogId,
    /// The first entry that is left.
    pub(super) from: Seq,
    /// The last one.
    pub(super) to: Seq,
    /// Which entries were settled when the log was discarded: their bodies are released already.
    pub(super) state: LogState,
}

/// The discarded logs that are committed as such.
#[derive(Debug, Default)]
pub(super) struct Collector {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    logs: VecDeque<Garbage>,
    /// The batch of the last page; the next page waits for it, which keeps the pace bounded.
    wait_for: Lsn,
    /// See [`super::batch::Batch::generation`].
    generation: u64,
    stop: bool,
}

impl Collector {
    /// Forgets all, and starts with `logs`.
    pub(super) fn restart(&self, logs: Vec<Garbage>, generation: u64) {
        let mut queue = self.queue.lock();
        queue.logs = logs.into();
        queue.wait_for = Lsn(0);
        queue.generation = generation;
        self.changed.notify_all();
    }

    /// A batch was written, and `logs` were discarded by it.
    pub(super) fn committed(&self, logs: &mut Vec<Garbage>) {
        let mut queue = self.queue.lock();
        queue.logs.extend(logs.drain(..));
        if !queue.logs.is_empty() {
            self.changed.notify_all();
        }
    }

    pub(super) fn stop(&self) {
        self.queue.lock().stop = true;
        self.changed.notify_all();
    }

    pub(super) fn len(&self) -> usize {
        self.queue.lock().logs.len()
    }

    /// Collects until it is stopped.
    pub(super) fn run(&self, committer: &Committer) {
        loop {
            let mut queue = self.queue.lock();
            self.changed.wait_while(&mut queue, |queue| !queue.stop && !queue.is_ready(committer));
            if queue.stop {
                return;
            }
            drop(queue);
            self.collect(committer);
        }
    }

    /// Removes one page, if there is one to remove; says whether there was.
    pub(super) fn collect(&self, committer: &Committer) -> bool {
        let (garbage, generation) = {
            let mut queue = self.queue.lock();
            if !queue.is_ready(committer) {
                return false;
            }
            match queue.logs.pop_front() {
                Some(garbage) => (garbage, queue.generation),
                None => return false,
            }
        };
        let page = match Page::read(committer.engine(), &garbage) {
            Ok(page) => page,
            Err(error) => {
                // The note stays: the next start takes it up again.
                tracing::warn!(log = garbage.log, %error, "a discarded log cannot be read");
                return true;
            }
        };
        let rest = (page.last < garbage.to).then(|| Garbage { from: page.last.saturating_add(1), ..garbage.clone() });
        let (stale, lsn) = committer.write(|batch| {
            if batch.generation != generation {
                return true;
            }
            page.bodies.iter().for_each(|&id| batch.release_body(id));
            batch.trim(garbage.log, garbage.from, page.last);
            if rest.is_none() {
                batch.delete_garbage(garbage.log);
            }
            false
        });
        // Where the batch fails, what is on the disk is taken up by the reopening.
        if !stale && committer.outcome(lsn) != Outcome::Failed {
            let mut queue = self.queue.lock();
            if queue.generation == generation {
                queue.wait_for = lsn;
                queue.logs.extend(rest);
            }
        }
        true
    }
}

impl Queue {
    fn is_ready(&self, committer: &Committer) -> bool {
        !self.logs.is_empty() && committer.written() >= self.wait_for
    }
}

/// The next entries of a discarded log.
struct Page {
    /// All up to this one can go.
    last: Seq,
    /// What is to be released, once per entry.
    bodies: Vec<BodyId>,
}

impl Page {
    fn read(engine: &dyn Engine, garbage: &Garbage) -> Result<Self, Error> {
        let mut page = Self { last: garbage.to, bodies: Vec::new() };
        let mut left = PAGE_ENTRIES;
        let from = keys::entry(garbage.log, garbage.from);
        let to = keys::entry(garbage.log, garbage.to.saturating_add(1));
        engine.scan(Table::Logs, &from, &to, &mut |key, value| {
            let seq = keys::parse_entry(key).map_or(garbage.to, |(_, seq)| seq);
            match record::get_entry_head(value).map(|(_, shared)| shared) {
                Ok(Some(id)) if !garbage.state.is_settled(seq) => page.bodies.push(id),
                Ok(_) => {}
                Err(error) => tracing::warn!(log = garbage.log, seq, %error, "a discarded entry cannot be read"),
            }
            left -= 1;
            if left == 0 {
                page.last = seq;
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        Ok(page)
    }
}

const PAGE_ENTRIES: usize = 256;
