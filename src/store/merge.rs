//! Brings what was charged in this process to the shared store, when that is back.
//!
//! Each worker has a task for it; one of them at a time works, over its worker's connection and in
//! calls of bounded size, one after the other. What the store has certainly not heard stays in the
//! journal. What it may have heard is not repeated: a caller then keeps what he used here alone.

use std::{sync::Arc, time::Duration};

use super::{
    Stores,
    journal::{Caller, Journal},
    redis::{Failure, Place, Worker},
};
use crate::{
    clock::Clock,
    limit::{Change, Charge, Millis, Settlement},
};

/// The most corrections in one call: of a caller there are never more.
const BATCH: usize = 64;

/// Until a place that could not be told is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// Waits for something to tell, and tells it. Never returns.
pub(super) async fn run(worker: Arc<Worker>, stores: Arc<Stores>) {
    loop {
        stores.journal.woken().await;
        if let Some(_alone) = stores.journal.begin() {
            let told = merge(&worker, &stores.journal, &stores.clock).await;
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

/// Tells every place that can be asked. What belongs to others waits in the journal; false if there is
/// such.
async fn merge(worker: &Worker, journal: &Journal, clock: &Clock) -> bool {
    let mut left = journal.drain(clock.ticks());
    left.sort_by_key(|caller| worker.place(caller.key));
    let mut pending = Pending { journal, clock, left, kept: Vec::new() };
    while let Some(last) = pending.left.last() {
        let place = worker.place(last.key);
        if !worker.is_live(place) || pending.tell_all(worker, place).await.is_err() {
            pending.keep(worker, place);
        }
    }
    pending.kept.is_empty()
}

/// Asks the store for its time.
async fn time(worker: &Worker, of: &Caller, ticks: u64) -> Result<Asked, Failure> {
    let charges = [Charge { limit: &of.limit, key: of.key, cost: 0 }];
    let looked = worker.look(worker.place(of.key), &charges).await?;
    Ok(Asked { ticks, now: looked.now })
}

/// Callers that were taken from the journal; what is left of them goes back.
struct Pending<'a> {
    journal: &'a Journal,
    clock: &'a Clock,
    left: Vec<Caller>,
    /// Those whose places cannot be asked now.
    kept: Vec<Caller>,
}

impl Pending<'_> {
    /// Tells the place of all of its callers, who are the last.
    async fn tell_all(&mut self, worker: &Worker, place: Place) -> Result<(), Failure> {
        let mut asked = None;
        while let Some(last) = self.left.last().filter(|last| worker.place(last.key) == place) {
            self.journal.telling(self.left.len() + self.kept.len());
            let time = match asked {
                Some(asked) => asked,
                None => time(worker, last, self.clock.ticks()).await?,
            };
            asked = Some(self.tell(worker, place, time).await?);
        }
        Ok(())
    }

    /// Leaves the callers of a place for later.
    fn keep(&mut self, worker: &Worker, place: Place) {
        let there = self.left.partition_point(|caller| worker.place(caller.key) < place);
        self.kept.extend(self.left.drain(there..));
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
        let callers = self.next(worker, place);
        let mut settlements = Vec::with_capacity(BATCH);
        for caller in &callers {
            let late = |(charged_at, cost)| Change::Late { charged_at, cost };
            let changes = caller.told(ticks, now).map(late);
            let (limit, key) = (&*caller.limit, caller.key);
            settlements.extend(changes.map(|change| Settlement { limit, key, change }));
        }
        if settlements.is_empty() {
            return Ok(asked);
        }
        let count = settlements.len();
        match worker.settle(place, &settlements).await {
            Ok(verdict) => {
                self.journal.count(count, true);
                Ok(Asked { ticks, now: verdict.now })
            }
            Err(Failure::Open) => {
                // It was not asked.
                self.left.extend(callers);
                Err(Failure::Open)
            }
            Err(failure) => {
                self.journal.count(count, false);
                Err(failure)
            }
        }
    }

    /// As many callers as one call may tell of.
    fn next(&mut self, worker: &Worker, place: Place) -> Vec<Caller> {
        let mut room = BATCH;
        let fits = self.left.iter().rev().take_while(|caller| {
            let fits = caller.len() <= room && worker.place(caller.key) == place;
            room = room.saturating_sub(caller.len());
            fits
        });
        let count = fits.count().max(1);
        self.left.split_off(self.left.len().saturating_sub(count))
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.left.append(&mut self.kept);
        self.journal.put_back(std::mem::take(&mut self.left), self.clock.ticks());
        self.journal.telling(0);
    }
}
