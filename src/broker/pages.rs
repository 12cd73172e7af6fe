//! Pages on their way from the store to clients: however many come back at once, a bounded part of what waits on the disk is in memory.
//!
//! Must not know what a page holds, nor how it is sent.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use tokio::{
    sync::Semaphore,
    task::{JoinError, JoinHandle, spawn_blocking},
};

use crate::session::Delivery;

use super::{Broker, LogError};

/// What all connections share of it.
#[derive(Debug)]
pub(super) struct Pages {
    /// Who may read at the same time: each takes a thread.
    readers: Arc<Semaphore>,
    /// Bytes that connections hold.
    held: AtomicUsize,
    most: usize,
}

/// Entries of a log, and their part of what may be held.
#[derive(Debug)]
pub struct LogPage {
    /// In order.
    pub deliveries: Vec<Delivery>,
    /// To be kept until they are sent.
    pub held: Held,
}

/// A part of what may be held, until it is dropped.
#[derive(Debug)]
pub struct Held {
    pages: Arc<Pages>,
    bytes: usize,
}

/// A page that is being read, by a task of its own: whose turn it is reads, although its client may have no room just then. Dropped, it does
/// not wait for its turn any more.
#[derive(Debug)]
pub struct Reading<T = LogPage>(JoinHandle<Result<Result<T, LogError>, JoinError>>);

impl Pages {
    pub(super) fn new(most: u64) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        Self { readers: Arc::new(Semaphore::new(2 * threads)), held: AtomicUsize::new(0), most }
    }

    /// A share of what is left: who comes late gets less, down to one message, and nobody waits for a client that is slow.
    fn take(self: &Arc<Self>) -> Held {
        let left = self.most.saturating_sub(self.held.load(Ordering::Relaxed));
        let bytes = (left / SHARES).clamp(PAGE_MIN_BYTES, PAGE_MAX_BYTES);
        self.held.fetch_add(bytes, Ordering::Relaxed);
        Held { pages: self.clone(), bytes }
    }
}

impl Held {
    fn set(&mut self, bytes: usize) {
        self.pages.held.fetch_add(bytes, Ordering::Relaxed);
        self.pages.held.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
    }

    /// This part, and that of an earlier page which is not sent yet.
    #[must_use]
    pub fn and(mut self, earlier: Option<Self>) -> Self {
        if let Some(mut earlier) = earlier {
            self.bytes += std::mem::take(&mut earlier.bytes);
        }
        self
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.pages.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl<T> Future for Reading<T> {
    type Output = Result<Result<T, LogError>, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(|read| read.and_then(|read| read))
    }
}

impl<T> Drop for Reading<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Broker {
    /// Reads a page of the log of session `id`, from entry `from` on, off the runtime's threads and in its turn. It has at least one
    /// entry, if there is one, and as many more as there is room for.
    #[must_use]
    pub fn read_log_page(self: &Arc<Self>, id: u64, from: u64) -> Reading {
        self.read_in_turn(move |broker| {
            let mut held = broker.pages.take();
            let deliveries = broker.read_log(id, from, held.bytes)?;
            held.set(deliveries.iter().map(|delivery| delivery.message.size()).sum());
            Ok(LogPage { deliveries, held })
        })
    }

    /// Lets `read` block, off the runtime's threads and in its turn.
    pub(super) fn read_in_turn<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&Self) -> Result<T, LogError> + Send + 'static,
    ) -> Reading<T> {
        let broker = self.clone();
        Reading(tokio::spawn(async move {
            let turn = broker.pages.readers.clone().acquire_owned().await;
            let read = spawn_blocking(move || {
                let _turn = turn;
                read(&broker)
            });
            read.await
        }))
    }

    /// Whether little room is left for pages: nobody should then ask for one who has not sent the last.
    #[must_use]
    pub fn pages_are_scarce(&self) -> bool {
        self.pages.held.load(Ordering::Relaxed) > self.pages.most / 2
    }
}

/// No page takes more than one part in so many of what is left.
const SHARES: usize = 16;
/// From this on, in bytes, reading costs little beside what is read.
pub(super) const PAGE_MAX_BYTES: usize = 256 * 1024;
const PAGE_MIN_BYTES: usize = 4 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    /// Nobody waits, and together they hold little more than they may.
    #[test]
    fn many_share_what_is_left() {
        let pages = Arc::new(Pages::new(16 << 20));
        let mut all: Vec<_> = (0..1000).map(|_| pages.take()).collect();
        let held = |pages: &Pages| pages.held.load(Ordering::Relaxed);
        assert_eq!((all[0].bytes, all[999].bytes), (PAGE_MAX_BYTES, PAGE_MIN_BYTES));
        assert!(held(&pages) <= (16 << 20) + 1000 * PAGE_MIN_BYTES, "{}", held(&pages));
        let (last, earlier) = (all.pop().expect("some"), all.swap_remove(0));
        let mut both = last.and(Some(earlier));
        drop(all);
        assert_eq!(held(&pages), PAGE_MAX_BYTES + PAGE_MIN_BYTES);
        both.set(100);
        assert_eq!(held(&pages), 100);
        drop(both);
        assert_eq!(held(&pages), 0);
    }
}
