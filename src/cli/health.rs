//! `tidegate health`: checks that a running gateway is ready, for example as a container's
//! `HEALTHCHECK`.

mod admin;
mod probe;

use std::fmt::{self, Display};
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use self::admin::ProbeTarget;
pub(super) use self::admin::endpoint as admin_endpoint;
pub(super) use self::probe::{AdminRequest, ask_admin};
use super::config_file::ConfigFile;
use super::duration::parse_duration;
use super::{Exit, exit_after_write, print_error};
use crate::config::Environment;
use crate::tls::{Certificate, TlsError};

/// Arguments of `health`.
#[derive(clap::Args, Debug)]
pub(super) struct HealthArgs {
    #[command(flatten)]
    file: ConfigFile,
    // `help` instead of a doc comment, in which rustdoc requires angle brackets around URLs.
    #[arg(
        long,
        value_name = "URL",
        conflicts_with_all = ["file", "config"],
        help = "The admin address, instead of that of a configuration: http://localhost:9900, https://NAME:PORT or \
                unix:/PATH. A path of the URL replaces /readyz"
    )]
    url: Option<String>,
    /// Certificate authorities, in PEM, one of which must have issued the admin API's certificate;
    /// if left out, the configuration's own certificate is expected, or with --url one from the
    /// system's authorities.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Certificate, in PEM, for an admin API that asks for one; if left out, the configuration's
    /// own.
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// Private key of --cert, in PEM.
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Maximum time for the whole check.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    timeout: Duration,
}

/// The reason why a gateway is not healthy: one line, without the program's name.
#[derive(Debug)]
pub(super) struct Unhealthy(String);

impl Display for Unhealthy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<TlsError> for Unhealthy {
    fn from(error: TlsError) -> Self {
        Self(error.to_string())
    }
}

/// Prints that the gateway is ready, or why it is not.
pub(super) fn run(arguments: &HealthArgs, env: &Environment, out: &mut dyn Write) -> Exit {
    let endpoint = match &arguments.url {
        Some(url) => ProbeTarget::of_url(url),
        None => match arguments.file.path() {
            Ok(path) => admin::endpoint(path, arguments.timeout, env),
            Err(exit) => return exit,
        },
    };
    let result = endpoint.and_then(|mut endpoint| {
        endpoint.ca = arguments.ca.clone().or(endpoint.ca);
        if let (Some(cert), Some(key)) = (&arguments.cert, &arguments.key) {
            endpoint.certificate = Some(Certificate::load(cert, key)?);
        }
        probe::run(endpoint, arguments.timeout)
    });
    match result {
        Ok(url) => exit_after_write(writeln!(out, "ready: {url}"), Exit::Ok),
        Err(reason) => {
            print_error(&format!("tidegate: {reason}"));
            Exit::NotReady
        }
    }
}
