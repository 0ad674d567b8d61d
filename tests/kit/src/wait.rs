//! Waiting for events outside the test's control: another thread, another process, the wall clock.

use std::{
    pin::pin,
    time::{Duration, Instant},
};

use tidegate::clock::{self, Clock};

/// How long [`eventually`] waits. Only a failing test waits that long.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// Interval between two evaluations of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// How far [`while_clock_advances`] advances the clock at a time.
pub const STEP: Duration = Duration::from_millis(50);

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

/// Waits until `value` stays the same for 25 evaluations at an interval of 20 ms: what moves it has
/// nothing left to do. Fails the test after [`TIMEOUT`]. Use it only where no event shows that.
pub fn until_unchanged<T: PartialEq>(what: &str, mut value: impl FnMut() -> T) {
    let start: Instant = clock::instant();
    let (mut last, mut same) = (value(), 0);
    while same < 25 {
        assert!(start.elapsed() < TIMEOUT, "it changes for {TIMEOUT:?}: {what}");
        sleep(Duration::from_millis(20));
        let now = value();
        same = if now == last { same + 1 } else { 0 };
        last = now;
    }
}

/// Drives `future` while a simulated clock advances: [`STEP`] each ms, so that seconds of timeouts
/// and pauses take milliseconds, and a server in another process still has time to answer. Returns
/// the output, and how much time passed by the clock. Fails the test after [`TIMEOUT`].
pub async fn while_clock_advances<T>(
    clock: &Clock,
    future: impl Future<Output = T>,
) -> (T, Duration) {
    let (start, limit): (_, Instant) = (clock.uptime(), clock::instant() + TIMEOUT);
    let mut future = pin!(future);
    loop {
        let step = tokio::time::timeout(Duration::from_millis(1), future.as_mut());
        if let Ok(output) = step.await {
            return (output, clock.uptime().saturating_sub(start));
        }
        assert!(clock::instant() < limit, "not within {TIMEOUT:?}");
        clock.advance(STEP);
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
