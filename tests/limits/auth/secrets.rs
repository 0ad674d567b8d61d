//! No credential of a client leaves the gateway in the clear: not in a log of any level, a metric,
//! the admin API, a trace, or a command to Redis.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    thread,
    time::Duration,
};

use aws_lc_rs::hmac;
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use serde_json::json;
use testkit::{
    client::{Client, Response, get},
    process::Process,
    redis_server::RedisServer,
    upstream::Upstream,
    wait::{eventually, sleep},
    yaml::fill,
};

use crate::tidegate_command;

const RULES: &str = "
listen: [{address: '127.0.0.1:0'}]
admin: {address: '127.0.0.1:0'}
access_log: ./access.log
traces: {endpoint: '{collector}/v1/traces'}
store: {redis: {shards: [{primary: '{redis}'}]}}
throttle: {max_active: 1000, capacity: 1000}
auth:
  keys: {api_key: {from: [header:x-api-key, query:key, cookie:key]}}
  staff: {basic: {}}
  login: {jwt: {issuer: 'https://id.test', audiences: [orders], secret: 'file:secret'}}
  sso: {forward: {to: '{service}/', request_headers: [cookie, x-ticket], consumer: 'header:x-user', cache: 10s}}
consumers: {redis: true}
plans: {gold: {each: 5}}
limits:
  each: {quota: 3, window: 1h, key: [consumer]}
  raw: {quota: 100, window: 1h, key: ['header:x-api-key', 'header:x-ticket', 'cookie:session', token]}
upstreams: {app: {targets: ['{target}']}}
routes:
  - {name: keys, match: {path: '/keys/{*rest}'}, upstream: app, auth: [keys], limits: [each, raw]}
  - {name: staff, match: {path: /staff}, upstream: app, auth: [staff], limits: [each, raw]}
  - {name: login, match: {path: /login}, upstream: app, auth: [login], limits: [each, raw]}
  - {name: sso, match: {path: /sso}, upstream: app, auth: [sso], limits: [each, raw]}
";

const SECRET: &str = "the-secret-of-the-tokens-issuer-00001";

/// What is in credentials, and must be nowhere else.
const CREDENTIALS: [&str; 12] = [
    SECRET,
    "key-of-acme-1f0c",
    "invented-key-93ab",
    "pass-of-acme-77d1",
    "guess-of-pass-40e2",
    "session-of-ann-8c6b",
    "session-refused-51fa",
    "ticket-of-ann-2b9d",
    "key-to-hash-6a3c",
    "caller-of-override-b7e4",
    "jti-of-token-5d10",
    "twice-sent-key-e318",
];

/// Everything that a Redis was sent, from the start of a monitor on.
struct Monitor(thread::JoinHandle<String>);

impl Monitor {
    fn start(redis: &RedisServer) -> Self {
        let mut socket = TcpStream::connect(("127.0.0.1", redis.port())).expect("Redis");
        socket.write_all(b"MONITOR\r\n").expect("a command");
        let mut first = [0; 5];
        socket.read_exact(&mut first).expect("an answer");
        assert_eq!(&first, b"+OK\r\n");
        // It ends with the server.
        Self(thread::spawn(move || {
            let mut sent = Vec::new();
            let _ = socket.read_to_end(&mut sent);
            String::from_utf8_lossy(&sent).into_owned()
        }))
    }
}

fn token(subject: &str) -> String {
    let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let claims = json!({"iss": "https://id.test", "aud": "orders", "sub": subject, "exp": 4_102_444_800_u64, "jti": "jti-of-token-5d10"});
    let text =
        format!("{}.{}", encode(br#"{"alg":"HS256"}"#), encode(claims.to_string().as_bytes()));
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
    format!("{text}.{}", encode(hmac::sign(&key, text.as_bytes()).as_ref()))
}

fn basic(name: &str, password: &str) -> String {
    STANDARD.encode(format!("{name}:{password}"))
}

/// A service that knows one session.
fn service() -> Upstream {
    Upstream::with_handler(|request, socket| {
        let text = String::from_utf8_lossy(request);
        let answer: &[u8] = if text.contains("session-of-ann-8c6b") {
            b"HTTP/1.1 200 OK\r\nX-User: ann\r\nContent-Length: 0\r\n\r\n"
        } else {
            b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
        };
        socket.write_all(answer).is_ok()
    })
}

fn ask(process: &Process, line: &str, body: &str) -> Response {
    let length = body.len();
    let head =
        format!("{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}");
    Client::connect(process.admin).send(head).read_response()
}

/// Sends right and wrong credentials of each kind. Returns what they were made of.
fn send_credentials(process: &Process) -> Vec<String> {
    let (good, bad) = (token("acme"), token("acme") + "A");
    let passwords = [basic("acme", "pass-of-acme-77d1"), basic("acme", "guess-of-pass-40e2")];
    let bearer = |text: &str| format!("Authorization: Bearer {text}\r\n");
    let key = |text: &str| format!("X-Api-Key: {text}\r\n");
    for (path, headers, status) in [
        ("/keys/a", key("key-of-acme-1f0c"), 200),
        ("/keys/a?key=key-of-acme-1f0c", String::new(), 200),
        ("/keys/a", "Cookie: key=key-of-acme-1f0c; session=session-of-ann-8c6b\r\n".into(), 200),
        ("/keys/a", key("invented-key-93ab"), 401),
        ("/keys/a?key=invented-key-93ab&key=twice-sent-key-e318", String::new(), 400),
        ("/keys/a", key("twice-sent-key-e318") + &key("invented-key-93ab"), 400),
        ("/staff", format!("Authorization: Basic {}\r\n", passwords[0]), 200),
        ("/staff", format!("Authorization: Basic {}\r\n", passwords[1]), 401),
        ("/login", bearer(&good), 200),
        ("/login", bearer(&bad), 401),
        (
            "/sso",
            "Cookie: session=session-of-ann-8c6b\r\nX-Ticket: ticket-of-ann-2b9d\r\n".into(),
            200,
        ),
        ("/sso", "Cookie: session=session-refused-51fa\r\n".into(), 401),
    ] {
        let response = get(process.address, path, &headers);
        assert_eq!(response.status, status, "{path} {headers}: {}", response.head);
        for credential in CREDENTIALS {
            assert!(!response.head.contains(credential) && !response.text().contains(credential));
        }
    }
    let signatures = [good, bad].map(|token| token.rsplit('.').next().unwrap_or("").to_owned());
    passwords.into_iter().chain(signatures).collect()
}

#[test]
fn no_credential_is_in_a_log_a_metric_the_admin_api_a_trace_or_redis() {
    let mut redis = RedisServer::start();
    let monitor = Monitor::start(&redis);
    let (upstream, service) = (Upstream::hello(), service());
    let collector = Upstream::with_response("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let directory = tempfile::tempdir().expect("a directory");
    let values = [
        ("collector", collector.target()),
        ("redis", redis.url()),
        ("service", service.target()),
        ("target", upstream.target()),
    ];
    let path = |name: &str| directory.path().join(name);
    fs::write(path("t.yaml"), fill(RULES, values)).expect("a file");
    fs::write(path("secret"), SECRET).expect("a file");
    let arguments = ["serve", "--log", "trace", "t.yaml"];
    let mut process = Process::start(tidegate_command(directory.path(), &arguments));
    let sha256 = |key: &str| tidegate::auth::KeyHash::of(key.as_bytes()).to_string();
    let record = json!({
        "name": "acme", "plan": "gold", "password": tidegate::auth::hash_password(b"pass-of-acme-77d1").expect("a hash"),
        "keys": [{"id": "one", "sha256": sha256("key-of-acme-1f0c")}],
    });
    let created = ask(&process, "POST /api/consumers", &record.to_string());
    assert_eq!(created.status, 201, "{}", created.text());
    let made = ask(&process, "POST /api/consumers/acme/keys", "{\"id\": \"two\"}");
    assert_eq!(made.status, 201, "{}", made.text());
    let made = made.json()["key"].as_str().expect("a key").to_owned();
    let key = ["key-to-hash-6a3c", "caller-of-override-b7e4", "", ""];
    let wanted = json!({"limit": "raw", "key": key, "quota": 7}).to_string();
    assert_eq!(ask(&process, "PUT /api/overrides", &wanted).status, 200);
    assert_eq!(ask(&process, "DELETE /api/consumers/acme/keys/two", "").status, 204);
    let mut secrets = send_credentials(&process);
    secrets.push(made);
    secrets.extend(CREDENTIALS.map(str::to_owned));
    let count = "/api/limits/raw?key=key-to-hash-6a3c&key=caller-of-override-b7e4&key=&key=";
    let pages =
        ["/metrics", "/api/state", "/api/overrides", "/api/consumers/acme", "/api/config", count];
    let pages = pages.map(|page| (page, get(process.admin, page, "").text()));
    eventually("the access log has the requests", || {
        fs::read_to_string(path("access.log")).is_ok_and(|text| text.lines().count() >= 12)
    });
    eventually("the spans are sent", || {
        let bytes = String::from_utf8_lossy(&collector.received_bytes()).into_owned();
        bytes.matches("http.response.status_code").count() >= 12
    });
    // The last corrections and reports.
    sleep(Duration::from_millis(300));
    process.signal(rustix::process::Signal::TERM);
    process.wait_exit();
    redis.kill();
    let commands = monitor.0.join().expect("no panic");
    assert!(commands.contains("consumers-") && commands.contains(&sha256("key-of-acme-1f0c")));
    let log = process.log();
    assert!(log.contains("\"DEBUG\"") && log.contains("acme"), "{log}");
    let spans = String::from_utf8_lossy(&collector.received_bytes()).into_owned();
    let access = fs::read_to_string(path("access.log")).expect("a log");
    let outputs = [
        ("the process log", log),
        ("Redis", commands),
        ("a trace", spans),
        ("the access log", access),
    ];
    for (place, text) in outputs.into_iter().chain(pages) {
        for secret in &secrets {
            assert!(!text.contains(secret.as_str()), "{secret} in {place}: {text}");
        }
    }
}
