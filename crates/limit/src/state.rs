//! The record of any algorithm, with dispatch to that algorithm.
//!
//! An enum, because a trait object would cost each record a pointer and an allocation. A new
//! algorithm is one variant here and one arm in each function.

use tidegate_base::time::{Millis, StoreTime};

use super::{
    Algorithm, Change, Decision, GcraState, Quota,
    block::{self, BlockState},
    concurrency::{self, ConcurrencyState},
    fixed_window::{self, FixedWindowState},
    leaky_bucket::{self, LeakyBucketState},
    sliding_log::{self, SlidingLogState},
    sliding_window::{self, SlidingWindowState},
    token_bucket,
};

/// The record of one caller under one limit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum AlgorithmState {
    /// See [`SlidingWindowState`].
    SlidingWindow(SlidingWindowState),
    /// See [`SlidingLogState`]; boxed, so that it does not make the other records larger.
    SlidingLog(Box<SlidingLogState>),
    /// See [`FixedWindowState`].
    FixedWindow(FixedWindowState),
    /// See [`token_bucket`].
    TokenBucket(GcraState),
    /// See [`LeakyBucketState`].
    LeakyBucket(LeakyBucketState),
    /// See [`ConcurrencyState`].
    Concurrency(ConcurrencyState),
    /// See [`BlockState`].
    Block(BlockState),
}

impl AlgorithmState {
    /// The record of a new caller.
    pub fn fresh(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::SlidingWindow { .. } => Self::SlidingWindow(SlidingWindowState::default()),
            Algorithm::SlidingLog => Self::SlidingLog(Box::default()),
            Algorithm::FixedWindow | Algorithm::CalendarWindow(_) => {
                Self::FixedWindow(FixedWindowState::default())
            }
            Algorithm::TokenBucket => Self::TokenBucket(GcraState::default()),
            Algorithm::LeakyBucket { .. } => Self::LeakyBucket(LeakyBucketState::default()),
            Algorithm::Concurrency => Self::Concurrency(ConcurrencyState::default()),
            Algorithm::Block { .. } => Self::Block(BlockState::default()),
        }
    }

    /// Decides on a charge of `cost` at `now` without charging it. A cost of 0 is always admitted.
    ///
    /// Changes the record only if the clock was set back.
    pub fn decide(&mut self, quota: &Quota, now: StoreTime, cost: u64) -> Decision {
        match self {
            Self::SlidingWindow(state) => sliding_window::decide(state, quota, now, cost),
            Self::SlidingLog(state) => sliding_log::decide(state, quota, now, cost),
            Self::FixedWindow(state) => fixed_window::decide(state, quota, now, cost),
            Self::TokenBucket(state) => token_bucket::decide(state, quota, now, cost),
            Self::LeakyBucket(state) => leaky_bucket::decide(state, quota, now, cost),
            Self::Concurrency(state) => concurrency::decide(state, quota, now, cost),
            Self::Block(state) => block::decide(state, quota, now, cost),
        }
    }

    /// Charges without a check, even if that overdraws the quota: for a charge that
    /// [`Self::decide`] has admitted, or for a cost that is only known after the request. Returns
    /// the usage after it.
    pub fn charge(&mut self, quota: &Quota, now: StoreTime, cost: u64) -> Decision {
        match self {
            Self::SlidingWindow(state) => sliding_window::charge(state, quota, now, cost),
            Self::SlidingLog(state) => sliding_log::charge(state, quota, now, cost),
            Self::FixedWindow(state) => fixed_window::charge(state, quota, now, cost),
            Self::TokenBucket(state) => token_bucket::charge(state, quota, now, cost),
            Self::LeakyBucket(state) => leaky_bucket::charge(state, quota, now, cost),
            Self::Concurrency(state) => concurrency::charge(state, quota, now, cost),
            Self::Block(state) => block::charge(state, quota, now),
        }
    }

    /// Charges `cost` if it is admitted: [`Self::decide`] and [`Self::charge`] in one step.
    pub fn admit(&mut self, quota: &Quota, now: StoreTime, cost: u64) -> Decision {
        match self {
            Self::SlidingWindow(state) => sliding_window::admit(state, quota, now, cost),
            Self::SlidingLog(state) => sliding_log::admit(state, quota, now, cost),
            Self::FixedWindow(state) => fixed_window::admit(state, quota, now, cost),
            Self::TokenBucket(state) => token_bucket::admit(state, quota, now, cost),
            Self::LeakyBucket(state) => leaky_bucket::admit(state, quota, now, cost),
            Self::Concurrency(state) => concurrency::admit(state, quota, now, cost),
            Self::Block(state) => block::decide(state, quota, now, cost),
        }
    }

    /// Refunds `cost` units charged at `charged_at` (see [`Change::Refund`]), as far as they still
    /// count. Usage never goes below 0, and `reset_at` stays.
    pub fn refund(
        &mut self,
        quota: &Quota,
        now: StoreTime,
        charged_at: StoreTime,
        cost: u64,
    ) -> Decision {
        match self {
            Self::SlidingWindow(state) => {
                sliding_window::refund(state, quota, now, charged_at, cost)
            }
            Self::SlidingLog(state) => sliding_log::refund(state, quota, now, charged_at, cost),
            Self::FixedWindow(state) => fixed_window::refund(state, quota, now, charged_at, cost),
            Self::TokenBucket(state) => token_bucket::refund(state, quota, now, charged_at, cost),
            Self::LeakyBucket(state) => leaky_bucket::refund(state, quota, now, charged_at, cost),
            Self::Concurrency(state) => concurrency::refund(state, quota, now, charged_at, cost),
            Self::Block(state) => block::charge(state, quota, now),
        }
    }

    /// Refunds `cost` units of charges whose times are not known (see [`Change::Release`]).
    /// `reset_at` stays.
    fn release(&mut self, quota: &Quota, now: StoreTime, cost: u64) -> Decision {
        match self {
            Self::SlidingWindow(state) => sliding_window::release(state, quota, now, cost),
            Self::SlidingLog(state) => sliding_log::release(state, quota, now, cost),
            Self::Concurrency(state) => concurrency::release(state, quota, now, cost),
            // Their records do not depend on when units of the current window were charged.
            Self::FixedWindow(_) | Self::TokenBucket(_) | Self::LeakyBucket(_) | Self::Block(_) => {
                self.refund(quota, now, now, cost)
            }
        }
    }

    /// Changes a charge. Returns the usage after that.
    pub fn adjust(&mut self, quota: &Quota, now: StoreTime, change: Change) -> Decision {
        match change {
            Change::Refund { charged_at, cost } => self.refund(quota, now, charged_at, cost),
            Change::Release { cost } => self.release(quota, now, cost),
            Change::Overdraw { cost } => match self {
                Self::Block(state) => block::count_refusals(state, quota, now, cost),
                Self::Concurrency(state) => concurrency::charge(state, quota, now, cost),
                _ => self.overdraw(quota, now, cost),
            },
        }
    }

    /// Charges `cost`, as far as the debt then stays within its bound.
    fn overdraw(&mut self, quota: &Quota, now: StoreTime, cost: u64) -> Decision {
        let room = quota.max_overdrawn().saturating_sub(self.decide(quota, now, 0).used);
        // The request has ended, so it is not delayed.
        Decision { wait: Millis::ZERO, ..self.charge(quota, now, cost.min(room)) }
    }

    /// The first ms at which the record is equivalent to a new caller's, or a little later.
    pub fn expires_at(&self, quota: &Quota) -> StoreTime {
        match self {
            Self::SlidingWindow(state) => sliding_window::expires_at(state, quota),
            Self::SlidingLog(state) => sliding_log::expires_at(state, quota),
            Self::FixedWindow(state) => fixed_window::expires_at(state),
            Self::TokenBucket(state) => token_bucket::expires_at(state),
            Self::LeakyBucket(state) => leaky_bucket::expires_at(state),
            Self::Concurrency(state) => concurrency::expires_at(state),
            Self::Block(state) => block::expires_at(state),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_no_larger_than_a_sliding_window() {
        assert_eq!(size_of::<AlgorithmState>(), size_of::<SlidingWindowState>());
        assert_eq!(size_of::<AlgorithmState>(), 56);
    }
}
