use testkit::{
    client::Response,
    gateway::Gateway,
    protocol::{HTTP2, on_every_protocol, on_protocols},
    upstream::Upstream,
};

/// The `Accept` that Chromium sends for a page.
const BROWSER: &str = "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,\
    image/apng,*/*;q=0.8,application/signed-exchange;v=b3;q=0.7\r\n";

fn rules(upstream: &Upstream) -> String {
    format!(
        "client: {{token: [header:authorization]}}
upstreams:
  app: {{targets: [{}]}}
  lost: {{targets: ['http://127.0.0.1:1'], retries: 0}}
limits: {{few: {{quota: 1, window: 1h, key: []}}, other: {{quota: 1, window: 1h, key: []}}}}
throttle: {{max_active: 20, capacity: 1000, mode: on}}
routes:
  - {{name: limited, match: {{path: /limited}}, upstream: app, limits: [few], throttle: false}}
  - {{name: throttled, match: {{path: /throttled}}, upstream: app}}
  - {{name: lost, match: {{path: /lost}}, upstream: lost, throttle: false}}
  - name: own
    match: {{path: '/own/{{*rest}}'}}
    upstream: app
    limits: [other]
    throttle: false
    error_bodies:
      429: {{body: '<style>b {{color: red}}</style>{{limit}} {{retry_after}}', content_type: text/html}}
  - name: own-throttled
    match: {{path: /own-throttled}}
    upstream: app
    error_bodies: {{429: {{body: '{{\"limit\": \"{{limit}}\"}}', content_type: application/json}}}}
",
        upstream.target()
    )
}

/// Asserts that the response is a page that works under any policy.
fn assert_is_page(response: &Response, status: u16, text: &str) {
    assert_eq!(response.status, status, "{}", response.head);
    assert_eq!(response.header("content-type"), Some("text/html; charset=utf-8"));
    assert_eq!(response.header("vary"), Some("Accept"));
    assert_eq!(response.header("content-security-policy"), Some("default-src 'none'"));
    let page = response.text();
    assert!(page.starts_with("<!doctype html>") && page.contains(text), "{page}");
    for forbidden in ["<script", "<style", "style=", "href=", "src=", "http-equiv"] {
        assert!(!page.contains(forbidden), "{forbidden} in {page}");
    }
    let id = response.header("x-request-id").expect("an id");
    assert!(page.contains(id), "{page}");
}

#[test]
fn browsers_get_a_page_with_the_wait_in_words() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let gateway = Gateway::for_every_protocol(&rules(&upstream));
        let mut client = protocol.connect(&gateway);
        assert_eq!(client.get("/limited", BROWSER).status, 200);
        let refused = client.get("/limited", BROWSER);
        assert_is_page(&refused, 429, "<h1>Too Many Requests</h1>");
        let minutes = refused.number("retry-after").div_ceil(60);
        let wait = format!("Please try again in {minutes} minutes.");
        assert!(minutes > 58 && refused.text().contains(&wait), "{}", refused.text());
        assert_eq!(refused.number("x-ratelimit-remaining"), 0);
        let throttled = client.get("/throttled", BROWSER);
        assert_is_page(&throttled, 429, "<h1>Too many visitors</h1>");
        assert!(throttled.text().contains("Please try again in "), "{}", throttled.text());
        assert_eq!(throttled.number("x-ratelimit-limit"), 20);
        assert_is_page(&client.get("/lost", BROWSER), 502, "the upstream cannot be reached.");
        assert_is_page(&client.get("/nowhere", BROWSER), 404, "no route matches");
        let head = client.ask("HEAD", "/limited", BROWSER, "");
        assert_eq!((head.status, head.text()), (429, String::new()));
        assert_eq!(head.header("content-type"), Some("text/html; charset=utf-8"));
    });
}

#[test]
fn programs_get_a_problem_document() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let gateway = Gateway::for_every_protocol(&rules(&upstream));
        let mut client = protocol.connect(&gateway);
        for accept in ["", "Accept: */*\r\n", "Accept: application/json, text/html\r\n"] {
            let response = client.get("/throttled", accept);
            assert_eq!(response.header("content-type"), Some("application/problem+json"));
            // A cache that keeps it does not give it to a browser.
            assert_eq!(response.header("vary"), Some("Accept"));
            assert_eq!(response.json()["status"], 429);
        }
    });
    on_protocols(&HTTP2, |protocol| {
        let gateway = Gateway::for_every_protocol(&rules(&Upstream::hello()));
        let headers = format!("{BROWSER}Content-Type: application/grpc\r\n");
        let response = protocol.get(&gateway, "/throttled", headers);
        assert_eq!(response.header("content-type"), Some("application/grpc"));
        assert_eq!((response.header("vary"), response.text()), (None, String::new()));
    });
}

#[test]
fn a_routes_own_body_has_its_variables() {
    on_every_protocol(|protocol| {
        let gateway = Gateway::for_every_protocol(&rules(&Upstream::hello()));
        let mut client = protocol.connect(&gateway);
        assert_eq!(client.get("/own/a", "").status, 200);
        for accept in ["", BROWSER] {
            let refused = client.get("/own/a", accept);
            let wait = refused.number("retry-after");
            assert_eq!(refused.text(), format!("<style>b {{color: red}}</style>other {wait}"));
            assert_eq!(refused.header("vary"), None, "it is the same for all");
        }
        let throttled = client.get("/own-throttled", BROWSER);
        assert_eq!(throttled.json()["limit"], "active-users");
    });
}
