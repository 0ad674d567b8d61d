//! The only place that reads a clock.
//!
//! Everything else takes the time as a parameter, or waits with a [`Clock`]: the system's, or one
//! that a test moves. Deadlines, delays, the drain, and the store's timeouts and probes use that clock,
//! so a test covers minutes of them in milliseconds of real time.
//!
//! ```
//! use std::time::Duration;
//! use tidegate::clock::Clock;
//!
//! let clock = Clock::simulated(1_700_000_000_000);
//! clock.advance(Duration::from_secs(60));
//! assert_eq!(clock.now(), 1_700_000_060_000);
//! assert_eq!(clock.monotonic_ms(), 60_000);
//! ```

use std::{
    collections::BTreeMap,
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use futures_util::future::{Either, select};
use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

/// The source of time. Cheap to clone; all clones of a manual clock move together.
#[derive(Clone, Debug)]
pub struct Clock {
    created: Instant,
    manual: Option<Arc<ManualClock>>,
}

/// The future did not finish in time.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("deadline has elapsed")]
pub struct Elapsed;

/// A clock that stands still until it is moved.
#[derive(Debug)]
struct ManualClock {
    /// Ms since the Unix epoch.
    start: u64,
    /// Whether waits use this clock as well.
    simulates_waits: bool,
    state: Mutex<ManualClockState>,
    /// Wakes the tasks that sleep.
    moved: Notify,
    /// Wakes the test that waits in [`Clock::advance`].
    settled: Condvar,
}

#[derive(Debug)]
struct ManualClockState {
    /// Ms since the Unix epoch.
    now: u64,
    next_interval: u64,
    /// For each [`Interval`], the tick that it waits for, in ms of [`Clock::monotonic_ms`]; `None` while its
    /// task does the work of the last tick.
    intervals: BTreeMap<u64, Option<u64>>,
}

/// The longest that [`Clock::advance`] waits for the periodic tasks, in real time: one of them may
/// be waiting for a peer.
const SETTLE_TIMEOUT: Duration = Duration::from_millis(200);

impl Clock {
    /// The system's clock.
    pub fn system() -> Self {
        Self { created: instant(), manual: None }
    }

    /// A clock that stands at `start` (ms since the Unix epoch) until it is moved with [`Self::set`] or
    /// [`Self::advance`]. Decisions and cached state use it; waits still take real time, so it can
    /// jump hours ahead without timing out connections.
    pub fn manual(start: u64) -> Self {
        Self::with_manual(start, false)
    }

    /// A [`Self::manual`] clock that waits use as well: nothing times out until the test advances it.
    pub fn simulated(start: u64) -> Self {
        Self::with_manual(start, true)
    }

    fn with_manual(start: u64, simulates_waits: bool) -> Self {
        let state = ManualClockState { now: start, next_interval: 0, intervals: BTreeMap::new() };
        let (moved, settled) = (Notify::new(), Condvar::new());
        let state = Mutex::new(state);
        let manual = ManualClock { start, simulates_waits, state, moved, settled };
        Self { created: instant(), manual: Some(Arc::new(manual)) }
    }

    /// The manual clock, if waits use it.
    fn simulation(&self) -> Option<&ManualClock> {
        self.manual.as_deref().filter(|manual| manual.simulates_waits)
    }

    /// Whether waits use a clock that a test advances.
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

    /// As [`Self::now`], in ns; a manual clock has whole ms.
    pub fn now_nanos(&self) -> u64 {
        match &self.manual {
            Some(manual) => manual.state.lock().now.saturating_mul(1_000_000),
            None => system_time().as_nanos() as u64,
        }
    }

    /// Monotonic time since this clock was created, in ms, for cached state that several threads
    /// share. For a manual clock, the time since its start; 0 if it is set back before that.
    pub fn monotonic_ms(&self) -> u64 {
        let time = match &self.manual {
            Some(manual) => manual.uptime(),
            None => self.uptime(),
        };
        time.as_millis() as u64
    }

    /// Monotonic time since this clock was created; timers use it.
    pub fn uptime(&self) -> Duration {
        match self.simulation() {
            Some(manual) => manual.uptime(),
            None => instant().saturating_duration_since(self.created),
        }
    }

    /// The time of a manual clock, in ms since the Unix epoch; `None` for the system's, where Redis'
    /// own time is used instead.
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

    /// Moves a manual clock forward, and waits until the periodic tasks have done the work of the
    /// elapsed ticks, for at most 200 ms of real time. Blocks the thread, which must not be one that
    /// runs such a task. The system's clock ignores it.
    pub fn advance(&self, by: Duration) {
        self.advance_within(SETTLE_TIMEOUT, by);
    }

    fn advance_within(&self, settle_timeout: Duration, by: Duration) {
        let Some(manual) = &self.manual else { return };
        let mut state = manual.state.lock();
        state.now += by.as_millis() as u64;
        manual.moved.notify_waiters();
        let monotonic_ms = state.now.saturating_sub(manual.start);
        manual.settled.wait_while_for(
            &mut state,
            |state| {
                state.intervals.values().any(|next| next.is_none_or(|next| next <= monotonic_ms))
            },
            settle_timeout,
        );
    }

    /// Returns when [`Self::now`] is at least `at` (ms since the Unix epoch). Needs a runtime.
    pub async fn sleep_until_wall_clock(&self, at: u64) {
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

    /// Returns when [`Self::uptime`] is at least `at`. Needs a runtime.
    pub async fn sleep_until(&self, at: Duration) {
        match self.simulation() {
            Some(manual) => manual.wait_until(|| manual.uptime() >= at).await,
            None => tokio::time::sleep_until((self.created + at).into()).await,
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
        // Passed on by reference: each call that took it by value would hold a copy of its size.
        let future = pin!(future);
        if self.is_simulated() {
            return self.simulated_timeout(self.uptime() + time, future).await;
        }
        tokio::time::timeout(time, future).await.map_err(|_| Elapsed)
    }

    /// Drives `future` until [`Self::uptime`] is at least `at`.
    ///
    /// # Errors
    ///
    /// [`Elapsed`] if it has not finished by then; it is dropped.
    pub async fn timeout_at<F: Future>(
        &self,
        at: Duration,
        future: F,
    ) -> Result<F::Output, Elapsed> {
        let future = pin!(future);
        if self.is_simulated() {
            return self.simulated_timeout(at, future).await;
        }
        let at = (self.created + at).into();
        tokio::time::timeout_at(at, future).await.map_err(|_| Elapsed)
    }

    async fn simulated_timeout<F: Future>(
        &self,
        at: Duration,
        future: Pin<&mut F>,
    ) -> Result<F::Output, Elapsed> {
        let sleep = pin!(self.sleep_until(at));
        match select(future, sleep).await {
            Either::Left((output, _)) => Ok(output),
            Either::Right(((), _)) => Err(Elapsed),
        }
    }

    /// Starts to measure a duration.
    pub fn stopwatch(&self) -> Stopwatch {
        Stopwatch { clock: self.clone(), start: self.uptime() }
    }

    /// An interval that ticks at once, and then every `period`; missed ticks are skipped.
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

    /// An interval for work that may wait for a peer: it ticks at once, and then every `period`, or a
    /// `period` after a late tick. [`Self::advance`] does not wait for its work.
    pub fn background_interval(&self, period: Duration) -> BackgroundInterval {
        BackgroundInterval { clock: self.clone(), period, next: self.uptime() }
    }
}

impl ManualClock {
    fn uptime(&self) -> Duration {
        Duration::from_millis(self.state.lock().now.saturating_sub(self.start))
    }

    /// Returns when `reached` holds; evaluates it again after every move of the clock.
    async fn wait_until(&self, reached: impl Fn() -> bool) {
        loop {
            // Created before the check, so that a move in between is not missed.
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
    /// The time since the start.
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
        self.record_next_tick(Some(self.next.as_millis() as u64));
        self.clock.sleep_until(self.next).await;
        self.record_next_tick(None);
        let now = self.clock.uptime();
        let missed = now.saturating_sub(self.next).as_nanos() / self.period.as_nanos().max(1);
        self.next += self.period * (missed as u32 + 1);
    }

    /// Records the tick that this interval waits for, for [`Clock::advance`].
    fn record_next_tick(&self, next: Option<u64>) {
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

/// A periodic task's ticks; made by [`Clock::background_interval`].
#[derive(Debug)]
pub struct BackgroundInterval {
    clock: Clock,
    period: Duration,
    /// The next tick, by [`Clock::uptime`].
    next: Duration,
}

/// A tick that is later than this was missed: the ticks after it are counted from it.
const MISSED_TICK: Duration = Duration::from_millis(5);

impl BackgroundInterval {
    /// Returns at the next tick. Dropped before, it leaves the tick to the next call.
    pub async fn tick(&mut self) {
        self.clock.sleep_until(self.next).await;
        let now = self.clock.uptime();
        let is_missed = now > self.next + MISSED_TICK;
        self.next = if is_missed { now } else { self.next } + self.period;
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
fn system_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn system_millis() -> u64 {
    u64::try_from(system_time().as_millis()).unwrap_or(u64::MAX)
}

/// The time of the system's monotonic clock (`CLOCK_MONOTONIC`), in µs.
pub fn instant_micros() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000
}

/// The time of the system's monotonic clock, for measuring durations.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the monotonic clock")]
pub fn instant() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };

    use super::*;

    const START: u64 = 1_700_000_000_000;

    /// Runs `task` on a thread of its own, as a worker's tasks run.
    fn spawn<F: Future<Output = ()>>(
        task: impl FnOnce() -> F + Send + 'static,
    ) -> std::thread::JoinHandle<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        std::thread::spawn(move || runtime.unwrap().block_on(task()))
    }

    #[test]
    fn setting_a_manual_clock_does_not_shorten_waits() {
        let clock = Clock::manual(START);
        clock.set(START + 90_000);
        assert_eq!((clock.now(), clock.monotonic_ms()), (START + 90_000, 90_000));
        assert!(clock.uptime() < Duration::from_mins(1));
        clock.set(START - 1);
        assert_eq!((clock.now(), clock.monotonic_ms()), (START - 1, 0));
    }

    #[test]
    fn a_simulated_sleep_ends_when_the_clock_reaches_it() {
        let clock = Clock::simulated(START);
        let sleeping = spawn({
            let clock = clock.clone();
            move || async move { clock.sleep_until(Duration::from_hours(1)).await }
        });
        clock.advance(Duration::from_millis(3_599_999));
        assert!(!sleeping.is_finished());
        clock.advance(Duration::from_millis(1));
        sleeping.join().unwrap();
    }

    #[test]
    fn advance_returns_after_the_work_of_every_tick() {
        let (clock, ticks) = (Clock::simulated(START), Arc::new(AtomicU32::new(0)));
        let mut interval = clock.interval(Duration::from_millis(100));
        let counter = Arc::clone(&ticks);
        let ticking = spawn(move || async move {
            while counter.fetch_add(1, Ordering::SeqCst) < 10 {
                interval.tick().await;
            }
        });
        // Long enough for a busy machine.
        let advance = |ms| clock.advance_within(Duration::from_mins(1), Duration::from_millis(ms));
        // The first tick is at once. It must not come after the first advance, which would skip the second one.
        advance(0);
        assert_eq!(ticks.load(Ordering::SeqCst), 2);
        for expected in 3..=10 {
            advance(if expected == 5 { 350 } else { 100 });
            assert_eq!(ticks.load(Ordering::SeqCst), expected);
        }
        advance(100);
        ticking.join().unwrap();
    }

    #[tokio::test]
    async fn a_timeout_passes_on_the_output_or_elapses() {
        for clock in [Clock::system(), Clock::simulated(START)] {
            assert_eq!(clock.timeout(Duration::from_secs(9), async { 7 }).await, Ok(7));
        }
        let (clock, never) = (Clock::system(), std::future::pending::<()>);
        assert_eq!(clock.timeout(Duration::from_millis(1), never()).await, Err(Elapsed));
        let soon = clock.uptime() + Duration::from_millis(1);
        assert_eq!(clock.timeout_at(soon, never()).await, Err(Elapsed));
    }

    #[tokio::test]
    async fn a_simulated_timeout_elapses_when_the_clock_reaches_it() {
        let clock = Clock::simulated(START);
        let (never, second) = (std::future::pending::<()>, Duration::from_secs(1));
        clock.advance(second);
        let both = futures_util::future::join(
            clock.timeout(2 * second, never()),
            clock.timeout_at(3 * second, never()),
        );
        let mut both = pin!(both);
        clock.advance(Duration::from_millis(1_999));
        assert!(futures_util::poll!(&mut both).is_pending());
        clock.advance(Duration::from_millis(1_999));
        assert!(futures_util::poll!(&mut both).is_pending(), "counted from the first poll");
        clock.advance(Duration::from_millis(1));
        assert_eq!(both.await, (Err(Elapsed), Err(Elapsed)));
    }

    #[tokio::test]
    async fn a_late_background_tick_delays_the_next_ones() {
        use futures_util::FutureExt as _;

        let (clock, second) = (Clock::simulated(START), Duration::from_secs(1));
        let mut interval = clock.background_interval(second);
        let mut ticks_after = |millis: u64| {
            // Returns at once: `advance` does not wait for this interval.
            clock.advance(Duration::from_millis(millis));
            interval.tick().now_or_never().is_some()
        };
        assert!(ticks_after(0), "the first tick is at once");
        assert!(!ticks_after(999) && ticks_after(1));
        assert!(ticks_after(1_004), "late, but not missed");
        assert!(!ticks_after(995) && ticks_after(1));
        assert!(ticks_after(3_000) && !ticks_after(999) && ticks_after(1), "missed ticks");
    }

    #[test]
    fn a_stopwatch_reads_the_clock_that_started_it() {
        let clock = Clock::simulated(START);
        let stopwatch = clock.stopwatch();
        clock.advance(Duration::from_millis(1_234));
        assert_eq!(stopwatch.read(), Duration::from_millis(1_234));
    }
}
