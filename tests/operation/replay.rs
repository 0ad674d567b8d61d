use std::{collections::BTreeMap, fmt::Write, fs};
use testkit::commands::run;

use testkit::{client::Client, gateway::Gateway, random::SplitMix64, upstream::Upstream};
use tidegate::clock::{Clock, StoreTime, ms};

use testkit::log_lines::read_lines;

const START: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

/// The number of requests, and of log lines.
const REQUESTS: usize = 4_000;

/// Several routes, and limits by every key that a log contains.
fn rules(upstream: &Upstream, log: &str) -> String {
    format!(
        "access_log: {log}
workers: 1
client: {{trusted_proxies: [127.0.0.1/32], token: [header:authorization, cookie:session]}}
upstreams:
  origin: {{targets: [{}]}}
  hello: {{respond: {{body: hello}}}}
limits:
  address: {{quota: 9, window: 10s, key: [client_ip]}}
  token: {{quota: 7, window: 20s, resolution: 4, key: [token]}}
  item: {{quota: 30, window: 1m, key: ['path:id', method]}}
  route: {{quota: 40, window: 10s, resolution: 1, key: [route, token]}}
  all: {{quota: 40, window: 10s, cost: 2, key: []}}
  host: {{quota: 50, window: 5s, resolution: 5, key: [host, path]}}
routes:
  - {{name: items, match: {{path: '/items/{{id}}'}}, upstream: origin, limits: [address, token, item, route, all]}}
  - {{name: write, match: {{path: '/items/{{id}}', methods: [PUT, POST]}}, upstream: hello, max_body: 10B, limits: [token, route]}}
  - {{name: wide, match: {{path: '/wide/{{*rest}}'}}, upstream: hello, strip_prefix: /wide, limits: [address]}}
  - {{name: inner, match: {{host: '*.inner.test', path: '/wide/{{*rest}}'}}, upstream: hello, limits: [host]}}
  - {{name: free, match: {{path: /free}}, upstream: hello}}
  - {{name: reading, match: {{path: /reading, methods: [GET]}}, upstream: hello, limits: [all]}}
",
        upstream.target()
    )
}

fn pick<'a>(rng: &mut SplitMix64, from: &[&'a str]) -> &'a str {
    from[rng.below(from.len() as u64) as usize]
}

/// A random request, and whether it is a HEAD.
fn random_request(rng: &mut SplitMix64) -> (bool, String) {
    let method = pick(rng, &["GET", "GET", "GET", "HEAD", "PUT", "POST", "DELETE", "TRACE"]);
    let path = match rng.below(14) {
        0 => pick(rng, &["/nowhere", "/", "/%zz", "/../x", "/a%00b"]).to_owned(),
        1 => "/free?x=1".to_owned(),
        2..=4 => format!("/wide//a/./{}", rng.below(4)),
        5 => "/reading".to_owned(),
        6 => format!("http://a.inner.test/wide/{}", rng.below(3)),
        _ => format!("/items/{}", pick(rng, &["1", "2", "%33", "4"])),
    };
    let host = pick(rng, &["gateway.test", "GATEWAY.test:80", "b.inner.test", "c.inner.test."]);
    let mut headers = String::new();
    match rng.below(10) {
        0 => {}
        1 => headers.push_str("Authorization: Bearer a\r\nAuthorization: Bearer b\r\n"),
        2 => headers.push_str("Cookie: session=s1\r\n"),
        token => write!(headers, "Authorization: bearer t{}\r\n", token % 5).expect("memory"),
    }
    match rng.below(10) {
        0 => {}
        1 => write!(headers, "X-Forwarded-For: 2001:db8::{:x}\r\n", rng.below(4)).expect("memory"),
        last => {
            write!(headers, "X-Forwarded-For: 6.6.6.6, 192.0.2.{}\r\n", last % 6).expect("memory");
        }
    }
    match rng.below(40) {
        0 => headers.push_str("Expect: nonsense\r\n"),
        1 => headers.push_str("Broken : header\r\n"),
        _ => {}
    }
    let body = match (method, rng.below(12)) {
        ("PUT" | "POST", 0) => "far more than ten bytes",
        ("PUT" | "POST", _) => "short",
        _ => "",
    };
    if !body.is_empty() {
        write!(headers, "Content-Length: {}\r\n", body.len()).expect("memory");
    }
    (method == "HEAD", format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n{body}"))
}

/// Sends [`REQUESTS`] requests while the clock advances. Returns the limits that each refusal
/// names, by request id.
fn send_requests(
    gateway: &Gateway,
    clock: &Clock,
    rng: &mut SplitMix64,
) -> BTreeMap<String, String> {
    let mut violated = BTreeMap::new();
    let mut client = Client::connect(gateway.address());
    let mut now = START;
    for _ in 0..REQUESTS {
        now += ms([0, 0, 0, 1, 7, 40, 300, 900][rng.below(8) as usize]);
        clock.set(now);
        let (is_head, text) = random_request(rng);
        client.send(&text);
        let (status, head, body) = if is_head {
            let (status, head) = client.read_head().expect("a response");
            (status, head, None)
        } else {
            let response = client.read_response();
            let problem = (response.status == 429).then(|| response.json());
            (response.status, response.head, problem)
        };
        if let Some(problem) = body {
            let id = problem["request-id"].as_str().expect("an id").to_owned();
            let names = problem["violated-policies"].as_array().expect("names").iter();
            let names: Vec<_> = names.filter_map(serde_json::Value::as_str).collect();
            violated.insert(id, names.join(","));
        }
        assert!(status < 500 || status == 502, "{status}: {text}");
        if head.to_ascii_lowercase().contains("connection: close") {
            client = Client::connect(gateway.address());
            // Advances the clock: lines of the same time are ordered only within one connection.
            now += ms(1);
        }
    }
    violated
}

#[test]
fn replay_decides_like_the_live_gateway() {
    let directory = tempfile::tempdir().expect("a directory");
    let (log, config) =
        (directory.path().join("access.log"), directory.path().join("tidegate.yaml"));
    let (log, config) = (log.to_str().expect("a path"), config.to_str().expect("a path"));
    let upstream = Upstream::hello();
    let yaml = rules(&upstream, log);
    fs::write(config, &yaml).expect("a file");
    let clock = Clock::manual(START);
    let gateway = Gateway::start_at(&yaml, clock.clone());
    let violated = send_requests(&gateway, &clock, &mut SplitMix64(0x9e37_79b9_7f4a_7c15));
    let text = read_lines(log.as_ref(), REQUESTS);
    drop(gateway);

    let replayed = run(&["replay", "--config", config, "--decisions", log]);
    let mut counts = BTreeMap::<String, u32>::new();
    let mut named = 0;
    assert_eq!(replayed.lines().count(), text.lines().count());
    for (number, (line, decision)) in text.lines().zip(replayed.lines()).enumerate() {
        let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let text = |key: &str| line[key].as_str().expect("a text").to_owned();
        let decision: Vec<&str> = decision.split('\t').collect();
        let limit = text("limit");
        let route = if matches!(&*text("route"), "") || limit == "not_checked" {
            "-".to_owned()
        } else {
            text("route")
        };
        let wanted = [format!("{log}:{}", number + 1), text("time"), route, limit.clone()];
        assert_eq!(decision[..4], wanted, "{line}");
        if let Some(limits) = violated.get(&text("request_id")) {
            assert_eq!(decision[4], limits, "{line}");
            named += 1;
        }
        *counts.entry(limit).or_default() += 1;
    }
    for limit in ["admitted", "refused", "none", "not_checked"] {
        assert!(
            counts.get(limit).is_some_and(|count| *count >= 100),
            "too few {limit}: {counts:?}"
        );
    }
    assert!(named > 300, "{named} refusals were compared by name");
}

#[test]
fn a_comparison_reports_what_would_change() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("a path").to_owned();
    let upstream = Upstream::hello();
    let (log, old, new) = (path("access.log"), path("old.yaml"), path("new.yaml"));
    let yaml = rules(&upstream, &log);
    fs::write(&old, &yaml).expect("a file");
    fs::write(
        &new,
        yaml.replace("quota: 7", "quota: 3")
            .replace("quota: 40, window: 10s, cost", "quota: 400, window: 10s, cost"),
    )
    .expect("a file");
    let clock = Clock::manual(START);
    let gateway = Gateway::start_at(&yaml, clock.clone());
    send_requests(&gateway, &clock, &mut SplitMix64(7));
    read_lines(log.as_ref(), REQUESTS);
    drop(gateway);

    let text = run(&["replay", "-c", &old, "--compare", &new, "--json", "--top", "3", &log]);
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let decisions = run(&["replay", "-c", &old, "--compare", &new, "--decisions", &log]);
    let (mut refused, mut admitted, mut both) = (0, 0, [0, 0]);
    let mut by_limit = BTreeMap::<(String, &str), u64>::new();
    for line in decisions.lines() {
        let cells: Vec<&str> = line.split('\t').collect();
        let is_refused = [cells[3] == "refused", cells[6] == "refused"];
        let (names, change) = match is_refused {
            [false, true] => (cells[7], "newly_refused"),
            [true, false] => (cells[4], "newly_admitted"),
            _ => ("", ""),
        };
        refused += u64::from(change == "newly_refused");
        admitted += u64::from(change == "newly_admitted");
        for name in names.split(',').filter(|name| !name.is_empty()) {
            *by_limit.entry((name.to_owned(), change)).or_default() += 1;
        }
        both = [both[0] + u64::from(is_refused[0]), both[1] + u64::from(is_refused[1])];
    }
    assert!(refused > 100 && admitted > 20, "{refused} {admitted}");
    assert_eq!(report["requests"], REQUESTS);
    assert_eq!(report["difference"]["newly_refused"], refused);
    assert_eq!(report["difference"]["newly_admitted"], admitted);
    for (which, refused) in both.into_iter().enumerate() {
        let result = &report["results"][which];
        assert_eq!(result["refused"], refused);
        let routes = result["routes"].as_array().expect("routes").iter();
        let by_route: u64 = routes.filter_map(|route| route["refused"].as_u64()).sum();
        assert_eq!(by_route, refused);
        assert_eq!(result["callers"].as_array().map(Vec::len), Some(3));
    }
    let limits = report["difference"]["limits"].as_array().expect("limits");
    for ((name, change), count) in &by_limit {
        let limit = limits.iter().find(|limit| limit["name"] == **name).expect("the limit");
        assert_eq!(limit[*change], *count, "{name} {change}");
    }
    assert!(by_limit[&("token".to_owned(), "newly_refused")] > 100);
    assert!(by_limit[&("all".to_owned(), "newly_admitted")] > 10);
    assert!(
        report["notes"][0].as_str().is_some_and(|note| note.contains("no limit counts by them"))
    );
}

#[test]
fn requests_that_a_condition_decides_are_not_guessed() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("tidegate.yaml");
    let log = directory.path().join("log");
    let rules = "upstreams: {hello: {respond: {body: hello}}}
limits: {one: {quota: 1, window: 1h, key: []}}
routes:
  - {name: plain, match: {path: /a}, upstream: hello, limits: [one]}
  - {name: header, match: {path: /a, headers: {x-version: '2'}}, upstream: hello}
  - {name: query, match: {path: /b, query: {q: x}}, upstream: hello}
  - {name: other, match: {path: /b}, upstream: hello}
  - {name: canary, match: {path: /c, weight: 5}, upstream: hello}
  - {name: stable, match: {path: /c}, upstream: hello}
  - {name: off, match: {path: /d, weight: 0}, upstream: hello}
  - {name: on, match: {path: /d}, upstream: hello}
";
    fs::write(&config, rules).expect("a file");
    let (config, file) = (config.to_str().expect("a path"), log.to_str().expect("a path"));
    let line = |target: &str| {
        format!("192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] \"GET {target} HTTP/1.1\" 200 5\n")
    };
    let combined = ["/a", "/b", "/b?q=x", "/b?q=%78", "/c", "/d"].map(line).concat();
    fs::write(&log, combined).expect("a log");
    let report: serde_json::Value =
        serde_json::from_str(&run(&["replay", "-c", config, "--json", file])).expect("JSON");
    let result = &report["results"][0];
    // A header and a weight are not in the log, but the query is.
    assert_eq!((&result["undecided"], &result["matched"]), (&2.into(), &4.into()), "{result}");
    let requests = |name: &str| {
        let routes = result["routes"].as_array().expect("routes");
        let route = routes.iter().find(|route| route["name"] == name).expect("a route");
        route["requests"].as_u64().expect("a number")
    };
    let found =
        ["plain", "header", "query", "other", "canary", "stable", "off", "on"].map(requests);
    assert_eq!(found, [0, 0, 2, 1, 0, 0, 0, 1]);
    let json = r#"{"time":"2000-10-10T13:55:36Z","client":"192.0.2.1","method":"GET","host":"a","path":"/b","status":200}"#;
    fs::write(&log, json).expect("a log");
    let text = run(&["replay", "-c", config, file]);
    assert!(text.contains("1 whose route is undecided"), "{text}");
    assert!(text.contains("a weight that the log does not show: 1; not replayed"), "{text}");
}
