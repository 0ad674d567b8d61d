use http::HeaderName;
use tidegate_http1::HeadBounds;
use tidegate_template::TemplateValues;
use tidegate_trace::{SpanContext, TraceParent};

use super::*;
use crate::{Protocol, TlsNameSource, ViaField};

/// A server that is reached by this name.
fn target(host: &str, port: u16) -> Target {
    Target {
        address: ServerAddress::Tcp { host: host.into(), port },
        protocol: Protocol::Http1,
        tls: None,
        tls_name: TlsNameSource::Target,
        resolved: None,
        send_proxy: None,
    }
}

/// HTTP/2 gets the fields of the HTTP/1 `lines`, in the same order.
fn assert_both_versions_have(lines: &[u8], head: AttemptHead<'_>) {
    let mut fields = Fields::new();
    head.write_fields(&mut fields);
    let mut again = Vec::new();
    fields.write_to(&mut again, |_| true);
    assert_eq!(String::from_utf8_lossy(&again), String::from_utf8_lossy(lines));
}

/// A copy of the head has the same `lines`.
fn assert_owned_is_equal(lines: &[u8], head: &OutgoingHead<'_>, target: &Target) {
    let owned = head.to_owned_head();
    let mut copied = Vec::new();
    let head = &owned.head();
    AttemptHead { head, target, span_id: None }.write_fields(&mut copied);
    assert_eq!(String::from_utf8_lossy(&copied), String::from_utf8_lossy(lines));
}

/// The head of a request with these header lines.
fn head(lines: &[(&str, &str)]) -> RequestHead {
    let lines = lines.iter().map(|(name, value)| format!("{name}: {value}\r\n"));
    let text = format!("GET / HTTP/1.0\r\n{}\r\n", lines.collect::<String>());
    let bounds = HeadBounds { bytes: 1 << 16, headers: 100 };
    RequestHead::read(text.as_bytes(), bounds).unwrap().expect("a complete head").0
}

fn protected() -> ProtectedHeaders {
    ProtectedHeaders::new(&[HeaderName::from_static("x-api-key"), http::header::AUTHORIZATION])
}

fn written(lines: &[(&str, &str)], peer: &str, trusted: bool) -> Vec<String> {
    written_with(lines, peer, trusted, &HostRule::Preserve, None, &HeaderRules::default())
}

/// The fields of a request on a route with these rules.
fn written_with(
    lines: &[(&str, &str)],
    peer: &str,
    trusted: bool,
    host: &HostRule,
    prefix: Option<&str>,
    rules: &HeaderRules,
) -> Vec<String> {
    let client = head(lines);
    let mut written = Fields::new();
    rules.write(&TemplateValues::default(), &mut written);
    let head = OutgoingHead {
        client: &client,
        path: "/".into(),
        peer: &PeerAddress::new(peer.parse().unwrap(), "http"),
        is_trusted: trusted,
        request_id: b"id",
        fallback_host: &ServerAddress::Tcp { host: "origin.test".into(), port: 8080 },
        via: ViaField { name: "via", entry: "1.1 tidegate" },
        prefix,
        own_urls: Vec::new(),
        host,
        trace: None,
        changes: Some(RequestHeaderChanges { rules, written }),
        consumer: None,
        asks_for_identity: false,
        removed_credentials: None,
        protected: &protected(),
    };
    let target = target("server.test", 9000);
    let attempt = AttemptHead { head: &head, target: &target, span_id: None };
    let mut out = Vec::new();
    attempt.write_fields(&mut out);
    assert_both_versions_have(&out, attempt);
    assert_owned_is_equal(&out, &head, &target);
    let text = String::from_utf8(out).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn hop_by_hop_headers_are_dropped_and_protected_ones_kept() {
    let lines = written(
        &[
            ("connection", "close, X-Private, Authorization, X-Api-Key, Host"),
            ("connection", "x-forwarded-for, x-real-ip"),
            ("x-private", "1"),
            ("authorization", "a"),
            ("x-api-key", "k"),
            ("host", "h"),
            ("x-forwarded-for", "6.6.6.6"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("proxy-authorization", "p"),
            ("proxy-connection", "close"),
            ("expect", "100-continue"),
            ("content-length", "5"),
            ("accept", "*/*"),
        ],
        "192.0.2.9",
        false,
    );
    assert_eq!(
        lines,
        [
            "accept: */*",
            "authorization: a",
            "host: h",
            "via: 1.1 tidegate",
            "x-api-key: k",
            "x-forwarded-for: 192.0.2.9",
            "x-forwarded-host: h",
            "x-forwarded-proto: http",
            "x-request-id: id",
        ]
    );
}

#[test]
fn aliases_of_gateway_headers_are_dropped() {
    let lines = [
        ("x_forwarded_for", "6.6.6.6"),
        ("x-forwarded_proto", "https"),
        ("x_forwarded_host", "evil"),
        ("x_request_id", "claimed"),
        ("x_real_ip", "6.6.6.6"),
        ("content_length", "5"),
        ("transfer_encoding", "chunked"),
        ("Transfer---Encoding", "chunked"),
        ("Transfer___Encoding", "chunked"),
        ("content--length", "5"),
        ("x-_forwarded--for", "6.6.6.6"),
        ("x--real-ip", "6.6.6.6"),
        ("X.Forwarded.For", "6.6.6.6"),
        ("x_forwarded-port", "1"),
        ("x_api_version", "2"),
        ("some_other_thing", "1"),
    ];
    for trusted in [false, true] {
        assert_eq!(
            written(&lines, "192.0.2.9", trusted),
            [
                "host: origin.test:8080",
                "some_other_thing: 1",
                "via: 1.1 tidegate",
                "x-forwarded-for: 192.0.2.9",
                "x-forwarded-proto: http",
                "x-request-id: id",
                "x_api_version: 2",
            ]
        );
    }
}

/// Headers of a client that claims to be a proxy.
const CLAIMED: [(&str, &str); 10] = [
    ("host", "api.example.com"),
    ("x-forwarded-for", "6.6.6.6"),
    ("x-forwarded-proto", "https"),
    ("x-forwarded-host", "outer"),
    ("X-Forwarded-Port", "444"),
    ("x-forwarded-client-cert", "evil"),
    ("X-Real-IP", "6.6.6.6"),
    ("forwarded", "for=6.6.6.6"),
    ("via", "1.1 outer"),
    ("x-request-id", "claimed"),
];

#[test]
fn forwarding_headers_of_an_untrusted_peer_are_replaced() {
    assert_eq!(
        written(&CLAIMED, "192.0.2.9", false),
        [
            "host: api.example.com",
            "via: 1.1 outer",
            "via: 1.1 tidegate",
            "x-forwarded-for: 192.0.2.9",
            "x-forwarded-host: api.example.com",
            "x-forwarded-proto: http",
            "x-request-id: id",
        ]
    );
}

#[test]
fn forwarding_headers_of_a_trusted_proxy_are_extended() {
    assert_eq!(
        written(&CLAIMED, "2001:db8::1", true),
        [
            "X-Forwarded-Port: 444",
            "X-Real-IP: 6.6.6.6",
            "forwarded: for=6.6.6.6, for=\"[2001:db8::1]\";proto=http",
            "host: api.example.com",
            "via: 1.1 outer",
            "via: 1.1 tidegate",
            "x-forwarded-client-cert: evil",
            "x-forwarded-for: 6.6.6.6, 2001:db8::1",
            "x-forwarded-host: outer",
            "x-forwarded-proto: https",
            "x-request-id: id",
        ]
    );
    assert_eq!(
        written(&[], "2001:db8::1", true),
        [
            "host: origin.test:8080",
            "via: 1.1 tidegate",
            "x-forwarded-for: 2001:db8::1",
            "x-forwarded-proto: http",
            "x-request-id: id",
        ]
    );
}

#[test]
fn aliases_of_protected_headers_are_dropped() {
    let sent = [
        ("x_api-key", "other"),
        ("X.Api.Key", "other"),
        ("X--Api-Key", "other"),
        ("x__api_key", "other"),
        ("X-Api-Key", "k"),
    ];
    let lines = written(&sent, "192.0.2.9", false);
    assert!(lines.contains(&"X-Api-Key: k".to_owned()), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("other")), "{lines:?}");
}

#[test]
fn rules_of_a_route_replace_any_field() {
    let name = |name: &str| name.parse::<HeaderName>().unwrap();
    let field =
        |field: &str, text: &str| (name(field), tidegate_template::Template::parse(text).unwrap());
    let rules = HeaderRules::new(
        vec![name("x-forwarded-host"), name("x-gone")],
        vec![
            field("x-forwarded-for", "fixed"),
            field("x-request-id", "{host}"),
            field("x-user", "u"),
        ],
        vec![field("x-api-key", "second")],
    );
    let lines = [
        ("host", "h"),
        ("X_User", "a"),
        ("X-User", "b"),
        ("x-gone", "c"),
        ("x.gone", "d"),
        ("x-api-key", "k"),
    ];
    for (trusted, claimed) in [(false, false), (true, false), (true, true)] {
        let claims =
            [("x-forwarded-for", "6.6.6.6"), ("x-forwarded-host", "outer"), ("x-request-id", "c")];
        let lines = [&lines[..], if claimed { &claims } else { &[] }].concat();
        assert_eq!(
            written_with(&lines, "192.0.2.9", trusted, &HostRule::Name("n".into()), None, &rules),
            [
                "host: n",
                "via: 1.1 tidegate",
                "x-api-key: k",
                "x-api-key: second",
                "x-forwarded-for: fixed",
                "x-forwarded-proto: http",
                "x-user: u",
            ]
        );
    }
}

#[test]
fn the_stripped_prefix_follows_that_of_a_trusted_peer() {
    for (sent, trusted, wanted) in [
        (None, false, "/v1"),
        (Some("/evil"), false, "/v1"),
        (Some("/outer"), true, "/outer/v1"),
        (Some("/outer/"), true, "/outer/v1"),
        (Some("outer"), true, "/v1"),
    ] {
        let lines: Vec<_> = sent.map(|sent| ("x-forwarded-prefix", sent)).into_iter().collect();
        let rules = HeaderRules::default();
        let host = HostRule::Preserve;
        let lines = written_with(&lines, "192.0.2.9", trusted, &host, Some("/v1"), &rules);
        let prefix: Vec<_> = lines.iter().filter(|line| line.contains("prefix")).collect();
        assert_eq!(prefix, [&format!("x-forwarded-prefix: {wanted}")], "{sent:?} {trusted}");
    }
}

#[test]
fn each_attempt_has_its_own_host_and_span() {
    let client = head(&[("host", "client.test"), ("traceparent", "ignored")]);
    let context = SpanContext { trace_id: 1, span_id: 2 };
    let protected = protected();
    for (is_sampled, spans) in [(true, [Some(3), Some(4)]), (false, [None, None])] {
        let parent = TraceParent { context, is_sampled };
        let head = OutgoingHead {
            client: &client,
            path: "/".into(),
            peer: &PeerAddress::new([192, 0, 2, 1].into(), "http"),
            is_trusted: false,
            request_id: b"id",
            fallback_host: &ServerAddress::Tcp { host: "first.test".into(), port: 80 },
            via: ViaField { name: "via", entry: "1.1 tidegate" },
            prefix: None,
            own_urls: Vec::new(),
            host: &HostRule::Upstream,
            trace: Some(TraceHeader { parent, keeps_state: false }),
            changes: None,
            consumer: None,
            asks_for_identity: false,
            removed_credentials: None,
            protected: &protected,
        };
        for (span_id, host) in spans.into_iter().zip(["a.test:81", "b.test:82"]) {
            let (name, port) = host.split_once(':').unwrap();
            let target = target(name, port.parse().unwrap());
            let mut fields = Fields::new();
            AttemptHead { head: &head, target: &target, span_id }.write_fields(&mut fields);
            assert_eq!(fields.get_all("host").collect::<Vec<_>>(), [host.as_bytes()]);
            let sent = TraceParent::parse(fields.get("traceparent").unwrap()).unwrap();
            assert_eq!(sent.context.span_id, span_id.unwrap_or(2));
            assert_eq!((sent.context.trace_id, sent.is_sampled), (1, is_sampled));
        }
    }
}
