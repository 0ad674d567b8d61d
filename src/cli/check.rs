use std::io::{self, Write};
use std::path::Path;

use super::{Exit, written};
use crate::config::{Config, Faults, Loaded, Secret, SecretError, Variables};
use crate::secret::MIN_LEN;
use crate::snapshot::Snapshot;
use crate::throttle::Settings;

/// Reads and compiles the configuration at `path`; tells every fault, or in short what it says.
///
/// A secret that is not here is only noted: the gateway may run elsewhere, and have it there.
pub(super) fn run(path: &Path, variables: Variables<'_>, out: &mut dyn Write) -> Exit {
    match Snapshot::load(path) {
        Ok((loaded, snapshot)) => {
            if let Some(faults) = unfit_secret(&loaded, variables) {
                return written(writeln!(out, "{faults}"), Exit::BadInput);
            }
            let config = &loaded.config;
            let told = summary(path, config, &snapshot, out)
                .and_then(|()| secrets(config, variables, out));
            written(told, Exit::Ok)
        }
        Err(error) => written(writeln!(out, "{error}"), Exit::of(&error)),
    }
}

fn summary(
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
        let told = route.status.as_ref().map(|told| format!("status of {}", told.join(", ")));
        let answers = route.upstream.as_ref().or(told.as_ref()).map_or("", String::as_str);
        writeln!(out, "  {name}: {methods} {host}{path} -> {answers} ({limits})")?;
    }
    if let Some(throttle) = &snapshot.throttle {
        writeln!(out, "  throttle: {}", admission(throttle))?;
    }
    for note in &snapshot.notes {
        write!(out, "\nnote: {note}")?;
    }
    Ok(())
}

/// A secret that is here, and that no gateway would take.
fn unfit_secret(loaded: &Loaded, variables: Variables<'_>) -> Option<Faults> {
    let place: &Secret = loaded.config.store.redis.as_ref()?.secret.as_ref()?;
    let error = place.reveal_at_least(MIN_LEN, variables).err().filter(SecretError::is_fault)?;
    let expected = format!("text of at least {MIN_LEN} bytes that cannot be guessed");
    let fault = loaded.source.fault("store.redis.secret", error.to_string(), &expected);
    Some(fault.into())
}

/// Notes which secrets, and certificates, a gateway that started here would not find.
fn secrets(config: &Config, variables: Variables<'_>, out: &mut dyn Write) -> io::Result<()> {
    let Some(redis) = &config.store.redis else { return Ok(()) };
    let sentinel = redis.sentinel.as_ref().and_then(|sentinel| sentinel.password.as_ref());
    for secret in redis.password.iter().chain(sentinel).chain(&redis.secret) {
        if let Err(error) = secret.reveal(variables) {
            writeln!(out, "\nnote: {error} (here and now; the gateway needs it to start)")?;
        }
    }
    if let Some(path) = redis.tls_ca.as_ref().filter(|path| !path.is_file()) {
        let path = path.display();
        writeln!(out, "\nnote: no file {path} (here and now; the gateway needs it to start)")?;
    }
    Ok(())
}

/// What the throttle does, and what it takes.
fn admission(throttle: &Settings) -> String {
    let (marks, geometry) = (&throttle.marks, &throttle.geometry);
    let generations = geometry.memory + 1;
    let minutes = |millis: u64| format!("{}m", millis / 60_000);
    format!(
        "above {} active users, below {} open again; {} of memory in {generations} generations of \
         {}; filters of {} MiB",
        marks.max_active,
        marks.resume_below,
        minutes(throttle.sizing.memory),
        minutes(geometry.generation),
        geometry.bytes().div_ceil(1 << 20),
    )
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
