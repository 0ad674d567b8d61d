//! The upstreams of the part `protocols`: one of HTTP/1 with long bodies and tunnels, one of HTTP/2
//! with unary calls of gRPC.
//!
//! One thread serves both. Like the upstream of `testkit`, it polls for a while before it sleeps:
//! waking an idle core would cost the contestant several microseconds.

use std::{
    cell::Cell,
    io,
    net::SocketAddr,
    rc::Rc,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use h2::{
    RecvStream, SendStream,
    server::{Builder, SendResponse},
};
use http::{HeaderMap, HeaderValue, Request, Response};
use memchr::memmem;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::{LocalSet, spawn_local, yield_now},
};

use testkit::load::cpu;

use crate::scenario::Work;

/// Body length of a short response, in bytes.
const SHORT: usize = 100;
/// The body of a long response.
static LONG_BODY: [u8; 1 << 20] = [b'x'; 1 << 20];
/// The length of [`page`], in bytes.
pub(crate) const PAGE: usize = 16 * 1024;
/// How a request for [`page`] begins.
const PAGE_REQUEST: &str = "get /items/page ";

/// A list of items as JSON, as an API returns it.
fn page() -> &'static [u8] {
    static PAGE_BODY: OnceLock<Vec<u8>> = OnceLock::new();
    PAGE_BODY.get_or_init(|| {
        let item = |at: u64| {
            let hash = at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            format!(
                "{{\"id\":{at},\"name\":\"item {at}\",\"price\":{},\"stock\":{},\"sku\":\"{hash:016x}\",\
                 \"tags\":[\"new\",\"sale\"]}},\n",
                hash >> 52,
                hash >> 58
            )
        };
        let mut body: Vec<u8> = (0..).flat_map(|at| item(at).into_bytes()).take(PAGE).collect();
        (body[0], body[PAGE - 1]) = (b'[', b']');
        body
    })
}

/// The message of a call of gRPC: not compressed, 100 bytes.
pub(crate) const GRPC_MESSAGE: [u8; 105] = {
    let mut message = [b'x'; 105];
    (message[0], message[1], message[2], message[3], message[4]) = (0, 0, 0, 0, 100);
    message
};

/// The response that begins a tunnel.
const SWITCHING: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\n\
    Connection: Upgrade\r\n\
    Upgrade: websocket\r\n\
    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// Most bytes of one read.
const READ_SIZE: usize = 64 * 1024;
/// Polls without any work before the thread sleeps: over a millisecond.
const SPINS: usize = 4_000;
/// Bytes that a gateway may send ahead, on one stream and on a connection.
const WINDOWS: (u32, u32) = (1 << 20, 16 << 20);

/// The running upstreams. They live as long as the process.
pub(crate) struct Origins {
    http1: SocketAddr,
    http2: SocketAddr,
    answered: Arc<AtomicU64>,
}

/// The state of the serving thread.
struct Server {
    answered: Arc<AtomicU64>,
    /// Changes with each piece of work.
    activity: Cell<u64>,
    wake: Notify,
}

impl Origins {
    /// Listens on free ports of loopback and serves from a thread of its own.
    ///
    /// # Errors
    ///
    /// If no socket can be opened.
    pub(crate) fn start() -> Result<Self> {
        let (bound, binding) = mpsc::channel();
        let answered = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&answered);
        thread::spawn(move || {
            cpu::pin(cpu::LOAD_CPU);
            let served = serve(&bound, counted);
            if let Err(error) = served {
                eprintln!("the upstreams failed: {error:#}");
            }
        });
        let (http1, http2) = binding.recv().context("the upstreams do not listen")?;
        Ok(Self { http1, http2, answered })
    }

    /// The address for this work.
    pub(crate) fn address(&self, work: Work) -> SocketAddr {
        if work.needs_http2_upstream() { self.http2 } else { self.http1 }
    }

    /// Requests answered so far.
    pub(crate) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }
}

fn serve(bound: &mpsc::Sender<(SocketAddr, SocketAddr)>, answered: Arc<AtomicU64>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let (activity, wake) = (Cell::new(0), Notify::new());
    let server = Rc::new(Server { answered, activity, wake });
    LocalSet::new().block_on(&runtime, async move {
        let http1 = TcpListener::bind("127.0.0.1:0").await?;
        let http2 = TcpListener::bind("127.0.0.1:0").await?;
        bound.send((http1.local_addr()?, http2.local_addr()?))?;
        spawn_local(spin(Rc::clone(&server)));
        loop {
            let (socket, is_http2) = tokio::select! {
                accepted = http1.accept() => (accepted?.0, false),
                accepted = http2.accept() => (accepted?.0, true),
            };
            socket.set_nodelay(true)?;
            let server = Rc::clone(&server);
            // A contestant that stops closes its connections at any time.
            spawn_local(async move {
                if is_http2 {
                    let _ = serve_http2(&server, socket).await;
                } else {
                    let _ = serve_http1(&server, socket).await;
                }
            });
        }
    })
}

/// Keeps the thread from sleeping while there is work.
async fn spin(server: Rc<Server>) {
    loop {
        let (mut seen, mut idle) = (server.activity.get(), 0);
        while idle < SPINS {
            yield_now().await;
            thread::yield_now();
            idle = if server.activity.get() == seen { idle + 1 } else { 0 };
            seen = server.activity.get();
        }
        server.wake.notified().await;
    }
}

impl Server {
    fn note_activity(&self) {
        self.activity.set(self.activity.get() + 1);
        self.wake.notify_one();
    }

    fn count(&self) {
        self.answered.fetch_add(1, Ordering::Relaxed);
    }
}

/// Answers a POST with 100 bytes, a GET with 1 MiB, and begins a tunnel that echoes if it is asked
/// for.
async fn serve_http1(server: &Server, mut socket: TcpStream) -> io::Result<()> {
    let mut received = Vec::new();
    loop {
        let Some(end) = memmem::find(&received, b"\r\n\r\n") else {
            if read(server, &mut socket, &mut received).await? == 0 {
                return Ok(());
            }
            continue;
        };
        let head = String::from_utf8_lossy(&received[..end + 2]).to_ascii_lowercase();
        received.drain(..end + 4);
        if head.contains("\r\nupgrade: websocket\r\n") {
            socket.write_all(SWITCHING).await?;
            server.count();
            return echo(server, socket, received).await;
        }
        if head.starts_with(PAGE_REQUEST) {
            write_response(&mut socket, "application/json", page()).await?;
            server.count();
            continue;
        }
        if !head.starts_with("post ") {
            write_response(&mut socket, "text/plain", &LONG_BODY).await?;
            server.count();
            continue;
        }
        let length = head.split("\r\n").find_map(|line| line.strip_prefix("content-length:"));
        let length = length.and_then(|length| length.trim().parse::<usize>().ok());
        let length = length.ok_or(io::ErrorKind::InvalidData)?;
        let mut count = received.len();
        while count < length {
            received.clear();
            count += match read(server, &mut socket, &mut received).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => read,
            };
        }
        received.clear();
        write_response(&mut socket, "text/plain", &LONG_BODY[..SHORT]).await?;
        server.count();
    }
}

/// Reads what is available, at most [`READ_SIZE`]; 0 at the end.
async fn read(
    server: &Server,
    socket: &mut TcpStream,
    received: &mut Vec<u8>,
) -> io::Result<usize> {
    received.reserve(READ_SIZE);
    let count = socket.read_buf(received).await?;
    server.note_activity();
    Ok(count)
}

async fn write_response(socket: &mut TcpStream, kind: &str, body: &[u8]) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nServer: origin\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\n\
         Content-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all(head.as_bytes()).await?;
    socket.write_all(body).await
}

/// Sends back what it receives. An idle tunnel holds no memory here.
async fn echo(server: &Server, mut socket: TcpStream, mut bytes: Vec<u8>) -> io::Result<()> {
    loop {
        socket.write_all(&bytes).await?;
        drop(bytes);
        socket.readable().await?;
        bytes = Vec::new();
        if read(server, &mut socket, &mut bytes).await? == 0 {
            return Ok(());
        }
    }
}

/// Answers a call of gRPC with a message, and other requests with 100 bytes.
async fn serve_http2(server: &Rc<Server>, socket: TcpStream) -> Result<(), h2::Error> {
    let mut builder = Builder::new();
    builder.initial_window_size(WINDOWS.0).initial_connection_window_size(WINDOWS.1);
    builder.max_concurrent_streams(1024);
    let mut connection = builder.handshake::<_, Bytes>(socket).await?;
    while let Some(request) = connection.accept().await {
        let (request, respond) = request?;
        server.note_activity();
        if request.body().is_end_stream() {
            answer(server, respond)?;
        } else {
            let server = Rc::clone(server);
            spawn_local(async move {
                // The gateway may have reset the stream.
                let _ = answer_call(&server, request, respond).await;
            });
        }
    }
    Ok(())
}

fn answer(server: &Server, respond: SendResponse<Bytes>) -> Result<(), h2::Error> {
    let mut stream = start(respond, "text/plain", Some(SHORT))?;
    stream.send_data(Bytes::from_static(&LONG_BODY[..SHORT]), true)?;
    server.count();
    Ok(())
}

async fn answer_call(
    server: &Server,
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
) -> Result<(), h2::Error> {
    let mut body = request.into_body();
    while let Some(data) = body.data().await {
        body.flow_control().release_capacity(data?.len())?;
    }
    let mut stream = start(respond, "application/grpc", None)?;
    stream.send_data(Bytes::from_static(&GRPC_MESSAGE), false)?;
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    stream.send_trailers(trailers)?;
    server.count();
    Ok(())
}

fn start(
    mut respond: SendResponse<Bytes>,
    kind: &'static str,
    length: Option<usize>,
) -> Result<SendStream<Bytes>, h2::Error> {
    let mut response = Response::new(());
    let headers = response.headers_mut();
    headers.insert("server", HeaderValue::from_static("origin"));
    headers.insert("date", HeaderValue::from_static("Thu, 01 Jan 2026 00:00:00 GMT"));
    headers.insert("content-type", HeaderValue::from_static(kind));
    if let Some(length) = length {
        headers.insert("content-length", length.into());
    }
    respond.send_response(response, false)
}
