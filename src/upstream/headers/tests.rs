use super::*;

fn headers(lines: &[(&str, &str)]) -> HeaderMap {
    let lines = lines.iter();
    lines
        .map(|(name, value)| {
            (name.parse::<HeaderName>().unwrap(), value.parse::<HeaderValue>().unwrap())
        })
        .collect()
}

fn names(headers: &HeaderMap) -> Vec<&str> {
    let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    names
}

fn written(lines: &[(&str, &str)], from: &str, trusted: bool) -> Vec<String> {
    let from = Forwarding::new(from.parse().unwrap());
    let target = Target { host: "origin.test".into(), port: 8080 };
    let id = HeaderValue::from_static("id");
    let mut out = Vec::new();
    write_forwarded(&mut out, &headers(lines), &from, trusted, &id, &target, |name| {
        name == "x-api-key"
    });
    let text = String::from_utf8(out).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn connection_headers_go_and_what_counts_a_client_stays() {
    let lines = written(
        &[
            ("connection", "close, X-Private, Authorization, X-Api-Key, Host"),
            ("connection", "x-forwarded-for"),
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
            ("transfer-encoding", "chunked"),
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
fn an_underscore_does_not_make_another_header() {
    let lines = [
        ("x_forwarded_for", "6.6.6.6"),
        ("x-forwarded_proto", "https"),
        ("x_forwarded_host", "evil"),
        ("x_request_id", "claimed"),
        ("content_length", "5"),
        ("transfer_encoding", "chunked"),
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

const CLAIMED: [(&str, &str); 7] = [
    ("host", "api.example.com"),
    ("x-forwarded-for", "6.6.6.6"),
    ("x-forwarded-proto", "https"),
    ("x-forwarded-host", "outer"),
    ("forwarded", "for=6.6.6.6"),
    ("via", "1.1 outer"),
    ("x-request-id", "claimed"),
];

#[test]
fn an_untrusted_peer_cannot_say_who_it_is() {
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
fn a_trusted_proxys_word_is_carried_on() {
    assert_eq!(
        written(&CLAIMED, "2001:db8::1", true),
        [
            "forwarded: for=6.6.6.6, for=\"[2001:db8::1]\";proto=http",
            "host: api.example.com",
            "via: 1.1 outer",
            "via: 1.1 tidegate",
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
fn trailers_cannot_smuggle_a_head() {
    let map = headers(&[("x-checksum", "1"), ("authorization", "a"), ("content-length", "3")]);
    let frame = clean_trailers(Frame::trailers(map));
    assert_eq!(names(frame.trailers_ref().unwrap()), ["x-checksum"]);
}
