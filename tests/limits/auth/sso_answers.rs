//! The answers of oauth2-proxy 7 and of Authelia 4, replayed by a small server that decides by the
//! same headers: where a login leads back to, which answers reach the client, and what the upstream
//! reads.

use std::io::Write as _;

use testkit::{
    client::get, gateway::Gateway, protocol::on_every_protocol, upstream::Upstream, yaml::fill,
};
use tidegate::clock::{Clock, StoreTime};

const START: StoreTime = StoreTime::from_unix_ms(1_700_000_050_000);

/// The page of the book shows these settings.
const RULES: &str = "
auth:
  sso:
    forward: {{settings}}
    max_failures: 5/1m
plans: {staff: {each: 40}}
limits: {each: {quota: 100, window: 1h, key: [consumer]}}
upstreams: {app: {targets: ['{target}']}}
routes:
  - {name: open, match: {path: /open}, upstream: app, auth: [sso], auth_optional: true}
  - {name: all, match: {path: '/{*rest}'}, upstream: app, auth: [sso], limits: [each]}
";

const OAUTH2_PROXY: &str = "
      to: '{service}/oauth2/auth', request_headers: [cookie, authorization, accept, x-requested-with],
      copy: [x-auth-request-user, x-auth-request-email, x-auth-request-groups, x-auth-request-preferred-username],
      consumer: 'header:x-auth-request-preferred-username'";

const OAUTH2_PROXY_LOGIN: &str = "
      to: '{service}/', request_headers: [cookie, authorization, accept, x-requested-with],
      copy: [x-auth-request-user, x-auth-request-email], consumer: 'header:x-auth-request-email'";

const AUTHELIA: &str = "
      to: '{service}/api/authz/forward-auth',
      request_headers: [cookie, authorization, accept, x-requested-with],
      copy: [remote-user, remote-groups, remote-name, remote-email], consumer: 'header:remote-user', cache: 10s";

fn start(settings: &str, upstream: &Upstream, service: &Upstream) -> Gateway {
    let yaml = RULES.replace("{settings}", settings);
    let values = [("target", upstream.target()), ("service", service.target())];
    Gateway::for_every_protocol_at(&fill(&yaml, values), Clock::manual(START))
}

/// A question of the gateway, as a program reads it.
struct Question {
    path: String,
    text: String,
}

impl Question {
    fn read(request: &[u8]) -> Self {
        let text = String::from_utf8_lossy(request).into_owned();
        let path = text.split(' ').nth(1).expect("a path").to_owned();
        Self { path, text }
    }

    fn header(&self, name: &str) -> &str {
        let mut fields = self.text.lines().filter_map(|line| line.split_once(": "));
        let found = fields.find(|(own, _)| own.eq_ignore_ascii_case(name));
        found.map_or("", |(_, value)| value)
    }

    /// The URL that the browser asked for.
    fn url(&self) -> String {
        let part = |name: &str| self.header(&format!("x-forwarded-{name}"));
        format!("{}://{}{}", part("proto"), part("host"), part("uri"))
    }

    fn is_script(&self) -> bool {
        self.header("x-requested-with") == "XMLHttpRequest"
            || !self.header("accept").contains("text/html")
    }
}

fn escaped(url: &str) -> String {
    let escape = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    url.bytes().map(escape).collect()
}

/// An answer with this body, whose head has these lines.
fn answer(status: &str, lines: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nDate: Tue, 14 Nov 2023 22:14:10 GMT\r\n{lines}Content-Length: {length}\r\n\r\n{body}"
    )
}

fn oauth2_proxy() -> Upstream {
    Upstream::with_handler(|request, socket| {
        let question = Question::read(request);
        let session = "_oauth2_proxy=djIu.ann|1700000000|sig=";
        let own = if question.header("cookie").contains(session) {
            "Gap-Auth: ann@example.com\r\nX-Auth-Request-Email: ann@example.com\r\n\
             X-Auth-Request-Groups: staff,admins\r\nX-Auth-Request-Preferred-Username: ann\r\n\
             X-Auth-Request-User: 4fb1ac4e-40c1-4ee8-a3bd\r\n\
             Set-Cookie: _oauth2_proxy=refreshed; Path=/; HttpOnly; Secure\r\n"
        } else {
            ""
        };
        let plain =
            "Content-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\n";
        let answer = match (own, question.path.as_str(), question.is_script()) {
            ("", "/oauth2/auth", _) => answer("401 Unauthorized", plain, "Unauthorized\n"),
            ("", _, true) => answer("401 Unauthorized", "Content-Type: application/json\r\n", "{}"),
            ("", _, false) => {
                let back = format!(
                    "https://id.example.com/authorize?client_id=app&state={}",
                    escaped(&format!("n0nce:{}", question.url()))
                );
                let lines = format!(
                    "Cache-Control: no-cache, no-store, must-revalidate, max-age=0\r\n\
                     Content-Type: text/html; charset=utf-8\r\nExpires: Thu, 01 Jan 1970 00:00:00 UTC\r\n\
                     Location: {back}\r\nSet-Cookie: _oauth2_proxy_csrf=x1; Path=/; HttpOnly; Secure\r\n\
                     X-Accel-Expires: 0\r\n"
                );
                answer("302 Found", &lines, &format!("<a href=\"{back}\">Found</a>.\n\n"))
            }
            (own, "/oauth2/auth", _) => answer("202 Accepted", own, ""),
            (own, ..) => answer("202 Accepted", own, "Authenticated"),
        };
        socket.write_all(answer.as_bytes()).is_ok()
    })
}

fn authelia() -> Upstream {
    Upstream::with_handler(|request, socket| {
        let question = Question::read(request);
        let plain = "Content-Type: text/plain; charset=utf-8\r\n";
        let cookie = "Set-Cookie: authelia_session=9fJ; expires=Tue, 14 Nov 2023 23:14:10 GMT; domain=example.com; path=/; \
                      HttpOnly; secure; SameSite=Lax\r\n";
        let method = question.header("x-forwarded-method");
        let answer = if question.header("cookie").contains("authelia_session=ann") {
            if question.header("x-forwarded-uri").starts_with("/admin") {
                answer("403 Forbidden", plain, "403 Forbidden")
            } else {
                let own = "Remote-User: ann\r\nRemote-Groups: staff,admins\r\nRemote-Name: Ann \u{c9}\r\n\
                           Remote-Email: ann@example.com\r\n";
                answer("200 OK", &format!("{plain}{own}"), "200 OK")
            }
        } else {
            let back =
                format!("https://auth.example.com/?rd={}&rm={method}", escaped(&question.url()));
            let status = match (question.is_script(), method) {
                (true, _) => "401 Unauthorized",
                (false, "GET" | "HEAD" | "OPTIONS") => "302 Found",
                _ => "303 See Other",
            };
            let body = format!("<a href=\"{}\">{status}</a>", back.replace('&', "&amp;"));
            let lines =
                format!("Content-Type: text/html; charset=utf-8\r\nLocation: {back}\r\n{cookie}");
            answer(status, &lines, &body)
        };
        socket.write_all(answer.as_bytes()).is_ok()
    })
}

const BROWSER: &str = "Accept: text/html,application/xhtml+xml,*/*;q=0.8\r\n";
const SCRIPT: &str = "Accept: application/json\r\nX-Requested-With: XMLHttpRequest\r\n";

fn last(upstream: &Upstream) -> String {
    upstream.request_texts().pop().expect("a request").to_ascii_lowercase()
}

#[test]
fn oauth2_proxy_admits_and_refuses() {
    on_every_protocol(|protocol| {
        let (upstream, service) = (Upstream::hello(), oauth2_proxy());
        let gateway = start(OAUTH2_PROXY, &upstream, &service);
        let get = |headers: &str| protocol.get(&gateway, "/a", headers);
        let session = "Cookie: lang=en; _oauth2_proxy=djIu.ann|1700000000|sig=\r\n";
        let admitted = get(&format!(
            "{session}X-Auth-Request-Email: root@example.com\r\nAccept: */*\r\nAccept: text/html\r\n"
        ));
        assert_eq!((admitted.status, admitted.number("x-ratelimit-limit")), (200, 100));
        assert!(admitted.header("set-cookie").is_none(), "the answer is the upstream's");
        let head = last(&upstream);
        for line in [
            "x-auth-request-user: 4fb1ac4e-40c1-4ee8-a3bd",
            "x-auth-request-email: ann@example.com",
            "x-auth-request-groups: staff,admins",
            "x-consumer-name: ann",
        ] {
            assert!(head.lines().any(|own| own == line), "{line}: {head}");
        }
        assert!(!head.contains("root@") && !head.contains("gap-auth"), "{head}");
        assert!(last(&service).contains("accept: */*, text/html\r\n"), "{}", last(&service));
        // More of them than `max_failures`, without a cookie: none is a guess.
        for _ in 0..8 {
            let refused = get(SCRIPT);
            assert_eq!((refused.status, refused.text().as_str()), (401, "Unauthorized\n"));
            assert_eq!(refused.header("x-content-type-options"), Some("nosniff"));
        }
        assert_eq!(get(session).status, 200);
        let stale = "Cookie: _oauth2_proxy=djIu.old|1600000000|sig=\r\n";
        let statuses: Vec<u16> = (0..7).map(|_| get(stale).status).collect();
        assert_eq!(statuses, [401, 401, 401, 401, 401, 429, 429], "cookies that are refused are");
    });
}

#[test]
fn a_login_at_oauth2_proxy_leads_back() {
    on_every_protocol(|protocol| {
        let (upstream, service) = (Upstream::hello(), oauth2_proxy());
        let gateway = start(OAUTH2_PROXY_LOGIN, &upstream, &service);
        let login = protocol.get(&gateway, "/a/../b%20c?d=e&f", BROWSER);
        assert_eq!(login.status, 302, "{}", login.head);
        let asked = last(&service);
        let host = asked.lines().find_map(|line| line.strip_prefix("x-forwarded-host: "));
        let back = format!("{}://{}/b%20c?d=e&f", protocol.scheme(), host.expect("a host"));
        let location = login.header("location").expect("a location");
        assert!(location.ends_with(&escaped(&back)), "{location} {back}");
        assert_eq!(
            login.header("set-cookie"),
            Some("_oauth2_proxy_csrf=x1; Path=/; HttpOnly; Secure")
        );
        assert_eq!(
            login.header("cache-control"),
            Some("no-cache, no-store, must-revalidate, max-age=0")
        );
        assert!(login.text().starts_with("<a href=\"https://id.example.com/"), "{}", login.text());
        assert_eq!(protocol.get(&gateway, "/a", SCRIPT).status, 401);
        assert_eq!(upstream.request_count(), 0);
        // Where credentials are optional, a browser without a cookie is anonymous, whatever it
        // accepts.
        let asked = service.request_count();
        assert_eq!(protocol.get(&gateway, "/open", BROWSER).status, 200);
        assert_eq!(service.request_count(), asked);
    });
}

#[test]
fn authelia_admits_redirects_and_forbids() {
    on_every_protocol(|protocol| {
        let (upstream, service) = (Upstream::hello(), authelia());
        let gateway = start(AUTHELIA, &upstream, &service);
        for (method, headers, status) in [
            ("GET", BROWSER, 302),
            ("POST", BROWSER, 303),
            ("DELETE", BROWSER, 303),
            ("GET", SCRIPT, 401),
            ("POST", SCRIPT, 401),
        ] {
            let login = protocol.connect(&gateway).ask(method, "/a?b=c", headers, "");
            assert_eq!(login.status, status, "{method}: {}", login.head);
            let location = login.header("location").expect("a location");
            let start = format!("https://auth.example.com/?rd={}%3A%2F%2F", protocol.scheme());
            assert!(location.starts_with(&start), "{location}");
            assert!(location.ends_with(&format!("%2Fa%3Fb%3Dc&rm={method}")), "{location}");
            assert!(
                login
                    .header("set-cookie")
                    .is_some_and(|own| own.starts_with("authelia_session=9fJ; "))
            );
        }
        assert_eq!(upstream.request_count(), 0);
        let session = format!(
            "{BROWSER}Cookie: authelia_session=ann\r\nRemote-User: root\r\nRemote_Groups: root\r\n"
        );
        let admitted = protocol.get(&gateway, "/a", &session);
        assert_eq!(admitted.status, 200, "{}", admitted.head);
        let head = last(&upstream);
        for line in [
            "remote-user: ann",
            "remote-groups: staff,admins",
            "remote-email: ann@example.com",
            "x-consumer-name: ann",
        ] {
            assert!(head.lines().any(|own| own == line), "{line}: {head}");
        }
        assert!(!head.contains("root"), "{head}");
        assert!(upstream.request_texts().pop().is_some_and(|head| head.contains("Ann \u{c9}")));
        // Remembered, so a path of its own needs a method without `cache`: as the page says.
        let asked = service.request_count();
        assert_eq!(protocol.get(&gateway, "/admin", &session).status, 200);
        assert_eq!(service.request_count(), asked);
        let other = format!("{session}X-Requested-With: x\r\n");
        let forbidden = protocol.get(&gateway, "/admin", &other);
        assert_eq!((forbidden.status, forbidden.text().as_str()), (403, "403 Forbidden"));
    });
}

#[test]
fn an_admission_without_credentials_is_not_remembered_for_others() {
    // It admits by the address, as Authelia's `networks` do.
    let service = Upstream::with_handler(|request, socket| {
        let question = Question::read(request);
        let answer = match question.header("x-forwarded-for") {
            "192.0.2.1" => answer("200 OK", "", "200 OK"),
            _ => answer("403 Forbidden", "", "403 Forbidden"),
        };
        socket.write_all(answer.as_bytes()).is_ok()
    });
    let upstream = Upstream::hello();
    let yaml = RULES.replace("{settings}", AUTHELIA) + "client: {trusted_proxies: [127.0.0.0/8]}\n";
    let values = [("target", upstream.target()), ("service", service.target())];
    let gateway = Gateway::start_at(&fill(&yaml, values), Clock::manual(START));
    let status = |address: &str| {
        let headers = format!("Accept: */*\r\nX-Forwarded-For: {address}\r\n");
        get(gateway.address(), "/a", &headers).status
    };
    assert_eq!((status("192.0.2.1"), status("192.0.2.2"), status("192.0.2.1")), (200, 403, 200));
    assert_eq!(service.request_count(), 3);
}
