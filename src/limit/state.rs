//! The record of any algorithm, and the dispatch to the one that understands it.
//!
//! A trait for the contract would cost a pointer and an allocation a record; an enum costs neither.
//! A new algorithm is one variant here and one arm in each function.

use super::{Algorithm, Decision, Millis, Quota, sliding_window};

/// What is remembered of one caller under one limit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum State {
    /// See [`sliding_window::State`].
    SlidingWindow(sliding_window::State),
}

impl State {
    /// A caller never seen.
    pub fn fresh(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::SlidingWindow => Self::SlidingWindow(sliding_window::State::default()),
        }
    }

    /// What a charge of `cost` at `now` would meet; charges nothing. A cost of 0 only looks.
    pub fn decide(&mut self, quota: &Quota, now: Millis, cost: u32) -> Decision {
        match self {
            Self::SlidingWindow(state) => sliding_window::decide(state, quota, now, cost),
        }
    }

    /// Charges what [`Self::decide`] admitted, and tells what holds after it.
    pub fn charge(&mut self, quota: &Quota, now: Millis, cost: u32) -> Decision {
        match self {
            Self::SlidingWindow(state) => sliding_window::charge(state, quota, now, cost),
        }
    }

    /// Charges if it is admitted: both of the above from one reading.
    pub fn admit(&mut self, quota: &Quota, now: Millis, cost: u32) -> Decision {
        match self {
            Self::SlidingWindow(state) => sliding_window::admit(state, quota, now, cost),
        }
    }

    /// When the record means nothing any more.
    pub fn expires_at(&self, quota: &Quota) -> Millis {
        match self {
            Self::SlidingWindow(state) => sliding_window::expires_at(state, quota),
        }
    }

    /// What was used in all, in units of cost, however old: for comparing records, not for deciding.
    pub fn weight(&self) -> u64 {
        match self {
            Self::SlidingWindow(state) => state.counts.iter().map(|&count| u64::from(count)).sum(),
        }
    }
}
