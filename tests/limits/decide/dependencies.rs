use std::io::Write as _;

use testkit::{
    client::{Client, get},
    gateway::Gateway,
    upstream::Upstream,
    wait::eventually,
    yaml::fill,
};
use tidegate::auth::KeyHash;

use super::about;

#[test]
fn a_service_is_asked_about_the_asked_request() {
    let service = Upstream::with_handler(|request, socket| {
        let text = String::from_utf8_lossy(request);
        let answer = if text.contains("session=ann") {
            "HTTP/1.1 200 OK\r\nX-User: ann\r\nX-Groups: a\r\nContent-Length: 0\r\n\r\n"
        } else {
            "HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n"
        };
        socket.write_all(answer.as_bytes()).is_ok()
    });
    let gateway = Gateway::start(&fill(
        "
client: {trusted_proxies: [127.0.0.1/32]}
auth:
  sso: {forward: {to: '{service}', request_headers: [cookie], copy: [x-user, x-groups], consumer: 'header:x-user'}}
consumers: {entries: []}
limits: {each: {quota: 1, window: 1h, key: [consumer]}}
routes:
  - {name: asked, match: {path: /asked}, auth: [sso], limits: [each], decide: {}}
  - {name: nginx, match: {path: /nginx}, auth: [sso], limits: [each], decide: {refuse_status: 403}}
",
        [("service", service.target())],
    ));
    let mut client = Client::connect(gateway.address());
    let question = about("PUT", "api.test:8443", "/items//7?x=1");
    let known = format!("{question}Cookie: session=ann\r\nX-Groups: admin\r\n");
    let admitted = client.get("/asked", &known);
    assert_eq!(admitted.status, 204, "{}", admitted.head);
    for (name, value) in [("x-user", "ann"), ("x-groups", "a"), ("x-consumer-name", "ann")] {
        assert_eq!(admitted.header(name), Some(value), "{}", admitted.head);
    }
    let asked = service.request_texts().pop().expect("a question").to_lowercase();
    for line in [
        "x-forwarded-method: put\r\n",
        "x-forwarded-host: api.test:8443\r\n",
        "x-forwarded-uri: /items/7?x=1\r\n",
        "x-forwarded-for: 192.0.2.1\r\n",
        "x-forwarded-proto: https\r\n",
    ] {
        assert!(asked.contains(line), "{line}\n{asked}");
    }
    assert_eq!(client.get("/asked", &known).status, 429);
    let login = client.get("/asked", &question);
    assert_eq!((login.status, login.header("location")), (302, Some("/login")));
    // nginx would take a redirect for a failure.
    let login = client.get("/nginx", &question);
    assert_eq!((login.status, login.number("x-tidegate-status")), (403, 302));
}

#[test]
fn the_throttle_admits_the_active_consumers() {
    let [acme, bread] = ["acme", "bread"].map(|name| KeyHash::of(name.as_bytes()).to_string());
    let gateway = Gateway::start(&fill(
        "
client: {trusted_proxies: [127.0.0.1/32]}
auth: {keys: {api_key: {}}}
consumers: {entries: [{name: acme, keys: [{sha256: {acme}}]}, {name: bread, keys: [{sha256: {bread}}]}]}
throttle: {max_active: 10, capacity: 1000}
routes:
  - {name: asked, match: {path: /asked}, auth: [keys], decide: {}}
  - {name: open, match: {path: /open}, decide: {}}
  - {name: free, match: {path: /free}, throttle: false, decide: {}}
",
        [("acme", acme), ("bread", bread)],
    ));
    eventually("it is ready", || get(gateway.admin(), "/readyz", "").status == 200);
    let mut client = Client::connect(gateway.address());
    let mut ask = |path: &str, key: &str| {
        client.get(path, &format!("{}X-Api-Key: {key}\r\n", about("GET", "a.test", "/x"))).status
    };
    assert_eq!(ask("/asked", "acme"), 204);
    assert_eq!(ask("/asked", "invented"), 401);
    // Nothing checks a token on a route without `auth`, so it makes no user active.
    assert_eq!(ask("/open", "bread"), 204);
    assert_eq!(gateway.metric("tidegate_throttle_recorded_total"), 1);
    let forced = Client::connect(gateway.admin())
        .send("PUT /api/throttle HTTP/1.1\r\nHost: localhost\r\nContent-Length: 13\r\n\r\n{\"mode\":\"on\"}")
        .read_response();
    assert_eq!(forced.status, 200, "{}", forced.head);
    eventually("it throttles", || ask("/open", "bread") == 429);
    assert_eq!(ask("/asked", "acme"), 204, "it is active");
    assert_eq!(ask("/asked", "bread"), 429);
    assert_eq!(ask("/free", "bread"), 204);
}

#[test]
fn each_limit_decides_what_becomes_of_questions_while_redis_is_lost() {
    let gateway = Gateway::start(
        "
client: {trusted_proxies: [127.0.0.1/32]}
store: {redis: {shards: [{primary: 'redis://127.0.0.1:1'}]}}
limits:
  open: {quota: 1, window: 1h, on_failure: open}
  closed: {quota: 1, window: 1h, on_failure: closed}
  local: {quota: 1, window: 1h}
routes:
  - {name: open, match: {path: /open}, limits: [open], decide: {}}
  - {name: closed, match: {path: /closed}, limits: [closed], decide: {}}
  - {name: nginx, match: {path: /nginx}, limits: [closed], decide: {refuse_status: 403}}
  - {name: local, match: {path: /local}, limits: [local], decide: {}}
",
    );
    let mut client = Client::connect(gateway.address());
    let mut ask = |path: &str| client.get(path, &about("GET", "a.test", "/x"));
    assert_eq!([ask("/open").status, ask("/open").status], [204, 204]);
    assert_eq!(ask("/closed").status, 503);
    let refused = ask("/nginx");
    assert_eq!((refused.status, refused.number("x-tidegate-status")), (403, 503));
    assert_eq!([ask("/local").status, ask("/local").status], [204, 429]);
}
