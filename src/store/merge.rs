//! Brings what was charged in this process to the shared store, when that is back.
//!
//! Each worker has a task for it; one of them at a time works, over its worker's connection and in
//! calls of bounded size, one after the other. What the store has certainly not heard stays in the
//! journal. What it may have heard is not repeated: a caller then keeps what he used here alone.

use std::sync::Arc;

use super::{
    Stores,
    journal::{Caller, Journal},
    redis::{Failure, Worker},
};
use crate::{
    clock::Clock,
    limit::{Change, Charge, Millis, Settlement},
};

/// The most corrections in one call: of a caller there are never more.
const BATCH: usize = 64;

/// Waits for something to tell, and tells it. Never returns.
pub(super) async fn run(worker: Arc<Worker>, stores: Arc<Stores>) {
    loop {
        stores.journal.woken().await;
        if !worker.is_live() {
            continue;
        }
        if let Some(_alone) = stores.journal.begin() {
            // Its worker has noted the failure, and the journal has what is left.
            let _ = merge(&worker, &stores.journal, &stores.clock).await;
        }
    }
}

/// When the store was last asked, and the time that it told: at that tick it was no later than that.
#[derive(Clone, Copy)]
struct Asked {
    ticks: u64,
    now: Millis,
}

async fn merge(worker: &Worker, journal: &Journal, clock: &Clock) -> Result<(), Failure> {
    let mut asked = None;
    loop {
        let left = journal.drain(clock.ticks());
        if left.is_empty() {
            return Ok(());
        }
        let mut pending = Pending { journal, clock, left };
        while let Some(first) = pending.left.first() {
            let time = match asked {
                Some(asked) => asked,
                None => time(worker, first, clock.ticks()).await?,
            };
            asked = Some(pending.tell(worker, time).await?);
        }
    }
}

/// Asks the store for its time.
async fn time(worker: &Worker, of: &Caller, ticks: u64) -> Result<Asked, Failure> {
    let looked = worker.look(&[Charge { limit: &of.limit, key: of.key, cost: 0 }]).await?;
    Ok(Asked { ticks, now: looked.now })
}

/// Callers that were taken from the journal; what is left of them goes back.
struct Pending<'a> {
    journal: &'a Journal,
    clock: &'a Clock,
    left: Vec<Caller>,
}

impl Pending<'_> {
    /// Tells the store of the next few.
    async fn tell(&mut self, worker: &Worker, asked: Asked) -> Result<Asked, Failure> {
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
            return Ok(asked);
        }
        let count = settlements.len();
        match worker.settle(&settlements).await {
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
        self.journal.put_back(std::mem::take(&mut self.left), self.clock.ticks());
    }
}
