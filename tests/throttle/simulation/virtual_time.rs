//! Virtual time for tasks that only sleep, on one thread; every run is the same.

use std::{
    cell::{Cell, RefCell},
    cmp::Reverse,
    collections::BinaryHeap,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use tidegate::clock::StoreTime;

pub(crate) type Task<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// The time in µs since the Unix epoch, and the sleeping tasks.
pub(crate) struct VirtualTime {
    now: Cell<u64>,
    current: Cell<usize>,
    sleepers: RefCell<BinaryHeap<Reverse<(u64, usize)>>>,
}

impl VirtualTime {
    /// Starts at `start`.
    pub(crate) fn new(start: StoreTime) -> Self {
        let now = Cell::new(start.as_unix_ms() * 1_000);
        Self { now, current: Cell::new(0), sleepers: RefCell::default() }
    }

    /// The time, in whole ms.
    pub(crate) fn now(&self) -> StoreTime {
        StoreTime::from_unix_ms(self.now.get() / 1_000)
    }

    pub(crate) async fn sleep(&self, micros: u64) {
        self.sleep_until(self.now.get() + micros).await;
    }

    /// Sleeps until a time in µs.
    pub(crate) async fn sleep_until(&self, deadline: u64) {
        let mut is_queued = false;
        std::future::poll_fn(|_| {
            if self.now.get() >= deadline {
                return Poll::Ready(());
            }
            if !std::mem::replace(&mut is_queued, true) {
                self.sleepers.borrow_mut().push(Reverse((deadline, self.current.get())));
            }
            Poll::Pending
        })
        .await;
    }

    /// Runs the tasks until `end`.
    pub(crate) fn run(&self, mut tasks: Vec<Task<'_>>, end: StoreTime) {
        for (id, task) in tasks.iter_mut().enumerate() {
            self.poll(id, task);
        }
        loop {
            let next = self.sleepers.borrow_mut().pop();
            let Some(Reverse((at, id))) = next else { break };
            if at > end.as_unix_ms() * 1_000 {
                break;
            }
            self.now.set(at);
            self.poll(id, &mut tasks[id]);
        }
        self.sleepers.borrow_mut().clear();
    }

    fn poll(&self, id: usize, task: &mut Task<'_>) {
        self.current.set(id);
        let yielded = Arc::new(Yielded::default());
        let waker = Waker::from(Arc::clone(&yielded));
        let mut context = Context::from_waker(&waker);
        while task.as_mut().poll(&mut context).is_pending() {
            if !yielded.0.swap(false, Ordering::Relaxed) {
                break;
            }
        }
    }
}

#[derive(Default)]
struct Yielded(AtomicBool);

impl Wake for Yielded {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}
