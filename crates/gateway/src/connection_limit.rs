//! [`ConnectionLimit`]: bounds the open connections of the process and of each client.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tidegate_system::client_usage::ClientUsage;
use tokio::sync::Notify;

/// The open client connections of a process, over all workers. The bounds are parameters, because a
/// reload may change them.
#[derive(Debug)]
pub struct ConnectionLimit {
    /// Maximum number of connections that the limit of open files allows.
    max: usize,
    open: AtomicUsize,
    released: Notify,
}

/// A permit for one open connection. Dropping it releases it.
#[derive(Debug)]
pub struct ConnectionPermit {
    limit: Arc<ConnectionLimit>,
    /// The client that it is counted for.
    client: Option<Arc<ClientUsage>>,
}

impl ConnectionLimit {
    /// A limit of at most `max` connections, even if a caller passes a higher bound.
    pub fn new(max: usize) -> Self {
        Self { max, open: AtomicUsize::new(0), released: Notify::new() }
    }

    /// Maximum number of connections of one client: half of what the limit of open files allows.
    pub fn client_share(&self) -> u64 {
        (self.max as u64 / 2).max(1)
    }

    /// A permit for one more connection; `None` while `bound` are open.
    pub fn try_acquire(self: &Arc<Self>, bound: usize) -> Option<ConnectionPermit> {
        let bound = bound.min(self.max);
        let more = |open: usize| (open < bound).then_some(open + 1);
        self.open.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(ConnectionPermit { limit: Arc::clone(self), client: None })
    }

    /// True if `bound` connections are open, so that a further one would wait.
    pub fn is_full(&self, bound: usize) -> bool {
        self.open() >= bound.min(self.max)
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
    pub fn assign_client(&mut self, client: Arc<ClientUsage>, bound: u64) -> bool {
        let is_admitted = client.connections.try_add(1, bound);
        self.client = is_admitted.then_some(client);
        is_admitted
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        if let Some(client) = &self.client {
            client.connections.subtract(1);
        }
        self.limit.open.fetch_sub(1, Ordering::AcqRel);
        self.limit.released.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use tidegate_system::client_usage::ClientTable;

    use super::*;

    #[test]
    fn connections_never_exceed_the_bound() {
        let limit = Arc::new(ConnectionLimit::new(10));
        let permits: Vec<_> = (0..3).filter_map(|_| limit.try_acquire(2)).collect();
        assert_eq!((permits.len(), limit.open()), (2, 2));
        drop(permits);
        assert!(limit.try_acquire(1).is_some());
        assert_eq!(limit.open(), 0);
    }

    #[test]
    fn open_files_bound_the_connections() {
        let limit = Arc::new(ConnectionLimit::new(1));
        let _permit = limit.try_acquire(5).unwrap();
        assert!(limit.try_acquire(5).is_none());
    }

    #[test]
    fn a_client_is_bounded_and_its_count_removed_with_its_last_connection() {
        let limit = Arc::new(ConnectionLimit::new(10));
        let table = Arc::new(ClientTable::default());
        let client = || table.usage([192, 0, 2, 1].into());
        let mut permits: Vec<_> = (0..3).filter_map(|_| limit.try_acquire(10)).collect();
        let admitted: Vec<_> =
            permits.iter_mut().map(|permit| permit.assign_client(client(), 2)).collect();
        assert_eq!(admitted, [true, true, false]);
        drop(permits.pop());
        drop(permits.pop());
        assert!(limit.try_acquire(10).unwrap().assign_client(client(), 2));
        drop(permits);
        assert!(table.is_empty());
    }
}
