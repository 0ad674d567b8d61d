//! What a lease exchanges with the requests that wait for it, and with the store.

use super::snapshot::Taken;
use crate::{
    limit::{Decision, Grant, Millis},
    store::Failure,
};

/// A request that waits for tokens.
pub trait Waiter: Send + 'static {
    /// What the request costs, in tokens; at least 1.
    fn cost(&self) -> u32;

    /// Delivers the outcome. Called once, under the registry's lock, so it must not call the registry.
    /// Returns false if the request is gone: then no token is spent.
    fn serve(self, outcome: WaiterOutcome) -> bool;
}

/// What came of waiting.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WaiterOutcome {
    /// Its cost was taken.
    Granted(Taken),
    /// The store has not as much left.
    Refused {
        /// As the store decided on this cost.
        decision: Decision,
        /// When it did, by its clock.
        now: Millis,
    },
    /// The store was asked for less than this request costs, and had not even that: the request has to
    /// ask the store itself.
    Ask,
    /// The store gave no answer; `None` if the fetch was abandoned.
    Failed(Option<Failure>),
}

/// The store's answer to an order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Reply {
    /// What it granted.
    pub grant: Grant,
    /// When it decided, by its clock.
    pub now: Millis,
    /// The tick at which the order was sent, or earlier.
    pub sent: u64,
    /// The tick at which the reply had come, or later.
    pub received: u64,
}
