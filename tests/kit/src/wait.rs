//! Waiting for events outside the test's control: another thread, another process, the wall clock.

use std::time::{Duration, Instant};

use tidegate::clock;

/// How long [`eventually`] waits. Only a failing test waits that long.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// Interval between two evaluations of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Waits until `condition` holds, and fails the test after [`TIMEOUT`].
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start: Instant = clock::instant();
    while !condition() {
        assert!(start.elapsed() < TIMEOUT, "not within {TIMEOUT:?}: {what}");
        sleep(POLL_INTERVAL);
    }
}

/// [`eventually`] for an asynchronous condition.
pub async fn eventually_async(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let start: Instant = clock::instant();
    while !condition().await {
        assert!(start.elapsed() < TIMEOUT, "not within {TIMEOUT:?}: {what}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Blocks the calling thread for real time. Use it only where real time is under test.
#[expect(clippy::disallowed_methods, reason = "a test's own thread, which serves no connection")]
pub fn sleep(time: Duration) {
    std::thread::sleep(time);
}

/// Runs `action`; returns its value and how long it took.
pub fn timed<T>(action: impl FnOnce() -> T) -> (T, Duration) {
    let start: Instant = clock::instant();
    let value = action();
    (value, start.elapsed())
}
