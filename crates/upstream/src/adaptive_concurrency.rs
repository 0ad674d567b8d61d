//! Adaptive concurrency: a limit on the requests in flight at a target, found from its latency.
//!
//! An overloaded target queues requests, and its latency rises. So the limit follows the gradient:
//! the latency without load, divided by the current one. As in Netflix's `concurrency-limits`
//! (`Gradient2Limit`) and Envoy's adaptive concurrency filter, at the end of each window:
//!
//! ```text
//! gradient = clamp(1.25 × base latency / latency, 0.5, 1)
//! limit    = gradient × limit + headroom,   headroom = min(√limit, limit / 4)
//! ```
//!
//! - **Windows** last at least 100 ms, or one base latency if that is longer. They have at least
//!   100 attempts, or fewer if 100 take more than a second. Their latency is the geometric mean.
//!   Attempts sent before the last decrease do not count: they waited in the queue that the
//!   decrease shortens.
//! - **Base latency** is tracked while less than half of the limit is in use. Under load it is
//!   measured once a minute, and also when the latency stays above twice the base. A measurement
//!   halves the limit until the latency falls no further. Envoy instead measures at 3 requests in
//!   flight, and refuses more meanwhile.
//! - **Drops**: refused attempts and timeouts lower the limit by their share.
//! - **Unused limits** do not grow: use of less than half the limit does not show whether
//!   a higher one would hold.

mod window;

use tidegate_base::time::{CoarseTime, Millis};

use self::window::Window;

/// Minimum duration of a window.
const MIN_WINDOW: Millis = Millis::from_ms(100);
/// Rules that end a window: a minimum number of attempts, and a minimum duration. One rule suffices.
const WINDOWS: [(u32, Millis); 3] =
    [(100, MIN_WINDOW), (20, Millis::from_secs(1)), (1, Millis::from_secs(10))];
/// The tolerated latency, relative to the base.
const TOLERANCE: f64 = 1.25;
/// The gradient's minimum, which bounds the decrease in one window.
const MIN_GRADIENT: f64 = 0.5;
/// The gradient's maximum if attempts were dropped.
const DROP_GRADIENT: f64 = 0.9;
/// Minimum number of attempts in a window for drops to count while less than half of the limit is
/// in use. In smaller windows, load is unlikely to be the cause.
const UNUSED_DROPS_ATTEMPTS: u32 = 20;
/// Minimum share of drops in such a window for them to count.
const UNUSED_DROPS_SHARE: f64 = 0.1;
/// The initial limit.
const INITIAL_LIMIT: u32 = 20;
/// The weight of a window in the base latency while the target is not loaded.
const BASE_WEIGHT: f64 = 0.1;
/// Time after which the base latency is measured, and the maximum of a random addition to it.
const BASE_LIFETIME: Millis = Millis::from_mins(1);
const BASE_JITTER: Millis = Millis::from_secs(10);
/// Number of consecutive windows above twice the base latency after which it is measured.
const MAX_SLOW_WINDOWS: u32 = 5;
/// A measurement continues while halving the limit lowers the latency below this share of the
/// previous one.
const MEASURE_GAIN: f64 = 0.85;

/// The bounds of a limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ConcurrencyBounds {
    /// The lowest limit; at least 1.
    pub min: u32,
    /// The highest limit; at least `min`.
    pub max: u32,
}

/// An attempt that has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sample {
    /// The time from the attempt's start to the response's head or the failure, in us.
    pub latency: u64,
    /// The requests in flight at the target when the attempt started, including this one.
    pub in_flight: u32,
    /// The attempt's outcome.
    pub outcome: SampleOutcome,
}

/// The outcome of an attempt.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SampleOutcome {
    /// With a response.
    Responded,
    /// The target refused it as overloaded, or did not respond in time.
    Dropped,
}

/// The limit of one target.
#[derive(Clone, Debug)]
pub struct AdaptiveLimit {
    bounds: ConcurrencyBounds,
    limit: f64,
    phase: AdaptivePhase,
    window: Window,
    /// Attempts that started before this time do not count.
    valid_from: CoarseTime,
    /// The latency without load, in us; `None` before the first measurement.
    base: Option<f64>,
    /// The time at which the base latency is measured.
    measure_at: CoarseTime,
    /// An addition to the time between measurements, so that the targets of an upstream are not
    /// measured at once.
    jitter: Millis,
    /// Windows in a row above twice the base latency.
    slow_windows: u32,
}

/// The purpose of the windows.
#[derive(Clone, Copy, Debug, PartialEq)]
enum AdaptivePhase {
    /// Adapt the limit.
    Adapt,
    /// Measure the base latency.
    Measure {
        /// The limit before the measurement.
        limit: f64,
        /// The latency of the previous window, in us.
        previous: Option<f64>,
    },
}

impl AdaptiveLimit {
    /// A limit within `bounds`, at `now`. `random` are random bits.
    pub fn new(bounds: ConcurrencyBounds, random: u64, now: CoarseTime) -> Self {
        let min = bounds.min.max(1);
        let bounds = ConcurrencyBounds { min, max: bounds.max.max(min) };
        let limit = f64::from(INITIAL_LIMIT.clamp(bounds.min, bounds.max));
        Self {
            bounds,
            limit,
            phase: AdaptivePhase::Measure { limit, previous: None },
            window: Window::new(now),
            valid_from: now,
            base: None,
            measure_at: now,
            jitter: Millis::from_ms(random) % BASE_JITTER,
            slow_windows: 0,
        }
    }

    /// Maximum number of requests in flight.
    pub fn limit(&self) -> u32 {
        self.limit as u32
    }

    /// Records an attempt that ended at `now`. Returns the limit if it changed.
    pub fn record(&mut self, sample: Sample, now: CoarseTime) -> Option<u32> {
        let started = now.before(Millis::from_ms(sample.latency / 1_000));
        if started < self.valid_from {
            return None;
        }
        self.window.max_in_flight = self.window.max_in_flight.max(sample.in_flight);
        match sample.outcome {
            SampleOutcome::Responded => self.window.add(sample.latency),
            SampleOutcome::Dropped => self.window.dropped = self.window.dropped.saturating_add(1),
        }
        if !self.is_window_over(now) {
            return None;
        }
        let before = self.limit();
        self.end_window(now);
        (self.limit() != before).then(|| self.limit())
    }

    fn is_window_over(&self, now: CoarseTime) -> bool {
        let age = now.since(self.window.began);
        let latency = self.base.map_or(Millis::ZERO, |base| Millis::from_ms(base as u64 / 1_000));
        let is_over = |&(attempts, duration): &(u32, Millis)| {
            self.window.len() >= attempts && age >= duration.max(latency)
        };
        WINDOWS.iter().any(is_over)
    }

    fn end_window(&mut self, now: CoarseTime) {
        let window = std::mem::replace(&mut self.window, Window::new(now));
        let latency = window.latency();
        match (self.phase, latency) {
            // With less than half of the limit in use, there is no queue, so halving the limit
            // would show nothing.
            (AdaptivePhase::Measure { limit, .. }, Some(latency)) if !self.is_used(&window) => {
                self.end_measurement(limit, latency, now);
            }
            (AdaptivePhase::Measure { limit, previous }, Some(latency)) => {
                self.measure(limit, previous, latency, now);
            }
            (AdaptivePhase::Measure { limit, .. }, None) if self.base.is_some() => {
                self.phase = AdaptivePhase::Adapt;
                self.set_limit(limit * MIN_GRADIENT, now);
            }
            _ => self.adapt(&window, latency, now),
        }
    }

    /// One step of a measurement: halves the limit until the latency falls no further.
    fn measure(&mut self, limit: f64, previous: Option<f64>, latency: f64, now: CoarseTime) {
        let falls = previous.is_none_or(|previous| latency < MEASURE_GAIN * previous);
        if falls && self.limit() > self.bounds.min {
            self.phase = AdaptivePhase::Measure { limit, previous: Some(latency) };
            self.set_limit(self.limit / 2.0, now);
            return;
        }
        // Uses the last latency even if `previous` is lower: the lower of the two may be low by
        // chance.
        self.end_measurement(limit, latency, now);
    }

    /// Continues with `limit` and this base latency, in us.
    fn end_measurement(&mut self, limit: f64, latency: f64, now: CoarseTime) {
        self.base = Some(latency);
        self.measure_at = now + BASE_LIFETIME + self.jitter;
        self.slow_windows = 0;
        self.phase = AdaptivePhase::Adapt;
        self.set_limit(limit, now);
    }

    /// True if at least half of the limit was in use.
    fn is_used(&self, window: &Window) -> bool {
        u64::from(window.max_in_flight) * 2 >= u64::from(self.limit())
    }

    fn adapt(&mut self, window: &Window, latency: Option<f64>, now: CoarseTime) {
        let is_used = self.is_used(window);
        if window.dropped > 0 {
            let share = f64::from(window.dropped) / f64::from(window.len());
            let gradient = (1.0 - share).clamp(MIN_GRADIENT, DROP_GRADIENT);
            let in_flight = f64::from(window.max_in_flight);
            if is_used {
                self.set_limit(self.limit.min(in_flight) * gradient, now);
            } else if share >= UNUSED_DROPS_SHARE && window.len() >= UNUSED_DROPS_ATTEMPTS {
                self.set_limit((self.limit * gradient).max(2.0 * in_flight), now);
            }
            return;
        }
        let (Some(latency), Some(base)) = (latency, self.base) else { return };
        if !is_used {
            self.base = Some(base + (latency - base) * BASE_WEIGHT);
            self.measure_at = now + BASE_LIFETIME + self.jitter;
            self.slow_windows = 0;
            return;
        }
        self.slow_windows = if latency > 2.0 * base { self.slow_windows + 1 } else { 0 };
        if now >= self.measure_at || self.slow_windows >= MAX_SLOW_WINDOWS {
            self.phase = AdaptivePhase::Measure { limit: self.limit, previous: Some(latency) };
            self.set_limit(self.limit / 2.0, now);
            return;
        }
        let gradient = (TOLERANCE * base / latency).clamp(MIN_GRADIENT, 1.0);
        let headroom = self.limit.sqrt().min(self.limit / 4.0);
        self.set_limit(self.limit * gradient + headroom, now);
    }

    fn set_limit(&mut self, limit: f64, now: CoarseTime) {
        let limit = limit.clamp(f64::from(self.bounds.min), f64::from(self.bounds.max));
        if limit < self.limit {
            self.valid_from = now;
        }
        self.limit = limit;
    }
}

#[cfg(test)]
use tidegate_base::mix::SplitMix;

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
