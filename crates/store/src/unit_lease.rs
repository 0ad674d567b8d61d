//! Leases: one call to the store charges units for many requests, which this process then decides.
//!
//! The design follows Rockset's batched reservations ("How We Improved the Concurrency and
//! Scalability of Our Redis Rate Limiting System"). Everything here is pure: no I/O, no waiting,
//! and time is a parameter, by this process's monotonic clock
//! ([`tidegate_system::clock::Clock::monotonic`]). Where [`LeaseRegistry::join`] returns a
//! [`LeaseFetch`], its caller asks the store for [`LeaseFetch::demand`] and completes it with the
//! reply.
//!
//! Invariants, for each key and quota: every unit that was charged at the store for this gateway is
//! exactly one of spent, held here, returned, discarded by an operator's reset, or lost with a call
//! whose outcome is unknown. Units are spent only inside the sub-window to which they were charged,
//! so every bound of the algorithms holds as if each request had called the store.
//!
//! The leases of a registry are striped over mutexes, which guard all state. A decision holds
//! one mutex for tens of nanoseconds (`cargo bench --bench reservations`).
//!
//! | file | content |
//! |---|---|
//! | `registry` | all leases: lookup, capacity, the sweep of unused ones |
//! | `lease` | the units, the queue and the fetch of one key under one quota |
//! | `wait_queue`, `waiter` | the requests that wait for a fetch |
//! | `single_flight` | one fetch at a time for each lease |
//! | `chunk_sizer` | the number of units that a fetch asks for |
//! | `snapshot` | the store's last reply, for response headers |
//!
//! ```
//! use std::sync::Arc;
//!
//! use tidegate_charge::{Key, LeaseSize, Limit, LimitIdentity};
//! use tidegate_limit::{Millis, Algorithm, Decision, Grant, Quota, ms};
//! use tidegate_store::unit_lease::{FetchReply, JoinOutcome, LeaseRegistry, LeaseWaiter, WaiterOutcome};
//! use tidegate_system::clock::{MonotonicTime, StoreTime};
//!
//! struct Request;
//! impl LeaseWaiter for Request {
//!     fn cost(&self) -> u64 {
//!         1
//!     }
//!     fn serve(self, outcome: WaiterOutcome) -> bool {
//!         matches!(outcome, WaiterOutcome::Granted(_))
//!     }
//! }
//!
//! let quota = Quota::new(100, Millis::from_secs(1), Algorithm::FixedWindow);
//! let limit = Limit::new(LimitIdentity::new("example", 1), quota);
//! let limit = Arc::new(Limit { lease_size: LeaseSize::Units(9), ..limit });
//! let registry = Arc::new(LeaseRegistry::default());
//! let sent = MonotonicTime::from_ms(1);
//! assert!(registry.take(&limit, Key(7), 1, sent).is_none());
//! let JoinOutcome::Fetch(fetch) = registry.join(&limit, Key(7), Request, sent) else { panic!() };
//! assert_eq!((fetch.demand().needed, fetch.demand().extra), (1, 9));
//!
//! // The store charges 10 units, to be spent before its window ends.
//! let decided_at = StoreTime::from_unix_ms(1_700_000_000_000);
//! let reset_at = decided_at + Millis::from_secs(1);
//! let decision = Decision {
//!     admitted: true,
//!     limit: 100,
//!     remaining: 90,
//!     used: 10,
//!     reset_at,
//!     retry_at: None,
//!     wait: Millis::ZERO,
//! };
//! let grant = Grant { units: 10, spendable_until: reset_at, decision };
//! let reply = FetchReply { grant, decided_at, sent, received: sent + ms(1) };
//! assert!(fetch.complete(&reply).is_none());
//!
//! let charge = registry.take(&limit, Key(7), 1, sent + ms(2)).expect("9 units are left");
//! assert_eq!(charge.remaining, 98);
//! ```

mod chunk_sizer;
mod lease;
mod registry;
mod single_flight;
mod snapshot;
mod sync;
mod wait_queue;
mod waiter;

#[cfg(test)]
mod tests;

pub use self::{
    lease::{IDLE_TIMEOUT, REMOVAL_TIMEOUT},
    registry::{LeaseKey, LeaseRegistry, LeaseStats, MAX_LEASES, UnspentUnits},
    single_flight::{JoinOutcome, LeaseFetch},
    snapshot::{LeaseCharge, LeaseSnapshot},
    waiter::{FetchReply, LeaseWaiter, WaiterOutcome},
};
