//! Gateways, a network and a store in virtual time. A seed determines the whole run.

mod calls;
mod requests;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    sync::Arc,
};

use parking_lot::Mutex;
use testkit::random::SplitMix64;
use tidegate::clock::ms;
use tidegate::{
    charge::Limit,
    clock::MonotonicTime,
    clock::StoreTime,
    limit::{AlgorithmState, Change, Grant, UnitDemand, UnitReturn},
    redis::RedisFailure,
    store::{
        deny_cache::INITIAL_TRUST,
        unit_lease::{LeaseFetch, LeaseRegistry, LeaseWaiter, UnspentUnits, WaiterOutcome},
    },
};

use super::Plan;

/// The store's time at the start of a run: a whole minute.
pub(super) const START: StoreTime = StoreTime::from_unix_ms(1_699_999_980_000);

/// A gateway's response timeout, in ms.
const RESPONSE_TIMEOUT: u64 = 60;

/// Interval between two sweeps, in ms.
const SWEEP_INTERVAL: u64 = 250;

type Mailbox = Arc<Mutex<Vec<(usize, WaiterOutcome)>>>;

/// A request that waits for its outcome.
pub(super) struct Caller {
    id: usize,
    cost: u64,
    mailbox: Mailbox,
    is_cancelled: bool,
}

impl LeaseWaiter for Caller {
    fn cost(&self) -> u64 {
        self.cost
    }

    fn serve(self, outcome: WaiterOutcome) -> bool {
        let outcome = if self.is_cancelled { WaiterOutcome::Failed(None) } else { outcome };
        self.mailbox.lock().push((self.id, outcome));
        !self.is_cancelled
    }
}

#[derive(Clone, Copy)]
struct Request {
    gateway: usize,
    key: usize,
    cost: u64,
}

/// An admitted request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Admission {
    pub(super) key: usize,
    /// By the store's clock.
    pub(super) at: StoreTime,
    pub(super) cost: u64,
}

struct Gateway {
    leases: Arc<LeaseRegistry<Caller>>,
    limit: Arc<Limit>,
    /// The run's time at the monotonic time 0 of the gateway's clock.
    started_at: u64,
    /// The number of restarts.
    incarnation: u32,
    /// By (key, cost): the monotonic time until which requests are refused without a call.
    denied: BTreeMap<(usize, u64), u64>,
    spent: u64,
    /// Units charged for a fetch without a reply.
    unreplied: u64,
    /// Units whose return is not confirmed, because the fetch that returned them timed out.
    unconfirmed: u64,
}

/// A pending call.
struct Call {
    gateway: usize,
    incarnation: u32,
    key: usize,
    limit: Arc<Limit>,
    demand: UnitDemand,
    /// `None` for a direct call, or after the timeout.
    fetch: Option<LeaseFetch<Caller>>,
    /// The request of a direct call: one without a lease.
    direct: Option<usize>,
    sent: MonotonicTime,
    is_over: bool,
}

#[derive(Clone, Copy, Eq, Ord, PartialEq, PartialOrd)]
enum Event {
    /// A call arrives at the store.
    Call(usize),
    /// A reply arrives at the gateway: (call, reply).
    Reply(usize, usize),
    /// A call's timeout expires at the gateway.
    Timeout(usize),
    /// Returned units arrive at the store.
    Return {
        gateway: usize,
        key: usize,
        at: StoreTime,
        cost: u64,
    },
    /// A gateway refunds an admitted request to its lease.
    Refund {
        gateway: usize,
        incarnation: u32,
        admission: usize,
        now: StoreTime,
    },
    Sweep(usize),
    Crash(usize),
    /// A gateway's quota changes: (gateway, quota).
    Reload(usize, u64),
}

pub(super) struct World {
    pub(super) plan: Plan,
    rng: SplitMix64,
    now: u64,
    event_count: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    gateways: Vec<Gateway>,
    records: Vec<AlgorithmState>,
    calls: Vec<Call>,
    replies: Vec<(Grant, StoreTime)>,
    requests: Vec<Request>,
    pending: BTreeMap<usize, u64>,
    mailbox: Mailbox,
    /// All admissions that were not refunded.
    pub(super) admitted: Vec<Option<Admission>>,
    /// The window ends that the store reported.
    pub(super) ends: Vec<Vec<StoreTime>>,
    pub(super) store_calls: usize,
    /// Admissions before the first refusal.
    pub(super) first_refusal: Option<u64>,
    /// Maximum number of leased units that gateways could still spend when the store refused a
    /// request.
    pub(super) max_unspent_at_refusal: u64,
    /// The sum of the admitted costs that were not refunded.
    admitted_cost: u64,
}

impl World {
    pub(super) fn new(plan: Plan) -> Self {
        let mut rng = SplitMix64(plan.seed);
        let gateways = (0..plan.gateways).map(|_| gateway(&plan, rng.below(1_000))).collect();
        let fresh = AlgorithmState::fresh(plan.limit.algorithm());
        let mut world = Self {
            now: 1_000,
            event_count: 0,
            events: BinaryHeap::new(),
            gateways,
            records: vec![fresh; plan.keys],
            calls: Vec::new(),
            replies: Vec::new(),
            requests: Vec::new(),
            pending: BTreeMap::new(),
            mailbox: Mailbox::default(),
            admitted: Vec::new(),
            ends: vec![Vec::new(); plan.keys],
            store_calls: 0,
            first_refusal: None,
            max_unspent_at_refusal: 0,
            admitted_cost: 0,
            rng,
            plan,
        };
        for gateway in 0..world.plan.gateways {
            let at = world.rng.below(SWEEP_INTERVAL);
            world.schedule(at, Event::Sweep(gateway));
        }
        for _ in 0..world.plan.crashes {
            let (at, gateway_index) = (world.rng.below(world.plan.duration), world.any_gateway());
            world.schedule(at, Event::Crash(gateway_index));
        }
        for reload in 0..world.plan.reloads {
            let quota = world.plan.limit.quota.limit;
            let quota = if reload % 2 == 0 { quota.div_ceil(2) } else { quota };
            let at = world.rng.below(world.plan.duration);
            for gateway in 0..world.plan.gateways {
                let delay = world.rng.below(100);
                world.schedule(at + delay, Event::Reload(gateway, quota));
            }
        }
        world
    }

    fn any_gateway(&mut self) -> usize {
        let plan = &self.plan;
        if plan.is_skewed && self.rng.below(10) < 9 {
            return 0;
        }
        self.rng.below(plan.gateways as u64) as usize
    }

    fn schedule(&mut self, delay: u64, event: Event) {
        self.event_count += 1;
        self.events.push(Reverse((self.now + delay, self.event_count, event)));
    }

    /// The store's clock.
    fn store_now(&self) -> StoreTime {
        START + ms(self.now) - ms(1_000)
    }

    fn monotonic(&self, gateway: usize) -> MonotonicTime {
        MonotonicTime::from_ms(self.now - self.gateways[gateway].started_at)
    }

    fn latency(&mut self) -> u64 {
        self.rng.below(self.plan.max_latency + 1)
    }

    /// Runs to the end. Panics if a request hangs or the units do not balance.
    pub(super) fn run(mut self) -> Self {
        let (start, duration, requests) = (self.now, self.plan.duration, self.plan.requests as u64);
        for at in 0..requests {
            let mut due = start + at * duration / requests;
            if self.plan.idle_period > 0
                && due % (2 * self.plan.idle_period) > self.plan.idle_period
            {
                due += self.plan.idle_period;
            }
            self.advance_to(due);
            self.send_request();
        }
        self.advance_to(start + duration + 2_000);
        assert!(self.pending.is_empty(), "{} requests hang", self.pending.len());
        self.assert_balance();
        self
    }

    /// Processes the events up to this time.
    fn advance_to(&mut self, until: u64) {
        while let Some(Reverse((at, ..))) = self.events.peek()
            && *at <= until
        {
            let Some(Reverse((at, _, event))) = self.events.pop() else { return };
            self.now = self.now.max(at);
            self.handle(event);
            self.deliver();
        }
        self.now = self.now.max(until);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Call(call) => self.handle_call(call),
            Event::Reply(call, reply) => self.handle_reply(call, reply),
            Event::Timeout(call) => self.handle_timeout(call),
            Event::Return { gateway, key, at, cost } => {
                let (now, quota) = (self.store_now(), self.gateways[gateway].limit.quota);
                self.records[key].adjust(&quota, now, Change::Refund { charged_at: at, cost });
            }
            Event::Refund { gateway, incarnation, admission, now } => {
                self.refund(gateway, incarnation, admission, now);
            }
            Event::Sweep(gateway) => {
                let mut out = Vec::new();
                self.gateways[gateway].leases.sweep(self.monotonic(gateway), |_| true, &mut out);
                self.return_units(gateway, out);
                self.schedule(SWEEP_INTERVAL, Event::Sweep(gateway));
            }
            Event::Crash(gateway_index) => self.crash(gateway_index),
            Event::Reload(gateway_index, quota) => {
                Arc::make_mut(&mut self.gateways[gateway_index].limit).quota.limit = quota;
                self.gateways[gateway_index].denied.clear();
            }
        }
    }

    /// Replaces a crashed gateway by a new one. Its state is lost.
    fn crash(&mut self, gateway_index: usize) {
        let incarnation = self.gateways[gateway_index].incarnation + 1;
        let limit = Arc::clone(&self.gateways[gateway_index].limit);
        self.gateways[gateway_index] =
            Gateway { limit, incarnation, ..gateway(&self.plan, self.now) };
        for call in self.calls.iter_mut().filter(|call| call.gateway == gateway_index) {
            call.fetch = None;
            call.is_over = true;
        }
        let requests = &self.requests;
        self.pending.retain(|&id, _| requests[id].gateway != gateway_index);
        self.mailbox.lock().clear();
    }

    /// Sends returned units to the store. Some are lost on the way.
    fn return_units(&mut self, gateway: usize, out: Vec<UnspentUnits>) {
        for UnspentUnits { key, to_return, .. } in out {
            if self.rng.one_in(self.plan.failures) {
                continue;
            }
            let (key, delay) = (key.0 as usize, self.latency());
            let UnitReturn { charged_at, units } = to_return;
            self.schedule(delay, Event::Return { gateway, key, at: charged_at, cost: units });
        }
    }
}

fn gateway(plan: &Plan, started_at: u64) -> Gateway {
    let leases = Arc::new(LeaseRegistry::with_capacity(plan.capacity));
    leases.set_gateways(plan.gateways as u32);
    let limit = Arc::clone(&plan.limit);
    let denied = BTreeMap::new();
    Gateway {
        leases,
        limit,
        started_at,
        incarnation: 0,
        denied,
        spent: 0,
        unreplied: 0,
        unconfirmed: 0,
    }
}
