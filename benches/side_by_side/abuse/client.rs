//! The other client: requests at a fixed rate over kept connections, and how long each took.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    num::NonZeroU64,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use rustix::thread::set_current_timer_slack;
use testkit::http2_frames::{
    END_HEADERS, END_STREAM, PREFACE, block, frame, kind, request, settings,
};

use super::target::{SHORT, on_load_cpu};

/// Requests a second, of each protocol.
const RATE: u32 = 500;
/// Connections of each protocol. Each sends every `CONNECTIONS / RATE` s.
const CONNECTIONS: u32 = 4;
/// Timeout of a response.
const TIMEOUT: Duration = Duration::from_secs(10);

const REQUEST: &[u8] = b"GET /items/1 HTTP/1.1\r\nHost: gateway.test\r\nAccept: */*\r\n\r\n";

/// How long requests took, in order of neither time nor length.
#[derive(Default)]
pub(super) struct Latencies {
    pub(super) http1: Vec<Duration>,
    pub(super) http2: Vec<Duration>,
}

/// A connection of either protocol, with one request at a time.
enum Connection {
    Http1(TcpStream),
    Http2 { socket: TcpStream, stream: u32 },
}

impl Latencies {
    pub(super) fn extend(&mut self, other: Self) {
        self.http1.extend(other.http1);
        self.http2.extend(other.http2);
    }

    /// The quantile of both protocols, in ms: HTTP/1.1, HTTP/2.
    pub(super) fn quantile(&self, share: f64) -> [f64; 2] {
        [&self.http1, &self.http2].map(|taken| {
            let mut sorted = taken.clone();
            sorted.sort_unstable();
            let index = (sorted.len() as f64 * share) as usize;
            sorted.get(index).map_or(f64::NAN, |took| took.as_secs_f64() * 1e3)
        })
    }
}

/// Sends requests over both protocols for this time. Each latency counts from the time at which the
/// request was due, even if the one before it was late.
///
/// # Errors
///
/// A connection is closed, or a response is not a 200.
pub(super) fn run(target: SocketAddr, duration: Duration) -> Result<Latencies> {
    thread::scope(|scope| {
        let start = |is_http2| {
            let clients: Vec<_> = (0..CONNECTIONS)
                .map(|index| scope.spawn(move || drive(target, is_http2, index, duration)))
                .collect();
            clients
        };
        let (http1, http2) = (start(false), start(true));
        let join = |clients: Vec<thread::ScopedJoinHandle<'_, Result<Vec<Duration>>>>| {
            let taken = clients
                .into_iter()
                .map(|client| client.join().map_err(|_| anyhow!("the other client panicked"))?);
            anyhow::Ok(taken.collect::<Result<Vec<_>>>()?.concat())
        };
        Ok(Latencies { http1: join(http1)?, http2: join(http2)? })
    })
}

fn drive(
    target: SocketAddr,
    is_http2: bool,
    index: u32,
    duration: Duration,
) -> Result<Vec<Duration>> {
    on_load_cpu();
    // Otherwise a sleep may end 50 us late.
    set_current_timer_slack(NonZeroU64::new(1))?;
    let mut connection = Connection::open(target, is_http2)?;
    connection.exchange()?;
    let interval = Duration::from_secs(CONNECTIONS.into()) / RATE;
    let (start, mut taken) = (Instant::now() + interval / CONNECTIONS * index, Vec::new());
    for number in 0.. {
        let due = start + interval * number;
        if due >= start + duration {
            break;
        }
        thread::sleep(due.saturating_duration_since(Instant::now()));
        connection.exchange().with_context(|| format!("the other client, HTTP/2: {is_http2}"))?;
        taken.push(due.elapsed());
    }
    Ok(taken)
}

impl Connection {
    fn open(target: SocketAddr, is_http2: bool) -> Result<Self> {
        let mut socket = TcpStream::connect(target)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        if !is_http2 {
            return Ok(Self::Http1(socket));
        }
        // A window for all responses of a connection.
        let window = 1_u32 << 30;
        let bytes = [
            PREFACE,
            &frame(kind::SETTINGS, 0, 0, &settings(&[])),
            &frame(kind::WINDOW_UPDATE, 0, 0, &window.to_be_bytes()),
        ];
        socket.write_all(&bytes.concat())?;
        Ok(Self::Http2 { socket, stream: 1 })
    }

    /// Sends a request and waits for the end of its response.
    fn exchange(&mut self) -> Result<()> {
        match self {
            Self::Http1(socket) => exchange_http1(socket),
            Self::Http2 { socket, stream } => {
                let id = *stream;
                *stream += 2;
                exchange_http2(socket, id)
            }
        }
    }
}

fn exchange_http1(socket: &mut TcpStream) -> Result<()> {
    socket.write_all(REQUEST)?;
    let (mut received, mut chunk) = (Vec::new(), [0; 2048]);
    // The body has no empty line.
    loop {
        let count = socket.read(&mut chunk)?;
        ensure!(count > 0, "the connection was closed");
        received.extend_from_slice(&chunk[..count]);
        let head = received.len().saturating_sub(SHORT);
        if received[..head].ends_with(b"\r\n\r\n") {
            ensure!(received.starts_with(b"HTTP/1.1 200 "), "another status");
            return Ok(());
        }
    }
}

fn exchange_http2(socket: &mut TcpStream, stream: u32) -> Result<()> {
    let head = block(&request("GET", "/items/1"));
    socket.write_all(&frame(kind::HEADERS, END_HEADERS | END_STREAM, stream, &head))?;
    loop {
        let mut head = [0; 9];
        socket.read_exact(&mut head)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        socket.read_exact(&mut payload)?;
        match (head[3], head[4]) {
            (kind::SETTINGS, flags) if flags & END_STREAM == 0 => {
                socket.write_all(&frame(kind::SETTINGS, END_STREAM, 0, &[]))?;
            }
            // `:status: 200` of the static table.
            (kind::HEADERS, _) => ensure!(payload.contains(&0x88), "another status"),
            (kind::DATA, flags) if flags & END_STREAM != 0 => return Ok(()),
            (kind::RST_STREAM | kind::GOAWAY, _) => {
                return Err(anyhow!("the request was refused"));
            }
            _ => {}
        }
    }
}
