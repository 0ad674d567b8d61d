//! Token leases: one call to the store brings tokens for many requests, which are then decided here.
//!
//! Rockset's batched reservations ("How We Improved the Concurrency and Scalability of Our Redis Rate
//! Limiting System"). Everything here is pure: no I/O, no waiting, and time is a parameter, in ticks: ms
//! of a monotonic clock of this process ([`crate::clock::Clock::ticks`]). The caller of
//! [`LeaseRegistry::join`] asks the store for [`Fetch::order`] and brings the reply.
//!
//! What always holds, of each caller: what was charged at the store for this gateway is spent, kept
//! here, given back, forgotten by the operator, or lost with a call whose outcome is unknown; never two
//! of them. And tokens are spent only inside the sub-window that they were charged to, so every bound of
//! the algorithms holds as if each request had asked the store.
//!
//! The leases of a registry are spread over shards, each behind one plain mutex; nothing is kept
//! outside of it. A decision holds it for tens of nanoseconds (`cargo bench --bench reservations`).

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
    lease::{IDLE, RETIRE},
    registry::{GiveBack, LeaseKey, LeaseRegistry, MAX_LEASES, Numbers},
    single_flight::{Fetch, Joined},
    snapshot::{LeaseSnapshot, Taken},
    waiter::{Reply, Waiter, WaiterOutcome},
};
