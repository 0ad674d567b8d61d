//! The formats of access lines in files.

/// Decisions in the process log at `debug`.
mod decisions;
/// Both logs on terminals.
mod terminal;

use std::{fs, net::SocketAddr, process::Command};

use serde_json::Value;
use tempfile::TempDir;
use testkit::log_lines::read_lines;
use testkit::{
    client::{Response, get},
    process::Process,
    yaml::fill,
};

use crate::tidegate_command;

const SECRET: &str = "hush-5e1d";

/// A limit of two requests, and a section that each test names.
const LIMITED: &str = "
listen: [{address: '127.0.0.1:0'}]
admin: {address: '127.0.0.1:0', hosts: [gateway.test]}
workers: 1
drain_timeout: 1s
{access_log}
upstreams: {hello: {respond: {body: hello}}}
limits: {few: {quota: 2, window: 1h, key: [token]}}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello, limits: [few]}]
";

/// A directory with [`LIMITED`]; `access_log` is its section of that name, or empty.
fn directory_with(access_log: &str) -> TempDir {
    directory_of(&fill(LIMITED, [("access_log", access_log)]))
}

fn directory_of(yaml: &str) -> TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("t.yaml"), yaml).expect("a file");
    directory
}

/// A command that serves the configuration in `directory` in an environment without terminal
/// settings.
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

/// The lines of an access log in `{file}`, of three requests to `/a`, which the limit admits twice.
/// The log must have nothing secret.
fn lines_of(access_log: &str) -> Vec<String> {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("access.log");
    let configured = directory_with(&fill(access_log, [("file", file.display())]));
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
    let combined = lines_of("access_log: {to: '{file}', format: combined}");
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

    let text = lines_of("access_log: {to: '{file}', format: text}");
    assert!(text[2].contains(" 429 GET gateway.test /a 127.0.0.1 duration_ms="), "{text:?}");
    assert!(
        text[2].contains(" route=all limit=refused refused_by=few ")
            && text[2].contains(" request_id="),
        "{text:?}"
    );

    let default = lines_of("access_log: {to: '{file}'}");
    let line: Value = serde_json::from_str(&default[2]).expect("JSON");
    assert_eq!((&line["status"], &line["limit"]), (&429.into(), &"refused".into()));
    assert_eq!(line["refused_by"], "few");
    assert!(line["user_agent"].is_null());
}

#[test]
fn lines_have_the_chosen_fields_in_their_order() {
    let json = lines_of(
        "
        access_log:
          to: '{file}'
          format: json
          fields: [status, path, user_agent, referer, limit]
        ",
    );
    let expected =
        "{\"status\":429,\"path\":\"/a\",\"user_agent\":\"curl/8.5 \\\"\\u009b31m\\\"\",";
    assert!(json[2].starts_with(expected), "{json:?}");
    let line: Value = serde_json::from_str(&json[2]).expect("JSON");
    assert_eq!(line["referer"], "https://page.test/p");
    assert_eq!(line.as_object().map(serde_json::Map::len), Some(5), "{line}");

    let text = lines_of(
        "
        access_log:
          to: '{file}'
          format: text
          fields: [status, path, user_agent, referer, limit]
        ",
    );
    let expected = "429 /a user_agent=\"curl/8.5 \\\"\\u{9b}31m\\\"\" referer=https://page.test/p limit=refused";
    assert_eq!(text[2], expected);
}
