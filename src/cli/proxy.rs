//! `tidegate proxy`: the gateway without a file. The arguments become a configuration, which is
//! printed and then served like one from a file.

use std::fmt::Write as _;
use std::io::{self, Write};

use serde::de::DeserializeOwned;
use serde::de::value::{Error, StrDeserializer};

use super::{Exit, LogOption, exit_after_write, serve, usage_error};
use crate::config::{AdminAddress, ListenAddress, Rate, RedisUrl, TargetUrl};
use crate::sensitive::mask_login;

/// The configuration's name in messages.
const NAME: &str = "tidegate proxy";
/// The value of `--admin` for no admin address.
const OFF: &str = "off";

/// Arguments of `proxy`. Values may contain `${NAME}`, as in a file.
#[derive(clap::Args, Debug)]
pub(super) struct ProxyArgs {
    // `help` instead of a doc comment, in which rustdoc requires angle brackets around URLs.
    #[arg(
        long,
        value_name = "SERVER",
        required = true,
        help = "A server, such as localhost:3000, https://api.example.com or unix:/run/app.sock; may be repeated"
    )]
    to: Vec<String>,
    /// The address for clients; `:8080` is port 8080 of every address of this machine.
    #[arg(long, value_name = "ADDRESS", default_value = "localhost:8080", value_parser = argument::<ListenAddress>)]
    from: String,
    /// The address of the dashboard, the metrics and the admin API, on loopback; `off` for none.
    #[arg(long, value_name = "ADDRESS", default_value = "localhost:9900", value_parser = admin)]
    admin: String,
    /// Maximum request rate of each client address, such as 100/1m; further requests get a 429.
    #[arg(long, value_name = "RATE", value_parser = argument::<Rate>)]
    limit: Option<String>,
    /// Above this number of active users, new ones get a 429, and active ones are still served.
    #[arg(long, value_name = "USERS", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000_000))]
    throttle: Option<u64>,
    #[arg(
        long,
        value_name = "URL",
        help = "Redis server in which gateways share their counters, such as redis://localhost:6379. A password only \
                as a variable: 'redis://:${REDIS_PASSWORD}@localhost:6379'"
    )]
    redis: Option<String>,
    #[command(flatten)]
    log: LogOption,
}

/// Prints the configuration that the arguments make, and serves it.
pub(super) fn run(arguments: &ProxyArgs, launch: serve::Launch<'_>, out: &mut dyn Write) -> Exit {
    let yaml = match configuration(arguments) {
        Ok(yaml) => yaml,
        Err(fault) => return usage_error("proxy", fault),
    };
    match out.write_all(yaml.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            exit_after_write(Err(error), Exit::Ok)
        }
        _ => serve::run_text(NAME, &yaml, &arguments.log.log, launch),
    }
}

/// The arguments as a configuration, or the fault of a URL. Redis URLs are checked here, because a
/// fault of the argument parser would print the URL with its password.
fn configuration(arguments: &ProxyArgs) -> Result<String, String> {
    let ProxyArgs { to, from, admin, limit, throttle, redis, .. } = arguments;
    let targets = to.iter().map(|text| target(text)).collect::<Result<Vec<_>, _>>()?;
    let redis = redis.as_deref().map(redis_url).transpose()?;
    let mut yaml = format!(
        "# To change more, keep this as a file: tidegate serve FILE\nlisten:\n  - address: {}\n",
        scalar(from)
    );
    if admin != OFF {
        // Writing to a string cannot fail.
        let _ = writeln!(yaml, "admin:\n  address: {}", scalar(admin));
    }
    yaml.push_str("upstreams:\n  app:\n    targets:\n");
    for target in &targets {
        let _ = writeln!(yaml, "      - {}", scalar(target));
    }
    if let Some(rate) = limit {
        let _ = writeln!(yaml, "limits:\n  per-address: {}", scalar(rate));
    }
    if let Some(max) = throttle {
        let _ = writeln!(yaml, "throttle:\n  max_active: {max}");
    }
    if let Some(url) = redis {
        let _ = writeln!(yaml, "store:\n  redis:\n    shards:\n      - primary: {}", scalar(&url));
    }
    yaml.push_str("routes:\n");
    if throttle.is_some() {
        yaml.push_str(
            "  # While the throttle is on, new users get a 429. So that they can log in then:\n  \
             # - {name: login, match: {path: /login}, upstream: app, throttle: false}\n",
        );
    }
    yaml.push_str("  - name: everything\n    upstream: app\n");
    if limit.is_some() {
        yaml.push_str("    limits: [per-address]\n");
    }
    Ok(yaml)
}

/// The text as a YAML scalar: plain if it is certainly text, else in quotes.
fn scalar(text: &str) -> String {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"./:-_$".contains(&b);
    let is_text = text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.contains(['/', ':'])
        && !text.ends_with(':')
        && text.bytes().all(is_plain);
    // JSON is YAML.
    if is_text { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}

/// True if the text has variables, so that it can be checked only with their values.
fn has_variables(text: &str) -> bool {
    text.contains("${")
}

/// Reads a value as the configuration does.
fn read<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    T::deserialize(StrDeserializer::<Error>::new(text))
}

/// Checks an argument as the configuration does.
fn argument<T: DeserializeOwned>(text: &str) -> Result<String, String> {
    match read::<T>(text) {
        Err(error) if !has_variables(text) => {
            let error = error.to_string();
            Err(error
                .split_once("expected ")
                .map_or_else(String::new, |(_, expected)| format!("expected {expected}")))
        }
        _ => Ok(text.to_owned()),
    }
}

/// The admin address, or none.
fn admin(text: &str) -> Result<String, String> {
    if text == OFF || has_variables(text) {
        return Ok(text.to_owned());
    }
    let address = argument::<AdminAddress>(text)?;
    match read::<AdminAddress>(text) {
        Ok(read) if !read.is_local() => Err("beyond loopback it needs a token; expected an address such as localhost:9900, or a file with \
                          `admin.token`"
            .to_owned()),
        _ => Ok(address),
    }
}

/// A target; without a scheme, `http`.
fn target(text: &str) -> Result<String, String> {
    let fault = |text: &str, expected: &str| {
        format!("invalid value '{}' for '--to <SERVER>': {expected}", mask_login(text))
    };
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        let expected = format!("expected a host before the port, such as localhost:{text}");
        return Err(fault(text, &expected));
    }
    let has_scheme = text.contains("://") || text.starts_with("unix:") || text.starts_with("${");
    let url = if has_scheme { text.to_owned() } else { format!("http://{text}") };
    let expected = |_| "expected host:port, http://host:port, https://host:port or unix:/path, without a path after it";
    argument::<TargetUrl>(&url).map_err(|error| fault(&url, expected(error)))
}

/// True if the text consists only of variables without defaults.
fn is_all_variables(text: &str) -> bool {
    let mut rest = text;
    while let Some((name, after)) = rest.strip_prefix("${").and_then(|rest| rest.split_once('}')) {
        if name.contains(':') {
            return false;
        }
        rest = after;
    }
    rest.is_empty()
}

/// Checks a Redis URL. It must not have a literal password, which would be printed and be visible
/// in the list of processes. No fault contains the URL.
fn redis_url(text: &str) -> Result<String, String> {
    let fault = |why: &str| format!("invalid value for '--redis <URL>': {why}");

    let login = text.split_once("://").and_then(|(_, rest)| rest.rsplit_once('@'));
    // A password without a user is often written where the user belongs.
    let password =
        login.map(|(login, _)| login.split_once(':').map_or(login, |(_, password)| password));
    if password.is_some_and(|password| !is_all_variables(password)) {
        return Err(fault(
            "a password here is visible in the list of processes; expected a variable, such as \
             'redis://:${REDIS_PASSWORD}@localhost:6379'",
        ));
    }
    let expected = |_| "expected a Redis URL such as redis://localhost:6379 or rediss://redis.example.com:6380/0";
    argument::<RedisUrl>(text).map_err(|error| fault(expected(error)))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{Arguments, Command};
    use super::*;
    use crate::config;
    use crate::snapshot::{SecretReading, Snapshot};

    /// The configuration of a command line.
    fn written(arguments: &[&str]) -> String {
        let all = ["tidegate", "proxy"].into_iter().chain(arguments.iter().copied());
        match Arguments::try_parse_from(all).map(|arguments| arguments.command) {
            Ok(Some(Command::Proxy(proxy))) => configuration(&proxy).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn no_fault_shows_a_password() {
        let fault = |arguments: &[&str]| {
            let all = ["tidegate", "proxy"].into_iter().chain(arguments.iter().copied());
            match Arguments::try_parse_from(all).map(|arguments| arguments.command) {
                Ok(Some(Command::Proxy(proxy))) => configuration(&proxy).unwrap_err(),
                other => panic!("{other:?}"),
            }
        };
        for url in [
            "redis://:hush@localhost:6379",
            "redis://hush@localhost:6379",
            "redis://user:hush@localhost:none",
            "redis://:hush${P}@localhost",
            "redis://:${P}hush@localhost",
            "redis://:${P:-hush}@localhost",
            "rediss://:hush@a@b",
            "//:hush@localhost",
            "redis:hush@localhost",
            "redis://localhost/?password=hush",
        ] {
            let text = fault(&["--to", "a", "--redis", url]);
            assert!(text.contains("'--redis <URL>'") && !text.contains("hush"), "{text}");
        }
        for to in
            ["http://user:hush@a", "user:hush@a:80", "https://:hush@a/path", "http://u:hush/x@a"]
        {
            let text = fault(&["--to", to]);
            assert!(text.contains("'--to <SERVER>'") && !text.contains("hush"), "{text}");
        }
        assert!(fault(&["--to", "3000"]).contains("such as localhost:3000"));
        let valid = written(&["--to", "a", "--redis", "redis://u:${P}${Q}@h"]);
        assert!(valid.contains("redis://u:${P}${Q}@h"), "{valid}");
    }

    #[test]
    fn the_pages_show_what_is_printed() {
        let yaml = written(&["--to", "localhost:3000", "--limit", "5/10s"]);
        let [readme, page] = ["README.md", "docs/src/quick-start.md"]
            .map(|page| std::fs::read_to_string(page).unwrap());
        assert!(page.contains(&format!("```yaml\n{yaml}```\n")), "the page lacks\n{yaml}");
        for text in [readme, page] {
            assert!(text.contains("proxy --to localhost:3000 --limit 5/10s"), "{text}");
        }
    }

    #[test]
    fn any_arguments_are_a_valid_configuration() {
        let targets =
            ["unix:/run/a b#c: \"d\"", "[::1]:80", "https://a", "srv://a.b", "${T:-http://h:1}"];
        for to in targets {
            for (from, redis) in [
                (":0", "redis://a"),
                ("${F:-:80}", "${R:-redis://h/1}"),
                ("[::]:1", "${R:-redis://a}"),
            ] {
                let yaml =
                    written(&["--to", to, "--from", from, "--redis", redis, "--throttle", "7"]);
                let loaded = config::parse("t.yaml", &yaml)
                    .unwrap_or_else(|faults| panic!("{yaml}{faults}"));
                Snapshot::compile(&loaded, SecretReading::Unread)
                    .unwrap_or_else(|faults| panic!("{yaml}{faults}"));
            }
        }
        for (admin, address) in [("off", None), ("unix:/run/a", Some("unix:/run/a"))] {
            let yaml = written(&["--to", "a", "--admin", admin]);
            let loaded = config::parse("t.yaml", &yaml).unwrap();
            let written = loaded.config.admin.map(|admin| admin.address.to_string());
            assert_eq!(written.as_deref(), address);
        }
        let loaded = config::parse("t.yaml", &written(&["--to", targets[0]])).unwrap();
        let target = &loaded.config.upstreams["app"].targets[0];
        assert_eq!(target.to_string(), targets[0]);
        assert_eq!(loaded.config.limits.len(), 0);
    }
}
