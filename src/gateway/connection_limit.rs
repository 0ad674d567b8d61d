//! [`ConnectionLimit`]: bounds the open connections of the process and of each client.

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

/// The open client connections of a process, over all workers. The bounds are parameters, because a
/// reload may change them.
#[derive(Debug, Default)]
pub struct ConnectionLimit {
    open: AtomicUsize,
    released: Notify,
    clients: Mutex<HashMap<IpAddr, u32, RandomState>>,
}

/// A permit for one open connection. Dropping it releases it.
#[derive(Debug)]
pub struct ConnectionPermit {
    limit: Arc<ConnectionLimit>,
    /// The client that it is counted for.
    client: Option<IpAddr>,
}

impl ConnectionLimit {
    /// A permit for one more connection; `None` while `bound` are open.
    pub fn try_acquire(self: &Arc<Self>, bound: usize) -> Option<ConnectionPermit> {
        let more = |open: usize| (open < bound).then_some(open + 1);
        self.open.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(ConnectionPermit { limit: Arc::clone(self), client: None })
    }

    /// Waits until a permit is released. Another task may acquire it first.
    pub async fn wait_for_release(&self) {
        self.released.notified().await;
    }

    /// The number of open connections.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }
}

impl ConnectionPermit {
    /// Counts the connection for `client`. Returns false, and does not count it, if the client has
    /// `bound` other connections.
    pub fn assign_client(&mut self, client: IpAddr, bound: u32) -> bool {
        let mut clients = self.limit.clients.lock();
        let count = clients.entry(client).or_insert(0);
        if *count >= bound {
            return false;
        }
        *count += 1;
        self.client = Some(client);
        true
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        if let Some(client) = self.client {
            let mut clients = self.limit.clients.lock();
            if let Some(count) = clients.get_mut(&client) {
                *count -= 1;
                if *count == 0 {
                    clients.remove(&client);
                }
            }
        }
        self.limit.open.fetch_sub(1, Ordering::AcqRel);
        self.limit.released.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_never_exceed_the_bound() {
        let limit = Arc::new(ConnectionLimit::default());
        let permits: Vec<_> = (0..3).filter_map(|_| limit.try_acquire(2)).collect();
        assert_eq!((permits.len(), limit.open()), (2, 2));
        drop(permits);
        assert!(limit.try_acquire(1).is_some());
        assert_eq!(limit.open(), 0);
    }

    #[test]
    fn a_client_is_bounded_and_its_count_removed_with_its_last_connection() {
        let limit = Arc::new(ConnectionLimit::default());
        let client = "192.0.2.1".parse().unwrap();
        let mut permits: Vec<_> = (0..3).filter_map(|_| limit.try_acquire(10)).collect();
        let admitted: Vec<_> =
            permits.iter_mut().map(|permit| permit.assign_client(client, 2)).collect();
        assert_eq!(admitted, [true, true, false]);
        drop(permits.pop());
        drop(permits.pop());
        assert!(limit.try_acquire(10).unwrap().assign_client(client, 2));
        drop(permits);
        assert!(limit.clients.lock().is_empty());
    }
}
