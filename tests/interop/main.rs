//! Interoperability: Tidegate between clients and servers of other projects, as real processes on
//! free ports of the loopback interface. `scripts/test --install` installs them. A tool that is not
//! installed fails its tests.
#![allow(missing_docs, reason = "a test's name says what it asserts")]
#![allow(clippy::disallowed_types, reason = "std's mutex serves a test's threads")]
#![allow(clippy::doc_markdown, reason = "HAProxy and OpenSSL are names")]

mod browser;
/// Bursts on servers with a short queue.
mod bursts;
mod caddy;
/// Windows of calendars, and zoneinfo.
mod calendars;
mod chain;
mod curl;
mod dashboard;
/// Decisions for other proxies, with the configurations of the book.
mod decide;
mod devtools;
mod edge;
mod envoy;
mod grafana;
mod haproxy;
mod hypercorn;
mod migration;
mod nghttp2;
mod nginx;
mod openssl;
mod page;
mod pinned_certificates;
mod prometheus;
mod promql;
mod reloads;
mod restarts;
mod server;
mod sslscan;
mod tokens;
mod tools;
mod waiting_room;
mod websocket;
