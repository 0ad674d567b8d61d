//! `tidegate replay` on foreign, compressed, damaged and hostile logs.

/// Lines and their formats, whatever they contain.
mod formats;

use std::{fs, io::Write, process::Stdio};

use flate2::{Compression, write::GzEncoder};
use serde_json::Value;
use tempfile::TempDir;
use testkit::yaml::without_indentation;
use tidegate::{
    cli::{self, Exit},
    config,
    identity::KeySecret,
    replay::{ConfigReplay, MAX_LINE, Replay},
    snapshot::{SecretReading, Snapshot},
};

use crate::tidegate_command;

const RULES: &str = "
client: {trusted_proxies: [10.0.0.0/8]}
upstreams: {hello: {respond: {}}}
limits:
  one: {quota: 1, window: 1m, key: [token]}
  team: {quota: 3, window: 1m, key: ['header:x-team', 'query:k']}
routes:
  - {name: a, match: {path: /a}, upstream: hello, limits: [one]}
  - {name: b, match: {path: '/b/{id}', methods: [GET]}, upstream: hello, limits: [team]}
  - {name: c, match: {host: c.test, path: /c}, upstream: hello}
";

/// A directory with rules and logs.
struct ReplayDirectory(TempDir);

impl ReplayDirectory {
    fn new() -> Self {
        let directory = Self(tempfile::tempdir().expect("a directory"));
        directory.write("rules.yaml", RULES.as_bytes());
        directory
    }

    fn write(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).expect("a file");
        path.to_str().expect("a path").to_owned()
    }

    fn replay(&self, log: &[u8], more: &[&str]) -> (Exit, String) {
        let (log, rules) = (self.write("log", log), self.write("rules.yaml", RULES.as_bytes()));
        let mut out = Vec::new();
        let fixed = ["tidegate", "replay", "-c", &rules, &log];
        let exit = cli::run(fixed.into_iter().chain(more.iter().copied()), &mut out);
        (exit, String::from_utf8(out).expect("text"))
    }

    fn report(&self, log: &[u8], more: &[&str]) -> (Exit, Value) {
        let (exit, text) = self.replay(log, &[more, &["--json"]].concat());
        (exit, serde_json::from_str(&text).unwrap_or_else(|_| panic!("no JSON: {text}")))
    }
}

fn json(second: u32, token: &str, path: &str) -> String {
    format!(
        "{{\"time\":\"2026-01-02T03:04:{second:02}.000Z\",\"client\":\"192.0.2.1\",\"token\":\"{token}\",\
         \"method\":\"GET\",\"host\":\"x\",\"path\":\"{path}\",\"limit\":\"none\"}}\n"
    )
}

fn combined(second: u32, user: &str, target: &str) -> String {
    format!(
        "192.0.2.1 - {user} [02/Jan/2026:03:04:{second:02} +0000] \"GET {target} HTTP/1.1\" 200 5 \"-\" \"curl\"\n"
    )
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("memory");
    encoder.finish().expect("memory")
}

#[test]
fn a_bad_line_skips_only_itself() {
    let directory = ReplayDirectory::new();
    let long = format!("{{\"a\":\"{}\"}}\n", "x".repeat(3 * MAX_LINE));
    let good = json(1, "t", "/a");
    let log = [
        good.as_bytes(),
        b"\r\n   \n",
        &good.as_bytes()[..40],
        b"\n",
        long.as_bytes(),
        b"\x00\xff\xfe binary \x1f\n",
        good.replace("2026-01-02T03", "2026-13-02T03").as_bytes(),
        good.replace("192.0.2.1", "192.0.2.256").as_bytes(),
        b"[1,2]\n{}\n",
        good.trim_end().replace('{', " {").as_bytes(),
        b"\r\n",
        json(2, "t", "/a").trim_end().as_bytes(),
    ]
    .concat();
    let (exit, report) = directory.report(&log, &[]);
    assert_eq!(exit, Exit::Ok);
    assert_eq!(report["lines"], 12);
    assert_eq!((&report["requests"], &report["malformed"]), (&3.into(), &7.into()), "{report}");
    assert_eq!(report["results"][0]["refused"], 2);
    let entries: Vec<_> = report["first_malformed"].as_array().expect("a list").iter().collect();
    let faults = [
        (4, "the line ends early, expected a JSON object with time"),
        (5, "a line of more than 64 KiB"),
        (6, "`\\0\u{fffd}\u{fffd} binary \\u{1f}` is not UTF-8, expected a JSON object"),
        (7, "`2026-13-02T03:04:01.000Z`, expected a time such as"),
        (8, "`192.0.2.256`, expected an IP address"),
    ];
    assert_eq!(entries.len(), faults.len());
    for (entry, (line, fault)) in entries.into_iter().zip(faults) {
        let at = entry["at"].as_str().expect("a place");
        assert!(at.ends_with(&format!("log:{line}")), "{entry}");
        assert!(entry["fault"].as_str().expect("a fault").starts_with(fault), "{entry}");
    }
}

#[test]
fn a_logged_token_is_in_no_header_that_a_key_can_name() {
    let rules = without_indentation(
        "
        upstreams: {hello: {respond: {}}}
        limits: {team: {quota: 3, window: 1m, key: ['header:tidegate-logged-token', 'query:k']}}
        routes: [{name: b, match: {path: '/b/{id}'}, upstream: hello, limits: [team]}]
        ",
    );
    let snapshot =
        Snapshot::compile(&config::parse("t.yaml", &rules).unwrap(), SecretReading::Unread)
            .unwrap();
    let config = ConfigReplay::new("t.yaml", snapshot, 1_000, KeySecret(1, 2));
    let mut replay = Replay::new([config].into_iter().collect(), "");
    let log: String = (0..9).map(|n| json(n, &format!("t{n}"), "/b/1")).collect();
    replay.read("log", log.as_bytes(), None, None);
    replay.finish(None);
    // All lines have one client, whose address is the key.
    assert_eq!((replay.configs[0].admitted, replay.configs[0].refused), (3, 6));
}

#[test]
fn empty_and_garbage_logs_are_distinguished() {
    let directory = ReplayDirectory::new();
    for empty in [&b""[..], b"\n\n\r\n"] {
        let (exit, report) = directory.report(empty, &[]);
        assert_eq!((exit, &report["requests"]), (Exit::Ok, &0.into()));
    }
    let garbage: Vec<u8> =
        (0..100_000_u32).map(|number| (number.wrapping_mul(number) >> 7) as u8).collect();
    let (exit, report) = directory.report(&garbage, &[]);
    assert_eq!((exit, &report["requests"]), (Exit::BadInput, &0.into()));
    assert_eq!(report["files"][0]["format"], Value::Null);
    let (exit, output) = directory.replay(json(1, "", "/a").as_bytes(), &["--format", "combined"]);
    assert_eq!(exit, Exit::BadInput);
    assert!(
        output.contains("log:1: no client, expected a line such as 192.0.2.1 - - ["),
        "{output}"
    );
    let missing = ["tidegate", "replay", "-c", "no-such.yaml", "no-such.log"];
    assert_eq!(cli::run(missing, &mut Vec::new()), Exit::BadInput);
    let rules = directory.write("rules.yaml", RULES.as_bytes());
    let missing = ["tidegate", "replay", "-c", &rules, "no-such.log"];
    assert_eq!(cli::run(missing, &mut Vec::new()), Exit::BadInput);
    let none = ["tidegate", "replay", "-c", &rules];
    assert_eq!(cli::run(none, &mut Vec::new()), Exit::Usage);
}

#[test]
fn gzip_is_detected_and_may_be_truncated() {
    let directory = ReplayDirectory::new();
    let lines: String = (0..20).map(|second| json(second, "t", "/a")).collect();
    let whole = gzip(lines.as_bytes());
    let (exit, report) = directory.report(&whole, &[]);
    assert_eq!((exit, &report["requests"]), (Exit::Ok, &20.into()));
    let twice = [&whole[..], &whole].concat();
    assert_eq!(directory.report(&twice, &[]).1["requests"], 40);
    for broken in [&whole[..whole.len() - 9], &[&whole[..], b"garbage"].concat(), &whole[..5]] {
        let (exit, report) = directory.report(broken, &[]);
        assert_eq!(exit, Exit::BadInput, "{report}");
        assert!(report["files"][0]["broken"].is_string(), "{report}");
    }
    let mut flipped = whole.clone();
    flipped[30] ^= 0x55;
    assert_eq!(directory.report(&flipped, &[]).0, Exit::BadInput);
}

#[test]
fn foreign_logs_are_replayed_as_far_as_their_fields_allow() {
    let directory = ReplayDirectory::new();
    let log = [
        combined(3, "alice", "/a"),
        combined(1, "alice", "/a?x=1"),
        combined(2, "bob \\x22[x] y", "/a"),
        combined(4, "-", "/a"),
        combined(5, "-", "/b/1?k=1"),
        combined(5, "-", "/b/1?k=1&k=2"),
        combined(6, "-", "/c"),
        combined(6, "-", "http://c.test/c"),
        combined(7, "-", "/%00"),
        combined(7, "-", "/with space"),
        combined(7, "-", "*"),
        combined(8, "-", "/a").replace("GET /a HTTP/1.1", "\\x16\\x03\\x01"),
        combined(9, "-", "/b/1").replace("GET", "POST"),
        combined(9, "-", "/a").replace("192.0.2.1", "10.0.0.1"),
        combined(9, "-", "/a").replace("192.0.2.1", "2001:db8::1"),
        combined(9, "-", "/a").replace(" \"-\" \"curl\"", ""),
    ]
    .concat();
    let (exit, output) = directory.replay(log.as_bytes(), &["--decisions"]);
    assert_eq!(exit, Exit::Ok);
    let decisions: Vec<String> = output
        .lines()
        .map(|line| {
            let cells: Vec<&str> = line.split('\t').collect();
            format!("{} {} {}", cells[2], cells[3], cells[4])
        })
        .collect();
    let wanted = [
        "a admitted -",
        "a admitted -",
        "a refused one",
        "a admitted -",
        "b admitted -",
        "- none 400",
        "- none 404",
        "c none -",
        "- none 400",
        "- none 400",
        "- none 400",
        "- none 400",
        "- none 405",
        "a admitted -",
        "a admitted -",
        "a refused one",
    ];
    assert_eq!(decisions, wanted);
    let (_, report) = directory.report(log.as_bytes(), &["--host", "C.test"]);
    assert_eq!(report["results"][0]["routes"][2]["requests"], 2);
    let notes = report["notes"].as_array().expect("notes");
    let has_note =
        |text: &str| notes.iter().any(|note| note.as_str().is_some_and(|n| n.contains(text)));
    assert!(has_note("does not contain: host (see --host), headers, cookies, token"), "{report}");
    assert!(
        has_note("limits that count by them: one, team")
            && has_note("requests from trusted proxies: 1")
    );
    let callers = report["results"][0]["callers"].as_array().expect("callers");
    assert_eq!((&callers[0]["caller"], &callers[0]["refused"]), (&"192.0.2.1".into(), &1.into()));
    assert_eq!(callers[1]["caller"], "user:alice");
}

#[test]
fn a_caller_is_named_by_its_consumer_and_a_limit_by_its_key() {
    let directory = ReplayDirectory::new();
    let rules = directory.write(
        "own.yaml",
        b"upstreams: {app: {respond: {}}}
limits: {each: {quota: 1, window: 1h, key: [consumer]}}
routes: [{name: all, upstream: app, limits: [each]}]
",
    );
    let line = |consumer: &str, second: u32| {
        json(second, "t", "/a")
            .replace("\"method\"", &format!("\"consumer\":\"{consumer}\",\"method\""))
    };
    let lines = [line("acme", 1), line("acme", 2), line("bread", 3)].concat();
    let log = directory.write("own.log", lines.as_bytes());
    let run = |more: &[&str]| {
        let mut out = Vec::new();
        let fixed = ["tidegate", "replay", "-c", &rules, &log];
        let exit = cli::run(fixed.into_iter().chain(more.iter().copied()), &mut out);
        let text = String::from_utf8(out).expect("text");
        assert_eq!(exit, Exit::Ok, "{text}");
        text
    };
    let report: Value = serde_json::from_str(&run(&["--json"])).expect("JSON");
    let first = &report["results"][0]["callers"][0];
    assert_eq!((&first["caller"], &first["refused"]), (&"consumer:acme".into(), &1.into()));
    assert_eq!((&first["limit"], &first["key"][0]), (&"each".into(), &"consumer".into()));
    let table = run(&[]);
    assert!(table.contains("consumer:acme") && table.contains("each (consumer)"), "{table}");
}

#[test]
fn a_closed_output_pipe_is_not_a_failure() {
    let directory = ReplayDirectory::new();
    let lines: String = (0..20_000).map(|number| json(number % 60, "t", "/a")).collect();
    directory.write("log", format!("{lines}garbage\n").as_bytes());
    let arguments = ["replay", "-c", "rules.yaml", "--decisions", "log"];
    let mut command = tidegate_command(directory.0.path(), &arguments);
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    drop((child.stdout.take(), child.stderr.take()));
    assert_eq!(child.wait().expect("our own child").code(), Some(0));
}

#[test]
fn lines_are_sorted_by_time() {
    let directory = ReplayDirectory::new();
    let mut lines: Vec<String> = (0..60).map(|second| json(second, "t", "/a")).collect();
    let sorted = directory.report(lines.concat().as_bytes(), &[]).1;
    lines.reverse();
    let reversed = directory.report(lines.concat().as_bytes(), &[]).1;
    assert_eq!((&reversed["late"], &reversed["from"]), (&0.into(), &sorted["from"]));
    assert_eq!(reversed["results"][0]["limits"][0]["refused"], 59);
    let place = |report: &Value| report["results"][0]["limits"][0]["first_refusal"].clone();
    assert_eq!(place(&sorted)["time"], place(&reversed)["time"]);
    assert!(place(&reversed)["at"].as_str().is_some_and(|at| at.ends_with("log:59")));
}

#[test]
fn lines_of_the_process_log_are_skipped() {
    let replay = ReplayDirectory::new();
    let process = r#"{"timestamp":"2026-01-02T03:04:05Z","level":"INFO","message":"serving"}"#;
    let log = format!("{process}\n{}{process}\n{{\"x\":1}}\n", json(1, "t", "/a"));
    let (exit, report) = replay.report(log.as_bytes(), &[]);
    assert_eq!(exit, Exit::Ok);
    let counts = ["lines", "requests", "malformed", "process_lines"].map(|name| &report[name]);
    assert_eq!(counts, [4, 1, 1, 2], "{report}");
    let (_, text) = replay.replay(log.as_bytes(), &[]);
    assert!(text.contains("; 1 malformed line; 2 lines of the process log\n"), "{text}");
}

#[test]
fn a_byte_order_mark_is_no_part_of_the_first_line() {
    let replay = ReplayDirectory::new();
    let log = format!("\u{feff}{}{}", json(1, "t", "/a"), json(2, "t", "/a"));
    let (_, report) = replay.report(log.as_bytes(), &[]);
    assert_eq!((&report["requests"], &report["malformed"]), (&2.into(), &0.into()), "{report}");
}

#[test]
fn an_empty_log_is_called_empty() {
    let (exit, text) = ReplayDirectory::new().replay(b"", &[]);
    assert_eq!(exit, Exit::Ok);
    let first = text.lines().next().expect("a line");
    assert!(first.ends_with("log: empty"), "{text}");
}
