//! The waker of one upstream connection, whoever uses it.
//!
//! A connection is driven inside the task of the request that uses it, so no request waits for a
//! second task. Its library parts wake one another while they are polled; those wakes are noted here
//! and answered in the same turn, instead of sending the task around the scheduler once more.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Wake, Waker},
};

use parking_lot::Mutex;

/// Wakes the task that uses the connection, unless that task is just polling it.
#[derive(Debug, Default)]
pub(super) struct LinkWaker {
    polling: AtomicBool,
    again: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl LinkWaker {
    /// From here until [`Self::leave`], wakes are only noted; afterwards they go to `task`.
    pub(super) fn enter(&self, task: &Waker) {
        self.polling.store(true, Ordering::Release);
        let mut kept = self.task.lock();
        if !kept.as_ref().is_some_and(|kept| kept.will_wake(task)) {
            *kept = Some(task.clone());
        }
    }

    /// Whether something woke since the last time it was asked.
    pub(super) fn again(&self) -> bool {
        self.again.load(Ordering::Relaxed) && self.again.swap(false, Ordering::AcqRel)
    }

    /// The turn ends. If it ends `waiting`, what woke meanwhile and was not looked at wakes the task;
    /// otherwise the task goes on by itself, and will take another turn before it waits.
    pub(super) fn leave(&self, waiting: bool) {
        self.polling.store(false, Ordering::Release);
        if self.again() && waiting {
            self.wake_task();
        }
    }

    /// Nobody uses the connection: nobody is woken.
    pub(super) fn release(&self) {
        self.task.lock().take();
    }

    fn wake_task(&self) {
        if let Some(task) = self.task.lock().as_ref() {
            task.wake_by_ref();
        }
    }
}

impl Wake for LinkWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.polling.load(Ordering::Acquire) {
            self.again.store(true, Ordering::Release);
        } else {
            self.wake_task();
        }
    }
}
