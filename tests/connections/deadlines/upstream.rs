//! Timeouts of responses and of whole requests.

use std::{
    io::{Read, Write},
    thread,
    time::Duration,
};

use testkit::{
    client::{Client, Response},
    gateway::Gateway,
    protocol::{Protocol, on_every_protocol},
    upstream::{Upstream, read_until_closed},
    wait::sleep,
    yaml::fill,
};

use super::{SECOND, start};

#[test]
fn an_upstream_that_never_answers_is_a_504() {
    let silent = Upstream::silent();
    let half = Upstream::on_connection(|socket| {
        let _ = socket.read(&mut [0; 4096]);
        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-");
        read_until_closed(socket);
    });
    let interim = Upstream::on_connection(|socket| {
        let _ = socket.read(&mut [0; 4096]);
        let _ = socket.write_all(b"HTTP/1.1 103 Early Hints\r\n\r\n");
        read_until_closed(socket);
    });
    thread::scope(|scope| {
        for upstream in [silent, half, interim] {
            scope.spawn(move || {
                on_every_protocol(|protocol| assert_response_timeouts(&upstream, protocol));
            });
        }
    });
}

/// Sends two requests over one connection to an `upstream` that never responds.
fn assert_response_timeouts(upstream: &Upstream, protocol: Protocol) {
    let gateway = start(&fill(
        "
        upstreams:
          origin: {targets: [{target}], response_timeout: 1s}
          hello: {respond: {body: hi}}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin}
          - {name: hello, match: {path: /hello}, upstream: hello}
        ",
        [("target", upstream.target())],
    ));
    let mut client = protocol.connect(&gateway);
    for (method, headers, body) in [("GET", "", ""), ("POST", "Content-Length: 2\r\n", "hi")] {
        client.start(method, "/", headers, !body.is_empty());
        if !body.is_empty() {
            client.send(body, true);
        }
        let response = gateway.assert_times_out(SECOND, || {
            let first = client.read_response();
            if first.status == 103 { client.read_response() } else { first }
        });
        assert_eq!(response.status, 504, "{}", response.text());
        let problem = response.json();
        assert_eq!(problem["title"], "Gateway Timeout");
        let detail = "the upstream did not answer within response_timeout: 1s";
        assert_eq!(problem["detail"], detail);
    }
    assert_eq!(client.get("/hello", "").status, 200, "the connection is kept");
    let timeouts = "tidegate_upstream_failures_total{upstream=\"origin\",kind=\"timeout\"}";
    assert_eq!(gateway.metric(timeouts), 2);
}

#[test]
fn an_active_request_body_defers_the_response_timeout() {
    let upstream = Upstream::hello();
    let gateway = start(&fill(
        "
        upstreams: {origin: {targets: [{target}], response_timeout: 1s}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        [("target", upstream.target())],
    ));
    on_every_protocol(|protocol| {
        let mut client = protocol.connect(&gateway);
        client.start("POST", "/", "Content-Length: 10\r\n", true);
        for sent in 1..=10 {
            gateway.clock.advance(Duration::from_millis(150));
            client.send("x", sent == 10);
        }
        assert_eq!(client.read_response().status, 200);
    });
}

#[test]
fn an_upstream_that_cannot_be_reached_is_a_502() {
    on_every_protocol(|protocol| {
        // Nothing listens on port 1.
        let gateway = start(
            "
            upstreams: {origin: {targets: ['http://127.0.0.1:1']}}
            routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
            ",
        );
        let mut client = protocol.connect(&gateway);
        let response = client.get("/", "");
        assert_eq!(response.status, 502);
        assert_eq!(response.json()["title"], "Bad Gateway");
        assert!(!response.text().contains("127.0.0.1"), "{}", response.text());
        assert_eq!(client.get("/", "").status, 502);
        let failures = "tidegate_upstream_failures_total{upstream=\"origin\",kind=\"connect\"}";
        assert_eq!(gateway.metric(failures), 2);
    });
}

#[test]
fn one_reachable_server_is_enough() {
    let upstream = Upstream::hello();
    on_every_protocol(|protocol| {
        let gateway = start(&fill(
            "
            upstreams: {origin: {targets: ['http://127.0.0.1:1', {target}]}}
            routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
            ",
            [("target", upstream.target())],
        ));
        for _ in 0..4 {
            assert_eq!(protocol.get(&gateway, "/", "").status, 200);
        }
    });
}

/// Sends a GET that the request timeout of 1 s ends; `None` if the response is truncated.
fn get_until_timeout(gateway: &Gateway, protocol: Protocol) -> Option<Response> {
    let mut client = protocol.connect(gateway);
    client.start_get("/");
    gateway.assert_times_out(SECOND, || client.try_read_response())
}

#[test]
fn the_request_timeout_covers_the_time_until_the_response() {
    let silent = Upstream::silent();
    let gateway = start(&fill(
        "
        upstreams: {origin: {targets: [{target}], response_timeout: 30s}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin, request_timeout: 1s}]
        ",
        [("target", silent.target())],
    ));
    on_every_protocol(|protocol| {
        let response = get_until_timeout(&gateway, protocol).expect("a response");
        assert_eq!(response.status, 504);
    });
}

#[test]
fn the_response_body_timeout_truncates_a_response_that_has_begun() {
    let endless = Upstream::on_connection(|socket| {
        let _ = socket.read(&mut [0; 4096]);
        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        while socket.write_all(b"1\r\nx\r\n").is_ok() {
            sleep(Duration::from_millis(1));
        }
    });
    let gateway = start(&fill(
        "
        upstreams: {origin: {targets: [{target}]}}
        routes:
          - name: all
            match: {path: '/{*rest}'}
            upstream: origin
            request_timeout: 1s
            response_body_timeout: 1s
        ",
        [("target", endless.target())],
    ));
    on_every_protocol(|protocol| {
        assert!(get_until_timeout(&gateway, protocol).is_none());
    });
    let mut client = Client::connect(gateway.address());
    client.send("GET / HTTP/1.0\r\nHost: a\r\n\r\n");
    assert!(
        gateway.while_time_passes(|| client.read_to_end()).0.is_err(),
        "an orderly close would look like the end of the response"
    );
}
