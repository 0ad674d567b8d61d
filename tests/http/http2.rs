use std::{io::Write, sync::Mutex, sync::mpsc, time::Duration};

use bytes::Bytes;
use h2::Reason;
use http::HeaderValue;
use testkit::{
    client::Response,
    gateway::Gateway,
    http2_client::{Http2Client, request},
    protocol::{PROTOCOLS, on_every_protocol},
    upstream::{Upstream, read_until_closed},
    wait::eventually,
    yaml::fill,
};

use testkit::log_lines::read_lines;

/// A listener for both HTTP versions, without TLS.
pub(crate) const LISTEN: &str = "listen: [{address: '127.0.0.1:0', http2: true}]\n";

fn start(target: &str, yaml: &str) -> Gateway {
    Gateway::start(&fill(yaml, [("target", target)]))
}

const ORIGIN: &str = "
listen: [{address: '127.0.0.1:0', http2: true}]
upstreams:
  origin: {targets: [{target}]}
routes:
  - {name: all, match: {path: '/{*rest}'}, upstream: origin}
";

/// The parts of a response that depend neither on the HTTP version nor on the request.
fn comparable(response: &Response) -> (u16, Vec<String>, String) {
    let own = ["date:", "x-request-id:", "connection:", "transfer-encoding:"];
    let lines = response.head.lines().skip(1).map(str::to_ascii_lowercase);
    let mut lines: Vec<_> =
        lines.filter(|line| !own.iter().any(|name| line.starts_with(name))).collect();
    lines.sort();
    let mut body = response.text();
    if let Some(at) = body.find("\"request-id\"") {
        body.truncate(at);
    }
    (response.status, lines, body)
}

#[test]
fn every_protocol_gets_the_same_answers() {
    let upstream = Upstream::with_handler(|request, socket| {
        let response = if request.starts_with(b"GET /none") {
            "HTTP/1.1 204 No Content\r\nX-Kind: none\r\n\r\n"
        } else if request.starts_with(b"GET /same") {
            "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n"
        } else if request.starts_with(b"HEAD") {
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Kind: head\r\n\r\n"
        } else if request.starts_with(b"GET /chunks") {
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
        } else {
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\r\nhello"
        };
        socket.write_all(response.as_bytes()).is_ok()
    });
    let answers = PROTOCOLS.map(|protocol| {
        let gateway = Gateway::for_every_protocol(&format!(
            "
upstreams: {{origin: {{targets: [{}]}}}}
headers: {{standard: draft-11}}
limits: {{two: {{algorithm: fixed_window, quota: 2, window: 24h, key: [path]}}}}
routes:
  - {{name: limited, match: {{path: '/limited/{{id}}', methods: [GET]}}, upstream: origin, limits: [two]}}
  - {{name: short, match: {{path: /short}}, upstream: origin, max_body: 10B}}
  - {{name: all, match: {{host: gateway.test, path: '/open/{{*rest}}'}}, upstream: origin}}
  - {{name: kinds, match: {{path: '/{{kind}}'}}, upstream: origin}}",
            upstream.target()
        ));
        let mut client = protocol.connect(&gateway);
        let mut answers = Vec::new();
        for (method, path, body) in [
            ("GET", "/limited/7", ""),
            // The normal form of the same path.
            ("GET", "//limited/x/../%37", ""),
            ("GET", "/limited/%37", ""),
            ("GET", "/limited/8", ""),
            ("PUT", "/limited/8", "x"),
            ("GET", "/nowhere/at/all", ""),
            ("GET", "/open/%00", ""),
            ("POST", "/open/a?b=c", "hello"),
            ("POST", "/short", "more than ten bytes"),
            ("HEAD", "/open/a", ""),
            ("HEAD", "/nowhere/at/all", ""),
            ("GET", "/none", ""),
            ("GET", "/same", ""),
            ("GET", "/chunks", ""),
            ("OPTIONS", "/open/a", ""),
            ("TRACE", "/open/a", ""),
        ] {
            let response = client.ask(method, path, "Accept: */*\r\n", body);
            let mut answer = comparable(&response);
            // The time until the next midnight.
            answer.1.retain(|line| !line.contains("reset") && !line.contains("t="));
            answers.push((method, path, answer));
        }
        answers
    });
    let [http1, others @ ..] = answers;
    for (protocol, other) in PROTOCOLS.into_iter().skip(1).zip(others) {
        for (http1, other) in http1.iter().zip(&other) {
            assert_eq!(http1, other, "{protocol:?}");
        }
    }
    let lines = |line: &str| {
        let texts = upstream.request_texts();
        texts.iter().filter(|text| text.starts_with(line)).count()
    };
    assert_eq!(lines("GET /limited/7 HTTP/1.1\r\n"), 8, "{:?}", upstream.request_texts());
    assert_eq!(lines("POST /open/a?b=c HTTP/1.1\r\n"), 4);
}

#[test]
fn a_refusal_is_a_problem_document_with_rate_headers() {
    let gateway = Gateway::start(&format!(
        "{LISTEN}
upstreams: {{hello: {{respond: {{body: hi}}}}}}
client: {{token: ['cookie:session']}}
limits: {{one: {{algorithm: sliding_window, quota: 1, window: 1h, key: [token]}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: hello, limits: [one]}}]"
    ));
    let mut client = Http2Client::connect(gateway.address());
    let ask = |client: &mut Http2Client, cookies: &[&str]| {
        let mut request = request("GET", "/", "");
        for cookie in cookies {
            request.headers_mut().append("cookie", cookie.parse().expect("a value"));
        }
        client.try_ask(request, b"").expect("a response")
    };
    assert_eq!(ask(&mut client, &["a=1; session=x"]).status, 200);
    // An HTTP/2 client may send the pairs of a cookie as separate fields.
    for crumbs in [&["session=x", "a=1"][..], &["b=2", "session=x"], &["session=x"]] {
        let refused = ask(&mut client, crumbs);
        assert_eq!(refused.status, 429, "{crumbs:?}");
        assert_eq!(refused.number("x-ratelimit-remaining"), 0);
        assert!(refused.number("retry-after") >= 1);
        assert_eq!(refused.header("content-type"), Some("application/problem+json"));
        assert_eq!(refused.json()["violated-policies"][0], "one");
    }
    assert_eq!(ask(&mut client, &["session=y"]).status, 200, "another caller");
}

#[test]
fn the_upstream_receives_the_request_of_http1() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream.target(), ORIGIN);
    let mut client = Http2Client::connect(gateway.address());
    let headers = "X-Own: 1\r\nTE: trailers\r\nX-Forwarded-For: 6.6.6.6\r\nX-Real-IP: 6.6.6.6\r\n\
        X-Forwarded-Host: evil.test\r\n";
    assert_eq!(client.get("/a//b?c=%41", headers).status, 200);
    let text = upstream.request_texts()[0].to_ascii_lowercase();
    assert!(text.starts_with("get /a/b?c=%41 http/1.1\r\n"), "{text}");
    for line in [
        "host: gateway.test",
        "x-own: 1",
        "x-forwarded-for: 127.0.0.1",
        "x-forwarded-proto: http",
        "x-forwarded-host: gateway.test",
    ] {
        assert!(text.contains(&format!("\r\n{line}\r\n")), "{line}: {text}");
    }
    assert!(text.contains("\r\nvia: ") && text.contains("\r\nx-request-id: "), "{text}");
    for absent in ["6.6.6.6", "evil.test", "\r\nte:", "\r\n:", "http2-settings"] {
        assert!(!text.contains(absent), "{absent}: {text}");
    }
}

#[test]
fn bodies_are_passed_in_both_directions() {
    // Echoes the body, with a length or in chunks as it came.
    let upstream = Upstream::with_handler(|request, socket| {
        let split = request.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
        let (head, body) = request.split_at(split);
        let head = String::from_utf8_lossy(head).to_ascii_lowercase();
        let framing = if head.contains("transfer-encoding: chunked") {
            "Transfer-Encoding: chunked".to_owned()
        } else {
            format!("Content-Length: {}", body.len())
        };
        let response = format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n");
        socket.write_all(response.as_bytes()).is_ok() && socket.write_all(body).is_ok()
    });
    let gateway = start(&upstream.target(), ORIGIN);
    let mut client = Http2Client::connect(gateway.address());
    for length in [1, 1000, 300_000] {
        let body: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
        for headers in [format!("Content-Length: {length}\r\n"), String::new()] {
            let response = client.ask("POST", "/", &headers, &body);
            assert_eq!(response.status, 200);
            assert!(response.body == body, "{length} {headers:?}");
            // Without a length, it depends on what had arrived when the request was forwarded.
            let declared = response.header("content-length").map(str::to_owned);
            assert!(headers.is_empty() || declared == Some(length.to_string()), "{declared:?}");
            assert_eq!(response.header("transfer-encoding"), None);
        }
    }
}

#[test]
fn trailers_are_passed_in_both_directions() {
    let upstream = Upstream::with_response(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 9\r\n\
         Content-Length: 7\r\nX-RateLimit-Limit: 1\r\n\r\n",
    );
    let gateway = start(&upstream.target(), ORIGIN);
    let mut client = Http2Client::connect(gateway.address());
    let mut exchange = client.start(request("POST", "/", ""), false).expect("a stream");
    exchange.send(b"hello", false).expect("sent");
    let trailers = [("x-check", "5"), ("host", "evil.test"), ("authorization", "x")];
    exchange.send_trailers(&trailers).expect("sent");
    assert_eq!(exchange.finish().expect("a response").text(), "ok");
    let received = exchange.trailers.expect("trailers");
    assert_eq!(received.get("x-sum").map(HeaderValue::as_bytes), Some(&b"9"[..]));
    assert_eq!(received.len(), 1, "{received:?}");
    let text = upstream.request_texts()[0].to_ascii_lowercase();
    assert!(text.ends_with("5\r\nhello\r\n0\r\nx-check: 5\r\n\r\n"), "{text}");
}

#[test]
fn an_empty_body_of_known_length_has_a_length_for_an_http1_upstream() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream.target(), ORIGIN);
    let mut client = Http2Client::connect(gateway.address());
    let head = request("POST", "/", "Content-Length: 0\r\n");
    let mut exchange = client.start(head, false).expect("a stream");
    exchange.upload.send_data(Bytes::new(), true).expect("sent");
    assert_eq!(exchange.finish().expect("a response").status, 200);
    let text = upstream.request_texts()[0].to_ascii_lowercase();
    assert!(text.contains("\r\ncontent-length: 0\r\n"), "{text}");
    assert!(!text.contains("transfer-encoding"), "{text}");
}

#[test]
fn long_trailers_are_refused() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream.target(), ORIGIN);
    let mut client = Http2Client::connect(gateway.address());
    for (length, status) in [(8_000, 200), (9_000, 400)] {
        let mut exchange = client.start(request("POST", "/", ""), false).expect("a stream");
        exchange.send(b"hello", false).expect("sent");
        let value = "x".repeat(length);
        exchange.send_trailers(&[("x-check", &value)]).expect("sent");
        assert_eq!(exchange.finish().expect("a response").status, status);
    }
}

#[test]
fn interim_responses_are_passed_on() {
    let upstream = Upstream::with_response(
        "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nX-Request-Id: evil\r\n\r\n\
         HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    );
    let gateway = start(&upstream.target(), ORIGIN);
    let mut client = Http2Client::connect(gateway.address());
    let mut exchange = client.start(request("GET", "/", ""), true).expect("a stream");
    let interim = exchange.next_interim().expect("103");
    assert_eq!(interim.status(), 103);
    assert_eq!(interim.headers()["link"], "</a>");
    assert_eq!(interim.headers().len(), 1);
    assert_eq!(exchange.finish().expect("a response").text(), "ok");
}

#[test]
fn continue_is_sent_when_the_body_is_wanted() {
    let upstream = Upstream::hello();
    let gateway = start(
        &upstream.target(),
        "
        listen: [{address: '127.0.0.1:0', http2: true}]
        upstreams:
          origin: {targets: [{target}]}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin, max_body: 10B}
        ",
    );
    let mut client = Http2Client::connect(gateway.address());
    let expecting =
        |length: &str| request("POST", "/", &format!("Expect: 100-continue\r\n{length}"));
    let mut exchange = client.start(expecting(""), false).expect("a stream");
    assert_eq!(exchange.next_interim().expect("100").status(), 100);
    exchange.send(b"hello", true).expect("sent");
    assert_eq!(exchange.finish().expect("a response").status, 200);
    // A refused body is not requested.
    let mut exchange = client.start(expecting("Content-Length: 11\r\n"), false).expect("a stream");
    assert!(exchange.next_interim().is_none());
    assert_eq!(exchange.finish().expect("a response").status, 413);
    assert_eq!(upstream.request_count(), 1);
}

#[test]
fn a_response_is_complete_before_the_rest_of_the_body_is_refused() {
    let gateway = start(
        &Upstream::hello().target(),
        "
        listen: [{address: '127.0.0.1:0', http2: true}]
        upstreams:
          origin: {targets: [{target}]}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: origin, max_body: 5B}
        ",
    );
    let mut client = Http2Client::connect(gateway.address());
    // A short body is read to its end, even if its length is unknown.
    for headers in ["Content-Length: 60000\r\n", ""] {
        let path = if headers.is_empty() { "/%00" } else { "/" };
        let mut exchange = client.start(request("POST", path, headers), false).expect("a stream");
        let head = exchange.head().expect("a response before the body");
        assert!(head.status().is_client_error());
        exchange.send(&vec![b'x'; 60_000], true).expect("the rest is read");
        assert_eq!(exchange.upload.poll_reset_now(), None);
        while exchange.read().expect("the response is not reset").is_some() {}
    }
    // A long one is refused after the response: the client is asked to stop.
    let mut exchange =
        client.start(request("POST", "/", "Content-Length: 9000000\r\n"), false).expect("a stream");
    assert_eq!(exchange.finish().expect("a whole response").status, 413);
    eventually("the stream is reset", || exchange.upload.poll_reset_now().is_some());
    assert_eq!(exchange.upload.poll_reset_now(), Some(Reason::NO_ERROR));
    assert_eq!(client.get("/", "").status, 200, "the connection goes on");
}

/// True if a stream is already reset.
trait PollResetNow {
    fn poll_reset_now(&mut self) -> Option<Reason>;
}

impl PollResetNow for h2::SendStream<bytes::Bytes> {
    fn poll_reset_now(&mut self) -> Option<Reason> {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        match self.poll_reset(&mut cx) {
            std::task::Poll::Ready(Ok(reason)) => Some(reason),
            _ => None,
        }
    }
}

#[test]
fn a_reset_drops_the_upstream_request_and_is_logged_as_499() {
    let directory = tempfile::tempdir().expect("a directory");
    let log = directory.path().join("access.log");
    let (closed, is_closed) = mpsc::channel();
    let closed = Mutex::new(closed);
    let upstream = Upstream::on_connection(move |socket| {
        read_until_closed(socket);
        let _ = closed.lock().expect("no panic").send(());
    });
    let gateway = start(
        &upstream.target(),
        &fill(
            "
            listen: [{address: '127.0.0.1:0', http2: true}]
            access_log: {log}
            workers: 1
            upstreams:
              origin: {targets: [{target}]}
            routes:
              - {name: all, match: {path: '/{*rest}'}, upstream: origin}
            ",
            [("log", log.display().to_string())],
        ),
    );
    let mut client = Http2Client::connect(gateway.address());
    let mut exchange = client.start(request("GET", "/slow", ""), true).expect("a stream");
    eventually("the upstream is connected", || upstream.connections() == 1);
    exchange.reset();
    is_closed.recv_timeout(Duration::from_secs(10)).expect("the upstream request is dropped");
    let line = read_lines(&log, 1);
    assert!(line.contains("499") && line.contains("/slow"), "{line}");
    assert!(line.contains("client_closed"), "{line}");
}

#[test]
fn an_unknown_token_is_refused_by_the_throttle() {
    let gateway = Gateway::for_every_protocol(
        "client: {token: ['header:authorization']}
upstreams: {hello: {respond: {body: hi}}}
throttle: {max_active: 10, capacity: 1000, mode: on}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello, throttle: true}]",
    );
    on_every_protocol(|protocol| {
        let refused = protocol.get(&gateway, "/", "Authorization: Bearer unknown\r\n");
        assert_eq!(refused.status, 429, "{}", refused.text());
        assert_eq!(refused.json()["violated-policies"][0], "active-users");
        assert!(refused.number("retry-after") >= 1);
    });
}
