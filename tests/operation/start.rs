use std::{
    fs,
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::{Arc, Mutex},
    thread,
};

use rustix::process::{Pid, Signal, kill_process};
use testkit::{
    client::get, process::Process, redis_server::RedisServer, upstream::Upstream, wait::eventually,
};

use crate::tidegate_command;

/// A gateway without an admin listener; killed when dropped.
struct Serving {
    child: Child,
    log: Arc<Mutex<String>>,
    address: SocketAddr,
}

impl Serving {
    fn start(mut command: Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let stderr = child.stderr.take().expect("a pipe");
        let log = Arc::<Mutex<String>>::default();
        let collector = log.clone();
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                collector.lock().expect("no panic").push_str(&(line + "\n"));
            }
        });
        let text = || log.lock().expect("no panic").clone();
        eventually("it serves", || text().contains("\"serving\""));
        let listen = text().split("\"listen\":\"").nth(1).expect("an address").to_owned();
        let address = listen.split('"').next().expect("its end").parse().expect("an address");
        Self { child, log, address }
    }

    /// Its output before it began to serve.
    fn printed(&mut self) -> String {
        let mut buffer = [0; 4096];
        let stdout = self.child.stdout.as_mut().expect("a pipe");
        let length = stdout.read(&mut buffer).expect("the configuration");
        text(&buffer[..length])
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a signal to our own child");
    }

    fn log(&self) -> String {
        self.log.lock().expect("no panic").clone()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command that exits by itself.
fn run(mut command: Command) -> Output {
    command.output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn upstream() -> Upstream {
    Upstream::hello()
}

/// `host:port` of an upstream.
fn server(upstream: &Upstream) -> String {
    upstream.target().trim_start_matches("http://").to_owned()
}

/// Runs `tidegate check`: true if it accepts the configuration, and its output.
fn check(folder: &Path, yaml: &str) -> (bool, String) {
    fs::write(folder.join("kept.yaml"), yaml).expect("a file");
    let checked = run(tidegate_command(folder, &["check", "kept.yaml"]));
    (checked.status.success(), text(&checked.stdout))
}

#[test]
fn proxy_serves_and_limits_without_a_file() {
    let folder = tempfile::tempdir().expect("a directory");
    let (first, second) = (upstream(), upstream());
    let (to, url) = (server(&first), second.target());
    let arguments = [
        "proxy",
        "--to",
        &to,
        "--to",
        &url,
        "--from",
        "localhost:0",
        "--limit",
        "20/1d",
        "--admin",
        "off",
    ];
    let mut gateway = Serving::start(tidegate_command(folder.path(), &arguments));
    for left in (0..20).rev() {
        let response = get(gateway.address, "/a?b=c", "");
        assert_eq!((response.status, response.text()), (200, "hello".to_owned()));
        assert_eq!(response.number("X-RateLimit-Remaining"), left);
    }
    let refused = get(gateway.address, "/", "Authorization: Bearer another\r\n");
    assert_eq!(refused.status, 429, "the address is counted, not the token");
    assert!(first.request_count() > 0 && second.request_count() > 0, "both targets are used");
    // Its output is a configuration that does the same.
    let printed = gateway.printed();
    let (is_valid, printed) = check(folder.path(), &printed);
    assert!(
        is_valid && printed.contains("everything: any */{*rest} -> app (per-address)"),
        "{printed}"
    );
    assert!(!printed.contains("note"), "{printed}");
    // A reload reports that there is no file, and changes nothing.
    gateway.signal(Signal::HUP);
    let message = "the gateway was started without a configuration file";
    eventually("the reload is refused", || gateway.log().contains(message));
    assert_eq!(get(gateway.address, "/", "").status, 429);
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.child.wait().expect("our own child").code(), Some(0), "{}", gateway.log());
}

#[test]
fn proxy_counts_in_redis_and_admits_active_users() {
    let folder = tempfile::tempdir().expect("a directory");
    let (upstream, redis) = (upstream(), RedisServer::start());
    let (to, redis) = (server(&upstream), redis.url());
    let start = || {
        let arguments = [
            "proxy",
            "--to",
            &to,
            "--from",
            "127.0.0.1:0",
            "--admin",
            "off",
            "--limit",
            "1000/1h",
            "--throttle",
            "1000",
            "--redis",
            "${REDIS}",
        ];
        let mut command = tidegate_command(folder.path(), &arguments);
        command.env("REDIS", &redis);
        Serving::start(command)
    };
    let (mut first, second) = (start(), start());
    let printed = first.printed();
    for _ in 0..300 {
        assert_eq!(get(first.address, "/", "").status, 200);
    }
    // While Redis is slow, a gateway may count by itself for a while, only its own requests.
    let mut own = 0..100;
    eventually("the other gateway sees these requests", || {
        assert!(own.next().is_some(), "{}", second.log());
        get(second.address, "/", "").number("X-RateLimit-Used") > 150
    });
    assert!(printed.contains("max_active: 1000") && printed.contains("${REDIS}"), "{printed}");
    assert!(!printed.contains(&redis), "{printed}");
    assert!(!first.log().contains(&redis), "{}", first.log());
}

#[test]
fn proxy_explains_faulty_arguments() {
    let folder = tempfile::tempdir().expect("a directory");
    for (arguments, expected) in [
        (&["proxy"][..], "--to <SERVER>"),
        (&["proxy", "--to", "ftp://a"], "expected host:port"),
        (&["proxy", "--to", "http://a/b"], "without a path after it"),
        (&["proxy", "--to", "a", "--from", "example.com:80"], ":8080 for all addresses"),
        (&["proxy", "--to", "a", "--admin", "a"], "expected an address"),
        (&["proxy", "--to", "a", "--admin", ":9900"], "beyond loopback it needs a token"),
        (&["proxy", "--to", "3000"], "such as localhost:3000"),
        (&["proxy", "--to", "a", "--limit", "100/m"], "`100/1m`: a rate such as 100/1m"),
        (&["proxy", "--to", "a", "--throttle", "0"], "0 is not in 1.."),
        (&["proxy", "--to", "a", "--redis", "redis://:hunter2@a"], "expected a variable"),
        (&["proxy", "--to", "a", "--redis", "a"], "expected a Redis URL"),
    ] {
        let exited = run(tidegate_command(folder.path(), arguments));
        assert_eq!(exited.status.code(), Some(2), "{arguments:?}");
        let stderr = text(&exited.stderr);
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
        assert!(exited.stdout.is_empty());
    }
    let unset = ["proxy", "--to", "${NO_SUCH_SERVER}", "--from", "localhost:0", "--admin", "off"];
    let exited = run(tidegate_command(folder.path(), &unset));
    assert_eq!(exited.status.code(), Some(1));
    let stderr = text(&exited.stderr);
    assert!(
        stderr.contains("tidegate proxy:7:10: the environment variable NO_SUCH_SERVER is not set"),
        "{stderr}"
    );
}

#[test]
fn init_writes_a_configuration_that_serves() {
    let folder = tempfile::tempdir().expect("a directory");
    let init = run(tidegate_command(folder.path(), &["init"]));
    assert_eq!(init.status.code(), Some(0), "{}", text(&init.stderr));
    assert!(text(&init.stdout).contains("tidegate serve config/tidegate.yaml"));
    let file = folder.path().join("config/tidegate.yaml");
    let yaml = fs::read_to_string(&file).expect("the configuration");
    let schema =
        yaml.lines().next().and_then(|line| line.split_once("$schema=")).expect("a schema").1;
    let schema = fs::read_to_string(file.with_file_name(schema)).expect("the schema beside it");
    assert_eq!(schema, text(&run(tidegate_command(folder.path(), &["schema"])).stdout));
    let (is_valid, printed) = check(folder.path(), &yaml);
    assert!(is_valid && !printed.contains("note"), "{printed}");

    let again = run(tidegate_command(folder.path(), &["init"]));
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again.stderr).contains("config/tidegate.yaml exists; nothing was written"));
    assert_eq!(fs::read_to_string(&file).expect("the configuration"), yaml);

    let upstream = upstream();
    let served =
        yaml.replace("http://localhost:3000", "'${SERVER}'").replace("localhost:8080", ":0");
    let served = served.replace("localhost:9900", "localhost:${ADMIN_PORT:-0}");
    let served = served.replace(
        "{address: localhost:${ADMIN_PORT:-0}}",
        "{address: 'localhost:${ADMIN_PORT:-0}'}",
    );
    fs::write(&file, served).expect("the configuration");
    let mut command = tidegate_command(folder.path(), &[]);
    command.env("SERVER", upstream.target());
    let mut gateway = Serving::start(command);
    let port = gateway.address.port();
    assert!(gateway.address.ip().is_unspecified(), "{}", gateway.address);
    for address in
        [([127, 0, 0, 1], port).into(), SocketAddr::new("::1".parse().expect("an address"), port)]
    {
        assert_eq!(get(address, "/", "").text(), "hello", "{address}");
    }
    // An IPv4 client of the IPv6 socket is logged with its own address.
    eventually("the access log is written", || gateway.log().contains("\"client\":\"127.0.0.1\""));
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.child.wait().expect("our own child").code(), Some(0));
}

#[test]
fn variables_are_read_again_at_a_reload() {
    let folder = tempfile::tempdir().expect("a directory");
    let yaml = |more: &str| {
        format!(
            "listen: [{{address: '127.0.0.1:${{PORT}}'}}]
admin: {{address: '127.0.0.1:${{PORT}}'}}
upstreams: {{hello: {{respond: {{body: '${{BODY}}{more}'}}}}}}
limits: {{all: '${{RATE:-2/1h}}'}}
routes: [{{name: all, upstream: hello, limits: [all]}}]
"
        )
    };
    let file = folder.path().join("t.yaml");
    fs::write(&file, yaml("")).expect("a file");
    let mut command = tidegate_command(folder.path(), &["serve", "t.yaml"]);
    command.env("PORT", "0").env("BODY", "hush-77").env("LATER", "!");
    let gateway = Process::start(command);
    let response = get(gateway.address, "/", "");
    assert_eq!((response.text(), response.number("X-RateLimit-Limit")), ("hush-77".to_owned(), 2));
    fs::write(&file, yaml("${LATER}")).expect("a file");
    gateway.signal(Signal::HUP);
    eventually("the reload", || gateway.log_line("was reloaded").is_some());
    assert_eq!(get(gateway.address, "/", "").text(), "hush-77!");
    fs::write(&file, yaml("${GONE}")).expect("a file");
    gateway.signal(Signal::HUP);
    let message = "the environment variable GONE is not set";
    eventually("the fault is logged", || gateway.log_line(message).is_some());
    assert!(!gateway.log().contains("hush-77"), "{}", gateway.log());

    let unset = run(tidegate_command(folder.path(), &["check", "t.yaml"]));
    assert_eq!(unset.status.code(), Some(1));
    let printed = text(&unset.stdout);
    assert!(
        printed.starts_with("t.yaml:1:31: the environment variable PORT is not set"),
        "{printed}"
    );
}

#[test]
fn a_start_that_hangs_can_be_stopped() {
    for signal in [Signal::TERM, Signal::INT] {
        let folder = tempfile::tempdir().expect("a directory");
        let fifo = folder.path().join("tidegate.yaml");
        assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
        let mut command = tidegate_command(folder.path(), &["serve", "tidegate.yaml"]);
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the binary starts");
        let mut log = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        // Its first line follows the signal handlers, and it has no other before it waits for the
        // file.
        assert!(log.next().is_some_and(|line| line.expect("a line").contains("open files")));
        kill_process(Pid::from_child(&child), signal).expect("a signal to our own child");
        eventually("it has ended", || child.try_wait().expect("our own child").is_some());
        assert_eq!(child.wait().expect("its status").code(), Some(0));
        let line = log.next().expect("a line").expect("a line");
        assert!(line.contains("stopped before it served"), "{line}");
    }
}
