//! `tidegate key`: makes API keys, checks them, and hashes passwords.

use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::time::{Duration, UNIX_EPOCH};

use super::config_file::ConfigOption;
use super::{Exit, exit_after_write, load, print_error};
use crate::auth::{
    ApiKey, FoundKey, KeyHash, KeyValidity, check_form, hash_password, is_consumer_name,
};
use crate::clock::Clock;
use crate::config::EnvLookup;
use crate::escape::escape;

/// The longest key or password, in bytes: more than the longest request head.
const MAX_KEY: u64 = 1 << 20;

/// Arguments of `key`.
#[derive(clap::Args, Debug)]
pub(super) struct KeyArgs {
    #[command(subcommand)]
    command: KeyCommand,
}

#[derive(clap::Subcommand, Debug)]
enum KeyCommand {
    /// Make a key; prints it, and the record with its hash for the file of consumers.
    New(NewArgs),
    /// Check a key, which is read from standard input: its form, and with --config its consumer.
    Check(CheckArgs),
    /// Hash a password, which is read from standard input; prints the line for the file of
    /// consumers.
    Password,
}

#[derive(clap::Args, Debug)]
struct NewArgs {
    /// The consumer's name in the record; if left out, only the line of the key is printed.
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
}

/// The key is not among them, because a shell keeps them in its history.
#[derive(clap::Args, Debug)]
struct CheckArgs {
    #[command(flatten)]
    option: ConfigOption,
}

/// Makes or checks a key, or hashes a password.
pub(super) fn run(
    arguments: &KeyArgs,
    env: EnvLookup<'_>,
    input: &mut dyn BufRead,
    out: &mut dyn Write,
) -> Exit {
    match &arguments.command {
        KeyCommand::New(new) => make(new, out),
        KeyCommand::Check(check) => check_key(check, env, input, out),
        KeyCommand::Password => print_password_hash(input, out),
    }
}

fn make(arguments: &NewArgs, out: &mut dyn Write) -> Exit {
    if let Some(name) = arguments.consumer.as_deref().filter(|name| !is_consumer_name(name)) {
        let name = escape(name);
        let expected =
            "1 to 128 characters, without control characters and without white space at an end";
        return print_error(&format!(
            "tidegate: the name `{name}` of a consumer; expected {expected}"
        ));
    }
    let Ok(key) = ApiKey::generate() else {
        print_error(&"tidegate: the system has no random numbers");
        return Exit::Internal;
    };
    let today = UNIX_EPOCH + Duration::from_millis(Clock::system().store_time().as_unix_ms());
    let today = humantime::format_rfc3339_seconds(today).to_string();
    let month = today.get(..7).unwrap_or_default();
    let line = format!("- {{id: {month}, sha256: {}}}", key.hash());
    let record = match &arguments.consumer {
        None => line,
        Some(name) => format!("- name: {}\n  keys:\n    {line}", quoted(name)),
    };
    exit_after_write(writeln!(out, "{}\n{record}", key.as_str()), Exit::Ok)
}

/// A text as a YAML value: in quotes, unless every parser reads it as the same text without.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(is_plain);
    let is_other = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
        .iter()
        .any(|word| text.eq_ignore_ascii_case(word));
    if is_word && !is_other {
        return text.to_owned();
    }
    // JSON's strings are YAML's.
    serde_json::Value::from(text).to_string()
}

fn check_key(
    arguments: &CheckArgs,
    env: EnvLookup<'_>,
    input: &mut dyn BufRead,
    out: &mut dyn Write,
) -> Exit {
    let key = match read_secret("key", input) {
        Ok(key) => key,
        Err(exit) => return exit,
    };
    let key = key.trim();
    let form = check_form(key);
    let hash = KeyHash::of(key.as_bytes());
    let verdict = form.as_ref().map_or_else(ToString::to_string, |()| "well-formed".to_owned());
    let exit = if form.is_ok() { Exit::Ok } else { Exit::BadInput };
    let written = writeln!(out, "form       {verdict}\nsha256     {hash}");
    if written.is_err() || arguments.option.config.is_none() {
        return exit_after_write(written, exit);
    }
    let path = match arguments.option.path() {
        Ok(path) => path,
        Err(exit) => return exit,
    };
    let consumers = match load(path, env) {
        Ok((_, snapshot)) if snapshot.consumers.is_redis() => {
            let line = "consumer   not looked up: the consumers are in Redis";
            return exit_after_write(writeln!(out, "{line}"), exit);
        }
        Ok((_, snapshot)) => snapshot.consumers.load(),
        Err(exit) => return exit,
    };
    let consumers = match consumers {
        Ok(consumers) => consumers,
        Err(faults) => return print_error(&faults),
    };
    // A key that another program made has another form, and is as good.
    match consumers.key(&hash, Clock::system().store_time()) {
        None => exit_after_write(writeln!(out, "consumer   none has this key"), Exit::BadInput),
        Some(found) => print_owner(&found, out),
    }
}

/// Reads a line, which is called `name` in messages.
fn read_secret(name: &str, input: &mut dyn BufRead) -> Result<String, Exit> {
    if io::stdin().is_terminal() {
        let _ = write!(io::stderr(), "{name}: ");
    }
    let mut secret = String::new();
    if let Err(error) = input.take(MAX_KEY).read_line(&mut secret) {
        return Err(print_error(&format!("tidegate: cannot read the {name}: {error}")));
    }
    if secret.trim().is_empty() {
        return Err(print_error(&format!(
            "tidegate: no {name}; expected one line on standard input"
        )));
    }
    Ok(secret)
}

fn print_password_hash(input: &mut dyn BufRead, out: &mut dyn Write) -> Exit {
    let password = match read_secret("password", input) {
        Ok(password) => password,
        Err(exit) => return exit,
    };
    let password = password.trim_end_matches(['\r', '\n']);
    // No client can send it: the credentials of `Basic` have no control characters.
    if password.chars().any(char::is_control) {
        return print_error(&"tidegate: the password has control characters; expected others");
    }
    match hash_password(password.as_bytes()) {
        Ok(hash) => exit_after_write(writeln!(out, "password: {hash}"), Exit::Ok),
        Err(error) => {
            print_error(&format!("tidegate: cannot hash the password: {error}"));
            Exit::Internal
        }
    }
}

fn print_owner(found: &FoundKey<'_>, out: &mut dyn Write) -> Exit {
    let FoundKey { consumer, id, validity } = found;
    let plan = consumer.plan.map_or(String::new(), |plan| format!(", plan {plan}"));
    let billing_day =
        consumer.billing_day.map_or(String::new(), |day| format!(", billing day {day}"));
    let id = if id.is_empty() { String::new() } else { format!(", key {id}") };
    let (state, exit) = match validity {
        KeyValidity::Valid => ("valid", Exit::Ok),
        KeyValidity::Expired => ("expired", Exit::BadInput),
        KeyValidity::Disabled => ("its consumer is disabled", Exit::BadInput),
    };
    let name = escape(consumer.name);
    let written = writeln!(out, "consumer   {name}{plan}{billing_day}{id}")
        .and_then(|()| writeln!(out, "state      {state}"));
    exit_after_write(written, exit)
}
