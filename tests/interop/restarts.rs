//! Restarts under load: the requests that clients of other projects lose when a gateway stops.

use std::{fs, io::Write, thread, time::Duration};

use rustix::process::Signal;
use testkit::{
    client::get,
    port::free_port,
    process::Process,
    upstream::Upstream,
    wait::{eventually, sleep},
    yaml::fill,
};

use crate::{
    edge::{Files, NAME},
    nghttp2::{assert_all_succeeded, h2load, statuses, steady},
    reloads::command,
    server::Server,
    tools::{client, run},
};

/// An upstream that takes a few ms for each response.
fn slow() -> Upstream {
    Upstream::with_handler(|_, socket| {
        sleep(Duration::from_millis(5));
        socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").is_ok()
    })
}

/// Starts a gateway with TLS on `port`, and with an access log of this name.
fn start(files: &Files, upstream: &Upstream, port: u16, log: &str) -> Process {
    let yaml = fill(
        "
        listen:
          - address: 127.0.0.1:{port}
            tls: {certificates: [{cert: '{own}.pem', key: '{own}.key'}]}
        admin: {address: '127.0.0.1:0', hosts: [gateway.test]}
        workers: 2
        access_log: ./{log}
        upstreams: {origin: {targets: ['{target}']}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        [
            ("port", port.to_string()),
            ("own", files.path("own").display().to_string()),
            ("log", log.to_owned()),
            ("target", upstream.target()),
        ],
    );
    fs::write(files.path(&format!("{port}.yaml")), yaml).expect("a file");
    Process::start(command(files.directory(), &["--config", &format!("{port}.yaml")]))
}

/// The access lines of a log: their number, and the lines without a complete 200.
fn access_lines(files: &Files, log: &str) -> (usize, Vec<String>) {
    let text = fs::read_to_string(files.path(log)).expect("a log");
    let is_whole = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        line["status"] == 200 && line["complete"] == true && line["cut"] == ""
    };
    let others = text.lines().filter(|line| !is_whole(line)).map(str::to_owned).collect();
    (text.lines().count(), others)
}

#[test]
fn a_drain_answers_every_stream_that_nghttp_opened() {
    const REQUESTS: usize = 3000;
    let (files, upstream) = (Files::new(), slow());
    files.issue("own", &[NAME, "127.0.0.1"]);
    let mut process = start(&files, &upstream, free_port(), "access.log");
    let url = format!("https://127.0.0.1:{}/a", process.address.port());
    let output = thread::scope(|scope| {
        let nghttp = scope.spawn(|| {
            let mut command = client("nghttp", "nghttp2-client");
            command.args(["-ns", "--no-verify-peer", &format!("--multiply={REQUESTS}")]);
            run(command.arg(&url))
        });
        eventually("requests are forwarded", || upstream.request_count() >= 300);
        process.signal(Signal::TERM);
        nghttp.join().expect("no panic")
    });
    assert_eq!(process.wait_exit().code(), Some(0));
    // Streams that it could no longer open have no status: it may send them elsewhere.
    let answered = statuses(&output).iter().filter(|status| *status == "200").count();
    assert!((300..REQUESTS).contains(&answered), "{answered}: {}", output.text());
    assert_eq!(access_lines(&files, "access.log"), (answered, vec![]));
    assert_eq!(upstream.request_count(), answered);
}

#[test]
fn a_drain_loses_no_request_of_h2load() {
    let (files, upstream) = (Files::new(), slow());
    files.issue("own", &[NAME, "127.0.0.1"]);
    let mut process = start(&files, &upstream, free_port(), "access.log");
    let url = format!("https://127.0.0.1:{}/a", process.address.port());
    let output = thread::scope(|scope| {
        let load = scope.spawn(|| h2load(&["-c8", "-m16", "-n100000"], &url));
        eventually("requests are forwarded", || upstream.request_count() >= 1000);
        process.signal(Signal::TERM);
        load.join().expect("no panic")
    });
    assert_eq!(process.wait_exit().code(), Some(0));
    // It opens no other connection. Requests that it did not start, or that came after the GOAWAY
    // and can safely be sent again, count as failed; requests that reached the upstream have
    // succeeded.
    let requests = output.out.lines().find(|line| line.starts_with("requests: "));
    let mut counts = requests.expect("a line").split([':', ',']);
    let succeeded = counts.find_map(|count| count.strip_suffix(" succeeded"));
    let succeeded = succeeded.and_then(|count| count.trim().parse::<usize>().ok());
    let succeeded = succeeded.expect("a number");
    assert!((1000..100_000).contains(&succeeded), "{}", output.text());
    assert_eq!(access_lines(&files, "access.log"), (succeeded, vec![]), "{}", output.text());
    assert_eq!(upstream.request_count(), succeeded);
}

/// Number of requests that a gateway has answered.
fn answered(gateway: &Process) -> u64 {
    let metrics = get(gateway.admin, "/metrics", "Connection: close\r\n").text();
    let lines = metrics.lines().filter(|line| line.starts_with("tidegate_requests_total{"));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

#[test]
fn restarts_behind_haproxy_fail_no_request() {
    const REQUESTS: u32 = 2400;
    for (alpn, bind, protocol) in [("http/1.1", "", &["--h1"][..]), ("h2", "proto h2", &[])] {
        let (files, upstream) = (Files::new(), slow());
        files.issue("own", &[NAME, "127.0.0.1"]);
        let [front, first, second] = [(); 3].map(|()| free_port());
        let tls = format!(
            "ssl verify required ca-file {} sni str({NAME}) alpn {alpn}",
            files.ca.display()
        );
        // Without health checks, it notices a stopped gateway only by the gateway's behavior.
        let sections = format!(
            "frontend front
  mode http
  bind 127.0.0.1:{front} {bind}
  default_backend back
backend back
  mode http
  option redispatch 1
  retries 5
  retry-on all-retryable-errors
  server first 127.0.0.1:{first} {tls}
  server second 127.0.0.1:{second} {tls}
"
        );
        let mut gateways =
            [first, second].map(|port| start(&files, &upstream, port, &format!("{port}.log")));
        let _haproxy = Server::haproxy(files.directory(), &sections, &[front]);
        let restarts = thread::scope(|scope| {
            let load = scope.spawn(move || {
                // At least four seconds.
                let steady = steady(REQUESTS, 600);
                let steady: Vec<&str> = steady.iter().map(String::as_str).collect();
                h2load(&[&steady[..], protocol].concat(), &format!("http://127.0.0.1:{front}/a"))
            });
            let mut restarts = 0;
            while !load.is_finished() {
                // Waits until both gateways get requests again.
                let is_used = |gateway: &Process| answered(gateway) >= 50 || load.is_finished();
                eventually("both get requests", || gateways.iter().all(is_used));
                let gateway = &mut gateways[restarts % 2];
                gateway.signal(Signal::TERM);
                assert_eq!(gateway.wait_exit().code(), Some(0));
                let port = gateway.address.port();
                *gateway = start(&files, &upstream, port, &format!("{port}.log"));
                restarts += 1;
            }
            assert_all_succeeded(&load.join().expect("no panic"), REQUESTS);
            restarts
        });
        assert!(restarts >= 3, "only {restarts} restarts");
        for gateway in &mut gateways {
            gateway.signal(Signal::TERM);
            assert_eq!(gateway.wait_exit().code(), Some(0));
        }
        for port in [first, second] {
            let (_, others) = access_lines(&files, &format!("{port}.log"));
            assert_eq!(others, Vec::<String>::new(), "{alpn}");
        }
    }
}
