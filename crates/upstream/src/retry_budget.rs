//! The retry budget: bounds the load that retries add to failing upstreams, and delays retries.
//!
//! If each request of a failing upstream were retried, the retries would double its load and keep
//! it failing (a retry storm). A token bucket bounds them, as Finagle's `RetryBudget` and Envoy's
//! `retry_budget` do: each request adds a fifth of a retry, and each second adds ten. In any
//! interval, the retries are at most a fifth of the requests, plus ten a second, plus the bucket's
//! capacity.

use tidegate_base::time::{CoarseTime, Millis};

/// The bucket's units for one retry.
const RETRY: u64 = 1_000;
/// Units that a request adds: 20 % of a retry.
const PER_REQUEST: u64 = 200;
/// Units that a millisecond adds: ten retries a second.
const PER_MILLISECOND: u64 = 10;
/// The capacity: ten seconds' worth of retries.
const CAPACITY: u64 = 100 * RETRY;
/// The units of a new budget: ten retries.
const INITIAL: u64 = 10 * RETRY;
/// Number of bits that hold the tokens in the packed format.
const TOKEN_BITS: u32 = 20;
const _: () = assert!(CAPACITY < 1 << TOKEN_BITS);

/// The maximum delay before the first retry. It doubles with each further one.
const BASE_BACKOFF: Millis = Millis::from_ms(25);
/// Maximum delay before any retry.
const MAX_BACKOFF: Millis = Millis::from_ms(250);

/// A retry budget, in 64 bits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RetryBudget {
    /// In units of 1/[`RETRY`].
    tokens: u64,
    /// The time up to which units were added.
    updated_at: CoarseTime,
}

impl RetryBudget {
    /// A budget that starts at `now`.
    pub fn new(now: CoarseTime) -> Self {
        Self { tokens: INITIAL, updated_at: now }
    }

    /// The budget that [`RetryBudget::to_bits`] packed.
    #[inline]
    pub fn from_bits(bits: u64) -> Self {
        Self {
            tokens: bits & ((1 << TOKEN_BITS) - 1),
            updated_at: CoarseTime::from_ms(bits >> TOKEN_BITS),
        }
    }

    /// The budget in one word, for an atomic.
    #[inline]
    pub fn to_bits(self) -> u64 {
        self.updated_at.as_ms() << TOKEN_BITS | self.tokens
    }

    /// The budget after a request at `now`. Call it once for each request: retries of a request add
    /// nothing.
    #[inline]
    #[must_use]
    pub fn record_request(self, now: CoarseTime) -> Self {
        self.advance(now).add(PER_REQUEST)
    }

    /// The budget after a retry at `now`; `None` if it does not permit one.
    #[inline]
    #[must_use]
    pub fn try_retry(self, now: CoarseTime) -> Option<Self> {
        let budget = self.advance(now);
        let tokens = budget.tokens.checked_sub(RETRY)?;
        Some(Self { tokens, ..budget })
    }

    /// Adds the units for the time until `now`. A step back of the clock adds none.
    #[inline]
    fn advance(self, now: CoarseTime) -> Self {
        let passed = now.since(self.updated_at).as_ms();
        let budget = Self { updated_at: self.updated_at.max(now), ..self };
        budget.add(passed.min(CAPACITY) * PER_MILLISECOND)
    }

    #[inline]
    fn add(self, tokens: u64) -> Self {
        Self { tokens: (self.tokens + tokens).min(CAPACITY), ..self }
    }
}

/// The delay before a retry: random, between half of a maximum and the maximum. The maximum
/// is 25 ms for the first retry and doubles with each further one, up to 250 ms.
///
/// `retry` is 1 for a request's first retry. `random` are random bits for the jitter, so that
/// requests that failed together are not retried together.
pub fn backoff(retry: u32, random: u64) -> Millis {
    let doublings = retry.saturating_sub(1).min(10);
    let longest = (BASE_BACKOFF * (1 << doublings)).min(MAX_BACKOFF);
    let shortest = longest - longest / 2;
    let span = (longest - shortest).as_ms() + 1;
    shortest + Millis::from_ms(((u128::from(random) * u128::from(span)) >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: CoarseTime = CoarseTime::from_ms(1_700_000_000_000);

    #[test]
    fn a_fifth_of_the_requests_may_be_retried() {
        let mut budget = RetryBudget::new(NOW);
        let mut retries = 0;
        for request in 0..100_000_u64 {
            // 10,000 requests a second, and all fail.
            let now = NOW + Millis::from_ms(request / 10);
            budget = RetryBudget::from_bits(budget.record_request(now).to_bits());
            if let Some(left) = budget.try_retry(now) {
                (budget, retries) = (left, retries + 1);
            }
        }
        // 20 % of 100,000, ten a second for ten seconds, and the initial ten.
        assert!((20_090..=20_110).contains(&retries), "{retries}");
    }

    #[test]
    fn few_requests_may_all_be_retried() {
        let mut budget = RetryBudget::new(NOW);
        for request in 0..1_000 {
            let now = NOW + Millis::from_ms(request * 100);
            budget = budget.record_request(now).try_retry(now).expect("ten retries a second");
        }
    }

    #[test]
    fn the_budget_survives_a_clock_that_is_set_back() {
        let budget = RetryBudget::new(NOW).record_request(NOW - Millis::from_mins(1));
        assert_eq!(budget.updated_at, NOW);
        assert_eq!(budget.tokens, INITIAL + PER_REQUEST);
    }

    #[test]
    fn the_delay_doubles_to_its_maximum() {
        let delays = |retry| (backoff(retry, 0).as_ms(), backoff(retry, u64::MAX).as_ms());
        assert_eq!(delays(1), (13, 25));
        assert_eq!(delays(2), (25, 50));
        assert_eq!(delays(4), (100, 200));
        assert_eq!(delays(5), (125, 250));
        assert_eq!(delays(u32::MAX), (125, 250));
        assert_eq!(delays(0), (13, 25));
    }

    proptest! {
        /// Within any interval of any history, retries are bounded by its requests, its time and
        /// the capacity.
        #[test]
        fn a_retry_storm_is_bounded(
            steps in prop::collection::vec((0_u64..50, 0_u32..30), 1..400),
            from in any::<prop::sample::Index>(),
        ) {
            let from = from.index(steps.len());
            let (mut budget, mut now) = (RetryBudget::new(NOW), NOW);
            let (mut retries, mut requests, mut began) = (0, 0, NOW);
            for (index, (pause, failing)) in steps.into_iter().enumerate() {
                if index == from {
                    (retries, requests, began) = (0, 0, now);
                }
                now += Millis::from_ms(pause);
                for _ in 0..failing {
                    budget = RetryBudget::from_bits(budget.record_request(now).to_bits());
                    requests += 1;
                    // Each request is retried as often as the budget permits.
                    while let Some(left) = budget.try_retry(now) {
                        (budget, retries) = (left, retries + 1);
                    }
                }
            }
            let earned = requests * PER_REQUEST + now.since(began).as_ms() * PER_MILLISECOND;
            prop_assert!(retries * RETRY <= earned + CAPACITY);
        }

        #[test]
        fn the_delay_is_between_half_and_all(retry in 1_u32..40, random in any::<u64>()) {
            let longest = (25_u64 << (retry - 1).min(10)).min(250);
            prop_assert!((longest.div_ceil(2)..=longest).contains(&backoff(retry, random).as_ms()));
        }
    }
}
