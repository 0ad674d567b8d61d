//! Priorities of plans and routes: the order in which waiting requests get places, and who is
//! refused.

use std::{io::Write, net::SocketAddr};

use testkit::{
    client::{Client, Response, get},
    gateway::Gateway,
    protocol::Protocol,
    upstream::{ResponseGate, Upstream},
    wait::eventually,
    yaml::fill,
};

use testkit::api_keys::{hash, key};

const RULES: &str = "
workers: 2
auth: {keys: {api_key: {}, max_failures: off}}
consumers:
  entries:
    - {name: gold, plan: gold, keys: [{sha256: {gold}}]}
    - {name: free, plan: free, keys: [{sha256: {free}}]}
    - {name: none, keys: [{sha256: {none}}]}
plans: {gold: {priority: 0}, free: {priority: 9}}
upstreams: {origin: {targets: ['{target}'], {bound}, max_pending: {pending}}}
routes:
  - {name: all, match: {path: '/{*rest}'}, upstream: origin, auth: [keys]}
  - {name: batch, match: {path: /batch}, upstream: origin, auth: [keys], priority: 8}
  - {name: public, match: {path: /public}, upstream: origin, priority: 1}
  - name: page
    match: {path: /page}
    upstream: origin
    priority: 3
    error_bodies: {503: {body: busy, content_type: text/plain}}
";

/// A target with one place, whose responses wait for the gate.
fn held() -> (Upstream, ResponseGate) {
    let gate = ResponseGate::default();
    let waits = gate.clone();
    let upstream = Upstream::with_handler(move |_, socket| {
        waits.wait();
        socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").is_ok()
    });
    (upstream, gate)
}

/// The bounds of an upstream, each of one place.
const BOUNDS: [&str; 3] =
    ["max_requests: 1", "max_connections: 1", "adaptive_concurrency: {min: 1, max: 1}"];

fn rules(upstream: &Upstream, bound: &str, pending: usize) -> String {
    let [gold, free, none] = ["gold", "free", "none"].map(hash);
    let (target, pending) = (upstream.target(), pending.to_string());
    let values = [
        ("gold", gold),
        ("free", free),
        ("none", none),
        ("target", target),
        ("bound", bound.to_owned()),
        ("pending", pending),
    ];
    fill(RULES, values)
}

fn send(address: SocketAddr, consumer: &str, path: &str) -> Client {
    let mut client = Client::connect(address);
    let key = if consumer.is_empty() { String::new() } else { key(consumer) };
    client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n{key}\r\n"));
    client
}

/// The priority of a refused request, which all its parts agree on.
fn shed(refused: &Response) -> u64 {
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    let problem = refused.json();
    assert_eq!(problem["type"], "urn:tidegate:problem:overloaded");
    let priority = problem["priority"].as_u64().expect("a priority");
    assert_eq!(refused.number("x-tidegate-priority"), priority);
    priority
}

#[test]
fn waiting_requests_are_served_by_the_priority_of_their_route_or_plan() {
    for bound in BOUNDS {
        assert_served_by_priority(bound);
    }
}

fn assert_served_by_priority(bound: &str) {
    let (upstream, gate) = held();
    let gateway = Gateway::start(&rules(&upstream, bound, 20));
    let mut clients = vec![send(gateway.address(), "none", "/first")];
    eventually("one is in flight", || upstream.request_count() == 1);
    let waiting = [
        ("free", "/free"),
        ("none", "/default"),
        ("gold", "/batch"),
        ("free", "/public"),
        ("gold", "/gold"),
    ];
    for (index, (consumer, path)) in waiting.into_iter().enumerate() {
        clients.push(send(gateway.address(), consumer, path));
        gateway.wait_for_metric("tidegate_upstream_pending", index as u64 + 1);
    }
    gate.open();
    assert!(clients.iter_mut().all(|client| client.read_response().status == 200));
    let texts = upstream.request_texts();
    let paths: Vec<_> = texts.iter().filter_map(|text| text.split(' ').nth(1)).collect();
    let expected = ["/first", "/gold", "/public", "/default", "/batch", "/free"];
    assert_eq!(paths, expected, "{bound}");
}

#[test]
fn a_refused_request_reports_its_priority() {
    let (upstream, gate) = held();
    let directory = tempfile::tempdir().expect("a directory");
    let log = directory.path().join("access.log");
    let rules = format!("access_log: '{}'\n{}", log.display(), rules(&upstream, BOUNDS[0], 1));
    let gateway = Gateway::for_every_protocol(&rules);
    let mut first = send(gateway.address(), "none", "/first");
    eventually("one is in flight", || upstream.request_count() == 1);
    let mut waiting = send(gateway.address(), "free", "/");
    gateway.wait_for_metric("tidegate_upstream_pending", 1);
    let mut important = send(gateway.address(), "gold", "/");
    assert_eq!(shed(&waiting.read_response()), 9, "displaced");
    assert_eq!(shed(&get(gateway.address(), "/", &key("none"))), 5);
    let page = get(gateway.address(), "/page", "");
    assert_eq!((page.status, page.text()), (503, "busy".to_owned()));
    assert_eq!(page.number("x-tidegate-priority"), 3);
    let call = "Content-Type: application/grpc\r\n";
    let grpc = Protocol::Http2.get(&gateway, "/public", call);
    assert_eq!((grpc.header("grpc-status"), grpc.number("x-tidegate-priority")), (Some("14"), 1));
    for (priority, count) in [(1, 1), (3, 1), (5, 1), (9, 1)] {
        let name =
            format!("tidegate_upstream_shed_total{{upstream=\"origin\",priority=\"{priority}\"}}");
        assert_eq!(gateway.metric(&name), count, "{name}");
    }
    let refused = "tidegate_upstream_refused_total{upstream=\"origin\",reason=\"overloaded\"}";
    assert_eq!(gateway.metric(refused), 4);
    let state = get(gateway.admin(), "/api/state", "").json();
    let [shown, waiting] = ["shed", "pending"].map(|name| &state["upstreams"][0][name]);
    assert_eq!(*shown, serde_json::json!({"1": 1, "3": 1, "5": 1, "9": 1}));
    assert_eq!(*waiting, 1);
    gate.open();
    assert_eq!(first.read_response().status, 200);
    assert_eq!(important.read_response().status, 200);
    let log = || std::fs::read_to_string(&log).unwrap_or_default();
    let has = |status: u16, priority: u8| {
        let (status, priority) =
            (format!("\"status\":{status},"), format!("\"priority\":{priority},"));
        log().lines().any(|line| line.contains(&status) && line.contains(&priority))
    };
    let lines = [(200, 0), (200, 5), (503, 1), (503, 3), (503, 5), (503, 9)];
    eventually("the lines", || lines.iter().all(|(status, priority)| has(*status, *priority)));
}

#[test]
fn an_important_request_displaces_another_under_each_bound() {
    for bound in BOUNDS {
        let (upstream, gate) = held();
        let gateway = Gateway::start(&rules(&upstream, bound, 1));
        let mut first = send(gateway.address(), "none", "/first");
        eventually("one is in flight", || upstream.request_count() == 1);
        let mut waiting = send(gateway.address(), "free", "/");
        gateway.wait_for_metric("tidegate_upstream_pending", 1);
        let mut important = send(gateway.address(), "gold", "/");
        assert_eq!(shed(&waiting.read_response()), 9, "{bound}");
        gate.open();
        let statuses = [&mut first, &mut important].map(|client| client.read_response().status);
        assert_eq!(statuses, [200, 200], "{bound}");
    }
}

#[test]
fn waiting_requests_follow_a_reload_of_their_bounds() {
    let (upstream, gate) = held();
    let gateway = Gateway::start(&rules(&upstream, BOUNDS[0], 20));
    let mut clients = vec![send(gateway.address(), "none", "/first")];
    eventually("one is in flight", || upstream.request_count() == 1);
    for waiting in 1..=4 {
        clients.push(send(gateway.address(), "gold", "/waits"));
        gateway.wait_for_metric("tidegate_upstream_pending", waiting);
    }
    gateway.reload(&rules(&upstream, "max_requests: 4", 20)).expect("a reload");
    eventually("four are in flight", || upstream.request_count() == 4);
    gateway.wait_for_metric("tidegate_upstream_pending", 1);
    // Without a bound, none waits.
    let unbounded =
        rules(&upstream, "max_requests: 4", 20).replace(", max_requests: 4, max_pending: 20", "");
    gateway.reload(&unbounded).expect("a reload");
    eventually("all are in flight", || upstream.request_count() == 5);
    gate.open();
    assert!(clients.iter_mut().all(|client| client.read_response().status == 200));
}
