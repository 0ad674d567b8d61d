//! [`RefreshSchedule`]: when a key set is fetched. Pure: the time and the random numbers are
//! parameters.

use tidegate_base::time::{Millis, MonotonicTime};

/// The shortest and the longest time that a set is used before it is fetched again.
const AGE: (Millis, Millis) = (Millis::from_mins(5), Millis::from_mins(24 * 60));
/// The time if the server names none.
const DEFAULT_AGE: Millis = Millis::from_mins(10);
/// The first and the longest pause after a failure.
const BACKOFF: (Millis, Millis) = (Millis::from_secs(1), Millis::from_mins(1));
/// The shortest time between two fetches for the sake of an unknown key.
pub const MIN_INTERVAL: Millis = Millis::from_secs(10);

/// When a key set is fetched again.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RefreshSchedule {
    /// The end of the last fetch; `None` before it.
    fetched: Option<MonotonicTime>,
    /// The time after it.
    pause: Millis,
    /// Failures since the last success.
    failures: u32,
}

impl RefreshSchedule {
    /// Records a success at `now`. `max_age` is the time for which the server allows to keep
    /// the set, `random` spreads the fetches of several gateways over a tenth of the time.
    pub fn succeed(&mut self, now: MonotonicTime, max_age: Option<Millis>, random: u64) {
        let age = max_age.unwrap_or(DEFAULT_AGE).clamp(AGE.0, AGE.1);
        let spread = Millis::from_ms(random) % (age / 10);
        *self = Self { fetched: Some(now), pause: age - spread, failures: 0 };
    }

    /// Records a failure at `now`. The pause doubles with each one, and at most half of it is
    /// random.
    pub fn fail(&mut self, now: MonotonicTime, random: u64) {
        let pause = (BACKOFF.0 * (1 << self.failures.min(16))).min(BACKOFF.1);
        let failures = self.failures.saturating_add(1);
        let spread = Millis::from_ms(random) % (pause / 2);
        *self = Self { fetched: Some(now), pause: pause - spread, failures };
    }

    /// The time until the next fetch; zero if it is due.
    pub fn due_in(&self, now: MonotonicTime) -> Millis {
        self.remaining(now, self.pause)
    }

    /// The time until an unknown key may cause a fetch; zero if it may.
    pub fn refetch_in(&self, now: MonotonicTime) -> Millis {
        self.remaining(now, MIN_INTERVAL)
    }

    /// True if the last fetch failed.
    pub fn is_failing(&self) -> bool {
        self.failures > 0
    }

    fn remaining(&self, now: MonotonicTime, pause: Millis) -> Millis {
        self.fetched.map_or(Millis::ZERO, |fetched| pause.saturating_sub(now.since(fetched)))
    }
}

/// The time of `max-age` in a field `Cache-Control` (RFC 9111, 5.2.2.1); zero for `no-store` and
/// `no-cache`. `None` without any.
pub fn max_age(cache_control: &str) -> Option<Millis> {
    let mut age = None;
    for directive in cache_control.split(',').map(str::trim) {
        let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
        match name.trim().to_ascii_lowercase().as_str() {
            "no-store" | "no-cache" => return Some(Millis::ZERO),
            "max-age" => {
                let digits = value.trim().trim_matches('"');
                let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
                // A number that does not fit is a long time.
                let seconds = is_number.then(|| digits.parse().unwrap_or(u64::MAX));
                age = seconds.map(Millis::from_secs).or(age);
            }
            _ => {}
        }
    }
    age
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn at(ms: u64) -> MonotonicTime {
        MonotonicTime::from_ms(ms)
    }

    #[test]
    fn the_age_is_within_bounds() {
        for (seconds, longest) in [
            (None, 600_000),
            (Some(0), 300_000),
            (Some(3_600), 3_600_000),
            (Some(1_000_000), 86_400_000),
            (Some(u64::MAX), 86_400_000),
        ] {
            let max_age = seconds.map(Millis::from_secs);
            let mut schedule = RefreshSchedule::default();
            assert_eq!(schedule.due_in(at(5)), Millis::ZERO, "the first fetch");
            schedule.succeed(at(1_000), max_age, 0);
            assert_eq!(schedule.due_in(at(1_000)).as_ms(), longest, "{seconds:?}");
            schedule.succeed(at(1_000), max_age, u64::MAX);
            let spread = schedule.due_in(at(1_000)).as_ms();
            assert!(spread <= longest && spread > longest * 9 / 10 - 1, "{seconds:?} {spread}");
            assert_eq!(schedule.due_in(at(1_000 + longest)), Millis::ZERO);
        }
    }

    #[test]
    fn an_unknown_key_causes_a_fetch_every_ten_seconds() {
        let mut schedule = RefreshSchedule::default();
        schedule.succeed(at(0), None, 0);
        let refetch_in = |now| schedule.refetch_in(at(now)).as_ms();
        assert_eq!([0, 9_999, 10_000].map(refetch_in), [10_000, 1, 0]);
    }

    #[test]
    fn failures_back_off() {
        let mut schedule = RefreshSchedule::default();
        let pauses = [0; 9].map(|random| {
            schedule.fail(at(0), random);
            schedule.due_in(at(0))
        });
        let seconds = pauses.map(Millis::as_whole_secs);
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert!(schedule.is_failing());
        schedule.succeed(at(0), None, 0);
        assert!(!schedule.is_failing());
    }

    #[test]
    fn the_age_is_read() {
        for (field, age) in [
            ("max-age=60", Some(60)),
            ("public, Max-Age=\"60\"", Some(60)),
            ("max-age=60, no-store", Some(0)),
            ("s-maxage=5", None),
            ("max-age=-1", None),
            ("max-age=99999999999999999999", Some(Millis::MAX.as_whole_secs())),
            ("", None),
        ] {
            assert_eq!(max_age(field).map(Millis::as_whole_secs), age, "{field}");
        }
    }

    proptest! {
        #[test]
        fn no_pause_is_without_an_end(
            events in prop::collection::vec((any::<bool>(), any::<Option<u64>>(), any::<u64>()), 1..40),
        ) {
            let mut schedule = RefreshSchedule::default();
            for (is_success, age, random) in events {
                if is_success {
                    schedule.succeed(at(7), age.map(Millis::from_secs), random);
                    prop_assert!((270_000..=86_400_000).contains(&schedule.due_in(at(7)).as_ms()));
                } else {
                    schedule.fail(at(7), random);
                    prop_assert!((500..=60_000).contains(&schedule.due_in(at(7)).as_ms()));
                }
            }
        }

        #[test]
        fn any_field_is_read_without_a_panic(field in "\\PC{0,40}") {
            let _ = max_age(&field);
        }
    }
}
