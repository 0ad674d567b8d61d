use std::io::Write as _;

use bytes::Bytes;
use h2::server::Builder;
use http::{HeaderMap, HeaderValue};
use testkit::{
    backend::{Fleet, MEMORY_AND_REDIS, on_all_at_once},
    gateway::Gateway,
    http2_client::{Http2Client, request},
    http2_upstream::Http2Upstream,
    protocol::{AnyClient, PROTOCOLS, Protocol},
    upstream::Upstream,
    yaml::fill,
};
use tidegate::clock::{Clock, ms};

use super::{JSON, NOW, chunked, plain, wait_for_used};

const TE: &str = "TE: trailers\r\n";

/// Answers `/chunked/N` with N tokens in chunks and a trailer, `/length/N` with a length, and
/// `/silent` without tokens.
fn upstream() -> Upstream {
    Upstream::with_handler(|request, socket| {
        let text = String::from_utf8_lossy(request);
        let path = text.split(' ').nth(1).unwrap_or_default();
        let tokens: Option<u64> = path.rsplit('/').next().and_then(|number| number.parse().ok());
        let usage = tokens
            .map_or_else(String::new, |tokens| format!("\"usage\":{{\"total_tokens\":{tokens}}}"));
        let body = format!("{{{usage}}}");
        let response = if path.starts_with("/length") {
            plain(JSON, body.as_bytes())
        } else {
            let whole = chunked(&[&body[..1], &body[1..]]);
            let end = whole.len() - 2;
            [&whole[..end], b"X-Sum: 7\r\nX-RateLimit-Remaining: 999\r\n\r\n"].concat()
        };
        socket.write_all(&response).is_ok()
    })
}

/// The head's fields and the trailers of a response, in lower case.
fn ask(client: &mut AnyClient, path: &str, headers: &str) -> (String, String) {
    client.start("GET", path, headers, false);
    let head = client.read_head().head.to_ascii_lowercase();
    let (_, trailers) = client.read_chunked().unwrap_or_else(|| panic!("no body of {path}"));
    (head, trailers)
}

/// The number of a field in `lines`.
fn number(lines: &str, name: &str) -> u64 {
    let line = lines.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let value = line.unwrap_or_else(|| panic!("no {name} in {lines}"));
    value.trim().parse().unwrap_or_else(|_| panic!("{value} is no number"))
}

const RULES: &str = "
    headers: {standard: draft-11}
    upstreams: {model: {targets: ['{upstream}']}}
    limits:
      tokens:
        quota: 1000
        window: 1h
        key: []
        algorithm: {algorithm}
        cost: {estimate: 50, actual: 'json:usage.total_tokens'}
      calls: {quota: 1000000, window: 1m, key: []}
    routes:
      - {name: rate-limit, match: {path: /rate_limit}, status: [tokens]}
      - {name: plain, match: {path: '/chunked/plain'}, upstream: model, limits: [calls]}
      - {name: all, match: {path: '/{*rest}'}, upstream: model, limits: [tokens, calls]}
    ";

fn check_number(fleet: &Fleet, lines: &str, used: u64) {
    assert_eq!(number(lines, "x-ratelimit-limit"), 1000, "{lines}");
    assert_eq!(number(lines, "x-ratelimit-used"), used, "{lines}");
    assert_eq!(number(lines, "x-ratelimit-remaining"), 1000_u64.saturating_sub(used), "{lines}");
    assert!(lines.contains("x-ratelimit-resource: tokens"), "{lines}");
    let is_draft = |line: &str| line.starts_with("ratelimit");
    assert!(!lines.lines().any(is_draft), "the draft forbids it in trailers: {lines}");
    wait_for_used(fleet, "tokens", used);
    let now = fleet.get("/rate_limit", "").json();
    assert_eq!(number(lines, "x-ratelimit-reset"), now["resources"]["tokens"]["reset"], "{now}");
}

#[test]
fn trailers_have_the_settled_numbers() {
    let upstream = upstream();
    for algorithm in ["sliding_window", "sliding_log", "fixed_window", "token_bucket"] {
        let yaml = fill(RULES, [("upstream", &*upstream.target()), ("algorithm", algorithm)]);
        on_all_at_once(&MEMORY_AND_REDIS, |backend| {
            let fleet = backend.start(&yaml, &Clock::manual(NOW));
            let mut used = 0;
            for protocol in PROTOCOLS {
                let mut client = AnyClient::connect(protocol, &fleet.gateways[0]);
                for (path, cost) in [("/chunked/30", 30), ("/chunked/90", 90), ("/silent", 50)] {
                    let (head, trailers) = ask(&mut client, path, TE);
                    assert_eq!(number(&head, "x-ratelimit-used"), used + 50, "{head}");
                    used += cost;
                    check_number(&fleet, &trailers, used);
                    assert!(trailers.contains("x-sum: 7"), "{trailers}");
                    assert_eq!(trailers.matches("x-ratelimit-remaining").count(), 1, "{trailers}");
                    let announced = "trailer: x-ratelimit-limit, x-ratelimit-remaining, \
                        x-ratelimit-used, x-ratelimit-reset, x-ratelimit-resource\r\n";
                    assert!(head.contains("\r\nratelimit: \"tokens\";r="), "{head}");
                    assert_eq!(head.contains(announced), !protocol.is_http2(), "{head}");
                }
            }
        });
    }
}

#[test]
fn an_overdraft_leaves_nothing_in_trailers() {
    let upstream = upstream();
    let yaml = fill(RULES, [("upstream", &*upstream.target()), ("algorithm", "fixed_window")]);
    on_all_at_once(&MEMORY_AND_REDIS, |backend| {
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        let mut client = AnyClient::connect(Protocol::Http1, &fleet.gateways[0]);
        let (_, trailers) = ask(&mut client, "/chunked/1234", TE);
        check_number(&fleet, &trailers, 1234);
        let mut client = AnyClient::connect(Protocol::Http2, &fleet.gateways[0]);
        let refused = client.get("/chunked/1", TE);
        assert_eq!(refused.status, 429);
    });
}

/// One wrong number of an upstream must not lock its caller out for longer than ten windows and
/// one.
#[test]
fn an_absurd_cost_leaves_a_debt_of_ten_quotas() {
    let upstream = Upstream::with_handler(|request, socket| {
        let is_absurd = request.starts_with(b"GET /absurd ");
        let body =
            format!("{{\"usage\":{{\"total_tokens\":{}}}}}", if is_absurd { "1e308" } else { "1" });
        socket.write_all(&chunked(&[&body])).is_ok()
    });
    for algorithm in ["sliding_window", "sliding_log", "fixed_window", "token_bucket"] {
        let yaml = fill(RULES, [("upstream", &*upstream.target()), ("algorithm", algorithm)]);
        on_all_at_once(&MEMORY_AND_REDIS, |backend| {
            let clock = Clock::manual(NOW);
            let fleet = backend.start(&yaml, &clock);
            let mut client = AnyClient::connect(Protocol::Http1, &fleet.gateways[0]);
            let (_, trailers) = ask(&mut client, "/absurd", TE);
            check_number(&fleet, &trailers, 11_000);
            assert_eq!(client.get("/plain", TE).status, 429, "{algorithm}");
            clock.set(NOW + ms(11 * 3_600_000));
            assert_eq!(client.get("/plain", TE).status, 200, "{algorithm}");
        });
    }
}

/// A bucket refills while a response is sent.
#[test]
fn trailers_of_a_long_response_show_the_bucket_at_its_end() {
    let clock = Clock::manual(NOW);
    let moved = clock.clone();
    let upstream = Upstream::with_handler(move |_, socket| {
        moved.set(NOW + ms(360_000));
        socket.write_all(&chunked(&["{\"usage\":{\"total_tokens\":500}}"])).is_ok()
    });
    let yaml = fill(RULES, [("upstream", &*upstream.target()), ("algorithm", "token_bucket")]);
    let gateway = Gateway::for_every_protocol_at(&yaml, clock);
    let mut client = AnyClient::connect(Protocol::Http1, &gateway);
    let (_, trailers) = ask(&mut client, "/chunked", TE);
    // A tenth of an hour gives a tenth of the quota back.
    assert_eq!(number(&trailers, "x-ratelimit-used"), 400, "{trailers}");
    assert_eq!(
        number(&trailers, "x-ratelimit-reset"),
        NOW.as_unix_ms() / 1_000 + 364,
        "{trailers}"
    );
}

#[test]
fn responses_without_room_for_trailers_have_none() {
    let upstream = upstream();
    let yaml = fill(RULES, [("upstream", &*upstream.target()), ("algorithm", "fixed_window")]);
    let gateway = Gateway::for_every_protocol_at(&yaml, Clock::manual(NOW));
    let has_own = |text: &str| text.contains("ratelimit");
    for protocol in PROTOCOLS {
        let mut client = AnyClient::connect(protocol, &gateway);
        // Without settled costs.
        let (head, trailers) = ask(&mut client, "/chunked/plain", TE);
        assert!(!head.contains("\r\ntrailer:") && !has_own(&trailers), "{head}\n{trailers}");
        assert!(trailers.contains("x-sum: 7"), "{trailers}");
        if protocol.is_http2() {
            // HTTP/2 needs no `TE`, and a body with a length may have trailers.
            let (head, trailers) = ask(&mut client, "/length/20", "");
            assert!(head.contains("content-length:"), "{head}");
            assert!(has_own(&trailers), "{trailers}");
            continue;
        }
        for te in ["", "TE: gzip;q=1\r\n", "TE: x-trailers\r\n"] {
            let (head, trailers) = ask(&mut client, "/chunked/20", te);
            assert!(!head.contains("\r\ntrailer:") && !has_own(&trailers), "{head}\n{trailers}");
            assert!(trailers.contains("x-sum: 7"), "{trailers}");
        }
        let (head, trailers) = ask(&mut client, "/chunked/20", "TE: gzip, Trailers\r\n");
        assert!(head.contains("\r\ntrailer:") && has_own(&trailers), "{head}\n{trailers}");
        let sized = client.get("/length/20", TE);
        assert_eq!(sized.body.len() as u64, sized.number("content-length"));
        assert_eq!(sized.header("trailer"), None);
    }
}

#[test]
fn trailers_follow_the_rules_for_the_headers() {
    let upstream = upstream();
    let yaml = fill(
        "
        headers: {families}
        upstreams: {model: {targets: ['{upstream}']}, own: {respond: {body: hello}}}
        limits:
          bytes: {quota: 1000, window: 1h, key: [], cost: {estimate: 9, actual: bytes}}
          answered: {quota: 1000, window: 1h, key: [], cost: {estimate: 9, actual: 'header:content-type'}}
          watching: {quota: 1000, window: 1h, key: [], enforce: false, cost: {actual: bytes}}
        routes:
          - {name: own, match: {path: /own}, upstream: own, limits: [bytes]}
          - {name: answered, match: {path: /chunked/1}, upstream: model, limits: [answered]}
          - {name: watching, match: {path: /chunked/2}, upstream: model, limits: [watching]}
          - name: all
            match: {path: '/{*rest}'}
            upstream: model
            limits: [bytes]
            headers: {response: {remove: [x-ratelimit-used, x-ratelimit-limit]}}
            compress: {min_size: 1B, types: ['*/*', 'application/json']}
        ",
        [("upstream", &*upstream.target())],
    );
    for (families, expected) in [
        ("{x_ratelimit: true}", "x-ratelimit-remaining, x-ratelimit-reset, x-ratelimit-resource"),
        ("{x_ratelimit: false, standard: draft-11}", ""),
        ("{x_ratelimit: false}", ""),
    ] {
        let yaml = yaml.replace("headers: {families}", &format!("headers: {families}"));
        let gateway = Gateway::for_every_protocol_at(&yaml, Clock::manual(NOW));
        let mut client = AnyClient::connect(Protocol::Http1, &gateway);
        for path in ["/chunked/1", "/chunked/2"] {
            let (head, trailers) = ask(&mut client, path, TE);
            assert!(
                !head.contains("\r\ntrailer:") && !trailers.contains("ratelimit"),
                "{trailers}"
            );
        }
        let (head, trailers) = ask(&mut client, "/chunked/30", TE);
        let announced = head.lines().find_map(|line| line.strip_prefix("trailer: "));
        assert_eq!(announced.unwrap_or_default(), expected);
        let names = trailers.lines().filter_map(|line| line.split(": ").next());
        let own: Vec<_> = names.filter(|name| name.contains("ratelimit")).collect();
        assert_eq!(own.join(", "), expected, "{trailers}");
        // The bytes of the body: {"usage":{"total_tokens":30}}
        let left = "x-ratelimit-remaining: 971";
        assert!(expected.is_empty() || trailers.contains(left), "{trailers}");
        // The gateway's own body.
        let mut http2 = Http2Client::connect(Protocol::Http2.address(&gateway));
        let mut exchange = http2.start(request("GET", "/own", ""), true).expect("a request");
        let body = exchange.finish().expect("a response").body;
        assert_eq!((body, exchange.trailers.is_some()), (b"hello".to_vec(), !expected.is_empty()));
    }
}

#[test]
fn a_window_that_ended_meanwhile_is_not_reported() {
    let yaml = "
        upstreams: {model: {targets: ['{upstream}']}}
        limits:
          short: {algorithm: fixed_window, quota: 100, window: 1s, key: [], cost: {actual: bytes}}
          long: {algorithm: fixed_window, quota: 1000, window: 1h, key: [], cost: {actual: bytes}}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: model, limits: [short, long]}
        ";
    let clock = Clock::manual(NOW);
    let moved = clock.clone();
    let upstream = Upstream::with_handler(move |_, socket| {
        moved.set(NOW + ms(1_500));
        socket.write_all(&chunked(&["0123456789"])).is_ok()
    });
    let yaml = fill(yaml, [("upstream", &*upstream.target())]);
    let gateway = Gateway::for_every_protocol_at(&yaml, clock);
    let mut client = AnyClient::connect(Protocol::Http1, &gateway);
    let (head, trailers) = ask(&mut client, "/", TE);
    assert!(head.contains("x-ratelimit-resource: short"), "{head}");
    assert!(trailers.contains("x-ratelimit-resource: long"), "{trailers}");
    assert_eq!(number(&trailers, "x-ratelimit-remaining"), 990, "{trailers}");
}

#[test]
fn the_trailers_of_grpc_are_kept() {
    let upstream = Http2Upstream::with_handler(Builder::new(), |mut exchange| async move {
        if exchange.read_body().await.is_err() {
            return;
        }
        let is_unary = exchange.request.uri.path().ends_with("/Ask");
        let mut stream = exchange.start(200, &[("content-type", "application/grpc")]);
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        trailers.insert("grpc-message", HeaderValue::from_static("done"));
        if is_unary {
            let _ = stream.send_data(Bytes::from_static(b"0123456789"), false);
        }
        let _ = stream.send_trailers(trailers);
    });
    let yaml = fill(
        "
        upstreams: {grpc: {targets: ['{upstream}'], protocol: http2}}
        limits: {bytes: {quota: 1000, window: 1h, key: [], cost: {estimate: 50, actual: bytes}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: grpc, limits: [bytes]}]
        ",
        [("upstream", &*upstream.target())],
    );
    let gateway = Gateway::for_every_protocol_at(&yaml, Clock::manual(NOW));
    let mut client = Http2Client::connect(Protocol::Http2.address(&gateway));
    for (path, used) in [("/test.Test/Ask", 10), ("/test.Test/Nothing", 10)] {
        let headers = "Content-Type: application/grpc\r\nTE: trailers\r\n";
        let mut exchange = client.start(request("POST", path, headers), false).expect("a request");
        exchange.send(b"\0\0\0\0\0", true).expect("sent");
        assert_eq!(exchange.finish().expect("a response").status, 200);
        let trailers = exchange.trailers.expect("trailers");
        assert_eq!(
            (&trailers["grpc-status"], &trailers["grpc-message"]),
            (&"0".parse().expect("a value"), &"done".parse().expect("a value"))
        );
        assert_eq!(trailers["x-ratelimit-used"], used.to_string(), "{path}");
        assert_eq!(trailers["x-ratelimit-remaining"], (1000 - used).to_string(), "{path}");
    }
}
