//! One client address never takes the file descriptors of the others, nor of the gateway itself.

use std::{
    fs,
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use rustix::process::{Pid, Resource, getrlimit, prlimit};
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;
use testkit::{
    client::{Client, get},
    http2_client::{Http2Client, Http2Exchange, request},
    process::{Process, with_open_files},
    upstream::{ResponseGate, Upstream},
    wait::{eventually, timed},
    yaml::fill,
};

use crate::tidegate_command;

/// Limit of open files of the gateway: 143 are its own, the rest are half clients' and half
/// upstreams'.
const OPEN_FILES: u64 = 512;
/// Upstream connections that one client's requests may hold then.
const SHARE: u64 = (OPEN_FILES - 143).div_ceil(2) / 2;

/// Holds the responses to `/slow` until the gate opens.
fn slow_upstream(gate: &ResponseGate) -> Upstream {
    let gate = gate.clone();
    Upstream::with_handler(move |request, socket| {
        use std::io::Write;
        if request.starts_with(b"GET /slow") {
            gate.wait();
        }
        socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").is_ok()
    })
}

const ORIGIN: &str = "
listen: [{address: 127.0.0.1:0, http2: true}]
admin: {address: 127.0.0.1:0, hosts: [gateway.test]}
access_log: off
workers: 2
upstreams: {origin: {targets: [{target}]}}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
";

fn start(configuration: &str) -> (TempDir, Process) {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("t.yaml"), configuration).expect("a file");
    let command = tidegate_command(directory.path(), &["serve", "--config", "t.yaml"]);
    let process = Process::start(with_open_files(&command, OPEN_FILES));
    (directory, process)
}

/// The sum of the metrics whose lines start with `prefix`.
fn sum(metrics: &str, prefix: &str) -> u64 {
    let lines = metrics.lines().filter(|line| line.starts_with(prefix));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

#[test]
fn slow_streams_of_one_address_leave_descriptors_to_all_others() {
    let gate = ResponseGate::default();
    let upstream = slow_upstream(&gate);
    let yaml = fill(ORIGIN, [("target", upstream.target())]);
    let (directory, process) = start(&yaml);
    let mut clients: Vec<_> = (0..12).map(|_| Http2Client::connect(process.address)).collect();
    let mut streams: Vec<Http2Exchange> = Vec::new();
    for client in &mut clients {
        for _ in 0..100 {
            streams.push(client.start(request("GET", "/slow", ""), true).expect("a stream"));
        }
    }
    let metrics = || get(process.admin, "/metrics", "Connection: close\r\n").text();
    let count = streams.len() as u64;
    eventually("the streams beyond the share are refused", || {
        sum(&metrics(), "tidegate_requests_refused_total") == count - SHARE
    });
    assert!(sum(&metrics(), "tidegate_upstream_connections ") <= SHARE);
    for path in ["/healthz", "/readyz"] {
        let (answer, took) = timed(|| get(process.admin, path, "Connection: close\r\n"));
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        assert!(took < Duration::from_secs(1), "{path} took {took:?}");
    }
    let served = (0..100).filter(|_| {
        let response = send_from([127, 0, 0, 2], process.address, "/quick").read_response();
        (response.status, response.body.as_slice()) == (200, b"hello")
    });
    assert_eq!(served.count(), 100, "another client");
    let changed = yaml.replace("name: all", "name: every");
    fs::write(directory.path().join("t.yaml"), changed).expect("a file");
    process.signal(rustix::process::Signal::HUP);
    eventually("the reload is applied", || {
        sum(&metrics(), "tidegate_reloads_total{outcome=\"applied\"}") == 1
    });
    let metrics = metrics();
    assert_eq!(sum(&metrics, "tidegate_target_failures_total"), 0, "no failure of the target");
    assert_eq!(sum(&metrics, "tidegate_target_ejections_total"), 0);
    gate.open();
    let (mut answered, mut refused) = (0, 0);
    for mut stream in streams {
        let response = stream.finish().expect("a response");
        match response.status {
            200 => answered += 1,
            503 => {
                assert_eq!(response.json()["type"], "urn:tidegate:problem:overloaded");
                assert_eq!(response.header("retry-after"), Some("1"));
                refused += 1;
            }
            other => panic!("{other}: {}", response.text()),
        }
    }
    assert_eq!((answered, refused), (SHARE, count - SHARE));
    assert_eq!(clients[0].get("/quick", "").status, 200, "the share is free again");
}

/// Sends a GET from `address` on a connection of its own.
fn send_from(address: [u8; 4], gateway: SocketAddr, path: &str) -> Client {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from((address, 0)).into()).expect("a loopback address");
    socket.connect(&gateway.into()).expect("a connection");
    let mut client = Client::from_socket(TcpStream::from(socket));
    client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
    client
}

#[test]
fn idle_connections_make_room_for_another_client() {
    let gates = [ResponseGate::default(), ResponseGate::default()];
    let [one, two] = gates.each_ref().map(slow_upstream);
    let third = Upstream::hello();
    let (_directory, process) = start(&fill(
        "
        listen: [{address: 127.0.0.1:0, http2: true}]
        admin: {address: 127.0.0.1:0, hosts: [gateway.test]}
        access_log: off
        workers: 2
        upstreams:
          one: {targets: [{one}]}
          two: {targets: [{two}]}
          third: {targets: [{third}]}
        routes:
          - {name: one, match: {path: /slow/one}, upstream: one}
          - {name: two, match: {path: /slow/two}, upstream: two}
          - {name: all, match: {path: '/{*rest}'}, upstream: third}
        ",
        [("one", one.target()), ("two", two.target()), ("third", third.target())],
    ));
    let metrics = || get(process.admin, "/metrics", "Connection: close\r\n").text();
    // Both shares together are all places.
    let both = [(&one, "/slow/one", [127, 0, 0, 3]), (&two, "/slow/two", [127, 0, 0, 4])];
    for ((upstream, path, address), gate) in both.into_iter().zip(&gates) {
        let begun = (0..SHARE).map(|_| send_from(address, process.address, path));
        let mut clients: Vec<_> = begun.collect();
        eventually("all are in flight", || upstream.request_count() as u64 == SHARE);
        gate.open();
        for client in &mut clients {
            assert_eq!(client.read_response().status, 200);
        }
    }
    eventually("idle ones leave places free", || {
        let metrics = metrics();
        let max = sum(&metrics, "tidegate_upstream_connections_max");
        sum(&metrics, "tidegate_upstream_connections ") < max * 7 / 8 + 1
    });
    let served = (0..100).filter(|_| {
        send_from([127, 0, 0, 2], process.address, "/quick").read_response().status == 200
    });
    assert_eq!(served.count(), 100);
    assert_eq!(sum(&metrics(), "tidegate_upstream_shortages_total"), 0);
}

/// The lowest descriptor that a process does not use: none is free below it.
fn lowest_free_descriptor(process: &Process) -> u64 {
    let folder = fs::read_dir(format!("/proc/{}/fd", process.id())).expect("our own child");
    let name =
        |entry: std::io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    let used: Vec<u64> = folder.filter_map(name).collect();
    (0..OPEN_FILES).find(|descriptor| !used.contains(descriptor)).expect("an unused one")
}

fn limit_open_files(process: &Process, current: u64) {
    let pid = Pid::from_raw(process.id().cast_signed());
    let new = rustix::process::Rlimit { current: Some(current), maximum: Some(OPEN_FILES) };
    prlimit(pid, Resource::Nofile, new).expect("our own child");
}

#[test]
fn an_idle_connection_is_closed_for_a_request_without_a_descriptor() {
    let (one, origin) = (Upstream::hello(), Upstream::hello());
    let (_directory, process) = start(&fill(
        "
        listen: [{address: 127.0.0.1:0}]
        admin: {address: 127.0.0.1:0, hosts: [gateway.test]}
        access_log: off
        workers: 1
        upstreams:
          one: {targets: [{one}]}
          origin: {targets: [{origin}]}
        routes:
          - {name: one, match: {path: /one}, upstream: one}
          - {name: all, match: {path: '/{*rest}'}, upstream: origin}
        ",
        [("one", one.target()), ("origin", origin.target())],
    ));
    let (mut client, mut admin) =
        (Client::connect(process.address), Client::connect(process.admin));
    let mut metrics = || admin.get("/metrics", "").text();
    assert_eq!(sum(&metrics(), "tidegate_upstream_connections "), 0);
    assert_eq!(client.get("/one", "").status, 200);
    limit_open_files(&process, lowest_free_descriptor(&process));
    assert_eq!(client.get("/a", "").status, 200);
    let after = metrics();
    assert_eq!(sum(&after, "tidegate_upstream_connections "), 1);
    assert_eq!(sum(&after, "tidegate_upstream_shortages_total"), 0);
}

#[test]
fn a_shortage_of_the_system_is_no_failure_of_the_target() {
    let upstream = Upstream::with_response(
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello",
    );
    let (_directory, process) = start(&fill(
        "
        listen: [{address: 127.0.0.1:0}]
        admin: {address: 127.0.0.1:0, hosts: [gateway.test]}
        access_log: off
        workers: 2
        upstreams:
          origin:
            targets: [{target}]
            health: {path: /up, interval: 1s, timeout: 1s}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        [("target", upstream.target())],
    ));
    let (mut client, mut admin) =
        (Client::connect(process.address), Client::connect(process.admin));
    assert_eq!(client.get("/a", "").status, 200);
    let mut metrics = || admin.get("/metrics", "").text();
    assert_eq!(sum(&metrics(), "tidegate_target_healthy"), 1);
    eventually("no descriptor is left", || {
        limit_open_files(&process, lowest_free_descriptor(&process));
        let response = client.get("/a", "");
        response.status == 503 && {
            assert_eq!(response.json()["type"], "urn:tidegate:problem:overloaded");
            assert_eq!(response.header("retry-after"), Some("1"));
            true
        }
    });
    for _ in 0..5 {
        assert_eq!(client.get("/a", "").status, 503);
    }
    eventually("a health check is left out", || {
        process.log_line("a health check was left out").is_some()
    });
    let during = metrics();
    assert!(sum(&during, "tidegate_upstream_shortages_total") >= 6);
    assert_eq!(sum(&during, "tidegate_target_failures_total"), 0);
    assert_eq!(sum(&during, "tidegate_target_healthy"), 1, "{}", process.log());
    limit_open_files(&process, OPEN_FILES);
    assert_eq!(client.get("/a", "").status, 200);
    assert!(getrlimit(Resource::Nofile).current.is_some(), "the test's own limit is unchanged");
}
