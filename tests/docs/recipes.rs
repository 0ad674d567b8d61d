//! What the recipes promise, tried with the configurations of their page.

use std::{io::Write, process::Command};

use testkit::{
    client::{Response, get},
    gateway::Gateway,
    upstream::Upstream,
};
use tidegate::{
    clock::{Clock, StoreTime},
    config,
    snapshot::{LoadError, SecretReading, Snapshot},
};

use crate::{certificate_files::substitute, configurations::complete, page::Page, root};

/// The start of a clock that stands still.
const NOW: StoreTime = StoreTime::from_unix_ms(1_700_000_000_000);

/// The configuration below a heading of the page, with `upstream` as its server.
fn recipe(heading: &str, upstream: &Upstream) -> String {
    let text = Page::read("docs/src/recipes.md").text;
    let section = text.split(&format!("\n## {heading}\n")).nth(1).expect("the heading");
    let page = Page { path: heading.to_owned(), text: section.to_owned() };
    let blocks = page.blocks();
    let block = blocks.iter().find(|block| block.language == "yaml").expect("a configuration");
    complete(&block.text)
        .replace("http://127.0.0.1:9000", &upstream.target())
        .replace("127.0.0.1:8080", "127.0.0.1:0")
}

/// A server that answers `/200` and the like by that status, whatever precedes it in the path, and
/// with the header fields that the query has as `NAME=VALUE`.
fn server() -> Upstream {
    Upstream::with_handler(|request, socket| {
        let text = String::from_utf8_lossy(request);
        let target = text.split(' ').nth(1).unwrap_or_default();
        let query = target.split_once('?').map_or("", |(_, query)| query);
        let (status, field) = query.split_once('&').unwrap_or((query, ""));
        let field = field.replace('=', ": ");
        let field = if field.is_empty() { field } else { field + "\r\n" };
        write!(socket, "HTTP/1.1 {status} Test\r\n{field}Content-Length: 0\r\n\r\n").is_ok()
    })
}

fn post(gateway: &Gateway, target: &str) -> Response {
    let mut client = testkit::client::Client::connect(gateway.address());
    client.send(
        format!("POST {target} HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0\r\n\r\n").as_bytes(),
    );
    client.read_response()
}

#[test]
fn an_exempt_address_is_never_refused() {
    let upstream = server();
    let yaml = recipe("Exempt an address", &upstream);
    for (yaml, last) in [(yaml.clone(), 429), (yaml.replace("192.0.2.10", "127.0.0.1"), 200)] {
        let gateway = Gateway::start_at(&yaml, Clock::manual(NOW));
        let statuses: Vec<u16> =
            (0..101).map(|_| get(gateway.address(), "/?200", "").status).collect();
        assert_eq!((statuses[99], statuses[100]), (200, last), "{yaml}");
    }
}

#[test]
fn failed_logins_are_limited_and_successful_ones_are_not() {
    let upstream = server();
    let gateway = Gateway::start_at(&recipe("Limit failed logins", &upstream), Clock::manual(NOW));
    for status in [200, 302, 200, 303, 204, 200] {
        assert_eq!(post(&gateway, &format!("/login?{status}")).status, status);
    }
    for failure in 0..5 {
        assert_eq!(post(&gateway, "/login?401").status, 401, "failure {failure}");
        let left = post(&gateway, "/login?200");
        assert_eq!(left.status, if failure < 4 { 200 } else { 429 }, "after failure {failure}");
    }
    assert_eq!(get(gateway.address(), "/other?200", "").status, 200);
}

#[test]
fn graphql_is_charged_what_the_server_says() {
    let upstream = server();
    let gateway =
        Gateway::start_at(&recipe("Limit GraphQL by cost", &upstream), Clock::manual(NOW));
    for used in [400, 800] {
        let answered = post(&gateway, "/graphql?200&x-graphql-cost=400");
        assert_eq!((answered.status, answered.number("x-ratelimit-used")), (200, used));
    }
    // More than `max_cost` is charged as `max_cost`.
    for turn in 1..=10 {
        let answered = post(&gateway, "/graphql?200&x-graphql-cost=5000");
        assert_eq!(answered.status, 200, "request {turn}");
    }
    let refused = post(&gateway, "/graphql?200&x-graphql-cost=1");
    assert_eq!(refused.status, 429, "10,800 of 10,000 are used");
}

#[test]
fn a_challenge_reaches_the_client_of_the_authority() {
    let certbot = Upstream::with_response("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nchallenge");
    let upstream = server();
    let yaml = recipe("The first certificate", &upstream)
        .replace("http://127.0.0.1:8888", &certbot.target())
        .replace("0.0.0.0:80", "127.0.0.1:0")
        .replace("0.0.0.0:443", "127.0.0.1:0")
        // A free port cannot be meant by `true`.
        .replace("redirect_https: true", "redirect_https: 443");
    let (yaml, _files) = substitute(&yaml);
    let gateway = Gateway::start(&yaml);
    let path = "/.well-known/acme-challenge/abc";
    let redirected = get(gateway.address(), path, "");
    assert_eq!(redirected.status, 308);
    let location = redirected.header("location").expect("a location");
    assert!(location.starts_with("https://") && location.ends_with(path), "{location}");

    let address = gateway.server.addresses[1];
    let port = address.port();
    let curl = Command::new("curl")
        .args(["--silent", "--insecure", "--resolve"])
        .arg(format!("api.example.com:{port}:127.0.0.1"))
        .arg(format!("https://api.example.com:{port}{path}"))
        .output()
        .expect("curl");
    assert_eq!(String::from_utf8_lossy(&curl.stdout), "challenge");
}

/// The configuration in the `ConfigMap` of the manifest.
fn manifest_configuration() -> String {
    let manifest = Page::read("contrib/kubernetes/tidegate.yaml").text;
    let block = manifest.split("  tidegate.yaml: |\n").nth(1).expect("the configuration");
    let lines = block.lines().take_while(|line| *line != "---");
    let lines: Vec<&str> = lines.map(|line| line.strip_prefix("    ").unwrap_or(line)).collect();
    lines.join("\n") + "\n"
}

#[test]
fn the_manifest_for_kubernetes_has_a_valid_configuration() {
    let yaml = manifest_configuration();
    let loaded = config::parse("tidegate.yaml", &yaml).unwrap_or_else(|faults| panic!("{faults}"));
    let snapshot = Snapshot::compile(&loaded, SecretReading::Unread)
        .unwrap_or_else(|faults| panic!("{faults}"));
    assert!(snapshot.notes.is_empty(), "{:?}", snapshot.notes);
    let address = |port: u16| format!("0.0.0.0:{port}");
    assert_eq!(loaded.config.listen[0].address.to_string(), address(8080));
    let admin = loaded.config.admin.expect("an admin address");
    assert_eq!(admin.address.to_string(), address(9900));

    let manifest = Page::read("contrib/kubernetes/tidegate.yaml").text;
    for part in ["{name: http, containerPort: 8080}", "{name: admin, containerPort: 9900}"] {
        assert!(manifest.contains(part), "{part}");
    }
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        let probe = manifest.split(probe).nth(1).expect("the probe");
        assert!(probe.lines().nth(1).is_some_and(|line| line.contains("port: admin")), "{probe}");
    }
    let grace = manifest.split("terminationGracePeriodSeconds: ").nth(1).expect("a time");
    let grace: u64 = grace.split('\n').next().expect("a line").parse().expect("seconds");
    let pause = 5;
    assert!(manifest.contains("preStop: {sleep: {seconds: 5}}"));
    assert!(grace > pause + loaded.config.drain_timeout.0.as_secs(), "{grace} s");
}

/// What the page says of merge keys.
#[test]
fn a_merge_key_is_an_unknown_key() {
    let text = "routes:\n  - &a {name: a, upstream: app}\n  - {<<: *a, name: b}\n";
    let file = root().join("merge.yaml");
    match Snapshot::load_to_serve(&file, text.as_bytes(), &|_| None) {
        Err(LoadError::Faults(faults)) => {
            assert!(faults.to_string().contains("unknown key `<<`"), "{faults}");
        }
        other => panic!("{:?}", other.map(|_| ())),
    }
}
