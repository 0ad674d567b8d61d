//! [`SeatDesk`]: takes places for the users whose turn it is. Workers send it their claims; it asks
//! the shared state, or this gateway's own if that cannot be reached.

use std::sync::Arc;

use tidegate_base::time::StoreTime;
use tokio::sync::oneshot;

use super::{RoomStore, WaitingRoom, state::Seat};

/// Maximum number of claims that wait for an answer. Users with further ones are asked to come
/// back.
pub const MAX_CLAIMS: usize = 1_024;

/// Maximum number of claims in one call.
const MAX_BATCH: usize = 128;

/// A user that asks for a place.
#[derive(Debug)]
pub struct SeatClaim {
    /// The keyed hash of its token.
    pub(super) holder: u64,
    /// The time by the filters' clock.
    pub(super) now: StoreTime,
    pub(super) answer: oneshot::Sender<Seat>,
}

/// Takes places for the users of one process.
pub struct SeatDesk<S> {
    room: Arc<WaitingRoom>,
    /// `None` if this gateway is alone.
    store: Option<S>,
}

impl<S: RoomStore> SeatDesk<S> {
    /// The desk of `room`; `store` has the state that gateways share.
    pub fn new(room: Arc<WaitingRoom>, store: Option<S>) -> Self {
        Self { room, store }
    }

    /// Answers the claims of workers. A second desk of a room gets none.
    pub(crate) async fn serve(mut self) {
        let Some(mut claims) = self.room.unserved.lock().take() else { return };
        let mut batch = Vec::new();
        while claims.recv_many(&mut batch, MAX_BATCH).await > 0 {
            let holders: Vec<u64> = batch.iter().map(|claim| claim.holder).collect();
            let now = batch.iter().map(|claim| claim.now).max().unwrap_or_default();
            let seats = self.claim(&holders, now).await;
            for (claim, seat) in batch.drain(..).zip(seats) {
                // The client may have left: its place is free again after some seconds.
                let _ = claim.answer.send(seat);
            }
        }
    }

    /// Asks for a place for each of the `holders` at `now`, by the filters' clock. Without the
    /// shared state, none gets one until the next exchange finds that it is lost.
    pub async fn claim(&mut self, holders: &[u64], now: StoreTime) -> Vec<Seat> {
        match &mut self.store {
            Some(store) if self.room.view().is_shared => {
                self.room.stats.calls.add(1);
                store.claim(self.room.settings.epoch_length(), holders).await.unwrap_or_else(
                    |failure| {
                        self.room.stats.count_failure(failure);
                        vec![Seat::None; holders.len()]
                    },
                )
            }
            _ => self.room.own.lock().claim(holders, now),
        }
    }
}
