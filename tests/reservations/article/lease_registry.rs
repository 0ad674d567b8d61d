//! The real lease registry on a simple store, one step at a time.

use std::sync::Arc;

use parking_lot::Mutex;
use tidegate::{
    limit::{Algorithm, Key, Limit, Millis, OnFailure, Quota, Reserve, State},
    store::token_lease::{
        FetchReply, JoinOutcome, LeaseCharge, LeaseFetch, LeaseRegistry, Waiter, WaiterOutcome,
    },
};

/// The store's time at tick 0: the start of a window.
pub(super) const START: Millis = 1_699_999_980_000;

/// A window, in ms.
pub(super) const WINDOW: Millis = 6_000;

/// A waiting thread.
#[derive(Clone, Default)]
pub(super) struct Thread {
    cost: u32,
    heard: Arc<Mutex<Vec<WaiterOutcome>>>,
}

impl Thread {
    pub(super) fn heard(&self) -> Option<WaiterOutcome> {
        let heard = self.heard.lock();
        assert!(heard.len() <= 1, "delivered twice: {heard:?}");
        heard.first().copied()
    }

    pub(super) fn is_admitted(&self) -> bool {
        matches!(self.heard(), Some(WaiterOutcome::Granted(_)))
    }
}

impl Waiter for Thread {
    fn cost(&self) -> u32 {
        self.cost
    }

    fn serve(self, outcome: WaiterOutcome) -> bool {
        self.heard.lock().push(outcome);
        true
    }
}

/// The record of one caller.
pub(super) struct Store {
    state: State,
    quota: Quota,
    pub(super) calls: u32,
    pub(super) charged: u32,
}

impl Store {
    pub(super) fn of(limit: u32) -> Self {
        let state = State::fresh(Algorithm::SlidingWindow);
        Self { state, quota: Quota::new(limit, WINDOW, 1), calls: 0, charged: 0 }
    }

    /// The immediate reply to a fetch.
    pub(super) fn reply(&mut self, fetching: &Fetch, ticks: u64) -> FetchReply {
        self.calls += 1;
        let now = START + ticks;
        let grant = self.state.acquire(&self.quota, now, fetching.demand());
        self.charged += grant.tokens;
        FetchReply { grant, now, sent: ticks, received: ticks }
    }
}

/// A pending fetch.
pub(super) type Fetch = LeaseFetch<Thread>;

/// The outcome of a thread's entry.
pub(super) enum EntryOutcome {
    Admitted(LeaseCharge),
    Waits(Thread),
    Fetches(Thread, Fetch),
}

pub(super) struct Gateway {
    pub(super) leases: Arc<LeaseRegistry<Thread>>,
    limit: Limit,
}

impl Gateway {
    /// One of `gateways`, with a reserve of `batch`.
    pub(super) fn new(quota: u32, batch: u32, gateways: u32) -> Self {
        let leases = Arc::new(LeaseRegistry::default());
        leases.set_gateways(gateways);
        let limit = Limit {
            name: "article".into(),
            fingerprint: 1,
            algorithm: Algorithm::SlidingWindow,
            quota: Quota::new(quota, WINDOW, 1),
            cost: 1,
            on_failure: OnFailure::Local,
            reserve: Reserve::Tokens(batch),
            enforce: true,
            index: 0,
        };
        Self { leases, limit }
    }

    pub(super) fn take(&self, key: u128, cost: u32, ticks: u64) -> Option<LeaseCharge> {
        self.leases.take(&self.limit, Key(key), cost, ticks)
    }

    pub(super) fn enter(&self, key: u128, cost: u32, ticks: u64) -> EntryOutcome {
        if let Some(taken) = self.take(key, cost, ticks) {
            return EntryOutcome::Admitted(taken);
        }
        let thread = Thread { cost, ..Thread::default() };
        match self.leases.join(&self.limit, Key(key), thread.clone(), ticks) {
            JoinOutcome::Fetch(fetching) => EntryOutcome::Fetches(thread, fetching),
            JoinOutcome::Waiting | JoinOutcome::Served => EntryOutcome::Waits(thread),
            JoinOutcome::Unavailable(_) => panic!("there is room"),
        }
    }

    pub(super) fn fetches(&self, cost: u32, ticks: u64) -> (Thread, Fetch) {
        match self.enter(1, cost, ticks) {
            EntryOutcome::Fetches(thread, fetching) => (thread, fetching),
            EntryOutcome::Admitted(_) | EntryOutcome::Waits(_) => panic!("it should fetch"),
        }
    }

    pub(super) fn waits(&self, cost: u32, ticks: u64) -> Thread {
        match self.enter(1, cost, ticks) {
            EntryOutcome::Waits(thread) => thread,
            EntryOutcome::Admitted(_) | EntryOutcome::Fetches(..) => panic!("it should wait"),
        }
    }

    /// Runs one thread alone to its outcome.
    pub(super) fn alone(&self, store: &mut Store, cost: u32, ticks: u64) -> bool {
        match self.enter(1, cost, ticks) {
            EntryOutcome::Admitted(_) => true,
            EntryOutcome::Waits(_) => panic!("there is no other thread"),
            EntryOutcome::Fetches(thread, fetching) => {
                drive(store, fetching, ticks);
                thread.is_admitted()
            }
        }
    }
}

/// Fetches until no thread waits.
pub(super) fn drive(store: &mut Store, fetching: Fetch, ticks: u64) {
    let mut next = Some(fetching);
    while let Some(fetching) = next {
        let reply = store.reply(&fetching, ticks);
        next = fetching.complete(&reply);
    }
}
