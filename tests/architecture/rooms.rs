//! Rules: which room may import which, and what only some files may name.

use crate::{
    assert_none, breaks,
    source::{Source, all, read},
};

/// Rooms that are independent of the path of a request: each can be read and tested alone.
const LEAVES: [&str; 8] =
    ["config", "framing", "identity", "limit", "route", "store", "throttle", "upstream"];

/// The imports that leaves are allowed, each with its reason.
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

/// What the other rooms may import. A room that is not in the list of another is above or beside it.
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
    // stands below all three, and above the leaves that it calls one after the other.
    ("plan", &["error", "framing", "identity", "limit", "route", "snapshot"]),
    // It decides as the gateway does, without importing it: with a plan, a memory store and the limits.
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

/// The commands: above everything but the binary.
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

/// The rooms: the public modules of `lib.rs`.
fn rooms() -> Vec<String> {
    let items = read("src/lib.rs").syntax().items.into_iter();
    let modules = items.filter_map(|item| match item {
        syn::Item::Mod(module) if matches!(module.vis, syn::Visibility::Public(_)) => Some(module),
        _ => None,
    });
    modules.map(|module| module.ident.to_string()).collect()
}

/// Rule: which room may import which.
fn imports(files: &[Source]) -> Vec<String> {
    let rooms = rooms();
    let mut violations = Vec::new();
    for file in files.iter().filter(|file| file.path != "src/lib.rs") {
        let room = file.room();
        // In the file of a whole room, `super` is the crate.
        let is_room = file.module().len() == 1;
        for path in file.paths() {
            let mut steps = path.split("::");
            let other = match steps.next() {
                Some("crate" | "tidegate") => steps.next(),
                Some("super") if is_room => steps.next(),
                _ => continue,
            };
            let Some(other) = other.filter(|name| rooms.iter().any(|room| room == name)) else {
                continue;
            };
            let is_main = room == "main" && other == "cli";
            if other != room && !is_main && !may_import(&room, other) {
                violations.push(format!("{}: {room} must not import {other}", file.path));
            }
        }
    }
    violations
}

/// A crate, or a part of one, that only some files may name.
struct Reserved {
    /// This path and the paths below it; with a leading `::`, every path that ends in it.
    path: &'static str,
    /// Only files whose paths begin with one of these may name it.
    only: &'static [&'static str],
    why: &'static str,
}

const RESERVED: [Reserved; 12] = [
    Reserved {
        path: "redis",
        only: &["src/store/redis/", "src/throttle/redis.rs"],
        why: "Redis is spoken in two places: one decides requests, one waits for bulk traffic",
    },
    Reserved { path: "axum", only: &["src/admin"], why: "no middleware on the path of a request" },
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
        if file.path != "src/clock.rs" && file.has_identifier("elapsed") {
            violations.push(format!("{}: elapsed() reads a clock", file.path));
        }
    }
    violations
}

#[test]
fn every_room_has_an_import_rule() {
    for room in rooms() {
        let ruled = MAY_IMPORT.iter().chain([&CLI]).any(|(from, _)| *from == room);
        assert!(ruled || LEAVES.contains(&&*room), "no rule says what {room} may import");
    }
    for (from, _, why) in ALLOWED {
        assert!(LEAVES.contains(&from) && !why.is_empty());
    }
}

#[test]
fn rooms_import_only_rooms_below_them() {
    assert_none(&imports(&all("src", ".rs")));
    breaks(imports, "src/route/table.rs", "use crate::limit::Key;", "src/limit.rs");
    breaks(imports, "src/limit/a.rs", "use crate::{limit::Key, store::Store};", "src/store/a.rs");
    breaks(imports, "src/upstream/a.rs", "fn a() { crate::gateway::b() }", "src/worker.rs");
    breaks(imports, "src/identity.rs", "use super::{route::Table};", "src/identity/key.rs");
    breaks(imports, "src/main.rs", "fn main() { tidegate::server::run() }", "src/cli/serve.rs");
}

#[test]
fn reserved_crates_and_functions_are_used_in_their_place_only() {
    assert_none(&reserved(&all("src", ".rs")));
    breaks(reserved, "src/gateway.rs", "use redis::Client;", "src/store/redis/link.rs");
    breaks(reserved, "src/store/memory.rs", "fn a() { redis::cmd(b) }", "src/throttle/redis.rs");
    breaks(reserved, "src/server.rs", "use {axum::Router, bytes::Bytes};", "src/admin.rs");
    breaks(reserved, "src/worker.rs", "fn a() { std::time::Instant::now(); }", "src/clock.rs");
    breaks(reserved, "src/limit.rs", "fn a() { Instant::now(); }", "src/clock.rs");
    breaks(reserved, "src/limit.rs", "fn a() { started.elapsed(); }", "src/clock.rs");
    breaks(reserved, "src/cli.rs", "use std::{env, io};", "src/main.rs");
    breaks(reserved, "src/cli.rs", "fn a() { std::process::exit(1) }", "src/main.rs");
}
