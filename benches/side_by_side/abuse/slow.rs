//! Slow connections: each begins something, and continues it by a byte a second or not at all.

use std::{
    collections::BTreeMap,
    io::{self, ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::{ClientConnection, pki_types::ServerName};
use testkit::{
    http2_frames::{END_HEADERS, END_STREAM, PREFACE, block, frame, kind, request, settings},
    tls::trusting_client,
};

use super::{
    connect_from,
    frames::goaway_code,
    target::{TIMEOUT, Target, as_attacker},
};

/// Connections of a kind.
pub(super) const CONNECTIONS: usize = 1_000;
/// From one open to the next: 500 a second, because otherwise their number, and not their slowness,
/// would be measured.
const OPEN_INTERVAL: Duration = Duration::from_millis(2);
/// Connections of one address: fewer than `http.max_connections_per_client` by default.
const PER_ADDRESS: usize = 250;
/// Longest time until all are closed: a stream's timeout, then that of an idle connection, and the
/// close.
const MAX_DURATION: Duration = Duration::from_secs(10 * TIMEOUT.as_secs());
/// Files that the other client's connections may need.
const OTHER_FILES: usize = 24;

/// A kind of slow connection.
pub(super) struct Slow {
    pub(super) name: &'static str,
    is_tls: bool,
    /// Bytes that it sends once.
    first: Vec<u8>,
    /// Bytes that it sends each second.
    more: Vec<u8>,
}

/// How the connections of a kind ended.
pub(super) struct Closed {
    /// From the first open to the last close.
    pub(super) took: Duration,
    /// The largest memory of the gateway, in KiB.
    pub(super) memory: u64,
    /// Connections by what they received last.
    pub(super) ends: BTreeMap<String, u64>,
}

/// All kinds.
pub(super) fn kinds() -> Result<[Slow; 7]> {
    let http2 = |window: u32, frames: Vec<u8>| {
        let settings = frame(kind::SETTINGS, 0, 0, &settings(&[(4, window)]));
        [PREFACE, &settings, &frames].concat()
    };
    let large = block(&request("GET", "/large"));
    let slow = block(&request("POST", "/slow"));
    let stalled = http2(0, frame(kind::HEADERS, END_HEADERS | END_STREAM, 1, &large));
    let stream = http2(65_535, frame(kind::HEADERS, END_HEADERS, 1, &slow));
    let hello = half_hello()?;
    let clear = |name, first: &str, more: &str| Slow {
        name,
        is_tls: false,
        first: first.into(),
        more: more.into(),
    };
    let head = "HTTP/1.1\r\nHost: gateway.test\r\n";
    Ok([
        clear("silent", "", ""),
        Slow { name: "half a TLS handshake", is_tls: true, first: hello, more: Vec::new() },
        clear("head, a byte a second", &format!("GET /slow {head}X: "), "x"),
        clear(
            "body, a byte a second",
            &format!("POST /slow {head}Content-Length: 1000\r\n\r\n"),
            "x",
        ),
        clear("response never read", &format!("GET /large {head}\r\n"), ""),
        Slow { name: "HTTP/2, window of zero", is_tls: false, first: stalled, more: Vec::new() },
        Slow {
            name: "HTTP/2, DATA of a byte a second",
            is_tls: false,
            first: stream,
            more: frame(kind::DATA, 0, 1, b"x"),
        },
    ])
}

/// The first half of what a client of TLS sends.
fn half_hello() -> Result<Vec<u8>> {
    let name = ServerName::try_from("localhost")?;
    let mut client = ClientConnection::new(Arc::new(trusting_client(&["h2"])), name)?;
    let mut hello = Vec::new();
    client.write_tls(&mut hello)?;
    hello.truncate(hello.len() / 2);
    Ok(hello)
}

impl Slow {
    /// Opens all connections and continues them until the gateway has ended all.
    pub(super) fn run(&self, target: &Target) -> Result<Closed> {
        as_attacker();
        let files = target.files()?;
        let start = Instant::now();
        let mut sockets = Vec::with_capacity(CONNECTIONS);
        for index in 0..CONNECTIONS {
            let due = start + OPEN_INTERVAL * index as u32;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            sockets.push(self.open(if self.is_tls { target.tls } else { target.clear }, index)?);
        }
        let mut memory = target.memory()?;
        // The last connections may not have been accepted yet.
        thread::sleep(Duration::from_millis(200));
        // A response that is not read may hide that the gateway has closed the connection.
        for tenth in (0..10).cycle() {
            if are_ended(&sockets)? || target.files()? <= files + OTHER_FILES {
                break;
            }
            memory = memory.max(target.memory()?);
            ensure!(
                start.elapsed() < MAX_DURATION,
                "{}: {} files are open after {MAX_DURATION:?}, {files} before",
                self.name,
                target.files()?
            );
            if !self.more.is_empty() {
                // Each connection once a second, like 1,000 clients that do not know of each other.
                for mut socket in sockets.iter().skip(tenth).step_by(10) {
                    // The gateway may have closed it.
                    let _ = socket.write(&self.more);
                }
            }
            thread::sleep(Duration::from_millis(100));
        }
        let took = start.elapsed();
        let mut ends = BTreeMap::new();
        for socket in sockets {
            *ends.entry(last_words(socket)).or_default() += 1;
        }
        Ok(Closed { took, memory, ends })
    }

    fn open(&self, target: SocketAddr, index: usize) -> Result<TcpStream> {
        // A small buffer, so that a response that is not read does not fit in it.
        let socket = connect_from((2 + index / PER_ADDRESS) as u8, target, Some(4096))?;
        (&socket).write_all(&self.first)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    }
}

/// Whether the gateway has ended each of them, as far as a client sees without reading.
fn are_ended(sockets: &[TcpStream]) -> Result<bool> {
    let mut polled: Vec<_> =
        sockets.iter().map(|socket| PollFd::new(socket, PollFlags::RDHUP)).collect();
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(poll(&mut polled, Some(&at_once))? == sockets.len())
}

/// What a closed connection has received, and how it ended.
fn last_words(mut socket: TcpStream) -> String {
    let mut received = Vec::new();
    let _ = socket.set_nonblocking(false);
    let _ = socket.set_read_timeout(Some(Duration::from_secs(2)));
    let end = match socket.read_to_end(&mut received) {
        Ok(_) => "closed",
        Err(error) if is_reset(&error) => "reset",
        Err(_) => "**open**",
    };
    if let Some(code) = goaway_code(&received) {
        return format!("GOAWAY {code}, {end}");
    }
    match received.strip_prefix(b"HTTP/1.1 ").and_then(|rest| rest.get(..3)) {
        Some(status) => format!("{}, {end}", String::from_utf8_lossy(status)),
        None => end.to_owned(),
    }
}

fn is_reset(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}
