//! Bounds on requests and connections at a target, and waiting requests.

use std::{
    io::Write,
    net::TcpListener,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use testkit::{
    client::{Client, get},
    gateway::Gateway,
    upstream::{ResponseGate, Upstream},
    wait::{eventually, sleep},
    yaml::fill,
};

const HELLO: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

fn held() -> (Upstream, ResponseGate) {
    let gate = ResponseGate::default();
    let waits = gate.clone();
    let upstream = Upstream::with_handler(move |_, socket| {
        waits.wait();
        socket.write_all(HELLO).is_ok()
    });
    (upstream, gate)
}

fn start(upstream: &Upstream, yaml: &str) -> Gateway {
    Gateway::start(&fill(yaml, [("target", upstream.target())]))
}

fn send(gateway: &Gateway, path: &str) -> Client {
    let mut client = Client::connect(gateway.address());
    client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
    client
}

#[test]
fn a_full_target_refuses_as_overloaded_and_its_places_return() {
    let (upstream, gate) = held();
    let gateway = start(
        &upstream,
        "
        workers: 2
        upstreams:
          origin: {targets: [{target}], max_requests: 2}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin}
        ",
    );
    let mut clients = [send(&gateway, "/1"), send(&gateway, "/2")];
    eventually("two are in flight", || upstream.request_count() == 2);
    let refused = get(gateway.address(), "/3", "");
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    assert_eq!(refused.json()["type"], "urn:tidegate:problem:overloaded");
    assert_eq!(gateway.metric("tidegate_target_in_flight"), 2);
    gate.open();
    assert!(clients.iter_mut().all(|client| client.read_response().status == 200));
    gateway.wait_for_metric("tidegate_target_in_flight", 0);
    assert_eq!(get(gateway.address(), "/4", "").status, 200);
    let overloaded = "tidegate_upstream_refused_total{upstream=\"origin\",reason=\"overloaded\"";
    assert_eq!(gateway.metric(overloaded), 1);
}

#[test]
fn requests_wait_in_order_up_to_the_bound() {
    let (upstream, gate) = held();
    let gateway = start(
        &upstream,
        "
        workers: 2
        upstreams:
          origin: {targets: [{target}], max_requests: 1, max_pending: 3}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin}
        ",
    );
    let mut clients = vec![send(&gateway, "/0")];
    eventually("one is in flight", || upstream.request_count() == 1);
    for waiting in 1..=3 {
        clients.push(send(&gateway, &format!("/{waiting}")));
        gateway.wait_for_metric("tidegate_upstream_pending", waiting);
    }
    assert_eq!(get(gateway.address(), "/4", "").status, 503);
    gate.open();
    for client in &mut clients {
        assert_eq!(client.read_response().status, 200);
    }
    let requests = upstream.request_texts();
    let paths: Vec<&str> = requests.iter().map(|text| &text[4..6]).collect();
    assert_eq!(paths, ["/0", "/1", "/2", "/3"]);
    gateway.wait_for_metric("tidegate_upstream_pending", 0);
}

#[test]
fn a_request_does_not_wait_longer_than_its_timeout() {
    let (upstream, gate) = held();
    let gateway = start(
        &upstream,
        "
        workers: 2
        upstreams:
          origin: {targets: [{target}], max_requests: 1, max_pending: 9}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin}
          - {name: short, match: {path: /1}, upstream: origin, request_timeout: 500ms}
        ",
    );
    let mut first = send(&gateway, "/0");
    eventually("one is in flight", || upstream.request_count() == 1);
    let mut second = send(&gateway, "/1");
    assert_eq!(second.read_response().status, 503);
    gateway.wait_for_metric("tidegate_upstream_pending", 0);
    // A request whose client disconnects leaves the queue.
    let leaving = send(&gateway, "/3");
    gateway.wait_for_metric("tidegate_upstream_pending", 1);
    drop(leaving);
    gateway.wait_for_metric("tidegate_upstream_pending", 0);
    gate.open();
    assert_eq!(first.read_response().status, 200);
    assert_eq!(get(gateway.address(), "/4", "").status, 200);
}

#[test]
fn connections_to_a_target_are_bounded_over_all_workers() {
    let upstream = Upstream::with_handler(|_, socket| {
        sleep(Duration::from_millis(5));
        socket.write_all(HELLO).is_ok()
    });
    let gateway = start(
        &upstream,
        "
        workers: 2
        upstreams:
          origin: {targets: [{target}], max_connections: 3, max_pending: 100}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin}
        ",
    );
    thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                for _ in 0..10 {
                    assert_eq!(get(gateway.address(), "/", "").status, 200);
                }
            });
        }
        for _ in 0..20 {
            assert!(gateway.metric("tidegate_target_connections") <= 3);
        }
    });
    assert_eq!(upstream.request_count(), 120);
}

#[test]
fn an_idle_connection_of_another_worker_refuses_no_request() {
    let upstream = Upstream::hello();
    let gateway = start(
        &upstream,
        "
        workers: 2
        upstreams:
          origin: {targets: [{target}], max_connections: 1}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin}
        ",
    );
    for _ in 0..20 {
        assert_eq!(get(gateway.address(), "/", "").status, 200);
    }
    assert_eq!(gateway.metric("tidegate_upstream_pending"), 0);
}

#[test]
fn a_response_that_has_arrived_leaves_its_place_free() {
    for response in [HELLO, b"HTTP/1.1 204 No Content\r\n\r\n"] {
        let upstream = Upstream::with_handler(|_, socket| socket.write_all(response).is_ok());
        let gateway = start(
            &upstream,
            "
            workers: 2
            upstreams:
              origin: {targets: [{target}], max_requests: 1}
            routes:
              - {name: all, match: {path: '/{*rest}'}, upstream: origin}
            ",
        );
        let statuses = (0..500).map(|_| get(gateway.address(), "/", "").status);
        assert_eq!(statuses.filter(|status| *status >= 300).count(), 0);
    }
}

/// One worker: nothing happens between the end of the failed attempt and the retry.
#[test]
fn a_retry_keeps_the_place_of_the_failed_attempt() {
    let failed: &[u8] = b"HTTP/1.1 503 X\r\nConnection: close\r\nContent-Length: 5\r\n\r\nfails";
    for (response, retry_on) in [(&b""[..], "reset"), (failed, "503")] {
        for _ in 0..10 {
            let (gate, is_first) = (ResponseGate::default(), AtomicBool::new(true));
            let waits = gate.clone();
            let upstream = Upstream::with_handler(move |request, socket| {
                if is_first.swap(false, Relaxed) {
                    let _ = socket.write_all(response);
                    return false;
                }
                if request.starts_with(b"GET /other") {
                    waits.wait();
                }
                socket.write_all(HELLO).is_ok()
            });
            let gateway = Gateway::start(&format!(
                "workers: 1
upstreams: {{origin: {{targets: ['{}'], max_requests: 1, retry_on: [{retry_on}]}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin}}]",
                upstream.target()
            ));
            let mut fails = send(&gateway, "/fails");
            eventually("its first attempt has arrived", || upstream.request_count() >= 1);
            let other = send(&gateway, "/other");
            assert_eq!(fails.read_response().status, 200, "{retry_on}");
            gate.open();
            drop(other);
        }
    }
}

#[test]
fn requests_that_wait_for_a_connection_are_attempts_once() {
    for workers in [1, 2] {
        let (upstream, gate) = held();
        let gateway = Gateway::start(&format!(
            "workers: {workers}
upstreams: {{origin: {{targets: ['{}'], max_connections: 3, max_pending: 20}}}}
routes: [{{name: all, upstream: origin}}]",
            upstream.target()
        ));
        let mut clients: Vec<Client> = (0..8).map(|n| send(&gateway, &format!("/{n}"))).collect();
        gateway.wait_for_metric("tidegate_upstream_pending", 5);
        // Meanwhile they look for room again.
        sleep(Duration::from_millis(300));
        gate.open();
        for client in &mut clients {
            assert_eq!(client.read_response().status, 200);
        }
        let listed = get(gateway.admin(), "/api/upstreams", "").json();
        assert_eq!(listed["upstreams"][0]["targets"][0]["requests"], 8);
    }
}

#[test]
fn adaptive_concurrency_bounds_the_requests_in_flight() {
    let (upstream, gate) = held();
    let gateway = start(
        &upstream,
        "
        workers: 2
        upstreams:
          origin: {targets: [{target}], adaptive_concurrency: {min: 1, max: 2}}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin}
        ",
    );
    let mut clients: Vec<Client> = (0..6).map(|n| send(&gateway, &format!("/{n}"))).collect();
    gateway.wait_for_metric("tidegate_upstream_refused_total", 4);
    let listed = get(gateway.admin(), "/api/upstreams", "").json();
    assert_eq!(listed["upstreams"][0]["targets"][0]["max_in_flight"], 2);
    gate.open();
    let mut statuses: Vec<u16> = clients.iter_mut().map(|one| one.read_response().status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 503, 503, 503, 503]);
}

/// A server that accepts connections and never answers, until it is gone.
#[test]
fn requests_that_wait_do_not_wait_for_one_whose_connect_failed() {
    for targets in [1, 2] {
        let servers: Vec<_> =
            (0..targets).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
        let list: Vec<_> = servers
            .iter()
            .map(|server| format!("'http://{}'", server.local_addr().expect("an address")))
            .collect();
        let gateway = Gateway::start(&format!(
            "workers: 1
upstreams: {{origin: {{targets: [{}], max_requests: 1, max_pending: 10}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin}}]",
            list.join(", ")
        ));
        let mut clients: Vec<_> = (0..targets).map(|n| send(&gateway, &format!("/{n}"))).collect();
        let held: Vec<_> =
            servers.iter().map(|server| server.accept().expect("a connection").0).collect();
        for waiting in 1..=5 {
            clients.push(send(&gateway, "/waits"));
            gateway.wait_for_metric("tidegate_upstream_pending", waiting);
        }
        drop((servers, held));
        for client in &mut clients {
            let status = client.read_response().status;
            assert!(matches!(status, 502 | 503), "{status}");
        }
        assert_eq!(gateway.metric("tidegate_target_in_flight"), 0);
        assert_eq!(gateway.metric("tidegate_upstream_pending"), 0);
    }
}
