use std::{cell::Cell, cell::RefCell, rc::Rc, sync::Arc};

use futures_util::FutureExt;
use testkit::{random::SplitMix64, ranks::spearman};
use tidegate::clock::ms;
use tidegate::{
    clock::StoreTime,
    redis::RedisFailure,
    secret::SharedSecret,
    throttle::waiting_room::{
        HeadStart, RoomSettings, RoomStore, RoomTick, RoomTicker, WaitingRoom,
        desk::SeatDesk,
        state::{RoomCall, RoomReply, RoomState, Seat, Standing},
    },
    time::Millis,
};

use crate::support::NOW;

const SETTINGS: RoomSettings = RoomSettings { ticket_ttl: Millis::from_mins(1) };

/// Seconds until a user that was admitted is counted as active.
const ESTIMATE_DELAY: usize = 3;

/// The shared state of all gateways, which may be out of reach.
#[derive(Clone, Default)]
struct SharedRoom {
    state: Rc<RefCell<RoomState>>,
    now: Rc<Cell<StoreTime>>,
    is_lost: Rc<Cell<bool>>,
}

impl RoomStore for SharedRoom {
    async fn exchange(&mut self, call: &RoomCall) -> Result<RoomReply, RedisFailure> {
        if self.is_lost.get() {
            return Err(RedisFailure::Io);
        }
        Ok(self.state.borrow_mut().exchange(call, self.now.get()))
    }

    async fn claim(&mut self, _: Millis, holders: &[u64]) -> Result<Vec<Seat>, RedisFailure> {
        if self.is_lost.get() {
            return Err(RedisFailure::Io);
        }
        Ok(self.state.borrow_mut().claim(holders, self.now.get()))
    }
}

struct SimulatedGateway {
    room: Arc<WaitingRoom>,
    ticker: RoomTicker<SharedRoom>,
    desk: SeatDesk<SharedRoom>,
    /// Its ticks are this long after the full second, in ms.
    phase: u64,
}

impl SimulatedGateway {
    fn start(shared: &SharedRoom, phase: u64) -> Self {
        let secret = SharedSecret::from_namespace("test");
        let room = WaitingRoom::new(SETTINGS, &secret, shared.now.get());
        let ticker = RoomTicker::new(Arc::clone(&room), Some(shared.clone()));
        let desk = SeatDesk::new(Arc::clone(&room), Some(shared.clone()));
        Self { room, ticker, desk, phase }
    }
}

#[derive(Clone, Default)]
struct SimulatedClient {
    ticket: Option<[u8; 38]>,
    arrived: usize,
    /// From this second on it does not ask.
    gives_up: Option<usize>,
    admitted: Option<usize>,
}

/// What is simulated.
#[derive(Clone)]
struct Scenario {
    gateways: usize,
    clients: usize,
    /// Number of users that may be active; as many are at the start.
    max_active: u64,
    /// The time in which they arrive, in seconds.
    rush: usize,
    /// Percentage of clients that stop asking while they wait.
    abandon: u64,
    /// The time after which each client stops asking, in seconds.
    patience: Option<usize>,
    /// The seconds in which the shared state is out of reach.
    lost: std::ops::Range<usize>,
    /// The second at which all gateways are started again.
    restart: Option<usize>,
}

#[derive(Debug, Default)]
struct Outcome {
    /// The second of the last admission.
    finished: usize,
    most_active: u64,
    /// The largest number of seconds by which an admitted client arrived after one that was refused
    /// later.
    overtaken: usize,
    spearman: f64,
    /// Clients that were never admitted, and did not give up.
    forgotten: usize,
    replaced_tickets: u64,
    admitted: usize,
    /// The number of empty places while clients arrived, on average.
    empty: f64,
}

/// The error of the estimates, in users.
fn error(scenario: &Scenario) -> u64 {
    scenario.max_active / 100
}

struct Simulation {
    scenario: Scenario,
    shared: SharedRoom,
    gateways: Vec<SimulatedGateway>,
    clients: Vec<SimulatedClient>,
    /// The clients that ask in a second.
    due: Vec<Vec<u32>>,
    /// The users that leave in a second.
    leaving: Vec<u64>,
    active: u64,
    history: Vec<u64>,
    random: SplitMix64,
    outcome: Outcome,
    latest_admitted: usize,
}

impl Simulation {
    fn new(scenario: Scenario) -> Self {
        let shared = SharedRoom::default();
        shared.now.set(NOW);
        let seconds = 4_000;
        let mut random = SplitMix64(7);
        let phases = (0..scenario.gateways).map(|_| random.next_u64() % 1_000);
        let gateways = phases.map(|phase| SimulatedGateway::start(&shared, phase)).collect();
        let mut due = vec![Vec::new(); seconds + 400];
        let mut leaving = vec![0; seconds + 400];
        for _ in 0..scenario.max_active {
            leaving[(random.next_u64() % 180) as usize] += 1;
        }
        let client = |index: usize| {
            let arrived = 5 + index * scenario.rush / scenario.clients;
            let patience = (random.next_u64() % 100 < scenario.abandon)
                .then(|| 10 + (random.next_u64() % 200) as usize)
                .or(scenario.patience);
            let gives_up = patience.map(|patience| arrived + patience);
            due[arrived].push(index as u32);
            SimulatedClient { arrived, gives_up, ..SimulatedClient::default() }
        };
        let clients = (0..scenario.clients).map(client).collect();
        Self {
            active: scenario.max_active,
            history: vec![scenario.max_active; ESTIMATE_DELAY],
            scenario,
            shared,
            gateways,
            clients,
            due,
            leaving,
            random,
            outcome: Outcome::default(),
            latest_admitted: 0,
        }
    }

    fn run(mut self) -> Outcome {
        for second in 0..4_000 {
            self.shared.is_lost.set(self.scenario.lost.contains(&second));
            if self.scenario.restart == Some(second) {
                for gateway in &mut self.gateways {
                    *gateway = SimulatedGateway::start(&self.shared, gateway.phase);
                }
            }
            self.tick_gateways(second);
            self.active -= self.leaving[second];
            for client in std::mem::take(&mut self.due[second]) {
                self.ask(client as usize, second);
            }
            self.history.push(self.active);
            self.outcome.most_active = self.outcome.most_active.max(self.active);
            if (300..self.scenario.rush).contains(&second) {
                let empty = self.scenario.max_active.saturating_sub(self.active) as f64;
                self.outcome.empty += empty / (self.scenario.rush - 300) as f64;
            }
        }
        let left =
            |client: &&SimulatedClient| client.admitted.is_none() && client.gives_up.is_none();
        self.outcome.forgotten = self.clients.iter().filter(left).count();
        let admitted =
            self.clients.iter().filter_map(|client| Some((client.arrived, client.admitted?)));
        self.outcome.admitted = admitted.clone().count();
        self.outcome.spearman = spearman(admitted);
        self.outcome
    }

    fn tick_gateways(&mut self, second: usize) {
        let start = NOW + ms(second as u64 * 1_000);
        let known = self.history[self.history.len() - ESTIMATE_DELAY];
        let error = error(&self.scenario);
        self.gateways.sort_by_key(|gateway| gateway.phase);
        for gateway in &mut self.gateways {
            let now = start + ms(gateway.phase);
            self.shared.now.set(now);
            let noise = self.random.next_u64() % (2 * error + 1);
            let tick = RoomTick {
                now,
                standing: Standing::Demanded,
                active: Some((known + noise).saturating_sub(error)),
                max_active: self.scenario.max_active,
                memory: Millis::from_mins(2),
                head_start: Millis::ZERO,
            };
            let _ = gateway.ticker.tick(tick).now_or_never().expect("no wait");
        }
    }

    fn ask(&mut self, index: usize, second: usize) {
        let client = &mut self.clients[index];
        if client.gives_up.is_some_and(|until| until <= second) {
            return;
        }
        let random = self.random.next_u64();
        let at = (random % self.gateways.len() as u64) as usize;
        let gateway = &mut self.gateways[at];
        // The tail of the second: after all ticks.
        let now = NOW + ms(second as u64 * 1_000) + ms(999);
        self.shared.now.set(now);
        let holder = SplitMix64(index as u64).next_u64();
        let ticket = client.ticket.as_ref().map(<[u8; 38]>::as_slice);
        let waiting = gateway.room.ask(holder, ticket, HeadStart::default(), now);
        if waiting.is_turn() {
            let seats = gateway.desk.claim(&[holder], now).now_or_never().expect("no wait");
            if seats == [Seat::Taken] {
                client.admitted = Some(second);
                self.outcome.finished = second;
                self.latest_admitted = self.latest_admitted.max(client.arrived);
                self.active += 1;
                self.leaving[second + 60 + (random >> 32) as usize % 120] += 1;
                return;
            }
        }
        if client.ticket.is_some() && waiting.is_new() {
            self.outcome.replaced_tickets += 1;
        }
        let overtaken = self.latest_admitted.saturating_sub(client.arrived);
        self.outcome.overtaken = self.outcome.overtaken.max(overtaken);
        client.ticket = Some(waiting.ticket);
        self.due[second + waiting.retry_after.as_whole_secs() as usize].push(index as u32);
    }
}

fn small(abandon: u64) -> Scenario {
    Scenario {
        gateways: 5,
        clients: 5_000,
        max_active: 1_000,
        rush: 60,
        abandon,
        patience: None,
        lost: 0..0,
        restart: None,
    }
}

#[test]
fn a_hundred_thousand_clients_are_admitted_in_their_order() {
    let scenario = Scenario { gateways: 20, clients: 100_000, max_active: 60_000, ..small(20) };
    let error = error(&scenario);
    let outcome = Simulation::new(scenario).run();
    assert!(outcome.most_active <= 60_000 + error, "{outcome:?}");
    assert!(outcome.overtaken <= 2, "{outcome:?}");
    assert!(outcome.spearman > 0.999, "{outcome:?}");
    assert_eq!((outcome.forgotten, outcome.replaced_tickets), (0, 0), "{outcome:?}");
}

#[test]
fn clients_that_give_up_hold_up_no_other() {
    let (all, half) = (Simulation::new(small(0)).run(), Simulation::new(small(50)).run());
    assert_eq!((all.forgotten, half.forgotten), (0, 0));
    assert!(half.finished * 10 < all.finished * 7, "{} and {}", half.finished, all.finished);
}

/// The oldest tickets are then always those of users who have just left.
#[test]
fn users_who_give_up_at_the_same_age_leave_no_place_empty() {
    for (max_active, clients, patience) in [(3, 3_000, 30), (60, 3_000, 120), (600, 30_000, 60)] {
        let scenario = Scenario {
            gateways: 3,
            clients,
            max_active,
            rush: 3_000,
            patience: Some(patience),
            ..small(0)
        };
        let outcome = Simulation::new(scenario).run();
        // A user stays for two minutes.
        let places = max_active as f64;
        let most = places * 25.0;
        assert!(outcome.admitted as f64 > most * 0.7, "{max_active} places: {outcome:?}");
        assert!(outcome.most_active <= max_active + 1 + max_active / 50, "{outcome:?}");
    }
}

#[test]
fn without_redis_the_queue_moves_on() {
    let scenario = Scenario { lost: 150..400, ..small(0) };
    let error = error(&scenario);
    let outcome = Simulation::new(scenario).run();
    assert_eq!(outcome.forgotten, 0, "{outcome:?}");
    assert!(outcome.most_active <= 1_000 + error, "{outcome:?}");
    assert!(outcome.spearman > 0.99, "{outcome:?}");
}

#[test]
fn a_restart_of_all_gateways_keeps_every_place() {
    let scenario = Scenario { restart: Some(200), ..small(0) };
    let error = error(&scenario);
    let outcome = Simulation::new(scenario).run();
    assert_eq!((outcome.forgotten, outcome.replaced_tickets), (0, 0), "{outcome:?}");
    assert!(outcome.overtaken <= 2 && outcome.most_active <= 1_000 + error, "{outcome:?}");
}
