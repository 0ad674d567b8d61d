//! The record of any algorithm, and the dispatch to the one that understands it.
//!
//! A trait for the contract would cost a pointer and an allocation a record; an enum costs neither.
//! A new algorithm is one variant here and one arm in each function.

use super::{
    Algorithm, Change, Decision, Horizon, Millis, Quota, concurrency, fixed_window, leaky_bucket,
    sliding_log, sliding_window, token_bucket,
};

/// What is remembered of one caller under one limit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum State {
    /// See [`sliding_window::State`].
    SlidingWindow(sliding_window::State),
    /// See [`sliding_log::State`]; apart, so that no other record grows by it.
    SlidingLog(Box<sliding_log::State>),
    /// See [`fixed_window::State`].
    FixedWindow(fixed_window::State),
    /// See [`token_bucket`].
    TokenBucket(Horizon),
    /// See [`leaky_bucket::State`].
    LeakyBucket(leaky_bucket::State),
    /// See [`concurrency::State`].
    Concurrency(concurrency::State),
}

impl State {
    /// A caller never seen.
    pub fn fresh(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::SlidingWindow => Self::SlidingWindow(sliding_window::State::default()),
            Algorithm::SlidingLog => Self::SlidingLog(Box::default()),
            Algorithm::FixedWindow => Self::FixedWindow(fixed_window::State::default()),
            Algorithm::TokenBucket => Self::TokenBucket(Horizon::default()),
            Algorithm::LeakyBucket => Self::LeakyBucket(leaky_bucket::State::default()),
            Algorithm::Concurrency => Self::Concurrency(concurrency::State::default()),
        }
    }

    /// What a charge of `cost` at `now` would meet; charges nothing. A cost of 0 only looks.
    pub fn decide(&mut self, quota: &Quota, now: Millis, cost: u32) -> Decision {
        match self {
            Self::SlidingWindow(state) => sliding_window::decide(state, quota, now, cost),
            Self::SlidingLog(state) => sliding_log::decide(state, quota, now, cost),
            Self::FixedWindow(state) => fixed_window::decide(state, quota, now, cost),
            Self::TokenBucket(state) => token_bucket::decide(state, quota, now, cost),
            Self::LeakyBucket(state) => leaky_bucket::decide(state, quota, now, cost),
            Self::Concurrency(state) => concurrency::decide(state, quota, now, cost),
        }
    }

    /// Charges without asking, and tells what holds after it: after [`Self::decide`] has admitted it,
    /// or to settle what a request turned out to cost, though that overdraws the quota.
    pub fn charge(&mut self, quota: &Quota, now: Millis, cost: u32) -> Decision {
        match self {
            Self::SlidingWindow(state) => sliding_window::charge(state, quota, now, cost),
            Self::SlidingLog(state) => sliding_log::charge(state, quota, now, cost),
            Self::FixedWindow(state) => fixed_window::charge(state, quota, now, cost),
            Self::TokenBucket(state) => token_bucket::charge(state, quota, now, cost),
            Self::LeakyBucket(state) => leaky_bucket::charge(state, quota, now, cost),
            Self::Concurrency(state) => concurrency::charge(state, quota, now, cost),
        }
    }

    /// Charges if it is admitted: both of the above from one reading.
    pub fn admit(&mut self, quota: &Quota, now: Millis, cost: u32) -> Decision {
        match self {
            Self::SlidingWindow(state) => sliding_window::admit(state, quota, now, cost),
            Self::SlidingLog(state) => sliding_log::admit(state, quota, now, cost),
            Self::FixedWindow(state) => fixed_window::admit(state, quota, now, cost),
            Self::TokenBucket(state) => token_bucket::admit(state, quota, now, cost),
            Self::LeakyBucket(state) => leaky_bucket::admit(state, quota, now, cost),
            Self::Concurrency(state) => concurrency::admit(state, quota, now, cost),
        }
    }

    /// Gives back `cost` units charged at `charged_at`, as far as they still count. Never below
    /// nothing, and the reset-at stays where it is.
    pub fn refund(
        &mut self,
        quota: &Quota,
        now: Millis,
        charged_at: Millis,
        cost: u32,
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
        }
    }

    /// Corrects what was charged, and tells what holds after it.
    pub fn settle(&mut self, quota: &Quota, now: Millis, change: Change) -> Decision {
        match change {
            Change::Refund { charged_at, cost } => self.refund(quota, now, charged_at, cost),
            // The request is over: nothing waits any more.
            Change::Overdraw { cost } => Decision { wait: 0, ..self.charge(quota, now, cost) },
        }
    }

    /// When the record means nothing any more.
    pub fn expires_at(&self, quota: &Quota) -> Millis {
        match self {
            Self::SlidingWindow(state) => sliding_window::expires_at(state, quota),
            Self::SlidingLog(state) => sliding_log::expires_at(state, quota),
            Self::FixedWindow(state) => fixed_window::expires_at(state),
            Self::TokenBucket(state) => token_bucket::expires_at(state),
            Self::LeakyBucket(state) => leaky_bucket::expires_at(state),
            Self::Concurrency(state) => concurrency::expires_at(state),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_algorithm_makes_the_records_of_another_longer() {
        assert_eq!(size_of::<State>(), size_of::<sliding_window::State>());
        assert_eq!(size_of::<State>(), 56);
    }
}
