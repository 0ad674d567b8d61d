//! HTTP/2 requests that another parser could read as two requests, or as a different one.

use testkit::{
    gateway::Gateway,
    http2_frames::{END_STREAM, Outcome, RawHttp2, block, kind, request},
    upstream::Upstream,
    wait::sleep,
};

use crate::http2::LISTEN;

type Fields = Vec<(Vec<u8>, Vec<u8>)>;
type Act<'a> = &'a dyn Fn(&mut RawHttp2);

fn start(upstream: &Upstream) -> Gateway {
    Gateway::start(&format!(
        "{LISTEN}
upstreams: {{origin: {{targets: [{}]}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin}}]",
        upstream.target()
    ))
}

/// The pseudo-headers of a POST, and one more field.
fn with(name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Fields {
    let mut fields = request("POST", "/");
    fields.push((name.as_ref().to_vec(), value.as_ref().to_vec()));
    fields
}

/// The pseudo-headers of a GET with another value for one of them.
fn replacing(name: &str, value: impl AsRef<[u8]>) -> Fields {
    let mut fields = request("GET", "/");
    let pseudo =
        fields.iter_mut().find(|(own, _)| own == name.as_bytes()).expect("a pseudo-header");
    pseudo.1 = value.as_ref().to_vec();
    fields
}

/// The pseudo-headers of a GET without one of them.
fn without(name: &str) -> Fields {
    let mut fields = request("GET", "/");
    fields.retain(|(own, _)| own != name.as_bytes());
    fields
}

fn assert_refused(outcome: Outcome, what: &str) {
    let is_refused = match outcome {
        Outcome::Status(status) => (400..500).contains(&status) || status == 501,
        Outcome::Reset(code) | Outcome::GoAway(code) => code != 0,
        Outcome::Closed => false,
    };
    assert!(is_refused, "{what}: {outcome:?}");
}

/// Sends each head as a request of its own connection, and asserts that the upstream reads nothing.
fn assert_all_refused(heads: &[Fields]) {
    let upstream = Upstream::hello();
    let gateway = start(&upstream);
    for head in heads {
        let mut raw = RawHttp2::connect(gateway.address());
        let has_body = head.iter().any(|(name, _)| name == b"content-length");
        raw.headers(1, head, !has_body);
        let shown = |(name, value): &(Vec<u8>, Vec<u8>)| [&name[..], b"=", value].concat();
        let what = head.iter().map(shown).collect::<Vec<_>>().join(&b" "[..]);
        let what = what.escape_ascii().to_string();
        assert_refused(raw.outcome(1), &what);
        assert_eq!(String::from_utf8_lossy(&upstream.received_bytes()), "", "{what}");
    }
    let mut raw = RawHttp2::connect(gateway.address());
    assert_eq!(raw.headers(1, &request("GET", "/"), true).outcome(1), Outcome::Status(200));
}

#[test]
fn fields_that_http1_reads_differently_are_refused() {
    let mut heads: Vec<Fields> = Vec::new();
    for value in [
        "a\r\nx-evil: 1",
        "a\nx-evil: 1",
        "a\rb",
        "a\0b",
        "a\r\n\r\nGET /evil HTTP/1.1\r\n",
        " a",
        "a ",
        "\ta",
        "a\t",
        "a\x0bb",
        "a\x7fb",
        "\r",
        "\n",
    ] {
        heads.push(with("x-own", value));
        heads.push(with("cookie", value));
    }
    for name in [
        "x\r\nevil",
        "x\nevil",
        "x\0",
        "x:evil",
        "x evil",
        " x",
        "x ",
        "X-Upper",
        "x-uPper",
        "",
        "x\u{e9}",
        "x(",
        "x\tevil",
        "content-length ",
        "transfer-encoding:",
    ] {
        heads.push(with(name, "1"));
    }
    assert_all_refused(&heads);
}

#[test]
fn fields_that_delimit_or_route_are_refused() {
    let mut heads: Vec<Fields> = [
        ("transfer-encoding", "chunked"),
        ("transfer-encoding", "identity"),
        ("transfer-encoding", ""),
        ("connection", "close"),
        ("connection", "x-own"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "keep-alive"),
        ("upgrade", "h2c"),
        ("upgrade", "websocket"),
        ("te", "gzip"),
        ("te", "trailers, chunked"),
        ("host", "other.test"),
        ("host", ""),
        ("host", "gateway.test, other.test"),
        ("content-length", "+5"),
        ("content-length", "5 "),
        ("content-length", "5, 5"),
        ("content-length", "0x5"),
        ("content-length", "-1"),
        ("content-length", ""),
        ("content-length", "99999999999999999999999"),
    ]
    .map(|(name, value)| with(name, value))
    .to_vec();
    for second in ["5", "6"] {
        let mut head = with("content-length", "5");
        head.push((b"content-length".to_vec(), second.into()));
        heads.push(head);
    }
    let mut head = without(":authority");
    head.push((b"host".to_vec(), b"a.test".to_vec()));
    head.push((b"host".to_vec(), b"b.test".to_vec()));
    heads.push(head);
    assert_all_refused(&heads);
}

#[test]
fn pseudo_headers_that_are_no_request_are_refused() {
    let mut heads: Vec<Fields> = Vec::new();
    for path in [
        "",
        " ",
        "/a b",
        "/a\r\nx: 1",
        "/a\0",
        "a",
        "a/b",
        "*",
        "http://evil.test/",
        "https://evil.test",
        "//evil.test/\\",
        "?x",
        "/\u{e9}",
        "/a\tb",
        "/ HTTP/1.1\r\nHost: evil",
        "evil.test:80",
        "/%00",
        "/../x",
        "/\x7f",
    ] {
        heads.push(replacing(":path", path));
    }
    for authority in [
        "",
        "user@a.test",
        "user:pw@a.test",
        "a b",
        "a.test\r\nx: 1",
        "a.test/path",
        "a..test",
        "a.test:x",
        "a.test:99999",
        "[::1",
        "a.test,b.test",
        "a.test#b",
        "a.test?b",
        "\u{e9}.test",
    ] {
        heads.push(replacing(":authority", authority));
    }
    for method in
        ["", "get", "Get", "GE T", "GET\r\nX: 1", "GET /evil HTTP/1.1", "CONNECT", "TRACE", "G(T"]
    {
        heads.push(replacing(":method", method));
    }
    for scheme in ["", "ht tp", "1http:"] {
        heads.push(replacing(":scheme", scheme));
    }
    for name in [":method", ":scheme", ":path", ":authority"] {
        heads.push(without(name));
        let mut twice = request("GET", "/");
        twice.push((name.into(), b"/".to_vec()));
        heads.push(twice);
        // Behind an ordinary field.
        let mut late = without(name);
        late.push((b"x-own".to_vec(), b"1".to_vec()));
        late.push((name.into(), b"GET".to_vec()));
        heads.push(late);
    }
    heads.push(with(":status", "200"));
    heads.push(with(":unknown", "1"));
    heads.push(with(":protocol", "websocket"));
    assert_all_refused(&heads);
}

#[test]
fn a_fragment_never_reaches_the_upstream() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream);
    let mut raw = RawHttp2::connect(gateway.address());
    // The library cuts it off, so that the gateway and the upstream see the same path.
    raw.headers(1, &replacing(":path", "/a#/../b"), true);
    let outcome = raw.outcome(1);
    let received = String::from_utf8_lossy(&upstream.received_bytes()).into_owned();
    assert!(!received.contains('#') && !received.contains("/b"), "{outcome:?} {received}");
    assert!(received.is_empty() || received.starts_with("GET /a HTTP/1.1\r\n"), "{received}");
}

/// Waits a little, so that wrongly forwarded bytes would have arrived.
fn received(upstream: &Upstream) -> String {
    sleep(std::time::Duration::from_millis(100));
    String::from_utf8_lossy(&upstream.received_bytes()).into_owned()
}

#[test]
fn a_body_that_contradicts_its_length_is_never_whole() {
    for (length, data, ends) in [
        ("5", &[&b"123456"[..]][..], true),
        ("5", &[b"123", b"456"], true),
        ("5", &[b"12345", b"GET /evil HTTP/1.1\r\n\r\n"], true),
        ("5", &[b"1234"], true),
        ("5", &[], true),
        ("0", &[b"GET /evil HTTP/1.1\r\nHost: a\r\n\r\n"], true),
        ("5", &[b"123456"], false),
    ] {
        let upstream = Upstream::hello();
        let gateway = start(&upstream);
        let mut raw = RawHttp2::connect(gateway.address());
        raw.headers(1, &with("content-length", length), false);
        for (index, part) in data.iter().enumerate() {
            let flags = u8::from(ends && index + 1 == data.len()) * END_STREAM;
            raw.frame(kind::DATA, flags, 1, part);
        }
        if data.is_empty() {
            raw.frame(kind::DATA, END_STREAM, 1, b"");
        }
        let outcome = raw.outcome(1);
        let received = received(&upstream);
        let what = format!("{length} {data:?}: {outcome:?} {received}");
        assert!(!received.contains("evil"), "{what}");
        if length == "0" {
            // A request without a body is complete before the first byte of it.
            assert!(received.is_empty() || received.ends_with("\r\n\r\n"), "{what}");
        } else {
            assert_refused(outcome, &what);
            let body = received.split("\r\n\r\n").nth(1).unwrap_or_default();
            assert!(
                body.len() <= 5 && upstream.request_count() <= usize::from(body.len() == 5),
                "{what}"
            );
        }
    }
}

#[test]
fn trailers_cannot_become_a_head() {
    for fields in [
        &[(":path", "/evil")][..],
        &[(":method", "GET"), (":path", "/evil"), (":authority", "evil.test")],
        &[("x-sum", "1\r\nx-evil: 1")],
        &[("x-sum", "1\0evil")],
        &[("X-Evil", "1")],
        &[("x:evil", "1")],
        &[("transfer-encoding", "evil")],
        &[("connection", "evil")],
        &[
            ("content-length", "5"),
            ("host", "evil"),
            ("x-forwarded-for", "evil"),
            ("cookie", "evil"),
        ],
    ] {
        let upstream = Upstream::hello();
        let gateway = start(&upstream);
        let mut raw = RawHttp2::connect(gateway.address());
        raw.headers(1, &request("POST", "/"), false);
        raw.frame(kind::DATA, 0, 1, b"hello");
        raw.headers(1, fields, true);
        let outcome = raw.outcome(1);
        let received = received(&upstream).to_ascii_lowercase();
        assert!(!received.contains("evil"), "{fields:?}: {outcome:?} {received}");
        let heads = received.matches(" http/1.1\r\n").count();
        assert!(heads <= 1, "{fields:?}: {received}");
        if fields.iter().any(|(name, _)| name.starts_with(':')) {
            // The library drops them; the request is complete without.
            continue;
        }
        if fields.len() == 1 {
            assert_refused(outcome, &format!("{fields:?}"));
            assert_eq!(upstream.request_count(), 0, "{fields:?}: {received}");
        }
    }
    // Trailers that do not end the stream.
    let upstream = Upstream::hello();
    let gateway = start(&upstream);
    let mut raw = RawHttp2::connect(gateway.address());
    raw.headers(1, &request("POST", "/"), false);
    raw.headers(1, &[("x-sum", "1")], false);
    assert_refused(raw.outcome(1), "trailers without an end");
    assert_eq!(upstream.request_count(), 0);
}

#[test]
fn frames_out_of_place_are_refused() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream);
    let whole = block(&request("GET", "/"));
    let cases: [(&str, Act<'_>); 6] = [
        ("DATA without a stream", &|raw| {
            raw.frame(kind::DATA, END_STREAM, 1, b"GET / HTTP/1.1\r\n\r\n");
        }),
        ("CONTINUATION without HEADERS", &|raw| {
            raw.frame(kind::CONTINUATION, 4, 1, &whole);
        }),
        ("another frame inside a header block", &|raw| {
            raw.frame(kind::HEADERS, 1, 1, &whole).frame(kind::DATA, 1, 1, b"x");
        }),
        ("CONTINUATION of another stream", &|raw| {
            raw.frame(kind::HEADERS, 1, 1, &whole).frame(kind::CONTINUATION, 4, 3, b"");
        }),
        ("an even stream", &|raw| {
            raw.frame(kind::HEADERS, 5, 2, &whole);
        }),
        ("a header block that is cut off", &|raw| {
            raw.frame(kind::HEADERS, 5, 1, &whole[..whole.len() - 3]);
        }),
    ];
    for (what, act) in cases {
        let mut raw = RawHttp2::connect(gateway.address());
        act(&mut raw);
        assert_refused(raw.outcome(1), what);
    }
    assert_eq!(upstream.received_bytes(), b"");
}
