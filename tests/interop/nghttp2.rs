//! nghttp2's tools as clients: nghttp for single requests, h2load for many.

use std::{fs, io::Write};

use h2::server::Builder;
use testkit::{http2_upstream::Http2Upstream, upstream::Upstream};

use crate::{
    curl::{echo, route_to},
    edge::{Edge, Listener},
    tools::{Output, client, run},
};

/// Runs h2load; its options are `arguments`.
pub(crate) fn h2load(arguments: &[&str], url: &str) -> Output {
    run(client("h2load", "nghttp2-client").args(arguments).arg(url))
}

/// Fails the test unless all `count` requests of a run of h2load had a 2xx.
pub(crate) fn assert_all_succeeded(output: &Output, count: u32) {
    for line in [
        format!(
            "requests: {count} total, {count} started, {count} done, {count} succeeded, 0 failed, 0 \
             errored, 0 timeout"
        ),
        format!("status codes: {count} 2xx, 0 3xx, 0 4xx, 0 5xx"),
    ] {
        assert!(output.out.contains(&line), "not `{line}`:\n{}", output.text());
    }
}

fn nghttp(edge: &Edge, listener: Listener, arguments: &[&str], path: &str) -> Output {
    let mut command = client("nghttp", "nghttp2-client");
    command.args(["--timeout=20", "--no-verify-peer"]).args(arguments);
    run(command.arg(edge.url(listener, "127.0.0.1", path))).succeeded("nghttp")
}

#[test]
fn h2load_has_no_failed_request_over_any_protocol() {
    const COUNT: u32 = 2000;
    let edge = Edge::start(&route_to(&echo()));
    let (body, _) = edge.files.body(3000);
    let body = body.to_str().expect("a path");
    for (listener, protocol) in [
        (Listener::Clear, "h2c"),
        (Listener::Tls, "h2"),
        (Listener::Clear, "http/1.1"),
        (Listener::Tls, "http/1.1"),
    ] {
        let h1: &[&str] = if protocol == "http/1.1" { &["--h1"] } else { &[] };
        for data in [&[][..], &["-d", body]] {
            let count = COUNT.to_string();
            // HTTP/1.1 is pipelined to the same depth.
            let arguments = [&["-n", &count, "-c", "8", "-m", "16"], h1, data].concat();
            let output = h2load(&arguments, &edge.url(listener, "127.0.0.1", "/a"));
            assert_all_succeeded(&output, COUNT);
            let named = format!("Application protocol: {protocol}");
            assert!(output.out.contains(&named), "not {named}:\n{}", output.out);
        }
    }
    edge.gateway.wait_for_metric("tidegate_requests_by_protocol_total{protocol=\"HTTP/2\"}", 8000);
}

#[test]
fn nghttp_trailers_pass_both_ways() {
    // Sends the request's trailers back.
    let upstream = Http2Upstream::with_handler(Builder::new(), |mut exchange| async move {
        let (body, trailers) = exchange.read_body().await.expect("a whole request");
        let mut stream = exchange.start(200, &[]);
        stream.send_data(body.into(), false).expect("an open stream");
        stream.send_trailers(trailers.expect("trailers")).expect("an open stream");
    });
    let to_http1 = Upstream::with_handler(|_, socket| {
        let response = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n\
            7\r\n6162638\r\n0\r\nX-Sum: 5\r\n\r\n";
        socket.write_all(response).is_ok()
    });
    for (target, protocol) in [(upstream.target(), "http2"), (to_http1.target(), "http1")] {
        let edge = Edge::start(&format!(
            "upstreams: {{origin: {{targets: ['{target}'], protocol: {protocol}}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin}}]
"
        ));
        let body = edge.files.path("small");
        fs::write(&body, "6162638").expect("a file");
        let body = format!("--data={}", body.display());
        for listener in [Listener::Clear, Listener::Tls] {
            let arguments = ["-v", &body, "--trailer=x-sum: 5", "-H", "te: trailers"];
            let output = nghttp(&edge, listener, &arguments, "/a").out;
            let (sent, received) = output.split_once("6162638").expect("the body");
            assert!(sent.contains(":status: 200") && sent.contains("x-sum: 5"), "{output}");
            assert!(received.contains("x-sum: 5"), "{target}: {output}");
        }
    }
}

#[test]
fn nghttp_bodies_of_1_mib_pass_with_and_without_a_100() {
    let upstream = echo();
    let edge = Edge::start(&route_to(&upstream));
    let (file, bytes) = edge.files.body(1 << 20);
    let data = format!("--data={}", file.display());
    let expected = String::from_utf8_lossy(&bytes);
    for listener in [Listener::Clear, Listener::Tls] {
        let output = nghttp(&edge, listener, &[&data], "/a");
        assert!(output.out == expected, "{listener:?}: {} characters", output.out.len());
        // The windows of a client that reads little at a time.
        let output = nghttp(&edge, listener, &[&data, "--window-bits=12"], "/a");
        assert!(output.out == expected, "{listener:?}: {} characters", output.out.len());
        let waiting = nghttp(&edge, listener, &[&data, "--expect-continue", "-nv"], "/a");
        let (before, after) = waiting.out.split_once(":status: 100").expect("a 100");
        assert!(!before.contains("send DATA"), "the body was not held back");
        assert!(after.contains("send DATA") && after.contains(":status: 200"));
    }
    assert!(upstream.requests().iter().all(|request| request.ends_with(&bytes)));
}

#[test]
fn nghttp_streams_of_one_connection_are_all_answered() {
    let edge = Edge::start(&route_to(&echo()));
    let (file, _) = edge.files.body(100_000);
    let data = format!("--data={}", file.display());
    for listener in [Listener::Clear, Listener::Tls] {
        // More than the 100 streams that the gateway allows at a time.
        let output = nghttp(&edge, listener, &[&data, "--multiply=150", "-ns"], "/a");
        assert_eq!(statuses(&output).len(), 150, "{}", output.out);
        assert!(statuses(&output).iter().all(|status| status == "200"), "{}", output.out);
    }
    let opened = "tidegate_opened_connections_total{protocol=\"HTTP/2\"";
    edge.gateway.wait_for_metric(opened, 2);
}

/// The status of each request in the table that nghttp prints with `--stat`.
pub(crate) fn statuses(output: &Output) -> Vec<String> {
    let (_, table) = output.out.split_once("request path").expect("a table");
    let rows = table.lines().filter(|line| line.ends_with("/a"));
    rows.map(|row| {
        let mut fields = row.split_whitespace().rev();
        fields.nth(2).expect("a status before the size and the path").to_owned()
    })
    .collect()
}

/// The arguments of h2load for `requests` at this rate a second, by 8 clients of 16 streams.
pub(crate) fn steady(requests: u32, rate: u32) -> Vec<String> {
    let [requests, rate] = [format!("-n{requests}"), format!("--rps={}", rate / 8)];
    vec!["-c8".to_owned(), "-m16".to_owned(), requests, rate]
}
