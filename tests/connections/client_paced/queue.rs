//! Requests that wait for a place, while one client has or wants all of them.

use std::{io::Write, sync::mpsc, thread, time::Duration};

use testkit::{
    client::Client,
    gateway::Gateway,
    protocol::Protocol,
    upstream::{ResponseGate, Upstream},
    wait::{eventually, sleep},
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime};

use super::{
    ATTACKER, Attack, HELLO, MAX_CONNECTIONS, MAX_REQUESTS, OTHER, Origin, PROTOCOLS,
    assert_served, paced, start,
};

#[test]
fn no_client_fills_the_queue() {
    let gate = ResponseGate::default();
    let waits = gate.clone();
    let upstream = Upstream::with_handler(move |_, socket| {
        waits.wait();
        socket.write_all(HELLO).is_ok()
    });
    let gateway = Gateway::start(&fill(
        "
        client: {trusted_proxies: [127.0.0.1/32]}
        upstreams: {origin: {targets: [{target}], max_requests: 1, max_pending: 4}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        [("target", upstream.target())],
    ));
    let send = |client: &str| {
        let mut sent = Client::connect(gateway.address());
        sent.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{client}\r\n"));
        sent
    };
    let mut first = send(ATTACKER);
    eventually("one is in flight", || upstream.request_count() == 1);
    let mut greedy: Vec<Client> = (1..=4)
        .map(|waiting| {
            let sent = send(ATTACKER);
            gateway.wait_for_metric("tidegate_upstream_pending", waiting);
            sent
        })
        .collect();
    let mut others = [send(OTHER), send(OTHER)];
    for displaced in &mut greedy[2..] {
        assert_eq!(displaced.read_response().status, 503);
    }
    gate.open();
    for served in greedy[..2].iter_mut().chain(&mut others).chain([&mut first]) {
        assert_eq!(served.read_response().status, 200);
    }
}

const MAX_PENDING_50: &str = "
client: {trusted_proxies: [127.0.0.1/32]}
upstreams: {origin: {protocol: {protocol}, targets: [{target}], max_requests: 50, max_pending: 50}}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
";

/// The attack and the requests begin at the same time.
#[test]
fn others_are_served_while_an_attack_begins() {
    for (protocol, upstream) in PROTOCOLS.into_iter().zip(PROTOCOLS.into_iter().rev()) {
        let origin = Origin::start(upstream);
        for bounds in [MAX_REQUESTS, MAX_PENDING_50] {
            serve_while_an_attack_begins(&start(&origin, bounds), protocol);
        }
    }
}

fn serve_while_an_attack_begins(gateway: &Gateway, protocol: Protocol) {
    let (end, ended) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let _attack = Attack::start(gateway, protocol, "GET /long", "", b"");
            let _ = ended.recv();
        });
        let _end = end;
        let mut client = protocol.connect(gateway);
        let mut served = 0;
        // The attack may begin late.
        while served < 200 || paced(gateway) == 0 {
            let response = client.get("/", OTHER);
            assert_eq!(response.status, 200, "request {served}: {}", response.text());
            served += 1;
        }
        assert_served(gateway, protocol, "beside the attack");
    });
}

/// One client starts more downloads than there are places, ends them before the gateway waits for
/// their client, and starts again. A round takes 50 ms by the gateway's clock, however busy the
/// machine is.
#[test]
fn a_loop_of_short_downloads_keeps_no_other_out() {
    const ROUND: Duration = Duration::from_millis(50);
    for (protocol, bounds) in [
        (Protocol::Http1, MAX_REQUESTS),
        (Protocol::Http2, MAX_REQUESTS),
        (Protocol::Http2, MAX_CONNECTIONS),
    ] {
        let origin = Origin::start(Protocol::Http1);
        let clock = Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000));
        let gateway = &Gateway::for_every_protocol_at(&origin.fill(bounds), clock.clone());
        let (end, ended) = mpsc::channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                while ended.try_recv() == Err(mpsc::TryRecvError::Empty) {
                    let attack = Attack::start(gateway, protocol, "GET /long", "", b"");
                    // Real time, for the gateway to fill the places.
                    sleep(Duration::from_millis(10));
                    drop(attack);
                    clock.advance(ROUND);
                }
            });
            let _end = end;
            let mut client = protocol.connect(gateway);
            for number in 0..75 {
                sleep(Duration::from_millis(5));
                let response = client.get("/", OTHER);
                let case = format!("request {number}, {protocol:?}, {bounds}: {}", response.text());
                assert_eq!(response.status, 200, "{case}");
            }
        });
    }
}

/// Requests of the client that hold places at a target which does not answer yet.
fn hold(gateway: &Gateway, client: &str, count: usize) -> Vec<Client> {
    let before = gateway.metric("tidegate_target_in_flight");
    let held = (0..count).map(|_| {
        let mut held = Client::connect(gateway.address());
        held.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{client}\r\n"));
        held
    });
    let held = held.collect();
    gateway.wait_for_metric("tidegate_target_in_flight", before + count as u64);
    held
}

#[test]
fn others_wait_for_an_address_beyond_its_share() {
    let gate = ResponseGate::default();
    let waits = gate.clone();
    let upstream = Upstream::with_handler(move |_, socket| {
        waits.wait();
        socket.write_all(HELLO).is_ok()
    });
    let yaml = fill(
        "
        workers: 1
        client: {trusted_proxies: [127.0.0.1/32]}
        upstreams: {origin: {targets: [{target}], max_requests: 4}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        [("target", upstream.target())],
    );
    // While the clock stands, one that waits gets no response.
    let start = || {
        Gateway::for_every_protocol_at(
            &yaml,
            Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000)),
        )
    };
    let third = "X-Forwarded-For: 192.0.2.3\r\n";
    let ask =
        |gateway: &Gateway, client| Client::connect(gateway.address()).get("/", client).status;
    let gateway = start();
    let _shares = (hold(&gateway, ATTACKER, 2), hold(&gateway, OTHER, 2));
    assert_eq!(ask(&gateway, third), 503, "no address is beyond its share");

    let gateway = start();
    let _greedy = hold(&gateway, ATTACKER, 4);
    assert_eq!(ask(&gateway, ATTACKER), 503, "it holds all");
    let mut other = Client::connect(gateway.address());
    other.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{OTHER}\r\n"));
    gateway.wait_for_metric("tidegate_upstream_pending", 1);
    let (start, wait) = (gateway.clock.uptime(), Duration::from_millis(250));
    let status = gateway.assert_times_out(wait, || other.read_response().status);
    assert_eq!(status, 503);
    assert!(gateway.clock.uptime().saturating_sub(start) >= wait);

    let mut others = [(OTHER, 1), (third, 2)].map(|(client, waiting)| {
        let mut other = Client::connect(gateway.address());
        other.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{client}\r\n"));
        gateway.wait_for_metric("tidegate_upstream_pending", waiting);
        other
    });
    assert_eq!(ask(&gateway, OTHER), 503, "two places are beyond the share");
    assert_eq!(ask(&gateway, ATTACKER), 503, "others wait");
    gate.open();
    for other in &mut others {
        assert_eq!(other.read_response().status, 200);
    }
}
