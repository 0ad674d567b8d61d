//! The admin API: its token, and its views of configuration, routes and state.

use std::{fs, path::Path};

use serde_json::Value;
use testkit::{
    client::{Client, Response, get},
    gateway::Gateway,
    process::Process,
    wait::eventually,
};
use tidegate::server::Server;

use crate::tidegate_command;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

const RULES: &str = "upstreams:
  hello: {respond: {body: hi}}
  app: {targets: ['http://127.0.0.1:1']}
limits:
  calls:
    quota: 2
    window: 1h
    key: [token]
    tiers: [{match: {part: 'header:x-key', values: [hush-tier]}, quota: 5}]
throttle: {max_active: 1000, capacity: 1000}
routes:
  - {name: all, match: {path: '/{*rest}'}, upstream: hello, limits: [calls]}
  - name: app
    match: {host: '*.example.com', path: '/app/{id}', methods: [GET, PUT], headers: {x-api-key: hush-match}}
    upstream: app
    throttle: false
    headers: {request: {set: {Authorization: Bearer hush-header, x-plain: shown}}}
  - {name: moved, match: {path: /moved}, redirect: {to: /}, throttle: false}
";

/// A request to the admin API of `gateway`.
fn ask(gateway: &Gateway, line: &str, headers: &str, body: &str) -> Response {
    let length = body.len();
    let head = format!("{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n");
    Client::connect(gateway.admin()).send(format!("{head}{headers}\r\n{body}")).read_response()
}

fn read(gateway: &Gateway, path: &str) -> Value {
    let response = ask(gateway, &format!("GET {path}"), "", "");
    assert_eq!(response.status, 200, "{path}: {}", response.text());
    response.json()
}

/// The first event of `/api/events`.
fn first_event(gateway: &Gateway, headers: &str) -> Value {
    let mut client = Client::connect(gateway.admin());
    client.send(format!("GET /api/events HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n"));
    event(&mut client)
}

/// Reads the head and the first event of a stream.
fn event(client: &mut Client) -> Value {
    let (status, head) = client.read_head().expect("a head");
    assert_eq!(status, 200, "{head}");
    assert!(head.contains("text/event-stream"), "{head}");
    let mut text = String::new();
    while !text.contains("\n\n") {
        text.push(char::from(client.read_exact(1).expect("an event")[0]));
    }
    // One chunk: a line with its length, the event, and an empty line.
    let json =
        text.split_once("data: ").expect("an event").1.split_once("\n\n").expect("its end").0;
    serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}"))
}

fn with_token(directory: &Path, address: &str) -> String {
    let file = directory.join("token");
    fs::write(&file, format!("{TOKEN}\n")).expect("a file");
    format!("admin: {{address: '{address}', token: 'file:{}'}}\n{RULES}", file.display())
}

#[test]
fn requests_need_the_token_except_probes_and_the_page() {
    let directory = tempfile::tempdir().expect("a directory");
    let gateway = Gateway::start(&with_token(directory.path(), "0.0.0.0:0"));
    let right = format!("Authorization: Bearer {TOKEN}\r\n");
    let wrong = format!("Authorization: Bearer {TOKEN}0\r\n");
    let document = ask(&gateway, "GET /api/openapi.json", &right, "").json();
    let paths = document["paths"].as_object().expect("paths");
    let open = ["/", "/dashboard.css", "/dashboard.js", "/favicon.svg", "/healthz", "/readyz"];
    assert_eq!(document["components"]["securitySchemes"]["token"]["scheme"], "bearer");
    for (path, operations) in paths {
        for (method, operation) in operations.as_object().expect("operations") {
            let is_described = operation["responses"].get("401").is_some();
            assert_eq!(is_described, !open.contains(&&**path), "{method} {path}");
            assert_eq!(operation.get("security").is_some(), is_described, "{method} {path}");
            let line =
                format!("{} {}", method.to_ascii_uppercase(), path.replace("{name}", "calls"));
            for headers in ["", &*wrong] {
                let response = ask(&gateway, &line, headers, "");
                let is_open = open.contains(&&**path);
                assert_eq!(response.status == 401, !is_open, "{line}: {}", response.status);
                if !is_open {
                    let challenge = response.header("www-authenticate").expect("a challenge");
                    assert!(challenge.starts_with("Bearer"), "{challenge}");
                    assert!(response.text().contains("admin.token"), "{}", response.text());
                }
            }
        }
    }
    for unknown in ["GET /api/nothing", "GET /api", "GET //api/config", "GET /API/config"] {
        assert_eq!(ask(&gateway, unknown, "", "").status, 401, "{unknown}");
    }
    assert_eq!(ask(&gateway, "GET /metrics", &right, "").status, 200);
    assert_eq!(ask(&gateway, "PUT /api/throttle", &right, "{\"mode\":\"on\"}").status, 200);
    assert!(first_event(&gateway, &right)["uptime_ms"].is_u64());

    let brief = ask(&gateway, "GET /readyz", "", "").json();
    assert_eq!(brief, serde_json::json!({"ready": true}));
    let full = ask(&gateway, "GET /readyz", &right, "").json();
    assert_eq!(full["store"]["kind"], "memory", "{full}");
}

#[test]
fn an_address_beyond_loopback_needs_a_token_that_can_be_used() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("tidegate.yaml");
    let token = directory.path().join("token");
    let fault = |admin: &str| {
        let admin = admin.replace("FILE", &token.display().to_string());
        let listen = "listen: [{address: '127.0.0.1:0'}]";
        fs::write(&path, format!("admin: {{{admin}}}\n{listen}\n{RULES}")).expect("a file");
        match Server::builder(tidegate::clock::Clock::system()).start_file(&path) {
            Ok(_) => panic!("it started with {admin}"),
            Err(error) => error.to_string(),
        }
    };
    for address in ["0.0.0.0:0", "192.0.2.1:9900", "[::]:0"] {
        let fault = fault(&format!("address: '{address}'"));
        assert!(fault.contains("1:18: ") && fault.contains("openssl rand -hex 32"), "{fault}");
    }
    fs::write(&token, "short\n").expect("a file");
    let short = fault("address: '127.0.0.1:0', token: 'file:FILE'");
    assert!(short.contains("shorter than 16 bytes: 5, expected at least 16 random"), "{short}");
    fs::write(&token, "a secret with spaces").expect("a file");
    let unsendable = fault("address: '127.0.0.1:0', token: 'file:FILE'");
    assert!(
        unsendable.contains("visible ASCII") && !unsendable.contains("spaces\""),
        "{unsendable}"
    );
    let missing = fault("address: '127.0.0.1:0', token: 'env:NOWHERE'");
    assert!(missing.contains("NOWHERE is not set"), "{missing}");
    let literal = fault("address: '127.0.0.1:0', token: 'hunter2-hunter2-hunter2'");
    assert!(literal.contains("never the secret itself"), "{literal}");
}

#[test]
fn the_configuration_in_force_is_shown_without_secrets() {
    let gateway = Gateway::start(RULES);
    let shown = read(&gateway, "/api/config");
    let text = shown.to_string();
    assert!(!text.contains("hush"), "{text}");
    assert_eq!(shown["generation"], 1);
    assert_eq!(shown["config"]["limits"]["calls"]["quota"], 2);
    assert_eq!(shown["config"]["routes"][1]["headers"]["request"]["set"]["x-plain"], "***");
    assert_eq!(shown["config"]["drain_timeout"], "2s", "defaults and durations as in the file");

    let variable = RULES.replacen("shown", "'${PLAIN:-hunter2-hunter2}'", 1);
    gateway.reload(&variable).expect("a reload");
    let text = read(&gateway, "/api/config").to_string();
    assert!(text.contains("${PLAIN:-...}") && !text.contains("hunter2"), "{text}");

    let generation = gateway.reload(&RULES.replace("quota: 2", "quota: 7")).expect("a reload");
    let shown = read(&gateway, "/api/config");
    assert_eq!(shown["generation"], generation);
    assert_eq!(shown["config"]["limits"]["calls"]["quota"], 7);
    gateway.reload("routes: []").expect_err("faults");
    assert_eq!(read(&gateway, "/api/config"), shown, "a faulty file replaces nothing");
    let state = read(&gateway, "/api/state");
    let last = &state["configuration"]["last_reload"];
    assert!(last["faults"][0].as_str().is_some_and(|fault| fault.contains("no route")), "{last}");
    // The file watcher may also have read the faulty file.
    let faulty = state["configuration"]["reloads_faulty"].as_u64();
    assert!(faulty.is_some_and(|count| count >= 1), "{state}");
}

#[test]
fn routes_are_listed_with_their_responses() {
    let gateway = Gateway::start(RULES);
    for _ in 0..3 {
        get(gateway.address(), "/", "Authorization: a\r\n");
    }
    gateway.wait_for_metric("tidegate_requests_total{route=\"all\",status=\"4xx\"}", 1);
    let routes = read(&gateway, "/api/routes");
    let [all, app, moved] = [0, 1, 2].map(|index| routes["routes"][index].clone());
    assert_eq!(
        (&all["name"], &all["path"], &all["host"]),
        (&"all".into(), &"/{*rest}".into(), &"*".into())
    );
    assert_eq!((&all["responses"]["2xx"], &all["responses"]["4xx"]), (&2.into(), &1.into()));
    assert_eq!(all["limits"], serde_json::json!(["calls"]));
    assert_eq!((&all["throttle"], &app["throttle"]), (&true.into(), &false.into()));
    assert_eq!((&app["host"], &app["upstream"]), (&"*.example.com".into(), &"app".into()));
    assert_eq!(app["methods"], serde_json::json!(["GET", "PUT"]));
    assert_eq!((&moved["action"], &moved["upstream"]), (&"redirect".into(), &Value::Null));
}

#[test]
fn the_state_counts_what_the_metrics_count_and_names_the_callers_refused_most() {
    let gateway = Gateway::start(RULES);
    for (token, requests) in [("a", 3), ("b", 12), ("c", 5)] {
        for _ in 0..requests {
            get(gateway.address(), "/", &format!("Authorization: {token}\r\n"));
        }
    }
    gateway.wait_for_metric("tidegate_requests_total{route=\"all\"", 20);
    let state = read(&gateway, "/api/state");
    assert_eq!(state["requests"]["responses"]["2xx"], 6);
    assert_eq!(state["requests"]["responses"]["4xx"], 14);
    let counts = state["requests"]["latency"]["counts"].as_array().expect("counts");
    assert_eq!(counts.iter().filter_map(Value::as_u64).sum::<u64>(), 20);
    let limit = &state["limits"][0];
    assert_eq!(
        (&limit["name"], &limit["refused"], &limit["admitted"]),
        (&"calls".into(), &14.into(), &6.into())
    );
    let callers = state["refused_callers"].as_array().expect("callers");
    let refused: Vec<_> = callers.iter().map(|own| own["refused"].as_u64()).collect();
    assert_eq!(refused, [Some(10), Some(3), Some(1)], "{callers:?}");
    // The hash finds the caller and reveals nothing about its token.
    let hash = callers[0]["hash"].as_str().expect("a hash");
    let found = read(&gateway, &format!("/api/limits/calls?hash={hash}"));
    assert_eq!(found, {
        let mut by_key = read(&gateway, "/api/limits/calls?key=b");
        by_key["now_ms"] = found["now_ms"].clone();
        by_key
    });
    assert_eq!(first_event(&gateway, "")["refused_callers"], state["refused_callers"]);
}

#[test]
fn listeners_are_bounded_and_their_places_are_given_back() {
    let gateway = Gateway::start(RULES);
    let listen = || {
        let mut client = Client::connect(gateway.admin());
        client.send("GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
        client
    };
    let mut listeners: Vec<Client> = (0..16).map(|_| listen()).collect();
    for listener in &mut listeners {
        event(listener);
    }
    let refused = listen().read_response();
    assert_eq!(refused.status, 503, "{}", refused.text());
    drop(listeners);
    eventually("a place is free again", || {
        listen().read_head().is_some_and(|(status, _)| status == 200)
    });
}

#[test]
fn the_log_level_changes_at_once() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::create_dir(directory.path().join("config")).expect("a directory");
    let admin = "listen: [{address: '127.0.0.1:0'}]\nadmin: {address: '127.0.0.1:0'}\n";
    fs::write(directory.path().join("config/tidegate.yaml"), format!("{admin}{RULES}"))
        .expect("a file");
    let process = Process::start(tidegate_command(directory.path(), &["serve"]));
    let ask = |line: &str, body: &str| {
        let length = body.len();
        let head =
            format!("{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n");
        Client::connect(process.admin).send(format!("{head}{body}")).read_response()
    };
    assert_eq!(ask("GET /api/log_level", "").json()["level"], "info");
    let off = ask("PUT /api/log_level", "{\"level\":\"error\"}");
    assert_eq!((off.status, &off.json()["level"]), (200, &"error".into()));
    assert_eq!(ask("POST /api/reload", "").status, 200);
    let refused = ask("PUT /api/log_level", "{\"level\":\"loud\"}");
    assert!(refused.status == 400 && refused.text().contains("`loud`"), "{}", refused.text());
    assert_eq!(
        ask("GET /api/log_level", "").json()["level"],
        "error",
        "the refused one changes nothing"
    );
    assert_eq!(ask("PUT /api/log_level", "{\"level\":\"info\"}").status, 200);
    assert_eq!(ask("POST /api/reload", "").json()["generation"], 3);
    eventually("the second reload is logged", || process.log_line("\"generation\":3").is_some());
    assert!(process.log_line("\"generation\":2").is_none(), "{}", process.log());

    let gateway = Gateway::start(RULES);
    let response = self::ask(&gateway, "GET /api/log_level", "", "");
    // Another test of this process may have started a log.
    assert!([200, 409].contains(&response.status), "{}", response.text());
}
