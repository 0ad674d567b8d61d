//! Streams in both directions, tunnels, and the lowest rate of a client that holds a place.

use std::{io::Write, time::Duration};

use bytes::Bytes;
use h2::server::Builder;
use testkit::{
    client::Client,
    gateway::Gateway,
    http2_client::{Http2Client, request},
    http2_upstream::Http2Upstream,
    protocol::Protocol,
    upstream::Upstream,
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime};

use testkit::log_lines::read_lines;

use super::{ATTACKER, BUFFER, OTHER, Origin, assert_served, connect_narrow, paced, start};

/// The time over which a client's rate is measured.
const WINDOW: Duration = Duration::from_secs(10);

/// Asserts that this number of windows has passed. A rate is judged by whole ticks, so it may be
/// one less.
fn assert_windows(took: Duration, count: u32) {
    let most = (count + 1) * WINDOW;
    assert!(took + Duration::from_millis(100) >= count * WINDOW && took < most, "{took:?}");
}

#[test]
fn a_client_slower_than_the_rate_loses_its_place() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("access.log");
    let origin = Origin::start(Protocol::Http1);
    let yaml = fill(
        "
        access_log: {log}
        workers: 1
        client: {trusted_proxies: [127.0.0.1/32]}
        upstreams:
          origin: {protocol: {protocol}, targets: [{target}], max_requests: 9, min_rate: 1KiB}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin, request_timeout: off}
        ",
        [("log", file.display())],
    );
    let clock = Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000));
    let gateway = Gateway::for_every_protocol_at(&origin.fill(&yaml), clock);
    let mut reader = connect_narrow(gateway.address());
    reader.send(format!("GET /long HTTP/1.1\r\nHost: a\r\n{ATTACKER}\r\n"));
    gateway.wait_for_metric("tidegate_target_client_paced", 1);
    let ((), took) = gateway.while_time_passes(|| {
        gateway.wait_for_metric("tidegate_target_client_slow_total", 1);
    });
    assert_windows(took, 1);
    let (lines, _) = gateway.while_time_passes(|| read_lines(&file, 1));
    assert!(lines.contains("client_slow"), "{lines}");
    let mut sender = Client::connect(gateway.address());
    sender.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n{ATTACKER}\r\n"));
    sender.send(vec![b'x'; 2 * BUFFER]);
    gateway.wait_for_metric("tidegate_target_client_paced", 1);
    // What it sent at first was above the rate, in the first window.
    let (status, took) = gateway.while_time_passes(|| sender.read_response().status);
    assert_windows(took, 2);
    assert_eq!(status, 408);
    assert_eq!(gateway.metric("tidegate_target_client_slow_total"), 2);
    gateway.wait_for_metric("tidegate_target_in_flight", 0);
    // The target is not at fault.
    assert_eq!(gateway.metric("tidegate_target_failures_total"), 0);
}

/// The target answers before the end of the request.
fn conversation() -> Http2Upstream {
    Http2Upstream::with_handler(Builder::new(), |mut exchange| async move {
        let mut stream = exchange.start(200, &[("content-type", "application/grpc")]);
        while let Some(Ok(data)) = exchange.body.data().await {
            let _ = exchange.body.flow_control().release_capacity(data.len());
            let _ = stream.send_data(data, false);
        }
        let _ = stream.send_data(Bytes::new(), true);
    })
}

#[test]
fn streams_in_both_directions_work_within_the_share() {
    let origin = Origin::Http2(conversation());
    let gateway = start(
        &origin,
        "
        client: {trusted_proxies: [127.0.0.1/32]}
        upstreams: {origin: {protocol: {protocol}, targets: [{target}], max_requests: 4}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
    );
    for headers in ["Content-Type: application/grpc\r\nTE: trailers\r\n", "Content-Type: a/b\r\n"] {
        let headers = format!("{ATTACKER}{headers}");
        let mut client = Http2Client::connect(gateway.address());
        let mut streams: Vec<_> = (0..2)
            .map(|_| {
                let mut stream = client.start(request("POST", "/", &headers), false).expect("sent");
                // The client waits for the head before it sends.
                assert_eq!(stream.head().expect("a head").status(), 200);
                stream.send(b"ping", false).expect("sent");
                assert_eq!(stream.read().expect("an echo").expect("data"), "ping");
                stream
            })
            .collect();
        assert_eq!(paced(&gateway), 2);
        assert_served(&gateway, Protocol::Http2, "beside two streams");
        if headers.contains("grpc") {
            let third = client.start(request("POST", "/", &headers), false).expect("sent").head();
            let third = third.expect("a head");
            assert_eq!(third.headers().get("grpc-status").expect("a status"), "14");
            let unary = client.ask(
                "POST",
                "/",
                &format!("{OTHER}Content-Type: application/grpc\r\n"),
                b"x",
            );
            assert_eq!((unary.status, unary.text().as_str()), (200, "x"));
        }
        for stream in &mut streams {
            stream.send(b"", true).expect("sent");
            assert!(stream.rest().expect("the end").0.is_empty());
        }
        gateway.wait_for_metric("tidegate_target_client_paced", 0);
        gateway.wait_for_metric("tidegate_target_in_flight", 0);
    }
}

#[test]
fn tunnels_are_held_within_the_share() {
    let upstream = Upstream::on_connection(|socket| {
        let answer =
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: own\r\n\r\n";
        let _ = socket.write_all(answer.as_bytes());
        testkit::upstream::read_until_closed(socket);
    });
    let gateway = Gateway::start(&fill(
        "
        client: {trusted_proxies: [127.0.0.1/32]}
        upstreams: {origin: {targets: [{target}], max_requests: 4}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        [("target", upstream.target())],
    ));
    let open = |client: &str| {
        let mut tunnel = Client::connect(gateway.address());
        tunnel.send(format!(
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: own\r\n{client}\r\n"
        ));
        let (status, _) = tunnel.read_head().expect("a head");
        (status, tunnel)
    };
    let tunnels = [open(ATTACKER), open(ATTACKER)];
    assert_eq!((tunnels[0].0, tunnels[1].0), (101, 101));
    assert_eq!(open(ATTACKER).0, 503);
    assert_eq!((open(OTHER).0, paced(&gateway)), (101, 3));
    drop(tunnels);
    gateway.wait_for_metric("tidegate_target_client_paced", 0);
}
