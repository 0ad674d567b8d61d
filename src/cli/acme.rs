//! `tidegate acme`: the certificates that a gateway orders: their state, and new ones on demand.

use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use clap::Subcommand;
use serde_json::Value;

use super::config_file::ConfigFile;
use super::duration::parse_duration;
use super::health::{AdminRequest, Unhealthy, admin_endpoint, ask_admin};
use super::{Exit, exit_after_write, load, print_error};
use crate::config::Environment;

/// Arguments of `acme`.
#[derive(clap::Args, Debug)]
pub(super) struct AcmeArgs {
    #[command(subcommand)]
    command: AcmeCommand,
}

#[derive(Debug, Subcommand)]
enum AcmeCommand {
    /// Print each certificate: its domains, expiry, next renewal and last error; without a running
    /// gateway from the storage.
    Status(StatusArgs),
    /// Let the running gateway order new certificates now.
    Renew(RenewArgs),
}

#[derive(clap::Args, Debug)]
struct StatusArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// Maximum time for the answer of the gateway.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    timeout: Duration,
}

#[derive(clap::Args, Debug)]
struct RenewArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// Only certificates with this domain; by default all.
    #[arg(long, value_name = "DOMAIN")]
    domain: Option<String>,
    /// Maximum time for the answer of the gateway, which does not wait for the certificates.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    timeout: Duration,
}

/// Runs the command.
pub(super) fn run(arguments: &AcmeArgs, env: &Environment, out: &mut dyn Write) -> Exit {
    let (file, timeout) = match &arguments.command {
        AcmeCommand::Status(status) => (&status.file, status.timeout),
        AcmeCommand::Renew(renew) => (&renew.file, renew.timeout),
    };
    let path = match file.path() {
        Ok(path) => path,
        Err(exit) => return exit,
    };
    match &arguments.command {
        AcmeCommand::Status(_) => match ask(path, AdminRequest::Get("/api/acme"), timeout, env) {
            Ok(answer) => exit_after_write(out.write_all(listed(&answer).as_bytes()), Exit::Ok),
            Err(reason) => {
                print_error(&format!("tidegate: {reason}; this is in the storage:"));
                stored(path, env, out)
            }
        },
        AcmeCommand::Renew(renew) => {
            let query = renew.domain.as_ref().map_or_else(String::new, |domain| {
                let encode = percent_encoding::utf8_percent_encode;
                format!("?domain={}", encode(domain, percent_encoding::NON_ALPHANUMERIC))
            });
            let path_and_query = format!("/api/acme/renew{query}");
            match ask(path, AdminRequest::Post(&path_and_query), timeout, env) {
                Ok(answer) => {
                    let count = answer["renewed"].as_u64().unwrap_or_default();
                    let noun = if count == 1 { "certificate is" } else { "certificates are" };
                    let line = writeln!(out, "{count} {noun} ordered; see `tidegate acme status`");
                    exit_after_write(line, Exit::Ok)
                }
                Err(reason) => {
                    print_error(&format!("tidegate: {reason}"));
                    Exit::NotReady
                }
            }
        }
    }
}

/// Asks the gateway of the configuration at `path`.
fn ask(
    path: &Path,
    request: AdminRequest<'_>,
    timeout: Duration,
    env: &Environment,
) -> Result<Value, Unhealthy> {
    let endpoint = admin_endpoint(path, timeout, env)?;
    ask_admin(endpoint, request, timeout)
}

/// The lines about the certificates in an answer of the admin API. What it does not say is left
/// out.
fn listed(answer: &Value) -> String {
    let mut text = String::new();
    for own in answer["certificates"].as_array().into_iter().flatten() {
        let names: Vec<&str> =
            own["domains"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "{}", names.join(", "));
        let mut line = |label: &str, value: String| writeln!(text, "  {label}: {value}");
        let unknown = if own["storage"] == "redis" && own.get("renewal_at").is_none() {
            "not known: it is kept in Redis, and no gateway was asked"
        } else {
            "no certificate yet"
        };
        let _ = line("expires", time(&own["expires_at"], unknown));
        if let Some(renewal) = own.get("renewal_at") {
            let _ = line("renewal", time(renewal, "as soon as there is a certificate"));
        }
        if own["is_ordering"] == true {
            let _ = line("state", "an order is being processed".to_owned());
        } else if own["is_ordered_elsewhere"] == true {
            let _ = line("state", "another gateway orders it".to_owned());
        }
        if let Some(error) = own["last_error"].as_str() {
            let error: String = error.chars().filter(|char| !char.is_control()).collect();
            let _ = line("last error", error);
            let _ = line("next attempt", time(&own["retry_at"], "now"));
        }
    }
    if text.is_empty() {
        "no certificate is ordered: no listener has `acme`\n".to_owned()
    } else {
        text
    }
}

/// A time in seconds since the epoch; `without` if there is none.
fn time(value: &Value, without: &str) -> String {
    // Years of more than four digits have no such form.
    const LATEST: u64 = 253_402_300_799;
    value.as_u64().map_or_else(
        || without.to_owned(),
        |seconds| {
            let time = UNIX_EPOCH + Duration::from_secs(seconds.min(LATEST));
            humantime::format_rfc3339_seconds(time).to_string()
        },
    )
}

/// Prints the certificates in the storage.
fn stored(path: &Path, env: &Environment, out: &mut dyn Write) -> Exit {
    let snapshot = match load(path, &**env) {
        Ok((_, snapshot)) => snapshot,
        Err(exit) => return exit,
    };
    let certificates: Vec<Value> = snapshot
        .acme_listeners()
        .map(|(settings, _)| {
            let storage = if settings.storage.is_shared() { "redis" } else { "folder" };
            let stored = settings.certificate_in_folder();
            let expires = stored.map(|own| own.validity.not_after.as_secs());
            serde_json::json!({
                "domains": settings.domains, "expires_at": expires, "storage": storage,
            })
        })
        .collect();
    let text = listed(&serde_json::json!({ "certificates": certificates }));
    exit_after_write(out.write_all(text.as_bytes()), Exit::NotReady)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_certificate_has_its_lines() {
        let answer = serde_json::json!({"certificates": [
            {"domains": ["a.test", "b.test"], "expires_at": 1_800_000_000, "renewal_at": 1_797_000_000,
             "is_ordering": false, "is_ordered_elsewhere": true, "last_error": null},
            {"domains": ["c.test"], "expires_at": null, "renewal_at": null, "is_ordering": true,
             "last_error": "no\u{1b}[31m answer", "retry_at": 1_800_000_000},
        ]});
        let expected = "a.test, b.test\n  expires: 2027-01-15T08:00:00Z\n  renewal: 2026-12-11T14:40:00Z\n  \
                        state: another gateway orders it\n\
                        c.test\n  expires: no certificate yet\n  renewal: as soon as there is a certificate\n  \
                        state: an order is being processed\n  last error: no[31m answer\n  \
                        next attempt: 2027-01-15T08:00:00Z\n";
        assert_eq!(listed(&answer), expected);
        assert!(listed(&Value::Null).starts_with("no certificate is ordered"));
    }
}
