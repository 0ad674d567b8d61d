//! `http.max_requests_per_client`: the requests in flight of one client address.

use std::io::Write;

use testkit::{
    client::{Client, Response, get},
    gateway::Gateway,
    http2_client::{Http2Client, request},
    upstream::{ResponseGate, Upstream},
    yaml::fill,
};

/// Answers when the gate is open.
fn held_upstream(gate: &ResponseGate) -> Upstream {
    let gate = gate.clone();
    Upstream::with_handler(move |_, socket| {
        gate.wait();
        socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").is_ok()
    })
}

fn start(upstream: &Upstream, yaml: &str) -> Gateway {
    Gateway::start(&fill(yaml, [("target", upstream.target())]))
}

fn send(gateway: &Gateway, headers: &str) -> Client {
    let mut client = Client::connect(gateway.address());
    client.send(format!("GET /a HTTP/1.1\r\nHost: gateway.test\r\n{headers}\r\n"));
    client
}

fn assert_refused(response: &Response) {
    assert_eq!((response.status, response.header("retry-after")), (503, Some("1")));
    assert_eq!(response.json()["type"], "urn:tidegate:problem:overloaded");
}

#[test]
fn requests_in_flight_are_bounded_over_all_protocols_and_workers() {
    let gate = ResponseGate::default();
    let upstream = held_upstream(&gate);
    let gateway = start(
        &upstream,
        "
        listen: [{address: 127.0.0.1:0, http2: true}]
        workers: 2
        http: {max_requests_per_client: 3}
        upstreams: {origin: {targets: [{target}]}}
        limits: {few: {quota: 4, window: 1h}}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin, limits: [few]}
        ",
    );
    let mut first = send(&gateway, "");
    let mut http2 = Http2Client::connect(gateway.address());
    let mut streams =
        [0, 1].map(|_| http2.start(request("GET", "/a", ""), true).expect("a stream"));
    testkit::wait::eventually("three are in flight", || upstream.request_count() == 3);
    assert_refused(&get(gateway.address(), "/a", ""));
    assert_refused(&http2.get("/a", ""));
    let grpc = http2.get("/a", "content-type: application/grpc\r\n");
    assert_eq!((grpc.status, grpc.header("grpc-status")), (200, Some("14")));
    assert_eq!(gateway.metric("tidegate_requests_refused_total"), 3);
    gate.open();
    assert_eq!(first.read_response().status, 200);
    for stream in &mut streams {
        assert_eq!(stream.finish().expect("a response").status, 200);
    }
    let next = get(gateway.address(), "/a", "");
    assert_eq!(next.status, 200);
    assert_eq!(next.number("x-ratelimit-remaining"), 0, "refused requests were not charged");
}

#[test]
fn behind_a_trusted_proxy_the_client_is_bounded_and_not_the_proxy() {
    let gate = ResponseGate::default();
    let upstream = held_upstream(&gate);
    let gateway = start(
        &upstream,
        "
        listen: [{address: 127.0.0.1:0, http2: true}]
        workers: 2
        http: {max_requests_per_client: 3}
        client: {trusted_proxies: [127.0.0.1], ipv6_prefix: 64}
        upstreams: {origin: {targets: [{target}]}}
        limits: {few: {quota: 4, window: 1h}}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin, limits: [few]}
        ",
    );
    let from = |address: &str| format!("X-Forwarded-For: {address}\r\n");
    let mut held: Vec<_> =
        (1..=3).map(|host| send(&gateway, &from(&format!("2001:db8::{host}")))).collect();
    testkit::wait::eventually("three are in flight", || upstream.request_count() == 3);
    assert_refused(&get(gateway.address(), "/a", &from("2001:db8::4")));
    held.push(send(&gateway, &from("2001:db8:0:1::1")));
    testkit::wait::eventually("another network is admitted", || upstream.request_count() == 4);
    gate.open();
    for client in &mut held {
        assert_eq!(client.read_response().status, 200);
    }
    assert_eq!(gateway.metric("tidegate_requests_refused_total"), 1);
}

#[test]
fn the_requests_of_a_trusted_proxy_itself_are_not_bounded() {
    let gate = ResponseGate::default();
    let upstream = held_upstream(&gate);
    let gateway = start(
        &upstream,
        "
        listen: [{address: 127.0.0.1:0, http2: true}]
        workers: 2
        http: {max_requests_per_client: 3}
        client: {trusted_proxies: [127.0.0.1]}
        upstreams: {origin: {targets: [{target}]}}
        limits: {few: {quota: 4, window: 1h}}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin, limits: [few]}
        ",
    );
    let mut held: Vec<_> = (0..4).map(|_| send(&gateway, "")).collect();
    testkit::wait::eventually("four are in flight", || upstream.request_count() == 4);
    gate.open();
    for client in &mut held {
        assert_eq!(client.read_response().status, 200);
    }
}

#[test]
fn the_bound_comes_before_the_maximum_of_the_body() {
    let gate = ResponseGate::default();
    let upstream = held_upstream(&gate);
    let gateway = start(
        &upstream,
        "
        listen: [{address: 127.0.0.1:0}]
        http: {max_requests_per_client: 1}
        upstreams: {origin: {targets: [{target}]}}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin, max_body: 10B}
        ",
    );
    let mut held = send(&gateway, "");
    testkit::wait::eventually("one is in flight", || upstream.request_count() == 1);
    assert_refused(&get(gateway.address(), "/a", "Content-Length: 11\r\n"));
    gate.open();
    assert_eq!(held.read_response().status, 200);
    // The client may have read the response before the gateway frees its place.
    testkit::wait::eventually("the place is free", || {
        get(gateway.address(), "/a", "Content-Length: 11\r\n").status == 413
    });
}
