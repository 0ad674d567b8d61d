//! An upstream that sees raw bytes and answers with raw bytes.
#![allow(dead_code, reason = "a kit: no suite uses all of it")]

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

/// What an upstream has received: one entry a request, head and body as they came.
pub(crate) type Seen = Arc<Mutex<Vec<Vec<u8>>>>;

/// An upstream on a free port, for the life of the test process.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    seen: Seen,
}

/// What it does with one request: read more from the socket if it wants, and answer. Returning false
/// closes the connection.
pub(crate) type Answer = dyn Fn(&[u8], &mut TcpStream) -> bool + Send + Sync;

impl Upstream {
    /// Answers every request with `200` and `hello`, and keeps the connection.
    pub(crate) fn hello() -> Self {
        Self::answering("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
    }

    /// Answers every request with the same bytes, and keeps the connection.
    pub(crate) fn answering(answer: &'static str) -> Self {
        Self::with(move |_, socket| socket.write_all(answer.as_bytes()).is_ok())
    }

    /// Hands each request, head and body, to `answer`.
    pub(crate) fn with(
        answer: impl Fn(&[u8], &mut TcpStream) -> bool + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let seen = Seen::default();
        let (answer, kept): (Arc<Answer>, _) = (Arc::new(answer), seen.clone());
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (answer, seen) = (answer.clone(), kept.clone());
                thread::spawn(move || converse(socket, &*answer, &seen));
            }
        });
        Self { address, seen }
    }

    /// What has been received so far.
    pub(crate) fn seen(&self) -> Vec<Vec<u8>> {
        self.seen.lock().expect("no test panics with it").clone()
    }

    /// What has been received so far, as text.
    pub(crate) fn texts(&self) -> Vec<String> {
        self.seen().iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect()
    }

    /// How many requests have been received.
    pub(crate) fn count(&self) -> usize {
        self.seen.lock().expect("no test panics with it").len()
    }

    /// Its entry in a configuration's `upstreams`.
    pub(crate) fn target(&self) -> String {
        format!("http://{}", self.address)
    }
}

fn converse(mut socket: TcpStream, answer: &Answer, seen: &Seen) {
    let _ = socket.set_read_timeout(Some(Duration::from_secs(20)));
    let _ = socket.set_nodelay(true);
    let mut held = Vec::new();
    while let Some(request) = read_request(&mut socket, &mut held) {
        seen.lock().expect("no test panics with it").push(request.clone());
        if !answer(&request, &mut socket) {
            return;
        }
    }
}

/// Reads one request: its head, and the body that `Content-Length` or `chunked` announce.
fn read_request(socket: &mut TcpStream, held: &mut Vec<u8>) -> Option<Vec<u8>> {
    let end = loop {
        if let Some(at) = held.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        read_more(socket, held)?;
    };
    let head = String::from_utf8_lossy(&held[..end]).to_ascii_lowercase();
    let field = |name: &str| {
        head.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
    };
    let length = if let Some(length) = field("content-length:") {
        end + length.parse::<usize>().ok()?
    } else if field("transfer-encoding:").is_some() {
        loop {
            if held[end..].windows(5).any(|five| five == b"0\r\n\r\n") {
                let at = held[end..].windows(5).position(|five| five == b"0\r\n\r\n")?;
                break end + at + 5;
            }
            // Trailers: the last chunk is not followed by the empty line at once.
            if held[end..].windows(3).any(|three| three == b"0\r\n") && held.ends_with(b"\r\n\r\n")
            {
                break held.len();
            }
            read_more(socket, held)?;
        }
    } else {
        end
    };
    while held.len() < length {
        read_more(socket, held)?;
    }
    Some(held.drain(..length).collect())
}

fn read_more(socket: &mut TcpStream, held: &mut Vec<u8>) -> Option<()> {
    let mut buffer = [0; 16 * 1024];
    let count = socket.read(&mut buffer).ok().filter(|count| *count > 0)?;
    held.extend_from_slice(&buffer[..count]);
    Some(())
}
