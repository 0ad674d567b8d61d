//! Places of the waiting room: users take them when they ask, and keep them until they are known to
//! be active.

use std::io::Write;

use testkit::{
    client::Client,
    upstream::{ResponseGate, Upstream},
    wait::eventually,
    yaml::fill,
};

use super::{
    IN_MEMORY, ThrottleFleet,
    waiting_room::{ask, ticket},
};

const SETTINGS: &str = "max_active: 3, resume_below: 3, memory: 1m, capacity: 1000, \
                        waiting_room: {ticket_ttl: 20s}";

/// One user arrives in each tick of two seconds and gives up after a minute: the oldest tickets are
/// always those of users who have just left.
#[test]
fn users_who_give_up_at_the_same_age_take_no_place() {
    const PATIENCE: usize = 30;
    let fleet = ThrottleFleet::in_memory(SETTINGS);
    fleet.fill("user", 5);
    // By user: its ticket, and the tick in which it asks next.
    let mut waiting: Vec<(String, usize)> = Vec::new();
    let mut admitted = 0;
    for tick in 0..300 {
        fleet.tick();
        waiting.push((String::new(), tick));
        for (arrived, (sent, due)) in waiting.iter_mut().enumerate() {
            if *due != tick || arrived + PATIENCE <= tick {
                continue;
            }
            let response = ask(&fleet, 0, &format!("new-{arrived}"), sent);
            if response.status == 200 {
                admitted += 1;
            } else {
                *sent = ticket(&response);
                *due = tick + response.number("Retry-After").div_ceil(2) as usize;
            }
        }
        let active = fleet.state(0)["active"].as_u64();
        assert!(tick < 100 || active <= Some(4), "{}", fleet.state(0));
    }
    // Users stay for one to two minutes, so each of three places is taken about seven times in ten
    // minutes.
    assert!(admitted >= 8, "{admitted} are admitted: {}", fleet.state(0));
}

/// The first response may take longer than any other time of the room.
#[test]
fn a_place_is_kept_while_the_first_response_is_on_its_way() {
    let gate = ResponseGate::default();
    let held = gate.clone();
    let upstream = Upstream::with_handler(move |request, socket| {
        if String::from_utf8_lossy(request).contains("slow") {
            held.wait();
        }
        socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_ok()
    });
    let yaml = fill(IN_MEMORY, [("target", &*upstream.target()), ("settings", SETTINGS)]);
    let fleet = ThrottleFleet::start(1, upstream, yaml);
    fleet.fill("user", 5);
    let mut tickets = ["slow", "next"].map(|name| ticket(&ask(&fleet, 0, name, "")));
    fleet.tick_until("empty", |state| state["active"].as_u64() == Some(0));
    // All three places are free; two users fill two of them before the slow one asks.
    let fill_up = |name: &str| {
        let mut sent = ticket(&ask(&fleet, 0, name, ""));
        for _ in 0..40 {
            fleet.tick();
            let response = ask(&fleet, 0, name, &sent);
            if response.status == 200 {
                return;
            }
            sent = ticket(&response);
        }
        panic!("{name} was not admitted: {}", fleet.state(0));
    };
    fill_up("one");
    fill_up("two");
    tickets[0] = ticket(&ask(&fleet, 0, "slow", ""));
    for _ in 0..5 {
        fleet.tick();
    }
    let mut slow = Client::connect(fleet.gateways[0].address());
    slow.send(format!(
        "GET /a HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer slow\r\nX-Tidegate-Ticket: {}\r\n\r\n",
        tickets[0]
    ));
    eventually("it is at the upstream", || {
        fleet.upstream.request_texts().iter().any(|text| text.contains("slow"))
    });
    tickets[1] = ticket(&ask(&fleet, 0, "next", ""));
    for _ in 0..12 {
        fleet.tick();
        let response = ask(&fleet, 0, "next", &tickets[1]);
        assert_eq!(response.status, 429, "{}", fleet.state(0));
        tickets[1] = ticket(&response);
    }
    gate.open();
    assert_eq!(slow.read_response().status, 200);
    fleet.tick();
    assert_eq!(fleet.state(0)["active"], 3, "{}", fleet.state(0));
}
