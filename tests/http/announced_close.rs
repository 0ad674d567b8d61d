//! A response after which the connection closes says so: a client would lose the next request that
//! it sends there.

use std::{
    io::{Read, Write},
    sync::Mutex,
    thread,
    time::Duration,
};

use h2::server::Builder;
use testkit::{
    client::{Client, Response},
    gateway::Gateway,
    http2_upstream::Http2Upstream,
    upstream::Upstream,
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime};

const RULES: &str = "
upstreams: {early: {targets: ['{target}'], protocol: '{protocol}'}}
limits:
  once: {algorithm: sliding_window, quota: 1, window: 1h, key: []}
  model: {quota: 9, window: 1h, key: ['json:model']}
routes:
  - {name: next, match: {path: /next}, respond: {body: next}}
  - {name: fixed, match: {path: /fixed}, respond: {body: fixed}}
  - {name: moved, match: {path: /moved}, redirect: {to: /next}}
  - {name: state, match: {path: /state}, status: [once]}
  - {name: denied, match: {path: /denied}, deny: [0.0.0.0/0], respond: {body: never}}
  - {name: get, match: {path: /get, methods: [GET]}, respond: {body: got}}
  - {name: limited, match: {path: /limited}, limits: [once], respond: {body: once}}
  - {name: read, match: {path: /read}, limits: [model], max_inspect: 1KiB, respond: {body: read}}
  - {name: early, match: {path: /early}, upstream: early, max_body: 30MiB}
";

const OWN: [(&str, u16); 8] = [
    ("/fixed", 200),
    ("/moved", 308),
    ("/state", 200),
    ("/denied", 403),
    ("/get", 405),
    ("/limited", 429),
    ("/read", 400),
    ("/nowhere", 404),
];

fn unused_upstream() -> [(&'static str, String); 2] {
    [("target", "http://127.0.0.1:1".to_owned()), ("protocol", "http1".to_owned())]
}

/// A body of `chunks` chunks of 1 KiB, with its end.
fn in_chunks(chunks: usize) -> String {
    format!("400\r\n{}\r\n", "x".repeat(1024)).repeat(chunks) + "0\r\n\r\n"
}

/// Sends a request with this framing and body, while the response is read.
fn exchange(client: &mut Client, path: &str, framing: &str, body: &str) -> Response {
    let mut sending = client.socket.try_clone().expect("a socket");
    let text = format!("POST {path} HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n{body}");
    thread::scope(|scope| {
        // The gateway may close before it has read all.
        scope.spawn(move || sending.write_all(text.as_bytes()));
        client.read_response()
    })
}

/// Asserts that the connection closes if `response` says so, and else serves another request.
/// Returns true if it closes.
fn assert_announced(mut client: Client, response: &Response) -> bool {
    let closes = response.header("connection") == Some("close");
    if closes {
        assert!(client.is_closed_or_reset(), "{}", response.head);
    } else {
        assert_eq!(client.get("/next", "").text(), "next", "{}", response.head);
    }
    closes
}

#[test]
fn own_responses_announce_a_close() {
    let gateway = Gateway::start(&fill(RULES, unused_upstream()));
    assert_eq!(Client::connect(gateway.address()).get("/limited", "").status, 200);
    for (path, status) in OWN {
        let announced = |framing: &str, body: &str| {
            let mut client = Client::connect(gateway.address());
            let response = exchange(&mut client, path, framing, body);
            assert_eq!(response.status, status, "{path}");
            assert_announced(client, &response)
        };
        assert!(announced("Transfer-Encoding: chunked", &in_chunks(208)), "{path}");
        assert!(announced("Content-Length: 200000", &"x".repeat(200_000)), "{path}");
        assert!(!announced("Content-Length: 1024", &"x".repeat(1024)), "{path}");
        assert!(!announced("Transfer-Encoding: chunked", &in_chunks(1)), "{path}");
        assert!(!announced("Transfer-Encoding: chunked", &in_chunks(60)), "{path}");
    }
}

#[test]
fn the_end_of_a_body_in_chunks_is_awaited_for_a_second() {
    let clock = Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000));
    let gateway = Gateway::start_at(&fill(RULES, unused_upstream()), clock);
    for (end, closes) in [("", true), ("0\r\n\r\n", false)] {
        let mut client = Client::connect(gateway.address());
        client.send("POST /fixed HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        client.send(format!("1\r\nx\r\n{end}"));
        let (response, _) = gateway.while_time_passes(|| client.read_response());
        assert_eq!(response.status, 200);
        let (is_closed, _) = gateway.while_time_passes(|| assert_announced(client, &response));
        assert_eq!(is_closed, closes, "{end}");
    }
}

/// The clock stands: a wait would never end.
#[test]
fn a_connection_that_closes_anyway_waits_for_no_chunk() {
    let clock = Clock::manual(StoreTime::from_unix_ms(1_700_000_000_000));
    let gateway = Gateway::start_at(&fill(RULES, unused_upstream()), clock);
    let mut client = Client::connect(gateway.address());
    client.send("POST /fixed HTTP/1.1\r\nHost: a\r\nConnection: close\r\n");
    client.send("Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n");
    assert_eq!(client.read_response().status, 200);
}

#[test]
fn a_request_timeout_bounds_the_wait_for_chunks() {
    let clock = Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000));
    let rules = fill(RULES, unused_upstream());
    let rules = rules.replace("{name: fixed, ", "{name: fixed, request_timeout: 300ms, ");
    let gateway = Gateway::start_at(&rules, clock);
    let mut client = Client::connect(gateway.address());
    client.send("POST /fixed HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n");
    let (response, took) = gateway.while_time_passes(|| client.read_response());
    assert_eq!((response.status, response.header("connection")), (200, Some("close")));
    assert!(took < Duration::from_millis(700), "{took:?}");
}

#[test]
fn a_stop_waits_for_no_rest_of_an_answered_request() {
    let clock = Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000));
    let gateway = Gateway::start_at(&fill(RULES, unused_upstream()), clock);
    let mut client = Client::connect(gateway.address());
    client.send("POST /fixed HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf");
    assert_eq!(client.read_response().status, 200);
    // A client closes when it has read the end.
    let closing = thread::spawn(move || client.is_closed_or_reset());
    let took = gateway.stop();
    assert!(closing.join().expect("no panic"));
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn early_responses_of_an_upstream_announce_a_close() {
    // Open, and not read: the body stays on its way.
    let held = Mutex::new(Vec::new());
    let http1 = Upstream::on_connection(move |socket| {
        let _ = socket.read(&mut [0; 1024]);
        let _ = socket.write_all(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n");
        held.lock().expect("no panic").extend(socket.try_clone());
    });
    let http2 = Http2Upstream::with_handler(Builder::new(), |mut exchange| async move {
        let mut stream = exchange.start(401, &[]);
        let _ = stream.send_data("".into(), true);
    });
    for (target, protocol) in [(http1.target(), "http1"), (http2.target(), "http2")] {
        let rules = fill(RULES, [("target", target), ("protocol", protocol.to_owned())]);
        let gateway = Gateway::start(&rules);
        for (framing, body) in [
            ("Content-Length: 20000000", "x".repeat(20_000_000)),
            ("Transfer-Encoding: chunked", in_chunks(20_000)),
            ("Content-Length: 5000000\r\nExpect: 100-continue", String::new()),
            ("Transfer-Encoding: chunked\r\nExpect: 100-continue", String::new()),
        ] {
            let mut client = Client::connect(gateway.address());
            let response = exchange(&mut client, "/early", framing, &body);
            assert_eq!(response.status, 401, "{protocol} {framing}");
            assert!(assert_announced(client, &response), "{protocol} {framing}");
        }
    }
}
