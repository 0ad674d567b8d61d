//! What each worker does beside requests: it gives the tokens back that are not spent, charges what was
//! admitted during an outage, and sends the corrections that wait for a place to be reachable.

use std::{sync::Arc, time::Duration};

use super::{
    Stores,
    corrections::{CorrectionSender, Source},
    redis::Worker,
    token_lease::GiveBack,
};
use crate::limit::{Change, Key};

/// Between two rounds.
const EVERY: Duration = Duration::from_millis(100);

/// Between two looks of a gateway that stops, at what is in flight.
const SOON: Duration = Duration::from_millis(2);

/// One worker's part in it. Of all workers, one at a time looks after what is the process's.
pub(super) struct Maintenance {
    worker: Arc<Worker>,
    stores: Arc<Stores>,
    corrections: CorrectionSender,
}

impl Maintenance {
    pub(super) fn new(
        stores: &Arc<Stores>,
        worker: &Arc<Worker>,
        corrections: &CorrectionSender,
    ) -> Self {
        let (worker, stores) = (Arc::clone(worker), Arc::clone(stores));
        Self { worker, stores, corrections: corrections.clone() }
    }

    /// Never returns.
    pub(super) async fn run(self) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut unspent = Vec::new();
        loop {
            ticks.tick().await;
            if let Some(_alone) = self.stores.maintaining.try_lock() {
                let ticks = self.stores.clock.ticks();
                self.stores.leases.sweep(ticks, |key| self.is_live(key), &mut unspent);
                self.give_back(&mut unspent);
                self.charge_outage();
            }
            self.corrections.resume();
        }
    }

    /// Queues everything that is kept here, and waits until what can be sent has been, for `patience` at
    /// the most.
    pub(super) async fn finish(&self, patience: Duration) {
        let over = tokio::time::sleep(patience);
        tokio::pin!(over);
        let mut unspent = Vec::new();
        loop {
            self.stores.leases.drain(&mut unspent);
            self.give_back(&mut unspent);
            self.charge_outage();
            self.corrections.resume();
            if self.stores.leases.is_empty() && !self.stores.corrections.is_busy() {
                return;
            }
            tokio::select! {
                () = &mut over => return,
                () = tokio::time::sleep(SOON) => {}
            }
        }
    }

    fn is_live(&self, key: Key) -> bool {
        self.worker.is_live(self.worker.place(key))
    }

    fn give_back(&self, unspent: &mut Vec<GiveBack>) {
        let refunds =
            unspent.drain(..).map(|GiveBack { limit, key, back }| (limit, key, back.into()));
        self.corrections.push(refunds, Source::Tokens);
    }

    fn charge_outage(&self) {
        let ticks = self.stores.clock.ticks();
        self.stores.outage.take(
            ticks,
            |key| self.is_live(key),
            |sum| {
                let charge = (sum.limit, sum.key, Change::Overdraw { cost: sum.cost });
                self.corrections.push([charge], Source::Outage);
            },
        );
    }
}
