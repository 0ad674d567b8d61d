//! Services that decide who sends a request.

use std::{collections::HashSet, io::Write as _, sync::Mutex};

use testkit::{
    client::{Client, Response, get},
    gateway::Gateway,
    protocol::{Protocol, on_every_protocol},
    upstream::Upstream,
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime, ms};

const START: StoreTime = StoreTime::from_unix_ms(1_700_000_050_000);

const RULES: &str = "
auth:
  sso:
    forward:
      to: '{service}/verify?rd=https://login.example.com'
      request_headers: [cookie, authorization]
      copy: [x-user, x-groups]
      consumer: header:x-user
      plan: header:x-plan
      timeout: 1s
      {more}
    max_failures: {failures}
consumers: {entries: [{name: bread, plan: free}, {name: off, disabled: true}]}
plans: {gold: {each: 3}, free: {each: 2}}
limits: {each: {quota: 100, window: 1h, key: [consumer]}}
upstreams: {app: {targets: ['{target}']}}
routes:
  - {name: all, match: {path: '/{*rest}'}, upstream: app, auth: [sso], limits: [each]}
  - {name: maybe, match: {path: /maybe}, upstream: app, auth: [sso], auth_optional: true, limits: [each]}
  - {name: gold, match: {path: /gold}, upstream: app, auth: [sso], consumers: {plans: [gold]}}
";

fn rules(upstream: &Upstream, service: &Upstream, more: &str) -> String {
    let values = [
        ("target", upstream.target()),
        ("service", service.target()),
        ("more", more.to_owned()),
        ("failures", "off".to_owned()),
    ];
    fill(RULES, values)
}

/// A service as oauth2-proxy and Authelia are: it knows callers by a cookie, and redirects others
/// to a login.
fn sso() -> Upstream {
    Upstream::with_handler(|request, socket| {
        let text = String::from_utf8_lossy(request).into_owned();
        let cookie = text.lines().find_map(|line| line.strip_prefix("cookie: session="));
        let admitted =
            |fields: &str| format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: 2\r\n\r\nok");
        let answer = match cookie {
            Some("ann") => {
                admitted("X-User: ann\r\nX-Groups: a\r\nX-Groups: b\r\nX-Plan: gold\r\n")
            }
            Some("bread") => admitted("X-User: bread\r\nX-Plan: gold\r\n"),
            Some("off") => admitted("X-User: off\r\n"),
            Some("nameless") => admitted(""),
            Some("unnameable") => admitted("X-User: a\tb\r\n"),
            Some("two") => admitted("X-User: a\r\nX-User: b\r\n"),
            Some("denied") => "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno".to_owned(),
            Some("wrong") => {
                "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer realm=\"x\"\r\n\
                              Content-Length: 0\r\n\r\n"
                    .to_owned()
            }
            Some("broken") => {
                "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 4\r\n\r\noops".to_owned()
            }
            Some("cut 2xx") => "HTTP/1.1 200 OK\r\nX-User: ann\r\nContent-Length: 9\r\n\r\ncut".to_owned(),
            Some("long 2xx") => {
                let body = "x".repeat((1 << 20) + 1);
                format!("HTTP/1.1 200 OK\r\nX-User: ann\r\nContent-Length: {}\r\n\r\n{body}", body.len())
            }
            Some("999") => "HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n".to_owned(),
            Some("101") => "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n".to_owned(),
            Some("hop") => {
                "HTTP/1.1 403 Forbidden\r\nConnection: x-hop\r\nX-Hop: 1\r\nContent-Length: 0\r\n\r\n".to_owned()
            }
            Some("rubbish") => "no HTTP at all\r\n\r\n".to_owned(),
            Some("cut") => "HTTP/1.1 401 Unauthorized\r\nContent-Length: 9\r\n\r\ncut".to_owned(),
            Some("hangs") => return true,
            _ => "HTTP/1.1 302 Found\r\nLocation: https://login.example.com/?a=1\r\n\
                  Set-Cookie: csrf=1; Path=/\r\nSet-Cookie: b=2\r\nContent-Type: text/plain\r\n\
                  Connection: keep-alive\r\nContent-Length: 5\r\n\r\nlogin"
                .to_owned(),
        };
        let is_whole = !answer.contains("cut");
        socket.write_all(answer.as_bytes()).is_ok() && is_whole
    })
}

fn cookie(session: &str) -> String {
    format!("Cookie: session={session}\r\n")
}

fn last(upstream: &Upstream) -> String {
    upstream.request_texts().pop().expect("a request").to_ascii_lowercase()
}

#[test]
fn a_prefix_keeps_the_names_of_a_service_apart() {
    let (upstream, service) = (Upstream::hello(), sso());
    let plain = rules(&upstream, &service, "cache: 10s");
    let prefixed = plain.replace("max_failures: off", "prefix: 'sso:'\n    max_failures: off");
    assert_ne!(plain, prefixed);
    for (rules, name, quota) in [(plain, "bread", 2), (prefixed, "sso:bread", 3)] {
        let gateway = Gateway::start_at(&rules, Clock::manual(START));
        // Asked, then remembered.
        for used in 1..=2 {
            let admitted = get(gateway.address(), "/", &cookie("bread"));
            let (limit, own) =
                (admitted.number("x-ratelimit-limit"), admitted.number("x-ratelimit-used"));
            assert_eq!((limit, own), (quota, used), "{name}");
            assert!(last(&upstream).contains(&format!("x-consumer-name: {name}\r\n")));
        }
    }
}

#[test]
fn a_service_names_the_consumer() {
    on_every_protocol(|protocol| {
        let (upstream, service) = (Upstream::hello(), sso());
        let gateway = Gateway::for_every_protocol(&rules(&upstream, &service, ""));
        let forged =
            cookie("ann") + "X-User: root\r\nX-Groups: root\r\nX-Plan: free\r\nX_User: root\r\n";
        let admitted = protocol.get(&gateway, "/a/b?c=d", forged);
        assert_eq!((admitted.status, admitted.number("x-ratelimit-limit")), (200, 3));
        let asked = last(&service);
        for line in [
            "get /verify?rd=https://login.example.com http/1.1",
            "cookie: session=ann",
            "x-forwarded-method: get",
            "x-forwarded-uri: /a/b?c=d",
            "x-forwarded-for: 127.0.0.1",
        ] {
            assert!(asked.lines().any(|own| own == line), "{line}: {asked}");
        }
        let scheme = if protocol.is_tls() { "https" } else { "http" };
        assert!(asked.contains(&format!("x-forwarded-proto: {scheme}\r\n")), "{asked}");
        assert!(asked.contains("x-forwarded-host: ") && !asked.contains("x-user"), "{asked}");
        let head = last(&upstream);
        for line in [
            "x-user: ann",
            "x-groups: a",
            "x-groups: b",
            "x-consumer-name: ann",
            "x-consumer-plan: gold",
        ] {
            assert!(head.lines().any(|own| own == line), "{line}: {head}");
        }
        assert!(!head.contains("root") && !head.contains("x_user"), "{head}");
        if !protocol.is_http2() {
            // Not even by calling it a field of the connection.
            let listed = cookie("ann") + "Connection: x-user, cookie\r\n";
            assert_eq!(protocol.get(&gateway, "/", listed).status, 200);
            assert!(last(&upstream).contains("x-user: ann"));
        }
        // The plan of the record comes first.
        assert_eq!(protocol.get(&gateway, "/", cookie("bread")).number("x-ratelimit-limit"), 2);
        assert_eq!(protocol.get(&gateway, "/gold", cookie("bread")).status, 403);
        assert_eq!(protocol.get(&gateway, "/gold", cookie("ann")).status, 200);
        // Without a name there is no consumer.
        assert_eq!(protocol.get(&gateway, "/gold", cookie("nameless")).status, 403);
        let nameless = protocol.get(&gateway, "/", cookie("nameless"));
        assert_eq!((nameless.status, nameless.number("x-ratelimit-limit")), (200, 100));
        assert!(!last(&upstream).contains("x-consumer"));
        for refused in ["off", "unnameable"] {
            assert_eq!(protocol.get(&gateway, "/", cookie(refused)).status, 401, "{refused}");
        }
    });
}

#[test]
fn another_answer_is_the_clients() {
    on_every_protocol(|protocol| {
        let (upstream, service) = (Upstream::hello(), sso());
        let gateway = Gateway::for_every_protocol(&rules(&upstream, &service, ""));
        let login = protocol.get(&gateway, "/", "");
        assert_eq!((login.status, login.text().as_str()), (302, "login"));
        assert_eq!(login.header("location"), Some("https://login.example.com/?a=1"));
        let head = login.head.to_ascii_lowercase();
        assert!(
            head.contains("set-cookie: csrf=1; path=/") && head.contains("set-cookie: b=2"),
            "{head}"
        );
        assert_eq!(
            head.matches("content-length").count(),
            usize::from(head.contains("content-length"))
        );
        let wrong = protocol.get(&gateway, "/", cookie("wrong"));
        assert_eq!(
            (wrong.status, wrong.header("www-authenticate")),
            (401, Some("Bearer realm=\"x\""))
        );
        let denied = protocol.get(&gateway, "/", cookie("denied"));
        assert_eq!((denied.status, denied.text().as_str()), (403, "no"));
        assert_eq!(upstream.request_count(), 0);
        // A request without credentials is anonymous where that is allowed, and the service is not
        // asked.
        let asked = service.request_count();
        assert_eq!(protocol.get(&gateway, "/maybe", "X-User: root\r\n").status, 200);
        assert!(!last(&upstream).contains("root"));
        assert_eq!(service.request_count(), asked);
        assert_eq!(protocol.get(&gateway, "/maybe", cookie("denied")).status, 403);
    });
}

#[test]
fn a_grpc_client_reads_the_refusal_in_its_status() {
    let (upstream, service) = (Upstream::hello(), sso());
    let gateway = Gateway::for_every_protocol(&rules(&upstream, &service, ""));
    let grpc = "Content-Type: application/grpc\r\nTE: trailers\r\n";
    let status = |session: &str| {
        let refused = Protocol::Http2.get(&gateway, "/", grpc.to_owned() + &cookie(session));
        assert_eq!(refused.status, 200);
        refused.header("grpc-status").map(str::to_owned)
    };
    assert_eq!(status("").as_deref(), Some("16"), "a login is no answer to gRPC");
    assert_eq!((status("denied").as_deref(), status("broken").as_deref()), (Some("7"), Some("14")));
}

#[test]
fn a_failed_service_denies_or_admits() {
    let (upstream, service) = (Upstream::hello(), sso());
    let mut gateway = Gateway::start(&rules(&upstream, &service, ""));
    let ask = |gateway: &Gateway, session: &str| -> Response {
        get(gateway.address(), "/", &cookie(session))
    };
    let broken = ask(&gateway, "broken");
    assert_eq!((broken.status, broken.text().as_str()), (500, "oops"));
    for session in ["rubbish", "cut", "hangs", "two", "cut 2xx", "long 2xx", "101", "999"] {
        let refused = ask(&gateway, session);
        assert_eq!((refused.status, refused.number("retry-after")), (503, 1), "{session}");
        assert_eq!(refused.json()["detail"], "the authentication service gave no usable answer");
    }
    assert_eq!(upstream.request_count(), 0);
    gateway = Gateway::start(&rules(&upstream, &service, "on_failure: allow"));
    for session in ["broken", "rubbish", "cut", "hangs"] {
        assert_eq!(ask(&gateway, session).status, 200, "{session}");
        assert!(!last(&upstream).contains("x-consumer"));
    }
    assert_eq!(ask(&gateway, "denied").status, 403, "an answer is none the less one");
    assert_eq!(
        get(gateway.address(), "/gold", &cookie("broken")).status,
        403,
        "no consumer is known"
    );
}

#[test]
fn an_admission_is_remembered_if_the_route_says_so() {
    let (upstream, service) = (Upstream::hello(), sso());
    let clock = Clock::manual(START);
    let gateway = Gateway::start_at(&rules(&upstream, &service, "cache: 10s"), clock.clone());
    let mut client = Client::connect(gateway.address());
    for path in ["/a", "/b", "/gold"] {
        assert_eq!(client.get(path, &cookie("ann")).status, 200, "{path}");
        assert!(last(&upstream).contains("x-groups: b"));
    }
    assert_eq!(service.request_count(), 1);
    assert_eq!(client.get("/a", &cookie("bread")).status, 200);
    assert_eq!(client.get("/a", &(cookie("ann") + "Authorization: x\r\n")).status, 200);
    assert_eq!(service.request_count(), 3, "each with its own headers");
    // Refusals, and requests without the headers, are asked for each time.
    for _ in 0..2 {
        assert_eq!(client.get("/a", &cookie("denied")).status, 403);
        assert_eq!(client.get("/a", "").status, 302);
    }
    assert_eq!(service.request_count(), 7);
    clock.set(START + ms(9_999));
    assert_eq!((client.get("/gold", &cookie("ann")).status, service.request_count()), (200, 7));
    clock.set(START + ms(10_000));
    assert_eq!((client.get("/gold", &cookie("ann")).status, service.request_count()), (200, 8));
}

#[test]
fn wrong_credentials_of_a_service_are_counted() {
    let (upstream, service) = (Upstream::hello(), sso());
    let yaml = rules(&upstream, &service, "").replace("max_failures: off", "max_failures: 2/1m");
    let gateway = Gateway::start_at(&yaml, Clock::manual(START));
    let status = |headers: &str| get(gateway.address(), "/", headers).status;
    assert_eq!((status(""), status(""), status(&cookie("denied"))), (302, 302, 403));
    assert_eq!((status(&cookie("wrong")), status(&cookie("wrong"))), (401, 401));
    let asked = service.request_count();
    assert_eq!((status(&cookie("ann")), service.request_count()), (429, asked));
}

#[test]
fn the_service_reads_the_path_that_the_upstream_reads() {
    on_every_protocol(|protocol| {
        let (upstream, service) = (Upstream::hello(), sso());
        let gateway = Gateway::for_every_protocol(&rules(&upstream, &service, ""));
        for path in ["/public/../admin", "/public/%2e%2e/%61dmin", "/x/./../admin"] {
            assert_eq!(protocol.get(&gateway, path, cookie("ann")).status, 200, "{path}");
            let read = |request: String| request.lines().next().unwrap_or_default().to_owned();
            let forwarded = read(last(&upstream));
            let asked = last(&service);
            let asked = asked.lines().find_map(|line| line.strip_prefix("x-forwarded-uri: "));
            let asked = asked.expect("a path");
            assert_eq!(forwarded, format!("get {asked} http/1.1"), "{path}");
            assert_eq!(asked, "/admin", "{path}");
        }
    });
}

#[test]
fn headers_that_two_servers_could_read_differently_are_not_passed_on() {
    let (upstream, service) = (Upstream::hello(), sso());
    let gateway = Gateway::start(&rules(&upstream, &service, ""));
    let status = |headers: &str| get(gateway.address(), "/", headers).status;
    assert_eq!(status(&(cookie("ann") + "Authorization: a\r\nAuthorization: b\r\n")), 400);
    assert_eq!(service.request_count(), 0);
    assert_eq!(status("Cookie: session=ann\r\nCookie: b=2\r\n"), 302);
    assert!(last(&service).contains("cookie: session=ann; b=2\r\n"));
    let hop = get(gateway.address(), "/", &cookie("hop"));
    assert_eq!((hop.status, hop.header("x-hop")), (403, None));
}

#[test]
fn a_body_is_not_sent_to_the_service() {
    let (upstream, service) = (Upstream::hello(), sso());
    let gateway = Gateway::start(&rules(&upstream, &service, ""));
    let mut client = Client::connect(gateway.address());
    let post =
        format!("POST /a HTTP/1.1\r\nHost: a\r\n{}Content-Length: 4\r\n\r\nbody", cookie("ann"));
    assert_eq!(client.send(post).read_response().status, 200);
    let asked = last(&service);
    assert!(asked.starts_with("get ") && asked.contains("x-forwarded-method: post"), "{asked}");
    assert!(!asked.contains("body") && !asked.contains("content-length"), "{asked}");
    assert!(last(&upstream).ends_with("body"));
}

/// A service may close an idle connection when the next question is under way. The question is a
/// GET, so it is repeated.
#[test]
fn a_question_that_an_idle_connection_loses_is_repeated() {
    let seen = Mutex::new(HashSet::new());
    let service = Upstream::with_handler(move |_, socket| {
        let peer = socket.peer_addr().expect("an address");
        let answer = b"HTTP/1.1 200 OK\r\nX-User: ann\r\nContent-Length: 0\r\n\r\n";
        seen.lock().expect("no panic").insert(peer) && socket.write_all(answer).is_ok()
    });
    let upstream = Upstream::hello();
    let gateway = Gateway::start_at(&rules(&upstream, &service, ""), Clock::simulated(START));
    for _ in 0..10 {
        assert_eq!(get(gateway.address(), "/", "Cookie: session=ann\r\n").status, 200);
    }
}
