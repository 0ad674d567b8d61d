//! Costs that are known at the end, in virtual time: clients, upstreams and gateways die at any
//! point of an hour.

use std::{collections::BTreeMap, sync::Arc};

use testkit::{random::SplitMix64, verdict::VerdictExt as _};
use tidegate::clock::ms;
use tidegate::{
    charge::{Adjustment, Charge, Key, Limit, LimitIdentity, StoreDecision},
    clock::{Clock, StoreTime},
    limit::{Algorithm, Calendar, CalendarPeriod, Change, Decision, Millis, Quota},
    store::{CounterStore, StoreHandle},
};

use crate::support::NOW;

const SEEDS: u64 = 10_000;
const HOUR: u64 = 3_600_000;
const MINUTE: u64 = 60_000;
const GATEWAYS: u64 = 3;

/// A request that was admitted.
struct Admitted {
    gateway: u64,
    charged: StoreDecision,
    estimate: u64,
    /// What its response reports; `None` if its client or its upstream dies before.
    actual: Option<u64>,
    /// When its response ends, or its client or upstream dies.
    ends_at: StoreTime,
    state: State,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    InFlight,
    Settled,
    /// Its gateway died first.
    Lost,
}

impl Admitted {
    /// What it costs in the end.
    fn cost(&self) -> u64 {
        self.actual.filter(|_| self.state == State::Settled).unwrap_or(self.estimate)
    }

    /// By how much it exceeds its estimate.
    fn excess(&self) -> u64 {
        self.cost().saturating_sub(self.estimate)
    }

    fn charged_at(&self) -> StoreTime {
        self.charged.charged_at()
    }

    /// The units that the window since `start` has of it: a refund is of the charge, an overdraft
    /// is a charge of its own.
    fn counted_from(&self, start: StoreTime) -> u64 {
        let charged = if self.charged_at() >= start { self.cost().min(self.estimate) } else { 0 };
        let is_settled = self.state == State::Settled && self.ends_at >= start;
        charged + if is_settled { self.excess() } else { 0 }
    }
}

/// What happens at a time.
enum Event {
    Arrival,
    End(usize),
    Death(u64),
}

struct World {
    seed: u64,
    random: SplitMix64,
    handle: StoreHandle,
    limit: Arc<Limit>,
    requests: Vec<Admitted>,
    events: BTreeMap<(StoreTime, u64), Event>,
    last_reset: StoreTime,
}

impl World {
    fn new(seed: u64, store: &Arc<CounterStore>) -> Self {
        let mut random = SplitMix64(seed);
        let window = [MINUTE, 10 * MINUTE, HOUR][random.below(3) as usize];
        let algorithm = match random.below(5) {
            0 => Algorithm::FixedWindow,
            1 => Algorithm::SlidingWindow { resolution: 6, strict: random.one_in(2) },
            2 => Algorithm::SlidingLog,
            3 => Algorithm::TokenBucket,
            _ => Algorithm::CalendarWindow(
                Calendar::new(CalendarPeriod::Hour, "Asia/Kolkata").expect("a zone"),
            ),
        };
        // Large enough for all responses together to stay within the bound of a debt.
        let quota = Quota::new(50 + random.below(1_000), Millis::from_ms(window), algorithm);
        let limit = Arc::new(Limit::new(LimitIdentity::new("settled", seed), quota));
        let mut world = Self {
            seed,
            random,
            handle: store.worker(),
            limit,
            requests: Vec::new(),
            events: BTreeMap::new(),
            last_reset: NOW,
        };
        for _ in 0..30 {
            let at = NOW + ms(world.random.below(HOUR));
            world.push(at, Event::Arrival);
        }
        for _ in 0..world.random.below(4) {
            let (at, gateway) = (NOW + ms(world.random.below(HOUR)), world.random.below(GATEWAYS));
            world.push(at, Event::Death(gateway));
        }
        world
    }

    fn push(&mut self, at: StoreTime, event: Event) {
        self.events.insert((at, self.random.next_u64()), event);
    }

    async fn run(&mut self) {
        while let Some(((now, _), event)) = self.events.pop_first() {
            match event {
                Event::Arrival => self.arrive(now).await,
                Event::End(index) => self.end(index, now).await,
                Event::Death(gateway) => {
                    let lost = self.requests.iter_mut().filter(|request| {
                        request.gateway == gateway && request.state == State::InFlight
                    });
                    lost.for_each(|request| request.state = State::Lost);
                }
            }
        }
    }

    async fn arrive(&mut self, now: StoreTime) {
        let estimate = 1 + self.random.below(self.limit.quota.limit);
        let limit = Arc::clone(&self.limit);
        let charge = Charge { limit: &limit, key: Key(1), cost: estimate };
        let verdict = self.handle.charge(&[charge], now).await.expect("memory");
        if !verdict.admitted {
            self.check(verdict.decision(0), now);
            return;
        }
        let actual = (!self.random.one_in(3)).then(|| self.random.below(2 * estimate + 10));
        let ends_at = now + ms(self.random.below(10 * MINUTE));
        self.push(ends_at, Event::End(self.requests.len()));
        self.requests.push(Admitted {
            gateway: self.random.below(GATEWAYS),
            charged: *verdict.decided(0).expect("a decision"),
            estimate,
            actual,
            ends_at,
            state: State::InFlight,
        });
        self.check(verdict.decision(0), now);
    }

    /// Settles a request, unless its gateway has died.
    async fn end(&mut self, index: usize, now: StoreTime) {
        let request = &mut self.requests[index];
        if request.state == State::Lost {
            return;
        }
        request.state = State::Settled;
        let (cost, estimate, charged) = (request.cost(), request.estimate, request.charged);
        let change = match cost.cmp(&estimate) {
            std::cmp::Ordering::Equal => return,
            std::cmp::Ordering::Less => {
                Change::Refund { charged_at: charged.charged_at(), cost: estimate - cost }
            }
            std::cmp::Ordering::Greater => Change::Overdraw { cost: cost - estimate },
        };
        let limit = Arc::clone(&self.limit);
        let adjustment = Adjustment { limit: &limit, key: Key(1), change };
        let outcomes = self.handle.adjust(&[adjustment], charged.source, now).await;
        self.check(outcomes[0].decided().expect("memory").decision, now);
    }

    /// The reset never moves back, and the used units are exactly the window's.
    fn check(&mut self, decision: Decision, now: StoreTime) {
        let name = self.name();
        let quota = self.limit.quota.limit;
        if self.last_reset > now {
            assert!(decision.reset_at >= self.last_reset, "{name}: {decision:?} {now:?}");
        }
        assert_eq!(decision.remaining, quota.saturating_sub(decision.used), "{name}: {decision:?}");
        self.last_reset = self.last_reset.max(decision.reset_at);
        let Some(start) = self.window_start(now) else { return };
        let charged: u64 = self.requests.iter().map(|request| request.counted_from(start)).sum();
        assert_eq!(decision.used, charged, "{name}: {decision:?} {now:?}");
    }

    /// The published bound: at each admission, the requests of its window have cost at most the
    /// quota, and what those in flight exceeded their estimates by.
    fn check_overspending(&self) {
        for (index, last) in self.requests.iter().enumerate() {
            let at = last.charged_at();
            let Some(start) = self.window_start(at) else { return };
            let admitted = &self.requests[..=index];
            let counted = admitted.iter().filter(|request| request.charged_at() >= start);
            let cost: u64 = counted.map(Admitted::cost).sum();
            let in_flight = admitted.iter().filter(|request| request.ends_at >= at);
            let excess: u64 = in_flight.map(Admitted::excess).sum();
            assert!(cost <= self.limit.quota.limit + excess, "{}: {at:?}", self.name());
        }
    }

    /// When the window that `now` is in, or ends, has begun; `None` if the algorithm has no such
    /// window.
    fn window_start(&self, now: StoreTime) -> Option<StoreTime> {
        match self.limit.algorithm() {
            Algorithm::SlidingLog => Some(now.before(self.limit.quota.window) + ms(1)),
            Algorithm::CalendarWindow(calendar) => Some(calendar.window_at(now).start),
            _ => None,
        }
    }

    /// Nothing is reserved once a window has passed since the last event, whatever has died.
    async fn check_end(&self) {
        let end = self.requests.iter().map(|request| request.ends_at).max().unwrap_or(NOW);
        let end = end.max(NOW + ms(HOUR));
        // An overdraft of a bucket takes as long to drain as it was long to fill.
        let windows = if self.limit.algorithm() == Algorithm::TokenBucket { 40 } else { 2 };
        let later = end + self.limit.quota.window.max(Millis::from_ms(HOUR)) * windows;
        let charge = Charge { limit: &self.limit, key: Key(1), cost: 0 };
        let verdict = self.handle.peek(&[charge], later).await.expect("memory");
        let decision = verdict.decision(0);
        let quota = self.limit.quota.limit;
        assert_eq!((decision.used, decision.remaining), (0, quota), "{}", self.name());
    }

    fn name(&self) -> String {
        format!("seed {}, {:?}", self.seed, self.limit.quota)
    }
}

#[tokio::test]
async fn nothing_stays_reserved_after_deaths() {
    let clock = Clock::manual(NOW);
    let (mut admitted, mut lost) = (0, 0);
    for seed in 0..SEEDS {
        let store = CounterStore::memory(clock.clone(), 10).expect("a store");
        let mut world = World::new(seed, &store);
        world.run().await;
        world.check_overspending();
        world.check_end().await;
        admitted += world.requests.len();
        lost += world.requests.iter().filter(|request| request.state == State::Lost).count();
    }
    assert!(admitted > 50_000 && lost > 1_000, "{admitted} requests, {lost} lost");
}
