//! Ten thousand clients wait at two gateways, over real sockets, as their tickets ask them to.

use testkit::{
    client::{Client, Response},
    ranks::spearman,
    redis_server::RedisServer,
};

use super::ThrottleFleet;

const CLIENTS: usize = 10_000;

/// Users that are active before the rush.
const USERS: u64 = 1_030;

/// No user leaves during the test, so the number of active users is known exactly. The operator
/// raises `max_active`.
const SETTINGS: &str = "max_active: 1000, memory: 30m, capacity: 10000, false_positive: 0.00001, \
                        waiting_room: {ticket_ttl: 30s}";

/// Seconds of the gateways' clock between two steps.
const STEP: usize = 2;

/// Steps in which the clients arrive.
const ARRIVAL: usize = 30;

/// The step after which places are added, and their number in each step.
const RAISE_AFTER: usize = 10;
const RAISE: u64 = 300;

/// Steps after which all clients are admitted.
const MAX_STEPS: usize = 160;

/// Requests that are sent before their responses are read, on each connection.
const PIPELINED: usize = 40;

#[derive(Clone, Default)]
struct CrowdClient {
    ticket: String,
    /// The steps of its arrival and its admission.
    arrived: usize,
    admitted: Option<usize>,
}

struct Crowd {
    fleet: ThrottleFleet,
    /// Two to each gateway.
    connections: Vec<Client>,
    clients: Vec<CrowdClient>,
    /// The clients that ask in each step.
    due: Vec<Vec<usize>>,
    max_active: u64,
    admitted: u64,
    /// The largest number of users by which the active ones exceeded `max_active`, beyond the error
    /// of the estimate.
    overshoot: u64,
    /// The largest number of steps by which an admitted client arrived after one that was refused
    /// later.
    overtaken: usize,
    latest_admitted: usize,
}

impl Crowd {
    fn new(fleet: ThrottleFleet) -> Self {
        let gateways = fleet.gateways.iter().chain(&fleet.gateways);
        let connections = gateways.map(|gateway| Client::connect(gateway.address())).collect();
        let mut due = vec![Vec::new(); MAX_STEPS + 60];
        let client = |index: usize| {
            let arrived = index * ARRIVAL / CLIENTS;
            due[arrived].push(index);
            CrowdClient { arrived, ..CrowdClient::default() }
        };
        Self {
            clients: (0..CLIENTS).map(client).collect(),
            fleet,
            connections,
            due,
            max_active: 1_000,
            admitted: 0,
            overshoot: 0,
            overtaken: 0,
            latest_admitted: 0,
        }
    }

    /// Runs until all clients are admitted; returns the number of steps.
    fn run(&mut self) -> usize {
        for step in 0..MAX_STEPS {
            self.fleet.advance(STEP as u64 * 1_000);
            if step > RAISE_AFTER && self.max_active < USERS + CLIENTS as u64 {
                self.raise();
            }
            self.ask_due(step);
            let error = self.fleet.state(step % 2)["error"].as_u64().expect("an error");
            let active = USERS + self.admitted;
            let allowed = self.max_active.max(USERS) + error;
            self.overshoot = self.overshoot.max(active.saturating_sub(allowed));
            if self.admitted == CLIENTS as u64 {
                return step;
            }
        }
        panic!("{} of {CLIENTS} are admitted; {}", self.admitted, self.fleet.state(0));
    }

    /// The operator has added servers.
    fn raise(&mut self) {
        self.max_active += RAISE;
        let setting = format!("max_active: {},", self.max_active);
        let yaml = self.fleet.yaml.replace("max_active: 1000,", &setting);
        for gateway in &self.fleet.gateways {
            gateway.reload(&yaml).expect("a valid configuration");
        }
    }

    /// The clients that are due ask, each time at another gateway.
    fn ask_due(&mut self, step: usize) {
        let due = std::mem::take(&mut self.due[step]);
        let count = self.connections.len();
        for round in due.chunks(PIPELINED * count) {
            let asking = || round.chunks(PIPELINED).enumerate();
            for (at, part) in asking() {
                let request = |index: &usize| request(*index, &self.clients[*index].ticket);
                let text: String = part.iter().map(request).collect();
                self.connections[(at + step) % count].send(text);
            }
            for (at, part) in asking() {
                for index in part {
                    let response = self.connections[(at + step) % count].read_response();
                    self.answer(*index, &response, step);
                }
            }
        }
    }

    fn answer(&mut self, index: usize, response: &Response, step: usize) {
        let client = &mut self.clients[index];
        match response.status {
            200 => {
                client.admitted = Some(step);
                self.admitted += 1;
                self.latest_admitted = self.latest_admitted.max(client.arrived);
            }
            429 => {
                let ticket = response.header("X-Tidegate-Ticket").unwrap_or_default();
                ticket.clone_into(&mut client.ticket);
                self.overtaken =
                    self.overtaken.max(self.latest_admitted.saturating_sub(client.arrived));
                let seconds = response.number("Retry-After") as usize;
                assert!((1..=10).contains(&seconds), "{}", response.head);
                self.due[step + seconds.div_ceil(STEP)].push(index);
            }
            _ => panic!("{}", response.head),
        }
    }
}

fn request(index: usize, ticket: &str) -> String {
    let ticket =
        if ticket.is_empty() { String::new() } else { format!("X-Tidegate-Ticket: {ticket}\r\n") };
    format!("GET /free HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer crowd-{index}\r\n{ticket}\r\n")
}

#[test]
fn ten_thousand_clients_enter_in_their_order() {
    let redis = RedisServer::start();
    let fleet = ThrottleFleet::on_redis(&redis, 2, SETTINGS);
    fleet.fill("user", USERS);
    let mut crowd = Crowd::new(fleet);
    let steps = crowd.run();
    let admitted = crowd.clients.iter().map(|client| (client.arrived, client.admitted));
    let correlation =
        spearman(admitted.filter_map(|(arrived, admitted)| Some((arrived, admitted?))));
    let (overshoot, overtaken) = (crowd.overshoot, crowd.overtaken);
    let figures = format!(
        "{steps} steps, correlation {correlation:.4}, overshoot {overshoot}, overtaken {overtaken}"
    );
    assert!(steps > ARRIVAL + RAISE_AFTER, "they have waited: {figures}");
    assert!(correlation >= 0.98, "{figures}");
    assert_eq!(overshoot, 0, "{figures}");
    // A user whose turn has come is overtaken by users who ask before it: it asks within 10 s.
    assert!(overtaken * STEP <= 10, "{figures}");
    for gateway in &crowd.fleet.gateways {
        for reason in ["malformed", "forged", "expired", "future"] {
            let metric =
                format!("tidegate_waiting_room_refused_tickets_total{{reason=\"{reason}\"");
            assert_eq!(gateway.metric(&metric), 0, "{reason}: {figures}");
        }
    }
}
