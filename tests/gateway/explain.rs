use std::fs;

use serde_json::{Value, json};
use testkit::{
    client::{Client, Response},
    gateway::Gateway,
    protocol::Protocol,
    tls::Authority,
    upstream::Upstream,
};
use tidegate::cli;

use crate::replay::run;

fn rules(upstream: &Upstream) -> String {
    format!(
        "client: {{trusted_proxies: [127.0.0.1/32], token: [header:authorization, cookie:session]}}
http: {{max_head: 8KiB, max_headers: 10}}
headers: {{standard: draft-11}}
upstreams:
  origin: {{targets: [{}]}}
  hello: {{respond: {{status: 203, body: hello}}}}
limits:
  token: {{quota: 9, window: 10h, key: [token], cost: 2}}
  team: {{quota: 5, window: 10h, key: ['header:x-team', 'query:k', 'path:id']}}
routes:
  - {{name: items, match: {{host: api.test, path: '/v1/items/{{id}}'}}, upstream: origin, limits: [token, team], strip_prefix: /v1}}
  - {{name: write, match: {{path: /write, methods: [PUT, POST]}}, upstream: origin, limits: [token], max_body: 10B}}
  - {{name: wide, match: {{path: '/wide/{{*rest}}'}}, upstream: origin, strip_prefix: /wide}}
  - {{name: hello, match: {{path: /hello}}, upstream: hello, limits: [token]}}
  - {{name: below, match: {{path_prefix: '/below'}}, upstream: origin, strip_prefix: /below}}
",
        upstream.target()
    )
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

fn explained(config: &str, method: &str, url: &str, headers: &[&str]) -> Value {
    let mut arguments = vec!["explain", "-c", config, "--json", "-X", method];
    arguments.extend(headers.iter().flat_map(|line| ["-H", *line]));
    arguments.push(url);
    serde_json::from_str(&run(&arguments)).expect("JSON")
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
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("tidegate.yaml");
    let config = config.to_str().expect("a path");
    fs::write(config, rules(&upstream)).expect("a file");
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
        let explanation = explained(config, method, url, &headers);
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
            let has_body = headers.iter().any(|line| line.starts_with("Content-Length"));
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

#[test]
fn text_output_shows_keys_and_no_secrets() {
    let upstream = Upstream::hello();
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("tidegate.yaml");
    let config = config.to_str().expect("a path");
    fs::write(config, rules(&upstream)).expect("a file");
    let text = run(&[
        "explain",
        "-c",
        config,
        "-H",
        "Authorization: Bearer topsecret",
        "-H",
        "X-Forwarded-For: 192.0.2.7",
        "http://api.test/v1/items/7?k=payments",
    ]);
    let wanted = "request    GET /v1/items/7 for host `api.test` from 192.0.2.7
route      items
limit      token: sliding_window, 9 in 10h, cost 2
           key: token *** (9 bytes)
           admits, 7 left
limit      team: sliding_window, 5 in 10h, cost 1
           key: header:x-team (none), query:k payments, path:id 7
           admits, 4 left
decision   admitted (for a caller with unused quotas)
";
    assert!(text.starts_with(wanted), "{text}");
    let last = format!("forwarded  GET /items/7?k=payments to origin: {}\n", upstream.target());
    assert!(text.ends_with(&last), "{text}");
    assert!(!text.contains("topsecret"));
    assert_eq!(upstream.request_count(), 0, "`explain` connects to nothing");
}

#[test]
fn explanation_names_the_source_of_the_client_address() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("tidegate.yaml");
    let yaml = rules(&Upstream::hello());
    let tier = "quota: 9, tiers: [{match: {part: client_ip, values: [0.0.0.0/0]}, quota: 99}],";
    fs::write(&config, yaml.replace("quota: 9,", tier)).expect("a file");
    let config = config.to_str().expect("a path");
    for (headers, client, source, quota) in [
        (&[][..], "127.0.0.1", "unverified", 9),
        (&["X-Forwarded-For: \u{fe}"], "127.0.0.1", "unverified", 9),
        (&["X-Forwarded-For: \u{fe}, 192.0.2.7"], "192.0.2.7", "forwarded", 99),
    ] {
        let explanation = explained(config, "GET", "http://api.test/hello", headers);
        assert_eq!(
            (&explanation["client"], &explanation["client_source"]),
            (&client.into(), &source.into())
        );
        assert_eq!(explanation["limits"][0]["quota"], quota, "{explanation}");
    }
    let text = run(&["explain", "-c", config, "http://api.test/hello"]);
    assert!(text.contains("from 127.0.0.1\n           a trusted proxy that names no"), "{text}");
    let text = run(&["explain", "-c", config, "--client", "192.0.2.1", "http://api.test/hello"]);
    assert!(!text.contains("trusted proxy"), "{text}");
}

#[test]
fn explanation_names_a_limit_that_does_not_count_the_caller() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("tidegate.yaml");
    let tier =
        "quota: 9, tiers: [{match: {part: client_ip, values: [192.0.2.7]}, quota: unlimited}],";
    let yaml = rules(&Upstream::hello());
    fs::write(&config, yaml.replace("quota: 9,", tier)).expect("a file");
    let config = config.to_str().expect("a path");
    let forwarded = ["X-Forwarded-For: 192.0.2.7"];
    let explanation = explained(config, "GET", "http://api.test/hello", &forwarded);
    let name = explanation["unlimited"][0].as_str().expect("a name");
    assert!(
        explanation["limits"].as_array().expect("a list").iter().all(|own| own["name"] != name)
    );
    let text = run(&["explain", "-c", config, "-H", forwarded[0], "http://api.test/hello"]);
    let line = format!("limit      {name}: not counted, the caller is in an unlimited tier\n");
    assert!(text.contains(&line), "{text}");
}

#[test]
fn invalid_urls_are_reported() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("tidegate.yaml");
    fs::write(&config, rules(&Upstream::hello())).expect("a file");
    let config = config.to_str().expect("a path");
    for url in
        ["", "items", "ftp://a/x", "http://", "http:///x", "http://user:pw@a/x", "http:/\u{e9}"]
    {
        let mut out = Vec::new();
        let exit = cli::run(["tidegate", "explain", "-c", config, url], &mut out);
        assert_eq!((exit, out.is_empty()), (cli::Exit::BadInput, true), "{url}");
    }
}

#[test]
fn targets_are_shown_with_their_scheme_and_protocol() {
    let (config, _directory) = configuration(
        "upstreams:
  clear: {targets: ['http://a.test:81'], protocol: http2}
  auto: {targets: ['http://a.test'], protocol: auto}
  socket: {targets: ['unix:/run/app.sock']}
  tls: {targets: ['https://a.test', 'https://[::1]:8443'], protocol: auto}
routes:
  - {name: clear, match: {path: /clear}, upstream: clear}
  - {name: auto, match: {path: /auto}, upstream: auto}
  - {name: socket, match: {path: /socket}, upstream: socket}
  - {name: tls, match: {path: /tls}, upstream: tls}
",
    );
    for (name, protocol, end) in [
        ("clear", "http2", "clear over HTTP/2: http://a.test:81"),
        ("auto", "http1", "auto: http://a.test:80"),
        ("socket", "http1", "socket: unix:/run/app.sock"),
        (
            "tls",
            "auto",
            "tls over HTTP/2, if the server chooses it: https://a.test:443, https://[::1]:8443",
        ),
    ] {
        let url = format!("/{name}");
        let text = run(&["explain", "-c", &config, &url]);
        assert!(text.contains(&format!("forwarded  GET /{name} to {end}\n")), "{text}");
        let explanation = explained(&config, "GET", &url, &[]);
        assert_eq!(explanation["upstream_protocol"], protocol, "{explanation}");
    }
}

#[test]
fn what_a_listener_decides_is_shown() {
    let files = tempfile::tempdir().expect("a directory");
    let certificate = Authority::new("tests").issue(&["a.test"]).write(files.path(), "a");
    let (config, _directory) = configuration(&format!(
        "listen:
  - {{address: '127.0.0.1:81', redirect_https: true}}
  - {{address: '127.0.0.1:8443', tls: {{certificates: [{{{}}}]}}}}
upstreams: {{hello: {{respond: {{body: hello}}}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: hello}}]
",
        certificate.entry()
    ));
    let redirected = explained(&config, "GET", "http://a.test:81/x?y", &[]);
    assert_eq!(
        (&redirected["status"], &redirected["headers"]["location"], &redirected["route"]),
        (&json!(308), &json!("https://a.test:8443/x?y"), &Value::Null)
    );
    for (url, status) in [
        ("https://a.test:8443/x", 200),
        ("https://b.test:8443/x", 421),
        // No listener of this process: as through another proxy.
        ("https://b.test/x", 200),
        ("http://a.test:8443/x", 200),
        ("/x", 200),
    ] {
        assert_eq!(explained(&config, "GET", url, &[])["status"], status, "{url}");
    }
}

#[test]
fn refusals_of_grpc_are_shown_with_their_metadata() {
    let (config, _directory) = configuration(
        "upstreams: {hello: {respond: {}}}
routes: [{name: one, match: {path: /one}, upstream: hello}]
",
    );
    let headers = ["Content-Type: application/grpc"];
    let explanation = explained(&config, "POST", "/tidegate.Test/Missing", &headers);
    assert_eq!(explanation["status"], 404, "as in the access log");
    let headers = &explanation["headers"];
    assert_eq!(
        (&headers["grpc-status"], &headers["grpc-message"]),
        (&"12".into(), &explanation["reason"])
    );
}

/// The path of a file with `text`, and the directory that it is in.
fn configuration(text: &str) -> (String, tempfile::TempDir) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("tidegate.yaml");
    fs::write(&file, text).expect("a file");
    (file.to_str().expect("a path").to_owned(), directory)
}

#[test]
fn conditions_and_changes_of_a_route_are_explained() {
    let (config, _directory) = configuration(
        "upstreams: {origin: {targets: ['http://a.test:81']}}
routes:
  - {name: plain, match: {path: '/items/{id}'}, upstream: origin}
  - {name: canary, match: {path: '/items/{id}', weight: 5}, upstream: origin}
  - name: v2
    match: {path: '/items/{id}', headers: {x-version: '2', x-old: false}, query: {debug: true}}
    upstream: origin
    host: internal.test
    rewrite: '/v2/{path.id}'
    headers:
      request: {set: {x-user: '{client_ip}'}, remove: [cookie]}
      response: {add: {x-id: '{request_id}'}, remove: [server]}
  - {name: beta, match: {path: /beta, weight: 10}, upstream: origin}
  - {name: old, match: {path: '/old/{*rest}'}, redirect: {to: '/items/{path.rest}?{query}', status: 301}}
  - {name: fixed, match: {path: /fixed}, respond: {status: 503, body: later}}
",
    );
    let plain = explained(&config, "GET", "/items/7", &[]);
    assert_eq!((&plain["route"], &plain["forwarded"]), (&"plain".into(), &"/items/7".into()));
    let share = serde_json::json!([{"route": "canary", "callers": 5}]);
    assert_eq!(plain["changes"]["shares"], share);
    let v2 = explained(&config, "GET", "/items/7?debug", &["X-Version: 2"]);
    assert_eq!((&v2["route"], &v2["forwarded"]), (&"v2".into(), &"/v2/7?debug".into()));
    assert_eq!(
        v2["changes"],
        serde_json::json!({
            "conditions": ["no header x-old", "header x-version: 2", "query debug"],
            "shares": [],
            "request": {
                "written": ["x-user: 127.0.0.1", "host: internal.test"],
                "removed": ["cookie"],
            },
            "response": {"written": ["x-id: {request_id}"], "removed": ["server"]},
        })
    );
    let text = run(&["explain", "-c", &config, "-H", "X-Version: 2", "/items/7?debug=1"]);
    for line in [
        "route      v2\n           matched by no header x-old, header x-version: 2, query debug\n",
        "changes    request x-user: 127.0.0.1\n",
        "changes    request without cookie\n",
        "changes    response without server\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let text = run(&["explain", "-c", &config, "/items/7"]);
    assert!(
        text.contains("route      plain\n           5 % of callers get route canary instead\n")
    );
    let beta = explained(&config, "GET", "/beta", &[]);
    assert_eq!((&beta["route"], &beta["status"]), (&Value::Null, &404.into()));
    assert_eq!(beta["changes"]["shares"], serde_json::json!([{"route": "beta", "callers": 10}]));
    let old = explained(&config, "GET", "/old/7?a=1", &[]);
    assert_eq!(
        (&old["status"], &old["headers"]["location"]),
        (&301.into(), &"/items/7?a=1".into())
    );
    assert_eq!(explained(&config, "GET", "/fixed", &[])["status"], 503);
    let ambiguous = explained(&config, "GET", "/items/7", &["X-Version: 2", "X-Version: 3"]);
    assert_eq!(
        (&ambiguous["status"], &ambiguous["route"]),
        (&400.into(), &serde_json::Value::Null)
    );
}

#[test]
fn the_target_of_a_key_is_shown_with_its_reason() {
    let (config, _directory) = configuration(
        "upstreams:
  app:
    targets: ['http://10.0.0.1:80', 'http://10.0.0.2:80', {url: 'http://10.0.0.3:80', weight: 0}]
    balance: hash
    hash_key: ['header:x-user']
routes: [{name: all, match: {path: '/{*rest}'}, upstream: app}]
",
    );
    let target = |user: usize| {
        let user = format!("x-user: {user}");
        let explanation = explained(&config, "GET", "/a", &[&user]);
        assert!(!explanation["target_reason"].as_str().unwrap().is_empty(), "{explanation}");
        explanation["target"].as_str().unwrap().to_owned()
    };
    assert!((0..20).all(|user| target(user) == target(user)));
    let targets: std::collections::BTreeSet<String> = (0..40).map(target).collect();
    assert_eq!(targets.into_iter().collect::<Vec<_>>(), ["10.0.0.1:80", "10.0.0.2:80"]);
    let text = run(&["explain", "-c", &config, "/a", "-H", "x-user: 7"]);
    assert!(text.contains("\ntarget     10.0.0."), "{text}");
}

#[test]
fn what_a_refused_request_has_found_is_explained() {
    let upstream = Upstream::hello();
    let tiers = "tiers: [{match: {part: client_ip, values: [0.0.0.0/0]}, quota: unlimited}]";
    let text = format!(
        "
upstreams: {{origin: {{targets: ['{}']}}}}
limits: {{free: {{quota: 9, window: 10h, key: [client_ip], {tiers}}}}}
routes:
  - {{name: small, match: {{path: /small}}, upstream: origin, limits: [free], max_body: 10B}}
  - {{name: canary, match: {{path: /items, weight: 5}}, upstream: origin}}
  - {{name: items, match: {{path: /items}}, upstream: origin, cors: {{origins: ['*']}}, deny: [127.0.0.1/32]}}
",
        upstream.target()
    );
    let (config, _directory) = configuration(&text);
    let small = explained(&config, "POST", "/small", &["Content-Length: 11"]);
    assert_eq!((&small["status"], &small["decision"]), (&json!(413), &json!("not_checked")));
    assert_eq!((&small["unlimited"], &small["limits"]), (&json!(["free"]), &json!([])));
    let denied = explained(&config, "GET", "/items", &[]);
    assert_eq!((&denied["status"], &denied["decision"]), (&json!(403), &json!("denied")));
    assert_eq!(denied["changes"]["shares"], json!([{"route": "canary", "callers": 5}]));
    let headers = ["Origin: http://web.test", "Access-Control-Request-Method: GET"];
    let preflight = explained(&config, "OPTIONS", "/items", &headers);
    assert_eq!((&preflight["status"], &preflight["decision"]), (&json!(403), &json!("denied")));
    assert_eq!(preflight["changes"]["shares"], json!([]));
}
