//! Discarded logs: removed in the background, page by page. A page goes in one batch with the release of its bodies, so that a start
//! that finds the note of a discarded log takes it up with what is left. And the room of what is gone: once that is as much as the
//! write-ahead log may take, and half of what the files hold, they are compacted, a piece at a time.
//!
//! Must not know why a log was discarded.

use std::{collections::VecDeque, ops::ControlFlow, time::Instant};

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
    /// Bytes of entries that are gone since the files were last compacted.
    freed: u64,
    /// From so many on it is worth it.
    worth: u64,
}

impl Collector {
    /// Room is claimed back once it is `worth` so many bytes.
    pub(super) fn new(worth: u64) -> Self {
        Self { queue: Mutex::new(Queue { worth, ..Queue::default() }), changed: Condvar::new() }
    }

    /// Forgets all, and starts with `logs`.
    pub(super) fn restart(&self, logs: Vec<Garbage>, generation: u64) {
        let mut queue = self.queue.lock();
        queue.logs = logs.into();
        queue.wait_for = Lsn(0);
        queue.generation = generation;
        self.changed.notify_all();
    }

    /// A batch was written; `logs` were discarded by it, and `freed` bytes of entries settled.
    pub(super) fn committed(&self, logs: &mut Vec<Garbage>, freed: u64) {
        let mut queue = self.queue.lock();
        queue.logs.extend(logs.drain(..));
        queue.freed += freed;
        if !queue.logs.is_empty() || queue.freed >= queue.worth {
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
            self.changed
                .wait_while(&mut queue, |queue| !queue.stop && !queue.is_ready(committer) && queue.freed < queue.worth);
            if queue.stop {
                return;
            }
            let is_ready = queue.is_ready(committer);
            drop(queue);
            if is_ready {
                self.collect(committer);
            } else if let Err(error) = self.reclaim(committer) {
                tracing::warn!(%error, "the room of what is gone cannot be claimed back yet");
            }
        }
    }

    /// Has the files compacted, where half of them is not needed any more; else that is looked at again later.
    fn reclaim(&self, committer: &Committer) -> Result<(), Error> {
        let engine = committer.engine();
        let files = engine.disk_use()?.tables;
        let files = [Table::Logs, Table::Bodies].map(|table| files.get(table.name()).map_or(0, |files| files.bytes));
        let worth = committer.config().rocksdb_wal_bytes.max(files.iter().sum::<u64>() / 2);
        {
            let mut queue = self.queue.lock();
            queue.worth = worth;
            if queue.freed < worth {
                return Ok(());
            }
            queue.freed = 0;
        }
        for table in [Table::Logs, Table::Bodies] {
            let mut from = Vec::new();
            for to in engine.fences(table)?.into_iter().chain([vec![0xFF; 17]]) {
                let begun = Instant::now();
                engine.compact(table, &from, &to)?;
                // Others get as much of the disk, and of the processors.
                let mut queue = self.queue.lock();
                self.changed.wait_while_for(&mut queue, |queue| !queue.stop, begun.elapsed());
                if queue.stop {
                    return Ok(());
                }
                from = to;
            }
        }
        Ok(())
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
            batch.freed(page.bytes);
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
    /// What the entries take.
    bytes: u64,
}

impl Page {
    fn read(engine: &dyn Engine, garbage: &Garbage) -> Result<Self, Error> {
        let mut page = Self { last: garbage.to, bodies: Vec::new(), bytes: 0 };
        let mut left = PAGE_ENTRIES;
        let from = keys::entry(garbage.log, garbage.from);
        let to = keys::entry(garbage.log, garbage.to.saturating_add(1));
        engine.scan(Table::Logs, &from, &to, &mut |key, value| {
            page.bytes += value.len() as u64;
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
