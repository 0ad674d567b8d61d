//! Gateways, a network and a store in virtual time. Everything follows from one seed.

mod calls;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    sync::Arc,
};

use parking_lot::Mutex;
use testkit::random::SplitMix64;
use tidegate::{
    limit::{Algorithm, Change, Grant, Key, Limit, Millis, State, TokenDemand},
    store::{
        Failure,
        deny_cache::INITIAL_TRUST,
        token_lease::{
            FetchReply, JoinOutcome, LeaseCharge, LeaseFetch, LeaseRegistry, UnspentTokens, Waiter,
            WaiterOutcome,
        },
    },
};

use super::Plan;

/// The store's time at the start of a run: a whole minute.
pub(super) const START: Millis = 1_699_999_980_000;

/// A gateway's response timeout, in ms.
const PATIENCE: u64 = 60;

/// Interval between two sweeps, in ms.
const SWEEP: u64 = 250;

type Mailbox = Arc<Mutex<Vec<(usize, WaiterOutcome)>>>;

/// A request that waits for its outcome.
pub(super) struct Caller {
    id: usize,
    cost: u32,
    mailbox: Mailbox,
    gone: bool,
}

impl Waiter for Caller {
    fn cost(&self) -> u32 {
        self.cost
    }

    fn serve(self, outcome: WaiterOutcome) -> bool {
        let outcome = if self.gone { WaiterOutcome::Failed(None) } else { outcome };
        self.mailbox.lock().push((self.id, outcome));
        !self.gone
    }
}

#[derive(Clone, Copy)]
struct Request {
    gateway: usize,
    key: usize,
    cost: u32,
}

/// An admitted request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Admission {
    pub(super) key: usize,
    /// By the store's clock.
    pub(super) at: Millis,
    pub(super) cost: u32,
}

struct Gateway {
    leases: Arc<LeaseRegistry<Caller>>,
    limit: Limit,
    /// The run's time at tick 0 of its clock, plus one per restart.
    made: u64,
    life: u32,
    denied: BTreeMap<(usize, u32), u64>,
    spent: u64,
    /// Tokens charged without a reply, and tokens returned without a confirmation.
    unheard: u64,
    unknown: u64,
}

/// A pending call.
struct Call {
    gateway: usize,
    life: u32,
    key: usize,
    limit: Limit,
    order: TokenDemand,
    /// `None` for a request without a lease, or after the timeout.
    fetching: Option<LeaseFetch<Caller>>,
    /// The request without a lease.
    own: Option<usize>,
    sent: u64,
    over: bool,
}

#[derive(Clone, Copy, Eq, Ord, PartialEq, PartialOrd)]
enum Event {
    Arrive(usize),
    Answer(usize, usize),
    GiveUp(usize),
    Refund { gateway: usize, key: usize, at: Millis, cost: u32 },
    Return { gateway: usize, life: u32, admission: usize, now: Millis },
    Sweep(usize),
    Crash(usize),
    Reload(usize, u32),
}

pub(super) struct World {
    pub(super) plan: Plan,
    rng: SplitMix64,
    now: u64,
    serial: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    gateways: Vec<Gateway>,
    records: Vec<State>,
    calls: Vec<Call>,
    replies: Vec<(Grant, Millis)>,
    requests: Vec<Request>,
    pending: BTreeMap<usize, u64>,
    mailbox: Mailbox,
    /// All admissions that were not refunded.
    pub(super) admitted: Vec<Option<Admission>>,
    /// The window ends that the store reported.
    pub(super) ends: Vec<Vec<Millis>>,
    pub(super) asked: usize,
    /// Admissions before the first refusal.
    pub(super) first_refusal: Option<u64>,
    /// The most tokens that gateways could still spend when a request was refused.
    pub(super) unseen: u64,
    passed: u64,
}

impl World {
    pub(super) fn new(plan: Plan) -> Self {
        let mut rng = SplitMix64(plan.seed);
        let gateways = (0..plan.gateways).map(|_| gateway(&plan, rng.below(1_000))).collect();
        let fresh = State::fresh(plan.limit.algorithm);
        let mut world = Self {
            now: 1_000,
            serial: 0,
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
            asked: 0,
            first_refusal: None,
            unseen: 0,
            passed: 0,
            rng,
            plan,
        };
        for gateway in 0..world.plan.gateways {
            let at = world.rng.below(SWEEP);
            world.after(at, Event::Sweep(gateway));
        }
        for _ in 0..world.plan.crashes {
            let (at, who) = (world.rng.below(world.plan.length), world.any_gateway());
            world.after(at, Event::Crash(who));
        }
        for at in 0..world.plan.reloads {
            let quota = world.plan.limit.quota.limit;
            let quota = if at % 2 == 0 { quota.div_ceil(2) } else { quota };
            let at = world.rng.below(world.plan.length);
            for gateway in 0..world.plan.gateways {
                let late = world.rng.below(100);
                world.after(at + late, Event::Reload(gateway, quota));
            }
        }
        world
    }

    fn any_gateway(&mut self) -> usize {
        let plan = &self.plan;
        if plan.skewed && self.rng.below(10) < 9 {
            return 0;
        }
        self.rng.below(plan.gateways as u64) as usize
    }

    fn after(&mut self, delay: u64, event: Event) {
        self.serial += 1;
        self.events.push(Reverse((self.now + delay, self.serial, event)));
    }

    /// The store's clock.
    fn store_now(&self) -> Millis {
        START + self.now - 1_000
    }

    fn ticks(&self, gateway: usize) -> u64 {
        self.now - self.gateways[gateway].made
    }

    fn delay(&mut self) -> u64 {
        self.rng.below(self.plan.delay + 1)
    }

    /// The whole run; panics if a request hangs or the tokens do not balance.
    pub(super) fn run(mut self) -> Self {
        let (start, length, requests) = (self.now, self.plan.length, self.plan.requests as u64);
        for at in 0..requests {
            let mut due = start + at * length / requests;
            if self.plan.idle > 0 && due % (2 * self.plan.idle) > self.plan.idle {
                due += self.plan.idle;
            }
            self.pass(due);
            self.request();
        }
        self.pass(start + length + 2_000);
        assert!(self.pending.is_empty(), "{} wait for ever", self.pending.len());
        self.balance();
        self
    }

    /// Processes the events up to this time.
    fn pass(&mut self, until: u64) {
        while let Some(Reverse((at, ..))) = self.events.peek()
            && *at <= until
        {
            let Some(Reverse((at, _, event))) = self.events.pop() else { return };
            self.now = self.now.max(at);
            self.happen(event);
            self.deliver();
        }
        self.now = self.now.max(until);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive(call) => self.arrive(call),
            Event::Answer(call, reply) => self.answer(call, reply),
            Event::GiveUp(call) => self.give_up(call),
            Event::Refund { gateway, key, at, cost } => {
                let (now, quota) = (self.store_now(), self.gateways[gateway].limit.quota);
                self.records[key].adjust(&quota, now, Change::Refund { charged_at: at, cost });
            }
            Event::Return { gateway, life, admission, now } => {
                self.give_back(gateway, life, admission, now);
            }
            Event::Sweep(gateway) => {
                let mut out = Vec::new();
                self.gateways[gateway].leases.sweep(self.ticks(gateway), |_| true, &mut out);
                self.refund(gateway, out);
                self.after(SWEEP, Event::Sweep(gateway));
            }
            Event::Crash(who) => self.crash(who),
            Event::Reload(who, quota) => {
                self.gateways[who].limit.quota.limit = quota;
                self.gateways[who].denied.clear();
            }
        }
    }

    /// A process crashes with its state, and another replaces it.
    fn crash(&mut self, who: usize) {
        let life = self.gateways[who].life + 1;
        let limit = self.gateways[who].limit.clone();
        self.gateways[who] = Gateway { limit, life, ..gateway(&self.plan, self.now) };
        for call in self.calls.iter_mut().filter(|call| call.gateway == who) {
            call.fetching = None;
            call.over = true;
        }
        let requests = &self.requests;
        self.pending.retain(|&id, _| requests[id].gateway != who);
        self.mailbox.lock().clear();
    }

    fn refund(&mut self, gateway: usize, out: Vec<UnspentTokens>) {
        for UnspentTokens { key, back, .. } in out {
            if self.rng.one_in(self.plan.failures) {
                continue;
            }
            let (key, delay) = (key.0 as usize, self.delay());
            let refund = Event::Refund { gateway, key, at: back.charged_at, cost: back.tokens };
            self.after(delay, refund);
        }
    }

    fn request(&mut self) {
        let gateway = self.any_gateway();
        let key = self.rng.below(self.plan.keys as u64) as usize;
        let cost = 1 + self.rng.below(u64::from(self.plan.costs)) as u32;
        let (id, ticks) = (self.requests.len(), self.ticks(gateway));
        self.requests.push(Request { gateway, key, cost });
        let at = &mut self.gateways[gateway];
        if at.denied.get(&(key, cost)).is_some_and(|&until| ticks < until) {
            return;
        }
        at.denied.remove(&(key, cost));
        self.pending.insert(id, self.now);
        if self.plan.several && self.rng.one_in(6) {
            return self.ask(id);
        }
        let at = &self.gateways[gateway];
        if let Some(taken) = at.leases.take(&at.limit, Key(key as u128), cost, ticks) {
            self.gateways[gateway].spent += u64::from(cost);
            self.taken_here(&taken, key);
            return self.admit(id, self.store_now(), taken.now, true);
        }
        let gone = self.rng.one_in(self.plan.failures);
        let caller = Caller { id, cost, mailbox: Arc::clone(&self.mailbox), gone };
        let at = &self.gateways[gateway];
        match at.leases.join(&at.limit, Key(key as u128), caller, ticks) {
            JoinOutcome::Served | JoinOutcome::Waiting => {}
            JoinOutcome::Fetch(fetching) => {
                self.send(gateway, key, *fetching.demand(), Some(fetching), None);
            }
            JoinOutcome::Unavailable(_) => self.ask(id),
        }
        self.deliver();
    }

    /// Locally spent tokens are spent in the sub-window that they were charged to.
    fn taken_here(&self, taken: &LeaseCharge, key: usize) {
        let (real, s) = (self.store_now(), self.plan.limit.quota.sub_window());
        assert!(taken.now <= real, "the reported time is ahead of the store's");
        let same = match self.plan.limit.algorithm {
            Algorithm::FixedWindow => {
                let window = |at| self.ends[key].partition_point(|&end| end <= at);
                window(taken.now) == window(real)
            }
            _ => taken.now / s == real / s,
        };
        assert!(same, "spent at {real}, charged at {}", taken.now);
    }

    fn admit(&mut self, id: usize, at: Millis, now: Millis, here: bool) {
        let Request { gateway, key, cost } = self.requests[id];
        assert!(self.pending.remove(&id).is_some(), "{id} has two outcomes");
        self.passed += u64::from(cost);
        self.admitted.push(Some(Admission { key, at, cost }));
        if here && self.rng.one_in(self.plan.returns) {
            let (admission, life) = (self.admitted.len() - 1, self.gateways[gateway].life);
            let delay = 1 + self.rng.below(300);
            self.after(delay, Event::Return { gateway, life, admission, now });
        }
    }

    /// A refund.
    fn give_back(&mut self, gateway: usize, life: u32, admission: usize, now: Millis) {
        let Some(Admission { key, cost, .. }) = self.admitted[admission] else { return };
        let (ticks, at) = (self.ticks(gateway), &mut self.gateways[gateway]);
        if at.life != life {
            return;
        }
        if at.leases.refund(&at.limit, Key(key as u128), now, cost, ticks).is_some() {
            at.spent -= u64::from(cost);
            self.admitted[admission] = None;
            self.passed -= u64::from(cost);
        }
    }

    /// A request goes to the store without a lease.
    fn ask(&mut self, id: usize) {
        let Request { gateway, key, cost } = self.requests[id];
        let share = 2 * self.plan.gateways as u32;
        let order = TokenDemand {
            minimum: cost,
            needed: cost,
            extra_divisor: share,
            ..TokenDemand::default()
        };
        self.send(gateway, key, order, None, Some(id));
    }
}

fn gateway(plan: &Plan, made: u64) -> Gateway {
    let leases = Arc::new(LeaseRegistry::with_capacity(plan.room));
    leases.set_gateways(plan.gateways as u32);
    let limit = plan.limit.clone();
    let denied = BTreeMap::new();
    Gateway { leases, limit, made, life: 0, denied, spent: 0, unheard: 0, unknown: 0 }
}
