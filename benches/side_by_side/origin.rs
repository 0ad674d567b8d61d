//! The upstream: answers each request with the same 100 bytes, as cheaply as one thread can.

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

use crate::{cpus, poll::Poll};

/// Length of the content of each answer, in bytes.
pub(crate) const CONTENT: usize = 100;

/// The whole answer but its content; `CONTENT` is in it.
const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\n\
    Server: origin\r\n\
    Date: Thu, 01 Jan 2026 00:00:00 GMT\r\n\
    Content-Type: text/plain\r\n\
    Content-Length: 100\r\n\r\n";

/// Connections that may wait to be accepted: a burst of them is no failure of the upstream.
const BACKLOG: i32 = 4096;
/// The listener's token; connections have their place in the list.
const LISTENER: u64 = u64::MAX;

/// A running upstream. It lives as long as the process.
pub(crate) struct Origin {
    address: SocketAddr,
    answered: Arc<AtomicU64>,
}

/// One kept connection of a contestant.
struct Connection {
    stream: TcpStream,
    /// The part of a head that came without its end.
    tail: Vec<u8>,
}

/// Everything the serving thread holds.
struct Server {
    poll: Poll,
    listener: TcpListener,
    connections: Vec<Option<Connection>>,
    answer: Vec<u8>,
    answered: Arc<AtomicU64>,
}

impl Origin {
    /// Listens on a free port of loopback and serves from a thread of its own.
    pub(crate) fn start() -> Result<Self> {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        listener.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
        listener.listen(BACKLOG)?;
        let listener = TcpListener::from(listener);
        let address = listener.local_addr()?;
        let answered = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&answered);
        thread::spawn(move || {
            cpus::pin(cpus::SURROUNDINGS);
            let served = Server::new(listener, counted).and_then(|mut server| server.serve());
            if let Err(error) = served {
                eprintln!("the upstream failed: {error:#}");
            }
        });
        Ok(Self { address, answered })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Requests answered so far.
    pub(crate) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }
}

impl Server {
    fn new(listener: TcpListener, answered: Arc<AtomicU64>) -> Result<Self> {
        let poll = Poll::new(256)?;
        poll.add(&listener, LISTENER)?;
        let answer = [HEAD, &[b'x'; CONTENT]].concat();
        Ok(Self { poll, listener, connections: Vec::new(), answer, answered })
    }

    fn serve(&mut self) -> Result<()> {
        let mut ready = Vec::new();
        loop {
            ready.extend(self.poll.wait()?);
            for token in ready.drain(..) {
                match token {
                    LISTENER => self.accept()?,
                    place => self.answer(place as usize),
                }
            }
        }
    }

    fn accept(&mut self) -> Result<()> {
        let (stream, _) = self.listener.accept()?;
        stream.set_nodelay(true)?;
        let free = self.connections.iter().position(Option::is_none);
        let place = free.unwrap_or(self.connections.len());
        self.poll.add(&stream, place as u64)?;
        let connection = Some(Connection { stream, tail: Vec::new() });
        match self.connections.get_mut(place) {
            Some(slot) => *slot = connection,
            None => self.connections.push(connection),
        }
        Ok(())
    }

    /// Answers a connection that has something to read; a closed or failed one is dropped.
    fn answer(&mut self, place: usize) {
        let Some(connection) = &mut self.connections[place] else { return };
        match connection.request_is_whole() {
            Ok(false) => {}
            Ok(true) if connection.stream.write_all(&self.answer).is_ok() => {
                self.answered.fetch_add(1, Ordering::Relaxed);
            }
            Ok(true) | Err(_) => self.connections[place] = None,
        }
    }
}

impl Connection {
    /// Reads what is there: whether it ends a request's head. Requests have no bodies, and a
    /// contestant sends no second one before the answer.
    fn request_is_whole(&mut self) -> std::io::Result<bool> {
        let mut buffer = [0; 4096];
        let read = self.stream.read(&mut buffer)?;
        if read == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if self.tail.is_empty() && buffer[..read].ends_with(b"\r\n\r\n") {
            return Ok(true);
        }
        self.tail.extend_from_slice(&buffer[..read]);
        let whole = self.tail.ends_with(b"\r\n\r\n");
        if whole {
            self.tail.clear();
        }
        Ok(whole)
    }
}
