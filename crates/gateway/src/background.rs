//! [`Background`]: calls to the store that must not be cancelled with their request.

use std::{
    cell::Cell,
    pin::Pin,
    rc::Rc,
    task::{Context, Waker},
};

use smallvec::SmallVec;
use tidegate_charge::{Adjustment, DecisionSource, Outcome};
use tidegate_store::{Correction, StoreHandle};
use tidegate_system::clock::{Clock, StoreTime};
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

/// A worker's calls to the store that outlive their request, or that no request waits for.
pub(super) struct Background {
    pub(super) store: Rc<StoreHandle>,
    clock: Clock,
    tasks: TaskTracker,
    /// Requests whose costs are not settled yet.
    settlements: Cell<usize>,
    /// True if no more tasks are spawned, because the worker's runtime is ending.
    closed: Cell<bool>,
}

impl Background {
    pub(super) fn new(store: Rc<StoreHandle>, clock: Clock) -> Self {
        Self {
            store,
            clock,
            tasks: TaskTracker::new(),
            settlements: Cell::new(0),
            closed: Cell::new(false),
        }
    }

    /// The gateway's time of day.
    pub(super) fn now(&self) -> StoreTime {
        self.clock.store_time()
    }

    /// Runs `work` to its end even if the caller is dropped: at once if it does not wait (a memory
    /// store), else in a task. After [`Self::close`], work that waits is dropped.
    pub(super) fn run(&self, work: impl Future<Output = ()> + 'static) {
        let mut work = Box::pin(work);
        if is_ready(work.as_mut()) || self.closed.get() {
            return;
        }
        tokio::task::spawn_local(self.tasks.track_future(work));
    }

    /// Like [`Self::run`], but returns the output, which is dropped if the caller is gone. `None`
    /// only if the worker ends.
    pub(super) async fn run_with_output<T: 'static>(
        &self,
        work: impl Future<Output = T> + 'static,
    ) -> Option<T> {
        let (sender, receiver) = oneshot::channel();
        self.run(async move {
            // If the request is gone, there is no receiver: the output is dropped here.
            drop(sender.send(work.await));
        });
        receiver.await.ok()
    }

    /// Counts a request whose costs will be settled.
    pub(super) fn begin_settlement(&self) {
        self.settlements.set(self.settlements.get() + 1);
    }

    /// Counts a request whose costs are settled.
    pub(super) fn end_settlement(&self) {
        self.settlements.set(self.settlements.get() - 1);
    }

    /// True if the costs of a request are not settled yet.
    pub(super) fn is_settling(&self) -> bool {
        self.settlements.get() > 0
    }

    /// Sends each correction to the store that made its charge. Does not wait.
    pub(super) fn adjust_in_background(&self, corrections: impl IntoIterator<Item = Correction>) {
        self.store.adjust_in_background(corrections, self.now());
    }

    /// Sends each correction to the store that made its charge; returns the limits' new outcomes,
    /// in the order of the corrections.
    pub(super) async fn adjust(
        &self,
        corrections: SmallVec<[Correction; 2]>,
    ) -> SmallVec<[Outcome; 2]> {
        let (store, now) = (Rc::clone(&self.store), self.now());
        let work = async move { adjust_by_source(&store, &corrections, now).await };
        self.run_with_output(work).await.unwrap_or_default()
    }

    /// Returns when no call is running. Call it when no more requests arrive.
    pub(super) async fn drain(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Starts no more tasks.
    pub(super) fn close(&self) {
        self.closed.set(true);
    }
}

/// Sends each correction to the store that made its charge; returns the outcomes in the order of
/// the corrections.
async fn adjust_by_source(
    store: &StoreHandle,
    corrections: &[Correction],
    now: StoreTime,
) -> SmallVec<[Outcome; 2]> {
    let made_by = |source: DecisionSource| {
        let matching = corrections.iter().filter(move |correction| correction.source == source);
        matching.map(adjustment).collect::<SmallVec<[Adjustment<'_>; 2]>>()
    };
    let mut from_store =
        store.adjust(&made_by(DecisionSource::Store), DecisionSource::Store, now).await.into_iter();
    let mut from_fallback = store
        .adjust(&made_by(DecisionSource::Fallback), DecisionSource::Fallback, now)
        .await
        .into_iter();
    let outcome = |correction: &Correction| match correction.source {
        DecisionSource::Store => from_store.next(),
        DecisionSource::Fallback => from_fallback.next(),
    };
    corrections.iter().map(outcome).map(Option::unwrap_or_default).collect()
}

fn adjustment(correction: &Correction) -> Adjustment<'_> {
    Adjustment { limit: &correction.limit, key: correction.key, change: correction.change }
}

fn is_ready(work: Pin<&mut impl Future<Output = ()>>) -> bool {
    work.poll(&mut Context::from_waker(Waker::noop())).is_ready()
}
