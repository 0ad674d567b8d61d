//! `tidegate hash`: the keyed hash by which the access log, the dashboard and the admin API name a
//! caller.

use std::io::{self, BufRead, IsTerminal, Read, Write};

use super::config_file::ConfigFile;
use super::{Exit, exit_after_write, print_error};
use crate::config::EnvLookup;
use crate::identity::{KeyInput, KeyInputError, KeyPart, KeyPlan};
use crate::server;
use crate::snapshot::Snapshot;

/// The longest input, in bytes: more than the longest request head.
const MAX_INPUT: u64 = 1 << 20;

/// Arguments of `hash`. The key is not among them, because a shell keeps them in its history.
#[derive(clap::Args, Debug)]
pub(super) struct HashArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// The limit whose key is read, one line a part, in the order of the configuration; if left
    /// out, the key is the token alone, as in the access log.
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,
    /// The client's address, for a caller without a token or another part that identifies it.
    #[arg(long, value_name = "ADDRESS")]
    client_ip: Option<String>,
}

/// Prints the hash of the key in `input`.
pub(super) fn run(
    arguments: &HashArgs,
    env: EnvLookup<'_>,
    input: &mut dyn BufRead,
    out: &mut dyn Write,
) -> Exit {
    let path = match arguments.file.path() {
        Ok(path) => path,
        Err(exit) => return exit,
    };
    let (loaded, snapshot) = match Snapshot::load(path, env) {
        Ok(loaded) => loaded,
        Err(error) => {
            print_error(&error);
            return Exit::from_load_error(&error);
        }
    };
    let secret = match server::shared_secret(&loaded, env) {
        Ok(Some(secret)) => secret,
        Ok(None) => {
            return print_error(&format!(
                "tidegate: {}: without Redis each start has its own secret, and only the running gateway knows a \
                 caller's hash; expected `store.redis`, or GET /api/limits/NAME?key=KEY of the admin API",
                path.display()
            ));
        }
        Err(error) => return print_error(&error),
    };
    let plan = match plan(arguments, &snapshot) {
        Ok(plan) => plan,
        Err(what) => return print_error(&format!("tidegate: {what}")),
    };
    let secret = secret.for_keys();
    let hash = read_values(&plan, input).and_then(|values| {
        let identity = &snapshot.identity;
        let input = KeyInput {
            values: &values.iter().map(String::as_str).collect::<Vec<_>>(),
            client_ip: arguments.client_ip.as_deref(),
            token_sources: &identity.token,
            ipv6_prefix: identity.ipv6_prefix,
        };
        plan.key_of_input(&input, secret).map_err(|error| describe(error, &plan))
    });
    match hash {
        Ok(hash) => exit_after_write(writeln!(out, "{hash:032x}"), Exit::Ok),
        Err(what) => print_error(&format!("tidegate: {what}")),
    }
}

/// The key that is hashed.
fn plan(arguments: &HashArgs, snapshot: &Snapshot) -> Result<KeyPlan, String> {
    let Some(name) = &arguments.limit else { return Ok(KeyPlan(vec![KeyPart::Token])) };
    let named = snapshot.limits.iter().find(|policy| policy.limit.name() == &**name);
    named.map(|policy| policy.key.clone()).ok_or_else(|| {
        let names: Vec<&str> = snapshot.limits.iter().map(|policy| policy.limit.name()).collect();
        format!("no limit is called `{name}`; expected one of: {}", names.join(", "))
    })
}

/// Reads a line for each part of the key. Prints a prompt on a terminal.
fn read_values(plan: &KeyPlan, input: &mut dyn BufRead) -> Result<Vec<String>, String> {
    let is_terminal = io::stdin().is_terminal();
    let mut input = input.take(MAX_INPUT);
    let mut values = Vec::new();
    for part in &plan.0 {
        if is_terminal {
            let _ = write!(io::stderr(), "{part}: ");
        }
        let mut line = String::new();
        let length = input.read_line(&mut line);
        let length = length.map_err(|error| format!("cannot read the key: {error}"))?;
        if length == 0 {
            break;
        }
        values.push(line.trim_end_matches(['\r', '\n']).to_owned());
    }
    let mut rest = String::new();
    // On a terminal the next line is not for this command.
    if !is_terminal && input.read_line(&mut rest).is_ok_and(|length| length > 0) {
        values.push(rest);
    }
    Ok(values)
}

fn describe(error: KeyInputError, plan: &KeyPlan) -> String {
    let parts: Vec<String> = plan.0.iter().map(ToString::to_string).collect();
    let parts = parts.join(", ");
    match error {
        KeyInputError::Count if plan.0.is_empty() => {
            "the input is not empty; expected none: this limit counts all callers together".to_owned()
        }
        KeyInputError::Count => {
            format!("the number of input lines is not the number of the key's parts; expected a line for each of: {parts}")
        }
        KeyInputError::Address => {
            "`client_ip` is not an address; expected one such as 192.0.2.1".to_owned()
        }
        KeyInputError::Credentials => {
            "the key has no canonical form, and a request with it gets a 400; expected the token as it was issued".to_owned()
        }
        KeyInputError::Empty => format!(
            "no part that identifies a caller has a value, and such callers are counted by their address; expected a \
             value for {parts}, or --client-ip ADDRESS"
        ),
    }
}
