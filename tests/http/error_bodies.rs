use std::fs;

use serde_json::Value;
use testkit::{
    client::Response,
    gateway::Gateway,
    protocol::{HTTP2, on_every_protocol, on_protocols},
    upstream::Upstream,
};

use testkit::commands::run;

const UNAVAILABLE: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\
    Content-Type: text/own\r\n\r\nbusy";

fn rules(upstream: &Upstream, file: &str) -> String {
    format!(
        "workers: 1
upstreams:
  app: {{targets: [{}], retries: 0}}
  lost: {{targets: ['http://127.0.0.1:1']}}
  fixed: {{respond: {{status: 503, body: fixed}}}}
limits: {{few: {{quota: 1, window: 1h, key: []}}}}
routes:
  - name: app
    match: {{path: /app, methods: [GET, POST]}}
    upstream: app
    limits: [few]
    max_body: 5B
    error_bodies: &bodies
      5xx: {{file: {file}, content_type: text/html}}
      429: {{body: '{{\"later\": true}}', content_type: application/json}}
      4xx: {{body: '', content_type: text/plain}}
  - {{name: lost, match: {{path: /lost}}, upstream: lost, error_bodies: *bodies}}
  - {{name: fixed, match: {{path: /fixed}}, upstream: fixed, error_bodies: *bodies}}
  - {{name: plain, match: {{path: /plain}}, upstream: lost}}
",
        upstream.target()
    )
}

fn content(response: &Response) -> (u16, Option<&str>, String) {
    (response.status, response.header("content-type"), response.text())
}

#[test]
fn the_gateways_own_errors_have_the_routes_bodies() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("5xx.html");
    fs::write(&file, "<p>down</p>").expect("a file");
    on_every_protocol(|protocol| {
        let upstream = Upstream::with_response(UNAVAILABLE);
        let gateway =
            Gateway::for_every_protocol(&rules(&upstream, file.to_str().expect("a path")));
        let mut client = protocol.connect(&gateway);
        // An upstream's own error stays.
        let own = client.get("/app", "");
        assert_eq!(content(&own), (503, Some("text/own"), "busy".to_owned()));
        let refused = client.get("/app", "");
        let json = "{\"later\": true}".to_owned();
        assert_eq!(content(&refused), (429, Some("application/json"), json));
        assert_eq!(refused.number("x-ratelimit-remaining"), 0);
        assert!(
            refused.header("retry-after").is_some() && refused.header("x-request-id").is_some()
        );
        let lost = client.get("/lost", "");
        assert_eq!(content(&lost), (502, Some("text/html"), "<p>down</p>".to_owned()));
        let head = client.ask("HEAD", "/lost", "", "");
        assert_eq!((head.status, head.header("content-length")), (502, Some("11")));
        assert_eq!(content(&client.get("/fixed", "")).2, "fixed");
        // Without a route, and on a route without bodies.
        for (method, path, status) in
            [("DELETE", "/app", 405), ("GET", "/no", 404), ("GET", "/plain", 502)]
        {
            let response = client.ask(method, path, "", "");
            let kind = response.header("content-type");
            assert_eq!((response.status, kind), (status, Some("application/problem+json")));
        }
        let long = client.ask("POST", "/app", "", "too long");
        assert_eq!(content(&long), (413, Some("text/plain"), String::new()));
    });
}

#[test]
fn refusals_to_grpc_stay() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("5xx.html");
    fs::write(&file, "<p>down</p>").expect("a file");
    on_protocols(&HTTP2, |protocol| {
        let upstream = Upstream::hello();
        let gateway =
            Gateway::for_every_protocol(&rules(&upstream, file.to_str().expect("a path")));
        let response = protocol.get(&gateway, "/lost", "Content-Type: application/grpc\r\n");
        assert_eq!(content(&response), (200, Some("application/grpc"), String::new()));
        assert_eq!(response.header("grpc-status"), Some("14"));
    });
}

#[test]
fn a_reload_reads_the_files_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("5xx.html");
    let yaml = rules(&Upstream::hello(), file.to_str().expect("a path"));
    fs::write(&file, "one").expect("a file");
    let gateway = Gateway::for_every_protocol(&yaml);
    let text = || testkit::client::get(gateway.address(), "/lost", "").text();
    assert_eq!(text(), "one");
    fs::write(&file, "two").expect("a file");
    gateway.reload(&yaml).expect("valid");
    assert_eq!(text(), "two");
    fs::remove_file(&file).expect("a file");
    let faults = gateway.reload(&yaml).expect_err("the file is missing");
    assert!(faults.contains("5xx.html: the file does not exist, expected"), "{faults}");
    assert_eq!(text(), "two", "the running configuration stays");
}

#[test]
fn explain_shows_the_type_of_the_body() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("a path").to_owned();
    let (config, file) = (path("tidegate.yaml"), path("5xx.html"));
    fs::write(&file, "down").expect("a file");
    fs::write(&config, rules(&Upstream::hello(), &file)).expect("a file");
    let explained = |headers: &[&str], path: &str| -> Value {
        let mut arguments = vec!["explain", "-c", &config, "--json", "-X", "POST"];
        arguments.extend(headers.iter().flat_map(|line| ["-H", line]));
        arguments.push(path);
        serde_json::from_str(&run(&arguments)).expect("JSON")
    };
    let long = ["Content-Length: 9"];
    let kind = |explanation: &Value| explanation["headers"]["content-type"].clone();
    assert_eq!(kind(&explained(&long, "/app")), "text/plain");
    assert_eq!(
        kind(&explained(&[long[0], "Content-Type: application/grpc"], "/app")),
        "application/grpc"
    );
    assert_eq!(kind(&explained(&[], "/fixed")), Value::Null);
    assert_eq!(kind(&explained(&[], "/nowhere")), "application/problem+json");
    let browser = "Accept: text/html, */*;q=0.8";
    assert_eq!(kind(&explained(&[browser], "/nowhere")), "text/html; charset=utf-8");
    let vary = |explanation: &Value| explanation["headers"]["vary"].clone();
    assert_eq!(vary(&explained(&[browser], "/nowhere")), "Accept");
    assert_eq!(vary(&explained(&[long[0], browser], "/app")), Value::Null);
}
