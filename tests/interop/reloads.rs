//! Reloads of certificates and of the configuration while h2load and curl send requests.

use std::{
    fs,
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use testkit::{
    client::Client,
    process::{Process, gateway_command},
    tls::{connect, trusting_client},
    upstream::Upstream,
    wait::{eventually, sleep},
    yaml::fill,
};

use crate::{
    curl::curl,
    edge::{Files, NAME},
    nghttp2::{assert_all_succeeded, h2load, steady},
};

const RELOADS: u32 = 50;

/// Writes the configuration of a gateway whose fixed answers and limits change with `round`.
fn write_configuration(files: &Files, upstream: &Upstream, round: u32) {
    let yaml = fill(
        "
        listen:
          - address: 127.0.0.1:0
            tls: {certificates: [{cert: '{own}.pem', key: '{own}.key'}]}
        admin: {address: '127.0.0.1:0', hosts: [gateway.test]}
        workers: 2
        access_log: off
        limits: {many: {quota: {quota}, window: 1h, key: []}}
        upstreams: {origin: {targets: ['{target}'], idle_timeout: {idle}s}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin, limits: [many]}]
        ",
        [
            ("own", files.path("own").display().to_string()),
            ("quota", (1_000_000 + round).to_string()),
            ("target", upstream.target()),
            ("idle", (10 + round % 3).to_string()),
        ],
    );
    fs::write(files.path("new.yaml"), yaml).expect("a file");
    fs::rename(files.path("new.yaml"), files.path("tidegate.yaml")).expect("the file in its place");
}

fn start(files: &Files, upstream: &Upstream) -> Process {
    files.issue("own", &[NAME, "127.0.0.1"]);
    write_configuration(files, upstream, 0);
    let arguments = ["--config", "tidegate.yaml"];
    Process::start(command(files.directory(), &arguments))
}

/// The gateway's binary in a directory.
pub(crate) fn command(directory: &Path, arguments: &[&str]) -> Command {
    gateway_command(env!("CARGO_BIN_EXE_tidegate"), directory, arguments)
}

fn reload(process: &Process) {
    let mut client = Client::connect(process.admin);
    client.send("POST /api/reload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
    let response = client.read_response();
    assert_eq!(response.status, 200, "{}", response.text());
}

/// Runs h2load with HTTP/2 and with HTTP/1.1, and curl with a connection for each request, until
/// `change` has been called `count` times with the number of the change. All requests must succeed.
fn assert_none_fails(process: &Process, files: &Files, count: u32, mut change: impl FnMut(u32)) {
    const REQUESTS: u32 = 1000;
    let url = format!("https://127.0.0.1:{}/a", process.address.port());
    let connections = AtomicU32::new(0);
    let is_over = AtomicBool::new(false);
    // Ends the load even if a change fails.
    let end = OnDrop(&is_over);
    thread::scope(|scope| {
        let (is_over, url) = (&is_over, &url);
        for protocol in [&[][..], &["--h1"]] {
            scope.spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    // Two seconds.
                    let steady = steady(REQUESTS, 500);
                    let steady: Vec<&str> = steady.iter().map(String::as_str).collect();
                    let output = h2load(&[&steady[..], protocol].concat(), url);
                    assert_all_succeeded(&output, REQUESTS);
                }
            });
        }
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                for protocol in ["--http1.1", "--http2"] {
                    let answer = curl(&files.ca, &[protocol], url);
                    assert_eq!(answer.status, 200, "{}", answer.log);
                    connections.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
        for number in 1..=count {
            change(number);
            sleep(Duration::from_millis(40));
        }
        drop(end);
    });
    let connections = connections.into_inner();
    assert!(connections >= 10, "only {connections} connections");
}

/// Sets a flag when it is dropped.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn reloads_of_the_configuration_fail_no_request() {
    let (files, upstream) = (Files::new(), Upstream::hello());
    let process = start(&files, &upstream);
    assert_none_fails(&process, &files, RELOADS, |round| {
        write_configuration(&files, &upstream, round);
        reload(&process);
    });
    assert!(!process.log().contains("ERROR"), "{}", process.log());
}

#[test]
fn reloads_of_certificates_fail_no_request() {
    let (files, upstream) = (Files::new(), Upstream::hello());
    let process = start(&files, &upstream);
    let client = Arc::new(trusting_client(&["http/1.1"]));
    assert_none_fails(&process, &files, 20, |_| {
        // Only the file watcher triggers the reload. While the key does not match the certificate,
        // that is a fault, and the earlier pair is used.
        let new = files.authority.issue(&[NAME, "127.0.0.1"]);
        new.write(files.directory(), "own");
        eventually("the new certificate is shown", || {
            let client = connect(process.address, NAME, &client).expect("a handshake");
            let shown = client.socket.conn.peer_certificates().expect("a certificate");
            shown[0] == new.der()
        });
    });
}
