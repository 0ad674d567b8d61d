use std::{
    fs,
    net::SocketAddr,
    os::fd::OwnedFd,
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use testkit::{
    client::{Client, Response, get},
    process::Process,
    terminal::Terminal,
    upstream::Upstream,
    wait::eventually,
};

use crate::{observability::read_lines, tidegate_command};

const SECRET: &str = "hush-5e1d";

/// A directory with a configuration: `/a` and below with a limit of two requests, `/guarded` behind the
/// throttle, which refuses each caller.
fn directory_with(more: &str, target: &str) -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let yaml = format!(
        "listen: [{{address: '127.0.0.1:0'}}]
admin: {{address: '127.0.0.1:0', hosts: [gateway.test]}}
workers: 1
drain_timeout: 1s
{more}
throttle: {{max_active: 1000, capacity: 1000, mode: on}}
upstreams: {{hello: {{respond: {{body: hello}}}}, app: {{targets: ['{target}']}}}}
limits: {{few: {{quota: 2, window: 1h, key: [token]}}}}
routes:
  - {{name: all, match: {{path: '/{{*rest}}'}}, upstream: hello, limits: [few], throttle: false}}
  - {{name: app, match: {{path: /app}}, upstream: app, throttle: false}}
  - {{name: guarded, match: {{path: /guarded}}, upstream: hello}}\n"
    );
    fs::write(directory.path().join("t.yaml"), yaml).expect("a file");
    directory
}

const NO_TARGET: &str = "http://127.0.0.1:1";

/// A command that serves the configuration in `directory` in an environment without terminal settings.
fn command(directory: &TempDir, arguments: &[&str]) -> Command {
    let mut command = tidegate_command(directory.path(), &["--config", "t.yaml"]);
    command.args(arguments).env_remove("NO_COLOR").env("TERM", "xterm-256color");
    command
}

/// A request with a token, a query and a user agent that a terminal would act on.
fn request(address: SocketAddr, path: &str) -> Response {
    let headers = format!(
        "Authorization: Bearer {SECRET}\r\nReferer: https://page.test/p?k={SECRET}\r\n\
         User-Agent: curl/8.5 \"\u{9b}31m\"\r\n"
    );
    get(address, &format!("{path}?k={SECRET}"), &headers)
}

/// The lines of an access log in a file with these settings, of three requests to `/a`, which the limit admits
/// twice. The log must have nothing secret.
fn lines_of(settings: &str) -> Vec<String> {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("access.log");
    let log = format!("access_log: {{to: {}{settings}}}", file.display());
    let configured = directory_with(&log, NO_TARGET);
    let process = Process::start(command(&configured, &[]));
    for status in [200, 200, 429] {
        assert_eq!(request(process.address, "/a").status, status);
    }
    let text = read_lines(&file, 3);
    assert!(!text.contains(SECRET), "{text}");
    assert!(!text.contains('\x1b') && !text.contains('\u{9b}'), "{text:?}");
    let lines: Vec<_> = text.lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 3, "{text}");
    lines
}

#[test]
fn a_file_has_lines_in_the_chosen_format() {
    let combined = lines_of(", format: combined");
    let line = &combined[2];
    let (client, rest) = line.split_once(" [").expect("a time");
    let (time, rest) = rest.split_once("] ").expect("a time");
    let hash = client.strip_prefix("127.0.0.1 - ").expect("the address and the user");
    assert!(hash.len() == 32 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{line}");
    assert!(
        time.len() == 26 && time.ends_with(" +0000") && time.matches(':').count() == 3,
        "{line}"
    );
    let (head, size) = rest.split_once(" 429 ").expect("the status");
    assert_eq!(head, "\"GET /a HTTP/1.1\"");
    let (size, headers) = size.split_once(' ').expect("the size");
    assert!(size.parse::<u64>().is_ok_and(|size| size > 0), "{line}");
    assert_eq!(headers, "\"https://page.test/p\" \"curl/8.5 \\x22\\xC2\\x9B31m\\x22\"");
    assert!(combined[0].contains("\"GET /a HTTP/1.1\" 200 5 "), "{combined:?}");

    let text = lines_of(", format: text");
    assert!(text[2].contains(" 429 GET gateway.test /a 127.0.0.1 duration_ms="), "{text:?}");
    assert!(
        text[2].contains(" route=all limit=refused refused_by=few ")
            && text[2].contains(" request_id="),
        "{text:?}"
    );

    let default = lines_of("");
    let line: Value = serde_json::from_str(&default[2]).expect("JSON");
    assert_eq!((&line["status"], &line["limit"]), (&429.into(), &"refused".into()));
    assert_eq!(line["refused_by"], "few");
    assert!(line["user_agent"].is_null());
}

#[test]
fn lines_have_the_chosen_fields_in_their_order() {
    let fields = ", fields: [status, path, user_agent, referer, limit]";
    let json = lines_of(&format!("{fields}, format: json"));
    let expected =
        "{\"status\":429,\"path\":\"/a\",\"user_agent\":\"curl/8.5 \\\"\\u009b31m\\\"\",";
    assert!(json[2].starts_with(expected), "{json:?}");
    let line: Value = serde_json::from_str(&json[2]).expect("JSON");
    assert_eq!(line["referer"], "https://page.test/p");
    assert_eq!(line.as_object().map(serde_json::Map::len), Some(5), "{line}");

    let text = lines_of(&format!("{fields}, format: text"));
    let expected = "429 /a user_agent=\"curl/8.5 \\\"\\u{9b}31m\\\"\" referer=https://page.test/p limit=refused";
    assert_eq!(text[2], expected);
}

/// A gateway with terminals, or files of a pipe, as its outputs. Killed when dropped.
struct Served {
    child: Child,
    address: SocketAddr,
}

impl Served {
    /// Starts it. `log` is its process log so far.
    fn start(mut command: Command, stdout: Stdio, stderr: Stdio, log: impl Fn() -> String) -> Self {
        let child = command.stdout(stdout).stderr(stderr).spawn().expect("the binary starts");
        drop(command);
        let mut served = Self { child, address: SocketAddr::from(([0, 0, 0, 0], 0)) };
        let mut line = String::new();
        eventually("it serves", || {
            let text = log();
            let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            line = lines.filter(|line| line.contains("serving")).map(str::to_owned).collect();
            !line.is_empty()
        });
        let listen = line.split("listen").nth(1).and_then(|rest| rest.split("127.0.0.1:").nth(1));
        let port = listen.expect("a listener").split(|char: char| !char.is_ascii_digit()).next();
        let port = port.and_then(|port| port.parse::<u16>().ok()).expect("a port");
        served.address = SocketAddr::from(([127, 0, 0, 1], port));
        served
    }

    /// Sends three requests, and stops it.
    fn finish(mut self) {
        for status in [200, 200, 429] {
            assert_eq!(request(self.address, "/a").status, status);
        }
        kill_process(Pid::from_child(&self.child), Signal::TERM)
            .expect("a signal to our own child");
        assert_eq!(self.child.wait().expect("our own child").code(), Some(0));
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The access lines and the lines of the process log.
fn split_logs(text: &str) -> (Vec<&str>, Vec<&str>) {
    text.lines().partition(|line| line.contains("GET ") || line.contains("\"method\""))
}

/// Both logs on one terminal, after three requests.
fn on_a_terminal(variables: &[(&str, &str)], more: &str) -> String {
    let directory = directory_with(more, NO_TARGET);
    let terminal = Terminal::default();
    let mut command = command(&directory, &[]);
    command.envs(variables.iter().copied());
    let served = Served::start(command, terminal.stdio(), terminal.stdio(), || terminal.text());
    served.finish();
    terminal.close()
}

/// `text` without the escape sequences of colours.
fn without_colours(text: &str) -> String {
    let mut plain = String::new();
    for (index, part) in text.split("\x1b[").enumerate() {
        let part = if index == 0 { part } else { part.split_once('m').expect("a colour").1 };
        plain.push_str(part);
    }
    plain
}

#[test]
fn a_terminal_shows_readable_lines_with_colours() {
    for more in
        ["", "access_log: stderr", "access_log: stdout", "access_log: {to: stdout, format: text}"]
    {
        let text = on_a_terminal(&[], more);
        let (access, process) = split_logs(&text);
        assert_eq!(access.len(), 3, "{more}: {text}");
        assert!(
            access[0].contains(" \x1b[32m200\x1b[0m GET gateway.test /a 127.0.0.1 "),
            "{text:?}"
        );
        assert!(
            access[2].contains(" \x1b[33m429\x1b[0m GET gateway.test /a 127.0.0.1 "),
            "{text:?}"
        );
        let serving = process.iter().find(|line| line.contains("serving")).expect("a line");
        assert!(serving.contains("\x1b[32m INFO\x1b[0m"), "{serving:?}");
        // A note has the lines of the configuration that it is about.
        let plain = without_colours(&text);
        for line in plain.lines().filter(|line| line.contains("GET ") || line.contains(" INFO ")) {
            let year = line.split('-').next().and_then(|year| year.parse::<u16>().ok());
            assert!(
                year.is_some() && line.as_bytes()[10] == b'T',
                "does not begin with a time: {line}"
            );
        }
        assert!(!text.contains(SECRET) && !text.contains("{\""), "{text}");
    }
}

#[test]
fn a_terminal_shows_where_to_go() {
    let shown = |text: &str| text.lines().filter(|line| line.starts_with("listening on ")).count();
    let text = on_a_terminal(&[], "");
    assert_eq!(shown(&text), 1, "{text}");
    let line = text.lines().find(|line| line.starts_with("listening on ")).expect("counted");
    let (listen, dashboard) = line.split_once(", dashboard ").expect("a dashboard");
    assert!(listen.starts_with("listening on http://localhost:"), "{line}");
    assert!(dashboard.starts_with("http://localhost:") && !dashboard.ends_with(":0"), "{line}");

    let ((log, stderr), terminal) = (file(), Terminal::default());
    let directory = directory_with("", NO_TARGET);
    let read = || fs::read_to_string(log.path()).expect("a log");
    Served::start(command(&directory, &[]), terminal.stdio(), stderr, read).finish();
    assert_eq!(shown(&read()), 0, "only a log: {}", read());
    assert_eq!(terminal.close(), "");
}

#[test]
fn colours_are_left_out_on_request() {
    for variables in [[("NO_COLOR", "1")], [("TERM", "dumb")]] {
        let text = on_a_terminal(&variables, "");
        assert!(!text.contains('\x1b'), "{variables:?}: {text:?}");
        let (access, process) = split_logs(&text);
        assert!(access[2].contains(" 429 GET gateway.test /a 127.0.0.1 "), "{text}");
        assert!(
            process.iter().any(|line| line.contains(" INFO ") && line.contains("serving")),
            "{text}"
        );
    }
    // https://no-color.org: only a value that is not empty counts.
    assert!(on_a_terminal(&[("NO_COLOR", "")], "").contains("\x1b[33m429"));
}

#[test]
fn a_chosen_format_is_kept_on_a_terminal() {
    let text = on_a_terminal(&[], "access_log: {format: json}");
    let (access, process) = split_logs(&text);
    let line: Value = serde_json::from_str(access[2]).expect("JSON");
    assert_eq!(line["status"], 429);
    assert!(process[0].contains("\x1b[32m INFO"), "the process log is not changed: {text:?}");
    let text = on_a_terminal(&[], "access_log: {to: stdout, format: combined}");
    let (access, _) = split_logs(&text);
    assert_eq!(access.len(), 3, "{text}");
    assert!(access[2].starts_with("127.0.0.1 - ") && !access[2].contains('\x1b'), "{text:?}");
    let fields = "access_log: {to: stdout, fields: [path, user_agent]}";
    let text = on_a_terminal(&[("NO_COLOR", "1")], fields);
    assert!(text.contains("/a user_agent=\"curl/8.5 \\\"\\u{9b}31m\\\"\"\n"), "{text:?}");
    assert!(!text.contains('\u{9b}') && !text.contains('\x1b'), "{text:?}");
}

/// A temporary file that a process may write to, and that is read meanwhile.
fn file() -> (tempfile::NamedTempFile, Stdio) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let writer = fs::File::options().append(true).open(file.path()).expect("a file");
    (file, OwnedFd::from(writer).into())
}

#[test]
fn each_log_has_the_style_of_its_own_output() {
    let assert_json = |text: &str| {
        for line in text.lines() {
            assert!(
                serde_json::from_str::<Value>(line).is_ok_and(|line| line.is_object()),
                "{text}"
            );
        }
        assert!(!text.is_empty());
    };
    let directory = directory_with("access_log: stdout", NO_TARGET);
    let ((log, stderr), terminal) = (file(), Terminal::default());
    let read = || fs::read_to_string(log.path()).expect("our own file");
    let served = Served::start(command(&directory, &[]), terminal.stdio(), stderr, read);
    served.finish();
    assert_json(&read());
    assert!(read().contains("\"serving\""));
    let shown = terminal.close();
    assert_eq!(shown.matches("\x1b[32m200\x1b[0m GET").count(), 2, "{shown:?}");

    let ((log, stdout), terminal) = (file(), Terminal::default());
    let served =
        Served::start(command(&directory, &[]), stdout, terminal.stdio(), || terminal.text());
    served.finish();
    let text = fs::read_to_string(log.path()).expect("our own file");
    assert_json(&text);
    assert_eq!(text.lines().count(), 3, "{text}");
    assert!(terminal.close().contains("\x1b[32m INFO"));

    let ((log, stdout), (second, stderr)) = (file(), file());
    let read = || fs::read_to_string(second.path()).expect("our own file");
    Served::start(command(&directory, &[]), stdout, stderr, read).finish();
    assert_json(&fs::read_to_string(log.path()).expect("our own file"));
    assert_json(&read());
}

/// The lines of the process log in JSON whose message is `message`.
fn messages(process: &Process, message: &str) -> Vec<Value> {
    let log = process.log();
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines.filter(|line| line["message"] == message).collect()
}

#[test]
fn debug_shows_the_decisions_on_each_request() {
    let upstream = Upstream::hello();
    let directory = directory_with("access_log: off", &upstream.target());
    let process = Process::start(command(&directory, &["--log", "tidegate=debug"]));
    let mut ids = Vec::new();
    for (path, status) in [("/a", 200), ("/a", 200), ("/a", 429), ("/app", 200), ("/guarded", 429)]
    {
        let response = request(process.address, path);
        assert_eq!(response.status, status, "{path}");
        ids.push(response.header("x-request-id").expect("an id").to_owned());
    }
    eventually("the decisions are logged", || messages(&process, "request decided").len() == 5);
    let log = process.log();
    let hidden = [SECRET, "\u{9b}", "curl"];
    assert!(hidden.iter().all(|text| !log.contains(text)), "{log}");

    let app = upstream.target().trim_start_matches("http://").to_owned();
    let requests = messages(&process, "request decided");
    for (index, (id, request)) in ids.iter().zip(&requests).enumerate() {
        let (path, route, limits, upstream, status) = [
            ("/a", "all", "admitted", "", 200),
            ("/a", "all", "admitted", "", 200),
            ("/a", "all", "refused", "", 429),
            ("/app", "app", "none", &*app, 200),
            ("/guarded", "guarded", "throttled", "", 429),
        ][index];
        assert_eq!(request["request_id"], **id);
        assert_eq!((&request["method"], &request["host"]), (&"GET".into(), &"gateway.test".into()));
        assert_eq!((&request["path"], &request["route"]), (&path.into(), &route.into()));
        assert_eq!((&request["limits"], &request["status"]), (&limits.into(), &status.into()));
        let attempts = u64::from(path == "/app");
        assert_eq!(
            (&request["upstream"], &request["attempts"]),
            (&upstream.into(), &attempts.into())
        );
    }
    let limits = messages(&process, "limit decided");
    assert_eq!(limits.len(), 3);
    for (index, decision) in ["admitted", "admitted", "refused"].into_iter().enumerate() {
        let limit = &limits[index];
        assert_eq!(limit["request_id"], *ids[index]);
        assert_eq!((&limit["limit"], &limit["decision"]), (&"few".into(), &decision.into()));
        let remaining = 1_u64.saturating_sub(index as u64);
        assert_eq!((&limit["quota"], &limit["remaining"]), (&2.into(), &remaining.into()));
        assert_eq!((&limit["cost"], &limit["source"]), (&1.into(), &"store".into()));
        assert_eq!(limit["hash"], limits[0]["hash"], "the same caller");
        assert_eq!(limit["hash"].as_str().map(str::len), Some(32));
    }
    let throttled = messages(&process, "refused by the throttle");
    assert_eq!(throttled.len(), 1);
    assert_eq!(
        (&throttled[0]["request_id"], &throttled[0]["reason"]),
        (&ids[4].clone().into(), &"Unknown".into())
    );
}

#[test]
fn decisions_are_logged_at_debug_only_and_as_long_as_it_is_set() {
    let directory = directory_with("access_log: off", NO_TARGET);
    let process = Process::start(command(&directory, &[]));
    let set = |level: &str| {
        let body = format!("{{\"level\":\"{level}\"}}");
        let mut client = Client::connect(process.admin);
        client.send(format!(
            "PUT /api/log_level HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        let response = client.read_response();
        assert_eq!(response.status, 200, "{}", response.text());
    };
    assert_eq!(request(process.address, "/a").status, 200);
    set("tidegate=debug");
    assert_eq!(request(process.address, "/b").status, 200);
    eventually("the decisions are logged", || messages(&process, "request decided").len() == 1);
    assert_eq!(messages(&process, "request decided")[0]["path"], "/b");
    set("info");
    assert_eq!(request(process.address, "/c").status, 429);
    process.signal(Signal::HUP);
    eventually("a later line", || process.log_line("configuration").is_some());
    assert_eq!(messages(&process, "request decided").len(), 1);
}
