use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use rustix::process::Signal;
use testkit::{
    backend::{MEMORY_AND_REDIS, on_each},
    client::{Client, Response, get},
    gateway::Gateway,
    process::Process,
    protocol::PROTOCOLS,
    upstream::{ResponseGate, Upstream},
    wait::{eventually, sleep},
};
use tidegate::{
    clock::{Clock, StoreTime},
    server::Server,
};

use crate::{binary::delayed_upstream, tidegate_command};

/// A configuration whose fixed response is `word`.
pub(crate) fn fixed_response(word: &str) -> String {
    format!(
        "listen: [{{address: \"127.0.0.1:0\"}}]
admin: {{address: \"127.0.0.1:0\", hosts: [gateway.test]}}
workers: 2
access_log: off
drain_timeout: 2s
upstreams: {{hello: {{respond: {{body: {word}}}}}}}
limits: {{many: {{quota: 1000000, window: 1h}}}}
routes: [{{name: a, match: {{path: /a}}, upstream: hello, limits: [many]}}]
"
    )
}

pub(crate) fn post_reload(admin: std::net::SocketAddr) -> Response {
    let mut client = Client::connect(admin);
    client.send("POST /api/reload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
    client.read_response()
}

#[test]
fn fifty_reloads_under_load_lose_no_request_and_no_counter() {
    const CLIENTS: usize = 8;
    let upstream = Upstream::hello();
    let yaml = |round: u64| {
        let (quota, idle) = (1_000_000 + round, 10 + round % 3);
        format!(
            "upstreams: {{origin: {{targets: [{}], idle_timeout: {idle}s}}}}
limits: {{many: {{quota: {quota}, window: 24h, resolution: 1, key: []}}}}
routes: [{{name: a, match: {{path: /a}}, upstream: origin, limits: [many]}}]
",
            upstream.target()
        )
    };
    on_each(&MEMORY_AND_REDIS, |backend| {
        let fleet =
            backend.start(&yaml(0), &Clock::manual(StoreTime::from_unix_ms(1_700_000_000_000)));
        let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            for number in 0..CLIENTS {
                // The protocols in turn, also in memory.
                let gateway = &fleet.gateways[number % fleet.gateways.len()];
                let protocol = PROTOCOLS[number / 2];
                let (stop, sent) = (&stop, &sent);
                scope.spawn(move || {
                    let mut persistent = protocol.connect(gateway);
                    while !stop.load(Ordering::Relaxed) {
                        // One client in three reconnects for each request.
                        let response = match number % 3 {
                            0 => protocol.get(gateway, "/a", "Connection: close\r\n"),
                            _ => persistent.get("/a", ""),
                        };
                        assert_eq!((response.status, &*response.body), (200, &b"hello"[..]));
                        assert!(response.number("X-RateLimit-Limit") >= 1_000_000);
                        sent.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for round in 1..=50 {
                let before = sent.load(Ordering::Relaxed);
                if round % 5 == 0 {
                    for gateway in &fleet.gateways {
                        gateway.reload("routes: [").expect_err("a fault");
                    }
                } else {
                    fleet.reload(&yaml(round));
                }
                eventually("requests continue", || sent.load(Ordering::Relaxed) >= before + 20);
            }
            stop.store(true, Ordering::Relaxed);
        });
        let last = fleet.get("/a", "");
        assert_eq!(last.number("X-RateLimit-Used"), sent.into_inner() + 1, "a counter was lost");
        assert_eq!(last.number("X-RateLimit-Limit"), 1_000_049);
    });
}

#[test]
fn a_faulty_reload_keeps_the_old_rules() {
    let gateway = Gateway::start(&fixed_response("old"));
    gateway.write_configuration(&fixed_response("new").replace("quota: 1000000", "quota: x"));
    let refused = post_reload(gateway.admin());
    assert_eq!(refused.status, 400);
    assert_eq!(refused.header("Content-Type"), Some("application/problem+json"));
    let faults = refused.json()["faults"].clone();
    assert_eq!(faults.as_array().map(Vec::len), Some(1), "{faults}");
    let fault = faults[0].as_str().expect("text");
    assert!(fault.contains("tidegate.yaml:7:24: `x`, expected a whole number"), "{fault}");
    assert_eq!(get(gateway.address(), "/a", "").text(), "old");
    let response = post_reload(gateway.admin());
    assert_eq!(response.status, 400, "it is still faulty");

    gateway.write_configuration(&fixed_response("new"));
    let reloaded = post_reload(gateway.admin());
    assert_eq!(reloaded.status, 200, "{}", reloaded.text());
    assert!(reloaded.json()["generation"].as_u64() >= Some(2));
    let response = get(gateway.address(), "/a", "");
    assert_eq!((response.text(), response.number("X-RateLimit-Used")), ("new".to_owned(), 2));
    let text = get(gateway.admin(), "/metrics", "").text();
    let faulty = text.lines().find(|line| line.starts_with("tidegate_reloads_total{outcome=\"f"));
    let count = faulty.and_then(|line| line.rsplit(' ').next()?.parse::<u32>().ok());
    assert!(count.is_some_and(|count| count >= 2), "{text}");

    let mut page = Client::connect(gateway.admin());
    page.send(
        "POST /api/reload HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil\r\nContent-Length: 0\r\n\r\n",
    );
    assert_eq!(page.read_response().status, 403, "cross-origin requests are refused");
}

#[test]
fn a_reload_refuses_changes_that_need_a_restart() {
    let gateway = Gateway::start(&fixed_response("old"));
    for (key, from, to) in [
        ("listen", "listen: [{address: \"127.0.0.1:0\"}]", "listen: [{address: \"127.0.0.1:1\"}]"),
        (
            "admin",
            "admin: {address: \"127.0.0.1:0\", hosts: [gateway.test]}",
            "admin: {address: \"127.0.0.1:1\"}",
        ),
        ("workers", "workers: 2", "workers: 3"),
        ("access_log", "access_log: off", "access_log: stdout"),
        ("drain_timeout", "drain_timeout: 2s", "drain_timeout: 3s"),
        ("store", "workers: 2", "workers: 2\nstore: {memory: {max_keys: 5}}"),
    ] {
        let faults = gateway.reload(&fixed_response("new").replace(from, to)).expect_err("a fault");
        let expected = format!("`{key}` cannot change on reload");
        assert!(faults.contains(&expected) && faults.contains("restart"), "{faults}");
        assert_eq!(get(gateway.address(), "/a", "").text(), "old");
    }
}

#[test]
fn requests_in_flight_finish_on_the_old_rules() {
    let gate = ResponseGate::default();
    let (old, new) = (delayed_upstream(&gate, "old"), Upstream::hello());
    let yaml = |upstream: &Upstream| {
        format!(
            "upstreams: {{origin: {{targets: [{}]}}}}
routes: [{{name: a, match: {{path: /a}}, upstream: origin}}]
",
            upstream.target()
        )
    };
    let gateway = Gateway::for_every_protocol(&yaml(&old));
    let mut waiting = PROTOCOLS.map(|protocol| protocol.connect(&gateway));
    for client in &mut waiting {
        client.start_get("/a");
    }
    eventually("all requests are at the upstream", || old.request_count() == 4);
    gateway.reload(&yaml(&new)).expect("no fault");
    for protocol in PROTOCOLS {
        let response = protocol.get(&gateway, "/a", "");
        assert_eq!(response.text(), "hello", "new requests, new rules");
    }
    gate.open();
    for client in &mut waiting {
        assert_eq!(client.read_response().text(), "old");
        assert_eq!(client.get("/a", "").text(), "hello", "the next on the same connection");
    }
}

/// A gateway on a configuration file of the test, on the system's clock.
struct WatchedGateway(Server);

impl WatchedGateway {
    fn start(path: &Path) -> Self {
        Self(
            Server::builder(Clock::system())
                .start_file(path)
                .unwrap_or_else(|error| panic!("{error}")),
        )
    }

    fn response(&self) -> String {
        get(self.0.addresses[0], "/a", "").text()
    }

    fn wait_until_serves(&self, word: &str) {
        eventually(word, || self.response() == word);
    }
}

#[test]
fn a_changed_file_is_reloaded() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("tidegate.yaml");
    fs::write(&path, fixed_response("one")).expect("a file");
    let gateway = WatchedGateway::start(&path);
    fs::write(&path, fixed_response("two")).expect("a file");
    gateway.wait_until_serves("two");
    // As editors do: a rename over the old file, which is never visible half written.
    let replace = |text: &str| {
        let new = directory.path().join(".tidegate.yaml.swp");
        fs::write(&new, text).expect("a file");
        fs::rename(&new, &path).expect("a new file in its place");
    };
    replace(&fixed_response("three"));
    gateway.wait_until_serves("three");
    // A fault is detected and logged, and changes nothing.
    let faults = || gateway.0.shared.metrics.reload_faults.load(Ordering::Relaxed);
    let before = faults();
    replace("routes: [");
    eventually("the fault is logged", || faults() == before + 1);
    fs::remove_file(&path).expect("the file");
    sleep(std::time::Duration::from_millis(300));
    assert_eq!(gateway.response(), "three", "a missing file changes nothing");
    replace(&fixed_response("four"));
    gateway.wait_until_serves("four");
    assert_eq!(faults(), before + 1, "a missing file is not a fault");
}

#[test]
fn a_mounted_configuration_volume_is_watched() {
    // As Kubernetes mounts a ConfigMap: the file is a link into `..data`, itself a link that is
    // replaced by rename.
    let directory = tempfile::tempdir().expect("a directory");
    let version = |name: &str, word: &str| {
        fs::create_dir(directory.path().join(name)).expect("a directory");
        fs::write(directory.path().join(name).join("tidegate.yaml"), fixed_response(word))
            .expect("a file");
        let link = directory.path().join("..data_tmp");
        symlink(name, &link).expect("a link");
        fs::rename(link, directory.path().join("..data")).expect("the new link in its place");
    };
    version("..2026_1", "one");
    let path = directory.path().join("tidegate.yaml");
    symlink("..data/tidegate.yaml", &path).expect("a link");
    let gateway = WatchedGateway::start(&path);
    for (name, word) in [("..2026_2", "two"), ("..2026_3", "three")] {
        version(name, word);
        gateway.wait_until_serves(word);
    }
}

#[test]
fn a_file_behind_a_symlink_is_watched() {
    let (directory, elsewhere) = (tempfile::tempdir(), tempfile::tempdir());
    let (directory, elsewhere) = (directory.expect("a directory"), elsewhere.expect("a directory"));
    let real = elsewhere.path().join("real.yaml");
    fs::write(&real, fixed_response("one")).expect("a file");
    let path = directory.path().join("tidegate.yaml");
    symlink(&real, &path).expect("a link");
    let gateway = WatchedGateway::start(&path);
    fs::write(&real, fixed_response("two")).expect("a file");
    gateway.wait_until_serves("two");
}

#[test]
fn sighup_reloads_the_real_process() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("own.yaml");
    fs::write(&path, fixed_response("one")).expect("a file");
    let mut process =
        Process::start(tidegate_command(directory.path(), &["serve", "--config", "own.yaml"]));
    let generation = || get(process.admin, "/readyz", "").json()["generation"].as_u64();
    assert_eq!(generation(), Some(1));
    assert_eq!(get(process.address, "/a", "").number("X-RateLimit-Used"), 1);
    // The file has not changed: only the signal can cause a reload.
    for wanted in [2, 3] {
        process.signal(Signal::HUP);
        eventually("a reload", || generation() == Some(wanted));
    }
    assert_eq!(get(process.address, "/a", "").number("X-RateLimit-Used"), 2);
    fs::write(&path, fixed_response("two")).expect("a file");
    process.signal(Signal::HUP);
    eventually("the new rules", || get(process.address, "/a", "").text() == "two");
    process.signal(Signal::INT);
    assert_eq!(process.wait_exit().code(), Some(0));
}

#[test]
fn series_of_removed_rules_leave_the_metrics() {
    let rules = |name: &str| {
        format!(
            "upstreams: {{{name}: {{targets: ['http://127.0.0.1:1']}}}}
limits: {{{name}: {{quota: 100, window: 1h, key: []}}}}
routes:
  - {{name: {name}, match: {{path: '/{name}'}}, upstream: {name}, limits: [{name}]}}
"
        )
    };
    let gateway = Gateway::start(&rules("first"));
    assert_eq!(get(gateway.address(), "/first", "").status, 502);
    assert_eq!(get(gateway.address(), "/nowhere", "").status, 404);
    let text = || get(gateway.admin(), "/metrics", "Connection: close\r\n").text();
    assert!(text().contains("\"first\""));
    gateway.reload(&rules("second")).expect("no fault");
    // Without a further request: idle workers drop the old rules as well.
    eventually("the series are gone", || !text().contains("\"first\""));
    assert!(text().contains("route=\"second\""));
    assert_eq!(get(gateway.address(), "/second", "").status, 502);
    assert_eq!(gateway.metric("tidegate_upstream_failures_total{upstream=\"second\""), 1);
    assert_eq!(gateway.metric("tidegate_requests_total{route=\"\",status=\"4xx\"}"), 1);
    gateway.reload(&(rules("first") + "drain_timeout: 2s\n")).expect("no fault");
    assert_eq!(get(gateway.address(), "/first", "").status, 502);
    assert_eq!(
        gateway.metric("tidegate_requests_total{route=\"first\""),
        1,
        "the counter restarts at 0"
    );
}
