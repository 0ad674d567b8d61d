//! The upstream: one thread that answers each request with the same 100 bytes.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use anyhow::Result;
use socket2::{Domain, Socket, Type};

use super::{cpu, poll::Poll};

/// Body length of each response, in bytes.
pub(super) const CONTENT_LENGTH: usize = 100;

/// The head of the response. Its `Content-Length` is [`CONTENT_LENGTH`].
const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\n\
    Server: origin\r\n\
    Date: Thu, 01 Jan 2026 00:00:00 GMT\r\n\
    Content-Type: text/plain\r\n\
    Content-Length: 100\r\n\r\n";

/// Length of the accept queue: a burst of connections must not be refused.
const BACKLOG: i32 = 4096;
/// The listener's token; a connection's token is its index.
const LISTENER: u64 = u64::MAX;

/// A running upstream. It lives as long as the process.
pub struct Origin {
    address: SocketAddr,
    answered: Arc<AtomicU64>,
}

/// One persistent connection.
struct Connection {
    stream: TcpStream,
    /// The part of an incomplete head that has arrived.
    partial: Vec<u8>,
}

/// The state of the serving thread.
struct Server {
    poll: Poll,
    listener: TcpListener,
    connections: Vec<Option<Connection>>,
    response: Vec<u8>,
    answered: Arc<AtomicU64>,
}

impl Origin {
    /// Listens on a free port of loopback and serves from a thread of its own.
    ///
    /// # Errors
    ///
    /// No socket can be opened.
    pub fn start() -> Result<Self> {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        listener.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
        listener.listen(BACKLOG)?;
        let listener = TcpListener::from(listener);
        let address = listener.local_addr()?;
        let answered = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&answered);
        thread::spawn(move || {
            cpu::pin(cpu::LOAD_CPU);
            let served = Server::new(listener, counted).and_then(|mut server| server.serve());
            #[expect(clippy::print_stderr, reason = "a benchmark's output")]
            if let Err(error) = served {
                eprintln!("the upstream failed: {error:#}");
            }
        });
        Ok(Self { address, answered })
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Requests answered so far.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }
}

impl Server {
    fn new(listener: TcpListener, answered: Arc<AtomicU64>) -> Result<Self> {
        let poll = Poll::new(256)?;
        poll.add(&listener, LISTENER)?;
        let response = [HEAD, &[b'x'; CONTENT_LENGTH]].concat();
        Ok(Self { poll, listener, connections: Vec::new(), response, answered })
    }

    fn serve(&mut self) -> Result<()> {
        let mut ready = Vec::new();
        loop {
            ready.extend(self.poll.wait()?);
            for token in ready.drain(..) {
                match token {
                    LISTENER => self.accept()?,
                    index => self.answer(index as usize),
                }
            }
        }
    }

    fn accept(&mut self) -> Result<()> {
        let (stream, _) = self.listener.accept()?;
        stream.set_nodelay(true)?;
        let free = self.connections.iter().position(Option::is_none);
        let index = free.unwrap_or(self.connections.len());
        self.poll.add(&stream, index as u64)?;
        let connection = Some(Connection { stream, partial: Vec::new() });
        match self.connections.get_mut(index) {
            Some(slot) => *slot = connection,
            None => self.connections.push(connection),
        }
        Ok(())
    }

    /// Answers a readable connection; a closed or failed one is dropped.
    fn answer(&mut self, index: usize) {
        let Some(connection) = &mut self.connections[index] else { return };
        match connection.read_request() {
            Ok(false) => {}
            Ok(true) if connection.stream.write_all(&self.response).is_ok() => {
                self.answered.fetch_add(1, Ordering::Relaxed);
            }
            Ok(true) | Err(_) => self.connections[index] = None,
        }
    }
}

impl Connection {
    /// Reads the available bytes. True if they complete a request. Requests have no bodies and are
    /// not pipelined.
    fn read_request(&mut self) -> std::io::Result<bool> {
        let mut buffer = [0; 4096];
        let read = self.stream.read(&mut buffer)?;
        if read == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if self.partial.is_empty() && buffer[..read].ends_with(b"\r\n\r\n") {
            return Ok(true);
        }
        self.partial.extend_from_slice(&buffer[..read]);
        let is_complete = self.partial.ends_with(b"\r\n\r\n");
        if is_complete {
            self.partial.clear();
        }
        Ok(is_complete)
    }
}
