//! `tidegate explain`: prints what would happen to one request.

mod explanation;
mod request;
mod route_changes;

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};

use self::explanation::Explanation;
use self::request::Request;
use super::{Exit, exit_after_write, load, print_error};
use crate::clock::Clock;

/// Arguments of `explain`.
#[derive(clap::Args, Debug)]
pub(super) struct ExplainArgs {
    #[command(flatten)]
    file: super::ConfigFile,
    /// The request's method.
    #[arg(long, short = 'X', value_name = "METHOD", default_value = "GET")]
    method: String,
    /// A header, such as 'accept: text/plain'; may be repeated.
    #[arg(long = "header", short = 'H', value_name = "HEADER")]
    headers: Vec<String>,
    /// The address that the connection comes from.
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    client: IpAddr,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// The URL, taken literally, such as <http://api.example.com/items/7?x=1> or /items/7.
    #[arg(value_name = "URL")]
    url: String,
}

/// Prints what would happen to a request. Charges nothing and connects to nothing.
pub(super) fn run(arguments: &ExplainArgs, out: &mut dyn Write) -> Exit {
    let (_, snapshot) = match load(&arguments.file.config) {
        Ok(loaded) => loaded,
        Err(exit) => return exit,
    };
    let ExplainArgs { method, url, headers, client, .. } = arguments;
    let request = match Request::new(method, url, headers, *client) {
        Ok(request) => request,
        Err(fault) => return print_error(&format!("tidegate: {fault}")),
    };
    let explanation = Explanation::new(&snapshot, &request, Clock::system().now());
    if arguments.json {
        let text = serde_json::to_string_pretty(&explanation);
        return match text {
            Ok(text) => exit_after_write(writeln!(out, "{text}"), Exit::Ok),
            Err(_) => Exit::Internal,
        };
    }
    exit_after_write(explanation.print(out), Exit::Ok)
}
