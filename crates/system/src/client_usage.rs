//! What each client address uses of the resources that the process bounds: [`ClientUsage`], found
//! in the [`ClientTable`] by the masked address.
//!
//! A connection looks its client up once and keeps the `Arc`, so a request is counted without a
//! lock. Only a trusted proxy's requests, whose clients differ, need a lookup each. An entry exists
//! while a connection or request holds it, so open connections and requests bound the memory.
//!
//! `held_reply.rs` bounds the bodies of responses that exist for one request only.
//!
//! ```
//! use std::sync::Arc;
//! use tidegate_system::client_usage::ClientTable;
//!
//! let table = Arc::new(ClientTable::default());
//! let client = table.usage([192, 0, 2, 1].into());
//! assert!(client.requests.try_add(1, 1) && !client.requests.try_add(1, 1));
//! client.requests.subtract(1);
//! drop(client);
//! assert_eq!(table.len(), 0);
//! ```

use std::{
    net::IpAddr,
    ops::Deref,
    rc::Rc,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use ahash::RandomState;
use hashbrown::HashMap;
use parking_lot::Mutex;

pub use self::held_reply::HeldReply;

mod held_reply;

/// The clients of the process with open connections or requests, by their masked addresses.
#[derive(Debug, Default)]
pub struct ClientTable {
    clients: Mutex<HashMap<IpAddr, Weak<ClientUsage>, RandomState>>,
    /// The `reply_bytes` of all clients.
    reply_bytes: Arc<UsageCount>,
}

/// What one client address uses, over all workers.
#[derive(Debug)]
pub struct ClientUsage {
    address: IpAddr,
    table: Weak<ClientTable>,
    /// Open connections.
    pub connections: UsageCount,
    /// Requests in flight: HTTP/1 requests and HTTP/2 streams, from their heads to the ends of
    /// their responses.
    pub requests: UsageCount,
    /// Heads of the requests of open HTTP/2 streams, in bytes.
    pub head_bytes: UsageCount,
    /// Memory of the encoders that compress responses, in bytes.
    pub compression_bytes: UsageCount,
    /// Mirrored copies of requests whose bodies are not complete, in bytes.
    pub copied_bytes: UsageCount,
    /// Bodies of requests that were read before limits are charged, and are not forwarded yet, in
    /// bytes.
    pub inspected_bytes: UsageCount,
    /// Bodies of responses that exist for one request only and are not sent yet, in bytes.
    reply_bytes: UsageCount,
    /// The same of all clients.
    all_reply_bytes: Arc<UsageCount>,
}

impl ClientUsage {
    /// The masked address.
    pub fn address(&self) -> IpAddr {
        self.address
    }
}

/// A worker's handle of a client's usage. Cloning it costs no atomic operation.
#[derive(Clone, Debug)]
pub struct ClientHandle(Rc<SharedUsage>);

/// The usage that all workers share.
#[derive(Debug)]
struct SharedUsage(Arc<ClientUsage>);

impl From<Arc<ClientUsage>> for ClientHandle {
    fn from(usage: Arc<ClientUsage>) -> Self {
        Self(Rc::new(SharedUsage(usage)))
    }
}

/// Counts a request in flight for its client until it is dropped.
#[derive(Debug)]
pub struct RequestInFlight(ClientHandle);

impl ClientHandle {
    /// Counts a request in flight; `None` if the client already has `bound`.
    #[inline]
    pub fn begin_request(&self, bound: u64) -> Option<RequestInFlight> {
        self.requests.try_add(1, bound).then(|| RequestInFlight(self.clone()))
    }
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        self.0.requests.subtract(1);
    }
}

impl Deref for ClientHandle {
    type Target = ClientUsage;

    fn deref(&self) -> &ClientUsage {
        &self.0.0
    }
}

/// How much of a resource is in use.
#[derive(Debug, Default)]
pub struct UsageCount(AtomicU64);

impl ClientTable {
    /// The usage of the client with this masked address.
    pub fn usage(self: &Arc<Self>, address: IpAddr) -> Arc<ClientUsage> {
        let mut clients = self.clients.lock();
        if let Some(known) = clients.get(&address).and_then(Weak::upgrade) {
            return known;
        }
        let usage = Arc::new(ClientUsage {
            address,
            table: Arc::downgrade(self),
            connections: UsageCount::default(),
            requests: UsageCount::default(),
            head_bytes: UsageCount::default(),
            compression_bytes: UsageCount::default(),
            copied_bytes: UsageCount::default(),
            inspected_bytes: UsageCount::default(),
            reply_bytes: UsageCount::default(),
            all_reply_bytes: Arc::clone(&self.reply_bytes),
        });
        clients.insert(address, Arc::downgrade(&usage));
        usage
    }

    /// The number of clients.
    pub fn len(&self) -> usize {
        self.clients.lock().len()
    }

    /// True without clients.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for ClientUsage {
    fn drop(&mut self) {
        let Some(table) = self.table.upgrade() else { return };
        let mut clients = table.clients.lock();
        // The client may have returned, with a new entry, since the last holder was dropped.
        if clients.get(&self.address).is_some_and(|entry| entry.strong_count() == 0) {
            clients.remove(&self.address);
        }
    }
}

impl UsageCount {
    /// Adds `amount` and returns true, or returns false if the sum would exceed `bound`.
    pub fn try_add(&self, amount: u64, bound: u64) -> bool {
        let add = |used: u64| used.checked_add(amount).filter(|sum| *sum <= bound);
        self.0.fetch_update(Relaxed, Relaxed, add).is_ok()
    }

    /// Subtracts an `amount` that was added.
    pub fn subtract(&self, amount: u64) {
        self.0.fetch_sub(amount, Relaxed);
    }

    /// The amount in use.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_one_entry_until_its_last_holder_lets_go() {
        let table = Arc::new(ClientTable::default());
        let (one, other) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let (first, second) = (table.usage(one), table.usage(one));
        let third = table.usage(other);
        assert!(Arc::ptr_eq(&first, &second) && !Arc::ptr_eq(&first, &third));
        assert_eq!(table.len(), 2);
        drop((first, third));
        assert_eq!(table.len(), 1);
        drop(second);
        assert!(table.is_empty());
    }

    #[test]
    fn counts_are_exact_under_contention() {
        let table = Arc::new(ClientTable::default());
        let admitted: u64 = std::thread::scope(|scope| {
            let workers = (0..4).map(|_| {
                let table = Arc::clone(&table);
                scope.spawn(move || {
                    let mut most = 0;
                    for _ in 0..10_000 {
                        let client = table.usage([192, 0, 2, 1].into());
                        if client.requests.try_add(1, 2) {
                            most = client.requests.get().max(most);
                            client.requests.subtract(1);
                        }
                    }
                    most
                })
            });
            let workers: Vec<_> = workers.collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).max().unwrap()
        });
        assert!((1..=2).contains(&admitted), "{admitted}");
        assert!(table.is_empty());
    }
}
