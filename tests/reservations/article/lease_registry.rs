//! The gateway's lease registry on a simple store, one step at a time.

use std::sync::Arc;

use parking_lot::Mutex;
use tidegate::clock::ms;
use tidegate::{
    charge::{Key, LeaseSize, Limit, LimitIdentity},
    clock::MonotonicTime,
    clock::StoreTime,
    limit::{AlgorithmState, Millis, Quota},
    store::unit_lease::{
        FetchReply, JoinOutcome, LeaseCharge, LeaseFetch, LeaseRegistry, LeaseWaiter, WaiterOutcome,
    },
};

/// The store's time at the monotonic time 0: the start of a window.
pub(super) const START: StoreTime = StoreTime::from_unix_ms(1_699_999_980_000);

/// A window, in ms.
pub(super) const WINDOW: u64 = 6_000;

/// A thread of the article: a request that records its outcome.
#[derive(Clone, Default)]
pub(super) struct Thread {
    cost: u64,
    outcomes: Arc<Mutex<Vec<WaiterOutcome>>>,
}

impl Thread {
    pub(super) fn outcome(&self) -> Option<WaiterOutcome> {
        let outcomes = self.outcomes.lock();
        assert!(outcomes.len() <= 1, "delivered twice: {outcomes:?}");
        outcomes.first().copied()
    }

    pub(super) fn is_admitted(&self) -> bool {
        matches!(self.outcome(), Some(WaiterOutcome::Granted(_)))
    }
}

impl LeaseWaiter for Thread {
    fn cost(&self) -> u64 {
        self.cost
    }

    fn serve(self, outcome: WaiterOutcome) -> bool {
        self.outcomes.lock().push(outcome);
        true
    }
}

/// A store with the record of one caller.
pub(super) struct Store {
    state: AlgorithmState,
    quota: Quota,
    pub(super) calls: u32,
    pub(super) charged: u64,
}

impl Store {
    pub(super) fn of(limit: u64) -> Self {
        let quota = Quota::sliding(limit, Millis::from_ms(WINDOW), 1);
        Self { state: AlgorithmState::fresh(quota.algorithm), quota, calls: 0, charged: 0 }
    }

    /// The immediate reply to a fetch.
    pub(super) fn reply(&mut self, fetch: &Fetch, now_ms: u64) -> FetchReply {
        self.calls += 1;
        let now = START + ms(now_ms);
        let grant = self.state.acquire(&self.quota, now, fetch.demand());
        self.charged += grant.units;
        FetchReply {
            grant,
            decided_at: now,
            sent: MonotonicTime::from_ms(now_ms),
            received: MonotonicTime::from_ms(now_ms),
        }
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
    limit: Arc<Limit>,
}

impl Gateway {
    /// One of `gateways`, with a reserve of `batch`.
    pub(super) fn new(quota: u64, batch: u64, gateways: u32) -> Self {
        let leases = Arc::new(LeaseRegistry::default());
        leases.set_gateways(gateways);
        let limit = Arc::new(Limit {
            lease_size: LeaseSize::Units(batch),
            ..Limit::new(
                LimitIdentity::new("article", 1),
                Quota::sliding(quota, Millis::from_ms(WINDOW), 1),
            )
        });
        Self { leases, limit }
    }

    pub(super) fn take(&self, key: u128, cost: u64, now_ms: u64) -> Option<LeaseCharge> {
        self.leases.take(&self.limit, Key(key), cost, MonotonicTime::from_ms(now_ms))
    }

    pub(super) fn enter(&self, key: u128, cost: u64, now_ms: u64) -> EntryOutcome {
        if let Some(taken) = self.take(key, cost, now_ms) {
            return EntryOutcome::Admitted(taken);
        }
        let thread = Thread { cost, ..Thread::default() };
        match self.leases.join(
            &self.limit,
            Key(key),
            thread.clone(),
            MonotonicTime::from_ms(now_ms),
        ) {
            JoinOutcome::Fetch(fetch) => EntryOutcome::Fetches(thread, fetch),
            JoinOutcome::Waiting | JoinOutcome::Served => EntryOutcome::Waits(thread),
            JoinOutcome::Unavailable(_) => panic!("the registry is full or closed"),
        }
    }

    pub(super) fn expect_fetch(&self, cost: u64, now_ms: u64) -> (Thread, Fetch) {
        match self.enter(1, cost, now_ms) {
            EntryOutcome::Fetches(thread, fetch) => (thread, fetch),
            EntryOutcome::Admitted(_) | EntryOutcome::Waits(_) => panic!("expected a fetch"),
        }
    }

    pub(super) fn expect_wait(&self, cost: u64, now_ms: u64) -> Thread {
        match self.enter(1, cost, now_ms) {
            EntryOutcome::Waits(thread) => thread,
            EntryOutcome::Admitted(_) | EntryOutcome::Fetches(..) => {
                panic!("expected a wait for a fetch in flight")
            }
        }
    }

    /// Runs one thread alone. True if it is admitted.
    pub(super) fn run_alone(&self, store: &mut Store, cost: u64, now_ms: u64) -> bool {
        match self.enter(1, cost, now_ms) {
            EntryOutcome::Admitted(_) => true,
            EntryOutcome::Waits(_) => panic!("there is no other thread"),
            EntryOutcome::Fetches(thread, fetch) => {
                complete_all(store, fetch, now_ms);
                thread.is_admitted()
            }
        }
    }
}

/// Completes this fetch and those after it, until no thread waits.
pub(super) fn complete_all(store: &mut Store, fetch: Fetch, now_ms: u64) {
    let mut next = Some(fetch);
    while let Some(fetch) = next {
        let reply = store.reply(&fetch, now_ms);
        next = fetch.complete(&reply);
    }
}
