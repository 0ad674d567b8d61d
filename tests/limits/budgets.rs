//! Costs that are known when a response ends: an estimate is charged, then settled.

/// The field `cost` of the access log, and `tidegate replay` with it.
mod logged;
/// Members of requests: keys and estimates, and the bodies that are refused.
mod requests;
mod streams;
/// Settled numbers after the body.
mod trailers;

use std::{io::Write as _, net::Shutdown};

use testkit::{
    backend::{Fleet, MEMORY_AND_REDIS, on_all_at_once},
    client::Response,
    gateway::Gateway,
    protocol::AnyClient,
    upstream::Upstream,
    wait::eventually,
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime};

const NOW: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);
/// What each request of these tests is charged before.
const ESTIMATE: u64 = 50;

/// Sends a request with a JSON body.
fn post(client: &mut AnyClient, path: &str, body: &str) -> Response {
    client.ask("POST", path, "Content-Type: application/json\r\n", body)
}

/// The units of `limit` that are used, by the route `/rate_limit`.
fn used(fleet: &Fleet, limit: &str) -> u64 {
    let response = fleet.get("/rate_limit", "");
    let json = response.json();
    json["resources"][limit]["used"].as_u64().unwrap_or_else(|| panic!("no {limit} in {json}"))
}

/// Waits until `limit` has exactly this many used units.
fn wait_for_used(fleet: &Fleet, limit: &str, expected: u64) {
    eventually(&format!("{limit} has {expected} used units"), || used(fleet, limit) == expected);
}

fn chunked(parts: &[&str]) -> Vec<u8> {
    let mut body =
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            .to_vec();
    for part in parts {
        write!(body, "{:x}\r\n{part}\r\n", part.len()).expect("a vector takes all bytes");
    }
    body.extend_from_slice(b"0\r\n\r\n");
    body
}

fn plain(fields: &str, body: &[u8]) -> Vec<u8> {
    let mut response =
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{fields}\r\n", body.len()).into_bytes();
    response.extend_from_slice(body);
    response
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(text.as_bytes()).expect("a vector takes all bytes");
    encoder.finish().expect("a vector takes all bytes")
}

const USAGE: &str =
    r#"{"choices":[{"text":"hello hello hello hello"}],"usage":{"total_tokens":30}}"#;
const JSON: &str = "Content-Type: application/json\r\n";
const EVENTS: &str = "Content-Type: text/event-stream\r\n";

/// The response for a path, and the units that it settles to.
fn responses() -> Vec<(&'static str, Vec<u8>, u64)> {
    let string = r#"{"text":"\"usage\":{\"total_tokens\":9}","usage":{"total_tokens":31}}"#;
    let nested =
        r#"{"a":{"usage":{"total_tokens":9}},"usage":{"x":{"total_tokens":8},"total_tokens":32}}"#;
    let repeated = r#"{"usage":{"total_tokens":9},"usage":{"total_tokens":1,"total_tokens":33}}"#;
    let stream = "data: {\"usage\":null}\n\ndata: {\"usage\":{\"total_tokens\":9}}\r\n\r\n\
        data: {\"usage\":\ndata: {\"total_tokens\":34}}\n\ndata: [DONE]\n\n";
    vec![
        ("/plain", plain(JSON, USAGE.as_bytes()), 30),
        ("/chunked", chunked(&[&USAGE[..70], &USAGE[70..71], &USAGE[71..]]), 30),
        ("/gzip", plain(&format!("{JSON}Content-Encoding: gzip\r\n"), &gzip(USAGE)), 30),
        (
            "/zstd",
            plain(
                &format!("{JSON}Content-Encoding: zstd\r\n"),
                &zstd::encode_all(USAGE.as_bytes(), 3).expect("a vector takes all bytes"),
            ),
            30,
        ),
        ("/brotli", plain(&format!("{JSON}Content-Encoding: br\r\n"), USAGE.as_bytes()), ESTIMATE),
        (
            "/no-gzip",
            plain(&format!("{JSON}Content-Encoding: gzip\r\n"), USAGE.as_bytes()),
            ESTIMATE,
        ),
        ("/string", plain(JSON, string.as_bytes()), 31),
        ("/nested", plain(JSON, nested.as_bytes()), 32),
        ("/repeated", plain(JSON, repeated.as_bytes()), 33),
        ("/stream", plain(EVENTS, stream.as_bytes()), 34),
        ("/more", plain(JSON, br#"{"usage":{"total_tokens":75.5}}"#), 76),
        ("/most", plain(JSON, br#"{"usage":{"total_tokens":1e9}}"#), 200),
        ("/free", plain(JSON, br#"{"usage":{"total_tokens":0}}"#), 0),
        ("/absent", plain(JSON, br#"{"usage":{}}"#), ESTIMATE),
        ("/text", plain(JSON, br#"{"usage":{"total_tokens":"7"}}"#), ESTIMATE),
        ("/html", plain("Content-Type: text/html\r\n", b"<p>{\"usage\":7}"), ESTIMATE),
        ("/empty", b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(), ESTIMATE),
        ("/unavailable", b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n".to_vec(), 0),
        ("/too-many", b"HTTP/1.1 429 No\r\nContent-Length: 0\r\n\r\n".to_vec(), 0),
        (
            "/failed-later",
            b"HTTP/1.1 500 No\r\nContent-Length: 32\r\n\r\n{\"usage\":{\"total_tokens\": 12}}\n"
                .to_vec(),
            12,
        ),
        ("/cut", plain(JSON, USAGE.as_bytes()).into_iter().take(120).collect(), ESTIMATE),
        (
            "/cut-after",
            b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{\"usage\":{\"total_tokens\":35}"
                .to_vec(),
            35,
        ),
    ]
}

/// An upstream that answers by the request's path, and closes the connection afterwards.
fn scripted() -> Upstream {
    Upstream::with_handler(|request, socket| {
        let text = String::from_utf8_lossy(request);
        let path = text.split(' ').nth(1).unwrap_or_default();
        let path = path.split('?').next().unwrap_or_default();
        let found = responses().into_iter().find(|(own, ..)| *own == path);
        // The gateway may have closed its connection.
        if let Some((_, response, _)) = found {
            // The connection is not kept: the gateway must not send the next request on it.
            let end = memchr::memmem::find(&response, b"\r\n").expect("a status line");
            let (status_line, rest) = response.split_at(end);
            let response = [status_line, b"\r\nConnection: close", rest].concat();
            let _ = socket.write_all(&response);
        }
        let _ = socket.shutdown(Shutdown::Write);
        false
    })
}

#[test]
fn costs_are_settled_however_the_response_is_sent() {
    let upstream = scripted();
    let yaml = fill(
        "
        upstreams: {model: {targets: ['{upstream}'], retries: 0}}
        limits:
          tokens:
            quota: 100000
            window: 1h
            key: []
            cost: {estimate: 'json:max_tokens', actual: 'json:usage.total_tokens', max: 200}
            refund: [503]
        routes:
          - {name: rate-limit, match: {path: /rate_limit}, status: [tokens]}
          - {name: all, match: {path: '/{*rest}'}, upstream: model, limits: [tokens]}
        ",
        [("upstream", upstream.target())],
    );
    on_all_at_once(&MEMORY_AND_REDIS, |backend| {
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        let mut expected = 0;
        for (n, (path, _, cost)) in responses().into_iter().enumerate() {
            for method in ["POST", "HEAD"] {
                let mut client = fleet.connect(n);
                if method == "POST" {
                    client.start(
                        "POST",
                        path,
                        "Content-Type: application/json\r\nContent-Length: 17\r\n",
                        true,
                    );
                    client.try_send(b"{\"max_tokens\":50}", true);
                    let _ = client.try_read_response();
                    expected += cost;
                } else if matches!(path, "/plain" | "/unavailable") {
                    // Without a body, the estimate is 1; the response to HEAD has none either.
                    client.ask("HEAD", path, "", "");
                    expected += u64::from(path == "/plain");
                }
            }
            wait_for_used(&fleet, "tokens", expected);
        }
        let sum = |name: &str| -> u64 {
            fleet.gateways.iter().map(|gateway| gateway.metric(&format!("{name}{{"))).sum()
        };
        assert_eq!(sum("tidegate_limit_settled_units_total"), expected);
        assert_eq!(sum("tidegate_limit_overspent_units_total"), 26 + 150);
        assert_eq!(sum("tidegate_limit_unreadable_costs_total"), 2);
    });
    let asked = upstream.request_texts();
    assert!(asked.iter().all(|text| text.to_lowercase().contains("accept-encoding: identity\r\n")));
}

#[test]
fn bytes_durations_headers_and_weights_are_costs() {
    let upstream = Upstream::with_response(
        "HTTP/1.1 200 OK\r\nX-Cost: 7\r\nContent-Length: 51\r\n\r\n\
         {\"usage\":{\"input\":10,\"output\":2.5},\"total_tokens\":1}",
    );
    let yaml = fill(
        "
        upstreams: {app: {targets: ['{upstream}']}}
        limits:
          bytes: {quota: 1000, window: 1h, key: [], cost: {actual: bytes}}
          time: {quota: 100000, window: 1h, key: [], cost: {actual: duration_ms, estimate: 100000}}
          header: {quota: 1000, window: 1h, key: [], cost: {actual: 'header:x-cost', estimate: 3}}
          nothing: {quota: 1000, window: 1h, key: [], cost: {actual: 'header:x-none', missing: 2}}
          weights: {quota: 1000, window: 1h, key: [], cost: {weights: {usage.input: 1, usage.output: 4}}}
        routes:
          - {name: rate-limit, match: {path: /rate_limit}, status: [bytes, time, header, nothing, weights]}
          - {name: all, match: {path: '/{*rest}'}, upstream: app, limits: [bytes, time, header, nothing, weights],
             compress: {min_size: 1B, types: ['*/*', 'application/json']}}
        ",
        [("upstream", upstream.target())],
    );
    on_all_at_once(&MEMORY_AND_REDIS, |backend| {
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        let response = fleet.get("/", "");
        assert_eq!((response.status, response.body.len()), (200, 51), "{}", response.head);
        wait_for_used(&fleet, "bytes", 51);
        wait_for_used(&fleet, "weights", 20);
        assert_eq!((used(&fleet, "header"), used(&fleet, "nothing")), (7, 2));
        eventually("the time is settled", || used(&fleet, "time") < 100_000);
    });
}

#[test]
fn the_gateways_own_failures_cost_what_the_limit_says() {
    let yaml = "
        upstreams: {gone: {targets: ['http://127.0.0.1:1']}, hello: {respond: {body: '{\"t\":5}'}}}
        limits:
          kept: {quota: 100, window: 1h, key: [], cost: {actual: 'json:t', estimate: 9, failed: missing}}
          missing: {quota: 100, window: 1h, key: [], cost: {actual: 'json:t', estimate: 9, missing: 4, failed: missing}}
          refunded: {quota: 100, window: 1h, key: [], cost: {actual: 'json:t', estimate: 9, failed: 2}, refund: [502]}
          free: {quota: 100, window: 1h, key: [], cost: {actual: 'json:t', estimate: 9, missing: 4}}
          header: {quota: 100, window: 1h, key: [], cost: {actual: 'header:x-cost', estimate: 9}}
          small: {quota: 1, window: 1h, key: []}
        routes:
          - {name: rate-limit, match: {path: /rate_limit}, status: [kept, missing, refunded, free, header]}
          - {name: small, match: {path: /small}, upstream: gone, limits: [kept, small]}
          - {name: all, match: {path: '/{*rest}'}, upstream: gone, limits: [kept, missing, refunded, free, header]}
        ";
    on_all_at_once(&MEMORY_AND_REDIS, |backend| {
        let fleet = backend.start(yaml, &Clock::manual(NOW));
        assert_eq!(fleet.get("/", "").status, 502);
        wait_for_used(&fleet, "missing", 4);
        assert_eq!((used(&fleet, "kept"), used(&fleet, "refunded")), (9, 0));
        assert_eq!((used(&fleet, "free"), used(&fleet, "header")), (0, 0));
        assert_eq!(fleet.get("/small", "").status, 502);
        assert_eq!(fleet.get("/small", "").status, 429);
        wait_for_used(&fleet, "kept", 18);
    });
}

#[test]
fn a_draining_gateway_settles_what_it_cut_off() {
    let upstream = Upstream::with_handler(|_, socket| {
        let head =
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 999\r\n\r\n";
        let event = "data: {\"usage\":{\"total_tokens\":8}}\n\n";
        let sent = socket.write_all(format!("{head}{event}").as_bytes()).is_ok();
        testkit::upstream::read_until_closed(socket);
        sent
    });
    let backend = testkit::backend::Backend::redis();
    let yaml = fill(
        "
        drain_timeout: 200ms
        upstreams: {model: {targets: ['{upstream}']}}
        limits:
          tokens: {quota: 100, window: 1h, key: [], cost: {estimate: 20, actual: 'json:usage.total_tokens'}}
        routes:
          - {name: rate-limit, match: {path: /rate_limit}, status: [tokens]}
          - {name: all, match: {path: '/{*rest}'}, upstream: model, limits: [tokens]}
        ",
        [("upstream", upstream.target())],
    );
    let fleet = backend.start(&yaml, &Clock::system());
    let mut client = AnyClient::connect(testkit::protocol::Protocol::Http1, &fleet.gateways[0]);
    client.start_get("/");
    let rest: &Gateway = &fleet.gateways[1];
    let used = || {
        let response = testkit::client::get(rest.address(), "/rate_limit", "");
        response.json()["resources"]["tokens"]["used"].as_u64()
    };
    eventually("the estimate is charged", || used() == Some(20));
    testkit::wait::sleep(std::time::Duration::from_millis(200));
    fleet.gateways[0].server.stop();
    eventually("the estimate is settled", || used() == Some(8));
}
