//! Envoy asks the gateway for decisions, with the configurations of the book's page.

/// Many calls at a time.
mod bursts;
/// Costs that are reported when a stream is done.
mod late;
/// Limits by path.
mod paths;

use std::{
    fs,
    io::Write as _,
    net::SocketAddr,
    path::Path,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::{
    client::{Response, get},
    gateway::Gateway,
    port::free_port,
    process::Process,
    rate_limit_client::{RateLimitClient, with_hits},
    upstream::{ResponseGate, Upstream},
    wait::eventually,
};
use tidegate::clock::instant;

use crate::{
    edge::Files,
    reloads::command,
    server::{Server, loopback},
};

/// The configurations of the page: the gateway's, and Envoy's.
pub(crate) struct Page {
    gateway: String,
    envoy: Value,
    /// The part of Envoy's that takes permits.
    permits: Value,
    /// The part of Envoy's for several gateways.
    several: Value,
}

impl Page {
    pub(crate) fn read() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/src/rate-limit-service.md");
        let text = fs::read_to_string(path).expect("the page");
        let blocks = |language: &str| {
            let fence = format!("\n```{language}\n");
            let blocks = text.split(&fence).skip(1);
            let block =
                |rest: &str| rest.split("\n```").next().unwrap_or_default().to_owned() + "\n";
            blocks.map(block).collect::<Vec<_>>()
        };
        let foreign = blocks("yaml,foreign");
        let [envoy, _, permits, several] = &foreign[..] else { panic!("{} blocks", foreign.len()) };
        let value = |text: &str| serde_yaml::from_str(text).expect("YAML");
        let gateway = blocks("yaml,file=tidegate.yaml").remove(0);
        Self { gateway, envoy: value(envoy), permits: value(permits), several: value(several) }
    }

    /// The gateway's configuration, with its service on a free port.
    fn gateway(&self) -> String {
        let ours = self.gateway.replace("127.0.0.1:8081", "127.0.0.1:0");
        assert_ne!(ours, self.gateway, "the page has this address");
        ours
    }

    /// Envoy's configuration with these ports: its own, the application's and the service's.
    fn envoy(&self, own: u16, application: u16, service: u16) -> Value {
        let ports = [(10_000, own), (9_000, application), (8_081, service)];
        let mut text = self.envoy.to_string();
        for (written, port) in ports {
            let with = |port: u16| format!("\"port_value\":{port}}}");
            assert!(text.contains(&with(written)), "the page has the port {written}");
            text = text.replace(&with(written), &with(port));
        }
        serde_json::from_str(&text).expect("JSON")
    }
}

/// The path of the virtual host in Envoy's configuration.
const HOST: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/route_config/virtual_hosts/0";
/// The path of the filter.
const FILTER: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/http_filters/0/typed_config";

/// Envoy before an application.
pub(crate) struct Edge {
    pub(crate) address: SocketAddr,
    _files: Files,
    _envoy: Server,
}

impl Edge {
    /// Starts Envoy, with changes to its configuration.
    pub(crate) fn start(
        page: &Page,
        application: &Upstream,
        service: u16,
        change: impl Fn(&mut Value),
    ) -> Self {
        let port = free_port();
        let mut config = page.envoy(port, application.address.port(), service);
        // A machine that is busy with other tests must not look like an outage.
        config.pointer_mut(FILTER).expect("the filter")["timeout"] = json!("10s");
        change(&mut config);
        let files = Files::new();
        let envoy = Server::envoy(files.directory(), &config, &[port]);
        Self { address: loopback(port), _files: files, _envoy: envoy }
    }

    fn get(&self, user: &str) -> Response {
        get(self.address, "/orders", &format!("X-User: {user}\r\n"))
    }
}

pub(crate) fn service_of(gateway: &Gateway) -> u16 {
    gateway.server.rate_limit_service.expect("the service").port()
}

#[test]
fn a_client_behind_envoy_reads_the_gateways_headers() {
    let (page, application) = (Page::read(), Upstream::hello());
    let gateway = Gateway::start(&page.gateway().replace("window: 1s", "window: 1h"));
    let edge = Edge::start(&page, &application, service_of(&gateway), |_| {});
    for left in (0..10).rev() {
        let admitted = edge.get("a");
        assert_eq!(admitted.status, 200, "{}", admitted.text());
        assert_eq!(admitted.number("x-ratelimit-remaining"), left);
        assert_eq!(admitted.header("x-ratelimit-resource"), Some("per-route"));
    }
    let refused = edge.get("a");
    assert_eq!(refused.status, 429);
    assert_eq!(refused.number("x-ratelimit-remaining"), 0);
    assert_eq!(refused.number("x-ratelimit-limit"), 10);
    let wait = refused.number("retry-after");
    // A full sliding window admits the next request when a tenth of it has passed after its end.
    assert!((1..=3_960).contains(&wait), "{wait}");
    assert_eq!(edge.get("b").status, 200, "another user");
    assert_eq!(application.request_count(), 11);
    // Refused requests are charged to no limit.
    let state = get(gateway.admin(), "/api/limits/per-user?key=a", "").json();
    assert_eq!(state["used"], 10);
}

#[test]
fn two_hundred_parallel_requests_against_a_quota_of_a_hundred_admit_exactly_a_hundred() {
    let (page, application) = (Page::read(), Upstream::hello());
    let rules = page.gateway().replace("quota: 10,", "quota: 1000,").replace("1m", "1h");
    let gateway = Gateway::start(&rules);
    let edge = Edge::start(&page, &application, service_of(&gateway), |_| {});
    let edge = &edge;
    let statuses: Vec<u16> = thread::scope(|scope| {
        let all: Vec<_> = (0..200).map(|_| scope.spawn(move || edge.get("a").status)).collect();
        all.into_iter().map(|one| one.join().expect("a status")).collect()
    });
    let count = |status: u16| statuses.iter().filter(|own| **own == status).count();
    assert_eq!((count(200), count(429)), (100, 100));
}

/// Starts the binary with the page's configuration and its service on `port`.
fn start_process(files: &Files, page: &Page, port: u16) -> Process {
    start_process_with(files, page, port, "")
}

/// The same with further sections.
fn start_process_with(files: &Files, page: &Page, port: u16, more: &str) -> Process {
    let rules = page.gateway.replace("127.0.0.1:8081", &loopback(port).to_string());
    let sections = "listen: [{address: '127.0.0.1:0'}]\nadmin: {address: '127.0.0.1:0', hosts: [gateway.test]}\nworkers: 1\n";
    let name = format!("{port}.yaml");
    fs::write(files.path(&name), format!("{sections}{more}{rules}")).expect("a file");
    Process::start(command(files.directory(), &["--config", &name]))
}

#[test]
fn what_envoy_does_while_the_service_is_gone_or_hangs() {
    let (page, application, files) = (Page::read(), Upstream::hello(), Files::new());
    let port = free_port();
    let mut process = start_process(&files, &page, port);
    let start = |deny: bool| {
        Edge::start(&page, &application, port, |config| {
            let filter = config.pointer_mut(FILTER).expect("the filter");
            filter["failure_mode_deny"] = json!(deny);
            filter["timeout"] = json!("0.5s");
        })
    };
    let (open, closed) = (start(false), start(true));
    let assert_statuses = |user: &str, statuses: [u16; 2]| {
        assert_eq!([open.get(user).status, closed.get(user).status], statuses, "{user}");
    };
    assert_statuses("before", [200, 200]);

    process.signal(Signal::STOP);
    // A signal reaches the threads of a process one after the other.
    let states = || {
        let tasks = fs::read_dir(format!("/proc/{}/task", process.id())).expect("our own child");
        let status = |task: fs::DirEntry| fs::read_to_string(task.path().join("status"));
        tasks.flatten().flat_map(status).collect::<Vec<_>>()
    };
    let is_stopped = |status: &String| status.contains("\nState:\tT");
    eventually("all threads are stopped", || states().iter().all(is_stopped));
    let start = instant();
    assert_statuses("hung", [200, 500]);
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(950), "each waits for its timeout: {took:?}");
    process.signal(Signal::CONT);
    eventually("it answers again", || closed.get("back").status == 200);

    process.signal(Signal::TERM);
    process.wait_exit();
    assert_statuses("gone", [200, 500]);
    let _process = start_process(&files, &page, port);
    eventually("it serves again", || closed.get("restarted").status == 200);
    assert!(open.get("restarted").header("x-ratelimit-remaining").is_some());
}

/// Denies requests that Tidegate does not decide.
fn deny_undecided(config: &mut Value) {
    config.pointer_mut(FILTER).expect("the filter")["failure_mode_deny"] = json!(true);
}

/// The statuses of requests of four clients, each request of another user, while `action` runs.
fn statuses_during(edge: &Edge, action: impl FnOnce()) -> Vec<u16> {
    let is_over = AtomicBool::new(false);
    let is_over = &is_over;
    thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|n| {
                scope.spawn(move || {
                    let mut statuses = Vec::new();
                    while !is_over.load(Relaxed) {
                        statuses.push(edge.get(&format!("{n}-{}", statuses.len())).status);
                    }
                    statuses
                })
            })
            .collect();
        action();
        is_over.store(true, Relaxed);
        clients.into_iter().flat_map(|client| client.join().expect("statuses")).collect()
    })
}

fn assert_all_admitted(statuses: &[u16]) {
    assert!(statuses.len() > 20, "{}", statuses.len());
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
}

#[test]
fn reloads_lose_no_request() {
    let (page, application) = (Page::read(), Upstream::hello());
    let rules = page.gateway().replace("quota: 10", "quota: 100");
    let gateway = Gateway::start(&rules);
    let edge = Edge::start(&page, &application, service_of(&gateway), deny_undecided);
    assert_all_admitted(&statuses_during(&edge, || {
        for n in 0..20 {
            let before = application.request_count();
            let quota = format!("quota: {},", 100 + n);
            gateway.reload(&rules.replace("quota: 100,", &quota)).expect("a reload");
            eventually("requests go on", || application.request_count() > before + 1);
        }
    }));
}

#[test]
fn upgrades_lose_no_request() {
    let (page, application, files) = (Page::read(), Upstream::hello(), Files::new());
    let port = free_port();
    let mut process = start_process(&files, &page, port);
    let edge = Edge::start(&page, &application, port, deny_undecided);
    assert_all_admitted(&statuses_during(&edge, || {
        for _ in 0..3 {
            let before = application.request_count();
            process.upgrade();
            eventually("requests go on", || application.request_count() > before + 20);
        }
    }));
}

/// A second Tidegate, and the page's health check, which is quicker here.
fn with_second(page: &Page, port: u16, config: &mut Value) {
    let cluster = config.pointer_mut("/static_resources/clusters/1").expect("the service's");
    let mut checks = page.several["health_checks"].clone();
    checks[0]["interval"] = json!("0.2s");
    checks[0]["timeout"] = json!("5s");
    cluster["health_checks"] = checks;
    let endpoints = cluster.pointer_mut("/load_assignment/endpoints/0/lb_endpoints");
    let endpoints = endpoints.and_then(Value::as_array_mut).expect("its endpoint");
    let mut second = endpoints[0].clone();
    second["endpoint"]["address"]["socket_address"]["port_value"] = json!(port);
    endpoints.push(second);
}

#[test]
fn a_drain_of_one_of_two_loses_no_request() {
    let (page, application, files) = (Page::read(), Upstream::hello(), Files::new());
    let ports = [free_port(), free_port()];
    let start = |port| start_process_with(&files, &page, port, "drain_delay: 3s\n");
    let mut processes = ports.map(start);
    let edge = Edge::start(&page, &application, ports[0], |config| {
        deny_undecided(config);
        with_second(&page, ports[1], config);
    });
    eventually("both are asked", || {
        edge.get("first");
        processes.iter().all(|process| calls(process) > 0)
    });
    assert_all_admitted(&statuses_during(&edge, || {
        for (process, port) in processes.iter_mut().zip(ports) {
            process.signal(Signal::TERM);
            assert_eq!(process.wait_exit().code(), Some(0));
            *process = start(port);
            eventually("the new one is asked", || calls(process) > 20);
        }
    }));
}

/// Number of calls that a process has answered.
fn calls(process: &Process) -> u64 {
    let metrics = get(process.admin, "/metrics", "Connection: close\r\n").text();
    let lines = metrics.lines().filter(|line| line.starts_with("tidegate_requests_total{"));
    let lines = lines.filter(|line| line.contains("rate_limit_service:edge"));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

/// Replaces the descriptors by the page's second example: a permit is taken before a request, and
/// given back when its stream is done.
fn take_and_give_back(page: &Page, config: &mut Value) {
    let host = config.pointer_mut(HOST).and_then(Value::as_object_mut).expect("the host");
    host.remove("rate_limits").expect("its descriptors");
    host.extend(page.permits.as_object().expect("a mapping").clone());
}

#[test]
fn permits_come_back_when_requests_end_and_when_envoy_is_killed() {
    let gate = ResponseGate::default();
    let own = gate.clone();
    let application = Upstream::with_handler(move |request, socket| {
        if request.starts_with(b"GET /slow ") {
            own.wait();
        }
        socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").is_ok()
    });
    let page = Page::read();
    let rules = page.gateway().replace(
        "per-user: {quota: 100, window: 1m,",
        "per-user: {algorithm: concurrency, quota: 2, window: 3s,",
    );
    let rules =
        rules.replace("[per-user", "[{limit: per-user, match: {permits: 'taken@*'}}, per-user");
    let gateway = Gateway::start(&rules);
    let edge = Edge::start(&page, &application, service_of(&gateway), |config| {
        take_and_give_back(&page, config);
    });
    for _ in 0..10 {
        assert_eq!(edge.get("a").status, 200);
    }
    let mut client =
        RateLimitClient::connect(gateway.server.rate_limit_service.expect("the service"));
    let mut taken = || {
        let peek = with_hits("user=a", 0);
        let status = client.ask("edge", vec![peek]).0.statuses.remove(0);
        2 - status.limit_remaining
    };
    eventually("all permits are back", || taken() == 0);

    // Two requests are in flight when Envoy is killed.
    let address = edge.address;
    let slow = || {
        thread::spawn(move || std::panic::catch_unwind(|| get(address, "/slow", "X-User: a\r\n")))
    };
    let slow = [slow(), slow()];
    eventually("two permits are taken", || taken() == 2);
    // Refused requests give nothing back.
    for _ in 0..10 {
        assert_eq!(edge.get("a").status, 429);
    }
    assert_eq!(taken(), 2);
    let killed: Instant = instant();
    drop(edge);
    eventually("their leases end", || taken() == 0);
    assert!(killed.elapsed() < Duration::from_secs(8), "{:?}", killed.elapsed());
    gate.open();
    for request in slow {
        drop(request.join());
    }
}
