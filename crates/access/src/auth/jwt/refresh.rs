//! [`RefreshSchedule`]: when a key set is fetched. Pure: the time and the random numbers are
//! parameters.

use tidegate_system::clock::MonotonicTime;

/// The shortest and the longest time that a set is used before it is fetched again, in ms.
const AGE: (u64, u64) = (5 * 60_000, 24 * 3_600_000);
/// The time if the server names none, in ms.
const DEFAULT_AGE: u64 = 10 * 60_000;
/// The first and the longest pause after a failure, in ms.
const BACKOFF: (u64, u64) = (1_000, 60_000);
/// The shortest time between two fetches for the sake of an unknown key, in ms.
pub const MIN_INTERVAL: u64 = 10_000;

/// When a key set is fetched again.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RefreshSchedule {
    /// The end of the last fetch; `None` before it.
    fetched: Option<MonotonicTime>,
    /// The time after it, in ms.
    pause: u64,
    /// Failures since the last success.
    failures: u32,
}

impl RefreshSchedule {
    /// Records a success at `now`. `max_age` is the time in seconds for which the server allows to
    /// keep the set, `random` spreads the fetches of several gateways over a tenth of the time.
    pub fn succeed(&mut self, now: MonotonicTime, max_age: Option<u64>, random: u64) {
        let age = max_age.map_or(DEFAULT_AGE, |seconds| seconds.saturating_mul(1000));
        let age = age.clamp(AGE.0, AGE.1);
        *self = Self { fetched: Some(now), pause: age - random % (age / 10), failures: 0 };
    }

    /// Records a failure at `now`. The pause doubles with each one, and at most half of it is
    /// random.
    pub fn fail(&mut self, now: MonotonicTime, random: u64) {
        let pause = BACKOFF.0.checked_shl(self.failures.min(16)).unwrap_or(u64::MAX).min(BACKOFF.1);
        let failures = self.failures.saturating_add(1);
        *self = Self { fetched: Some(now), pause: pause - random % (pause / 2), failures };
    }

    /// The time until the next fetch, in ms; 0 if it is due.
    pub fn due_in(&self, now: MonotonicTime) -> u64 {
        self.remaining(now, self.pause)
    }

    /// The time until an unknown key may cause a fetch, in ms; 0 if it may.
    pub fn refetch_in(&self, now: MonotonicTime) -> u64 {
        self.remaining(now, MIN_INTERVAL)
    }

    /// True if the last fetch failed.
    pub fn is_failing(&self) -> bool {
        self.failures > 0
    }

    fn remaining(&self, now: MonotonicTime, pause: u64) -> u64 {
        self.fetched.map_or(0, |fetched| pause.saturating_sub(now.saturating_sub(fetched)))
    }
}

/// The seconds of `max-age` in a field `Cache-Control` (RFC 9111, 5.2.2.1); 0 for `no-store` and
/// `no-cache`. `None` without any.
pub fn max_age(cache_control: &str) -> Option<u64> {
    let mut age = None;
    for directive in cache_control.split(',').map(str::trim) {
        let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
        match name.trim().to_ascii_lowercase().as_str() {
            "no-store" | "no-cache" => return Some(0),
            "max-age" => {
                let digits = value.trim().trim_matches('"');
                let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
                // A number that does not fit is a long time.
                age = is_number.then(|| digits.parse().unwrap_or(u64::MAX)).or(age);
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
            let mut schedule = RefreshSchedule::default();
            assert_eq!(schedule.due_in(at(5)), 0, "the first fetch");
            schedule.succeed(at(1_000), seconds, 0);
            assert_eq!(schedule.due_in(at(1_000)), longest, "{seconds:?}");
            schedule.succeed(at(1_000), seconds, u64::MAX);
            let spread = schedule.due_in(at(1_000));
            assert!(spread <= longest && spread > longest * 9 / 10 - 1, "{seconds:?} {spread}");
            assert_eq!(schedule.due_in(at(1_000 + longest)), 0);
        }
    }

    #[test]
    fn an_unknown_key_causes_a_fetch_every_ten_seconds() {
        let mut schedule = RefreshSchedule::default();
        schedule.succeed(at(0), None, 0);
        assert_eq!((schedule.refetch_in(at(0)), schedule.refetch_in(at(9_999))), (10_000, 1));
        assert_eq!(schedule.refetch_in(at(10_000)), 0);
    }

    #[test]
    fn failures_back_off() {
        let mut schedule = RefreshSchedule::default();
        let pauses = [0; 9].map(|random| {
            schedule.fail(at(0), random);
            schedule.due_in(at(0))
        });
        let seconds = pauses.map(|pause| pause / 1000);
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
            ("max-age=99999999999999999999", Some(u64::MAX)),
            ("", None),
        ] {
            assert_eq!(max_age(field), age, "{field}");
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
                    schedule.succeed(at(7), age, random);
                    prop_assert!((270_000..=86_400_000).contains(&schedule.due_in(at(7))));
                } else {
                    schedule.fail(at(7), random);
                    prop_assert!((500..=60_000).contains(&schedule.due_in(at(7))));
                }
            }
        }

        #[test]
        fn any_field_is_read_without_a_panic(field in "\\PC{0,40}") {
            let _ = max_age(&field);
        }
    }
}
