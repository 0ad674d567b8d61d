//! Waiting for what happens in its own time: another thread, another process, the wall clock.

use std::time::{Duration, Instant};

use tidegate::clock;

/// How long a test waits for what should happen soon. Only one that fails waits so long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until `condition` holds, and fails the test if it does not for long.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start: Instant = clock::instant();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        pause(Duration::from_millis(10));
    }
}

/// Waits for the wall clock: only where the real time is what is tested.
#[expect(clippy::disallowed_methods, reason = "a test's own thread; nothing is served by it")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// How long `act` took, and what it gave.
#[allow(dead_code, reason = "a kit: no suite uses all of it")]
pub(crate) fn timed<T>(act: impl FnOnce() -> T) -> (T, Duration) {
    let start: Instant = clock::instant();
    let value = act();
    (value, start.elapsed())
}
