//! A client that sends requests at a fixed rate, whether or not earlier ones are answered.

use std::{
    cell::RefCell,
    io::ErrorKind,
    net::SocketAddr,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use memchr::memmem;
use tidegate::clock;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    runtime,
    task::LocalSet,
};

use super::message::{body, header, mix};

/// Maximum number of bytes that the client reads of a response.
const MAX_RESPONSE: usize = 256 * 1024;

/// The mean number of requests per POST.
const POST_EVERY: u64 = 10;

/// Ids of this process, so that no two runs have one in common.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A sent request and its outcome.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// The time at which it was due.
    pub due: Instant,
    /// From `due` to its end.
    pub latency: Duration,
    /// Its method.
    pub request: Request,
    /// Its outcome.
    pub end: End,
}

/// The method of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Request {
    /// Idempotent, without a body.
    Get,
    /// Not idempotent, with a body.
    Post,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum End {
    /// The complete response to this request.
    Whole,
    /// A status other than 200.
    Status(u16),
    /// By the response's framing, the connection ended before its end.
    Broken,
    /// The response was incomplete at the client's timeout.
    Timeout,
    /// The response was longer than the client accepts.
    TooLong,
    /// A body that is complete by its framing but lacks a part.
    TruncatedAsWhole,
    /// A head or a body of another request's response.
    Foreign,
}

/// A running client, in a thread of its own.
pub struct Load {
    stop: Arc<AtomicBool>,
    whole_posts: Arc<AtomicU64>,
    thread: JoinHandle<Vec<Outcome>>,
}

/// The state that a client's requests share.
struct Site {
    gateway: SocketAddr,
    timeout: Duration,
    idle: RefCell<Vec<TcpStream>>,
    outcomes: RefCell<Vec<Outcome>>,
    whole_posts: Arc<AtomicU64>,
}

impl Load {
    /// Sends `rate` requests a second, a tenth of them POSTs. A request fails after `timeout`.
    pub fn start(gateway: SocketAddr, rate: u32, timeout: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let whole_posts = Arc::new(AtomicU64::new(0));
        let counted = whole_posts.clone();
        let thread = thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build();
            let site = Site {
                gateway,
                timeout,
                idle: RefCell::default(),
                outcomes: RefCell::default(),
                whole_posts: counted,
            };
            let run = run(Rc::new(site), Duration::from_secs(1) / rate, stopped);
            LocalSet::new().block_on(&runtime.expect("a runtime"), run)
        });
        Self { stop, whole_posts, thread }
    }

    /// The POSTs that have ended with [`End::Whole`] so far.
    pub fn whole_posts(&self) -> u64 {
        self.whole_posts.load(Ordering::Relaxed)
    }

    /// Stops sending, waits for the end of all sent requests, and returns their outcomes.
    pub fn finish(self) -> Vec<Outcome> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("no panic")
    }
}

async fn run(site: Rc<Site>, interval: Duration, stop: Arc<AtomicBool>) -> Vec<Outcome> {
    let start = clock::instant();
    let mut tasks = Vec::new();
    for turn in 0.. {
        let due = start + interval * turn;
        tokio::time::sleep_until(due.into()).await;
        if stop.load(Ordering::Relaxed) {
            break;
        }
        tasks.push(tokio::task::spawn_local(send(site.clone(), due)));
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    site.outcomes.take()
}

async fn send(site: Rc<Site>, due: Instant) {
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    let request =
        if (mix(id) >> 8).is_multiple_of(POST_EVERY) { Request::Post } else { Request::Get };
    let end = tokio::time::timeout(site.timeout, exchange(&site, request, id)).await;
    let end = end.unwrap_or(End::Timeout);
    if request == Request::Post && end == End::Whole {
        site.whole_posts.fetch_add(1, Ordering::Relaxed);
    }
    let outcome = Outcome { due, latency: due.elapsed(), request, end };
    site.outcomes.borrow_mut().push(outcome);
}

async fn exchange(site: &Site, request: Request, id: u64) -> End {
    let mut stream = match site.connection().await {
        Ok(stream) => stream,
        Err(end) => return end,
    };
    let message = match request {
        Request::Get => format!("GET /items/{id:016x} HTTP/1.1\r\nHost: faults.test\r\n\r\n"),
        Request::Post => format!(
            "POST /items/{id:016x} HTTP/1.1\r\nHost: faults.test\r\nContent-Length: 16\r\n\r\n{id:016x}"
        ),
    };
    if stream.write_all(message.as_bytes()).await.is_err() {
        return End::Broken;
    }
    let mut received = Vec::new();
    loop {
        let read = stream.read_buf(&mut received).await;
        let is_at_end = !read.is_ok_and(|count| count > 0);
        match Response::parse(&received, is_at_end) {
            Some(response) => {
                let end = response.judge(id, received.len());
                if response.is_kept && end != End::Foreign && !is_at_end {
                    site.idle.borrow_mut().push(stream);
                }
                return end;
            }
            None if is_at_end => return End::Broken,
            None if received.len() > MAX_RESPONSE => return End::TooLong,
            None => {}
        }
    }
}

impl Site {
    /// An idle connection, or a new one.
    async fn connection(&self) -> Result<TcpStream, End> {
        loop {
            let Some(stream) = self.idle.borrow_mut().pop() else { break };
            match stream.try_read(&mut [0]) {
                // The gateway has closed it.
                Ok(0) => {}
                // The surplus of an earlier response.
                Ok(_) => return Err(End::Foreign),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(stream),
                Err(_) => {}
            }
        }
        TcpStream::connect(self.gateway).await.map_err(|_| End::Broken)
    }
}

/// A response that is complete by its framing.
struct Response {
    status: u16,
    id: Option<u64>,
    body: Vec<u8>,
    /// Length of head and body on the wire, in bytes.
    length: usize,
    is_kept: bool,
}

impl Response {
    /// `None` if a part is missing. `is_at_end`: the connection has ended.
    fn parse(received: &[u8], is_at_end: bool) -> Option<Self> {
        let head_end = memmem::find(received, b"\r\n\r\n")? + 4;
        let head = String::from_utf8_lossy(&received[..head_end]).to_ascii_lowercase();
        let status = head.split(' ').nth(1)?.parse().ok()?;
        let rest = &received[head_end..];
        let (body, length) = if let Some(length) = header(&head, "content-length") {
            let length: usize = length.parse().ok()?;
            (rest.get(..length)?.to_vec(), length)
        } else if header(&head, "transfer-encoding").is_some() {
            unchunk(rest)?
        } else if is_at_end {
            (rest.to_vec(), rest.len())
        } else {
            return None;
        };
        let id = header(&head, "x-id").and_then(|id| u64::from_str_radix(id, 16).ok());
        let is_kept = header(&head, "connection") != Some("close");
        Some(Self { status, id, body, length: head_end + length, is_kept })
    }

    fn judge(&self, id: u64, received: usize) -> End {
        let expected = body(id);
        if received > self.length || self.id.is_some_and(|own| own != id) {
            return End::Foreign;
        }
        match self.status {
            200 if self.id.is_none() => End::Foreign,
            200 if self.body == expected => End::Whole,
            200 if expected.starts_with(&self.body) => End::TruncatedAsWhole,
            200 => End::Foreign,
            status => End::Status(status),
        }
    }
}

/// Decodes a chunked body. Returns the content and the length on the wire; `None` if a part is
/// missing.
fn unchunk(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    let (mut body, mut at) = (Vec::new(), 0);
    loop {
        let line = at + memmem::find(&bytes[at..], b"\r\n")?;
        let size = std::str::from_utf8(&bytes[at..line]).ok()?;
        let size = usize::from_str_radix(size.split(';').next()?.trim(), 16).ok()?;
        let end = line + 2 + size;
        if bytes.len() < end + 2 {
            return None;
        }
        body.extend(&bytes[line + 2..end]);
        at = end + 2;
        if size == 0 {
            return Some((body, at));
        }
    }
}
