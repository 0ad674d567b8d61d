//! Tokens taken ahead: most requests are decided here, and the store is asked once for many.
//!
//! Rockset's batched reservations ("How We Improved the Concurrency and Scalability of Our Redis Rate
//! Limiting System"), without a lock on the fast path. Everything here is pure: no I/O, no waiting, and
//! time is a parameter, in ticks: ms of a monotonic clock of this process
//! ([`crate::clock::Clock::ticks`]). Whoever drives it asks the store for [`Fetching::order`] and brings
//! the reply.
//!
//! What always holds, of each caller: what was charged at the store for this gateway is spent, kept
//! here, given back, forgotten by the operator, or lost with a call whose outcome is unknown; never two
//! of them. And tokens are spent only inside the sub-window that they were charged to, so every bound of
//! the algorithms holds as if each request had asked the store.

pub mod atomics;
mod book;
mod desk;
mod entry;
mod fetching;
mod line;
pub mod pace;
pub mod told;
pub mod word;

#[cfg(test)]
mod tests;

pub use self::{
    book::{Book, GiveBack, MAX_ENTRIES, Name, Numbers},
    desk::{Desk, SLOTS},
    entry::{Entry, IDLE, Joined, RETIRE},
    fetching::Fetching,
    told::{Taken, Told},
};
use super::Failure;
use crate::limit::{Decision, Grant, Millis};

/// Somebody who waits for tokens.
pub trait Waiter: Send + 'static {
    /// What the request costs, in tokens; at least 1.
    fn cost(&self) -> u32;

    /// Tells what came of it; called once, under the entry's lock, so it must not come back to it.
    /// Returns false if nobody listens any more: then no token is spent.
    fn serve(self, outcome: Outcome) -> bool;
}

/// What came of standing in line.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// Its cost was taken.
    Granted(Taken),
    /// The store has not as much left.
    Refused {
        /// As the store decided on this cost.
        decision: Decision,
        /// When it did, by its clock.
        now: Millis,
    },
    /// The store was asked for less than this request costs, and had not even that: it has to ask by
    /// itself.
    Ask,
    /// The store gave no answer; `None` if the fetch was given up.
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
