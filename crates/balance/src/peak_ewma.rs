//! The latency of an endpoint, for the policy `peak_ewma`.
//!
//! As in Finagle (`com.twitter.finagle.loadbalancer.PeakEwma`) and linkerd, a moving average that
//! decays exponentially over 10 s, but rises to a higher value at once. So a slow endpoint is
//! avoided after one response and trusted again only gradually.
//!
//! Unlike theirs, an average decays faster the longer nothing is observed: among few endpoints, an
//! avoided one gets no request that would show its recovery, and would stay avoided for more than a
//! minute.

use tidegate_base::time::{CoarseTime, Millis};

use super::timed_average::TimedAverage;

/// The time constant of the decay. After it, a peak's excess has fallen to 1/e.
const DECAY: Millis = Millis::from_secs(10);

/// The age of the last observation at which its weight is 1/e of what [`DECAY`] alone would leave.
/// A failed endpoint is tried again after about 10 s if others respond within 1 ms.
const DOUBT: Millis = Millis::from_secs(4);

/// Minimum latency to record for a failure, in us. Otherwise an endpoint that fails quickly would
/// look fast.
pub const FAILURE_LATENCY: u64 = 1_000_000;

/// The peak-sensitive moving average of one endpoint's latency, in 64 bits.
///
/// The default has no observation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PeakEwma(
    /// In us; 0 before the first observation.
    TimedAverage,
);

impl PeakEwma {
    /// The state that [`PeakEwma::to_bits`] packed.
    #[inline]
    pub fn from_bits(bits: u64) -> Self {
        Self(TimedAverage::from_bits(bits))
    }

    /// The state in one word, for an atomic. 0 is the default.
    #[inline]
    pub fn to_bits(self) -> u64 {
        self.0.to_bits()
    }

    /// The state after a response with this latency, in us, at `now`. A failure counts with at
    /// least [`FAILURE_LATENCY`].
    #[must_use]
    pub fn observe(self, latency: u64, now: CoarseTime) -> Self {
        // A latency of 0 would mean that nothing was observed.
        let latency = latency.max(1) as f32;
        let kept = self.kept_share(now);
        let average = latency.max(self.0.value * kept + latency * (1.0 - kept));
        Self(TimedAverage::new(average, now))
    }

    /// The expected latency of the next request, in us; 0 before the first observation.
    ///
    /// It decays without requests, so that an endpoint that was slow is tried again.
    #[inline]
    pub fn cost(self, now: CoarseTime) -> u64 {
        (self.0.value * self.kept_share(now)) as u64
    }

    /// The average at the last observation, in us; 0 before the first.
    #[inline]
    pub fn average(self) -> u64 {
        self.0.value as u64
    }

    /// The share of the average that remains at `now`.
    #[inline]
    fn kept_share(self, now: CoarseTime) -> f32 {
        let doubt = self.0.age(now, DOUBT);
        (-self.0.age(now, DECAY) - doubt * doubt).exp()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: CoarseTime = CoarseTime::from_ms(1_700_000_000_000);

    fn at(ms: u64) -> CoarseTime {
        NOW + Millis::from_ms(ms)
    }

    #[test]
    fn a_peak_counts_at_once_and_decays_over_ten_seconds() {
        let ewma = PeakEwma::default().observe(1_000, NOW).observe(50_000, NOW);
        assert_eq!(ewma.cost(NOW), 50_000);
        let mut recovering = ewma;
        for tenth in 1..=100 {
            recovering = recovering.observe(1_000, at(tenth * 100));
        }
        assert!((17_000..20_000).contains(&recovering.cost(at(10_000))), "{recovering:?}");
    }

    /// Without requests, nothing would show its recovery.
    #[test]
    fn an_endpoint_that_failed_is_tried_again_within_twelve_seconds() {
        let failed = PeakEwma::default().observe(FAILURE_LATENCY, NOW);
        assert!(failed.cost(at(2_000)) > 500_000);
        assert!(failed.cost(at(8_000)) > 1_000);
        assert!(failed.cost(at(12_000)) < 100);
        assert!(failed.observe(100, at(12_000)).cost(at(12_000)) < 250);
    }

    #[test]
    fn nothing_observed_costs_nothing() {
        assert_eq!(PeakEwma::default().cost(NOW), 0);
        assert_eq!(PeakEwma::default().to_bits(), 0);
        assert!(PeakEwma::default().observe(0, NOW).cost(NOW) > 0);
    }

    proptest! {
        /// The average stays between the lowest and the highest latency, at any step of the clock.
        #[test]
        fn the_average_is_between_the_extremes(
            events in prop::collection::vec((1_u64..10_000_000, 0_u64..105_000), 1..50),
        ) {
            let (mut ewma, mut now) = (PeakEwma::default(), NOW);
            for (latency, step) in &events {
                // The clock may be set back by 5 s.
                now = now.after(Millis::from_ms(*step)).before(Millis::from_secs(5));
                ewma = PeakEwma::from_bits(ewma.observe(*latency, now).to_bits());
                prop_assert!(ewma.cost(now) + latency / 100_000 + 1 >= *latency);
            }
            let highest = events.iter().map(|(latency, _)| *latency).max().unwrap();
            prop_assert!(ewma.cost(now) <= highest + highest / 100_000 + 1);
        }
    }
}
