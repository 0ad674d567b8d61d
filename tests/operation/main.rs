//! From outside. What operators use: commands, the admin API, reloads, logs, metrics, traces,
//! replay.
//!
//! Real sockets, real upstreams, real Redis servers.
#![allow(missing_docs, reason = "a test's name says what it asserts")]
#![allow(clippy::disallowed_types, reason = "std's mutex is enough for threads of a test")]

use std::{path::Path, process::Command};

/// The admin listener: hosts, origins, bounds.
mod admin_api;
mod admin_port;
/// The admin API accepts what its description allows.
mod admin_schema;
mod admin_transport;
/// The binary: default configuration, exit codes, signals.
mod binary;
/// `tidegate explain`.
mod explain;
/// Upgrades of the program, and socket activation.
mod handover;
/// `tidegate health`.
mod health;
/// The formats of both logs, in files and on terminals, and decisions at `debug`.
mod log_formats;
/// Log destinations: unread pipes, rotated files, full disks.
mod log_sinks;
/// Health, metrics, the access log, request ids.
mod observability;
mod openapi;
/// Secrets of operators, which no output shows.
mod operator_secrets;
/// Reloads under load, and their triggers.
mod reload;
/// Configurations that are not regular files.
mod reload_files;
/// `tidegate replay` on the gateway's own log.
mod replay;
/// `tidegate replay` on foreign, compressed, damaged and hostile logs.
mod replay_input;
/// `tidegate replay` for every kind of rule.
mod replay_rules;
/// `tidegate proxy` and `init`, and environment variables in a configuration.
mod start;
/// Spans for a trace collector.
mod traces;
/// Features that a route does not use cost it nothing.
mod unused_steps;

/// A command line of the gateway's binary, to be run in `directory`.
pub(crate) fn tidegate_command(directory: &Path, arguments: &[&str]) -> Command {
    testkit::process::gateway_command(env!("CARGO_BIN_EXE_tidegate"), directory, arguments)
}
