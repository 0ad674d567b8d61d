//! [`Pace`]: the rate at which a client sends or reads the bytes of a transfer. Pure: time is a
//! parameter, in ms.

use tidegate_system::clock::CoarseTime;

/// Time spent waiting for the client, in ms, over which its rate is measured.
pub(super) const WINDOW: u64 = 10_000;
/// The same for a transfer beyond the client's share of the places, in ms.
pub(super) const EXCESS_WINDOW: u64 = 2_000;

/// The bytes that a client has sent or read, and the time spent waiting for it. Waiting for the
/// target does not count against the client.
#[derive(Debug, Default)]
pub(super) struct Pace {
    waiting_since: Option<CoarseTime>,
    /// The total of ended waits, in ms.
    waited: u64,
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
            self.waited += now.saturating_sub(since);
        }
    }

    /// Counts bytes that the client has sent or read.
    pub(super) fn add(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// True if the transfer has waited for the client for `window` ms (at most [`WINDOW`]), at
    /// fewer than `min_rate` bytes a second. The measurement restarts every [`WINDOW`].
    pub(super) fn is_slow(&mut self, now: CoarseTime, min_rate: u64, window: u64) -> bool {
        let waited = self.waited + self.waiting_since.map_or(0, |since| now.saturating_sub(since));
        if waited < window {
            return false;
        }
        let is_slow = u128::from(self.bytes) * 1000 < u128::from(min_rate) * u128::from(waited);
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

    fn ms(ms: u64) -> CoarseTime {
        CoarseTime::from_ms(ms)
    }

    #[test]
    fn a_client_without_progress_is_slow_after_the_window() {
        let mut pace = Pace::default();
        pace.wait(ms(1_000));
        assert!(!pace.is_slow(ms(10_999), 1, WINDOW));
        assert!(pace.is_slow(ms(11_000), 1, WINDOW));
        let mut pace = Pace::default();
        pace.wait(ms(1_000));
        assert!(
            !pace.is_slow(ms(2_999), 1, EXCESS_WINDOW) && pace.is_slow(ms(3_000), 1, EXCESS_WINDOW)
        );
    }

    #[test]
    fn the_rate_is_that_of_the_time_of_waiting() {
        let mut pace = Pace::default();
        pace.wait(ms(0));
        pace.add(5_000);
        pace.stop(ms(5_000));
        // The target takes a minute.
        assert!(!pace.is_slow(ms(65_000), 1_000, WINDOW));
        pace.wait(ms(65_000));
        pace.add(4_999);
        assert!(pace.is_slow(ms(70_000), 1_000, WINDOW), "9,999 bytes in 10 s");
    }

    #[test]
    fn each_window_is_measured_anew() {
        let mut pace = Pace::default();
        pace.wait(ms(0));
        pace.add(1 << 30);
        assert!(!pace.is_slow(ms(10_000), 1_000, WINDOW));
        pace.add(9_999);
        assert!(!pace.is_slow(ms(19_999), 1_000, WINDOW), "the window has not ended");
        assert!(pace.is_slow(ms(20_000), 1_000, WINDOW));
        assert!(!pace.is_slow(ms(1 << 60), 0, WINDOW), "no rate is required");
    }
}
