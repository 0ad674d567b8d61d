//! Rules: which top-level module may import which, and what only some files may name.

use crate::{
    assert_breaks, assert_none,
    source::{Source, all, read},
};

/// Modules that are independent of the path of a request: each can be read and tested alone.
const LEAVES: [&str; 16] = [
    "balance",
    "compress",
    "config",
    "connection_state",
    "http1",
    "identity",
    "limit",
    "redis",
    "route",
    "store",
    "template",
    "throttle",
    "tls",
    "trace",
    "transport",
    "upstream",
];

/// The imports that leaves are allowed, each with its reason.
const ALLOWED: [(&str, &str, &str); 53] = [
    ("config", "escape", "faults quote text of the file"),
    ("identity", "escape", "errors quote text of the request"),
    ("config", "file", "the configuration and the secrets that it names are files"),
    ("config", "compress", "the content codings are its type"),
    ("config", "identity", "parts of a key and sources of tokens are its types"),
    ("config", "limit", "the policy while Redis is unavailable is its type"),
    ("config", "telemetry", "the fields of the access log are its type"),
    ("config", "throttle", "the mode of the throttle is its type"),
    ("config", "trace", "the senders whose traces are continued are its type"),
    ("balance", "clock", "averages decay with a `CoarseTime`"),
    ("balance", "mix", "endpoints are drawn by random numbers and by hashes"),
    ("config", "balance", "load-balancing policies are its type"),
    ("config", "upstream", "protocols of targets are its types"),
    ("config", "sensitive", "faults hide what may be a credential"),
    ("identity", "sensitive", "values of keys are printed without possible credentials"),
    ("identity", "secret", "keys are hashed under the secret that gateways share"),
    ("identity", "http1", "it reads parsed header fields"),
    ("store", "limit", "a store calls the algorithms and keeps their records"),
    ("store", "counter", "each worker counts its calls"),
    ("store", "mix", "its tables hash under a secret of the process"),
    ("store", "secret", "it has the secret that gateways share, for the hash of keys"),
    ("store", "clock", "its control task expires records"),
    ("store", "redis", "it charges in Redis if gateways share their counters"),
    ("redis", "limit", "scripts get charges and quotas, and return verdicts and grants"),
    ("redis", "secret", "gateways report a tag of the secret that they share"),
    ("limit", "clock", "decisions take a `StoreTime`"),
    ("limit", "mix", "a limit's identity is a hash of its name"),
    ("connection_state", "clock", "deadlines are a `CoarseTime`"),
    ("transport", "clock", "a failed tunnel is flushed until a time of the worker's clock"),
    ("redis", "clock", "replies, probes and reconnects wait on the clock"),
    ("template", "http1", "variables are values of parsed header fields"),
    ("template", "route", "a rewritten path is checked to be in normal form"),
    ("throttle", "clock", "it ticks once a second; tests set its clock"),
    ("throttle", "mix", "its tables hash under a secret of the process"),
    ("throttle", "secret", "tokens are hashed under the secret that gateways share"),
    ("throttle", "counter", "each worker counts its checks"),
    ("throttle", "redis", "it opens its own connections to the servers of the store"),
    ("tls", "file", "certificates and keys are files"),
    ("trace", "clock", "batches and pauses wait on the clock"),
    ("compress", "client_usage", "the memory of encoders is counted by client address"),
    ("upstream", "client_usage", "places at servers are counted by client address"),
    ("upstream", "mix", "each choice has random numbers"),
    ("upstream", "balance", "it chooses the endpoint of each attempt"),
    ("upstream", "trace", "each attempt is a span; its id is sent to the server"),
    ("upstream", "clock", "health checks, retries and name lookups wait on the clock"),
    ("upstream", "compress", "a response's body is compressed while it is read"),
    ("upstream", "tls", "it performs the handshakes with its servers"),
    (
        "upstream",
        "template",
        "a route's header rules are written with the fields that it adds itself",
    ),
    ("transport", "http1", "a client stream's body is decoded and encoded as HTTP/1"),
    ("transport", "connection_state", "a tunnel keeps its connection's deadline"),
    ("upstream", "http1", "responses are read as strictly as requests"),
    ("upstream", "transport", "it has connections, and reads bodies of client streams"),
    ("upstream", "connection_state", "the client's connection has the deadlines of an attempt"),
];

/// What the other modules may import. A module that is not in the list of another is above or beside it.
const MAY_IMPORT: [(&str, &[&str]); 23] = [
    // Several modules bound what a client address uses, and count it here.
    ("client_usage", &[]),
    ("handover", &[]),
    ("clock", &[]),
    ("counter", &[]),
    ("escape", &[]),
    ("file", &[]),
    ("mix", &[]),
    ("secret", &[]),
    ("sensitive", &[]),
    ("metrics", &["counter"]),
    // `clock`: losses are reported at most once a minute. `escape`: text of requests must not control a terminal.
    ("telemetry", &["clock", "escape"]),
    ("error", &["http1", "identity", "limit", "route", "snapshot", "throttle", "upstream"]),
    (
        "snapshot",
        &[
            "balance",
            "compress",
            "config",
            "connection_state",
            "file",
            "http1",
            "identity",
            "limit",
            "route",
            "sensitive",
            "template",
            "throttle",
            "tls",
            "trace",
            "upstream",
        ],
    ),
    ("respond", &["clock", "error", "http1", "limit", "plan", "snapshot", "throttle", "upstream"]),
    // What is decided before anything is charged. A request, `explain` and `replay` share it, so it
    // stands below all three, and above the leaves that it calls one after the other.
    ("plan", &["error", "http1", "identity", "limit", "route", "snapshot", "template", "tls"]),
    // It decides as the gateway does, without importing it: with a plan, a memory store and the limits.
    (
        "replay",
        &[
            "clock", "error", "escape", "http1", "identity", "limit", "plan", "route", "snapshot",
            "store",
        ],
    ),
    ("live", &["snapshot"]),
    ("reload", &["config", "file", "gateway", "snapshot", "tls", "trace"]),
    (
        "gateway",
        &[
            "balance",
            "client_usage",
            "clock",
            "compress",
            "connection_state",
            "error",
            "http1",
            "identity",
            "limit",
            "live",
            "metrics",
            "mix",
            "plan",
            "respond",
            "route",
            "snapshot",
            "store",
            "telemetry",
            "template",
            "throttle",
            "tls",
            "trace",
            "transport",
            "upstream",
        ],
    ),
    // `snapshot`: the rules of a listener say what precedes HTTP. `tls`: handshakes with clients.
    (
        "connection",
        &[
            "clock",
            "connection_state",
            "gateway",
            "http1",
            "snapshot",
            "telemetry",
            "tls",
            "transport",
            "upstream",
        ],
    ),
    (
        "worker",
        &[
            "clock",
            "connection",
            "connection_state",
            "gateway",
            "identity",
            "metrics",
            "snapshot",
            "tls",
            "upstream",
        ],
    ),
    (
        "admin",
        &[
            "balance",
            "clock",
            "config",
            "connection",
            "gateway",
            "identity",
            "limit",
            "metrics",
            "redis",
            "reload",
            "sensitive",
            "snapshot",
            "store",
            "telemetry",
            "throttle",
            "tls",
            "transport",
            "upstream",
        ],
    ),
    (
        "server",
        &[
            "admin",
            "clock",
            "config",
            "file",
            "gateway",
            "handover",
            "live",
            "metrics",
            // For the name of the process in `Via`.
            "plan",
            "redis",
            "reload",
            "secret",
            "snapshot",
            "store",
            "telemetry",
            "throttle",
            "trace",
            "upstream",
            "worker",
        ],
    ),
];

/// The commands: above everything but the binary.
const CLI: (&str, &[&str]) = (
    "cli",
    &[
        "balance",
        "clock",
        "config",
        "error",
        "handover",
        "file",
        "http1",
        "identity",
        "limit",
        "plan",
        "replay",
        "respond",
        "secret",
        "sensitive",
        "server",
        "snapshot",
        "store",
        "telemetry",
        "template",
        "throttle",
        "tls",
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

/// The names of the top-level modules: the public ones of `lib.rs`.
fn top_level_modules() -> Vec<String> {
    let items = read("src/lib.rs").syntax().items.into_iter();
    let modules = items.filter_map(|item| match item {
        syn::Item::Mod(module) if matches!(module.vis, syn::Visibility::Public(_)) => Some(module),
        _ => None,
    });
    modules.map(|module| module.ident.to_string()).collect()
}

/// Rule: which top-level module may import which.
fn forbidden_imports(files: &[Source]) -> Vec<String> {
    let modules = top_level_modules();
    let mut violations = Vec::new();
    for file in files.iter().filter(|file| file.path != "src/lib.rs") {
        let module = file.top_level_module();
        // In the file of a top-level module, `super` is the crate.
        let is_top_level = file.module().len() == 1;
        for path in file.paths() {
            let mut steps = path.split("::");
            let other = match steps.next() {
                Some("crate" | "tidegate") => steps.next(),
                Some("super") if is_top_level => steps.next(),
                _ => continue,
            };
            let Some(other) = other.filter(|name| modules.iter().any(|module| module == name))
            else {
                continue;
            };
            let is_main = module == "main" && other == "cli";
            if other != module && !is_main && !may_import(&module, other) {
                violations.push(format!("{}: {module} must not import {other}", file.path));
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

const RESERVED: [Reserved; 13] = [
    Reserved {
        path: "redis",
        only: &["src/redis/", "src/redis.rs", "src/throttle/redis.rs"],
        why: "`redis` makes the calls of decisions, and one file of `throttle` exchanges filters",
    },
    Reserved {
        path: "reqwest",
        only: &["src/trace/exporter.rs", "src/cli/health/"],
        why: "it is for the trace collector and for `health`; requests are forwarded by `upstream`",
    },
    Reserved { path: "axum", only: &["src/admin"], why: "no middleware on the path of a request" },
    Reserved { path: "::Instant::now", only: &["src/clock.rs"], why: "time is a parameter" },
    Reserved { path: "::SystemTime::now", only: &["src/clock.rs"], why: "time is a parameter" },
    Reserved { path: "Instant::now", only: &["src/clock.rs"], why: "time is a parameter" },
    Reserved { path: "SystemTime::now", only: &["src/clock.rs"], why: "time is a parameter" },
    Reserved { path: "std::env", only: &["src/main.rs"], why: "the environment is an input" },
    Reserved { path: "env", only: &["src/main.rs"], why: "the environment is an input" },
    Reserved {
        path: "std::process::exit",
        only: &["src/main.rs"],
        why: "only main.rs may end the process",
    },
    Reserved {
        path: "std::process::abort",
        only: &["src/main.rs"],
        why: "only main.rs may end the process",
    },
    Reserved {
        path: "process::exit",
        only: &["src/main.rs"],
        why: "only main.rs may end the process",
    },
    Reserved {
        path: "process::abort",
        only: &["src/main.rs"],
        why: "only main.rs may end the process",
    },
];

/// Rule: what only some files may name.
fn forbidden_paths(files: &[Source]) -> Vec<String> {
    let mut violations = Vec::new();
    for file in files {
        for path in file.paths() {
            for Reserved { path: wanted, only, why } in &RESERVED {
                let is_named = path == *wanted
                    || (wanted.starts_with("::") && path.ends_with(wanted))
                    || path.strip_prefix(wanted).is_some_and(|rest| rest.starts_with("::"));
                if is_named && !only.iter().any(|only| file.path.starts_with(only)) {
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

/// The files that wait in real time, each with its reason. All others wait on the clock that they are given.
const REAL_TIME: [(&str, &str); 5] = [
    ("src/clock.rs", "the clock itself"),
    ("src/admin/connections.rs", "connections of the operator"),
    ("src/gateway/charging.rs", "polls other threads while the gateway drains"),
    ("src/reload/watch.rs", "waits for changes of a file to end"),
    ("src/upstream/pool.rs", "connects to upstreams"),
];

/// Rule: only [`REAL_TIME`] waits with tokio's timers.
fn real_time_waits(files: &[Source]) -> Vec<String> {
    let is_exempt = |file: &&Source| {
        file.path.contains("/tests") || REAL_TIME.iter().any(|(path, _)| file.path == *path)
    };
    let files = files.iter().filter(|file| !is_exempt(file));
    let waits = files.flat_map(|file| {
        let paths = file.production_paths().into_iter();
        let waits = paths.filter(|path| path.starts_with("tokio::time"));
        waits.map(|path| format!("{}: {path}, though waits go by a Clock", file.path))
    });
    waits.collect()
}

#[test]
fn production_code_waits_on_the_clock_that_it_is_given() {
    assert_none(&real_time_waits(&all("src", ".rs")));
    assert_breaks(
        real_time_waits,
        "src/redis/a.rs",
        "fn a() { tokio::time::sleep(b) }",
        "src/clock.rs",
    );
    assert_breaks(
        real_time_waits,
        "src/throttle/a.rs",
        "use tokio::{net, time::timeout};",
        "src/upstream/pool.rs",
    );
}

#[test]
fn every_module_has_an_import_rule() {
    for module in top_level_modules() {
        let has_rule = MAY_IMPORT.iter().chain([&CLI]).any(|(from, _)| *from == module);
        assert!(has_rule || LEAVES.contains(&&*module), "no rule says what {module} may import");
    }
    for (from, _, why) in ALLOWED {
        assert!(LEAVES.contains(&from) && !why.is_empty());
    }
}

#[test]
fn modules_import_only_modules_below_them() {
    assert_none(&forbidden_imports(&all("src", ".rs")));
    assert_breaks(
        forbidden_imports,
        "src/route/table.rs",
        "use crate::limit::Key;",
        "src/limit.rs",
    );
    assert_breaks(
        forbidden_imports,
        "src/limit/a.rs",
        "use crate::{limit::Key, store::Store};",
        "src/store/a.rs",
    );
    assert_breaks(
        forbidden_imports,
        "src/upstream/a.rs",
        "fn a() { crate::gateway::b() }",
        "src/worker.rs",
    );
    assert_breaks(
        forbidden_imports,
        "src/identity.rs",
        "use super::{route::Table};",
        "src/identity/key.rs",
    );
    assert_breaks(
        forbidden_imports,
        "src/main.rs",
        "fn main() { tidegate::server::run() }",
        "src/cli/serve.rs",
    );
}

#[test]
fn reserved_crates_and_functions_are_used_in_their_place_only() {
    assert_none(&forbidden_paths(&all("src", ".rs")));
    assert_breaks(forbidden_paths, "src/gateway.rs", "use redis::Client;", "src/redis/link.rs");
    assert_breaks(
        forbidden_paths,
        "src/store/memory.rs",
        "fn a() { redis::cmd(b) }",
        "src/throttle/redis.rs",
    );
    assert_breaks(
        forbidden_paths,
        "src/server.rs",
        "use {axum::Router, bytes::Bytes};",
        "src/admin.rs",
    );
    assert_breaks(
        forbidden_paths,
        "src/worker.rs",
        "fn a() { std::time::Instant::now(); }",
        "src/clock.rs",
    );
    assert_breaks(forbidden_paths, "src/limit.rs", "fn a() { Instant::now(); }", "src/clock.rs");
    assert_breaks(forbidden_paths, "src/limit.rs", "fn a() { started.elapsed(); }", "src/clock.rs");
    assert_breaks(forbidden_paths, "src/cli.rs", "use std::{env, io};", "src/main.rs");
    assert_breaks(forbidden_paths, "src/cli.rs", "fn a() { std::process::exit(1) }", "src/main.rs");
}
