//! Prometheus: its linter and its parsers read a gateway's metrics, and its engine evaluates the
//! alerts and the dashboard of `contrib` on them.

use std::{
    collections::BTreeSet,
    fmt::Write,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use serde_json::Value;
use tempfile::TempDir;
use testkit::{
    client::{Client, get},
    gateway::Gateway,
    port::free_port,
    redis_server::RedisServer,
    tls::Authority,
    upstream::Upstream,
    wait::eventually,
    yaml::fill,
};

use tidegate::{
    auth::KeyHash,
    config,
    snapshot::{SecretReading, Snapshot},
};

use crate::{
    grafana::{Dashboard, without_variables},
    promql::metric_names,
    server::{Server, loopback},
    tools::{Output, client, run, run_with},
};

const OPEN_METRICS: &str = "Accept: application/openmetrics-text; version=1.0.0\r\n";

/// A key set with the key of RFC 7515, A.3.
const KEY_SET: &str = "HTTP/1.1 200 OK\r\nContent-Length: 137\r\n\r\n\
    {\"keys\":[{\"kty\":\"EC\",\"crv\":\"P-256\",\"x\":\"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU\",\
    \"y\":\"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0\"}]}";

/// A gateway with every kind of metric, after requests of every outcome.
struct Scraped {
    gateway: Gateway,
    _redis: RedisServer,
    _upstream: Upstream,
    _key_server: Upstream,
}

impl Scraped {
    fn start() -> Self {
        let (redis, upstream) = (RedisServer::start(), Upstream::hello());
        let key_server = Upstream::with_response(KEY_SET);
        let gateway = Gateway::for_every_protocol(&fill(
            "
            traces: {endpoint: 'http://127.0.0.1:1/v1/traces', sample: 1}
            store:
              redis:
                shards: [{primary: '{redis}'}]
                connect_timeout: 1s
                response_timeout: 1s
            auth:
              keys: {api_key: {}}
              login: {jwt: {issuer: 'https://id.test', audiences: [a], jwks: '{keys}/jwks.json'}}
            consumers: {redis: true}
            plans: {gold: {few: 100}}
            upstreams:
              app: {targets: ['{target}', 'http://127.0.0.1:1'], balance: round_robin}
              shadow: {targets: ['{target}']}
            limits:
              few: {quota: 3, window: 1h, key: [token], block: {after: 1, within: 1m, for: 1h}}
              trial: {quota: 1, window: 1h, key: [token], enforce: false}
              slow: {algorithm: leaky_bucket, quota: 5, window: 1s, key: [], max_wait: 10s}
              egress: {quota: 1000, window: 1h, key: [], cost: {actual: bytes}}
            throttle: {max_active: 1000, capacity: 1000, waiting_room: {}}
            routes:
              - name: all
                match: {path: '/{*rest}'}
                upstream: app
                limits: [few, trial]
                mirror: {upstream: shadow}
              - {name: slow, match: {path: /slow}, upstream: app, limits: [slow, egress]}
              - {name: known, match: {path: /known}, upstream: app, auth: [keys, login], limits: [few]}
              - {name: inside, match: {path: /inside}, upstream: app, deny: [127.0.0.0/8]}
            ",
            [
                ("redis", redis.url()),
                ("target", upstream.target()),
                ("keys", key_server.target()),
            ],
        ));
        let scraped = Self { gateway, _redis: redis, _upstream: upstream, _key_server: key_server };
        scraped.request();
        let gateway = &scraped.gateway;
        gateway.wait_for_metric("tidegate_requests_total{route=\"slow\",status=\"2xx\"", 4);
        gateway.wait_for_metric(
            "tidegate_mirrored_requests_total{route=\"all\",outcome=\"answered\"",
            3,
        );
        scraped
    }

    /// Admitted, refused, delayed, denied, malformed and mirrored requests.
    fn request(&self) {
        let mut client = Client::connect(self.gateway.address());
        let mut expect = |path: &str, status| {
            let response = client.get(path, "Authorization: a\r\n");
            assert_eq!(response.status, status, "{path}: {}", response.text());
        };
        for status in [200, 200, 200, 429, 429] {
            expect("/", status);
        }
        for _ in 0..4 {
            expect("/slow", 200);
        }
        expect("/inside", 403);
        let hash = KeyHash::of(b"a key");
        let consumer = format!(r#"{{"name":"acme","plan":"gold","keys":[{{"sha256":"{hash}"}}]}}"#);
        let created = Client::connect(self.gateway.admin())
            .send(format!(
                "POST /api/consumers HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{consumer}",
                consumer.len()
            ))
            .read_response();
        assert_eq!(created.status, 201, "{}", created.text());
        assert_eq!(client.get("/known", "X-Api-Key: a key\r\n").status, 200);
        assert_eq!(client.get("/known", "").status, 401);
        assert_eq!(client.get("/", "Broken : 1\r\n").status, 400);
    }

    fn metrics(&self, accept: &str) -> String {
        get(self.gateway.admin(), "/metrics", accept).text()
    }
}

/// The metrics of a gateway with a stored certificate that was ordered by ACME.
fn metrics_of_ordered_certificate() -> String {
    let (folder, redis) = (tempfile::tempdir().expect("a directory"), RedisServer::start());
    let authority = Authority::new("tests");
    let yaml = fill(
        "
        listen:
          - address: 127.0.0.1:0
            tls:
              acme: {domains: [a.test], directory: 'https://127.0.0.1:1/', directory_ca: '{ca}', storage: '{storage}'}
          - address: 127.0.0.1:0
            tls:
              acme: {domains: [b.test, a.test], directory: 'https://127.0.0.1:1/', directory_ca: '{ca}', storage: '{storage}'}
          - address: 127.0.0.1:0
            tls:
              acme: {domains: [c.test], directory: 'https://127.0.0.1:1/', directory_ca: '{ca}', storage: redis}
        store: {redis: {shards: [{primary: '{redis}'}]}}
        upstreams: {app: {respond: {}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: app}]
        ",
        [
            ("ca", authority.write(folder.path(), "ca.pem").display().to_string()),
            ("storage", folder.path().display().to_string()),
            ("redis", redis.url()),
        ],
    );
    let snapshot =
        Snapshot::compile(&config::parse("t.yaml", &yaml).expect("valid"), SecretReading::Unread);
    let snapshot = snapshot.expect("valid");
    for (settings, _) in snapshot.acme_listeners() {
        let identity = authority.issue(&["a.test", "b.test"]);
        let stored = folder.path().join(settings.certificate_name());
        fs::write(stored, identity.cert + &identity.key).expect("a file");
    }
    let gateway = Gateway::start(&yaml);
    let text = get(gateway.admin(), "/metrics", "").text();
    let expiry = text.lines().filter(|line| line.starts_with("tidegate_acme_certificate_expiry"));
    assert_eq!(expiry.count(), 1, "certificates with one first domain have one series");
    text
}

/// A file of `contrib/prometheus`.
fn contributed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("contrib/prometheus").join(name)
}

/// The expressions of the alerts, each with its alert's name.
fn alerts() -> Vec<(String, String)> {
    let text = fs::read_to_string(contributed("alerts.yaml")).expect("the alerts");
    let rules: Value = serde_yaml::from_str(&text).expect("YAML");
    let rules = rules.pointer("/groups/0/rules").and_then(Value::as_array).expect("rules");
    let texts = rules.iter().map(|rule| [&rule["alert"], &rule["expr"]].map(|key| key.as_str()));
    texts.map(|pair| pair.map(|text| text.expect("a text").to_owned()).into()).collect()
}

fn promtool(arguments: &[&str]) -> Output {
    let directory = contributed("");
    run(client("promtool", "prometheus").args(arguments).current_dir(directory))
}

#[test]
fn promtool_finds_no_fault_in_the_text_format() {
    let text = Scraped::start().metrics("");
    let check =
        |text: &str| run_with(client("promtool", "prometheus").args(["check", "metrics"]), text);
    let checked = check(&text).succeeded("promtool check metrics");
    assert_eq!(checked.text().trim(), "", "no remark");
    let faulty = text.replace("# HELP tidegate_requests_total", "# HELP other");
    let remarks = check(&faulty).text();
    assert!(remarks.contains("tidegate_requests_total no help text"), "{remarks}");
}

#[test]
fn promtool_accepts_the_alerts_and_their_tests() {
    promtool(&["check", "rules", "--lint=all", "--lint-fatal", "alerts.yaml"]).succeeded("check");
    promtool(&["test", "rules", "alerts_test.yaml"]).succeeded("test");
    let tests = fs::read_to_string(contributed("alerts_test.yaml")).expect("the tests");
    for (alert, _) in alerts() {
        let fires = format!("alertname: {alert}\n");
        let is_silent = format!("alertname: {alert}, ");
        assert!(tests.contains(&fires) && tests.contains(&is_silent), "{alert} is not tested");
    }
}

/// Expressions as recording rules.
fn as_rules(expressions: &[(String, String)]) -> String {
    let mut rules = "groups:\n  - name: dashboard\n    rules:\n".to_owned();
    for (index, (_, expression)) in expressions.iter().enumerate() {
        let expression = without_variables(expression);
        write!(rules, "      - record: dashboard:panel:{index}\n        expr: '{expression}'\n")
            .expect("a text");
    }
    rules
}

#[test]
fn promtool_accepts_the_expressions_of_the_dashboard_and_the_page() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("rules.yaml");
    let mut expressions = Dashboard::read().expressions();
    let check = |expressions: &[(String, String)]| {
        fs::write(&file, as_rules(expressions)).expect("a file");
        promtool(&["check", "rules", file.to_str().expect("UTF-8")])
    };
    expressions.extend(recommended());
    check(&expressions).succeeded("promtool check rules");
    expressions[0].1.push(')');
    assert_ne!(check(&expressions).code, Some(0), "a faulty expression is found");
}

/// Names of series in the text of `/metrics`.
fn series(metrics: &str) -> BTreeSet<String> {
    let samples = metrics.lines().filter(|line| !line.starts_with('#'));
    samples.filter_map(|line| Some(line.split(['{', ' ']).next()?.to_owned())).collect()
}

/// The page of metrics.
fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/src/operations/metrics.md");
    fs::read_to_string(path).expect("the page")
}

/// The expressions of the page, each with the question that it answers.
fn recommended() -> Vec<(String, String)> {
    let page = page();
    let table =
        page.split("\n## What to watch\n").nth(1).and_then(|rest| rest.split("\n## ").next());
    let rows = table.expect("the table").lines().filter_map(|line| line.strip_prefix("| "));
    let cells = rows.filter_map(|row| row.strip_suffix("` |")?.split_once(" | `"));
    let rows: Vec<_> =
        cells.map(|(question, text)| (question.to_owned(), text.to_owned())).collect();
    assert!(rows.len() > 5, "{rows:?}");
    rows
}

/// The names that the page lists.
fn documented() -> BTreeSet<String> {
    let page = page();
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('|').next());
    let words = cells.flat_map(|cell| cell.split('`'));
    words.filter(|word| word.contains('_')).map(str::to_owned).collect()
}

/// The name of a series without a histogram's suffix.
fn family(series: &str) -> &str {
    let parts = ["_bucket", "_sum", "_count"];
    parts.iter().find_map(|part| series.strip_suffix(part)).unwrap_or(series)
}

/// The metrics that alerts, panels, variables and the page's expressions name, each with the place.
fn named() -> BTreeSet<(String, String)> {
    let dashboard = Dashboard::read();
    let listed = dashboard.listed_labels().into_iter().map(|(series, label)| (label, series));
    let mut named = BTreeSet::new();
    let expressions = dashboard.expressions().into_iter().chain(listed).chain(alerts());
    for (place, expression) in expressions.chain(recommended()) {
        let names = metric_names(&expression);
        assert!(!names.is_empty(), "{place}: no metric in {expression}");
        // `up` is Prometheus' own.
        let names = names.into_iter().filter(|name| name != "up");
        named.extend(names.map(|name| (place.clone(), name)));
    }
    assert!(named.len() > 100, "{} names", named.len());
    named
}

#[test]
fn alerts_and_dashboard_name_metrics_that_are_exported() {
    let scraped = Scraped::start();
    let exported = series(&scraped.metrics(""));
    assert_eq!(exported, series(&scraped.metrics(OPEN_METRICS)), "in both formats");
    let unknown: Vec<_> =
        named().into_iter().filter(|(_, name)| !exported.contains(name)).collect();
    assert!(unknown.is_empty(), "not exported: {unknown:#?}");
}

#[test]
fn the_page_of_metrics_lists_what_is_exported_and_what_alerts_and_dashboard_name() {
    let documented = documented();
    let is_documented =
        |name: &String| documented.contains(name) || documented.contains(family(name));
    let unknown: Vec<_> = named().into_iter().filter(|(_, name)| !is_documented(name)).collect();
    assert!(unknown.is_empty(), "not documented: {unknown:#?}");
    let exported = series(&Scraped::start().metrics(""));
    let missing: Vec<_> = exported.iter().filter(|name| !is_documented(name)).collect();
    assert!(missing.is_empty(), "not documented: {missing:#?}");
    let exported = &exported | &series(&metrics_of_ordered_certificate());
    let is_exported =
        |name: &&String| exported.iter().any(|series| series == *name || family(series) == *name);
    let removed: Vec<_> = documented.iter().filter(|name| !is_exported(name)).collect();
    assert!(removed.is_empty(), "not exported: {removed:#?}");
}

/// A Prometheus that scrapes one gateway each second.
struct Prometheus {
    address: SocketAddr,
    _server: Server,
    _directory: TempDir,
}

impl Prometheus {
    fn start(gateway: SocketAddr) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let port = free_port();
        let alerts = contributed("alerts.yaml");
        let config = fill(
            "
            global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
            rule_files: ['{alerts}']
            scrape_configs: [{job_name: tidegate, static_configs: [{targets: ['{gateway}']}]}]
            ",
            [("alerts", alerts.display().to_string()), ("gateway", gateway.to_string())],
        );
        fs::write(directory.path().join("prometheus.yaml"), config).expect("a file");
        let server = Server::prometheus(directory.path(), "prometheus.yaml", port);
        let address = loopback(port);
        eventually("Prometheus is ready", || get(address, "/-/ready", "").status == 200);
        Self { address, _server: server, _directory: directory }
    }

    fn api(&self, path: &str) -> Value {
        let answer = get(self.address, path, "").json();
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        answer["data"].clone()
    }

    /// The number of series that an expression has now.
    fn count(&self, expression: &str) -> usize {
        let mut encoded = String::new();
        for byte in expression.bytes() {
            write!(encoded, "%{byte:02X}").expect("a text");
        }
        let data = self.api(&format!("/api/v1/query?query={encoded}"));
        data["result"].as_array().map_or(0, Vec::len)
    }
}

#[test]
fn prometheus_scrapes_a_gateway_and_every_panel_has_data() {
    let scraped = Scraped::start();
    let prometheus = Prometheus::start(scraped.gateway.admin());
    // A rate needs two samples.
    eventually("three scrapes", || {
        prometheus.count("count_over_time(up{job=\"tidegate\"}[1m]) >= 3") == 1
    });
    assert_eq!(prometheus.count("up == 1"), 1);
    let target = &prometheus.api("/api/v1/targets")["activeTargets"][0];
    assert_eq!((&target["health"], &target["lastError"]), (&"up".into(), &"".into()), "{target}");

    let dashboard = Dashboard::read();
    for (panel, expression) in dashboard.expressions() {
        let query = without_variables(&expression);
        // A rate also needs two samples of series that began after the first scrape.
        eventually(&format!("data of {panel}: {expression}"), || prometheus.count(&query) > 0);
    }
    for (series, label) in dashboard.listed_labels() {
        let series = without_variables(&series);
        let query = format!("count by ({label}) ({series}) unless {series}");
        eventually(&format!("values of {label} in {series}"), || prometheus.count(&query) > 0);
    }

    eventually("the trace of a slow request", || {
        let exemplars = prometheus
            .api("/api/v1/query_exemplars?query=tidegate_request_duration_seconds_bucket");
        let exemplars = exemplars.as_array().expect("a list");
        let slow = exemplars.iter().find(|found| found["seriesLabels"]["route"] == "slow");
        let trace = slow.and_then(|found| found["exemplars"][0]["labels"]["trace_id"].as_str());
        trace.is_some_and(|trace| trace.len() == 32)
    });

    eventually("the alerts are evaluated", || {
        let groups = prometheus.api("/api/v1/rules");
        let rules = groups.pointer("/groups/0/rules").and_then(Value::as_array).expect("rules");
        assert_eq!(rules.len(), alerts().len());
        for rule in rules {
            assert_ne!(rule["health"], "err", "{rule}");
            assert_ne!(rule["state"], "firing", "{rule}");
        }
        rules.iter().all(|rule| rule["health"] == "ok")
    });
}
