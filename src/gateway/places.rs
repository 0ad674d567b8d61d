//! How many connections may be open: in all, over all workers, and of one client.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use ahash::RandomState;
use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The places for connections of one process.
#[derive(Debug, Default)]
pub struct Places {
    open: AtomicUsize,
    freed: Notify,
    clients: Mutex<HashMap<IpAddr, u32, RandomState>>,
}

/// One open connection's place; free again when it is dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    client: Option<IpAddr>,
}

impl Places {
    /// Takes a place, one of `bound`; none while all are taken.
    pub fn take(self: &Arc<Self>, bound: usize) -> Option<Place> {
        let more = |open: usize| (open < bound).then_some(open + 1);
        self.open.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Place { places: Arc::clone(self), client: None })
    }

    /// Returns when a place may be free.
    pub async fn freed(&self) {
        self.freed.notified().await;
    }

    /// How many are taken.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }
}

impl Place {
    /// Counts the connection for `client`. Says whether it has no more than `bound` of them, this one
    /// included.
    pub fn admit(&mut self, client: IpAddr, bound: u32) -> bool {
        let mut clients = self.places.clients.lock();
        let count = clients.entry(client).or_insert(0);
        if *count >= bound {
            return false;
        }
        *count += 1;
        self.client = Some(client);
        true
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(client) = self.client {
            let mut clients = self.places.clients.lock();
            if let Some(count) = clients.get_mut(&client) {
                *count -= 1;
                if *count == 0 {
                    clients.remove(&client);
                }
            }
        }
        self.places.open.fetch_sub(1, Ordering::AcqRel);
        self.places.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_places_are_taken_than_there_are() {
        let places = Arc::new(Places::default());
        let taken: Vec<_> = (0..3).filter_map(|_| places.take(2)).collect();
        assert_eq!((taken.len(), places.open()), (2, 2));
        drop(taken);
        assert!(places.take(1).is_some());
        assert_eq!(places.open(), 0);
    }

    #[test]
    fn a_client_has_its_share_and_leaves_nothing_behind() {
        let places = Arc::new(Places::default());
        let client = "192.0.2.1".parse().unwrap();
        let mut all: Vec<_> = (0..3).filter_map(|_| places.take(10)).collect();
        let admitted: Vec<_> = all.iter_mut().map(|place| place.admit(client, 2)).collect();
        assert_eq!(admitted, [true, true, false]);
        drop(all.pop());
        drop(all.pop());
        assert!(places.take(10).unwrap().admit(client, 2));
        drop(all);
        assert!(places.clients.lock().is_empty());
    }
}
