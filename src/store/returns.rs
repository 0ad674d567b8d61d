//! Tokens that were not spent go back to the store: when their sub-window has ended, when nobody has used
//! them for a while, and when the gateway stops.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::{
    Failure, Stores,
    record_id::record,
    redis::{Place, Worker},
    token_lease::GiveBack,
};
use crate::limit::Settlement;

/// Between two looks.
const EVERY: Duration = Duration::from_millis(100);

/// Between two looks of a gateway that leaves, at fetches in flight.
const SOON: Duration = Duration::from_millis(2);

/// Calls at the same time: of a Cluster, nearly every caller has a place of his own.
const AT_ONCE: usize = 16;

/// The most that one call gives back.
const BATCH: usize = 64;

/// Looks after the tokens of the process. Each worker has a task for it; one at a time looks. Never
/// returns.
pub(super) async fn run(worker: Arc<Worker>, stores: Arc<Stores>) {
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut unspent = Vec::new();
    loop {
        ticks.tick().await;
        // Held until they have arrived: whoever leaves waits for them.
        if let Ok(_alone) = stores.returning.try_lock() {
            let can_tell = |key| worker.is_live(worker.place(key));
            stores.tokens.sweep(stores.clock.ticks(), can_tell, &mut unspent);
            give_back(&worker, &stores, &mut unspent).await;
        }
    }
}

/// Gives everything back that is kept here, and what fetches in flight bring, if they are over within
/// `patience`.
pub(super) async fn all(worker: &Worker, stores: &Stores, patience: Duration) {
    let over = tokio::time::sleep(patience);
    tokio::pin!(over);
    let mut unspent = Vec::new();
    loop {
        {
            let _alone = stores.returning.lock().await;
            stores.tokens.drain(&mut unspent);
            give_back(worker, stores, &mut unspent).await;
        }
        if stores.tokens.is_empty() {
            return;
        }
        tokio::select! {
            () = &mut over => return,
            () = tokio::time::sleep(SOON) => {}
        }
    }
}

/// Tells the store, in calls of bounded size, and empties `unspent`. What was certainly not sent is kept;
/// of what may have arrived, or was refused, nobody knows: it is lost, and counts as spent until its
/// window has passed.
async fn give_back(worker: &Worker, stores: &Stores, unspent: &mut Vec<GiveBack>) {
    let place = |back: GiveBack| (worker.place(back.key), back);
    let mut placed: Vec<(Place, GiveBack)> = unspent.drain(..).map(place).collect();
    placed.sort_by_key(|(place, _)| *place);
    let mut telling = Vec::new();
    for here in placed.chunk_by(|(one, _), (other, _)| one == other) {
        for batch in here.chunks(BATCH) {
            telling.push(tell(worker, stores, batch));
            if telling.len() == AT_ONCE {
                join_all(telling.drain(..)).await;
            }
        }
    }
    join_all(telling).await;
}

/// Tells one place.
async fn tell(worker: &Worker, stores: &Stores, batch: &[(Place, GiveBack)]) {
    let Some((place, _)) = batch.first() else { return };
    let settlements: SmallVec<[Settlement<'_>; 8]> = batch
        .iter()
        .map(|(_, GiveBack { limit, key, back })| Settlement {
            limit,
            key: *key,
            change: (*back).into(),
        })
        .collect();
    match worker.settle(*place, &settlements).await {
        Ok(_) => {}
        Err(Failure::Open) => {
            for (_, unspent) in batch {
                stores.tokens.keep(unspent, stores.clock.ticks());
            }
            return;
        }
        Err(failure) => {
            tracing::debug!(failure = failure.label(), "unspent tokens were not given back");
            for (_, unspent) in batch {
                stores.tokens.lose(unspent);
            }
        }
    }
    // There is more at the store than it said when it refused.
    for (_, GiveBack { limit, key, .. }) in batch {
        stores.refusals.forgive(record(limit, *key), stores.clock.ticks());
    }
}
