//! `tidegate explain`: what it prints is what a live gateway does.

/// Bodies that limits read.
mod bodies;
/// Calls to the rate limit service.
mod calls;
/// Conditions, changes and decisions of routes.
mod routes;
/// The text for people, and the sources of what it shows.
mod text;

use serde_json::Value;
use testkit::{
    client::{Client, Response},
    gateway::Gateway,
    protocol::Protocol,
    upstream::Upstream,
    yaml::fill,
};

use testkit::commands::{configuration, explained};

const RULES: &str = "
client: {trusted_proxies: [127.0.0.1/32], token: [header:authorization, cookie:session]}
http: {max_head: 8KiB, max_headers: 10}
headers: {standard: draft-11}
upstreams:
  origin: {targets: ['{target}']}
  hello: {respond: {status: 203, body: hello}}
limits:
  token: {quota: 9, window: 10h, key: [token], cost: 2}
  team: {quota: 5, window: 10h, key: ['header:x-team', 'query:k', 'path:id']}
routes:
  - {name: items, match: {host: api.test, path: '/v1/items/{id}'}, upstream: origin, limits: [token, team], strip_prefix: /v1}
  - {name: write, match: {path: /write, methods: [PUT, POST]}, upstream: origin, limits: [token], max_body: 10B}
  - {name: wide, match: {path: '/wide/{*rest}'}, upstream: origin, strip_prefix: /wide}
  - {name: hello, match: {path: /hello}, upstream: hello, limits: [token]}
  - {name: below, match: {path_prefix: '/below'}, upstream: origin, strip_prefix: /below}
";

fn rules(upstream: &Upstream) -> String {
    fill(RULES, [("target", upstream.target())])
}

/// Requests: method, URL, and headers as `-H` takes them.
const REQUESTS: [(&str, &str, &[&str]); 43] = [
    ("GET", "http://api.test/v1/items/7?x=1", &[]),
    ("GET", "HTTP://API.test.:8080/v1//items/./%37", &["x-team: a"]),
    ("DELETE", "http://api.test/v1/items/a%2fb?k=%61", &["Origin: http://web.test"]),
    ("GET", "http://api.test/v1/items/a%20b?k=1&k=2", &[]),
    ("GET", "http://api.test/v1/items/7?k=1&k=1", &[]),
    ("GET", "http://api.test/v1/items/7", &["x-team: a", "X-Team: b"]),
    ("GET", "http://api.test/v1/items/7", &["Cookie: session=a; session=b"]),
    ("GET", "http://other.test/v1/items/7", &[]),
    ("GET", "http://other.test/v1/items/7", &["Host: api.test"]),
    ("GET", "/v1/items/7", &["host: api.test:99"]),
    ("GET", "http://api.test", &[]),
    ("GET", "http://api.test?x", &[]),
    ("GET", "http://api.test/wide/#fragment", &[]),
    ("GET", "http://api.test/wide", &[]),
    ("GET", "http://api.test/wide/", &[]),
    ("GET", "http://api.test/wide/a/../b/c/.?q=/../", &[]),
    ("PATCH", "http://api.test/write", &[]),
    ("POST", "http://api.test/write", &["Content-Length: 0"]),
    ("POST", "http://api.test/write", &["Content-Length: 11"]),
    ("POST", "http://api.test/write", &["Content-Length: 1", "Transfer-Encoding: chunked"]),
    ("PUT", "http://api.test/write", &["Expect: nonsense"]),
    ("TRACE", "http://api.test/hello", &[]),
    ("GET", "http://api.test/below", &[]),
    ("GET", "http://api.test/below/?x", &[]),
    ("GET", "http://api.test/below/a/b", &[]),
    ("GET", "http://api.test/belowx", &[]),
    ("GET", "http://api.test/hello", &[]),
    ("get", "http://api.test/hello", &[]),
    ("G(T", "http://api.test/hello", &[]),
    ("GET", "http://api.test/hello", &["Broken : 1"]),
    ("GET", "http://api.test/hello", &["no colon"]),
    ("GET", "http://api.test/hello", &["a: b\u{1}"]),
    ("GET", "http://api.test/hello", &["Host: a", "Host: b"]),
    ("GET", "http://a!b/hello", &[]),
    ("GET", "http://[::1]:80/hello", &[]),
    ("GET", "http://[::1/hello", &[]),
    ("GET", "http://api.test/a%zz", &[]),
    ("GET", "http://api.test/../x", &[]),
    ("GET", "http://api.test/a%00", &[]),
    ("GET", "http://api.test/<b>", &[]),
    ("GET", "http://api.test/a b", &[]),
    ("GET", "http://api.test/{b}|", &[]),
    (
        "GET",
        "http://api.test/hello",
        &["a: 1", "b: 1", "c: 1", "d: 1", "e: 1", "f: 1", "g: 1", "h: 1", "i: 1", "j: 1"],
    ),
];

/// The bytes that a client sends for the same request.
fn request_text(method: &str, url: &str, headers: &[&str]) -> String {
    let rest = url.split('#').next().unwrap_or_default();
    let rest = rest.get(7..).filter(|_| !rest.starts_with('/')).unwrap_or(rest);
    let slash = rest.find(['/', '?']).unwrap_or(rest.len());
    let (host, target) = rest.split_at(slash);
    let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
    let mut text = format!("{method} {target} HTTP/1.1\r\n");
    if !headers.iter().any(|line| line.to_ascii_lowercase().starts_with("host:")) {
        text.extend(["Host: ", host, "\r\n"]);
    }
    text.extend(headers.iter().flat_map(|line| [*line, "\r\n"]));
    text + "\r\n"
}

fn assert_explanation_matches(
    explanation: &Value,
    response: &Response,
    text: &str,
    upstream: &Upstream,
) {
    match explanation["status"].as_u64() {
        None => {
            assert_eq!(response.status, 200, "{text}{explanation}");
            let received = upstream.request_texts().pop().expect("the upstream has received it");
            let (method, target) = (&explanation["method"], &explanation["forwarded"]);
            let line = format!(
                "{} {} HTTP/1.1\r\n",
                method.as_str().expect("a method"),
                target.as_str().expect("a target")
            );
            assert!(received.starts_with(&line), "{line} {received}");
        }
        Some(status) => assert_eq!(u64::from(response.status), status, "{text}{explanation}"),
    }
    if let Some(reason) = explanation["reason"].as_str() {
        assert_eq!(response.json()["detail"], reason, "{text}");
    }
    let headers = explanation["headers"].as_object().expect("headers");
    for (name, value) in headers {
        // These depend on the time, and the two requests are not simultaneous.
        if !matches!(&**name, "x-ratelimit-reset" | "ratelimit") {
            assert_eq!(response.header(name), value.as_str(), "{name} {text}");
        }
    }
    for name in ["x-ratelimit-limit", "ratelimit-policy", "allow", "access-control-expose-headers"]
    {
        assert_eq!(response.header(name).is_some(), headers.contains_key(name), "{name} {text}");
    }
}

/// True if an HTTP/2 library sends this request.
fn is_valid_in_http2(method: &str, url: &str, headers: &[&str]) -> bool {
    let fields = headers.iter().all(|line| {
        let (name, value) = line.split_once(':').unwrap_or((" ", ""));
        http::HeaderName::from_bytes(name.as_bytes()).is_ok()
            && http::HeaderValue::from_str(value.trim()).is_ok()
            && name != "Transfer-Encoding"
            // The name in `:authority`, which the library sends instead.
            && !name.eq_ignore_ascii_case("host")
    });
    let authority = url.get(7..).unwrap_or_default().split(['/', '?']).next().unwrap_or_default();
    let is_host = authority.parse::<http::uri::Authority>().is_ok();
    fields && is_host && method.parse::<http::Method>().is_ok() && url.parse::<http::Uri>().is_ok()
}

#[test]
fn explanation_matches_a_live_gateway() {
    let upstream = Upstream::hello();
    let (config, _directory) = configuration(&rules(&upstream));
    let long = format!("http://api.test/{}", "a".repeat(8_200));
    let large = format!("a: {}", "a".repeat(8_200));
    let more: [(&str, &str, &[&str]); 2] =
        [("GET", &long, &[]), ("GET", "http://api.test/hello", &[&large])];
    let (mut routes, mut over_http2) = (Vec::new(), 0);
    for (number, (method, url, headers)) in REQUESTS.into_iter().chain(more).enumerate() {
        // A new gateway for each request, so that no counter has usage.
        let gateway = Gateway::for_every_protocol(&rules(&upstream));
        let address = format!("X-Forwarded-For: 192.0.2.{number}");
        let has_room = headers.len() < 10;
        let own = ["Authorization: Bearer t", &*address].into_iter().filter(|_| has_room);
        let headers: Vec<&str> = headers.iter().copied().chain(own).collect();
        let explanation = explained(&config, method, url, &headers);
        let text = request_text(method, url, &headers);
        let mut client = Client::connect(gateway.address());
        let response = client.send(&text).read_response();
        assert_explanation_matches(&explanation, &response, &text, &upstream);
        if is_valid_in_http2(method, url, &headers) {
            // With the quotas unused again.
            let gateway = Gateway::for_every_protocol(&rules(&upstream));
            let lines: Vec<_> = headers.iter().map(|line| format!("{line}\r\n")).collect();
            let url = url.split('#').next().unwrap_or_default();
            // A length without a body is malformed: nothing of it is sent before the response.
            let announced =
                |line: &&str| line.starts_with("Content-Length") && !line.ends_with(" 0");
            let has_body = headers.iter().any(announced);
            let mut client = Protocol::Http2.connect(&gateway);
            let response = client.start(method, url, lines.concat(), has_body).read_response();
            assert_explanation_matches(&explanation, &response, &text, &upstream);
            over_http2 += 1;
        }
        routes.push(explanation["route"].as_str().unwrap_or("none").to_owned());
    }
    for name in ["items", "write", "wide", "hello", "none"] {
        assert!(routes.iter().any(|route| route == name), "{name}: {routes:?}");
    }
    assert!(over_http2 > 20, "{over_http2}");
}
