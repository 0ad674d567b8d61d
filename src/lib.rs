//! Tidegate: an HTTP reverse proxy and API gateway with rate limiting built in.
//!
//! A gateway forwards HTTP requests to upstream servers, counts them against limits (in memory, or
//! in Redis if several gateways share them), and refuses requests that exceed a limit. An optional
//! throttle admits only active users while more users are active than configured. This package is
//! the program; this page is the map of the crates that it exports, and `ARCHITECTURE.md` has the
//! reasons and the rules for imports.
//!
//! ```
//! use std::{fs, io::{Read, Write}, net::TcpStream};
//! use tidegate::{clock::Clock, server::Server};
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("tidegate.yaml");
//! fs::write(&path, "
//! listen: [{address: '127.0.0.1:0'}]
//! workers: 1
//! access_log: off
//! upstreams: {hello: {respond: {body: hello}}}
//! limits: {per-client: {quota: 1, window: 1m, key: [client_ip]}}
//! routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello, limits: [per-client]}]
//! ")?;
//! let server = Server::builder(Clock::system()).start_file(&path)?;
//!
//! let get = || -> std::io::Result<String> {
//!     let mut client = TcpStream::connect(server.addresses[0])?;
//!     client.write_all(b"GET / HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n")?;
//!     let mut response = String::new();
//!     client.read_to_string(&mut response)?;
//!     Ok(response)
//! };
//! assert!(get()?.starts_with("HTTP/1.1 200 OK"));
//! assert!(get()?.starts_with("HTTP/1.1 429 Too Many Requests"));
//! server.stop();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Running a gateway
//!
//! - [`cli`]: the commands of the binary.
//! - [`handover`]: takes the listening sockets over from a predecessor.
//! - [`server`]: starts and stops a complete gateway: workers, control thread, admin API.
//! - [`worker`]: a worker thread: accepts and serves connections, drains at the end.
//! - [`admin`]: the admin API: health, metrics and control.
//! - [`live`]: the current configuration, which a reload replaces.
//! - [`reload`]: replaces the running configuration, all or nothing.
//! - [`telemetry`]: the process log and the access log.
//! - [`metrics`]: counters, one shard for each worker.
//!
//! # The path of a request
//!
//! - [`connection`]: a client connection: receives requests, writes responses.
//! - [`gateway`]: handles a request, from its head to its response.
//! - [`plan`]: a request's route, keys and costs, before anything is charged.
//! - [`respond`]: rate-limit headers, problem documents and other responses of the gateway itself.
//! - [`error`]: every reason why a request is refused or fails.
//! - [`escape`]: escapes text from files and requests for a terminal.
//! - [`sensitive`]: which values may be credentials, by form, name and place.
//!
//! # Parts that can be tested alone
//!
//! - [`balance`]: the choice of an upstream's endpoint for an attempt.
//! - [`compress`]: content codings: the negotiation and the streaming encoders.
//! - [`http1`]: HTTP/1.1 messages as bytes, read strictly.
//! - [`transport`]: what carries HTTP: sockets, TLS, tunnels.
//! - [`connection_state`]: what a client connection waits for, and its deadlines.
//! - [`auth`]: who sends a request: API keys and consumers.
//! - [`consumer_store`]: consumers that are kept in Redis.
//! - [`identity`]: client addresses, access tokens, and the keys that limits count by.
//! - [`ext_authz`]: Envoy's protocol for decisions: messages, the asked request, the response.
//! - [`grpc`]: gRPC as a server: messages with their length, statuses.
//! - [`charge`]: charges to limits, and the verdict on a request.
//! - [`limit`]: the limit algorithms: pure functions of state, quota, time and cost.
//! - [`overrides`]: quotas that operators set at run time, in Redis or in a file.
//! - [`rate_limit_service`](mod@rate_limit_service): the messages of Envoy's rate limit service.
//! - [`redis`](mod@redis): connections to Redis, and the scripts that charge there.
//! - [`route`]: finds the route for a host, a path and a method.
//! - [`store`]: the counters of limits, in this process or in Redis.
//! - [`template`]: texts with variables of a request: header rules, redirects, rewritten paths.
//! - [`throttle`]: active-user admission control.
//! - [`acme`]: certificates that are ordered from an authority.
//! - [`tls`]: certificates, and the rules of TLS handshakes.
//! - [`trace`]: the W3C trace context, and the spans of sampled requests for a collector.
//! - [`key_sets`]: the keys of issuers of signed tokens, which are fetched in the background.
//! - [`upstream`]: the HTTP/1.1 and HTTP/2 client: connection pools, forwarding, header rules;
//!   [`warnings`]: which of many failures are logged.
//! - [`http_client`]: the client of the gateway's own requests.
//! - [`usage`]: what a body reports that it cost: numbers at paths of its JSON, found while it
//!   passes.
//!
//! # Configuration
//!
//! - [`config`]: the configuration file: its types, parser and faults.
//! - [`mod@file`]: reads files that an operator names, with a deadline.
//! - [`snapshot`]: a configuration compiled into immutable rules.
//! - [`replay`]: runs a recorded access log through the limits of a configuration.
//!
//! # Shared by the rest
//!
//! - [`client_usage`]: each client address's share of the resources that the process bounds.
//! - [`clock`]: the only place that reads a clock.
//! - [`counter`]: a number that one thread writes and any thread reads.
//! - [`priority`]: how important a request is while an upstream is full.
//! - [`mix`]: functions that mix bits: hashes and random numbers.
//! - [`secret`]: the secret that the gateways of one store share.
//! - [`status`]: sets of response statuses.
//! - [`time`]: the kinds of time, one type each.

pub mod admin;
pub mod cli;
pub mod handover;
pub mod reload;
pub mod replay;
pub mod server;

pub use tidegate_access::{auth, consumer_store, key_sets, overrides};
pub use tidegate_balance as balance;
pub use tidegate_base::{counter, escape, mix, priority, sensitive, status, time};
pub use tidegate_charge as charge;
pub use tidegate_config as config;
pub use tidegate_envoy::{ext_authz, grpc, rate_limit_service};
pub use tidegate_gateway as gateway;
pub use tidegate_gateway::{connection, metrics, telemetry, worker};
pub use tidegate_http1 as http1;
pub use tidegate_identity as identity;
pub use tidegate_limit as limit;
pub use tidegate_redis as redis;
pub use tidegate_route as route;
pub use tidegate_rules::{error, live, plan, respond, snapshot};
pub use tidegate_store as store;
pub use tidegate_system::{client_usage, clock, file, secret};
pub use tidegate_template as template;
pub use tidegate_throttle as throttle;
pub use tidegate_tls as tls;
pub use tidegate_tls::{acme, http_client};
pub use tidegate_trace as trace;
pub use tidegate_transport as transport;
pub use tidegate_transport::{compress, connection_state};
pub use tidegate_upstream as upstream;
pub use tidegate_upstream::warnings;
pub use tidegate_usage as usage;
