//! Runs the broker's tasks on this thread, and its blocking work only when told to, so that one seed is one history.
//!
//! Must not know MQTT.

use std::{
    future::Future,
    sync::mpsc::{Receiver, Sender, channel},
};

use tokio::runtime::Runtime;

pub struct Executor {
    /// Opens the gate that holds the one thread for blocking work. Dropped before the runtime, which waits for that thread.
    open: Sender<()>,
    reached: Receiver<()>,
    runtime: Runtime,
}

impl Executor {
    pub fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .max_blocking_threads(1)
            .thread_keep_alive(std::time::Duration::from_secs(3600))
            .build()
            .expect("a runtime");
        let (open, reached) = gate(&runtime);
        let executor = Self { open, reached, runtime };
        executor.reached.recv().expect("the gate is reached");
        executor
    }

    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    /// Lets `f` run where it may spawn.
    pub fn enter<R>(&self, f: impl FnOnce() -> R) -> R {
        let _guard = self.runtime.enter();
        f()
    }

    /// Runs tasks for a while, then the blocking work that they asked for, and again.
    pub fn run(&mut self) {
        for _ in 0..ROUNDS {
            self.runtime.block_on(async {
                for _ in 0..YIELDS {
                    tokio::task::yield_now().await;
                }
            });
            let (open, reached) = gate(&self.runtime);
            drop(std::mem::replace(&mut self.open, open));
            self.reached = reached;
            self.reached.recv().expect("the gate is reached");
        }
    }
}

/// Work that holds the thread until its sender is dropped; all that was asked for before is done once it is reached.
fn gate(runtime: &Runtime) -> (Sender<()>, Receiver<()>) {
    let (open, opened) = channel::<()>();
    let (reach, reached) = channel::<()>();
    runtime.spawn_blocking(move || {
        let _ = reach.send(());
        let _ = opened.recv();
    });
    (open, reached)
}

const ROUNDS: usize = 2;
const YIELDS: usize = 6;
