//! curl as the client, over every protocol.

use std::{ffi::OsStr, fs, io::Write, path::Path};

use testkit::{upstream::Upstream, yaml::fill};
use tidegate::clock::{Clock, StoreTime};

use crate::{
    edge::{Edge, Listener, NAME, PARTNERS, WAYS, Way},
    tools::{self, run},
};

/// The response that curl received, or its error.
pub(crate) struct Answer {
    /// 0: no response.
    pub(crate) status: u16,
    /// The HTTP version: `1.1` or `2`.
    pub(crate) version: String,
    /// The heads of the response and of interim ones.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// What curl says about the connection and its end.
    pub(crate) log: String,
}

impl Answer {
    /// The value of a field; empty if it is absent.
    pub(crate) fn field(&self, name: &str) -> &str {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(':'));
        let field = fields.find(|(key, _)| key.eq_ignore_ascii_case(name));
        field.map_or("", |(_, value)| value.trim())
    }
}

/// Requests `url` from 127.0.0.1, whatever host it names, trusting the authority in the file `ca`.
pub(crate) fn curl(ca: &Path, arguments: &[impl AsRef<OsStr>], url: &str) -> Answer {
    let directory = tempfile::tempdir().expect("a directory");
    let [head, body] = ["head", "body"].map(|name| directory.path().join(name));
    let mut command = tools::client("curl", "curl");
    // Without the user's configuration and proxy.
    command.args(["-q", "--noproxy", "*", "--connect-to", "::127.0.0.1:"]);
    command.args(["--silent", "--verbose", "--max-time", "30", "--cacert"]).arg(ca);
    command.arg("--dump-header").arg(&head).arg("--output").arg(&body);
    command.args(["--write-out", "%{http_code} %{http_version}"]).args(arguments).arg(url);
    let output = run(&mut command);
    let (status, version) = output.out.split_once(' ').unwrap_or_default();
    let text = |path| fs::read(path).unwrap_or_default();
    Answer {
        status: status.parse().unwrap_or_default(),
        version: version.to_owned(),
        head: String::from_utf8_lossy(&text(head)).into_owned(),
        body: text(body),
        log: output.err,
    }
}

/// Sends the request's body back.
pub(crate) fn echo() -> Upstream {
    Upstream::with_handler(|request, socket| {
        let end = request.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
        let body = &request[end + 4..];
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        socket.write_all(head.as_bytes()).is_ok() && socket.write_all(body).is_ok()
    })
}

/// A route of every path to `upstream`.
pub(crate) fn route_to(upstream: &Upstream) -> String {
    fill(
        "
        upstreams: {origin: {targets: ['{target}']}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        [("target", upstream.target())],
    )
}

#[test]
fn curl_bodies_of_1_mib_pass_both_ways_over_every_protocol() {
    let edge = Edge::start(&route_to(&echo()));
    let (file, bytes) = edge.files.body(1 << 20);
    let body = format!("@{}", file.display());
    for way in &WAYS {
        for more in [&[][..], &["--header", "Expect: 100-continue"]] {
            let arguments = [way.arguments, &["--data-binary", &body], more].concat();
            let answer = curl(&edge.files.ca, &arguments, &edge.url(way.listener, NAME, "/echo"));
            assert_eq!((answer.status, &*answer.version), (200, way.http), "{}", answer.log);
            assert!(answer.body == bytes, "{way:?}: {} bytes", answer.body.len());
            let handshake = format!("SSL connection using {}", way.tls);
            assert!(way.tls.is_empty() || answer.log.contains(&handshake), "{}", answer.log);
            let is_interim = |line: &str| line.starts_with("HTTP/") && line.contains(" 100");
            let continues = answer.head.lines().any(is_interim);
            assert_eq!(continues, !more.is_empty(), "{way:?}: {}", answer.head);
        }
    }
}

/// curl 7.88 reports no status if it reads the reset of the stream together with the response.
#[test]
fn curl_reports_the_refusal_of_an_upload_over_http2() {
    let upstream = Upstream::impatient();
    let edge = Edge::start(&fill(
        "
        limits: {few: {quota: 1, window: 1h, key: []}}
        upstreams: {origin: {targets: ['{target}']}, hello: {respond: {body: hello}}}
        routes:
          - {name: open, match: {path: /open}, upstream: origin}
          - {name: few, match: {path: /few}, upstream: hello, limits: [few]}
          - {name: short, match: {path: /short}, upstream: hello, max_body: 10B}
          - {name: denied, match: {path: /denied}, upstream: hello, deny: [0.0.0.0/0]}
        ",
        [("target", upstream.target())],
    ));
    let url = |way: &Way, path| edge.url(way.listener, NAME, path);
    let first = curl(&edge.files.ca, WAYS[0].arguments, &url(&WAYS[0], "/few"));
    assert_eq!(first.status, 200, "{}", first.log);
    for (size, rounds) in [(1_000_000, 5), (8 << 20, 1)] {
        let (file, _) = edge.files.body(size);
        let body = format!("@{}", file.display());
        for way in WAYS.iter().filter(|way| way.http == "2") {
            for (path, status) in [("/few", 429), ("/short", 413), ("/denied", 403), ("/open", 413)]
            {
                for _ in 0..rounds {
                    let arguments =
                        [way.arguments, &["--header", "Expect:", "--data-binary", &body]].concat();
                    let answer = curl(&edge.files.ca, &arguments, &url(way, path));
                    assert_eq!(answer.status, status, "{way:?} {path} {size}: {}", answer.log);
                }
            }
        }
    }
}

#[test]
fn curl_refusals_are_equal_over_every_protocol() {
    const LIMITS: &str = "
limits: {few: {quota: 2, window: 1h, key: [client_ip]}}
upstreams: {hello: {respond: {body: hello}}}
routes: [{name: few, match: {path: /few}, upstream: hello, limits: [few]}]
";
    const FIELDS: [&str; 9] = [
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
        "x-ratelimit-used",
        "x-ratelimit-resource",
        "retry-after",
        "content-type",
        "content-length",
        "cache-control",
    ];
    // The clock stands still, so that the times are also equal.
    let edge = Edge::start_at(LIMITS, Clock::manual(StoreTime::from_unix_ms(1_700_000_000_000)));
    let get = |way: &crate::edge::Way| {
        curl(&edge.files.ca, way.arguments, &edge.url(way.listener, NAME, "/few"))
    };
    for (way, remaining) in WAYS.iter().zip(["1", "0"]) {
        let answer = get(way);
        assert_eq!((answer.status, answer.field("x-ratelimit-remaining")), (200, remaining));
    }
    let outcome = |way| {
        let answer = get(way);
        let mut body: serde_json::Value = serde_json::from_slice(&answer.body).expect("JSON");
        body["request-id"].take();
        let fields = FIELDS.map(|name| answer.field(name).to_owned());
        (answer.status, fields, body)
    };
    let first = outcome(&WAYS[0]);
    assert_eq!(first.0, 429);
    for (name, value) in FIELDS.iter().zip(&first.1).take(6) {
        assert!(!value.is_empty(), "no {name}");
    }
    for way in &WAYS[1..] {
        assert_eq!(outcome(way), first, "{way:?}");
    }
}

#[test]
fn curl_needs_a_client_certificate_where_one_is_asked_for() {
    let edge = Edge::start(&route_to(&Upstream::hello()));
    let files = &edge.files;
    let partner = files.issue("partner", &["partner"]);
    let stranger = testkit::tls::Authority::new("strangers").issue(&["stranger"]);
    let stranger = stranger.write(files.directory(), "stranger");
    let shown = |identity: &testkit::tls::IdentityFiles| {
        let paths = [&identity.cert, &identity.key].map(|path| path.display().to_string());
        let [cert, key] = paths;
        vec!["--cert".to_owned(), cert, "--key".to_owned(), key]
    };
    for way in WAYS.iter().filter(|way| !way.tls.is_empty()) {
        let get = |host: &str, identity: &[String]| {
            let own: Vec<String> = way.arguments.iter().map(ToString::to_string).collect();
            curl(&files.ca, &[&own, identity].concat(), &edge.url(way.listener, host, "/a"))
        };
        let accepted = get(PARTNERS, &shown(&partner));
        assert_eq!((accepted.status, &*accepted.version), (200, way.http), "{}", accepted.log);
        for identity in [vec![], shown(&stranger)] {
            let refused = get(PARTNERS, &identity);
            // With TLS 1.3, the client may be writing its request when it is refused, and not read
            // the alert.
            let is_told =
                ["alert", "Broken pipe", "reset"].iter().any(|end| refused.log.contains(end));
            assert!(refused.status == 0 && is_told, "{way:?}: {}", refused.log);
        }
        assert_eq!(get(NAME, &[]).status, 200, "{way:?}");
    }
    let failed = "tidegate_connections_failed_total{reason=\"tls\"}";
    edge.gateway.wait_for_metric(failed, 12);
}

#[test]
fn curl_follows_the_redirect_to_https_with_its_body() {
    let edge = Edge::start(&route_to(&echo()));
    let url = edge.url(Listener::Redirect, NAME, "/a/b?c=d");
    for protocol in ["--http1.1", "--http2-prior-knowledge"] {
        let redirect = curl(&edge.files.ca, &[protocol], &url);
        assert_eq!(redirect.status, 308, "{}", redirect.log);
        let location = edge.url(Listener::Tls, NAME, "/a/b?c=d");
        assert_eq!(redirect.field("location"), location);
        let arguments = [protocol, "--location", "--data", "a body"];
        let followed = curl(&edge.files.ca, &arguments, &url);
        assert_eq!((followed.status, &*followed.body), (200, &b"a body"[..]), "{}", followed.log);
    }
}

#[test]
fn curl_reuses_a_connection_for_parallel_requests() {
    let edge = Edge::start(&route_to(&Upstream::hello()));
    for way in &WAYS {
        let opened = || edge.gateway.metric("tidegate_opened_connections_total");
        let before = opened();
        let url = edge.url(way.listener, NAME, "/[1-40]");
        let answer = curl(&edge.files.ca, way.arguments, &url);
        assert_eq!(answer.log.matches("Re-using existing connection").count(), 39, "{way:?}");
        assert_eq!(opened(), before + 1, "{way:?}");
    }
}
