//! The reasons for which targets go out of service, as operators see them.

use std::{
    fmt::Write as _,
    io::{Read, Write},
    net::TcpListener,
    path::Path,
    thread,
};

use testkit::{
    client::get,
    gateway::Gateway,
    tls::{Authority, TlsUpstream},
    upstream::Upstream,
    wait::eventually,
};
use tidegate::clock::Clock;

use super::{START, refusing};

/// A target, and why it fails.
struct Failing {
    target: String,
    reason: &'static str,
}

fn failing(target: String, reason: &'static str) -> Failing {
    Failing { target, reason }
}

fn over_tls(upstream: &TlsUpstream) -> String {
    format!("https://{}", upstream.address)
}

/// A target over TLS whose server answers in plain HTTP. It lives as long as the test process.
fn without_tls() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            let _ = socket.read(&mut [0; 4096]);
            let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    format!("https://{address}")
}

/// Targets that fail in all ways, with the upstreams behind them.
struct FailingTargets {
    list: Vec<Failing>,
    _http: Vec<Upstream>,
    _tls: Vec<TlsUpstream>,
}

fn failing_targets(authority: &Authority, folder: &Path) -> FailingTargets {
    let http = vec![
        Upstream::with_response("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"),
        Upstream::with_response("HTTP/1.1 200 OK\r\nX : y\r\n\r\n"),
        Upstream::with_handler(|_, _| false),
    ];
    let old = authority.issue_for(&["127.0.0.1"], (2000, 1, 1), (2001, 1, 1));
    let early = authority.issue_for(&["127.0.0.1"], (2090, 1, 1), (2099, 1, 1));
    let tls = vec![
        TlsUpstream::hello(Authority::new("strangers").issue(&["127.0.0.1"]).server()),
        TlsUpstream::hello(old.server()),
        TlsUpstream::hello(early.server()),
        TlsUpstream::hello(authority.issue(&["other.test"]).server()),
    ];
    let list = vec![
        failing(refusing(), "connect failed: refused"),
        failing(
            format!("unix:{}/none.sock", folder.display()),
            "connect failed: the socket does not exist",
        ),
        failing(over_tls(&tls[0]), "connect failed: TLS: the issuer of the certificate is unknown"),
        failing(over_tls(&tls[1]), "connect failed: TLS: the certificate has expired"),
        failing(over_tls(&tls[2]), "connect failed: TLS: the certificate is not yet valid"),
        failing(over_tls(&tls[3]), "connect failed: TLS: the certificate is for another name"),
        failing(without_tls(), "connect failed: TLS: the server does not speak TLS"),
        failing(http[0].target(), "status 503"),
        failing(http[1].target(), "malformed response"),
        failing(http[2].target(), "connection lost: closed by the server"),
    ];
    FailingTargets { list, _http: http, _tls: tls }
}

/// The state of the only target of each upstream.
fn targets(gateway: &Gateway) -> Vec<serde_json::Value> {
    let listed = get(gateway.admin(), "/api/upstreams", "").json();
    let upstreams = listed["upstreams"].as_array().expect("upstreams").clone();
    upstreams.iter().map(|upstream| upstream["targets"][0].clone()).collect()
}

fn gateway(failing: &[Failing], ca: &Path, keys: &str) -> Gateway {
    let mut upstreams = String::new();
    let mut routes = String::new();
    for (index, Failing { target, .. }) in failing.iter().enumerate() {
        let tls = if target.starts_with("https:") {
            format!("tls: {{ca: '{}'}}, ", ca.display())
        } else {
            String::new()
        };
        let name = format!("u{index:02}");
        let _ = writeln!(upstreams, "  {name}: {{targets: ['{target}'], {tls}retries: 0, {keys}}}");
        let _ =
            writeln!(routes, "  - {{name: r{index}, match: {{path: /{index}}}, upstream: {name}}}");
    }
    let yaml = format!("upstreams:\n{upstreams}routes:\n{routes}");
    Gateway::start_at(&yaml, Clock::manual(START))
}

#[test]
fn a_failed_health_check_names_its_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let authority = Authority::new("own");
    let ca = authority.write(folder.path(), "ca.pem");
    let all = failing_targets(&authority, folder.path());
    let gateway = gateway(&all.list, &ca, "health: {path: /, unhealthy_after: 1}");
    eventually("each target is down", || {
        targets(&gateway).iter().all(|target| target["status"] == "down")
    });
    for (Failing { target, reason }, state) in all.list.iter().zip(targets(&gateway)) {
        let shown = state["reason"].to_string();
        assert!(shown.contains("health check"), "{target}: {shown}");
        assert!(shown.contains(reason), "{target}: {shown}");
    }
}
