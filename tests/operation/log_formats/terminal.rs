//! Both logs on terminals: readable lines, colours, and a style for each output.

use std::{
    fs,
    net::SocketAddr,
    os::fd::OwnedFd,
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testkit::{terminal::Terminal, wait::eventually};

use super::{SECRET, command, directory_with, request};

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
fn on_a_terminal(variables: &[(&str, &str)], access_log: &str) -> String {
    let directory = directory_with(access_log);
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
    for section in
        ["", "access_log: stderr", "access_log: stdout", "access_log: {to: stdout, format: text}"]
    {
        let text = on_a_terminal(&[], section);
        let (access, process) = split_logs(&text);
        assert_eq!(access.len(), 3, "{section}: {text}");
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
fn a_terminal_shows_the_addresses_to_open() {
    let shown = |text: &str| text.lines().filter(|line| line.starts_with("listening on ")).count();
    let text = on_a_terminal(&[], "");
    assert_eq!(shown(&text), 1, "{text}");
    let line = text.lines().find(|line| line.starts_with("listening on ")).expect("counted");
    let (listen, dashboard) = line.split_once(", dashboard ").expect("a dashboard");
    assert!(listen.starts_with("listening on http://localhost:"), "{line}");
    assert!(dashboard.starts_with("http://localhost:") && !dashboard.ends_with(":0"), "{line}");

    let ((log, stderr), terminal) = (file(), Terminal::default());
    let directory = directory_with("");
    let read = || fs::read_to_string(log.path()).expect("a log");
    Served::start(command(&directory, &[]), terminal.stdio(), stderr, read).finish();
    assert_eq!(shown(&read()), 0, "only a log: {}", read());
    assert_eq!(terminal.close(), "");
}

#[test]
fn no_color_and_a_dumb_terminal_leave_colours_out() {
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
    let section = "access_log: {to: stdout, fields: [path, user_agent]}";
    let text = on_a_terminal(&[("NO_COLOR", "1")], section);
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
    let directory = directory_with("access_log: stdout");
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
