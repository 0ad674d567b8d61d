//! Fleets of up to a thousand gateways in virtual time, at a thousandth of the load: how soon a
//! token is known elsewhere, what the exchange costs Redis, and that no token is lost.
//!
//! A gateway's work on values and their lengths are those of full filters of the default size, as
//! `docs/src/performance/throttle.md` has them.

mod crowd;
mod report;

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
};

use testkit::random::SplitMix64;
use tidegate::clock::ms;
use tidegate::{
    clock::StoreTime,
    throttle::{
        Filter,
        sync::{FilterSync, SyncStats, next_tick},
    },
};

use self::{
    crowd::{Crowd, Users},
    report::{FleetReport, Recording},
};
use crate::{
    simulation::{
        fake_link::{FakeLink, FakeStore, Faults, Usage, Work},
        virtual_time::{Task, VirtualTime},
    },
    support::{MINUTE, NOW, geometry, hash_keys},
};

/// The gateways have a thousandth of a million tokens a minute.
const TOKENS_A_MINUTE: u64 = 1_000;

/// The work on a value of 2.7 MB, in µs: unpack it and merge it; cut a minute out and pack it.
const WORK: Work = Work { merge: 11_000 + 10_600, pack: 8_300 + 26_600 };

/// The parameters of a simulation.
#[derive(Clone, Copy)]
struct FleetPlan {
    gateways: usize,
    crowd: Crowd,
    /// Minutes that the filters remember.
    memory: u64,
    /// Time before the measurement, in ms, in which the exchange settles.
    warm_up: u64,
    /// Time of the measurement, in ms.
    duration: u64,
    /// Time without requests after it, in ms.
    recovery: u64,
    faults: Faults,
    /// One gateway crashes in each interval of this length, in ms; 0: none.
    crash_every: u64,
    seed: u64,
}

struct Fleet<'a> {
    plan: FleetPlan,
    time: &'a VirtualTime,
    store: &'a FakeStore<'a>,
    /// `None` while a gateway starts.
    filters: Vec<RefCell<Option<Rc<Filter>>>>,
    recordings: RefCell<Vec<Recording>>,
    /// Times until known elsewhere, in ms.
    delays: RefCell<Vec<u64>>,
    /// The gateway that crashes next.
    crashing: Cell<Option<usize>>,
    /// The gateways that crashed, with the time.
    crashes: RefCell<Vec<(usize, StoreTime)>>,
}

impl Fleet<'_> {
    async fn gateway(&self, id: usize) {
        let seed = self.plan.seed << 32 | id as u64;
        let mut link = FakeLink::new(self.store, id as u64, SplitMix64(seed));
        self.time.sleep(link.rng.below(1_000_000)).await;
        loop {
            self.run(id, &mut link).await;
        }
    }

    /// Runs a gateway until it crashes.
    async fn run(&self, id: usize, link: &mut FakeLink<'_>) {
        let sizes = geometry(TOKENS_A_MINUTE, self.plan.memory);
        let filter = Rc::new(Filter::new(sizes, hash_keys(), self.time.now()));
        let mut sync =
            FilterSync::new(Arc::new(SyncStats::default())).with_seed(link.rng.next_u64());
        while sync.load(&filter, link).await.is_err() {
            self.time.sleep(500_000).await;
            filter.rotate(self.time.now());
        }
        *self.filters[id].borrow_mut() = Some(Rc::clone(&filter));
        let mut seen = self.recordings.borrow().len();
        let mut awaited = Vec::new();
        let mut started = self.time.now();
        while self.crashing.get() != Some(id) {
            let next = next_tick(started, link.rng.next_u64() as u32);
            self.time.sleep_until(next.as_unix_ms() * 1_000).await;
            started = self.time.now();
            filter.rotate(self.time.now());
            // A failed tick is repeated.
            let _ = sync.tick(&filter, link).await;
            let recordings = self.recordings.borrow();
            awaited.extend((seen..recordings.len()).filter(|&at| recordings[at].is_measured));
            seen = recordings.len();
            awaited.retain(|&at| {
                let Recording { token, at, gateway, .. } = recordings[at];
                let is_known = gateway == id || filter.contains(token);
                if is_known && gateway != id {
                    self.delays.borrow_mut().push((self.time.now() - at).as_ms());
                }
                !is_known
            });
        }
        self.crashing.set(None);
        self.crashes.borrow_mut().push((id, self.time.now()));
        *self.filters[id].borrow_mut() = None;
    }

    async fn send_requests(&self) {
        let mut rng = SplitMix64(self.plan.seed ^ 0xfeed);
        let start = self.time.now();
        let end = start + ms(self.plan.warm_up) + ms(self.plan.duration);
        let mut users = Users::new(self.plan.crowd, start, &mut rng);
        while let Some(request) = users.next(&mut rng).filter(|request| request.at < end) {
            self.time.sleep_until(request.at.as_unix_ms() * 1_000).await;
            let gateway = rng.below(self.plan.gateways as u64) as usize;
            let Some(filter) = self.filters[gateway].borrow().clone() else { continue };
            let (at, token) = (request.at, request.token);
            let generation = *filter.live_generations().end();
            filter.record(token);
            let is_measured = request.is_first && at >= start + ms(self.plan.warm_up);
            let recording = Recording { token, generation, at, gateway, is_measured };
            self.recordings.borrow_mut().push(recording);
        }
        self.store.faults.set(Faults::default());
    }

    async fn crash(&self) {
        let mut rng = SplitMix64(self.plan.seed ^ 0xdead);
        let end = self.time.now() + ms(self.plan.warm_up) + ms(self.plan.duration);
        while self.plan.crash_every > 0 && self.time.now() < end {
            self.time.sleep(self.plan.crash_every * 1_000).await;
            self.crashing.set(Some(rng.below(self.plan.gateways as u64) as usize));
        }
    }
}

/// The simulation's usage from the end of the warm-up to the last request.
async fn measure_usage(fleet: &Fleet<'_>, usage: &Cell<Usage>) {
    fleet.time.sleep(fleet.plan.warm_up * 1_000).await;
    let before = fleet.store.usage.get();
    fleet.time.sleep(fleet.plan.duration * 1_000).await;
    usage.set(fleet.store.usage.get().since(before));
}

fn simulate(plan: FleetPlan) -> FleetReport {
    let time = VirtualTime::new(NOW);
    let store = FakeStore::new(&time, plan.faults);
    store.work.set(WORK);
    let fleet = Fleet {
        plan,
        time: &time,
        store: &store,
        filters: (0..plan.gateways).map(|_| RefCell::default()).collect(),
        recordings: RefCell::default(),
        delays: RefCell::default(),
        crashing: Cell::default(),
        crashes: RefCell::default(),
    };
    let usage = Cell::default();
    let mut tasks: Vec<Task<'_>> = vec![
        Box::pin(fleet.send_requests()),
        Box::pin(fleet.crash()),
        Box::pin(measure_usage(&fleet, &usage)),
    ];
    for id in 0..plan.gateways {
        tasks.push(Box::pin(fleet.gateway(id)));
    }
    time.run(tasks, NOW + ms(plan.warm_up) + ms(plan.duration) + ms(plan.recovery));
    let mut delays = fleet.delays.take();
    delays.sort_unstable();
    let filters: Vec<Rc<Filter>> =
        fleet.filters.iter().filter_map(|filter| filter.borrow().clone()).collect();
    let (recordings, crashes) = (fleet.recordings.take(), fleet.crashes.take());
    // A crash may lose what the gateway had not sent.
    let is_sent = |recording: &&Recording| {
        let unsent = if recording.is_measured { UNSENT_NEW } else { UNSENT };
        !crashes.iter().any(|&(gateway, at)| {
            gateway == recording.gateway && (recording.at..recording.at + ms(unsent)).contains(&at)
        })
    };
    let live = filters[0].live_generations();
    FleetReport {
        gateways: plan.gateways,
        delays,
        usage: usage.get(),
        seconds: plan.duration as f64 / 1_000.0,
        lost: report::count_lost(&filters, &recordings.iter().filter(is_sent)),
        different: report::count_different(&filters, live),
    }
}

/// Time for which a new token may be known only at the gateway that recorded it, in ms.
const UNSENT_NEW: u64 = 3_000;

/// The same for the activity of a known token.
const UNSENT: u64 = 3 * MINUTE;

fn plan(gateways: usize, crowd: Crowd) -> FleetPlan {
    FleetPlan {
        gateways,
        crowd,
        memory: 30,
        warm_up: 2 * MINUTE,
        duration: 3 * MINUTE,
        recovery: 0,
        faults: Faults::default(),
        crash_every: 0,
        seed: 1,
    }
}

/// The targets: known elsewhere within 3 s, and 50 MB a second.
fn assert_targets(report: &FleetReport) {
    assert!(report.delays.len() > 1_000, "{} times", report.delays.len());
    assert!(report.delay(0.99) <= 3_000, "known elsewhere: p99 {} ms", report.delay(0.99));
    assert!(report.egress() <= 50e6, "{} bytes a second", report.egress());
}

/// Each token of a minute is new: the most that the logs have to carry.
#[test]
fn two_hundred_gateways_know_new_tokens_within_seconds() {
    let strangers = plan(200, Crowd::Strangers);
    // Gateways write a minute in the minute after it: only whole minutes compare.
    let report = simulate(FleetPlan { warm_up: 40_000, duration: MINUTE, ..strangers });
    assert_targets(&report);
}

/// Calls and replies are lost, and gateways crash. In the end, all running gateways have the same
/// bits.
#[test]
fn twenty_gateways_agree_after_lost_messages_and_crashes() {
    let faults = Faults { lost_calls: 500, lost_replies: 500, ..Faults::default() };
    let plan = FleetPlan {
        memory: 10,
        faults,
        crash_every: 20_000,
        recovery: 6 * MINUTE,
        ..plan(20, Crowd::Regulars)
    };
    let report = simulate(plan);
    assert_targets(&report);
    let FleetReport { lost, different, .. } = report;
    assert_eq!((lost, different), (0, 0), "lost tokens, different generations");
}

/// The tables of `docs/src/performance/throttle.md`.
#[test]
#[ignore = "takes minutes; run it with --release --nocapture"]
#[expect(clippy::print_stderr, reason = "a table for the reader of the output")]
fn fleets_of_all_sizes() {
    eprintln!("{}", FleetReport::HEADER);
    for gateways in [2, 20, 50, 200, 1_000] {
        for crowd in [Crowd::Regulars, Crowd::Strangers] {
            // The generations of the warm-up are settled.
            let plan = FleetPlan { warm_up: 9 * MINUTE, ..plan(gateways, crowd) };
            eprintln!("{crowd:?} {}", simulate(plan));
        }
    }
}
