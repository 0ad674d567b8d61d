//! The kit that integration tests and benchmarks share. Nothing here is part of the gateway.
//!
//! A test writes its configuration, starts a gateway between a client and an upstream that it
//! scripts, and reads what each of them received:
//!
//! ```ignore
//! let upstream = Upstream::hello();
//! let gateway = Gateway::start(&fill(
//!     "
//!     upstreams: {origin: {targets: [{target}]}}
//!     routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
//!     ",
//!     [("target", upstream.target())],
//! ));
//! assert_eq!(get(gateway.address(), "/a", "").status, 200);
//! assert_eq!(upstream.request_count(), 1);
//! ```
//!
//! The files, in reading order:
//!
//! | file | offers |
//! |---|---|
//! | `yaml.rs` | `fill`: a configuration as an indented literal, with addresses filled in by name |
//! | `gateway.rs` | a gateway in the test's process, on the system's or a simulated clock; its metrics; timeouts with tight bounds |
//! | `client.rs`, `upstream.rs` | HTTP/1.1 on raw sockets: exactly the bytes that a test sends, and an upstream that it scripts |
//! | `protocol.rs`, `protocol/any_client.rs` | HTTP/1.1 and HTTP/2, in clear and over TLS: `on_every_protocol`, and one client for all four |
//! | `backend.rs` | memory and each Redis topology: lists of runs, and gateways that share a store |
//! | `http2_client.rs`, `http2_upstream.rs` | HTTP/2 with the `h2` crate, on either side |
//! | `http2_frames.rs` | HTTP/2 frames by hand, valid or not |
//! | `rate_limit_client.rs` | a gRPC client of the rate limit service |
//! | `dns_server.rs` | a DNS server whose records a test moves |
//! | `pebble.rs` | Pebble, an authority that speaks ACME |
//! | `tls.rs` | certificates made for a test, a TLS client, a TLS upstream |
//! | `process.rs`, `terminal.rs`, `port.rs` | the binary as a child process, on a terminal, with ports that no other test takes |
//! | `commands.rs`, `log_lines.rs`, `api_keys.rs` | commands run in the test's process; lines of an access log; keys of consumers |
//! | `wait.rs`, `random.rs`, `ranks.rs` | waiting for events; numbers that are the same in every run; rank correlation |
//! | `redis_server.rs`, `redis_topology.rs`, `options.rs` | real Redis servers: one, replicas, Cluster, Sentinel; options for them |
//! | `override_proxy.rs`, `truncating_proxy.rs`, `stalling_proxy.rs` | proxies before Redis that replace replies, cut them off or hold them |
//! | `scripts.rs`, `verdict.rs` | the Lua scripts, called alone and measured; short forms for a store's verdicts |
//! | `faults.rs` | targets that fail on command, and a paced client that verifies each response |
//! | `burst.rs` | servers with a short queue, and many clients at once |
//! | `load.rs`, `bench.rs` | a load generator and a cheap upstream; limits, stores and statistics for benchmarks |
//! | `interpreters.rs` | the Python, Node.js, Envoy and Caddy that `scripts/test` installs |
//!
//! A helper that cannot do its work panics and so fails the test that called it.
#![allow(clippy::missing_panics_doc, reason = "every helper fails its test by panicking")]
#![allow(clippy::disallowed_types, reason = "std's mutex is enough for threads of a test")]

pub mod api_keys;
pub mod backend;
pub mod bench;
pub mod burst;
pub mod client;
pub mod commands;
pub mod dns_server;
pub mod faults;
pub mod gateway;
pub mod http2_client;
pub mod http2_frames;
pub mod http2_upstream;
pub mod interpreters;
pub mod load;
pub mod log_lines;
pub mod options;
pub mod override_proxy;
pub mod pebble;
pub mod port;
pub mod process;
pub mod protocol;
pub mod random;
pub mod ranks;
pub mod rate_limit_client;
pub mod redis_server;
pub mod redis_topology;
pub mod scripts;
pub mod stalling_proxy;
pub mod terminal;
pub mod tls;
pub mod truncating_proxy;
pub mod upstream;
pub mod verdict;
pub mod wait;
pub mod yaml;
