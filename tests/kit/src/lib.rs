//! What the integration tests and the benchmarks share: raw HTTP clients and upstreams, gateways in
//! this process and as child processes, real Redis servers and topologies, and proxies that inject
//! faults. Nothing here is part of the gateway.
//!
//! A helper that cannot do its work panics and so fails the test that called it.
#![allow(clippy::missing_panics_doc, reason = "every helper fails its test by panicking")]
#![allow(clippy::disallowed_types, reason = "std's mutex is enough for threads of a test")]

pub mod backend;
pub mod bench;
pub mod client;
pub mod faults;
pub mod gateway;
pub mod http2_client;
pub mod http2_frames;
pub mod http2_upstream;
pub mod interpreters;
pub mod load;
pub mod options;
pub mod override_proxy;
pub mod port;
pub mod process;
pub mod protocol;
pub mod random;
pub mod redis_server;
pub mod redis_topology;
pub mod scripts;
pub mod terminal;
pub mod tls;
pub mod truncating_proxy;
pub mod upstream;
pub mod verdict;
pub mod wait;
pub mod yaml;
