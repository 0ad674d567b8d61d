//! Decides when to throttle: compares the number of active users with two watermarks, with
//! hysteresis.

use tidegate_base::time::{Millis, StoreTime};

use super::estimate::Estimate;
pub use tidegate_vocabulary::ThrottleMode;

/// Number of consecutive ticks above [`Watermarks::max_active`] after which throttling starts.
pub const TRIGGER_TICKS: u32 = 3;

/// Time for which the number of active users must stay below [`Watermarks::resume_below`] before
/// throttling stops.
pub const CALM_PERIOD: Millis = Millis::from_mins(1);

/// The thresholds, in active users.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Watermarks {
    /// Throttling starts above this number.
    pub max_active: u64,
    /// Throttling stops below this number.
    pub resume_below: u64,
}

/// Decides once per tick, by the number of active users, whether mode [`ThrottleMode::Auto`]
/// throttles.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Hysteresis {
    over_threshold: bool,
    /// Number of consecutive ticks above `max_active`.
    ticks_above: u32,
    /// The time since which the number is below `resume_below`.
    calm_since: Option<StoreTime>,
    /// [`Self::retry_at`]. It never moves back while `over_threshold` is true. Mode `on` needs it
    /// even while `over_threshold` is false.
    retry_at: StoreTime,
}

impl Hysteresis {
    /// Applies the estimate of one tick. True if mode `auto` is to throttle. At `next_expiry` the
    /// oldest generation expires, so that the number of active users can fall.
    pub fn tick(
        &mut self,
        now: StoreTime,
        estimate: &Estimate,
        watermarks: &Watermarks,
        next_expiry: StoreTime,
    ) -> bool {
        let too_many = estimate.saturated || estimate.tokens > watermarks.max_active;
        let few = !estimate.saturated && estimate.tokens < watermarks.resume_below;
        self.ticks_above = if too_many { self.ticks_above.saturating_add(1) } else { 0 };
        self.calm_since = if few { Some(self.calm_since.unwrap_or(now)) } else { None };
        let is_calm = self.calm_since.is_some_and(|since| now.since(since) >= CALM_PERIOD);
        let before = self.over_threshold;
        self.over_threshold = if before { !is_calm } else { self.ticks_above >= TRIGGER_TICKS };
        // While `over_threshold` is false, only mode `on` denies, and a calm period does not end
        // this mode.
        let calm_since = self.calm_since.filter(|_| self.over_threshold);
        let retry_at = calm_since.unwrap_or(next_expiry) + CALM_PERIOD;
        self.retry_at =
            if before && self.over_threshold { self.retry_at.max(retry_at) } else { retry_at };
        self.over_threshold
    }

    /// Makes throttling start at the next tick if that tick is above `max_active`. Called once the
    /// shared filters are loaded: their users were active before this gateway started.
    pub fn prime(&mut self) {
        self.ticks_above = TRIGGER_TICKS - 1;
    }

    /// Throttles from the next tick on, until few users are active: gateways throttled when the
    /// last of them ended.
    pub fn resume(&mut self) {
        self.over_threshold = true;
    }

    /// The result of the last tick.
    pub fn is_over_threshold(&self) -> bool {
        self.over_threshold
    }

    /// The earliest time at which an unknown token may be admitted.
    pub fn retry_at(&self) -> StoreTime {
        self.retry_at
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MARKS: Watermarks = Watermarks { max_active: 100, resume_below: 90 };
    const T0: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

    fn estimated(tokens: u64) -> Estimate {
        Estimate { tokens, error: 0, saturated: false }
    }

    /// The results of one tick per second.
    fn run(hysteresis: &mut Hysteresis, from: StoreTime, counts: &[u64]) -> Vec<bool> {
        let ticks = counts.iter().zip(0..);
        let mut tick = |(n, second): (&u64, u64)| {
            hysteresis.tick(from + Millis::from_secs(second), &estimated(*n), &MARKS, T0)
        };
        ticks.map(&mut tick).collect()
    }

    #[test]
    fn three_consecutive_ticks_above_start_throttling() {
        let mut hysteresis = Hysteresis::default();
        assert_eq!(run(&mut hysteresis, T0, &[101, 101, 100, 101, 101]), [false; 5]);
        assert_eq!(run(&mut hysteresis, T0, &[101, 90]), [true, true]);
    }

    #[test]
    fn one_tick_after_loading_starts_throttling() {
        let mut hysteresis = Hysteresis::default();
        hysteresis.prime();
        assert_eq!(run(&mut hysteresis, T0, &[101, 101]), [true, true]);
        let mut hysteresis = Hysteresis::default();
        hysteresis.prime();
        assert_eq!(run(&mut hysteresis, T0, &[100, 101, 101, 101]), [false, false, false, true]);
    }

    #[test]
    fn one_uninterrupted_minute_below_stops_throttling() {
        let mut hysteresis = Hysteresis::default();
        let at = |ms| T0 + Millis::from_ms(ms);
        run(&mut hysteresis, T0, &[500; 3]);
        assert!(hysteresis.tick(at(10_000), &estimated(89), &MARKS, T0));
        assert!(hysteresis.tick(at(69_999), &estimated(89), &MARKS, T0));
        assert!(hysteresis.tick(at(69_999), &estimated(90), &MARKS, T0), "90 is not below 90");
        assert!(hysteresis.tick(at(80_000), &estimated(1), &MARKS, T0));
        assert!(hysteresis.tick(at(139_999), &estimated(1), &MARKS, T0));
        assert!(!hysteresis.tick(at(140_000), &estimated(1), &MARKS, T0));
        assert_eq!(run(&mut hysteresis, at(141_000), &[101, 101, 101]), [false, false, true]);
    }

    #[test]
    fn a_saturated_estimate_counts_as_too_many() {
        let mut hysteresis = Hysteresis::default();
        let full = Estimate { tokens: 5, error: 0, saturated: true };
        for _ in 0..TRIGGER_TICKS {
            hysteresis.tick(T0, &full, &MARKS, T0);
        }
        assert!(hysteresis.is_over_threshold());
    }

    proptest! {
        #[test]
        fn retry_at_is_in_the_future_and_never_moves_back(
            counts in prop::collection::vec(0_u64..200, 1..400),
        ) {
            let (mut hysteresis, mut before) = (Hysteresis::default(), T0);
            for (n, second) in counts.into_iter().zip(0_u64..) {
                let now = T0 + Millis::from_secs(second);
                let minute = Millis::from_mins(1);
                let next_minute = now + minute - now.since(StoreTime::ZERO) % minute;
                hysteresis.tick(now, &estimated(n), &MARKS, next_minute);
                prop_assert!(hysteresis.retry_at() >= before);
                before = hysteresis.retry_at();
                prop_assert!(before > now);
            }
        }
    }
}
