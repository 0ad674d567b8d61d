//! Compiles quotas and checks that they can be counted exactly.

use tidegate_config::{self as config, WindowConfig};
use tidegate_limit::{
    Algorithm, Calendar, MAX_QUOTA_MILLIS, MAX_RESOLUTION, MAX_UNITS, Millis, Quota, leaky_bucket,
    sliding_log,
};

use super::section::Section;

/// The largest quota of a `sliding_log` for which there is no note. Its log takes up to 80 KB per
/// key.
const LARGE_LOG: u64 = 10_000;

/// The keys from which a limit's quota is compiled.
pub(super) const QUOTA_KEYS: [&str; 8] =
    ["algorithm", "quota", "window", "time_zone", "starts", "resolution", "max_wait", "max_queue"];

/// Compiles the limit's quota. A faulty one is replaced so that later checks still work.
pub(super) fn quota(section: &Section<'_>, limit: &config::LimitConfig) -> Quota {
    let (window, resolution) = (limit.window.millis(), limit.resolution());
    if !divides(window, resolution) && section.can_read(&["window", "algorithm"]) {
        let what = format!("`{resolution}` sub-windows of {}", limit.window);
        section.at("resolution").fault(what, &valid_resolutions(window, resolution));
    }
    let quota = quota_of(limit, limit.quota);
    if divides(window, resolution) {
        check_precision(section, &section.at("quota"), &quota);
    }
    quota
}

/// The quota of `limit` with `number` units. Faulty settings are replaced so that later checks
/// still work.
fn quota_of(limit: &config::LimitConfig, number: u64) -> Quota {
    QuotaShape::of(limit).with_units(number)
}

/// A quota without its number of units: makes the quotas of plans, tiers and overrides.
#[derive(Clone, Copy, Debug)]
pub struct QuotaShape {
    /// As configured.
    configured_window: WindowConfig,
    /// Of a calendar, an upper bound.
    window: Millis,
    /// The algorithm; of a leaky bucket with the longest delay that is configured.
    algorithm: Algorithm,
    /// The configured `max_queue`, for a leaky bucket.
    max_queue: Option<u32>,
}

impl QuotaShape {
    /// The shape of the quotas of `limit`. Faulty settings are replaced so that later checks still
    /// work.
    pub(super) fn of(limit: &config::LimitConfig) -> Self {
        let calendar = limit.calendar();
        let length = limit.window.millis();
        let window = calendar.map_or(length, Calendar::longest);
        let algorithm = match limit.algorithm {
            config::AlgorithmConfig::SlidingWindow => {
                let resolution = limit.resolution();
                let resolution = if divides(window, resolution) { resolution } else { 1 };
                Algorithm::SlidingWindow { resolution, strict: limit.strict }
            }
            config::AlgorithmConfig::SlidingLog => Algorithm::SlidingLog,
            config::AlgorithmConfig::FixedWindow => {
                calendar.map_or(Algorithm::FixedWindow, Algorithm::CalendarWindow)
            }
            config::AlgorithmConfig::TokenBucket => Algorithm::TokenBucket,
            config::AlgorithmConfig::LeakyBucket => {
                let wait = limit.max_wait.map_or(length, config::Duration::millis);
                Algorithm::LeakyBucket { max_wait: wait.min(leaky_bucket::MAX_WAIT) }
            }
            config::AlgorithmConfig::Concurrency => Algorithm::Concurrency,
        };
        Self { configured_window: limit.window, window, algorithm, max_queue: limit.max_queue }
    }

    /// The configured window.
    pub(super) fn configured_window(&self) -> WindowConfig {
        self.configured_window
    }

    /// The quota with `number` units.
    pub fn with_units(&self, number: u64) -> Quota {
        let algorithm = match self.algorithm {
            Algorithm::LeakyBucket { max_wait } => {
                let queue =
                    self.max_queue.map_or(Millis::MAX, |max| queue_wait(max, self.window, number));
                Algorithm::LeakyBucket { max_wait: max_wait.min(queue) }
            }
            other => other,
        };
        Quota::new(number, self.window, algorithm)
    }
}

/// A quota that its algorithm cannot count exactly: what is wrong, and what was expected.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct TooManyUnits {
    pub(super) what: String,
    pub(super) expected: String,
}

impl TooManyUnits {
    /// The fault of `quota`; `None` if it can be counted exactly.
    pub(super) fn of(quota: &Quota) -> Option<Self> {
        let own_bound = quota.algorithm.max_units();
        let max = counted_millis(quota)
            .map_or(own_bound, |millis| own_bound.min(MAX_QUOTA_MILLIS / millis.max(1)));
        if quota.limit <= max {
            return None;
        }
        let name = quota.algorithm.tag();
        let shorter = match quota.algorithm {
            Algorithm::TokenBucket if max < own_bound => ", a shorter window",
            Algorithm::LeakyBucket { .. } if max < own_bound => ", a shorter window and max_wait",
            _ => "",
        };
        Some(Self {
            what: format!("`{}`, too large to count exactly with `{name}`", quota.limit),
            expected: format!(
                "at most {max}{shorter}, or `fixed_window` or `sliding_window`, which count up to {MAX_UNITS}"
            ),
        })
    }
}

/// The number of ms by which a bucket multiplies each unit of the quota; `None` if the algorithm
/// counts units.
fn counted_millis(quota: &Quota) -> Option<u64> {
    match quota.algorithm {
        Algorithm::TokenBucket => Some(quota.window.as_ms()),
        Algorithm::LeakyBucket { max_wait } => Some(quota.window.max(max_wait).as_ms()),
        Algorithm::SlidingWindow { .. }
        | Algorithm::SlidingLog
        | Algorithm::FixedWindow
        | Algorithm::CalendarWindow(_)
        | Algorithm::Concurrency
        | Algorithm::Block { .. } => None,
    }
}

/// The `max_wait` that lets at most `max` requests wait: the delay of the last one if all
/// arrive at once, right after another request. It is rounded up, so that the last one fits. Above
/// a rate of one request per ms it is rounded down, because a spare ms would let several more wait.
fn queue_wait(max: u32, window: Millis, number: u64) -> Millis {
    // In units of `1 / number` ms.
    let slots = window.saturating_mul(max.into()).as_ms();
    let wait = if number <= window.as_ms() { slots.div_ceil(number) } else { slots / number };
    Millis::from_ms(wait)
}

/// Reports a quota that could not be counted exactly, and notes a large log.
fn check_precision(section: &Section<'_>, at: &Section<'_>, quota: &Quota) {
    if !section.can_read(&QUOTA_KEYS) {
        return;
    }
    if let Some(TooManyUnits { what, expected }) = TooManyUnits::of(quota) {
        at.fault(what, &expected);
    } else if quota.algorithm == Algorithm::SlidingLog {
        check_log(section, at, quota);
    }
}

/// Reports a log whose window is too long, and notes one that may grow large.
fn check_log(section: &Section<'_>, at: &Section<'_>, quota: &Quota) {
    let fits = quota.window <= sliding_log::MAX_WINDOW;
    let longest = format!("at most {}h", sliding_log::MAX_WINDOW / Millis::from_mins(60));
    section.at("window").ensure(fits, "too long for sliding_log", &longest);
    if quota.limit > LARGE_LOG {
        let what = format!("`{}` with sliding_log: up to 8 bytes per unit and key", quota.limit);
        let expected = format!("at most {LARGE_LOG}, or sliding_window with `strict: true`");
        at.note(what, &expected);
    }
}

fn divides(window: Millis, resolution: u32) -> bool {
    (1..=MAX_RESOLUTION).contains(&resolution)
        && window.as_ms().is_multiple_of(u64::from(resolution))
}

/// The nearest valid resolutions, as a fault lists them.
fn valid_resolutions(window: Millis, resolution: u32) -> String {
    let mut below = (1..resolution.min(MAX_RESOLUTION + 1)).rev();
    let mut above = resolution.saturating_add(1)..=MAX_RESOLUTION;
    let below = below.find(|&k| divides(window, k));
    let above = above.find(|&k| divides(window, k));
    let near: Vec<String> = below.into_iter().chain(above).map(|k| k.to_string()).collect();
    format!(
        "a resolution from 1 to {MAX_RESOLUTION} that divides the window, such as {}",
        near.join(" or ")
    )
}

/// The quota of a tier or candidate of `configured`: `number` units, configured at `at`.
pub(super) fn alternative_quota(
    section: &Section<'_>,
    at: &Section<'_>,
    configured: &config::LimitConfig,
    number: u64,
) -> Quota {
    let quota = quota_of(configured, number);
    check_precision(section, at, &quota);
    quota
}
