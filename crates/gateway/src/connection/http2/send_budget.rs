//! [`SendBudget`]: bounds the responses that wait in the library because the client does not read.
//!
//! The library keeps all data that the client's windows allow until the socket accepts it: up to
//! [`super::SEND_BUFFER`] for each stream, even after the response is complete and its request no
//! longer in flight.
//!
//! A stream that will be reset waits here until the socket has accepted its data, which the library
//! would discard.

use std::{
    cell::{Cell, RefCell},
    task::{Context, Poll, Waker},
};

/// Number of bytes on all streams of a connection beyond which no more are passed to the library.
const MAX_QUEUED: usize = 256 * 1024;
/// Maximum number of wakers: more than a connection has streams.
const MAX_WAITING: usize = 256;

/// The data that one connection has passed to the library since its socket last accepted
/// everything.
#[derive(Default)]
pub(super) struct SendBudget {
    queued: Cell<usize>,
    /// Number of times that the socket has accepted everything.
    flushes: Cell<u64>,
    /// The streams that wait for room, or for a flush.
    waiting: RefCell<Vec<Waker>>,
}

impl SendBudget {
    /// Ready if more may be passed to the library.
    pub(super) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.queued.get() < MAX_QUEUED {
            return Poll::Ready(());
        }
        self.wait(cx);
        Poll::Pending
    }

    /// Ready if the socket has accepted everything more than `flushes` times.
    pub(super) fn poll_flushed(&self, cx: &mut Context<'_>, flushes: u64) -> Poll<()> {
        if self.flushes.get() > flushes {
            return Poll::Ready(());
        }
        self.wait(cx);
        Poll::Pending
    }

    /// Number of times that the socket has accepted everything.
    pub(super) fn flushes(&self) -> u64 {
        self.flushes.get()
    }

    /// Counts bytes that are passed to the library.
    pub(super) fn add(&self, bytes: usize) {
        self.queued.set(self.queued.get() + bytes);
    }

    /// Records that the socket has accepted everything.
    pub(super) fn clear(&self) {
        self.queued.set(0);
        self.flushes.set(self.flushes.get() + 1);
        self.waiting.borrow_mut().drain(..).for_each(Waker::wake);
    }

    /// Wakes the task of `cx` at the next flush.
    fn wait(&self, cx: &Context<'_>) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            // A reset stream leaves its waker behind, and with it the memory of its task. Streams
            // that still wait register again.
            if waiting.len() >= MAX_WAITING {
                waiting.drain(..).for_each(Waker::wake);
            }
            waiting.push(cx.waker().clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        task::Wake,
    };

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn data_waits_for_the_socket_beyond_the_bound() {
        let queue = SendBudget::default();
        let wakes = Arc::<Wakes>::default();
        let waker = Waker::from(Arc::clone(&wakes));
        let cx = &mut Context::from_waker(&waker);
        queue.add(MAX_QUEUED - 1);
        assert!(queue.poll_room(cx).is_ready());
        queue.add(1);
        assert!(queue.poll_room(cx).is_pending() && queue.poll_room(cx).is_pending());
        queue.clear();
        assert!(queue.poll_room(cx).is_ready());
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1, "a stream waits once");
    }

    #[test]
    fn streams_that_are_reset_leave_no_more_than_a_bounded_number_of_wakers() {
        let queue = SendBudget::default();
        queue.add(MAX_QUEUED);
        let wakes = Arc::<Wakes>::default();
        let waiting = Waker::from(Arc::clone(&wakes));
        assert!(queue.poll_room(&mut Context::from_waker(&waiting)).is_pending());
        for _ in 0..3 * MAX_WAITING {
            let reset = Waker::from(Arc::<Wakes>::default());
            assert!(queue.poll_room(&mut Context::from_waker(&reset)).is_pending());
            assert!(queue.waiting.borrow().len() <= MAX_WAITING);
        }
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1, "one that still waits is woken");
    }
}
