mod request;
mod story;

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};

use self::request::Request;
use self::story::Story;
use super::{Exit, complain, rules, written};
use crate::clock::Clock;

/// What `explain` is asked for.
#[derive(clap::Args, Debug)]
pub(super) struct Explain {
    #[command(flatten)]
    file: super::File,
    /// The request's method.
    #[arg(long, short = 'X', value_name = "METHOD", default_value = "GET")]
    method: String,
    /// A header, such as 'accept: text/plain'; once for each.
    #[arg(long = "header", short = 'H', value_name = "HEADER")]
    headers: Vec<String>,
    /// The address that the connection comes from.
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    client: IpAddr,
    /// Print all of it as one JSON object.
    #[arg(long)]
    json: bool,
    /// What is asked for, as spelt: such as <http://api.example.com/items/7?x=1>, or /items/7.
    #[arg(value_name = "URL")]
    url: String,
}

/// Tells what would become of a request. Charges nothing and connects to nothing.
pub(super) fn run(arguments: &Explain, out: &mut dyn Write) -> Exit {
    let (_, snapshot) = match rules(&arguments.file.config) {
        Ok(rules) => rules,
        Err(exit) => return exit,
    };
    let Explain { method, url, headers, client, .. } = arguments;
    let request = match Request::new(method, url, headers, *client) {
        Ok(request) => request,
        Err(fault) => return complain(&format!("tidegate: {fault}")),
    };
    let story = Story::of(&snapshot, &request, Clock::system().now());
    if arguments.json {
        let text = serde_json::to_string_pretty(&story);
        return match text {
            Ok(text) => written(writeln!(out, "{text}"), Exit::Ok),
            Err(_) => Exit::Internal,
        };
    }
    written(story.print(out), Exit::Ok)
}
