//! The only place that reads a clock.
//!
//! Everything else takes the time as a parameter, or waits with a [`Clock`]: the system's, or one
//! that a test moves. Deadlines, delays, the drain, and the store's timeouts and probes use that
//! clock, so a test covers minutes of waiting in milliseconds of real time.
//!
//! | file | content |
//! |---|---|
//! | `coarse` | [`CoarseClock`]: a worker's coarse clock |
//! | `interval` | [`Stopwatch`]: measured durations; [`Interval`]: the ticks of periodic tasks |
//!
//! ```
//! use std::time::Duration;
//! use tidegate_system::clock::{Clock, Millis, StoreTime};
//!
//! let start = StoreTime::from_unix_ms(1_700_000_000_000);
//! let clock = Clock::simulated(start);
//! clock.advance(Duration::from_secs(60));
//! assert_eq!(clock.store_time(), start + Millis::from_secs(60));
//! assert_eq!(clock.monotonic().as_ms(), 60_000);
//! ```

mod coarse;
mod interval;

use std::{
    collections::BTreeMap,
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use futures_util::future::{Either, select};
use parking_lot::{Condvar, Mutex};
use rustix::time::{ClockId, Timespec, clock_gettime};
use tokio::sync::Notify;

pub use self::{
    coarse::CoarseClock,
    interval::{BackgroundInterval, Interval, Stopwatch},
};
pub use tidegate_base::time::{CoarseTime, Millis, MonotonicTime, StoreTime, Uptime, ms};

/// The source of time. Cheap to clone; all clones of a manual clock move together.
#[derive(Clone, Debug)]
pub struct Clock {
    created: Instant,
    /// The same time by [`monotonic_nanos`].
    created_nanos: u64,
    manual: Option<Arc<ManualClock>>,
}

/// The future did not finish in time.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("deadline has elapsed")]
pub struct Elapsed;

/// A clock that stands still until it is moved.
#[derive(Debug)]
struct ManualClock {
    start: StoreTime,
    waits: ManualWaits,
    state: Mutex<ManualClockState>,
    /// Wakes the tasks that sleep.
    moved: Notify,
    /// Wakes the test that waits in [`Clock::advance`].
    settled: Condvar,
}

/// The clock that waits use while a manual clock dates decisions.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ManualWaits {
    /// The system's.
    Real,
    /// The manual one.
    Simulated,
}

#[derive(Debug)]
struct ManualClockState {
    now: StoreTime,
    next_interval: u64,
    /// For each [`Interval`], the tick that it waits for; `None` while its task does the work of the
    /// last tick.
    intervals: BTreeMap<u64, Option<MonotonicTime>>,
}

/// The longest wait of [`Clock::advance`] for the periodic tasks, in real time: a task may be
/// waiting for a peer.
const SETTLE_TIMEOUT: Duration = Duration::from_millis(200);

impl Clock {
    /// The system's clock.
    pub fn system() -> Self {
        Self::with(None)
    }

    /// A clock that stands at `start` until it is moved with [`Self::set`] or
    /// [`Self::advance`]. Decisions and cached state use it; waits still take real time, so it can
    /// jump hours ahead without timing out connections.
    pub fn manual(start: StoreTime) -> Self {
        Self::with_manual(start, ManualWaits::Real)
    }

    /// A [`Self::manual`] clock that waits use as well: nothing times out until the test advances
    /// it.
    pub fn simulated(start: StoreTime) -> Self {
        Self::with_manual(start, ManualWaits::Simulated)
    }

    fn with_manual(start: StoreTime, waits: ManualWaits) -> Self {
        let state = ManualClockState { now: start, next_interval: 0, intervals: BTreeMap::new() };
        let (moved, settled) = (Notify::new(), Condvar::new());
        let state = Mutex::new(state);
        let manual = ManualClock { start, waits, state, moved, settled };
        Self::with(Some(Arc::new(manual)))
    }

    fn with(manual: Option<Arc<ManualClock>>) -> Self {
        Self { created: instant(), created_nanos: monotonic_nanos(), manual }
    }

    /// The manual clock, if waits use it.
    fn simulation(&self) -> Option<&ManualClock> {
        self.manual.as_deref().filter(|manual| manual.waits == ManualWaits::Simulated)
    }

    /// True if waits use a clock that a test advances.
    pub fn is_simulated(&self) -> bool {
        self.simulation().is_some()
    }

    /// The time of day, by which limits in this process's memory are decided. It may be set back.
    #[inline]
    pub fn store_time(&self) -> StoreTime {
        match &self.manual {
            Some(manual) => manual.now(),
            None => system_time(),
        }
    }

    /// As [`Self::store_time`], in ns since the Unix epoch, as traces have it; a manual clock has
    /// whole ms.
    pub fn now_nanos(&self) -> u64 {
        match &self.manual {
            Some(manual) => manual.now().as_unix_ms().saturating_mul(1_000_000),
            None => system_nanos(),
        }
    }

    /// Monotonic time since this clock was created, for cached state that several threads share. For
    /// a manual clock, the time since its start; 0 if it is set back before that.
    #[inline]
    pub fn monotonic(&self) -> MonotonicTime {
        let time = match &self.manual {
            Some(manual) => manual.uptime(),
            None => self.uptime(),
        };
        MonotonicTime::from_ms(time.to_coarse().as_ms())
    }

    /// Monotonic time since this clock was created; timers use it.
    #[inline]
    pub fn uptime(&self) -> Uptime {
        match self.simulation() {
            Some(manual) => manual.uptime(),
            None => Uptime::from_nanos(monotonic_nanos().saturating_sub(self.created_nanos)),
        }
    }

    /// The time of a manual clock; `None` for the system's, where Redis' own time is used instead.
    pub fn manual_now(&self) -> Option<StoreTime> {
        self.manual.as_ref().map(|manual| manual.now())
    }

    /// Moves a manual clock to `now`. The system's clock ignores it.
    pub fn set(&self, now: StoreTime) {
        if let Some(manual) = &self.manual {
            manual.state.lock().now = now;
            manual.moved.notify_waiters();
        }
    }

    /// Moves a manual clock forward, and waits until the periodic tasks have done the work of the
    /// elapsed ticks, for at most 200 ms of real time. Blocks the thread, which must not be one
    /// that runs such a task. The system's clock ignores it.
    pub fn advance(&self, by: Duration) {
        self.advance_within(SETTLE_TIMEOUT, by);
    }

    fn advance_within(&self, settle_timeout: Duration, by: Duration) {
        let Some(manual) = &self.manual else { return };
        let mut state = manual.state.lock();
        state.now += Millis::from_duration(by);
        manual.moved.notify_waiters();
        let monotonic = MonotonicTime::ZERO + state.now.since(manual.start);
        manual.settled.wait_while_for(
            &mut state,
            |state| state.intervals.values().any(|next| next.is_none_or(|next| next <= monotonic)),
            settle_timeout,
        );
    }

    /// Returns when [`Self::store_time`] is at least `at`. Needs a runtime.
    pub async fn sleep_until_wall_clock(&self, at: StoreTime) {
        let Some(manual) = &self.manual else {
            let left = at.since(self.store_time());
            return tokio::time::sleep(left.as_duration()).await;
        };
        manual.wait_until(|| manual.now() >= at).await;
    }

    /// Returns after `time`. Needs a runtime.
    pub async fn sleep(&self, time: Duration) {
        match self.simulation() {
            Some(_) => self.sleep_until(self.uptime() + time).await,
            None => tokio::time::sleep(time).await,
        }
    }

    /// Returns when [`Self::uptime`] is at least `at`. Needs a runtime.
    pub async fn sleep_until(&self, at: Uptime) {
        match self.simulation() {
            Some(manual) => manual.wait_until(|| manual.uptime() >= at).await,
            None => tokio::time::sleep_until((self.created + at.as_duration()).into()).await,
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
        // Pinned once and passed by reference: each call by value would hold a copy of the future.
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
    pub async fn timeout_at<F: Future>(&self, at: Uptime, future: F) -> Result<F::Output, Elapsed> {
        let future = pin!(future);
        if self.is_simulated() {
            return self.simulated_timeout(at, future).await;
        }
        let at = (self.created + at.as_duration()).into();
        tokio::time::timeout_at(at, future).await.map_err(|_| Elapsed)
    }

    async fn simulated_timeout<F: Future>(
        &self,
        at: Uptime,
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

    /// An interval for work that may wait for a peer: it ticks at once, and then every `period`, or
    /// a `period` after a late tick. [`Self::advance`] does not wait for its work.
    pub fn background_interval(&self, period: Duration) -> BackgroundInterval {
        BackgroundInterval { clock: self.clone(), period, next: self.uptime() }
    }
}

impl ManualClock {
    fn now(&self) -> StoreTime {
        self.state.lock().now
    }

    fn uptime(&self) -> Uptime {
        Uptime::from_duration(self.now().since(self.start).as_duration())
    }

    /// Returns when `reached` returns true; calls it after every move of the clock.
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

/// The time of day.
fn system_time() -> StoreTime {
    StoreTime::from_unix_ms(time_of_day().as_millis() as u64)
}

/// The time of day in ns since the Unix epoch.
fn system_nanos() -> u64 {
    time_of_day().as_nanos() as u64
}

/// The time of day since the Unix epoch, read through the C library: libfaketime can shift it.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the time of day")]
fn time_of_day() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// The time of the system's monotonic clock in ns.
fn monotonic_nanos() -> u64 {
    let time = monotonic_time();
    time.tv_sec.max(0) as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The time of the system's monotonic clock in µs, as systemd is told.
pub fn instant_micros() -> u64 {
    monotonic_nanos() / 1000
}

#[expect(clippy::disallowed_methods, reason = "the one place that reads the monotonic clock in ns")]
fn monotonic_time() -> Timespec {
    clock_gettime(ClockId::Monotonic)
}

/// The time of the system's monotonic clock, for measuring durations.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the monotonic clock")]
pub fn instant() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests;
