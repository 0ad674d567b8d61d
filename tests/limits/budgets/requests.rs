use std::collections::HashMap;

use testkit::{
    backend::{MEMORY_AND_REDIS, MEMORY_BY_PROTOCOL_AND_REDIS, on_all_at_once},
    client::Client,
    gateway::Gateway,
    protocol::{AnyClient, PROTOCOLS},
    upstream::Upstream,
    yaml::fill,
};
use tidegate::clock::Clock;

use super::{NOW, post, used};

/// A route that counts by `model`, and one that reserves `max_tokens`.
fn rules(upstream: &Upstream) -> String {
    fill(
        "
        upstreams: {model: {targets: ['{upstream}']}}
        limits:
          by-model: {quota: 3, window: 1h, key: ['json:model']}
          tokens: {quota: 1000, window: 1h, key: [], cost: {estimate: 'json:options.max', actual: 'json:t'}}
        routes:
          - {name: rate-limit, match: {path: /rate_limit}, status: [tokens]}
          - {name: model, match: {path: /model}, upstream: model, limits: [by-model], max_inspect: 1KiB}
          - {name: tokens, match: {path: /tokens}, upstream: model, limits: [tokens], max_inspect: 1KiB}
          - {name: free, match: {path: /free}, upstream: model}
        ",
        [("upstream", upstream.target())],
    )
}

#[test]
fn requests_are_counted_by_a_member_of_their_body() {
    let upstream = Upstream::hello();
    let yaml = rules(&upstream);
    on_all_at_once(&MEMORY_BY_PROTOCOL_AND_REDIS, |backend| {
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        let mut clients: Vec<_> = (0..4).map(|n| fleet.connect(n)).collect();
        let mut left = |body: &str, n: usize| {
            let response = post(&mut clients[n % 4], "/model", body);
            assert!(matches!(response.status, 200 | 429), "{body}: {}", response.text());
            response.number("X-RateLimit-Remaining")
        };
        // Spellings of one value share a counter.
        assert_eq!(left(r#"{"model":"gpt"}"#, 0), 2);
        assert_eq!(left(r#" { "x": {"model":"other"}, "mod\u0065l" : "g\u0070t" } "#, 1), 1);
        assert_eq!(left(r#"{"text":"\"model\":\"other\"","model":"gpt"}"#, 2), 0);
        assert_eq!(left(r#"{"model":" gpt\t"}"#, 3), 0, "refused");
        assert_eq!(left(r#"{"model":"other"}"#, 0), 2);
        assert_eq!(left(r#"{"model":1}"#, 1), 2);
        assert_eq!(left(r#"{"model":1.0}"#, 2), 1);
        assert_eq!(left(r#"{"model":true}"#, 3), 2);
        // Without the member, and with `null`, the client's address is counted.
        assert_eq!(left("{}", 0), 2);
        assert_eq!(left(r#"{"model":null}"#, 1), 1);
        assert_eq!(left("[]", 2), 0);
    });
}

#[test]
fn the_body_is_forwarded_unchanged() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&rules(&upstream));
    let padding = "x".repeat(300_000);
    let long = format!("{{ \"model\" : \"gpt\",\r\n \"text\": \"{padding}\"}}");
    let mut client = Client::connect(gateway.address());
    let head =
        "POST /model HTTP/1.1\r\nHost: a\r\nContent-Type: application/json; charset=utf-8\r\n";
    for body in ["{\"model\":\"gpt\"}\n", &long] {
        client.send(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()));
        assert_eq!(client.read_response().status, 200);
        assert!(upstream.request_texts().last().unwrap().ends_with(body));
    }
    // In chunks, of which one ends within the member.
    client.send(format!("{head}Transfer-Encoding: chunked\r\n\r\n5\r\n{{\"mod\r\n"));
    client.send("8\r\nel\":\"g\"}\r\n0\r\n\r\n");
    assert_eq!(client.read_response().status, 200);
}

#[test]
fn bodies_that_limits_cannot_read_are_refused() {
    let upstream = Upstream::hello();
    let yaml = rules(&upstream);
    let padding = "x".repeat(2_000);
    let late = format!("{{\"x\":\"{padding}\",\"model\":\"gpt\",\"options\":{{\"max\":1}}}}");
    let json = "Content-Type: application/json\r\n";
    let cases = [
        ("/model", json, r#"{"model":"a","model":"b"}"#, 400, "`model` must be in"),
        ("/model", json, r#"{"model":"a","mod\u0065l":"a"}"#, 400, "`model` must be in"),
        ("/model", json, r#"{"model":"a","Model":"b"}"#, 400, "send only `model`"),
        ("/model", json, r#"{"model":{"a":1}}"#, 400, "a string, a number, true or false"),
        ("/model", json, "model=a", 400, "must be JSON"),
        ("/model", json, r#"{"model":"a""#, 400, "must be JSON"),
        ("/model", json, r#"{"model":"a"}{}"#, 400, "must be JSON"),
        ("/model", json, r#"{"model":"\ud800"}"#, 400, "must be JSON"),
        ("/model", "Content-Type: application/json; charset=utf-7\r\n", "{}", 400, "in UTF-8"),
        ("/model", "Content-Type: application/json;Charset=\"UTF-16\"\r\n", "{}", 400, "in UTF-8"),
        ("/model", "Content-Type: text/plain\r\n", r#"{"model":"a"}"#, 400, "content-type"),
        ("/model", "Content-Encoding: gzip\r\n", r#"{"model":"a"}"#, 415, "content-encoding"),
        ("/model", json, &late, 413, "within the first 1024 bytes"),
        ("/tokens", json, r#"{"options":{"max":"9"}}"#, 400, "must be a number"),
        ("/tokens", json, r#"{"options":{"max":9},"options":{}}"#, 400, "at most once"),
    ];
    on_all_at_once(&MEMORY_AND_REDIS, |backend| {
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        for (n, (path, headers, body, status, text)) in cases.into_iter().enumerate() {
            let mut client = fleet.connect(n);
            let response = client.ask("POST", path, headers, body);
            assert_eq!(response.status, status, "{path} {body}: {}", response.text());
            assert!(response.text().contains(text), "{body}: {}", response.text());
            assert!(response.header("X-RateLimit-Limit").is_none(), "nothing was charged");
        }
        assert_eq!(used(&fleet, "tokens"), 0);
        // Other routes take any body.
        assert_eq!(fleet.connect(0).ask("POST", "/free", "", "model=a").status, 200);
    });
    assert!(upstream.request_texts().iter().all(|text| text.starts_with("POST /free")));
}

#[test]
fn an_estimate_that_cannot_be_read_refuses_no_body() {
    let upstream = Upstream::hello();
    let yaml = fill(
        "
        upstreams: {model: {targets: ['{upstream}']}}
        limits:
          tokens:
            quota: 10000
            window: 1h
            key: []
            cost: {estimate: 'json:max', missing_estimate: 7, actual: 'json:t'}
          by-model: {quota: 100, window: 1h, key: ['json:model']}
        routes:
          - {name: rate-limit, match: {path: /rate_limit}, status: [tokens]}
          - {name: tokens, match: {path: /tokens}, upstream: model, limits: [tokens], max_inspect: 1KiB}
          - {name: model, match: {path: /model}, upstream: model, limits: [tokens, by-model], max_inspect: 1KiB}
        ",
        [("upstream", upstream.target())],
    );
    let padding = "x".repeat(100_000);
    let late = format!("{{\"x\":\"{padding}\",\"max\":1,\"max\":2}}");
    let long_text = format!("--boundary\r\n{padding}");
    let json = "Content-Type: application/json\r\n";
    let cases = [
        (json, &*late, 7),
        (json, "{}", 7),
        (json, "{\"max\":3}", 3),
        (json, "{\"max\":null}", 7),
        (json, "[1,2", 7),
        (json, "{\"max\":3,}", 7),
        (json, &long_text, 7),
        (json, "", 7),
        ("Content-Type: multipart/form-data; boundary=boundary\r\n", &long_text, 7),
        ("Content-Type: application/json; charset=utf-16\r\n", "{\"max\":3}", 7),
        ("Content-Type: application/json\r\nContent-Encoding: gzip\r\n", "\u{1f}", 7),
        ("", "model=a", 7),
    ];
    on_all_at_once(&MEMORY_BY_PROTOCOL_AND_REDIS, |backend| {
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        let mut expected = 0;
        for (n, (headers, body, cost)) in cases.into_iter().enumerate() {
            let response = fleet.connect(n).ask("POST", "/tokens", headers, body);
            assert_eq!(response.status, 200, "{headers}: {}", response.text());
            expected += cost;
            assert_eq!(used(&fleet, "tokens"), expected, "{headers}{body:.20}");
            let received = upstream.request_texts();
            assert!(received.iter().any(|text| text.ends_with(body)), "{headers}: unchanged");
        }
        let by_model = format!("{{\"model\":\"a\",\"x\":\"{padding}\",\"max\":1}}");
        let response = fleet.connect(0).ask("POST", "/model", json, &by_model);
        assert_eq!(response.status, 200, "the key's member is there: {}", response.text());
        expected += 7;
        assert_eq!(used(&fleet, "tokens"), expected);
        for body in ["{\"max\":1,\"max\":9}", "{\"max\":1,\"Max\":9}"] {
            let response = fleet.connect(0).ask("POST", "/tokens", json, body);
            assert_eq!(response.status, 400, "two readings: {body}");
        }
        assert_eq!(used(&fleet, "tokens"), expected);
    });
}

#[test]
fn a_longer_body_is_json_and_repeats_no_member_to_its_end() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&rules(&upstream));
    let padding = "x".repeat(400_000);
    let start = format!("{{\"options\":{{\"max\":1}},\"x\":\"{padding}\"").into_bytes();
    let ask = |end: &[u8], is_chunked: bool| {
        let mut client = Client::connect(gateway.address());
        let length = start.len() + end.len();
        let framing = if is_chunked {
            "Transfer-Encoding: chunked".to_owned()
        } else {
            format!("Content-Length: {length}")
        };
        client.send(format!(
            "POST /tokens HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n{framing}\r\n\r\n"
        ));
        if is_chunked {
            client.send(format!("{length:x}\r\n"));
        }
        client.send(&start);
        client.send(end);
        if is_chunked {
            client.send("\r\n0\r\n\r\n");
        }
        client.read_response().status
    };
    for end in [
        &b",\"options\":{\"max\":9}}"[..],
        b",\"Options\":{\"max\":9}}",
        // What lenient parsers skip.
        b",\"t\":NaN,\"options\":{\"max\":9}}",
        b",\"t\":[-Infinity],\"options\":{\"max\":9}}",
        b",\"t\":[/*\"*/],\"options\":{\"max\":9},\"u\":[/*\"*/]}",
        b",\"t\":[1 // \"\n],\"options\":{\"max\":9},\"u\":\"\"}",
        b",\"t\":['\"'],\"options\":{\"max\":9},\"u\":['\"']}",
        b"/**/,\"options\":{\"max\":9}}",
        b",,\"options\":{\"max\":9}}",
        b"}{\"options\":{\"max\":9}}",
        b",\"opt\xffions\":{\"max\":9}}",
        b"",
    ] {
        for is_chunked in [false, true] {
            assert_eq!(ask(end, is_chunked), 400, "{}", end.escape_ascii());
        }
    }
    assert_eq!(upstream.request_count(), 0, "the upstream got no whole request");
    for end in ["}", ",\"y\":[true,null,-1.5e+3,{\"options\":\"é\"}]} \n"] {
        for is_chunked in [false, true] {
            let status = ask(end.as_bytes(), is_chunked);
            assert_eq!(status, 200, "{end}");
        }
    }
    assert!(upstream.request_count() > 0);
}

/// A route for each preset whose requests can ask for several choices.
const CHOICES: &str = "
    upstreams: {model: {targets: ['{upstream}']}}
    limits:
      openai: {quota: 10000, window: 1h, key: [], cost: {preset: openai}}
      own: {quota: 10000, window: 1h, key: [], cost: {preset: openai, estimate: 'json:most'}}
      plain: {quota: 10000, window: 1h, key: [], cost: {estimate: 'json:max_tokens', actual: 'json:t'}}
      gemini: {quota: 10000, window: 1h, key: [], cost: {preset: gemini}}
      capped: {quota: 10000, window: 1h, key: [], cost: {preset: openai, max: 900}}
    routes:
      - {name: rate-limit, match: {path: /rate_limit}, status: [openai, own, plain, gemini, capped]}
      - {name: openai, match: {path: /openai}, upstream: model, limits: [openai], max_inspect: 1KiB}
      - {name: own, match: {path: /own}, upstream: model, limits: [own]}
      - {name: plain, match: {path: /plain}, upstream: model, limits: [plain]}
      - {name: gemini, match: {path: /gemini}, upstream: model, limits: [gemini]}
      - {name: capped, match: {path: /capped}, upstream: model, limits: [capped]}
    ";

#[test]
fn an_estimate_bounds_all_choices_of_a_response() {
    let upstream = Upstream::hello();
    let yaml = fill(CHOICES, [("upstream", upstream.target())]);
    let cases = [
        ("openai", r#"{"max_tokens":100}"#, 100),
        ("openai", r#"{"max_tokens":100,"n":8}"#, 800),
        ("openai", r#"{"max_tokens":100,"n":2,"best_of":5}"#, 500),
        ("openai", r#"{"n":8}"#, 8),
        ("openai", r#"{"max_tokens":10,"n":null}"#, 10),
        ("openai", r#"{"max_tokens":10,"n":-4}"#, 10),
        ("openai", r#"{"max_tokens":10,"n":1.5}"#, 20),
        ("own", r#"{"max_tokens":9,"most":7,"n":3}"#, 21),
        ("plain", r#"{"max_tokens":9,"n":3}"#, 9),
        ("gemini", r#"{"generationConfig":{"maxOutputTokens":50,"candidateCount":4}}"#, 200),
        ("gemini", r#"{"generation_config":{"max_output_tokens":50,"candidate_count":3}}"#, 150),
        ("capped", r#"{"max_tokens":1000,"n":8}"#, 900),
    ];
    on_all_at_once(&MEMORY_AND_REDIS, |backend| {
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        let mut client = fleet.connect(0);
        let mut used = HashMap::<&str, u64>::new();
        for (name, body, estimate) in cases {
            // The response reports no cost, so the estimate is what is charged.
            let response = post(&mut client, &format!("/{name}"), body);
            assert_eq!(response.status, 200, "{name} {body}: {}", response.text());
            let sum = used.entry(name).or_default();
            *sum += estimate;
            assert_eq!(response.number("x-ratelimit-used"), *sum, "{name} {body}");
        }
        for body in [r#"{"max_tokens":2000,"n":8}"#, r#"{"max_tokens":1e15,"n":1e15}"#] {
            let refused = post(&mut client, "/openai", body);
            assert_eq!((refused.status, refused.header("retry-after")), (429, None), "{body}");
        }
        for body in [r#"{"max_tokens":1000,"n":"8"}"#, r#"{"max_tokens":1,"n":[8]}"#] {
            let response = post(&mut client, "/openai", body);
            assert_eq!(response.status, 400, "{body}");
            assert!(response.text().contains("`n` in the request's body"), "{}", response.text());
        }
        assert_eq!(super::used(&fleet, "openai"), used["openai"], "refusals charge nothing");
    });
}

/// A client could otherwise hide a larger number behind the bytes that are read ahead.
#[test]
fn a_member_behind_the_bytes_that_are_read_ahead_is_refused() {
    let upstream = Upstream::hello();
    let yaml = fill(CHOICES, [("upstream", upstream.target())]);
    let gateway = Gateway::for_every_protocol_at(&yaml, Clock::manual(NOW));
    for protocol in PROTOCOLS {
        let ask = |length: usize, late: &str| {
            let body = format!(r#"{{"max_tokens":1,"n":2,"text":"{}"{late}}}"#, "x".repeat(length));
            post(&mut AnyClient::connect(protocol, &gateway), "/openai", &body)
        };
        for length in [2_000, 400_000] {
            for late in [r#","best_of":9"#, r#","max_completion_tokens":900"#] {
                let response = ask(length, late);
                assert_eq!(response.status, 400, "{late}: {}", response.text());
            }
        }
        assert_eq!(ask(400_000, "").status, 200);
    }
    assert_eq!(upstream.request_count(), PROTOCOLS.len(), "no other whole request arrived");
}

#[test]
fn a_slow_body_times_out() {
    let upstream = Upstream::hello();
    let yaml = format!("http: {{body_timeout: 5s}}\n{}", rules(&upstream));
    let gateway = Gateway::start_at(&yaml, Clock::simulated(NOW));
    let mut client = Client::connect(gateway.address());
    client.send("POST /model HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{");
    let (response, _) = gateway.while_time_passes(|| client.read_response());
    assert_eq!(response.status, 408);
}
