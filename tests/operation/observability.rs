use testkit::log_lines::read_lines;

use testkit::{
    client::{Response, get},
    gateway::Gateway,
    protocol::{Protocol, on_every_protocol},
    upstream::Upstream,
    yaml::fill,
};

const SECRETS: [&str; 4] = ["tok-3c7e", "cook-91ab", "query-55f0", "team-d00d"];

fn start(upstream: &Upstream, yaml: &str) -> Gateway {
    Gateway::for_every_protocol(&fill(yaml, [("target", upstream.target())]))
}

const ITEMS: &str = "
upstreams:
  origin: {targets: [{target}], retries: 0}
  lost: {targets: ['http://127.0.0.1:1']}
limits:
  small: {algorithm: sliding_window, quota: 2, window: 1h, key: [token]}
  team: {algorithm: sliding_window, quota: 100, window: 1h, key: ['header:X-Team', 'cookie:c']}
routes:
  - {name: items, match: {path: '/items/{id}'}, upstream: origin, limits: [small, team]}
  - {name: lost, match: {path: /lost}, upstream: lost}
";

/// A request with a secret in every place that may carry one.
fn get_with_secrets(protocol: Protocol, gateway: &Gateway, path: &str) -> Response {
    let headers = "Authorization: Bearer tok-3c7e\r\nCookie: c=cook-91ab\r\nX-Team: team-d00d\r\n";
    protocol.get(gateway, &format!("{path}?key=query-55f0"), headers)
}

#[test]
fn health_and_readiness_are_reported() {
    let gateway = start(&Upstream::hello(), ITEMS);
    let response = get(gateway.admin(), "/healthz", "");
    assert_eq!((response.status, response.text().as_str()), (200, "ok\n"));
    let response = get(gateway.admin(), "/readyz", "");
    let body = response.json();
    assert_eq!((response.status, body["ready"].as_bool()), (200, Some(true)));
    assert_eq!(
        (body["workers"].as_u64(), body["store"]["kind"].as_str()),
        (Some(2), Some("memory"))
    );
    assert_eq!(get(gateway.address(), "/healthz", "").status, 404, "only on the admin listener");
}

#[test]
fn metrics_count_every_outcome() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let gateway = start(&upstream, ITEMS);
        for status in [200, 200, 429, 429, 429] {
            assert_eq!(get_with_secrets(protocol, &gateway, "/items/5").status, status);
        }
        assert_eq!(protocol.get(&gateway, "/lost", "").status, 502);
        assert_eq!(protocol.get(&gateway, "/nowhere", "").status, 404);
        // HTTP/2 has no such line.
        let (bad, by_version) = if protocol.is_http2() { (0, [0, 7]) } else { (1, [7, 0]) };
        if !protocol.is_http2() {
            let mut client = protocol.connect(&gateway);
            assert_eq!(client.get("/", "Broken : 1\r\n").status, 400);
            assert!(client.is_closed());
        }
        for (line, wanted) in [
            ("requests_total{route=\"items\",status=\"2xx\"}", 2),
            ("requests_total{route=\"items\",status=\"4xx\"}", 3),
            ("requests_total{route=\"lost\",status=\"5xx\"}", 1),
            ("requests_total{route=\"\",status=\"4xx\"}", 1 + bad),
            ("request_duration_seconds_count{route=\"items\"}", 5),
            ("limit_decisions_total{route=\"items\",limit=\"small\",decision=\"admitted\"}", 2),
            ("limit_decisions_total{route=\"items\",limit=\"small\",decision=\"refused\"}", 3),
            ("limit_decisions_total{route=\"items\",limit=\"small\",decision=\"unknown\"}", 0),
            ("limit_decisions_total{route=\"items\",limit=\"team\",decision=\"refused\"}", 0),
            ("upstream_failures_total{upstream=\"lost\",kind=\"connect\"}", 1),
            ("upstream_failures_total{upstream=\"origin\"", 0),
            ("requests_by_protocol_total{protocol=\"HTTP/1.0\"}", 0),
            ("requests_by_protocol_total{protocol=\"HTTP/1.1\"}", by_version[0]),
            ("requests_by_protocol_total{protocol=\"HTTP/2\"}", by_version[1]),
            ("malformed_requests_total", bad),
            ("store_requests_total", 5),
        ] {
            gateway.wait_for_metric(&format!("tidegate_{line}"), wanted);
        }
        gateway.wait_for_metric("tidegate_connections", 0);
        assert_eq!(gateway.metric("tidegate_accepted_connections_total"), 7 + bad);
        let text = get(gateway.admin(), "/metrics", "Connection: close\r\n").text();
        for secret in SECRETS {
            assert!(!text.contains(secret), "{secret}");
        }
        assert!(!text.contains("/items/5"), "a path would be an unbounded label");
    });
}

#[test]
fn accept_chooses_the_format_of_metrics() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream, ITEMS);
    assert_eq!(get_with_secrets(Protocol::Http1, &gateway, "/items/5").status, 200);
    gateway.wait_for_metric("tidegate_requests_total{route=\"items\",status=\"2xx\"}", 1);
    let counted = "tidegate_requests_total{route=\"items\",status=\"2xx\"} 1\n";
    let scrape = |accept: &str| {
        let response = get(gateway.admin(), "/metrics", accept);
        let header = |name| response.header(name).expect(name).to_owned();
        assert_eq!((response.status, header("vary").as_str()), (200, "Accept"));
        assert!(response.text().contains(counted), "{}", response.text());
        (header("content-type"), response.text())
    };
    // The `Accept` of Prometheus 2.
    let open = "Accept: application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;\
                q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1\r\n";
    let (kind, metrics) = scrape(open);
    assert_eq!(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(metrics.ends_with("\n# EOF\n") && metrics.matches("# EOF").count() == 1, "{metrics}");
    assert!(metrics.contains("# TYPE tidegate_requests counter\n"), "{metrics}");
    for accept in ["", "Accept: */*\r\n", "Accept: text/plain;version=0.0.4\r\n"] {
        let (kind, text) = scrape(accept);
        assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8", "{accept}");
        assert!(!text.contains("# EOF") && text.ends_with('\n'), "{accept}: {text}");
        assert!(text.contains("# TYPE tidegate_requests_total counter\n"), "{accept}: {text}");
        let samples = |text: &str| text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(samples(&text), samples(&metrics), "{accept}");
    }
}

#[test]
fn access_log_has_one_line_per_request_and_no_secrets() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("access.log");
        let gateway = start(
            &upstream,
            &fill(
                "
                access_log: {log}
                workers: 1
                client: {trusted_proxies: [127.0.0.1/32]}
                upstreams:
                  origin: {targets: [{target}], retries: 0}
                  lost: {targets: ['http://127.0.0.1:1']}
                limits:
                  small: {algorithm: sliding_window, quota: 2, window: 1h, key: [token]}
                  team:
                    algorithm: sliding_window
                    quota: 100
                    window: 1h
                    key: ['header:X-Team', 'cookie:c']
                routes:
                  - {name: items, match: {path: '/items/{id}'}, upstream: origin, limits: [small, team]}
                  - {name: lost, match: {path: /lost}, upstream: lost}
                ",
                [("log", file.display())],
            ),
        );
        let mut ids = Vec::new();
        for path in ["/items/5", "//items/%35", "/items/6", "/lost", "/nowhere"] {
            let response = get_with_secrets(protocol, &gateway, path);
            ids.push(response.header("x-request-id").expect("an id").to_owned());
        }
        let claimed = "X-Forwarded-For: 192.0.2.7\r\nX-Request-Id: mine\r\n";
        assert_eq!(protocol.get(&gateway, "/items/7", claimed).status, 200);
        // HTTP/2 has no such line.
        let count = if protocol.is_http2() { 6 } else { 7 };
        if count == 7 {
            let broken = "Host: tok-3c7e\r\nBroken : tok-3c7e\r\n";
            assert_eq!(protocol.get(&gateway, "/tok-3c7e", broken).status, 400);
        }
        let text = read_lines(&file, count);
        for secret in SECRETS {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let found: Vec<_> = lines
            .iter()
            .map(|line| {
                let text = |key: &str| line[key].as_str().expect("a text").to_owned();
                (text("route"), text("path"), line["status"].as_u64(), text("limit"))
            })
            .collect();
        let wanted = [
            ("items", "/items/5", 200, "admitted"),
            ("items", "/items/5", 200, "admitted"),
            ("items", "/items/6", 429, "refused"),
            ("lost", "/lost", 502, "none"),
            ("", "/nowhere", 404, "none"),
            ("items", "/items/7", 200, "admitted"),
            ("", "", 400, "not_checked"),
        ]
        .map(|(route, path, status, limit)| {
            (route.to_owned(), path.to_owned(), Some(status), limit.to_owned())
        });
        assert_eq!(found, wanted[..count]);
        for (line, id) in lines.iter().zip(&ids) {
            assert_eq!(line["request_id"].as_str(), Some(id.as_str()));
            assert_eq!(line["client"], "127.0.0.1");
            assert_eq!(
                (line["method"].as_str(), line["complete"].as_bool()),
                (Some("GET"), Some(true))
            );
            assert!(line["duration_ms"].is_number() && line["time"].is_string());
        }
        assert_eq!(
            (lines[0]["bytes"].as_u64(), lines[0]["host"].as_str()),
            (Some(5), Some("gateway.test"))
        );
        assert_eq!(lines[0]["protocol"], protocol.version());
        let refused: Vec<_> = lines.iter().map(|line| line["refused_by"].as_str()).collect();
        assert_eq!(refused[..3], [None, None, Some("small")]);
        assert!(refused[3..].iter().all(Option::is_none));
        // The hash is the one that the admin API shows for a key.
        let callers = get(gateway.admin(), "/api/state", "").json();
        assert_eq!(lines[2]["token"], callers["refused_callers"][0]["hash"]);
        // The upstream of `/lost` cannot be reached.
        assert!(lines[0]["upstream_ms"].is_number() && lines[3]["upstream_ms"].is_null());
        assert!(lines.get(6).is_none_or(|broken| broken["protocol"] == ""));
        assert_eq!(
            (&lines[5]["client"], &lines[5]["request_id"]),
            (&"192.0.2.7".into(), &"mine".into())
        );
    });
}

#[test]
fn truncated_responses_are_logged_as_truncated() {
    use std::io::Write;
    on_every_protocol(|protocol| {
        let upstream = Upstream::with_handler(|_, socket| {
            socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf").is_err()
        });
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("access.log");
        let gateway = start(
            &upstream,
            &fill(
                "
                access_log: {log}
                upstreams:
                  origin: {targets: [{target}], retries: 0}
                  lost: {targets: ['http://127.0.0.1:1']}
                limits:
                  small: {algorithm: sliding_window, quota: 2, window: 1h, key: [token]}
                  team:
                    algorithm: sliding_window
                    quota: 100
                    window: 1h
                    key: ['header:X-Team', 'cookie:c']
                routes:
                  - {name: items, match: {path: '/items/{id}'}, upstream: origin, limits: [small, team]}
                  - {name: lost, match: {path: /lost}, upstream: lost}
                ",
                [("log", file.display())],
            ),
        );
        let mut client = protocol.connect(&gateway);
        client.start_get("/items/5");
        assert!(client.try_read_response().is_none());
        let text = read_lines(&file, 1);
        let line: serde_json::Value = serde_json::from_str(text.trim_end()).expect("one line");
        assert_eq!((line["status"].as_u64(), line["bytes"].as_u64()), (Some(200), Some(4)));
        assert_eq!(line["complete"], false);
    });
}

#[test]
fn a_request_id_is_new_unless_a_trusted_caller_gives_one() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let id = |gateway: &Gateway, sent: &str| -> String {
            let headers =
                if sent.is_empty() { String::new() } else { format!("X-Request-Id: {sent}\r\n") };
            let response = protocol.get(gateway, "/items/5", &headers);
            let id = response.header("x-request-id").expect("an id").to_owned();
            let received = upstream.request_texts().pop().expect("a request");
            let line = format!("\r\nx-request-id: {id}\r\n");
            assert!(response.status != 200 || received.contains(&line), "{line} in {received}");
            id
        };
        let is_new = |id: &str| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let gateway = start(&upstream, ITEMS);
        let (first, second) = (id(&gateway, "given"), id(&gateway, ""));
        assert!(is_new(&first) && is_new(&second) && first != second, "{first} {second}");
        let gateway = start(
            &upstream,
            "
            client: {trusted_proxies: [127.0.0.1/32]}
            upstreams:
              origin: {targets: [{target}], retries: 0}
              lost: {targets: ['http://127.0.0.1:1']}
            limits:
              small: {algorithm: sliding_window, quota: 2, window: 1h, key: [token]}
              team:
                algorithm: sliding_window
                quota: 100
                window: 1h
                key: ['header:X-Team', 'cookie:c']
            routes:
              - {name: items, match: {path: '/items/{id}'}, upstream: origin, limits: [small, team]}
              - {name: lost, match: {path: /lost}, upstream: lost}
            ",
        );
        assert_eq!(id(&gateway, "given-1"), "given-1");
        for bad in ["", "two words", "\u{e9}", &"x".repeat(129)] {
            assert!(is_new(&id(&gateway, bad)), "{bad}");
        }
    });
}

#[test]
fn a_gateway_that_has_started_serves_on_every_worker() {
    for workers in [1, 2, 5] {
        let gateway = Gateway::start(&format!(
            "workers: {workers}
upstreams: {{hello: {{respond: {{status: 200, body: hi, content_type: text/plain}}}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: hello}}]"
        ));
        let serving =
            gateway.server.shared.accepting_workers.load(std::sync::atomic::Ordering::Acquire);
        assert_eq!(serving, workers);
    }
}
