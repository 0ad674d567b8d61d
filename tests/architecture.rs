//! The rules of the house, held against its own source. ARCHITECTURE.md tells the reasons.
//!
//! Each rule is a function from files to violations, and each is shown a made-up file that breaks it.
#![allow(missing_docs, reason = "a test says in its name what it shows")]

/// No files of a room import each other in a circle.
#[path = "architecture/circles.rs"]
mod circles;
/// What the documents promise is what the code does.
#[path = "architecture/documents.rs"]
mod documents;
/// Reads Rust source as far as the rules need it.
#[path = "architecture/source.rs"]
mod source;

use source::{Source, all, read};

/// No file of `src/` has more lines.
const MAX_LINES: usize = 400;

/// Rooms that know nothing of the way a request takes: each can be read, and tested, alone.
const LEAVES: [&str; 8] =
    ["config", "framing", "identity", "limit", "route", "store", "throttle", "upstream"];

/// What a leaf may import all the same, and why.
const ALLOWED: [(&str, &str, &str); 12] = [
    ("identity", "framing", "it reads the header fields where the framing has put them"),
    ("store", "limit", "a store keeps what the algorithms count, and calls them"),
    ("store", "counter", "it counts its calls as everything else is counted"),
    ("store", "mix", "records have names of this process in its tables"),
    ("store", "secret", "keys are hashed under what gateways of one store share"),
    ("store", "clock", "its control task expires records, and Redis' reconnection waits"),
    (
        "throttle",
        "clock",
        "it ticks once a second, and a test gives Redis its time by moving the clock",
    ),
    ("throttle", "mix", "tokens have names of this process in its tables"),
    ("throttle", "secret", "tokens are hashed under what gateways of one store share"),
    ("throttle", "counter", "it counts its calls as everything else is counted"),
    ("throttle", "store", "it opens its own connections as the store does: `Connector`, `Failure`"),
    ("upstream", "framing", "answers are read as strictly as requests, and share their deadlines"),
];

/// What the others may import. A room that is not in its list is above it, or beside it.
const MAY_IMPORT: [(&str, &[&str]); 18] = [
    ("clock", &[]),
    ("counter", &[]),
    ("mix", &[]),
    ("secret", &[]),
    ("metrics", &["counter"]),
    // Losses are reported at most once a minute: a deadline that several threads check.
    ("telemetry", &["clock"]),
    ("error", &["framing", "identity", "limit", "route", "snapshot", "throttle", "upstream"]),
    ("snapshot", &["config", "framing", "identity", "limit", "route", "throttle", "upstream"]),
    ("respond", &["error", "framing", "limit", "snapshot", "throttle", "upstream"]),
    // What is found out before anything is charged. A request, `explain` and `replay` share it, so it
    // stands below all three, and above the leaves that it asks one after the other.
    ("plan", &["error", "framing", "identity", "limit", "route", "snapshot"]),
    // It decides as the gateway does, and knows nothing of it: a plan, a memory store, the limits.
    ("replay", &["error", "framing", "identity", "limit", "plan", "route", "snapshot", "store"]),
    ("live", &["snapshot"]),
    ("reload", &["config", "gateway", "snapshot"]),
    (
        "gateway",
        &[
            "clock",
            "error",
            "framing",
            "identity",
            "limit",
            "live",
            "metrics",
            "plan",
            "respond",
            "snapshot",
            "store",
            "telemetry",
            "throttle",
            "upstream",
        ],
    ),
    ("connection", &["framing", "gateway", "telemetry", "upstream"]),
    ("worker", &["clock", "connection", "framing", "gateway", "identity", "metrics", "upstream"]),
    (
        "admin",
        &[
            "gateway",
            "identity",
            "limit",
            "metrics",
            "reload",
            "snapshot",
            "store",
            "telemetry",
            "throttle",
        ],
    ),
    (
        "server",
        &[
            "admin",
            "clock",
            "config",
            "gateway",
            "live",
            "metrics",
            "reload",
            "secret",
            "snapshot",
            "store",
            "telemetry",
            "throttle",
            "worker",
        ],
    ),
];

/// The commands stand above everything but the binary.
const CLI: (&str, &[&str]) = (
    "cli",
    &[
        "clock",
        "config",
        "error",
        "framing",
        "identity",
        "limit",
        "plan",
        "replay",
        "respond",
        "secret",
        "server",
        "snapshot",
        "store",
        "telemetry",
        "throttle",
        "upstream",
    ],
);

fn may_import(module: &str, other: &str) -> bool {
    if LEAVES.contains(&module) {
        return ALLOWED.iter().any(|(from, to, _)| (*from, *to) == (module, other));
    }
    let rows = MAY_IMPORT.iter().chain([&CLI]);
    rows.filter(|(from, _)| *from == module).any(|(_, to)| to.contains(&other))
}

/// Every room of the house: those that `lib.rs` names.
fn rooms() -> Vec<String> {
    let map = read("src/lib.rs").code();
    let rooms = map.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    rooms.map(str::to_owned).collect()
}

/// Rule: who may import whom.
fn imports(files: &[Source]) -> Vec<String> {
    let rooms = rooms();
    let mut violations = Vec::new();
    for file in files.iter().filter(|file| file.path != "src/lib.rs") {
        let module = file.module();
        // In a file that is a whole room, `super` is the crate, as it is in `mod.rs`.
        let at_top =
            matches!(file.path.split('/').collect::<Vec<_>>()[..], [_, _] | [_, _, "mod.rs"]);
        for path in file.paths() {
            let mut steps = path.split("::");
            let other = match steps.next() {
                Some("crate" | "tidegate") => steps.next(),
                Some("super") if at_top => steps.next(),
                _ => continue,
            };
            let Some(other) = other.filter(|name| rooms.iter().any(|room| room == name)) else {
                continue;
            };
            let main = module == "main" && other == "cli";
            if other != module && !main && !may_import(module, other) {
                violations.push(format!("{}: {module} must not import {other}", file.path));
            }
        }
    }
    violations
}

/// A crate, or a part of one, that only some files may name.
struct Reserved {
    /// Paths that begin so, or that end so where it begins with `::`.
    path: &'static str,
    /// Files whose path begins so may.
    only: &'static [&'static str],
    why: &'static str,
}

const RESERVED: [Reserved; 12] = [
    Reserved {
        path: "redis",
        only: &["src/store/redis/", "src/throttle/redis.rs"],
        why: "Redis is spoken in two places: one decides requests, one waits for bulk traffic",
    },
    Reserved { path: "axum", only: &["src/admin/"], why: "no middleware on the path of a request" },
    Reserved { path: "::Instant::now", only: &["src/clock.rs"], why: "time is a parameter" },
    Reserved { path: "::SystemTime::now", only: &["src/clock.rs"], why: "time is a parameter" },
    Reserved { path: "Instant::now", only: &["src/clock.rs"], why: "time is a parameter" },
    Reserved { path: "SystemTime::now", only: &["src/clock.rs"], why: "time is a parameter" },
    Reserved { path: "std::env", only: &["src/main.rs"], why: "the environment is an input" },
    Reserved { path: "env", only: &["src/main.rs"], why: "the environment is an input" },
    Reserved { path: "std::process::exit", only: &["src/main.rs"], why: "one exit" },
    Reserved { path: "std::process::abort", only: &["src/main.rs"], why: "one exit" },
    Reserved { path: "process::exit", only: &["src/main.rs"], why: "one exit" },
    Reserved { path: "process::abort", only: &["src/main.rs"], why: "one exit" },
];

/// Rule: what only some files may name.
fn reserved(files: &[Source]) -> Vec<String> {
    let mut violations = Vec::new();
    for file in files {
        for path in file.paths() {
            for Reserved { path: wanted, only, why } in &RESERVED {
                let named = path == *wanted
                    || (wanted.starts_with("::") && path.ends_with(wanted))
                    || path.strip_prefix(wanted).is_some_and(|rest| rest.starts_with("::"));
                if named && !only.iter().any(|only| file.path.starts_with(only)) {
                    violations.push(format!("{}: {path}, though {why}", file.path));
                }
            }
        }
        if file.path != "src/clock.rs" && file.code().contains(".elapsed()") {
            violations.push(format!("{}: elapsed() reads a clock", file.path));
        }
    }
    violations
}

/// What is read from outside by derive: what a user writes, and the log that the gateway wrote.
const READERS: [&str; 2] = ["src/config/", "src/replay/json.rs"];

/// Rule: nothing else is read from outside by derive.
fn deserialize(files: &[Source]) -> Vec<String> {
    let reads = |file: &&Source| READERS.iter().any(|reader| file.path.starts_with(reader));
    let outside = files.iter().filter(|file| !reads(file));
    let reading = outside.filter(|file| file.code().contains("Deserialize"));
    reading.map(|file| format!("{}: only {READERS:?} derive Deserialize", file.path)).collect()
}

/// Rule: a file holds one idea.
fn length(files: &[Source]) -> Vec<String> {
    let lines = files.iter().map(|file| (&file.path, file.text.lines().count()));
    let long = lines.filter(|(_, lines)| *lines > MAX_LINES);
    long.map(|(path, lines)| format!("{path}: {lines} lines, more than {MAX_LINES}")).collect()
}

/// Rule: every public module says what it is: above its name, or at the top of its file.
fn documented(files: &[Source]) -> Vec<String> {
    let opens =
        |path: String| files.iter().any(|file| file.path == path && file.text.starts_with("//!"));
    let mut violations = Vec::new();
    for file in files {
        let folder = match file.path.strip_suffix(".rs").unwrap_or(&file.path) {
            name if name.ends_with("/mod") || name.ends_with("/lib") => &name[..name.len() - 4],
            name => name,
        };
        let lines: Vec<&str> = file.text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let named =
                line.trim().strip_prefix("pub mod ").and_then(|rest| rest.strip_suffix(';'));
            let Some(name) = named else { continue };
            let above = at > 0 && lines[at - 1].trim().starts_with("///");
            let inside = [format!("{folder}/{name}.rs"), format!("{folder}/{name}/mod.rs")];
            if !above && !inside.into_iter().any(opens) {
                violations.push(format!("{}: nothing says what {name} is", file.path));
            }
        }
    }
    violations
}

/// Rule: a script opens with its contract; an algorithm is one name in two places.
fn scripts(lua: &[Source], rust: &[Source]) -> Vec<String> {
    let mut violations = Vec::new();
    for file in lua {
        let opening: String = file
            .text
            .lines()
            .take_while(|line| line.starts_with("--"))
            .collect::<Vec<_>>()
            .join("\n");
        let calls = file.text.lines().filter(|line| !line.starts_with("--"));
        let is_script = calls.clone().any(|line| line.contains("KEYS") || line.contains("ARGV"));
        let contract: &[&str] = if is_script { &["KEYS", "ARGV", "Returns"] } else { &["--"] };
        for word in contract.iter().filter(|word| !opening.contains(*word)) {
            violations.push(format!("{}: does not open with {word}", file.path));
        }
        for line in calls {
            let Some(rest) = line.strip_prefix("algorithms.") else { continue };
            let name = rest.split(' ').next().unwrap_or_default();
            let twin = format!("src/limit/{name}.rs");
            let named_so = file.path == format!("lua/{name}.lua");
            if !named_so || !rust.iter().any(|file| file.path == twin) {
                violations.push(format!("{}: {name} has no twin {twin}", file.path));
            }
        }
    }
    violations
}

/// Rule: nothing names a path of the machine that it was written on.
fn machine_paths(files: &[Source]) -> Vec<String> {
    // Put together, so that this file does not break its own rule.
    let places = ["work", "home", "root", "Users", "mnt"].map(|place| format!("/{place}/"));
    let mut violations = Vec::new();
    for file in files {
        for (at, line) in file.text.lines().enumerate() {
            let named = places.iter().any(|place| {
                line.match_indices(place.as_str()).any(|(at, _)| {
                    // `a/home/b` is a path of a repository or of a URL.
                    !line[..at].ends_with(|c: char| c.is_alphanumeric() || "._-}*".contains(c))
                })
            });
            if named {
                violations.push(format!("{}:{}: a path of a machine", file.path, at + 1));
            }
        }
    }
    violations
}

fn none(violations: &[String]) {
    assert!(violations.is_empty(), "\n{}\n", violations.join("\n"));
}

/// The rule finds the one violation in a file at `path`, and none once the file is elsewhere.
fn breaks(rule: impl Fn(&[Source]) -> Vec<String>, path: &str, text: &str, elsewhere: &str) {
    let found = rule(&[Source::new(path, text)]);
    assert!(!found.is_empty(), "{path}: {text}");
    if !elsewhere.is_empty() {
        none(&rule(&[Source::new(elsewhere, text)]));
    }
}

#[test]
fn every_room_has_its_rule() {
    for room in rooms() {
        let ruled = MAY_IMPORT.iter().chain([&CLI]).any(|(from, _)| *from == room);
        assert!(ruled || LEAVES.contains(&&*room), "who may {room} import?");
    }
    for (from, _, why) in ALLOWED {
        assert!(LEAVES.contains(&from) && !why.is_empty());
    }
}

#[test]
fn rooms_import_what_is_below_them() {
    none(&imports(&all("src", ".rs")));
    breaks(imports, "src/route/table.rs", "use crate::limit::Key;", "src/limit.rs");
    breaks(imports, "src/limit/a.rs", "use crate::{limit::Key, store::Store};", "src/store/a.rs");
    breaks(imports, "src/upstream/a.rs", "fn a() { crate::gateway::b() }", "src/worker.rs");
    breaks(imports, "src/identity.rs", "use super::{route::Table};", "src/identity/key.rs");
    breaks(imports, "src/main.rs", "fn main() { tidegate::server::run() }", "src/cli/serve.rs");
}

#[test]
fn what_is_reserved_is_named_in_its_place_only() {
    none(&reserved(&all("src", ".rs")));
    breaks(reserved, "src/gateway.rs", "use redis::Client;", "src/store/redis/link.rs");
    breaks(reserved, "src/store/memory.rs", "fn a() { redis::cmd(b) }", "src/throttle/redis.rs");
    breaks(reserved, "src/server.rs", "use {axum::Router, bytes::Bytes};", "src/admin.rs");
    breaks(reserved, "src/worker.rs", "let a = std::time::Instant::now();", "src/clock.rs");
    breaks(reserved, "src/limit.rs", "let a = Instant::now();", "src/clock.rs");
    breaks(reserved, "src/limit.rs", "let a = started.elapsed();", "src/clock.rs");
    breaks(reserved, "src/cli.rs", "use std::{env, io};", "src/main.rs");
    breaks(reserved, "src/cli.rs", "std::process::exit(1)", "src/main.rs");
}

#[test]
fn only_the_configuration_and_the_logs_reader_derive_deserialize() {
    none(&deserialize(&all("src", ".rs")));
    breaks(deserialize, "src/limit.rs", "#[derive(Deserialize)]", "src/config/limits.rs");
}

/// Rooms whose files import each other in no circle.
const WITHOUT_CIRCLES: [&str; 4] = ["gateway", "limit", "snapshot", "store"];

#[test]
fn files_of_a_room_import_in_one_direction() {
    none(&circles::circles(&all("src", ".rs"), &WITHOUT_CIRCLES));
}

#[test]
fn files_are_short() {
    none(&length(&all("src", ".rs")));
    breaks(length, "src/a.rs", &"\n".repeat(MAX_LINES + 1), "");
    none(&length(&[Source::new("src/a.rs", &"\n".repeat(MAX_LINES))]));
}

#[test]
fn public_modules_say_what_they_are() {
    none(&documented(&all("src", ".rs")));
    breaks(documented, "src/lib.rs", "pub mod a;", "");
    none(&documented(&[Source::new("src/lib.rs", "/// A.\npub mod a;")]));
    let inside = [Source::new("src/b.rs", "pub mod a;"), Source::new("src/b/a.rs", "//! A.")];
    none(&documented(&inside));
}

#[test]
fn scripts_open_with_their_contract_and_algorithms_have_twins() {
    none(&scripts(&all("lua", ".lua"), &all("src", ".rs")));
    let bare = |lua: &[Source]| scripts(lua, &[Source::new("src/limit/b.rs", "")]);
    breaks(bare, "lua/a.lua", "return redis.call('GET', KEYS[1])", "");
    breaks(bare, "lua/a.lua", "-- KEYS[1]  a\n-- ARGV[1]  b\nreturn KEYS[1]", "");
    none(&bare(&[Source::new("lua/a.lua", "-- KEYS, ARGV\n-- Returns\nreturn KEYS[1]")]));
    breaks(bare, "lua/b.lua", "algorithms.b = 1", "");
    breaks(bare, "lua/c.lua", "-- C.\nalgorithms.c = 1", "");
    none(&bare(&[Source::new("lua/b.lua", "-- B.\nalgorithms.b = 1")]));
}

#[test]
fn nothing_names_a_machines_paths() {
    let mut files = all("config", ".yaml");
    for (folder, ending) in
        [("src", ".rs"), ("tests", ".rs"), ("benches", ".rs"), ("lua", ".lua"), ("scripts", "")]
    {
        files.extend(all(folder, ending));
    }
    files.extend(documents::NAMES.map(read));
    none(&machine_paths(&files));
    breaks(machine_paths, "README.md", &["see /wo", "rk/main"].concat(), "");
    breaks(machine_paths, "src/a.rs", &["\"/ho", "me/me/a\""].concat(), "");
    none(&machine_paths(&[Source::new("README.md", "https://a.example/home/x and src/root/y")]));
}
