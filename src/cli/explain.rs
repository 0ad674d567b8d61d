//! `tidegate explain`: prints what would happen to one request.

mod call;
mod caller;
mod chosen_target;
mod explanation;
mod limit_explanation;
mod overridden;
mod request;
mod route_changes;
mod waiting_turn;

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use serde::Serialize;

use self::call::{CallExplanation, call_of};
use self::caller::ExplainedCaller;
use self::explanation::Explanation;
use self::overridden::ExplainedOverrides;
use self::request::Request;
use super::config_file::{ConfigOption, is_config};
use super::{Exit, exit_after_write, print_error, usage_error};
use crate::clock::Clock;
use crate::config::{EnvLookup, Faults, LoadedConfig};
use crate::overrides::{OverridesContent, read_file, read_file_or_list};
use crate::server;
use crate::snapshot::Snapshot;

/// Arguments of `explain`.
#[derive(clap::Args, Debug)]
pub(super) struct ExplainArgs {
    #[command(flatten)]
    option: ConfigOption,
    /// The request's method.
    #[arg(long, short = 'X', value_name = "METHOD", default_value = "GET")]
    method: String,
    /// A header, such as 'accept: text/plain'; may be repeated.
    #[arg(long = "header", short = 'H', value_name = "HEADER")]
    headers: Vec<String>,
    /// The request's JSON body, for limits that read it.
    #[arg(long, short = 'd', value_name = "JSON")]
    body: Option<String>,
    /// The consumer that sends the request, on a route with `auth`; if left out, the headers
    /// authenticate.
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
    /// A file of overrides, instead of the configuration's `overrides.file`; or the answer of
    /// `GET /api/overrides`.
    #[arg(long, value_name = "FILE")]
    overrides: Option<PathBuf>,
    /// The address that the connection comes from.
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    client: IpAddr,
    /// A descriptor of a call to the rate limit service, instead of a URL; may be repeated.
    #[arg(long = "descriptor", num_args = 2, value_names = ["DOMAIN", "NAME=VALUE,..."], conflicts_with_all = ["headers", "body", "consumer"])]
    descriptors: Vec<String>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// The configuration, unless `--config` names it, and the URL, taken literally, such as
    /// <http://api.example.com/items/7?x=1> or /items/7.
    #[arg(value_name = "[FILE] URL", required_unless_present = "descriptors")]
    url: Vec<String>,
}

impl ExplainArgs {
    /// The configuration, without a URL.
    fn file(&self) -> Result<&Path, Exit> {
        match (&*self.url, &self.option.config) {
            ([], _) => self.option.path(),
            ([file], None) => Ok(Path::new(file)),
            _ => Err(usage_error("explain", "a descriptor has no URL")),
        }
    }

    /// The configuration and the URL.
    fn file_and_url(&self) -> Result<(&Path, &str), Exit> {
        match (&*self.url, &self.option.config) {
            ([file], None) if is_config(Path::new(file)) && !file.starts_with('/') => {
                Err(usage_error("explain", "the URL is missing"))
            }
            ([url], _) => Ok((self.option.path()?, url)),
            ([url, file], None) if url.contains("://") && is_config(Path::new(file)) => {
                Err(usage_error("explain", "the configuration comes before the URL"))
            }
            ([file, url], None) => Ok((Path::new(file), url)),
            ([file, _], Some(option)) => {
                let option = option.display();
                let both = format!("two configurations: '{file}' and '--config {option}'");
                Err(usage_error("explain", both))
            }
            _ => Err(usage_error("explain", "several URLs; expected one")),
        }
    }
}

/// Prints what would happen to a request. Charges nothing and connects to nothing.
pub(super) fn run(arguments: &ExplainArgs, env: EnvLookup<'_>, out: &mut dyn Write) -> Exit {
    let is_call = !arguments.descriptors.is_empty();
    let named =
        if is_call { arguments.file().map(|file| (file, "")) } else { arguments.file_and_url() };
    let (file, url) = match named {
        Ok(named) => named,
        Err(exit) => return exit,
    };
    let (loaded, snapshot) = match Snapshot::load(file, env) {
        Ok(loaded) => loaded,
        Err(error) => {
            print_error(&error);
            return Exit::from_load_error(&error);
        }
    };
    let ExplainArgs { method, headers, client, consumer, .. } = arguments;
    let consumers = match snapshot.consumers.load() {
        Ok(consumers) => consumers,
        Err(faults) => return print_error(&faults),
    };
    let content = match known_overrides(arguments, &loaded, &snapshot, env) {
        Ok(content) => content,
        Err(faults) => return print_error(&faults),
    };
    let now = Clock::system().store_time();
    let overrides = ExplainedOverrides::new(&content, &snapshot, now);
    if is_call {
        let call = match call_of(&arguments.descriptors) {
            Ok(call) => call,
            Err(fault) => return usage_error("explain", fault),
        };
        return match CallExplanation::new(&snapshot, &call, &consumers, &overrides, now) {
            Ok(explanation) if arguments.json => print_json(&explanation, &loaded, out),
            Ok(explanation) => print_text(|text| explanation.print(text), &loaded, out),
            Err(fault) => print_error(&format!("tidegate: {fault}")),
        };
    }
    let request = match Request::new(method, url, headers, *client) {
        Ok(request) => request.with_body(arguments.body.as_deref()),
        Err(fault) => return print_error(&format!("tidegate: {fault}")),
    };
    let caller = ExplainedCaller { consumers: &consumers, name: consumer.as_deref() };
    let explanation = Explanation::new(&snapshot, &request, caller, &overrides, now);
    if arguments.json {
        return print_json(&explanation, &loaded, out);
    }
    print_text(|text| explanation.print(text), &loaded, out)
}

/// The overrides of the file that an option or the configuration names, with the secret of their
/// keys.
fn known_overrides(
    arguments: &ExplainArgs,
    loaded: &LoadedConfig,
    snapshot: &Snapshot,
    env: EnvLookup<'_>,
) -> Result<OverridesContent, Faults> {
    let mut content = match (&arguments.overrides, &snapshot.overrides_file) {
        (Some(named), _) => read_file_or_list(named)?,
        (None, Some(own)) => read_file(own)
            .map_err(|faults| faults.of_named_file(&loaded.source, "overrides.file"))?,
        (None, None) => return Ok(OverridesContent::default()),
    };
    if content.secret.is_none() {
        // Without it, overrides of keys apply to no request.
        content.secret = server::shared_secret(loaded, env).ok().flatten();
    }
    Ok(content)
}

fn print_json(explanation: &impl Serialize, loaded: &LoadedConfig, out: &mut dyn Write) -> Exit {
    match serde_json::to_string_pretty(explanation) {
        Ok(json) => print_text(|text| writeln!(text, "{json}"), loaded, out),
        Err(_) => Exit::Internal,
    }
}

/// Prints what `print` writes, without the values of environment variables.
fn print_text(
    print: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    loaded: &LoadedConfig,
    out: &mut dyn Write,
) -> Exit {
    let mut text = Vec::new();
    let printed = print(&mut text).and_then(|()| {
        let text = String::from_utf8_lossy(&text);
        out.write_all(loaded.source.mask_message(&text).as_bytes())
    });
    exit_after_write(printed, Exit::Ok)
}
