//! [`ConnectionLimit`]: bounds the open connections of the process and of each client.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::Notify;

use crate::client_usage::ClientUsage;

/// The open client connections of a process, over all workers. The bounds are parameters, because a
/// reload may change them.
#[derive(Debug)]
pub struct ConnectionLimit {
    /// Most connections that the limit of open files allows.
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

/// Least number of file descriptors that client connections never take: for logs, workers, Redis, the admin API
/// and reloads.
const MIN_RESERVED_FILES: u64 = 128;
/// The part of the file descriptors that is kept at least for upstream connections: one in so many.
const UPSTREAM_SHARE: u64 = 8;

impl ConnectionLimit {
    /// A limit of at most `max` connections, whatever the bounds.
    fn new(max: usize) -> Self {
        Self { max, open: AtomicUsize::new(0), released: Notify::new() }
    }

    /// The limit of a process with this limit of open files; `None`: unlimited.
    pub fn for_open_files(open_files: Option<u64>) -> Self {
        let free = open_files.map(|files| {
            let reserved = MIN_RESERVED_FILES.max(files / UPSTREAM_SHARE);
            files.saturating_sub(reserved).max(1)
        });
        Self::new(free.map_or(usize::MAX, |free| free as usize))
    }

    /// Most connections that the limit of open files allows.
    pub fn max(&self) -> usize {
        self.max
    }

    /// A permit for one more connection; `None` while `bound` are open.
    pub fn try_acquire(self: &Arc<Self>, bound: usize) -> Option<ConnectionPermit> {
        let bound = bound.min(self.max);
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
    use super::*;
    use crate::client_usage::ClientTable;

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
        for (files, max) in
            [(Some(10), 1), (Some(160), 32), (Some(20_000), 17_500), (None, usize::MAX)]
        {
            assert_eq!(ConnectionLimit::for_open_files(files).max(), max, "{files:?}");
        }
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
