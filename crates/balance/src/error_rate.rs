//! The share of errors among an endpoint's responses, for load-based policies.
//!
//! An endpoint that refuses fast has few requests in flight and would attract the requests of all
//! others. So its weight is multiplied by the share of its responses that succeeded, but at least
//! by a tenth: some requests must show its recovery.

use tidegate_base::time::{CoarseTime, Millis};

use super::{FULL_RAMP, timed_average::TimedAverage};

/// The time constant of the average: after this time without requests, an error counts 1/e.
const DECAY: Millis = Millis::from_secs(2);

/// Minimum weight of one response: at high rates, the average covers about the last 32 responses.
const MIN_GAIN: f32 = 1.0 / 32.0;

/// Minimum share of its weight that an endpoint keeps, in 1/1024.
const MIN_SHARE: f32 = FULL_RAMP as f32 / 10.0;

/// An attempt's outcome, for the choice of endpoints.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AttemptOutcome {
    /// A response that is not a server error.
    Success,
    /// A status from 500, a gRPC status that means the same, or no response.
    Error,
}

/// The moving average of one endpoint's errors, in 64 bits. The default has no observation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ErrorRate(
    /// The share of errors, 0 to 1.
    TimedAverage,
);

impl ErrorRate {
    /// The state that [`ErrorRate::to_bits`] packed.
    #[inline]
    pub fn from_bits(bits: u64) -> Self {
        Self(TimedAverage::from_bits(bits))
    }

    /// The state in one word, for an atomic. 0 is the default.
    #[inline]
    pub fn to_bits(self) -> u64 {
        self.0.to_bits()
    }

    /// True if no error counts, so that a success does not change the state.
    #[inline]
    pub fn is_zero(self) -> bool {
        self.0.value == 0.0
    }

    /// The state after an attempt that ended at `now`.
    #[must_use]
    pub fn observe(self, observed: AttemptOutcome, now: CoarseTime) -> Self {
        let value = if observed == AttemptOutcome::Error { 1.0 } else { 0.0 };
        let gain = (1.0 - self.kept_share(now)).max(MIN_GAIN);
        let average = self.0.value + (value - self.0.value) * gain;
        // Below a thousandth it has no effect, and the next success costs no write.
        let is_negligible = average < 0.001;
        Self(TimedAverage::new(if is_negligible { 0.0 } else { average }, now))
    }

    /// The share of its weight that the endpoint has at `now`, in 1/1024.
    #[inline]
    pub fn success_share(self, now: CoarseTime) -> u32 {
        if self.is_zero() {
            return FULL_RAMP;
        }
        let errors = self.0.value * self.kept_share(now);
        ((1.0 - errors) * FULL_RAMP as f32).max(MIN_SHARE) as u32
    }

    /// The share of the average that remains at `now`.
    fn kept_share(self, now: CoarseTime) -> f32 {
        (-self.0.age(now, DECAY)).exp()
    }
}

#[cfg(test)]
mod tests {
    use std::{cmp::Reverse, collections::BinaryHeap};

    use proptest::prelude::*;
    use tidegate_base::mix::SplitMix;

    use super::*;
    use crate::{Balancer, EndpointView, PickRequest, Policy, TargetKey, WeightedEndpoint};

    /// The input that the choice reads in a simulation.
    #[derive(Clone, Copy, Eq, PartialEq)]
    enum Reads {
        Load,
        LoadAndErrors,
    }

    /// Endpoints at a time of a simulation.
    struct Fleet {
        reads: Reads,
        in_flight: Vec<u32>,
        errors: Vec<ErrorRate>,
        now: CoarseTime,
    }

    impl EndpointView for Fleet {
        fn is_available(&self, _: usize) -> bool {
            true
        }

        fn success_share(&self, index: usize) -> u32 {
            match self.reads {
                Reads::Load => FULL_RAMP,
                Reads::LoadAndErrors => self.errors[index].success_share(self.now),
            }
        }

        fn in_flight(&self, index: usize) -> u32 {
            self.in_flight[index]
        }

        fn cost(&self, index: usize) -> u64 {
            // Lower for the fast endpoint, which must not attract requests either.
            if index == 0 { 100 } else { 20_000 }
        }

        fn total_in_flight(&self) -> u64 {
            self.in_flight.iter().copied().map(u64::from).sum()
        }
    }

    /// The share of requests that the first endpoint gets from `from` to `until` seconds, at 1,000
    /// requests a second. It fails its requests at once in each second for which `fails` is true;
    /// the others answer after 20 ms.
    fn share(
        (policy, size, reads): (Policy, usize, Reads),
        (from, until): (u64, u64),
        fails: impl Fn(u64) -> bool,
    ) -> f64 {
        let endpoints = ["a", "b", "c", "d"].map(|name| WeightedEndpoint { name, weight: 1 });
        let balancer = Balancer::new(policy, &endpoints[..size]);
        let (in_flight, errors) = (vec![0; size], vec![ErrorRate::default(); size]);
        let mut fleet = Fleet { reads, in_flight, errors, now: CoarseTime::ZERO };
        let (mut ends, mut counts) = (BinaryHeap::<Reverse<(u64, usize)>>::new(), [0_u32; 4]);
        let mut random = SplitMix::new(7);
        for now in 0..until * 1_000 {
            fleet.now = CoarseTime::from_ms(now);
            while let Some(&Reverse((end, index))) =
                ends.peek().filter(|Reverse((end, _))| *end <= now)
            {
                ends.pop();
                fleet.in_flight[index] -= 1;
                let is_error = index == 0 && fails(end / 1_000);
                let observed =
                    if is_error { AttemptOutcome::Error } else { AttemptOutcome::Success };
                fleet.errors[index] = fleet.errors[index].observe(observed, fleet.now);
            }
            let input = PickRequest {
                turn: now,
                key: TargetKey::default(),
                random: random.bits(),
                excluded: &[],
            };
            let index = balancer.choose(&input, &fleet).expect("an endpoint").index;
            counts[index] += u32::from(now >= from * 1_000);
            fleet.in_flight[index] += 1;
            let latency = if index == 0 && fails(now / 1_000) { 1 } else { 20 };
            ends.push(Reverse((now + latency, index)));
        }
        f64::from(counts[0]) / f64::from(counts.iter().sum::<u32>())
    }

    #[test]
    fn an_endpoint_that_fails_fast_does_not_draw_requests() {
        for policy in [Policy::LeastRequests, Policy::PeakEwma] {
            let failing = share((policy, 4, Reads::LoadAndErrors), (0, 20), |_| true);
            assert!(failing < 0.1, "{policy:?}: {failing}");
            let one_of_two = share((policy, 2, Reads::LoadAndErrors), (0, 20), |_| true);
            assert!(one_of_two < 0.2, "{policy:?}: {one_of_two}");
            let by_load = share((policy, 4, Reads::Load), (0, 20), |_| true);
            assert!(by_load > 0.35, "{policy:?}: {by_load}, so errors need no weight");
        }
        // It has its share again some seconds after its last error.
        let recovered =
            share((Policy::LeastRequests, 4, Reads::LoadAndErrors), (15, 40), |second| second < 10);
        assert!((0.22..0.28).contains(&recovered), "{recovered}");
    }

    #[test]
    fn a_rare_error_costs_little_and_is_forgotten() {
        let at = CoarseTime::from_ms;
        let mut rate = ErrorRate::default();
        for request in 0..10_000 {
            let observed =
                if request % 100 == 0 { AttemptOutcome::Error } else { AttemptOutcome::Success };
            let now = at(request);
            rate = rate.observe(observed, now);
            assert!(rate.success_share(now) > FULL_RAMP * 9 / 10, "{rate:?}");
        }
        let failed = ErrorRate::default().observe(AttemptOutcome::Error, at(60_000));
        assert_eq!(failed.success_share(at(60_000)), MIN_SHARE as u32, "the only response");
        assert!(failed.success_share(at(70_000)) > FULL_RAMP * 98 / 100);
        assert!(failed.observe(AttemptOutcome::Success, at(100_000)).is_zero());
    }

    proptest! {
        #[test]
        fn the_share_is_between_a_tenth_and_all(
            events in prop::collection::vec((any::<bool>(), 0_u64..105_000), 1..50),
        ) {
            let (mut rate, mut now) = (ErrorRate::default(), CoarseTime::from_ms(1_700_000_000_000));
            for (is_error, step) in events {
                // The clock may be set back by 5 s.
                now = now.after(Millis::from_ms(step)).before(Millis::from_secs(5));
                let observed = if is_error { AttemptOutcome::Error } else { AttemptOutcome::Success };
                rate = ErrorRate::from_bits(rate.observe(observed, now).to_bits());
                prop_assert!((MIN_SHARE as u32..=FULL_RAMP).contains(&rate.success_share(now)));
            }
        }
    }
}
