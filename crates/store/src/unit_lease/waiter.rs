//! The messages between a lease, the requests that wait for it, and the store.

use tidegate_base::time::{MonotonicTime, StoreTime};
use tidegate_limit::{Decision, Grant};
use tidegate_redis::RedisFailure;

use super::snapshot::LeaseCharge;

/// A request that waits for units.
pub trait LeaseWaiter: Send + 'static {
    /// The request's cost, in units; at least 1.
    fn cost(&self) -> u64;

    /// Delivers the outcome. Called once, under the registry's lock, so it must not call the
    /// registry. Returns false if the request was cancelled, so that no unit is spent.
    fn serve(self, outcome: WaiterOutcome) -> bool;
}

/// The outcome of waiting.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WaiterOutcome {
    /// The request's cost was taken.
    Granted(LeaseCharge),
    /// The store refused the request's cost.
    Refused {
        /// The store's decision on this cost.
        decision: Decision,
        /// The time of the decision, by the store's clock.
        decided_at: StoreTime,
    },
    /// The store refused a smaller cost, so the refusal's times do not apply. The request has to
    /// call the store itself.
    CallStore,
    /// The store gave no decision; `None` if the fetch was abandoned.
    Failed(Option<RedisFailure>),
}

/// The store's reply to a fetch.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FetchReply {
    /// The units that were charged, and the decision.
    pub grant: Grant,
    /// The time of the decision, by the store's clock.
    pub decided_at: StoreTime,
    /// The monotonic time at which the call was sent, or earlier.
    pub sent: MonotonicTime,
    /// The monotonic time at which the reply was received, or later.
    pub received: MonotonicTime,
}

impl FetchReply {
    /// The reply with `units` as remaining, which the store counts as used: this gateway holds them
    /// under other quotas.
    pub(super) fn with_own_units(&self, units: u64) -> Self {
        let mut reply = *self;
        let decision = &mut reply.grant.decision;
        decision.remaining += units;
        decision.used = decision.used.saturating_sub(units);
        reply
    }
}
