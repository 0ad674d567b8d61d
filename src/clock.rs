//! The only place that reads a clock.
//!
//! Everything else takes `now` as a parameter. A [`Clock`] is the system's, or one that a test moves
//! by hand.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use tokio::sync::Notify;

/// Where the time comes from. Cheap to clone; all clones of a manual clock move together.
#[derive(Clone, Debug)]
pub struct Clock {
    made: Instant,
    manual: Option<Arc<Manual>>,
}

#[derive(Debug)]
struct Manual {
    start: u64,
    at: AtomicU64,
    moved: Notify,
}

impl Clock {
    /// The system's clock.
    pub fn system() -> Self {
        Self { made: instant(), manual: None }
    }

    /// A clock that stands at `start` (ms since the epoch) until it is moved with [`Self::set`].
    pub fn manual(start: u64) -> Self {
        let manual = Manual { start, at: AtomicU64::new(start), moved: Notify::new() };
        Self { made: instant(), manual: Some(Arc::new(manual)) }
    }

    /// Now, in ms since the Unix epoch.
    pub fn now(&self) -> u64 {
        match &self.manual {
            Some(manual) => manual.at.load(Ordering::Acquire),
            None => system_millis(),
        }
    }

    /// The ms since this clock was made, by a clock that nobody sets: for deadlines that several threads
    /// keep. A manual clock's are those that it was moved by.
    pub fn ticks(&self) -> u64 {
        match &self.manual {
            Some(manual) => manual.at.load(Ordering::Acquire).saturating_sub(manual.start),
            None => instant().saturating_duration_since(self.made).as_millis() as u64,
        }
    }

    /// What a manual clock shows, for those who have a time of their own unless a test gives them one.
    pub fn manual_now(&self) -> Option<u64> {
        self.manual.as_ref().map(|manual| manual.at.load(Ordering::Acquire))
    }

    /// Moves a manual clock to `at` (ms since the epoch). The system's clock ignores it.
    pub fn set(&self, at: u64) {
        if let Some(manual) = &self.manual {
            manual.at.store(at, Ordering::Release);
            manual.moved.notify_waiters();
        }
    }

    /// Returns when it is `at` (ms since the epoch). Needs a runtime.
    pub async fn reached(&self, at: u64) {
        let Some(manual) = &self.manual else {
            let left = at.saturating_sub(self.now());
            return tokio::time::sleep(Duration::from_millis(left)).await;
        };
        loop {
            // Before the look at the clock: a move in between is not missed.
            let moved = manual.moved.notified();
            if manual.at.load(Ordering::Acquire) >= at {
                return;
            }
            moved.await;
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the one place that reads the wall clock")]
fn system_millis() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |elapsed| u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX))
}

/// A reading of the monotonic clock, for durations and deadlines.
#[expect(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
pub fn instant() -> Instant {
    Instant::now()
}
