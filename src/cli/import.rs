//! `tidegate import`: turns the configuration of another program into one of Tidegate.
//!
//! | file | content |
//! |---|---|
//! | `envoy_ratelimit` | a file of envoyproxy/ratelimit |

mod envoy_ratelimit;
#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use self::envoy_ratelimit::NativeDomain;
use super::{Exit, exit_after_write, print_error};
use crate::config::{DOMAIN_SYNTAX, Faults, MAX_READ, is_domain_name, read_descriptors, text_of};
use crate::escape::escape;
use crate::file;

/// Arguments of `import`.
#[derive(clap::Args, Debug)]
pub(super) struct ImportArgs {
    #[command(subcommand)]
    program: ImportedProgram,
}

#[derive(clap::Subcommand, Debug)]
enum ImportedProgram {
    /// Turn a configuration file of envoyproxy/ratelimit into limits of a domain of
    /// `rate_limit_service`.
    EnvoyRatelimit {
        /// The file.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// Prints the configuration, and to standard error what it cannot express.
pub(super) fn run(arguments: &ImportArgs, out: &mut dyn Write) -> Exit {
    let ImportedProgram::EnvoyRatelimit { file } = &arguments.program;
    match read(file) {
        Ok(domain) => {
            for note in &domain.notes {
                // A note that cannot be written is also in the output.
                let _ = writeln!(io::stderr(), "note: {}: {note}", file.display());
            }
            exit_after_write(write!(out, "{domain}"), Exit::Ok)
        }
        Err(what) => print_error(&what),
    }
}

fn read(path: &Path) -> Result<NativeDomain, String> {
    let name = path.display().to_string();
    let bytes = file::read_whole(path, MAX_READ);
    let bytes = bytes.map_err(|error| format!("tidegate: cannot read {name}: {error}"))?;
    let faults = |faults: Faults| faults.to_string();
    let text = text_of(&name, &bytes).map_err(faults)?;
    let file = read_descriptors(&name, text).map_err(faults)?;
    if !is_domain_name(&file.domain) {
        let domain = escape(&file.domain);
        return Err(format!("{name}: the domain `{domain}`, expected {DOMAIN_SYNTAX}"));
    }
    let domain = NativeDomain::of(&file);
    if domain.is_empty() {
        return Err(format!(
            "{name}: no limit; expected a `rate_limit` in at least one descriptor"
        ));
    }
    Ok(domain)
}
