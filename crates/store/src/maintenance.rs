//! Each worker's periodic work: returns unspent units, and sends queued corrections when their
//! shard is reachable again.

use std::{sync::Arc, time::Duration};

use tidegate_charge::Key;
use tidegate_redis::RedisClient;

use super::{
    CounterStore,
    corrections::{CorrectionReason, CorrectionSender},
    unit_lease::UnspentUnits,
};

/// Interval between two rounds of maintenance.
const ROUND_INTERVAL: Duration = Duration::from_millis(100);

/// Interval at which [`Maintenance::finish`] checks whether anything is still in flight.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// One worker's maintenance. The process-wide part is done by one worker at a time.
pub(super) struct Maintenance {
    client: Arc<RedisClient>,
    store: Arc<CounterStore>,
    corrections: CorrectionSender,
}

impl Maintenance {
    pub(super) fn new(
        store: &Arc<CounterStore>,
        client: &Arc<RedisClient>,
        corrections: &CorrectionSender,
    ) -> Self {
        let (client, store) = (Arc::clone(client), Arc::clone(store));
        Self { client, store, corrections: corrections.clone() }
    }

    /// Runs until it is dropped.
    pub(super) async fn run(self) {
        let mut interval = self.store.clock.background_interval(ROUND_INTERVAL);
        let mut unspent = Vec::new();
        loop {
            interval.tick().await;
            if let Some(_guard) = self.store.maintenance_lock.try_lock() {
                let monotonic = self.store.clock.monotonic();
                self.store.leases.sweep(monotonic, |key| self.is_live(key), &mut unspent);
                self.return_units(&mut unspent);
                self.send_refusals();
            }
            self.corrections.resume();
        }
    }

    /// Queues all leased units for return to Redis. Waits until everything that can be sent has
    /// been sent, at most for `timeout`.
    pub(super) async fn finish(&self, timeout: Duration) {
        let clock = &self.store.clock;
        let end = clock.uptime() + timeout;
        let mut unspent = Vec::new();
        loop {
            self.store.leases.drain(&mut unspent);
            self.return_units(&mut unspent);
            self.send_refusals();
            self.corrections.resume();
            if self.store.leases.is_empty() && !self.store.corrections.is_busy() {
                return;
            }
            tokio::select! {
                () = clock.sleep_until(end) => return,
                () = clock.sleep(DRAIN_POLL_INTERVAL) => {}
            }
        }
    }

    fn is_live(&self, key: Key) -> bool {
        self.client.is_live(self.client.shard_of(key))
    }

    /// Queues the refusals of limits with a block.
    fn send_refusals(&self) {
        let refusals = self.store.blocks.take_refusals(self.store.clock.monotonic());
        if !refusals.is_empty() {
            self.corrections.push(refusals, CorrectionReason::Request);
        }
    }

    fn return_units(&self, unspent: &mut Vec<UnspentUnits>) {
        let refunds = unspent
            .drain(..)
            .map(|UnspentUnits { limit, key, to_return }| (limit, key, to_return.into()));
        self.corrections.push(refunds, CorrectionReason::UnspentUnits);
    }
}
