//! Rules: which top-level module may import which.

use crate::{
    assert_breaks, assert_none,
    source::{Source, all, read},
};

/// Modules that are independent of the path of a request: each can be read and tested alone.
const LEAVES: [&str; 25] = [
    "acme",
    "auth",
    "balance",
    "compress",
    "config",
    "connection_state",
    "consumer_store",
    "ext_authz",
    "grpc",
    "http1",
    "identity",
    "key_sets",
    "limit",
    "overrides",
    "rate_limit_service",
    "redis",
    "route",
    "store",
    "template",
    "throttle",
    "tls",
    "trace",
    "transport",
    "upstream",
    "usage",
];

/// The imports that leaves are allowed, each with its reason.
const ALLOWED: [(&str, &str, &str); 101] = [
    ("acme", "clock", "orders are due at a time, and their pauses wait on the clock"),
    ("acme", "config", "the challenge is its type"),
    ("acme", "file", "accounts and certificates are files"),
    ("acme", "http_client", "authorities are asked by the client of the gateway itself"),
    ("acme", "redis", "gateways share certificates in Redis"),
    ("acme", "tls", "it makes and shows certificates"),
    ("ext_authz", "grpc", "a response has a gRPC status"),
    ("ext_authz", "http1", "a check describes a request, by the rules for requests"),
    ("rate_limit_service", "grpc", "reflection describes its messages"),
    ("config", "rate_limit_service", "files of envoyproxy/ratelimit have its units"),
    ("rate_limit_service", "clock", "a response has the time until a reset"),
    ("grpc", "connection_state", "a client that sends a message has a deadline"),
    ("grpc", "http1", "statuses are header fields and trailers"),
    ("grpc", "transport", "the message of a call is the body of a client stream"),
    ("rate_limit_service", "http1", "a response has header fields for the client"),
    ("rate_limit_service", "limit", "a response shows what limits have decided"),
    ("usage", "limit", "costs are at most its `MAX_UNITS`"),
    ("config", "usage", "paths of members and presets of APIs are its types"),
    ("identity", "usage", "a member of a request's body is a part of a key"),
    ("config", "status", "lists of statuses are compiled to sets"),
    ("throttle", "status", "responses with some statuses make no token active"),
    ("config", "priority", "the schema shows its range and its default"),
    ("upstream", "priority", "waiting requests are served by their priorities"),
    ("upstream", "status", "health checks and retries depend on sets of statuses"),
    ("auth", "clock", "a key expires at a `StoreTime`"),
    ("auth", "config", "it checks the records of consumers that a file has"),
    ("auth", "http1", "it reads credentials from parsed header fields"),
    ("auth", "identity", "it reads keys from their places, and names a `Consumer`"),
    ("auth", "limit", "a limit bounds the failures of an address"),
    ("auth", "secret", "verified credentials are hashed under a secret of the process"),
    ("auth", "tls", "a client certificate names a consumer"),
    ("consumer_store", "auth", "a consumer that was found is a table of one record"),
    ("consumer_store", "clock", "lookups end, and are known for a time"),
    ("consumer_store", "config", "its records have the values that a file has"),
    ("consumer_store", "redis", "it opens its own connections to the servers of the store"),
    ("overrides", "clock", "an override ends at a `StoreTime`"),
    ("overrides", "config", "it checks the texts of a file, whose quotas are those of plans"),
    ("overrides", "file", "overrides may be in a file"),
    ("overrides", "limit", "a key of a limit is a target"),
    ("overrides", "redis", "it opens its own connection to the servers of the store"),
    ("overrides", "secret", "a file has the secret under which its keys were hashed"),
    ("key_sets", "auth", "it gives methods their keys, and reads them as `KeySet`"),
    ("key_sets", "http_client", "sets are fetched by the client of the gateway itself"),
    ("key_sets", "clock", "pauses between fetches, and their timeouts, wait on the clock"),
    ("config", "tls", "the part of a certificate that names a consumer is its type"),
    ("template", "identity", "the consumer and its plan are variables"),
    (
        "upstream",
        "identity",
        "the consumer is sent to servers, and its key is removed as it was read",
    ),
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
    ("trace", "http_client", "spans are sent by the client of the gateway itself"),
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
const MAY_IMPORT: [(&str, &[&str]); 26] = [
    // Several modules bound what a client address uses, and count it here.
    ("client_usage", &[]),
    ("handover", &[]),
    ("clock", &[]),
    ("counter", &[]),
    ("escape", &[]),
    ("file", &[]),
    ("http_client", &[]),
    ("mix", &[]),
    ("secret", &[]),
    ("sensitive", &[]),
    ("priority", &[]),
    ("status", &[]),
    ("metrics", &["counter"]),
    // `clock`: losses are reported at most once a minute. `escape`: text of requests must not control a terminal.
    ("telemetry", &["clock", "escape", "priority"]),
    (
        "error",
        &[
            "auth", "grpc", "http1", "identity", "limit", "route", "snapshot", "throttle",
            "upstream", "usage",
        ],
    ),
    (
        "snapshot",
        &[
            "acme",
            "priority",
            "status",
            "auth",
            "balance",
            // An override ends at a time.
            "clock",
            "compress",
            "config",
            "connection_state",
            "file",
            "http1",
            "identity",
            "limit",
            "overrides",
            "rate_limit_service",
            "route",
            "sensitive",
            "template",
            "throttle",
            "tls",
            "trace",
            "upstream",
            "usage",
        ],
    ),
    (
        "respond",
        &[
            "clock",
            "error",
            "grpc",
            "http1",
            "limit",
            "overrides",
            "plan",
            "snapshot",
            "throttle",
            "upstream",
        ],
    ),
    // What is decided before anything is charged. A request, `explain` and `replay` share it, so it
    // stands below all three, and above the leaves that it calls one after the other.
    (
        "plan",
        &[
            "error",
            "ext_authz",
            "grpc",
            "http1",
            "identity",
            "limit",
            "route",
            "snapshot",
            "template",
            "tls",
            "usage",
        ],
    ),
    // It decides as the gateway does, without importing it: with a plan, a memory store and the limits.
    (
        "replay",
        &[
            "auth", "clock", "error", "escape", "http1", "identity", "limit", "plan", "route",
            "secret", "snapshot", "store", "throttle",
        ],
    ),
    ("live", &["auth", "overrides", "snapshot"]),
    ("reload", &["auth", "config", "file", "gateway", "snapshot", "tls", "trace"]),
    (
        "gateway",
        &[
            "acme",
            "auth",
            "balance",
            "client_usage",
            "clock",
            "compress",
            "connection_state",
            "consumer_store",
            "error",
            "ext_authz",
            "grpc",
            "http1",
            "http_client",
            "identity",
            "key_sets",
            "limit",
            "live",
            "metrics",
            "mix",
            "overrides",
            "plan",
            "priority",
            "rate_limit_service",
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
            "usage",
        ],
    ),
    // `snapshot`: the rules of a listener say what precedes HTTP. `tls`: handshakes with clients. `acme`: those of authorities.
    (
        "connection",
        &[
            "acme",
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
            "acme",
            "priority",
            "status",
            // It makes keys of consumers, and checks records.
            "auth",
            "balance",
            "clock",
            "config",
            "connection",
            "consumer_store",
            "gateway",
            "identity",
            "limit",
            "metrics",
            "overrides",
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
            "acme",
            "admin",
            "clock",
            "config",
            "consumer_store",
            "file",
            "gateway",
            "handover",
            "key_sets",
            "live",
            "metrics",
            "overrides",
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
        "auth",
        "balance",
        "clock",
        "config",
        "error",
        "escape",
        "handover",
        "file",
        "grpc",
        "http1",
        "identity",
        "limit",
        "overrides",
        "plan",
        "rate_limit_service",
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
        "usage",
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
