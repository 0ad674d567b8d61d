//! What the store is told beside requests and after them: work that must not be given up with a request.

use std::{
    cell::Cell,
    pin::Pin,
    rc::Rc,
    task::{Context, Waker},
};

use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use crate::{
    clock::Clock,
    limit::{Decider, Millis, Outcome, Settlement},
    store::{Correction, Store},
};

/// A worker's work for the store that no request waits for, or that goes on when its request ends.
pub(super) struct Background {
    pub(super) store: Rc<Store>,
    clock: Clock,
    tasks: TaskTracker,
    /// Whether the worker's runtime ends: nothing more is begun.
    over: Cell<bool>,
}

impl Background {
    pub(super) fn new(store: Rc<Store>, clock: Clock) -> Self {
        Self { store, clock, tasks: TaskTracker::new(), over: Cell::new(false) }
    }

    /// The gateway's time.
    pub(super) fn now(&self) -> Millis {
        self.clock.now()
    }

    /// Does `work` to its end, whatever becomes of the caller: in memory at once, else in a task.
    pub(super) fn run(&self, work: impl Future<Output = ()> + 'static) {
        let mut work = Box::pin(work);
        if is_ready(work.as_mut()) || self.over.get() {
            return;
        }
        tokio::task::spawn_local(self.tasks.track_future(work));
    }

    /// The same for work with a result: it is dropped if the caller is gone. `None` only where the
    /// worker ends.
    pub(super) async fn finish<T: 'static>(
        &self,
        work: impl Future<Output = T> + 'static,
    ) -> Option<T> {
        let (tell, told) = oneshot::channel();
        self.run(async move {
            // The receiver is gone with its request: the output is dropped here.
            drop(tell.send(work.await));
        });
        told.await.ok()
    }

    /// Corrects charges, each where it was made. No request waits for it.
    pub(super) fn correct(&self, corrections: impl IntoIterator<Item = Correction>) {
        self.store.correct(corrections, self.now());
    }

    /// Corrects charges, each where it was made; tells what holds after each, in their order.
    pub(super) async fn settle(
        &self,
        corrections: SmallVec<[Correction; 2]>,
    ) -> SmallVec<[Outcome; 2]> {
        let (store, now) = (Rc::clone(&self.store), self.now());
        let settled = self.finish(async move { settle(&store, &corrections, now).await }).await;
        settled.unwrap_or_default()
    }

    /// Returns when nothing is under way. To be called when nothing more comes.
    pub(super) async fn drained(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Begins nothing more.
    pub(super) fn end(&self) {
        self.over.set(true);
    }
}

/// Corrects charges, each where it was made; tells what holds after each, in their order.
async fn settle(store: &Store, corrections: &[Correction], now: Millis) -> SmallVec<[Outcome; 2]> {
    let by = |decider: Decider| {
        let there = corrections.iter().filter(move |correction| correction.by == decider);
        there.map(settlement).collect::<SmallVec<[Settlement<'_>; 2]>>()
    };
    let mut shared = store.settle(&by(Decider::Store), Decider::Store, now).await.into_iter();
    let mut local = store.settle(&by(Decider::Fallback), Decider::Fallback, now).await.into_iter();
    let outcome = |correction: &Correction| match correction.by {
        Decider::Store => shared.next(),
        Decider::Fallback => local.next(),
    };
    corrections.iter().map(outcome).map(Option::unwrap_or_default).collect()
}

fn settlement(correction: &Correction) -> Settlement<'_> {
    Settlement { limit: &correction.limit, key: correction.key, change: correction.change }
}

fn is_ready(work: Pin<&mut impl Future<Output = ()>>) -> bool {
    work.poll(&mut Context::from_waker(Waker::noop())).is_ready()
}
