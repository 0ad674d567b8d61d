//! An upstream that sees raw bytes and answers with raw bytes.
#![allow(dead_code, reason = "a kit: no suite uses all of it")]

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

/// What an upstream has received: one entry a request, head and body as they came.
pub(crate) type Seen = Arc<Mutex<Vec<Vec<u8>>>>;

/// An upstream on a free port, for the life of the test process.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    seen: Seen,
    raw: Arc<Mutex<Vec<u8>>>,
    connections: Arc<AtomicUsize>,
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
        Self::on_each(move |socket, seen, raw| converse(socket, &answer, seen, raw))
    }

    fn on_each(serve: impl Fn(TcpStream, &Seen, &Mutex<Vec<u8>>) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let (seen, raw, connections) = (Seen::default(), Arc::default(), Arc::default());
        let serve = Arc::new(serve);
        let own = Self { address, seen, raw, connections };
        let (seen, raw, connections) = (own.seen.clone(), own.raw.clone(), own.connections.clone());
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                connections.fetch_add(1, Ordering::SeqCst);
                let (serve, seen, raw) = (serve.clone(), seen.clone(), raw.clone());
                thread::spawn(move || serve(socket, &seen, &raw));
            }
        });
        own
    }

    /// Hands each connection to `converse`, which says and reads what it likes.
    pub(crate) fn raw_with(converse: impl Fn(&mut TcpStream) + Send + Sync + 'static) -> Self {
        Self::on_each(move |mut socket, _, _| converse(&mut socket))
    }

    /// Reads all and answers nothing.
    pub(crate) fn silent() -> Self {
        Self::raw_with(|socket| {
            read_until_closed(socket);
        })
    }

    /// Every byte that has been received so far, whole requests or not.
    pub(crate) fn raw(&self) -> Vec<u8> {
        self.raw.lock().expect("no test panics with it").clone()
    }

    /// How many connections have been accepted.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
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

fn converse(mut socket: TcpStream, answer: &Answer, seen: &Seen, raw: &Mutex<Vec<u8>>) {
    let _ = socket.set_read_timeout(Some(Duration::from_secs(20)));
    let _ = socket.set_nodelay(true);
    let mut held = Vec::new();
    while let Some(request) = read_request(&mut socket, &mut held, raw) {
        seen.lock().expect("no test panics with it").push(request.clone());
        if !answer(&request, &mut socket) {
            return;
        }
    }
}

/// Reads one request: its head, and the body that `Content-Length` or `chunked` announce.
fn read_request(
    socket: &mut TcpStream,
    held: &mut Vec<u8>,
    raw: &Mutex<Vec<u8>>,
) -> Option<Vec<u8>> {
    let mut read_more = |held: &mut Vec<u8>| {
        let before = held.len();
        let more = read_more(socket, held);
        raw.lock().expect("no test panics with it").extend_from_slice(&held[before..]);
        more
    };
    let end = loop {
        if let Some(at) = held.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        read_more(held)?;
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
            read_more(held)?;
        }
    } else {
        end
    };
    while held.len() < length {
        read_more(held)?;
    }
    Some(held.drain(..length).collect())
}

/// Reads and forgets until the other side closes; says how many bytes came.
pub(crate) fn read_until_closed(socket: &mut TcpStream) -> usize {
    let mut buffer = [0; 16 * 1024];
    let mut sum = 0;
    while let Some(count) = socket.read(&mut buffer).ok().filter(|count| *count > 0) {
        sum += count;
    }
    sum
}

fn read_more(socket: &mut TcpStream, held: &mut Vec<u8>) -> Option<()> {
    let mut buffer = [0; 16 * 1024];
    let count = socket.read(&mut buffer).ok().filter(|count| *count > 0)?;
    held.extend_from_slice(&buffer[..count]);
    Some(())
}
