use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    path::Path,
    process::{Output, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use testkit::{
    client::{Client, get},
    process::Process,
    redis_server::RedisServer,
    upstream::{ResponseGate, Upstream},
    wait::{eventually, sleep},
};
use tidegate::clock;

use crate::tidegate_command;

/// A directory with this configuration at the default path.
fn directory_with(yaml: &str) -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    fs::create_dir(directory.path().join("config")).expect("a directory");
    fs::write(directory.path().join("config/tidegate.yaml"), yaml).expect("a file");
    directory
}

/// The default configuration, on free ports.
fn standard() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/tidegate.yaml");
    let yaml = fs::read_to_string(path).expect("the default configuration");
    let yaml = yaml.replace("127.0.0.1:8080", "127.0.0.1:0");
    yaml.replace("{address: 127.0.0.1:9900}", "{address: 127.0.0.1:0, hosts: [gateway.test]}")
}

/// Runs a command that exits by itself. Returns its output and exit status.
fn output(directory: &TempDir, arguments: &[&str]) -> Output {
    let mut command = tidegate_command(directory.path(), arguments);
    let child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    let process = child.id();
    // A thread reads the output: a pipe holds only a part of the schema.
    let reader = std::thread::spawn(move || child.wait_with_output());
    let deadline = clock::instant() + Duration::from_secs(10);
    while !reader.is_finished() {
        assert!(clock::instant() < deadline, "{arguments:?}, process {process}, does not exit");
        sleep(Duration::from_millis(5));
    }
    reader.join().expect("the reader").expect("our own child")
}

#[test]
fn the_default_configuration_serves_and_limits() {
    let directory = directory_with(&standard());
    let mut process = Process::start(tidegate_command(directory.path(), &[]));
    for left in (0..5).rev() {
        let response = get(process.address, "/", "");
        assert_eq!((response.status, response.text()), (200, "hello\n".to_owned()));
        assert_eq!(response.number("X-RateLimit-Remaining"), left);
    }
    let refused = get(process.address, "/", "");
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert!((1..=12).contains(&refused.number("Retry-After")));
    assert_eq!(get(process.address, "/", "Authorization: Bearer b\r\n").status, 200);
    assert_eq!(get(process.admin, "/healthz", "").text(), "ok\n");
    assert_eq!(get(process.admin, "/readyz", "").json()["ready"], true);
    process.signal(Signal::TERM);
    assert_eq!(process.wait_exit().code(), Some(0));
    assert!(!process.log().contains("Bearer"), "no token in any log");
}

#[test]
fn exit_codes_distinguish_errors() {
    let faulty = standard().replace("quota: 5", "quota: none");
    let line = 1 + faulty.lines().position(|line| line == "    quota: none").expect("the quota");
    let fault = format!("config/tidegate.yaml:{line}:12: `none`, expected a whole number");
    let directory = directory_with(&faulty);
    for arguments in [&[][..], &["serve"], &["serve", "--config", "config/tidegate.yaml"]] {
        let exited = output(&directory, arguments);
        assert_eq!(exited.status.code(), Some(1), "{arguments:?}");
        let stderr = String::from_utf8_lossy(&exited.stderr);
        assert!(stderr.lines().any(|line| line.starts_with(&fault)), "{stderr}");
        assert!(exited.stdout.is_empty());
    }
    let checked = output(&directory, &["check"]);
    assert_eq!(checked.status.code(), Some(1));
    let message = [checked.stdout, checked.stderr].concat();
    assert!(String::from_utf8_lossy(&message).starts_with(&fault));

    let absent = output(&directory, &["--config", "absent.yaml"]);
    assert_eq!(absent.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&absent.stderr).contains("absent.yaml: the file does not exist")
    );
    for arguments in [&["--no-such-flag"][..], &["no-such-command"], &["serve", "--config"]] {
        let exited = output(&directory, arguments);
        assert_eq!(exited.status.code(), Some(2), "{arguments:?}");
        assert!(!exited.stderr.is_empty() && exited.stdout.is_empty());
    }

    let good = directory_with(&standard());
    for arguments in [&["check"][..], &["schema"], &["--version"], &["--help"]] {
        let exited = output(&good, arguments);
        assert_eq!(exited.status.code(), Some(0), "{arguments:?}");
        assert!(!exited.stdout.is_empty() && exited.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn without_a_configuration_commands_say_how_to_make_one() {
    let empty = tempfile::tempdir().expect("a directory");
    for arguments in [&[][..], &["serve"], &["check"], &["explain", "/"], &["replay", "access.log"]]
    {
        let exited = output(&empty, arguments);
        assert_eq!(exited.status.code(), Some(1), "{arguments:?}");
        let stderr = String::from_utf8_lossy(&exited.stderr);
        assert!(
            stderr
                .starts_with("tidegate: no configuration: none is named, and config/tidegate.yaml"),
            "{stderr}"
        );
        for way in ["tidegate init ", "tidegate proxy --to localhost:3000", "tidegate serve FILE"] {
            assert!(stderr.contains(way), "{way}: {stderr}");
        }
        assert!(exited.stdout.is_empty() && !stderr.contains("\"serving\""), "{arguments:?}");
    }
}

#[test]
fn two_configurations_are_a_usage_error() {
    let directory = directory_with(&standard());
    let file = "config/tidegate.yaml";
    for arguments in [
        &["serve", file, "--config", file][..],
        &["check", file, "-c", file],
        &["replay", file, "log", "-c", file],
    ] {
        let exited = output(&directory, arguments);
        assert_eq!(exited.status.code(), Some(2), "{arguments:?}");
        let stderr = String::from_utf8_lossy(&exited.stderr);
        assert!(stderr.contains("--config") && stderr.contains("Usage: tidegate"), "{stderr}");
    }
    let mut process = Process::start(tidegate_command(directory.path(), &["serve", file]));
    assert_eq!(get(process.address, "/", "").status, 200);
    process.signal(Signal::TERM);
    assert_eq!(process.wait_exit().code(), Some(0));
}

#[test]
fn a_full_output_exits_with_1() {
    let directory = directory_with(&standard());
    for arguments in [&["schema"][..], &["--help"], &["completions", "bash"], &["check"]] {
        let full = fs::File::options().write(true).open("/dev/full").expect("a device");
        let mut command = tidegate_command(directory.path(), arguments);
        let exited = command.stdout(full).stderr(Stdio::piped()).output().expect("it runs");
        assert_eq!(exited.status.code(), Some(1), "{arguments:?}");
        let said = String::from_utf8_lossy(&exited.stderr);
        assert!(said.starts_with("tidegate: cannot write the output: No space"), "{said}");
    }
}

#[test]
fn an_address_in_use_exits_with_1() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("an address").to_string();
    let directory = directory_with(&standard().replacen(
        "address: 127.0.0.1:0",
        &format!("address: {address}"),
        1,
    ));
    let exited = output(&directory, &[]);
    assert_eq!(exited.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&exited.stderr);
    assert!(stderr.contains(&format!("cannot listen on {address}")), "{stderr}");
}

#[test]
fn listeners_are_exclusive() {
    let directory = directory_with(&standard());
    let first = Process::start(tidegate_command(directory.path(), &[]));
    // Without an admin address, so that the listener is the only conflict.
    let yaml = standard().replace("admin:", "# admin:");
    let yaml = yaml.replacen("address: 127.0.0.1:0", &format!("address: {}", first.address), 1);
    let exited = output(&directory_with(&yaml), &[]);
    assert_eq!(exited.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&exited.stderr);
    assert!(stderr.contains(&format!("cannot listen on {}", first.address)), "{stderr}");
    assert_eq!(get(first.address, "/", "").status, 200);
}

#[test]
fn an_unwritable_access_log_exits_with_1() {
    let directory = directory_with(&(standard() + "access_log: no-such-directory/access.log\n"));
    let exited = output(&directory, &[]);
    assert_eq!(exited.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&exited.stderr);
    assert!(
        stderr.contains("cannot open the access log no-such-directory/access.log: No such"),
        "{stderr}"
    );
}

#[test]
fn a_signal_during_the_start_is_handled() {
    let directory = directory_with(&standard());
    for signal in [Signal::TERM, Signal::INT] {
        let mut child = tidegate_command(directory.path(), &[])
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        // Its first log line, before it serves.
        let first = lines.next().expect("a line").expect("text");
        assert!(first.contains("open files"), "{first}");
        kill_process(Pid::from_child(&child), signal).expect("a signal to our own child");
        // Reads the log to its end, so that the process never blocks on the pipe.
        let last = lines.map_while(Result::ok).last();
        assert_eq!(child.wait().expect("our own child").code(), Some(0), "{last:?}");
    }
}

/// An upstream that delays every response until the gate is opened.
pub(crate) fn delayed_upstream(gate: &ResponseGate, body: &'static str) -> Upstream {
    let gate = gate.clone();
    Upstream::with_handler(move |_, socket: &mut TcpStream| {
        gate.wait();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        socket.write_all(answer.as_bytes()).is_ok()
    })
}

#[test]
fn sigterm_drains_requests_in_flight() {
    let gate = ResponseGate::default();
    let upstream = delayed_upstream(&gate, "finished");
    let directory = directory_with(&format!(
        "listen: [{{address: \"127.0.0.1:0\"}}]
admin: {{address: \"127.0.0.1:0\", hosts: [gateway.test]}}
workers: 2
drain_timeout: 20s
upstreams: {{slow: {{targets: [{}]}}}}
routes: [{{name: a, match: {{path: /a}}, upstream: slow}}]
",
        upstream.target()
    ));
    let mut process = Process::start(tidegate_command(directory.path(), &["serve"]));
    let mut clients: Vec<_> = (0..6).map(|_| Client::connect(process.address)).collect();
    let mut idle = Client::connect(process.address);
    for client in &mut clients {
        client.send("GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    eventually("all requests are at the upstream", || upstream.request_count() == 6);
    process.signal(Signal::TERM);
    eventually("new connections are refused", || TcpStream::connect(process.address).is_err());
    assert!(idle.is_closed(), "an idle connection is closed at once");
    gate.open();
    for client in &mut clients {
        let response = client.read_response();
        assert_eq!((response.status, response.text()), (200, "finished".to_owned()));
        assert!(client.is_closed());
    }
    assert_eq!(process.wait_exit().code(), Some(0), "{}", process.log());
}

#[test]
fn a_secret_mismatch_is_logged_once() {
    let redis = RedisServer::start();
    let start = |secret: &str| {
        let yaml = standard();
        let yaml = format!(
            "{yaml}\nstore: {{redis: {{shards: [{{primary: '{}'}}], secret: file:secret}}}}\n",
            redis.url()
        );
        let directory = directory_with(&yaml);
        fs::write(directory.path().join("secret"), secret).expect("a file");
        let process = Process::start(tidegate_command(directory.path(), &[]));
        (directory, process)
    };
    let message = "other gateways in this namespace use a different `store.redis.secret`";
    let (_first, first) = start("0123456789abcdef");
    let (_second, second) = start("0123456789abcdef");
    let (_third, third) = start("fedcba9876543210");
    for process in [&first, &second, &third] {
        eventually("it is logged", || process.log_line(message).is_some());
        let logged = process.log_line(message).expect("a log line");
        assert!(logged.contains("set the same `store.redis.secret` at all of them"), "{logged}");
    }
    third.signal(Signal::TERM);
    let resolved = "all gateways in this namespace use the same `store.redis.secret`";
    eventually("the end of the mismatch is logged", || first.log_line(resolved).is_some());
    assert_eq!(first.log().matches(message).count(), 1, "once");
    assert!(!first.log().contains("0123456789abcdef"), "no secret in any log");
}
