//! [`ClientHoldings`]: the number of places at one target, or of buffers of one upstream, that each
//! client address holds. [`ClientUsage`](tidegate_system::client_usage::ClientUsage) counts what it
//! holds of the process's resources.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use ahash::RandomState;
use hashbrown::HashMap;
use parking_lot::Mutex;

/// The holdings of client addresses, over all workers. Addresses that hold nothing have no entry.
#[derive(Debug, Default)]
pub(super) struct ClientHoldings {
    by_client: Mutex<HashMap<IpAddr, u32, RandomState>>,
    total: AtomicU32,
}

/// Counts one place or buffer for a client until it is dropped.
#[derive(Debug)]
pub(super) struct Holding {
    counts: Arc<ClientHoldings>,
    pub(super) client: IpAddr,
}

impl ClientHoldings {
    /// The sum over all clients.
    pub(super) fn total(&self) -> u32 {
        self.total.load(Relaxed)
    }

    /// The number that this client holds. Takes no lock while no client holds any.
    pub(super) fn of(&self, client: IpAddr) -> u32 {
        if self.total() == 0 {
            return 0;
        }
        self.by_client.lock().get(&client).copied().unwrap_or(0)
    }

    /// Counts one more for the client, without a limit.
    pub(super) fn add(self: &Arc<Self>, client: IpAddr) -> Holding {
        *self.by_client.lock().entry(client).or_insert(0) += 1;
        self.total.fetch_add(1, Relaxed);
        Holding { counts: Arc::clone(self), client }
    }

    /// Counts one more for the client, unless it holds `max_each` or all clients hold `max_total`.
    pub(super) fn try_add(
        self: &Arc<Self>,
        client: IpAddr,
        max_each: u32,
        max_total: u32,
    ) -> Option<Holding> {
        let mut by_client = self.by_client.lock();
        if self.total() >= max_total || by_client.get(&client).is_some_and(|held| *held >= max_each)
        {
            return None;
        }
        *by_client.entry(client).or_insert(0) += 1;
        self.total.fetch_add(1, Relaxed);
        Some(Holding { counts: Arc::clone(self), client })
    }

    /// The sum of the clients' holdings beyond `share` each.
    pub(super) fn excess(&self, share: u32) -> u32 {
        if self.total() <= share {
            return 0;
        }
        self.by_client.lock().values().map(|held| held.saturating_sub(share)).sum()
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let mut by_client = self.counts.by_client.lock();
        if let Some(held) = by_client.get_mut(&self.client) {
            *held -= 1;
            if *held == 0 {
                by_client.remove(&self.client);
            }
        }
        self.counts.total.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_counted_apart_and_forgotten() {
        let counts = Arc::<ClientHoldings>::default();
        let (one, other) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let held: Vec<_> = (0..3).filter_map(|_| counts.try_add(one, 2, 9)).collect();
        assert_eq!((held.len(), counts.of(one), counts.of(other)), (2, 2, 0));
        let beyond = counts.add(one);
        assert_eq!((counts.excess(2), counts.excess(1)), (1, 2));
        assert!(counts.try_add(other, 2, 3).is_none(), "all have three");
        let another = counts.try_add(other, 2, 4).unwrap();
        drop((beyond, held));
        assert_eq!((counts.of(one), counts.total()), (0, 1));
        drop(another);
        assert!(counts.by_client.lock().is_empty());
    }
}
