//! Rules: which crates and functions only some files may name, and which files wait in real time.

use crate::{
    assert_breaks, assert_none,
    source::{Source, production},
};

/// A crate, or a part of one, that only some files may name.
struct Reserved {
    /// This path and the paths below it; with a leading `::`, every path that ends in it.
    path: &'static str,
    /// Only files whose paths begin with one of these may name it.
    only: &'static [&'static str],
    why: &'static str,
}

const RESERVED: [Reserved; 14] = [
    Reserved {
        path: "redis",
        only: &[
            "crates/redis/src/",
            "crates/redis/src/lib.rs",
            "crates/throttle/src/redis.rs",
            "crates/throttle/src/waiting_room/redis.rs",
            "crates/access/src/overrides/redis.rs",
            "crates/access/src/consumer_store/redis.rs",
            "crates/tls/src/acme/redis.rs",
        ],
        why: "`redis` makes the calls of decisions, one file of `throttle` exchanges filters and one the \
              waiting room, one of `overrides` shares overrides, one of `consumer_store` has the consumers, and one \
              of `acme` shares certificates",
    },
    Reserved {
        path: "reqwest",
        only: &[
            "crates/tls/src/acme/client.rs",
            "crates/tls/src/http_client.rs",
            "crates/trace/src/exporter.rs",
            "crates/gateway/src/auth_service.rs",
            "crates/access/src/key_sets/fetch.rs",
            "src/cli/health/",
        ],
        why: "it is for the gateway's own requests; requests of clients are forwarded by `upstream`",
    },
    Reserved { path: "axum", only: &["src/admin"], why: "no middleware on the path of a request" },
    Reserved {
        path: "schemars",
        only: &["crates/scalar/src/lib.rs", "crates/config/src/schema/", "src/admin/openapi/"],
        why: "only tests make schemas; the program has them as files",
    },
    Reserved {
        path: "::Instant::now",
        only: &["crates/system/src/clock.rs"],
        why: "time is a parameter",
    },
    Reserved {
        path: "::SystemTime::now",
        only: &["crates/system/src/clock.rs"],
        why: "time is a parameter",
    },
    Reserved {
        path: "Instant::now",
        only: &["crates/system/src/clock.rs"],
        why: "time is a parameter",
    },
    Reserved {
        path: "SystemTime::now",
        only: &["crates/system/src/clock.rs"],
        why: "time is a parameter",
    },
    Reserved {
        path: "std::env",
        only: &["src/main.rs", "crates/config/src/schema/files.rs", "src/admin/openapi/tests.rs"],
        why: "the environment is an input, of the program and of the tests that write files",
    },
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
        if file.path != "crates/system/src/clock.rs" && file.has_identifier("elapsed") {
            violations.push(format!("{}: elapsed() reads a clock", file.path));
        }
    }
    violations
}

/// The files that wait in real time, each with its reason. All others wait on the clock that they
/// are given.
const REAL_TIME: [(&str, &str); 5] = [
    ("crates/system/src/clock.rs", "the clock itself"),
    ("src/admin/connections.rs", "connections of the operator"),
    ("crates/gateway/src/charging.rs", "polls other threads while the gateway drains"),
    ("src/reload/watch.rs", "waits for changes of a file to end"),
    ("crates/upstream/src/pool.rs", "connects to upstreams"),
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
    assert_none(&real_time_waits(&production()));
    assert_breaks(
        real_time_waits,
        "crates/redis/src/a.rs",
        "fn a() { tokio::time::sleep(b) }",
        "crates/system/src/clock.rs",
    );
    assert_breaks(
        real_time_waits,
        "crates/throttle/src/a.rs",
        "use tokio::{net, time::timeout};",
        "crates/upstream/src/pool.rs",
    );
}

#[test]
fn reserved_crates_and_functions_are_used_in_their_place_only() {
    assert_none(&forbidden_paths(&production()));
    assert_breaks(
        forbidden_paths,
        "crates/gateway/src/lib.rs",
        "use redis::Client;",
        "crates/redis/src/link.rs",
    );
    assert_breaks(
        forbidden_paths,
        "crates/store/src/memory.rs",
        "fn a() { redis::cmd(b) }",
        "crates/throttle/src/redis.rs",
    );
    assert_breaks(
        forbidden_paths,
        "src/server.rs",
        "use {axum::Router, bytes::Bytes};",
        "src/admin.rs",
    );
    assert_breaks(
        forbidden_paths,
        "crates/config/src/limits.rs",
        "use schemars::JsonSchema;",
        "src/admin/openapi/document.rs",
    );
    assert_breaks(
        forbidden_paths,
        "crates/gateway/src/worker.rs",
        "fn a() { std::time::Instant::now(); }",
        "crates/system/src/clock.rs",
    );
    assert_breaks(
        forbidden_paths,
        "crates/limit/src/lib.rs",
        "fn a() { Instant::now(); }",
        "crates/system/src/clock.rs",
    );
    assert_breaks(
        forbidden_paths,
        "crates/limit/src/lib.rs",
        "fn a() { started.elapsed(); }",
        "crates/system/src/clock.rs",
    );
    assert_breaks(forbidden_paths, "src/cli.rs", "use std::{env, io};", "src/main.rs");
    assert_breaks(forbidden_paths, "src/cli.rs", "fn a() { std::process::exit(1) }", "src/main.rs");
}
