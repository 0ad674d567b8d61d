//! Brings what was charged in this process to the shared store, when that is back.
//!
//! Each worker has a task for it; one of them at a time works, over its worker's connection and in
//! calls of bounded size. What the store has certainly not heard stays in the
//! journal. What it may have heard is not repeated: a caller then keeps what he used here alone.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;

use super::{
    Stores,
    deny_cache::DenyCache,
    journal::{Caller, Journal},
    record_id::record,
    redis::{Failure, Place, Worker},
};
use crate::{
    clock::Clock,
    limit::{Change, Charge, Millis, Settlement},
};

/// The most corrections in one call: of a caller there are never more.
const BATCH: usize = 64;

/// Places that are told at the same time: of a Cluster, nearly every caller has one of his own.
const PLACES: usize = 16;

/// Until a place that could not be told is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// Waits for something to tell, and tells it. Never returns.
pub(super) async fn run(worker: Arc<Worker>, stores: Arc<Stores>) {
    loop {
        stores.journal.woken().await;
        if let Some(_alone) = stores.journal.begin() {
            let told = merge(&worker, &stores).await;
            if !told {
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

/// When the store was last asked, and the time that it told: at that tick it was no later than that.
#[derive(Clone, Copy)]
struct Asked {
    ticks: u64,
    now: Millis,
}

/// Tells every place that can be asked, several at a time. What belongs to others stays in the journal;
/// false if there is such.
async fn merge(worker: &Worker, stores: &Stores) -> bool {
    let Stores { journal, deny_cache, clock, .. } = stores;
    let can_be_told = |key| worker.is_live(worker.place(key));
    let (mut left, others) = journal.take(clock.ticks(), can_be_told);
    left.sort_by_cached_key(|caller| worker.place(caller.key));
    let (mut telling, mut all) = (Vec::new(), !others);
    // Each place's callers have their guard before the first is told: whoever ends this puts them back.
    while let Some(last) = left.last() {
        let place = worker.place(last.key);
        let elsewhere = left.iter().rposition(|caller| worker.place(caller.key) != place);
        let there = elsewhere.map_or(0, |last| last + 1);
        let pending = Pending { journal, deny_cache, clock, left: left.split_off(there) };
        telling.push(pending.tell_all(worker, place));
    }
    while !telling.is_empty() {
        let some = telling.split_off(telling.len().saturating_sub(PLACES));
        all &= join_all(some).await.into_iter().all(|told| told.is_ok());
    }
    all
}

/// Asks the store for its time.
async fn time(worker: &Worker, of: &Caller, ticks: u64) -> Result<Asked, Failure> {
    let charges = [Charge { limit: &of.limit, key: of.key, cost: 0 }];
    let looked = worker.look(worker.place(of.key), &charges).await?;
    Ok(Asked { ticks, now: looked.now })
}

/// Callers of one place that were taken from the journal; what is left of them goes back.
struct Pending<'a> {
    journal: &'a Journal,
    deny_cache: &'a DenyCache,
    clock: &'a Clock,
    left: Vec<Caller>,
}

impl Pending<'_> {
    /// Tells the place of all.
    async fn tell_all(mut self, worker: &Worker, place: Place) -> Result<(), Failure> {
        let mut asked = None;
        while let Some(last) = self.left.last() {
            let time = match asked {
                Some(asked) => asked,
                None => time(worker, last, self.clock.ticks()).await?,
            };
            asked = Some(self.tell(worker, place, time).await?);
        }
        Ok(())
    }

    /// Tells the place of the next few.
    async fn tell(
        &mut self,
        worker: &Worker,
        place: Place,
        asked: Asked,
    ) -> Result<Asked, Failure> {
        let ticks = self.clock.ticks();
        let now = asked.now + ticks.saturating_sub(asked.ticks);
        let callers = self.next();
        let mut settlements = Vec::with_capacity(BATCH);
        for caller in &callers {
            let late = |(charged_at, cost)| Change::Late { charged_at, cost };
            let changes = caller.told(ticks, now).map(late);
            let (limit, key) = (&*caller.limit, caller.key);
            settlements.extend(changes.map(|change| Settlement { limit, key, change }));
        }
        if settlements.is_empty() {
            self.journal.heard(callers.len());
            return Ok(asked);
        }
        let count = settlements.len();
        let told = worker.settle(place, &settlements).await;
        // Whoever was refused may have to wait for longer now.
        if !matches!(told, Err(Failure::Open)) {
            for Settlement { limit, key, .. } in &settlements {
                self.deny_cache.invalidate(record(limit, *key), self.clock.ticks());
            }
        }
        match told {
            Ok(verdict) => {
                self.journal.count(count, true);
                self.journal.heard(callers.len());
                Ok(Asked { ticks, now: verdict.now })
            }
            Err(failure) => {
                self.fail(callers, failure);
                Err(failure)
            }
        }
    }

    /// What was certainly not executed is kept, where Redis said so once: a record that it always refuses
    /// must not keep the others. What may have been is not repeated.
    fn fail(&mut self, callers: Vec<Caller>, failure: Failure) {
        for mut caller in callers {
            let again = failure == Failure::Server && !std::mem::replace(&mut caller.tried, true);
            if failure == Failure::Open || again {
                self.left.push(caller);
            } else {
                self.journal.count(caller.len(), false);
                self.journal.heard(1);
            }
        }
    }

    /// As many callers as one call may tell of.
    fn next(&mut self) -> Vec<Caller> {
        let mut room = BATCH;
        let fits = self.left.iter().rev().take_while(|caller| {
            let fits = caller.len() <= room;
            room = room.saturating_sub(caller.len());
            fits
        });
        let count = fits.count().max(1);
        self.left.split_off(self.left.len().saturating_sub(count))
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.journal.put_back(self.left.drain(..), self.clock.ticks());
    }
}
