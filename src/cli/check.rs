use std::io::{self, Write};
use std::path::Path;

use super::{Exit, written};
use crate::config::Config;
use crate::snapshot::Snapshot;

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
        let (name, path, upstream) = (&route.name, &route.matches.path, &route.upstream);
        writeln!(out, "  {name}: {methods} {host}{path} -> {upstream} ({limits})")?;
    }
    for note in &snapshot.notes {
        write!(out, "\nnote: {note}")?;
    }
    Ok(())
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
