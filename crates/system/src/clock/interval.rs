//! Measured durations and the ticks of periodic tasks.

use std::time::Duration;

use super::{Clock, MonotonicTime, Uptime};

/// A duration that is being measured; made by [`Clock::stopwatch`].
#[derive(Clone, Debug)]
pub struct Stopwatch {
    pub(super) clock: Clock,
    pub(super) start: Uptime,
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
    pub(super) clock: Clock,
    pub(super) period: Duration,
    /// The next tick, by [`Clock::uptime`].
    pub(super) next: Uptime,
    pub(super) id: u64,
}

impl Interval {
    /// Returns at the next tick.
    pub async fn tick(&mut self) {
        let next = MonotonicTime::from_ms(self.next.to_coarse().as_ms());
        self.record_next_tick(Some(next));
        self.clock.sleep_until(self.next).await;
        self.record_next_tick(None);
        let now = self.clock.uptime();
        let missed = now.saturating_sub(self.next).as_nanos() / self.period.as_nanos().max(1);
        self.next += self.period * (missed as u32 + 1);
    }

    /// Records the tick that this interval waits for, for [`Clock::advance`].
    fn record_next_tick(&self, next: Option<MonotonicTime>) {
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
    pub(super) clock: Clock,
    pub(super) period: Duration,
    /// The next tick, by [`Clock::uptime`].
    pub(super) next: Uptime,
}

/// A tick that is later than this is a missed one: the next period begins with it.
const MISSED_TICK: Duration = Duration::from_millis(5);

impl BackgroundInterval {
    /// Returns at the next tick. If the future is dropped before, the next call returns at that
    /// tick.
    pub async fn tick(&mut self) {
        self.clock.sleep_until(self.next).await;
        let now = self.clock.uptime();
        let is_missed = now > self.next + MISSED_TICK;
        self.next = if is_missed { now } else { self.next } + self.period;
    }
}
