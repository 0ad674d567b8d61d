//! Chromium: scripts of other origins on a route with `cors`, and redirects.

use std::io::Write;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use testkit::{gateway::Gateway, upstream::Upstream};

use crate::tools::{client, run};

/// A page that sends requests and shows their results.
const PAGE: &str = include_str!("scripts/cors.html");

/// An upstream's response, with fields of CORS that would not do.
const RESPONSE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Own: 1\r\nX-Hidden: 1\r\n\
    Access-Control-Allow-Origin: https://upstream.test\r\n\r\nhello";

/// The API, for scripts of this origin.
fn api(upstream: &Upstream, origin: &str) -> Gateway {
    Gateway::start(&format!(
        "upstreams:
  app: {{targets: [{}]}}
  lost: {{targets: ['http://127.0.0.1:1']}}
limits:
  many: {{quota: 1000, window: 1h, key: []}}
  few: {{quota: 1, window: 1h, key: []}}
routes:
  - name: items
    match: {{path: /items, methods: [GET, PUT]}}
    upstream: app
    limits: [many]
    cors: {{origins: ['{origin}'], headers: [content-type, x-token], expose: [x-own], credentials: true}}
  - {{name: any, match: {{path: /any}}, upstream: app, cors: {{origins: ['*'], headers: ['*']}}}}
  - {{name: few, match: {{path: /few}}, upstream: app, limits: [few], cors: &own {{origins: ['{origin}']}}}}
  - {{name: inside, match: {{path: /inside}}, upstream: app, deny: [127.0.0.0/8], cors: *own}}
  - name: lost
    match: {{path: /lost}}
    upstream: lost
    cors: *own
    error_bodies: {{502: {{body: no luck, content_type: text/plain}}}}
  - {{name: nulls, match: {{path: /nulls}}, upstream: app, cors: {{origins: ['null']}}}}
",
        upstream.target()
    ))
}

/// The results that the page at `url` shows.
fn browse(url: &str) -> Value {
    let profile = tempfile::tempdir().expect("a directory");
    let mut chromium = client("chromium", "chromium");
    chromium
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        // Without it, a page from nowhere may not send requests to the loopback interface.
        .arg("--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests")
        // Virtual time stands still while the browser waits for a response.
        .args(["--virtual-time-budget=20000", "--dump-dom", url]);
    let page = run(&mut chromium).succeeded("chromium").out;
    let results =
        page.split_once("<pre id=\"results\">").and_then(|(_, rest)| rest.split_once('<'));
    let (results, _) = results.unwrap_or_else(|| panic!("no results:\n{page}"));
    serde_json::from_str(results).unwrap_or_else(|error| panic!("{error}:\n{page}"))
}

#[test]
fn a_browser_reads_what_the_route_lets_it_read() {
    let body = json!(PAGE.replace("${", "$${"));
    let page = Gateway::start(&format!(
        "upstreams: {{page: {{respond: {{body: {body}, content_type: text/html}}}}}}
routes: [{{name: page, match: {{path: /}}, upstream: page}}]\n"
    ));
    let port = page.address().port();
    let upstream = Upstream::with_response(RESPONSE);
    // One server, and two origins.
    let (own, other) = (format!("http://127.0.0.1:{port}"), format!("http://localhost:{port}"));
    let gateway = api(&upstream, &own);
    let api = format!("http://{}", gateway.address());

    let all = "x-own x-ratelimit-remaining x-request-id";
    let expected = json!({
        "simple": format!("200 hello {all}"),
        "preflight": format!("200 hello {all}"),
        "cached": format!("200 hello {all}"),
        "method": "blocked",
        "header": "blocked",
        "credentials": format!("200 hello {all}"),
        "any": "200 hello x-request-id",
        "any_credentials": "blocked",
        "admitted": "200 hello x-ratelimit-remaining x-request-id",
        "refused": "429 {\"type\" x-ratelimit-remaining x-request-id",
        "denied": "403 {\"type\" x-request-id",
        "lost": "502 no luck x-request-id",
        "nulls": "blocked",
    });
    assert_eq!(browse(&format!("{own}/#{api}")), expected);
    assert_eq!(gateway.metric("tidegate_limit_decisions_total{route=\"items\""), 4);

    // An opaque origin, whose `Origin` is `null`.
    let opaque = format!("data:text/html;base64,{}", STANDARD.encode(PAGE));
    for (page, nulls) in [(format!("{other}/"), "blocked"), (opaque, "200 hello x-request-id")] {
        let blocked = browse(&format!("{page}#{api}"));
        for (name, result) in blocked.as_object().expect("results") {
            let expected = match name.as_str() {
                "any" => "200 hello x-request-id",
                "nulls" => nulls,
                _ => "blocked",
            };
            assert_eq!(result, expected, "{name} of {page:.40}");
        }
    }
    let preflights = upstream.request_texts();
    let preflights: Vec<_> = preflights.iter().filter(|text| text.starts_with("OPTIONS")).collect();
    assert!(preflights.is_empty(), "the upstream receives no preflight: {preflights:?}");
}

/// An upstream that names the method and the target, and redirects as its own server would.
fn echo() -> Upstream {
    Upstream::with_handler(|request, socket| {
        let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line).into_owned();
        let mut words = line.split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let head = String::from_utf8_lossy(request).to_ascii_lowercase();
        let host = head.split("\r\nhost: ").nth(1).and_then(|rest| rest.split("\r\n").next());
        let host = host.unwrap_or_default();
        let location = match target {
            "/login-first" => "/login?next=1".to_owned(),
            "/absolute" => format!("http://{host}/login?next=2"),
            _ => String::new(),
        };
        let answer = if location.is_empty() {
            let body = format!("{method} {target}");
            format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
        } else {
            format!("HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n")
        };
        socket.write_all(answer.as_bytes()).is_ok()
    })
}

#[test]
fn a_browser_follows_redirects_to_where_they_lead() {
    let page = json!(include_str!("scripts/redirects.html").replace("${", "$${"));
    let upstream = echo();
    let redirects: Vec<String> =
        [("moved", 301), ("found", 302), ("other", 303), ("kept", 307), ("permanent", 308)]
            .iter()
            .map(|(name, status)| {
                format!(
                    "  - {{name: {name}, match: {{path: '/{name}/{{id}}'}}, \
                 redirect: {{to: '/echo/{{path.id}}?{{query}}', status: {status}}}}}\n"
                )
            })
            .collect();
    let gateway = Gateway::start(&format!(
        "upstreams:
  page: {{respond: {{body: {page}, content_type: text/html}}}}
  app: {{targets: [{}]}}
routes:
  - {{name: start, match: {{path: '/start/{{name}}'}}, redirect: {{to: '/page/{{path.name}}?{{query}}'}}}}
  - {{name: page, match: {{path: '/page/{{name}}'}}, upstream: page}}
  - {{name: echo, match: {{path: '/echo/{{*rest}}'}}, upstream: app}}
  - {{name: app, match: {{path: '/app/{{*rest}}'}}, upstream: app, strip_prefix: /app, host: upstream}}
{}",
        upstream.target(),
        redirects.concat()
    ));
    let own = format!("http://{}", gateway.address());
    let expected = json!({
        "page": "/page/a%20b?x=%3C1%3E#top",
        // A POST becomes a GET after 301, 302 and 303, and any method is kept after 307 and 308.
        "moved": "200 /echo/7?b=2 GET /echo/7?b=2",
        "found": "200 /echo/7 GET /echo/7",
        "other": "200 /echo/7 GET /echo/7",
        "kept": "200 /echo/7 POST /echo/7",
        "permanent": "200 /echo/7 PUT /echo/7",
        // Characters encoded in the parameter stay in its segment.
        "encoded": "200 /echo/a%2Fb%3Fc%23d GET /echo/a%2Fb%3Fc%23d",
        "slashes": "200 /echo/%2F%2Fevil.test GET /echo/%2F%2Fevil.test",
        // The upstream redirects to its own paths and its own host, which the browser does not see.
        "stripped": "200 /app/login?next=1 GET /login?next=1",
        "absolute": "200 /app/login?next=2 GET /login?next=2",
    });
    assert_eq!(browse(&format!("{own}/start/a%20b?x=%3C1%3E#top")), expected);
}
