//! A worker's coarse clock.

use std::{cell::Cell, rc::Rc};

use super::CoarseTime;

/// One worker's clock, which stands still between two of its ticks: reading it costs no system
/// call. Cheap to clone; all clones move together.
#[derive(Clone, Debug)]
pub struct CoarseClock(Rc<Cell<CoarseTime>>);

impl CoarseClock {
    /// A clock that stands at `now` until it is moved.
    pub fn new(now: CoarseTime) -> Self {
        Self(Rc::new(Cell::new(now)))
    }

    /// The time of the last tick.
    pub fn now(&self) -> CoarseTime {
        self.0.get()
    }

    /// Sets the time, at a tick.
    pub fn set(&self, now: CoarseTime) {
        self.0.set(now);
    }
}
