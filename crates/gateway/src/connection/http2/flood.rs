//! Detects an HTTP/2 client that causes much work with few requests (RFC 9113, 10.5).

use std::cell::Cell;

use tidegate_system::clock::CoarseTime;
use tidegate_transport::FrameCounts;

/// Number of streams in a second below which resets are not a flood.
const MIN_STREAMS: u32 = 500;
/// The same for a proxy, whose streams are those of many clients: one of them must not end the
/// connection of all.
const MIN_PROXY_STREAMS: u32 = 20_000;
/// Number of control frames in a second that are allowed without content.
const MIN_CONTROL_FRAMES: u64 = 1000;
/// Maximum number of control frames for each frame of a head or a body that the client sends.
const MAX_CONTROL_PER_CONTENT: u64 = 10;
/// Number of body bytes sent to the client that allow one control frame. A client sends one
/// `WINDOW_UPDATE` for many bytes.
const BYTES_PER_CONTROL: u64 = 64;

/// Counts of one client's activity in the current second.
pub(super) struct FloodDetector {
    /// Number of streams in a second below which resets are not a flood.
    min_streams: u32,
    /// The number of the current second.
    second: Cell<u64>,
    accepted: Cell<u32>,
    reset: Cell<u32>,
    received: Cell<FrameCounts>,
    sent: Cell<u64>,
}

impl FloodDetector {
    /// For the connection of one client.
    pub(super) fn of_client() -> Self {
        Self {
            min_streams: MIN_STREAMS,
            second: Cell::default(),
            accepted: Cell::default(),
            reset: Cell::default(),
            received: Cell::default(),
            sent: Cell::default(),
        }
    }

    /// For the connection of a proxy, which has the requests of many clients.
    pub(super) fn of_proxy() -> Self {
        Self { min_streams: MIN_PROXY_STREAMS, ..Self::of_client() }
    }

    fn enter_second(&self, now: CoarseTime) {
        let second = now.since(CoarseTime::ZERO).as_whole_secs();
        if self.second.replace(second) != second {
            self.accepted.set(0);
            self.reset.set(0);
            self.received.set(FrameCounts::default());
            self.sent.set(0);
        }
    }

    /// Counts a stream that the client opened.
    pub(super) fn count_accepted(&self, now: CoarseTime) {
        self.enter_second(now);
        self.accepted.set(self.accepted.get() + 1);
    }

    /// Counts a stream that the client reset.
    pub(super) fn count_reset(&self, now: CoarseTime) {
        self.enter_second(now);
        self.reset.set(self.reset.get() + 1);
    }

    /// Counts frames that the client sent.
    pub(super) fn count_frames(&self, now: CoarseTime, frames: FrameCounts) {
        self.enter_second(now);
        self.received.set(self.received.get() + frames);
    }

    /// Counts bytes of a body that were sent to the client.
    pub(super) fn count_sent(&self, now: CoarseTime, bytes: u64) {
        self.enter_second(now);
        self.sent.set(self.sent.get() + bytes);
    }

    /// True if the client reset more than half of its streams (CVE-2023-44487), or sent more
    /// control frames than the content in both directions allows (CVE-2019-9511, 9512, 9513, 9515).
    pub(super) fn is_detected(&self) -> bool {
        let (accepted, reset) = (self.accepted.get(), self.reset.get());
        let FrameCounts { content, control, .. } = self.received.get();
        let explained = content * MAX_CONTROL_PER_CONTENT + self.sent.get() / BYTES_PER_CONTROL;
        accepted >= self.min_streams && reset > accepted / 2
            || control > explained + MIN_CONTROL_FRAMES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_many_resets_within_a_second_are_a_flood() {
        let flood = FloodDetector::of_client();
        let count = |now_ms, accepted, reset| {
            let now = CoarseTime::from_ms(now_ms);
            (0..accepted).for_each(|_| flood.count_accepted(now));
            (0..reset).for_each(|_| flood.count_reset(now));
            flood.is_detected()
        };
        assert!(!count(1000, 499, 499), "too few");
        assert!(!count(2000, 500, 250), "half of them");
        assert!(count(2999, 0, 1), "more than half");
        assert!(!count(3000, 10, 10), "another second");
        let proxy = FloodDetector::of_proxy();
        let now = CoarseTime::from_ms(1000);
        (0..19_999).for_each(|_| proxy.count_accepted(now));
        (0..19_999).for_each(|_| proxy.count_reset(now));
        assert!(!proxy.is_detected(), "clients of a proxy");
        proxy.count_accepted(now);
        assert!(proxy.is_detected());
    }

    #[test]
    fn only_many_control_frames_within_a_second_are_a_flood() {
        let flood = FloodDetector::of_client();
        let count = |now_ms, control, content, sent| {
            let now = CoarseTime::from_ms(now_ms);
            flood.count_frames(now, FrameCounts { content, control, empty: 0 });
            flood.count_sent(now, sent);
            flood.is_detected()
        };
        assert!(!count(1000, 1000, 0, 0), "too few");
        assert!(count(1999, 1, 0, 0), "too many");
        assert!(!count(2000, 1, 0, 0), "another second");
        assert!(!count(3000, 1010, 1, 0), "a head explains ten");
        assert!(count(3000, 1, 0, 63), "too little is sent");
        assert!(!count(3000, 0, 0, 1), "64 bytes that were sent explain one");
    }
}
