//! [`Pace`]: the rate at which a client sends or reads the bytes of a transfer. Pure: time is a
//! parameter.

use tidegate_base::time::{CoarseTime, Millis};

/// Time spent waiting for the client, over which its rate is measured.
pub(super) const WINDOW: Millis = Millis::from_secs(10);
/// The same for a transfer beyond the client's share of the places.
pub(super) const EXCESS_WINDOW: Millis = Millis::from_secs(2);

/// The bytes that a client has sent or read, and the time spent waiting for it. Waiting for the
/// target does not count against the client.
#[derive(Debug, Default)]
pub(super) struct Pace {
    waiting_since: Option<CoarseTime>,
    /// The total of ended waits.
    waited: Millis,
    bytes: u64,
}

impl Pace {
    /// Begins to wait for the client, unless it already waits.
    pub(super) fn wait(&mut self, now: CoarseTime) {
        self.waiting_since.get_or_insert(now);
    }

    /// Ends the wait for the client.
    pub(super) fn stop(&mut self, now: CoarseTime) {
        if let Some(since) = self.waiting_since.take() {
            self.waited += now.since(since);
        }
    }

    /// Counts bytes that the client has sent or read.
    pub(super) fn add(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// True if the transfer has waited for the client for `window`, which is at most [`WINDOW`], at
    /// fewer than `min_rate` bytes a second. The measurement restarts every [`WINDOW`].
    pub(super) fn is_slow(&mut self, now: CoarseTime, min_rate: u64, window: Millis) -> bool {
        let waiting = self.waiting_since.map_or(Millis::ZERO, |since| now.since(since));
        let waited = self.waited + waiting;
        if waited < window {
            return false;
        }
        let least = u128::from(min_rate) * u128::from(waited.as_ms());
        let is_slow = u128::from(self.bytes) * 1000 < least;
        if waited >= WINDOW {
            let waiting_since = self.waiting_since.map(|_| now);
            *self = Self { waiting_since, ..Self::default() };
        }
        is_slow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> CoarseTime {
        CoarseTime::from_ms(ms)
    }

    #[test]
    fn a_client_without_progress_is_slow_after_the_window() {
        let mut pace = Pace::default();
        pace.wait(at(1_000));
        assert!(!pace.is_slow(at(10_999), 1, WINDOW));
        assert!(pace.is_slow(at(11_000), 1, WINDOW));
        let mut pace = Pace::default();
        pace.wait(at(1_000));
        assert!(
            !pace.is_slow(at(2_999), 1, EXCESS_WINDOW) && pace.is_slow(at(3_000), 1, EXCESS_WINDOW)
        );
    }

    #[test]
    fn the_rate_is_that_of_the_time_of_waiting() {
        let mut pace = Pace::default();
        pace.wait(at(0));
        pace.add(5_000);
        pace.stop(at(5_000));
        // The target takes a minute.
        assert!(!pace.is_slow(at(65_000), 1_000, WINDOW));
        pace.wait(at(65_000));
        pace.add(4_999);
        assert!(pace.is_slow(at(70_000), 1_000, WINDOW), "9,999 bytes in 10 s");
    }

    #[test]
    fn each_window_is_measured_anew() {
        let mut pace = Pace::default();
        pace.wait(at(0));
        pace.add(1 << 30);
        assert!(!pace.is_slow(at(10_000), 1_000, WINDOW));
        pace.add(9_999);
        assert!(!pace.is_slow(at(19_999), 1_000, WINDOW), "the window has not ended");
        assert!(pace.is_slow(at(20_000), 1_000, WINDOW));
        assert!(!pace.is_slow(at(1 << 60), 0, WINDOW), "no rate is required");
    }
}
