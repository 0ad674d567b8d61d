//! A route runs no code of the features that it does not use: the functions are counted by
//! callgrind.

use std::{
    collections::BTreeMap,
    fs,
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use testkit::{client::Client, port::free_port, upstream::Upstream, wait::sleep};
use tidegate::clock;

/// Number of requests between two profiles. Functions that run less often belong to no request.
const REQUESTS: usize = 50;

/// The longest wait for the gateway or a response: everything takes fifty times as long under
/// valgrind.
const TIMEOUT: Duration = Duration::from_mins(3);

/// The modules of features that a route can use or not, without the prefix `tidegate_` of their
/// crates.
const FEATURES: [&str; 18] = [
    "access::auth::",
    "access::consumer_store::",
    "access::overrides::",
    "gateway::activity::",
    "gateway::admission::",
    "gateway::authentication::",
    "gateway::compress::",
    "gateway::cors::",
    "gateway::delay::",
    "gateway::mirror::",
    "gateway::quota_status::",
    "rules::plan::condition::",
    "rules::respond::cors::",
    "rules::snapshot::tiers::",
    "template::",
    "throttle::gate::",
    "trace::",
    "transport::compress::",
];

/// A gateway under callgrind; killed when dropped.
struct Counted {
    child: Child,
    profiles: usize,
}

impl Counted {
    fn start(directory: &Path) -> Self {
        let child = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=counted"])
            .arg(env!("CARGO_BIN_EXE_tidegate"))
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("valgrind starts");
        Self { child, profiles: 0 }
    }

    /// The numbers of calls of each function since the last call of this method.
    fn calls(&mut self, directory: &Path) -> BTreeMap<String, usize> {
        self.profiles += 1;
        let process = format!("--pid={}", self.child.id());
        let dumped = Command::new("vgdb").args([&process, "dump"]).stderr(Stdio::null()).status();
        assert!(dumped.expect("vgdb starts").success());
        let path = directory.join(format!("counted.{}", self.profiles));
        calls(&fs::read_to_string(path).expect("a profile"))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The numbers of calls by function in a profile of callgrind, where a function is a number after
/// its first occurrence.
fn calls(profile: &str) -> BTreeMap<String, usize> {
    let (mut names, mut callee) = (BTreeMap::<&str, &str>::new(), "");
    let mut calls = BTreeMap::new();
    for line in profile.lines() {
        if let Some(function) = line.strip_prefix("cfn=").or_else(|| line.strip_prefix("fn=")) {
            let (number, name) = function.split_once(' ').unwrap_or((function, ""));
            let name: &str = names.entry(number).or_insert(name);
            if line.starts_with('c') {
                callee = name;
            }
        } else if let Some(count) = line.strip_prefix("calls=") {
            let count = count.split(' ').next().and_then(|count| count.parse::<usize>().ok());
            *calls.entry(callee.to_owned()).or_default() += count.expect("a number");
        }
    }
    calls
}

/// The features with functions that ran for each request, and not in a gateway that is `idle`: on a
/// busy machine, a periodic function may run as often as a request.
fn features_of<'c>(
    calls: &'c BTreeMap<String, usize>,
    idle: &BTreeMap<String, usize>,
) -> Vec<(&'static str, &'c str)> {
    let ran = calls.iter().filter(|(name, count)| **count >= REQUESTS && !idle.contains_key(*name));
    ran.map(|(name, _)| name.as_str())
        .filter_map(|name| {
            let name = name.trim_start_matches('<');
            let module = |feature: &&&str| name.starts_with(&format!("tidegate_{feature}"));
            Some((*FEATURES.iter().find(module)?, name))
        })
        .collect()
}

#[test]
fn a_route_runs_no_code_of_features_that_it_does_not_use() {
    let upstream = Upstream::hello();
    let (origin, port) = (upstream.address, free_port());
    let hash = tidegate::auth::KeyHash::of(b"a key");
    let directory = tempfile::tempdir().expect("a directory");
    fs::create_dir(directory.path().join("config")).expect("a directory");
    let yaml = format!(
        "listen:
  - {{address: 127.0.0.1:{port}}}
admin: {{address: 127.0.0.1:0}}
workers: 1
upstreams:
  origin: {{targets: [\"http://{origin}\"]}}
  copies: {{targets: [\"http://{origin}\"]}}
throttle: {{max_active: 100}}
auth: {{keys: {{api_key: {{}}}}}}
consumers: {{entries: [{{name: acme, keys: [{{sha256: {hash}}}]}}]}}
limits:
  plain: {{quota: 1000000, window: 1m, key: [client_ip]}}
  tiered:
    quota: 1000000
    window: 1m
    tiers:
      - {{match: {{part: \"header:x-plan\", values: [gold]}}, quota: 2000000}}
routes:
  - name: plain
    match: {{path: /plain}}
    upstream: origin
    limits: [plain]
    throttle: false
  - name: rich
    match: {{path: /rich, headers: {{x-version: next}}}}
    upstream: origin
    limits: [tiered]
    auth: [keys]
    cors: {{origins: [\"https://a.test\"]}}
    compress: {{}}
    mirror: {{upstream: copies, share: 100}}
    headers: {{request: {{set: {{x-client: \"{{client_ip}}\"}}}}}}
"
    );
    fs::write(directory.path().join("config/tidegate.yaml"), yaml).expect("a file");
    let mut gateway = Counted::start(directory.path());
    let deadline = clock::instant() + TIMEOUT;
    let socket = loop {
        if let Ok(socket) = TcpStream::connect(("127.0.0.1", port)) {
            break socket;
        }
        assert!(clock::instant() < deadline, "it does not start");
        sleep(Duration::from_millis(50));
    };
    socket.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    let mut client = Client::over(socket);
    gateway.calls(directory.path());
    // Until the periodic functions have run, which takes a while on a busy machine.
    let mut idle = BTreeMap::new();
    while !idle.keys().any(|name: &String| name.contains("Mirrors::sweep")) {
        assert!(clock::instant() < deadline, "no sweep");
        sleep(Duration::from_millis(500));
        idle.append(&mut gateway.calls(directory.path()));
    }
    let mut features = |path: &str, headers: &str| {
        // The first requests open connections.
        for round in 0..2 {
            if round == 1 {
                gateway.calls(directory.path());
            }
            for _ in 0..REQUESTS {
                assert_eq!(client.get(path, headers).status, 200, "{path}");
            }
        }
        gateway.calls(directory.path())
    };
    let plain = features("/plain", "");
    assert_eq!(features_of(&plain, &idle), []);
    let rich = features("/rich", "x-version: next\r\nx-api-key: a key\r\n");
    let used: Vec<_> = features_of(&rich, &idle).into_iter().map(|(feature, _)| feature).collect();
    for feature in [
        "access::auth::",
        "gateway::authentication::",
        "gateway::cors::",
        "gateway::mirror::",
        "rules::plan::condition::",
        "throttle::gate::",
    ] {
        assert!(used.contains(&feature), "{feature} is not noticed: {used:?}");
    }
}
