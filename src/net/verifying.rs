//! Passwords are verified a few at a time, and no address takes all the places. Must not know what a password is.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::admission::network;

/// The places where passwords are verified, for all listeners: each takes a core for some milliseconds, and memory. Who comes when all are
/// taken waits for its turn; who comes from an address that has its share already waits for that first, and not before all others.
#[derive(Debug)]
pub struct Verifying {
    places: Arc<Semaphore>,
    shares: Mutex<HashMap<IpAddr, Share>>,
}

/// Those of one address that are there, and the places that they may take at once.
#[derive(Debug)]
struct Share {
    clients: usize,
    places: Arc<Semaphore>,
}

impl Default for Verifying {
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(PLACES)), shares: Mutex::default() }
    }
}

impl Verifying {
    /// Runs `verify` on a thread for work that takes long, when there is a place for `address`. `false` too if it panicked.
    pub(super) async fn run(self: &Arc<Self>, address: IpAddr, verify: impl FnOnce() -> bool + Send + 'static) -> bool {
        let client = Client::new(self.clone(), address);
        // Neither semaphore is ever closed.
        let Ok(share) = client.places.clone().acquire_owned().await else { return false };
        let Ok(place) = self.places.clone().acquire_owned().await else { return false };
        // Who gives up meanwhile does not stop the thread: the places are taken until that is done.
        let verify = move || {
            let _taken = (share, place, client);
            verify()
        };
        tokio::task::spawn_blocking(verify).await.unwrap_or(false)
    }
}

/// One that waits or is verified: its address is forgotten with the last of them, however each ends.
struct Client {
    verifying: Arc<Verifying>,
    address: IpAddr,
    places: Arc<Semaphore>,
}

impl Client {
    fn new(verifying: Arc<Verifying>, address: IpAddr) -> Self {
        let address = network(address);
        let mut shares = verifying.shares.lock();
        let new = || Share { clients: 0, places: Arc::new(Semaphore::new(PLACES_OF_ONE)) };
        let share = shares.entry(address).or_insert_with(new);
        share.clients += 1;
        let places = share.places.clone();
        drop(shares);
        Self { verifying, address, places }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut shares = self.verifying.shares.lock();
        if let Some(share) = shares.get_mut(&self.address) {
            share.clients -= 1;
            if share.clients == 0 {
                shares.remove(&self.address);
            }
        }
    }
}

/// Passwords verified at once.
const PLACES: usize = 4;
/// Those of them that one address may take.
const PLACES_OF_ONE: usize = 3;

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc::{Receiver, Sender, channel},
        time::Duration,
    };

    use super::*;

    fn started(
        verifying: &Arc<Verifying>,
        address: &str,
        name: &'static str,
        log: &Sender<&'static str>,
    ) -> Sender<()> {
        let (end, ended): (Sender<()>, Receiver<()>) = channel();
        let (verifying, address, log) = (verifying.clone(), address.parse().unwrap(), log.clone());
        tokio::spawn(async move {
            verifying
                .run(address, move || {
                    log.send(name).unwrap();
                    ended.recv().is_ok()
                })
                .await
        });
        end
    }

    /// A storm from one address leaves a place for others, and nothing behind.
    #[tokio::test]
    async fn one_address_does_not_take_all_places() {
        let verifying = Arc::new(Verifying::default());
        let (log, logged) = channel();
        let next = async || {
            for _ in 0..1000 {
                if let Ok(name) = logged.try_recv() {
                    return name;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            "nobody"
        };
        let mut storm = Vec::new();
        for _ in 0..10 {
            storm.push(started(&verifying, "192.0.2.1", "storm", &log));
            tokio::task::yield_now().await;
        }
        for _ in 0..PLACES_OF_ONE {
            assert_eq!(next().await, "storm");
        }
        let good = started(&verifying, "192.0.2.2", "good", &log);
        assert_eq!(next().await, "good", "before the seven that came first");
        let late = started(&verifying, "192.0.2.3", "late", &log);
        tokio::task::yield_now().await;
        assert_eq!(verifying.shares.lock().len(), 3);
        drop(good);
        assert_eq!(next().await, "late");
        drop((storm, late));
        for _ in PLACES_OF_ONE..10 {
            assert_eq!(next().await, "storm");
        }
        for _ in 0..1000 {
            if verifying.shares.lock().is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{verifying:?}");
    }

    /// Who gives up while it waits leaves nothing behind.
    #[tokio::test]
    async fn who_gives_up_is_forgotten() {
        let verifying = Arc::new(Verifying::default());
        let all = verifying.places.acquire_many(PLACES as u32).await.unwrap();
        let address = "192.0.2.1".parse().unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(1), verifying.run(address, || true)).await.is_err());
        assert!(verifying.shares.lock().is_empty());
        drop(all);
        assert!(verifying.run(address, || true).await && !verifying.run(address, || panic!("on purpose")).await);
    }

    /// Who gives up while its password is verified keeps its places as long as the thread works: a storm of those who do takes no more.
    #[tokio::test]
    async fn who_gives_up_does_not_free_what_still_works() {
        let verifying = Arc::new(Verifying::default());
        let (end, ended): (Sender<()>, Receiver<()>) = channel();
        let address = "192.0.2.1".parse().unwrap();
        let verified = verifying.run(address, move || ended.recv().is_ok());
        assert!(tokio::time::timeout(Duration::from_millis(1), verified).await.is_err());
        let of_one = verifying.shares.lock().values().next().unwrap().places.clone();
        assert_eq!((verifying.places.available_permits(), of_one.available_permits()), (PLACES - 1, PLACES_OF_ONE - 1));
        drop(end);
        for _ in 0..1000 {
            if verifying.places.available_permits() == PLACES && verifying.shares.lock().is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{verifying:?}");
    }
}
