//! The only place that reads a clock.
//!
//! Everything else takes the time as a parameter, or waits with a [`Clock`]: the system's, or one that a
//! test moves. Workers wait for deadlines, delays and the drain on their clock, so a test advances minutes
//! of them in milliseconds.
//!
//! ```
//! use std::time::Duration;
//! use tidegate::clock::Clock;
//!
//! let clock = Clock::simulated(1_700_000_000_000);
//! clock.advance(Duration::from_secs(60));
//! assert_eq!(clock.now(), 1_700_000_060_000);
//! assert_eq!(clock.ticks(), 60_000);
//! ```

use std::{
    collections::BTreeMap,
    future::Future,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use futures_util::future::{Either, select};
use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

/// The source of time. Cheap to clone; all clones of a manual clock move together.
#[derive(Clone, Debug)]
pub struct Clock {
    made: Instant,
    manual: Option<Arc<Manual>>,
}

/// The future did not finish in time.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("deadline has elapsed")]
pub struct Elapsed;

/// A clock that stands still between two moves.
#[derive(Debug)]
struct Manual {
    start: u64,
    /// Whether waits go by this clock, too.
    simulates_waits: bool,
    state: Mutex<ManualState>,
    /// Wakes the tasks that sleep.
    moved: Notify,
    /// Wakes the test that waits in [`Clock::advance`].
    settled: Condvar,
}

#[derive(Debug)]
struct ManualState {
    /// Ms since the Unix epoch.
    now: u64,
    next_interval: u64,
    /// For each [`Interval`] the tick that it waits for, in ms of [`Clock::ticks`]; `None` while its task
    /// does the work of the last one.
    intervals: BTreeMap<u64, Option<u64>>,
}

/// The longest that [`Clock::advance`] waits for the periodic tasks, in real time: one of them may itself
/// wait for a peer.
const SETTLE_TIMEOUT: Duration = Duration::from_millis(200);

impl Clock {
    /// The system's clock.
    pub fn system() -> Self {
        Self { made: instant(), manual: None }
    }

    /// A clock that stands at `start` (ms since the Unix epoch) until it is moved with [`Self::set`] or
    /// [`Self::advance`]. It dates decisions and cached state; waits still take real time, so it can jump
    /// over hours without ending connections.
    pub fn manual(start: u64) -> Self {
        Self::with_manual(start, false)
    }

    /// A [`Self::manual`] clock by which waits go as well: nothing times out until the test advances it.
    pub fn simulated(start: u64) -> Self {
        Self::with_manual(start, true)
    }

    fn with_manual(start: u64, simulates_waits: bool) -> Self {
        let state = ManualState { now: start, next_interval: 0, intervals: BTreeMap::new() };
        let (moved, settled) = (Notify::new(), Condvar::new());
        let state = Mutex::new(state);
        let manual = Manual { start, simulates_waits, state, moved, settled };
        Self { made: instant(), manual: Some(Arc::new(manual)) }
    }

    /// The manual clock that waits go by, if it is one.
    fn simulation(&self) -> Option<&Manual> {
        self.manual.as_deref().filter(|manual| manual.simulates_waits)
    }

    /// Whether waits go by a clock that a test advances.
    pub fn is_simulated(&self) -> bool {
        self.simulation().is_some()
    }

    /// The time of day, in ms since the Unix epoch. It may be set back.
    pub fn now(&self) -> u64 {
        match &self.manual {
            Some(manual) => manual.state.lock().now,
            None => system_millis(),
        }
    }

    /// Monotonic time since this clock was made, in ms, for cached state that several threads share. A
    /// manual clock that is set back before its start stays at 0.
    pub fn ticks(&self) -> u64 {
        let time = match &self.manual {
            Some(manual) => manual.uptime(),
            None => self.uptime(),
        };
        time.as_millis() as u64
    }

    /// Monotonic time since this clock was made, by which waits are timed.
    pub fn uptime(&self) -> Duration {
        match self.simulation() {
            Some(manual) => manual.uptime(),
            None => instant().saturating_duration_since(self.made),
        }
    }

    /// The time of a manual clock; `None` for the system's, where Redis' own time is used instead.
    pub fn manual_now(&self) -> Option<u64> {
        self.manual.as_ref().map(|manual| manual.state.lock().now)
    }

    /// Moves a manual clock to `now` (ms since the Unix epoch). The system's clock ignores it.
    pub fn set(&self, now: u64) {
        if let Some(manual) = &self.manual {
            manual.state.lock().now = now;
            manual.moved.notify_waiters();
        }
    }

    /// Moves a manual clock forward, and returns when every periodic task has done its work of that time.
    /// Blocks the thread, which must not be one that runs such a task. The system's clock ignores it.
    pub fn advance(&self, by: Duration) {
        let Some(manual) = &self.manual else { return };
        let mut state = manual.state.lock();
        state.now += by.as_millis() as u64;
        manual.moved.notify_waiters();
        let ticks = state.now.saturating_sub(manual.start);
        manual.settled.wait_while_for(
            &mut state,
            |state| state.intervals.values().any(|next| next.is_none_or(|next| next <= ticks)),
            SETTLE_TIMEOUT,
        );
    }

    /// Returns when it is `at` (ms since the Unix epoch). Needs a runtime.
    pub async fn reached(&self, at: u64) {
        match &self.manual {
            Some(manual) => manual.wait_until(|| manual.state.lock().now >= at).await,
            None => tokio::time::sleep(Duration::from_millis(at.saturating_sub(self.now()))).await,
        }
    }

    /// Returns after `time`. Needs a runtime.
    pub async fn sleep(&self, time: Duration) {
        match self.simulation() {
            Some(_) => self.sleep_until(self.uptime() + time).await,
            None => tokio::time::sleep(time).await,
        }
    }

    /// Returns when [`Self::uptime`] is `at`. Needs a runtime.
    pub async fn sleep_until(&self, at: Duration) {
        match self.simulation() {
            Some(manual) => manual.wait_until(|| manual.uptime() >= at).await,
            None => tokio::time::sleep_until((self.made + at).into()).await,
        }
    }

    /// Drives `future` for at most `time`.
    ///
    /// # Errors
    ///
    /// [`Elapsed`] if it has not finished by then; it is dropped.
    pub async fn timeout<F: Future>(
        &self,
        time: Duration,
        future: F,
    ) -> Result<F::Output, Elapsed> {
        let sleep = pin!(self.sleep(time));
        match select(pin!(future), sleep).await {
            Either::Left((output, _)) => Ok(output),
            Either::Right(((), _)) => Err(Elapsed),
        }
    }

    /// Starts to measure a duration.
    pub fn stopwatch(&self) -> Stopwatch {
        Stopwatch { clock: self.clone(), start: self.uptime() }
    }

    /// Ticks at once, and then every `period`; ticks that were missed are skipped.
    pub fn interval(&self, period: Duration) -> Interval {
        let id = self.simulation().map_or(0, |manual| {
            let mut state = manual.state.lock();
            state.next_interval += 1;
            let id = state.next_interval;
            state.intervals.insert(id, None);
            id
        });
        Interval { clock: self.clone(), period, next: self.uptime(), id }
    }
}

impl Manual {
    fn uptime(&self) -> Duration {
        Duration::from_millis(self.state.lock().now.saturating_sub(self.start))
    }

    /// Returns when the clock has moved to where `reached` holds.
    async fn wait_until(&self, reached: impl Fn() -> bool) {
        loop {
            // Made before the check: a move in between is not missed.
            let moved = self.moved.notified();
            if reached() {
                return;
            }
            moved.await;
        }
    }
}

/// A duration that is being measured; made by [`Clock::stopwatch`].
#[derive(Clone, Debug)]
pub struct Stopwatch {
    clock: Clock,
    start: Duration,
}

impl Stopwatch {
    /// The time since it was started.
    pub fn read(&self) -> Duration {
        self.clock.uptime().saturating_sub(self.start)
    }
}

/// A periodic task's ticks; made by [`Clock::interval`].
#[derive(Debug)]
pub struct Interval {
    clock: Clock,
    period: Duration,
    /// The next tick, by [`Clock::uptime`].
    next: Duration,
    id: u64,
}

impl Interval {
    /// Returns at the next tick.
    pub async fn tick(&mut self) {
        self.note(Some(self.next.as_millis() as u64));
        self.clock.sleep_until(self.next).await;
        self.note(None);
        let now = self.clock.uptime();
        let missed = now.saturating_sub(self.next).as_nanos() / self.period.as_nanos().max(1);
        self.next += self.period * (missed as u32 + 1);
    }

    /// Records in a manual clock which tick this waits for.
    fn note(&self, next: Option<u64>) {
        let Some(manual) = self.clock.simulation() else { return };
        manual.state.lock().intervals.insert(self.id, next);
        manual.settled.notify_all();
    }
}

impl Drop for Interval {
    fn drop(&mut self) {
        let Some(manual) = self.clock.simulation() else { return };
        manual.state.lock().intervals.remove(&self.id);
        manual.settled.notify_all();
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
fn system_millis() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |elapsed| u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX))
}

/// A reading of the system's monotonic clock, for durations that are measured.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the monotonic clock")]
pub fn instant() -> Instant {
    Instant::now()
}
