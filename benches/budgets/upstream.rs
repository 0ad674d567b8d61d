//! A model API: `/ROUTE/json` is a response of 2 KiB, `/ROUTE/events` a stream of events that
//! pauses after the first, and `/ROUTE/held` one that does not end.

use std::{
    io::{Result, Write as _},
    net::TcpStream,
    thread,
    time::Duration,
};

use testkit::upstream::{Upstream, read_until_closed};

/// The tokens of every response.
pub(crate) const COST: u64 = 7;

/// Bytes of a response's body.
pub(crate) const BODY: usize = 2048;

const EVENTS: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
const EVENT: &str =
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\" hello\"}}],\"usage\":null}\n\n";
const LAST: &str = "data: {\"choices\":[],\"usage\":{\"total_tokens\":7}}\n\n";

/// Between the first event and the others.
const PAUSE: Duration = Duration::from_micros(200);

pub(crate) fn start() -> Upstream {
    let json = response();
    Upstream::with_handler(move |request, socket| {
        let has = |path: &[u8]| request.windows(path.len()).any(|part| part == path);
        if has(b"/json ") {
            return socket.write_all(&json).is_ok();
        }
        if has(b"/events ") {
            return events(socket).is_ok();
        }
        if socket.write_all(EVENTS).and_then(|()| chunk(socket, EVENT)).is_ok() {
            read_until_closed(socket);
        }
        false
    })
}

fn events(socket: &mut TcpStream) -> Result<()> {
    socket.write_all(EVENTS)?;
    chunk(socket, EVENT)?;
    thread::sleep(PAUSE);
    (0..20).try_for_each(|_| chunk(socket, EVENT))?;
    chunk(socket, LAST)?;
    socket.write_all(b"0\r\n\r\n")
}

fn chunk(socket: &mut TcpStream, event: &str) -> Result<()> {
    write!(socket, "{:x}\r\n{event}\r\n", event.len())
}

/// A chat completion, as long as [`BODY`], with its usage at the end.
fn response() -> Vec<u8> {
    let start = "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":1694268190,\"model\":\"m\",\
        \"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"";
    let end = format!(
        "\"}},\"finish_reason\":\"stop\"}}],\"usage\":{{\"prompt_tokens\":3,\"completion_tokens\":4,\"total_tokens\":{COST}}}}}"
    );
    let text: String = "Lorem ipsum dolor sit amet, "
        .chars()
        .cycle()
        .take(BODY - start.len() - end.len())
        .collect();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {BODY}\r\n\r\n"
    );
    [head, start.to_owned(), text, end].concat().into_bytes()
}
