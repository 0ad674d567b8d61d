//! `tidegate check`: prints the faults of a configuration, or a summary of it.

use std::io::{self, Write};
use std::path::Path;

use super::{Exit, exit_after_write};
use crate::clock::Clock;
use crate::config::{
    AccessLog, Config, EnvLookup, Fault, Faults, LoadedConfig, MatchValue, RouteMatch, SecretError,
    SecretReference,
};
use crate::secret::MIN_LEN;
use crate::snapshot::Snapshot;
use crate::throttle::ThrottleSettings;

/// The end of a note on a file, folder or secret that is missing.
const ON_THIS_MACHINE: &str = "(on this machine; the gateway needs it to start)";

/// Loads the configuration at `path`, and prints every fault, or a summary.
///
/// A missing secret is only a note, because the gateway may run on another machine that has it.
pub(super) fn run(path: &Path, env: EnvLookup<'_>, clock: &Clock, out: &mut dyn Write) -> Exit {
    match Snapshot::load(path) {
        Ok((loaded, snapshot)) => {
            if let Some(faults) = secret_fault(&loaded, env) {
                return exit_after_write(writeln!(out, "{faults}"), Exit::BadInput);
            }
            let config = &loaded.config;
            let certificates = snapshot.certificate_notes(&loaded.source, clock.now());
            let notes = snapshot.notes.iter().chain(&certificates);
            let result = print_summary(path, config, &snapshot, out)
                .and_then(|()| print_notes(notes, out))
                .and_then(|()| print_missing_secrets_and_files(config, env, out));
            exit_after_write(result, Exit::Ok)
        }
        Err(error) => exit_after_write(writeln!(out, "{error}"), Exit::from_load_error(&error)),
    }
}

/// Prints the counts, routes and throttle of a valid configuration.
fn print_summary(
    path: &Path,
    config: &Config,
    snapshot: &Snapshot,
    out: &mut dyn Write,
) -> io::Result<()> {
    let path = path.display();
    let counts = [
        count(snapshot.routes.len(), "route"),
        count(snapshot.limits.len(), "limit"),
        count(snapshot.upstreams.len(), "upstream"),
    ];
    writeln!(out, "{path}: ok ({})", counts.join(", "))?;
    for route in &config.routes {
        let host = route.matches.host.as_deref().unwrap_or("*");
        let methods: Vec<&str> = route.matches.methods.iter().map(|m| m.0.as_str()).collect();
        let methods = if methods.is_empty() { "any".to_owned() } else { methods.join(",") };
        let limits =
            if route.limits.is_empty() { "no limit".to_owned() } else { route.limits.join(", ") };
        let (name, path) = (&route.name, &route.matches.path);
        let status = route.status.as_ref().map(|limits| format!("status of {}", limits.join(", ")));
        let redirect = route.redirect.as_ref().map(|to| format!("{} {}", to.status.0, to.to));
        let respond = route.respond.as_ref().map(|fixed| fixed.status.0.to_string());
        let actions = [route.upstream.clone(), status, redirect, respond];
        let action = actions.into_iter().flatten().next().unwrap_or_default();
        let conditions = route_conditions(&route.matches);
        writeln!(out, "  {name}: {methods} {host}{path}{conditions} -> {action} ({limits})")?;
    }
    if let Some(throttle) = &snapshot.throttle {
        writeln!(out, "  throttle: {}", throttle_summary(throttle))?;
    }
    Ok(())
}

/// The conditions beyond host, path and methods, in few words.
fn route_conditions(matches: &RouteMatch) -> String {
    let headers = matches.headers.iter().map(|(name, value)| ("header", name, value));
    let query = matches.query.iter().map(|(name, value)| ("query", name, value));
    let tests = headers.chain(query).map(|(kind, name, value)| match value {
        MatchValue::Text(text) => format!("{kind} {name}: {text}"),
        MatchValue::Sent(true) => format!("{kind} {name}"),
        MatchValue::Sent(false) => format!("no {kind} {name}"),
    });
    let weight = matches.weight.map(|weight| format!("{weight} % of callers"));
    let all: Vec<String> = tests.chain(weight).collect();
    if all.is_empty() { String::new() } else { format!(" [{}]", all.join(", ")) }
}

fn print_notes<'a>(notes: impl Iterator<Item = &'a Fault>, out: &mut dyn Write) -> io::Result<()> {
    for note in notes {
        writeln!(out, "\nnote: {note}")?;
    }
    Ok(())
}

/// The fault of a secret that can be read here but is invalid.
fn secret_fault(loaded: &LoadedConfig, env: EnvLookup<'_>) -> Option<Faults> {
    let secret: &SecretReference = loaded.config.store.redis.as_ref()?.secret.as_ref()?;
    let error = secret.reveal_at_least(MIN_LEN, env).err().filter(SecretError::is_fault)?;
    let expected = format!("at least {MIN_LEN} random bytes");
    let fault = loaded.source.fault("store.redis.secret", error.to_string(), &expected);
    Some(fault.into())
}

/// Prints notes on secrets and certificates that do not exist on this machine.
fn print_missing_secrets_and_files(
    config: &Config,
    env: EnvLookup<'_>,
    out: &mut dyn Write,
) -> io::Result<()> {
    if let AccessLog::File(path) = &config.access_log
        && let Some(folder) = path.parent().filter(|folder| *folder != Path::new(""))
        && !folder.is_dir()
    {
        let folder = folder.display();
        writeln!(out, "\nnote: no folder {folder} for the access log {ON_THIS_MACHINE}")?;
    }
    let Some(redis) = &config.store.redis else { return Ok(()) };
    let sentinel = redis.sentinel.as_ref().and_then(|sentinel| sentinel.password.as_ref());
    for secret in redis.password.iter().chain(sentinel).chain(&redis.secret) {
        if let Err(error) = secret.reveal(env) {
            writeln!(out, "\nnote: {error} {ON_THIS_MACHINE}")?;
        }
    }
    if let Some(path) = redis.tls_ca.as_ref().filter(|path| !path.is_file()) {
        let path = path.display();
        writeln!(out, "\nnote: no file {path} {ON_THIS_MACHINE}")?;
    }
    Ok(())
}

/// The throttle's thresholds, memory and filters.
fn throttle_summary(throttle: &ThrottleSettings) -> String {
    let (watermarks, geometry) = (&throttle.watermarks, &throttle.geometry);
    let generations = geometry.complete_generations + 1;
    let minutes = |millis: u64| format!("{}m", millis / 60_000);
    format!(
        "on above {} active users, off below {}; {} of memory in {generations} generations of {}; filters \
         of {} MiB",
        watermarks.max_active,
        watermarks.resume_below,
        minutes(throttle.sizing.memory),
        minutes(geometry.generation_length),
        geometry.bytes().div_ceil(1 << 20),
    )
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
