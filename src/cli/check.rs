use std::io::{self, Write};
use std::path::Path;

use super::{Exit, written};
use crate::config::Config;
use crate::snapshot::Snapshot;
use crate::throttle::Settings;

/// Reads and compiles the configuration at `path`; tells every fault, or in short what it says.
pub(super) fn run(path: &Path, out: &mut dyn Write) -> Exit {
    let compiled = Snapshot::load(path).map(|(loaded, snapshot)| (loaded.config, snapshot));
    match compiled {
        Ok((config, snapshot)) => written(summary(path, &config, &snapshot, out), Exit::Ok),
        Err(faults) => written(writeln!(out, "{faults}"), Exit::BadInput),
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
