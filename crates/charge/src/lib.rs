//! What is charged to a limit: a limit with its name and policy, a charge for one caller, and what
//! came of it.
//!
//! It has no state and decides nothing: `tidegate-limit` decides with a [`Quota`], and a store
//! keeps the records. The parts that charge (the store, Redis, the rules, the gateway) share these
//! types, and need not know each other.
//!
//! | file | content |
//! |---|---|
//! | `lib` | [`Charge`], [`Adjustment`], [`Acquisition`]: what a store is asked |
//! | `limit` | [`Limit`]: a quota with its identity, cost, and what is done when Redis fails |
//! | `identity` | [`LimitIdentity`]: distinguishes a limit's records |
//! | `verdict` | [`Verdict`]: the decisions of all limits of one request |
//!
//! ```
//! use std::sync::Arc;
//!
//! use tidegate_charge::{Charge, Key, Limit, LimitIdentity};
//! use tidegate_limit::{Millis, Quota};
//!
//! let identity = LimitIdentity::new("per-caller", 1);
//! let limit = Arc::new(Limit::new(identity, Quota::sliding(100, Millis::from_secs(60), 6)));
//! let charge = Charge { limit: &limit, key: Key(42), cost: 1 };
//! assert_eq!(charge.limit.name(), "per-caller");
//! ```

mod identity;
mod limit;
mod verdict;

use std::sync::Arc;

pub use identity::LimitIdentity;
pub use limit::{LeaseSize, Limit};
pub use tidegate_vocabulary::OnFailure;
pub use verdict::{BlockEffect, DecisionSource, Outcome, StoreDecision, Verdict};

#[cfg(doc)]
use tidegate_limit::Quota;
use tidegate_limit::{Change, UnitDemand};

/// The caller that a limit counts: a keyed 128-bit hash of the limit's key parts, never the parts
/// themselves.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Key(pub u128);

/// A request's charge to one limit for one caller.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// The limit to charge.
    pub limit: &'a Arc<Limit>,
    /// The caller to charge.
    pub key: Key,
    /// The cost in the quota's units. A cost of 0 is always admitted and charges nothing.
    pub cost: u64,
}

/// A correction of an earlier charge: see [`Change`].
#[derive(Clone, Copy, Debug)]
pub struct Adjustment<'a> {
    /// The limit that was charged.
    pub limit: &'a Arc<Limit>,
    /// The caller that was charged.
    pub key: Key,
    /// What to change.
    pub change: Change,
}

/// A gateway's request for a batch of units of one limit and one caller.
#[derive(Clone, Copy, Debug)]
pub struct Acquisition<'a> {
    /// The limit to charge.
    pub limit: &'a Limit,
    /// The caller to charge.
    pub key: Key,
    /// The requested batch.
    pub demand: UnitDemand,
}
