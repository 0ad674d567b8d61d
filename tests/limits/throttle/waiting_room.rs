//! The waiting room: users enter in the order of their arrival, and a ticket admits no other user.

use std::io::Write;

use testkit::{
    client::{Client, Response, get},
    redis_server::RedisServer,
    yaml::fill,
};
use tidegate::clock::ms;

use super::{START, ThrottleFleet, api};
use testkit::api_keys::{hash, key};

/// Users are active for one to two minutes.
const SETTINGS: &str = "max_active: 10, resume_below: 9, memory: 1m, capacity: 1000, \
                        waiting_room: {ticket_ttl: 20s}";

/// A user that waits.
struct Newcomer {
    name: &'static str,
    ticket: String,
    /// The tick at which it was admitted.
    admitted: Option<usize>,
}

impl Newcomer {
    /// Arrives at the gateway `at`.
    fn arrive(fleet: &ThrottleFleet, at: usize, name: &'static str) -> Self {
        let response = ask(fleet, at, name, "");
        assert_eq!(response.status, 429, "{}", response.head);
        Self { name, ticket: ticket(&response), admitted: None }
    }

    /// Asks the gateway `at`, as its last response asks it to.
    fn ask(&mut self, fleet: &ThrottleFleet, at: usize, tick: usize) {
        if self.admitted.is_some() {
            return;
        }
        let response = ask(fleet, at, self.name, &self.ticket);
        match response.status {
            200 => self.admitted = Some(tick),
            429 => self.ticket = ticket(&response),
            _ => panic!("{}", response.head),
        }
    }
}

pub(super) fn ticket(response: &Response) -> String {
    response.header("X-Tidegate-Ticket").unwrap_or_default().to_owned()
}

/// Sends a request with a ticket, or without one if it is empty.
pub(super) fn ask(fleet: &ThrottleFleet, at: usize, token: &str, ticket: &str) -> Response {
    let mut headers = format!("Authorization: Bearer {token}\r\n");
    if !ticket.is_empty() {
        // Writing to a string cannot fail.
        let _ = std::fmt::Write::write_fmt(
            &mut headers,
            format_args!("X-Tidegate-Ticket: {ticket}\r\n"),
        );
    }
    fleet.next_protocol().get(&fleet.gateways[at], "/a", headers)
}

/// Ticks until all newcomers are admitted; each asks once in a tick, through the gateways in turn.
fn admit_all(fleet: &ThrottleFleet, newcomers: &mut [Newcomer]) {
    for tick in 0..120 {
        fleet.tick();
        for (index, newcomer) in newcomers.iter_mut().enumerate() {
            newcomer.ask(fleet, (tick + index) % fleet.gateways.len(), tick);
        }
        if newcomers.iter().all(|newcomer| newcomer.admitted.is_some()) {
            return;
        }
    }
    let waiting: Vec<_> =
        newcomers.iter().filter(|own| own.admitted.is_none()).map(|own| own.name).collect();
    panic!("never admitted: {waiting:?}; {}", fleet.state(0));
}

fn refused(fleet: &ThrottleFleet, reason: &str) -> u64 {
    let metric = format!("tidegate_waiting_room_refused_tickets_total{{reason=\"{reason}\"");
    fleet.gateways[0].metric(&metric)
}

#[test]
fn users_enter_in_the_order_of_their_arrival() {
    let fleet = ThrottleFleet::in_memory(SETTINGS);
    fleet.fill("user", 12);
    let mut newcomers = Vec::new();
    for name in ["first", "second", "third"] {
        newcomers.push(Newcomer::arrive(&fleet, 0, name));
        fleet.tick();
        for newcomer in &mut newcomers {
            newcomer.ask(&fleet, 0, 0);
        }
    }
    fleet.tick();
    let response = ask(&fleet, 0, "third", &newcomers[2].ticket);
    let problem = response.json();
    assert_eq!(problem["place"], 3, "{problem}");
    assert!(problem["expected-wait"].as_u64() >= Some(1), "{problem}");
    assert_eq!(problem["retry-after"], response.number("Retry-After"));
    assert!((1..=6).contains(&response.number("Retry-After")));
    assert_eq!(response.header("Cache-Control"), Some("no-store"));
    assert_eq!(fleet.state(0)["waiting_room"]["waiting"], 3);
    admit_all(&fleet, &mut newcomers);
    assert!(newcomers.is_sorted_by_key(|newcomer| newcomer.admitted));
    // They are active now, without their tickets.
    for newcomer in &newcomers {
        assert_eq!(ask(&fleet, 0, newcomer.name, "").status, 200);
    }
    assert!(fleet.gateways[0].metric("tidegate_waiting_room_admitted_total") >= 3);
    assert!(fleet.state(0)["active"].as_u64() <= Some(11), "{}", fleet.state(0));
}

#[test]
fn forged_copied_and_old_tickets_are_replaced() {
    let fleet = ThrottleFleet::in_memory(SETTINGS);
    fleet.fill("user", 12);
    let own = ticket(&ask(&fleet, 0, "own", ""));
    assert_eq!(own.len(), 38);
    fleet.tick();
    let again = ticket(&ask(&fleet, 0, "own", &own));
    assert_eq!(again, own, "a ticket stays the same within its epoch");
    let copied = ask(&fleet, 0, "thief", &own);
    assert_eq!((copied.status, refused(&fleet, "forged")), (429, 1));
    assert_ne!(ticket(&copied), own);
    let mut forged = own.clone().into_bytes();
    forged[3] ^= 1;
    assert_eq!(ask(&fleet, 0, "own", &String::from_utf8_lossy(&forged)).status, 429);
    assert_eq!(refused(&fleet, "forged"), 2);
    for junk in ["junk", "%00", "===", &"A".repeat(4_000)] {
        assert_eq!(ask(&fleet, 0, "own", junk).status, 429);
    }
    assert_eq!(refused(&fleet, "malformed"), 4);
    // No request has it for longer than `ticket_ttl`.
    (0..12).for_each(|_| fleet.tick());
    let renewed = ask(&fleet, 0, "own", &own);
    assert_eq!((renewed.status, refused(&fleet, "expired")), (429, 1));
    // A replayed ticket counts its caller once.
    let own = ticket(&renewed);
    for _ in 0..30 {
        ask(&fleet, 0, "own", &own);
        ask(&fleet, 0, "own", "");
    }
    (0..2).for_each(|_| fleet.tick());
    assert!(fleet.state(0)["waiting_room"]["waiting"].as_u64() <= Some(2), "{}", fleet.state(0));
}

#[test]
fn a_shared_ticket_admits_one_token() {
    let fleet = ThrottleFleet::in_memory(SETTINGS);
    fleet.fill("user", 12);
    let mut newcomers = [Newcomer::arrive(&fleet, 0, "owner")];
    admit_all(&fleet, &mut newcomers);
    let shared = newcomers[0].ticket.clone();
    for thief in ["thief-1", "thief-2", "thief-3"] {
        assert_eq!(ask(&fleet, 0, thief, &shared).status, 429, "{thief}");
    }
    assert_eq!(ask(&fleet, 0, "owner", &shared).status, 200);
}

#[test]
fn users_without_a_token_get_no_ticket() {
    let fleet = ThrottleFleet::in_memory(SETTINGS);
    fleet.fill("user", 12);
    let response = fleet.ask(0, "", "/a");
    assert_eq!((response.status, response.header("X-Tidegate-Ticket")), (429, None));
    assert!(response.json().get("place").is_none());
}

#[test]
fn a_browser_gets_a_page_that_reloads_itself() {
    let page = tempfile::tempdir().expect("a directory");
    let path = page.path().join("waiting.html");
    let mut file = std::fs::File::create(&path).expect("a file");
    write!(file, "<p>You are {{place}}, come back in {{expected_wait}}, {{retry_after}}")
        .expect("written");
    for page in [String::new(), format!("page: {}, ", path.display())] {
        let settings = SETTINGS.replace("{ticket_ttl", &format!("{{{page}ticket_ttl"));
        let fleet = ThrottleFleet::in_memory(&settings);
        fleet.fill("user", 12);
        let headers = "Authorization: Bearer new\r\nAccept: text/html\r\n";
        let response = get(fleet.gateways[0].address(), "/a", headers);
        assert_eq!(response.status, 429);
        assert_eq!(response.header("Content-Type"), Some("text/html; charset=utf-8"));
        assert_eq!(response.header("Refresh"), response.header("Retry-After"));
        let cookie = response.header("Set-Cookie").unwrap_or_default();
        assert!(cookie.starts_with("tidegate-ticket="), "{cookie}");
        assert!(cookie.ends_with("; Path=/; Max-Age=20; HttpOnly; SameSite=Lax"), "{cookie}");
        let expected =
            if page.is_empty() { "You are number <b>1</b>" } else { "<p>You are 1, come back in " };
        // No place has become free yet: a number would be made up.
        assert!(response.text().contains("some minutes"), "{}", response.text());
        assert!(response.text().contains(expected), "{}", response.text());
        // The cookie is the ticket.
        let cookie = cookie.split(';').next().unwrap_or_default();
        let headers = format!("{headers}Cookie: a=b; {cookie}; c=d\r\n");
        let again = get(fleet.gateways[0].address(), "/a", &headers);
        assert_eq!(again.header("Set-Cookie").and_then(|own| own.split(';').next()), Some(cookie));
    }
}

#[test]
fn the_operator_closes_and_opens_the_room() {
    let fleet = ThrottleFleet::in_memory(SETTINGS);
    let put = |body: &str| {
        let mut client = Client::connect(fleet.gateways[0].admin());
        client.send(format!(
            "PUT /api/throttle HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        client.read_response()
    };
    fleet.fill("user", 12);
    let mut newcomers = [Newcomer::arrive(&fleet, 0, "patient")];
    let closed = put(r#"{"waiting_room": "closed"}"#);
    assert_eq!((closed.status, &closed.json()["waiting_room"]["state"]), (200, &"closed".into()));
    for tick in 0..70 {
        fleet.tick();
        newcomers[0].ask(&fleet, 0, tick);
    }
    assert_eq!(newcomers[0].admitted, None, "closed, although users have left");
    assert_eq!(put(r#"{"waiting_room": "ajar"}"#).status, 400);
    assert_eq!(put(r#"{"waiting_room": "open"}"#).status, 200);
    admit_all(&fleet, &mut newcomers);
}

#[test]
fn gateways_share_one_queue() {
    let redis = RedisServer::start();
    let mut fleet = ThrottleFleet::on_redis(&redis, 3, SETTINGS);
    assert!(fleet.clock.store_time() >= START);
    fleet.fill("user", 13);
    let mut newcomers = Vec::new();
    for (at, name) in ["first", "second", "third"].into_iter().enumerate() {
        newcomers.push(Newcomer::arrive(&fleet, at, name));
        fleet.tick();
        for newcomer in &mut newcomers {
            newcomer.ask(&fleet, at, 0);
        }
    }
    (0..2).for_each(|_| fleet.tick());
    for at in 0..3 {
        assert_eq!(fleet.state(at)["waiting_room"]["waiting"], 3, "{}", fleet.state(at));
    }
    let tickets: Vec<String> = newcomers.iter().map(|newcomer| newcomer.ticket.clone()).collect();
    // All gateways start again: the tickets stay valid, and no gateway opens its doors.
    let count = fleet.gateways.len();
    fleet.gateways.clear();
    (0..count).for_each(|_| fleet.add_gateway());
    fleet.tick();
    for (at, (newcomer, ticket)) in newcomers.iter_mut().zip(&tickets).enumerate() {
        newcomer.ask(&fleet, at, 0);
        let is_waiting = newcomer.admitted.is_none();
        assert!(is_waiting, "{} is admitted after a restart", newcomer.name);
        assert_eq!(newcomer.ticket[..10], ticket[..10], "the place is the same");
    }
    assert_eq!(ask(&fleet, 0, "stranger", "").status, 429);
    admit_all(&fleet, &mut newcomers);
    assert!(newcomers.is_sorted_by_key(|newcomer| newcomer.admitted));
}

#[test]
fn a_restart_with_more_places_lets_users_in_one_by_one() {
    let redis = RedisServer::start();
    let mut fleet = ThrottleFleet::on_redis(&redis, 2, SETTINGS);
    fleet.fill("user", 13);
    Newcomer::arrive(&fleet, 0, "first");
    (0..2).for_each(|_| fleet.tick());
    // Far more users may be active than are, but those who wait come first.
    fleet.yaml = fleet.yaml.replace("max_active: 10,", "max_active: 1000,");
    fleet.gateways.clear();
    // Long enough that no report of a running gateway is valid any more.
    fleet.clock.set(fleet.clock.store_time() + ms(10_000));
    (0..2).for_each(|_| fleet.add_gateway());
    for at in 0..2 {
        assert_eq!(ask(&fleet, at, "stranger", "").status, 429, "{}", fleet.state(at));
    }
}

#[test]
fn gateways_of_one_room_throttle_together() {
    let redis = RedisServer::start();
    let mut fleet = ThrottleFleet::on_redis(&redis, 1, SETTINGS);
    let small = fleet.yaml.clone();
    // This gateway alone would not throttle.
    fleet.yaml = small.replace("max_active: 10,", "max_active: 1000,");
    fleet.add_gateway();
    fleet.fill("user", 13);
    assert_eq!(ask(&fleet, 1, "stranger", "").status, 429, "{}", fleet.state(1));
}

#[test]
fn without_redis_the_gateways_keep_the_queue() {
    let mut redis = RedisServer::start();
    let fleet = ThrottleFleet::on_redis(&redis, 2, SETTINGS);
    fleet.fill("user", 13);
    let mut newcomers =
        [Newcomer::arrive(&fleet, 0, "first"), Newcomer::arrive(&fleet, 1, "second")];
    (0..2).for_each(|_| fleet.tick());
    redis.kill();
    for tick in 0..10 {
        fleet.tick();
        newcomers.iter_mut().enumerate().for_each(|(at, newcomer)| newcomer.ask(&fleet, at, tick));
    }
    redis.restart();
    admit_all(&fleet, &mut newcomers);
}

/// Keys instead of tokens: each consumer is a user of the throttle.
const WITH_PLANS: &str = "
workers: 2
auth: {keys: {api_key: {}, max_failures: off}}
consumers: {entries: [{entries}]}
plans: {gold: {priority: 0}, usual: {priority: 5}}
throttle: {max_active: 3, resume_below: 3, memory: 1m, capacity: 1000, waiting_room: {ticket_ttl: 20s}}
upstreams: {api: {targets: ['{target}'], max_requests: 100, max_pending: 10}}
routes:
  - {name: all, match: {path: '/{*rest}'}, upstream: api, auth: [keys]}
  - {name: important, match: {path: /important}, upstream: api, auth: [keys], priority: 0}
";

#[test]
fn consumers_of_important_plans_enter_first() {
    let entry = |name: &str, plan: &str| {
        format!("{{name: {name}, plan: {plan}, keys: [{{sha256: {}}}]}}", hash(name))
    };
    let names = (0..5).map(|number| format!("user{number}"));
    let names = names.chain(["first".to_owned(), "second".to_owned()]);
    let mut entries: Vec<String> = names.map(|name| entry(&name, "usual")).collect();
    entries.push(entry("paying", "gold"));
    let upstream = api();
    let values = [("entries", entries.join(", ")), ("target", upstream.target())];
    let fleet = ThrottleFleet::start(1, upstream, fill(WITH_PLANS, values));
    let mut client = Client::connect(fleet.gateways[0].address());
    let mut ask = |name: &str, ticket: &str| {
        let path = if name == "second" { "/important" } else { "/a" };
        client.get(path, &format!("{}X-Tidegate-Ticket: {ticket}\r\n", key(name)))
    };
    for number in 0..5 {
        assert_eq!(ask(&format!("user{number}"), "").status, 200);
    }
    let mut newcomers: Vec<Newcomer> = Vec::new();
    for name in ["first", "second", "paying"] {
        // The clients that wait are counted before the next one comes.
        (0..6).for_each(|_| fleet.tick());
        let response = ask(name, "");
        assert_eq!(response.status, 429, "{name}: {}", response.head);
        let place = if name == "paying" { 1 } else { newcomers.len() as u64 + 1 };
        assert_eq!(response.json()["place"], place, "{name}");
        newcomers.push(Newcomer { name, ticket: ticket(&response), admitted: None });
    }
    for tick in 0..120 {
        fleet.tick();
        for newcomer in &mut newcomers {
            let response = ask(newcomer.name, &newcomer.ticket);
            if response.status == 200 {
                newcomer.admitted.get_or_insert(tick);
            } else {
                newcomer.ticket = ticket(&response);
            }
        }
        if newcomers.iter().all(|newcomer| newcomer.admitted.is_some()) {
            break;
        }
    }
    let admitted: Vec<_> = newcomers.iter().map(|newcomer| newcomer.admitted).collect();
    assert!(admitted[2].is_some() && admitted[2] <= admitted[0], "{admitted:?}");
    assert!(admitted[0] <= admitted[1], "the priority of a route counts for nothing: {admitted:?}");
}
