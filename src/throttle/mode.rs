//! When to throttle: the number of active users against two marks, with hysteresis.

use super::{estimate::Estimate, geometry::Millis};

/// So many ticks in a row must find too many active users before throttling begins.
pub const TICKS_ABOVE: u32 = 3;

/// So long, in ms, they must be few enough before it ends.
pub const CALM: Millis = 60_000;

/// When to throttle.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Mode {
    /// When too many users are active.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

impl Mode {
    /// The name that configuration, metrics and the admin API call it by.
    pub fn label(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        }
    }

    /// Reads a [`Self::label`].
    pub fn from_label(label: &str) -> Option<Self> {
        [Self::Auto, Self::On, Self::Off].into_iter().find(|mode| mode.label() == label)
    }
}

/// The two marks, in active users.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Marks {
    /// With more than this throttling begins.
    pub max_active: u64,
    /// With fewer than this it ends.
    pub resume_below: u64,
}

/// Follows the number of active users from tick to tick.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Watch {
    throttling: bool,
    /// Ticks in a row that found too many.
    above: u32,
    /// Since when they are few enough.
    calm_since: Option<Millis>,
    /// When a newcomer may find room at the earliest; kept from moving back while throttling lasts.
    /// Also told while it does not, to those whom the operator keeps out.
    room_at: Millis,
}

impl Watch {
    /// Takes in one tick's estimate. `falls_at` is the next time at which the number of active users
    /// can fall: when the oldest generation leaves memory. Returns whether to throttle by it.
    pub fn tick(
        &mut self,
        now: Millis,
        estimate: &Estimate,
        marks: &Marks,
        falls_at: Millis,
    ) -> bool {
        let too_many = estimate.saturated || estimate.tokens > marks.max_active;
        let few = !estimate.saturated && estimate.tokens < marks.resume_below;
        self.above = if too_many { self.above.saturating_add(1) } else { 0 };
        self.calm_since = if few { Some(self.calm_since.unwrap_or(now)) } else { None };
        let calm = self.calm_since.is_some_and(|since| now.saturating_sub(since) >= CALM);
        let was = self.throttling;
        self.throttling = if was { !calm } else { self.above >= TICKS_ABOVE };
        // Who is refused in an open house is so on the operator's word: no calm of the past ends that.
        let calm_since = self.calm_since.filter(|_| self.throttling);
        let room_at = calm_since.unwrap_or(falls_at) + CALM;
        self.room_at = if was && self.throttling { self.room_at.max(room_at) } else { room_at };
        self.throttling
    }

    /// The next estimate is of filters that were just loaded. Too many users in them have been too many for
    /// the other gateways before, so that one tick is enough.
    pub fn loaded(&mut self) {
        self.above = TICKS_ABOVE - 1;
    }

    /// Whether the last tick said to throttle.
    pub fn throttling(&self) -> bool {
        self.throttling
    }

    /// When a newcomer may find room at the earliest, in ms since the epoch.
    pub fn room_at(&self) -> Millis {
        self.room_at
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MARKS: Marks = Marks { max_active: 100, resume_below: 90 };
    const T0: Millis = 1_700_000_000_000;

    fn of(tokens: u64) -> Estimate {
        Estimate { tokens, error: 0, saturated: false }
    }

    /// One tick a second; what each said.
    fn run(watch: &mut Watch, from: Millis, counts: &[u64]) -> Vec<bool> {
        let ticks = counts.iter().zip(0..);
        ticks.map(|(&n, s)| watch.tick(from + s * 1_000, &of(n), &MARKS, T0)).collect()
    }

    #[test]
    fn three_ticks_above_begin_it_and_a_dip_starts_anew() {
        let mut watch = Watch::default();
        assert_eq!(run(&mut watch, T0, &[101, 101, 100, 101, 101]), [false; 5]);
        assert_eq!(run(&mut watch, T0, &[101, 90]), [true, true]);
    }

    #[test]
    fn what_was_loaded_is_above_at_once() {
        let mut watch = Watch::default();
        watch.loaded();
        assert_eq!(run(&mut watch, T0, &[101, 101]), [true, true]);
        let mut watch = Watch::default();
        watch.loaded();
        assert_eq!(run(&mut watch, T0, &[100, 101, 101, 101]), [false, false, false, true]);
    }

    #[test]
    fn a_minute_below_ends_it_and_a_rise_starts_anew() {
        let mut watch = Watch::default();
        run(&mut watch, T0, &[500; 3]);
        assert!(watch.tick(T0 + 10_000, &of(89), &MARKS, T0));
        assert!(watch.tick(T0 + 69_999, &of(89), &MARKS, T0));
        assert!(watch.tick(T0 + 69_999, &of(90), &MARKS, T0), "90 is not below 90");
        assert!(watch.tick(T0 + 80_000, &of(1), &MARKS, T0));
        assert!(watch.tick(T0 + 139_999, &of(1), &MARKS, T0));
        assert!(!watch.tick(T0 + 140_000, &of(1), &MARKS, T0));
        assert_eq!(run(&mut watch, T0 + 141_000, &[101, 101, 101]), [false, false, true]);
    }

    #[test]
    fn what_cannot_be_told_is_too_many() {
        let mut watch = Watch::default();
        let full = Estimate { tokens: 5, error: 0, saturated: true };
        for _ in 0..TICKS_ABOVE {
            watch.tick(T0, &full, &MARKS, T0);
        }
        assert!(watch.throttling());
    }

    proptest! {
        #[test]
        fn room_is_promised_no_earlier_than_it_comes_and_never_moves_back(
            counts in prop::collection::vec(0_u64..200, 1..400),
        ) {
            let (mut watch, mut promised) = (Watch::default(), T0);
            for (n, second) in counts.into_iter().zip(0_u64..) {
                let now = T0 + second * 1_000;
                watch.tick(now, &of(n), &MARKS, (now / 60_000 + 1) * 60_000);
                prop_assert!(watch.room_at() >= promised);
                promised = watch.room_at();
                prop_assert!(promised > now);
            }
        }
    }
}
