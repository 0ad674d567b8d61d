//! The load generator: persistent connections, each with at most one request in flight. In a closed
//! loop ([`Load::run`]) each response triggers the next request; in an open loop ([`Load::run_at`])
//! requests are sent at a fixed rate, however long responses take. [`IdleConnections`] send at most
//! one request each.

use std::{
    collections::{BTreeMap, VecDeque},
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use tidegate::clock::instant;

use super::{cpu, origin, poll::Poll, response};

/// The request: no body, and only headers that every client sends.
const REQUEST: &[u8] = b"GET /items/1 HTTP/1.1\r\n\
    Host: bench.example\r\n\
    User-Agent: side-by-side\r\n\
    Accept: */*\r\n\r\n";

/// The largest response, in bytes.
const BUFFER: usize = 8 * 1024;

/// A bounded amount of traffic.
pub struct Load {
    /// The process under test; on loopback.
    pub target: SocketAddr,
    /// The number of persistent connections.
    pub connections: usize,
    /// The number of requests, over all connections.
    pub requests: u64,
    /// Time limit for all responses.
    pub within: Duration,
}

/// The result of a closed loop.
pub struct Tally {
    /// Responses by status.
    pub statuses: BTreeMap<u16, u64>,
    /// The time from the first request to the last response.
    pub took: Duration,
}

/// Idle connections, closed when dropped.
pub struct IdleConnections(Vec<TcpStream>);

/// One connection.
struct Connection {
    stream: TcpStream,
    buffer: Box<[u8; BUFFER]>,
    filled: usize,
}

impl Load {
    /// Sends all requests from a thread of its own and waits for all responses.
    ///
    /// # Errors
    ///
    /// A connection is closed, a response is not HTTP/1.1, a 200's body has a wrong length, or the
    /// time limit is exceeded.
    pub fn run(&self) -> Result<Tally> {
        self.run_with(REQUEST)
    }

    /// [`Self::run`] with another request, which has no body.
    ///
    /// # Errors
    ///
    /// Those of [`Self::run`].
    pub fn run_with(&self, request: &[u8]) -> Result<Tally> {
        self.run_each(|_, bytes| bytes.extend_from_slice(request))
    }

    /// [`Self::run`] with a request of its own each time: `write` adds the one of this number, from
    /// 0, to an empty buffer.
    ///
    /// # Errors
    ///
    /// Those of [`Self::run`].
    pub fn run_each(&self, write: impl Fn(u64, &mut Vec<u8>) + Sync) -> Result<Tally> {
        ensure!(self.target.ip().is_loopback(), "loopback only");
        thread::scope(|scope| {
            let driver = scope.spawn(|| {
                cpu::pin(cpu::LOAD_CPU);
                self.drive(&write)
            });
            driver.join().map_err(|_| anyhow!("the load generator panicked"))?
        })
    }

    /// Sends a request every `1 / rate` seconds, for all of `requests`. Returns the sorted
    /// latencies, each from the time at which the request was due: waiting for a free connection
    /// counts.
    ///
    /// # Errors
    ///
    /// Those of [`Self::run`], or if a status is not 200.
    pub fn run_at(&self, rate: f64) -> Result<Vec<Duration>> {
        thread::scope(|scope| {
            let driver = scope.spawn(|| {
                cpu::pin(cpu::LOAD_CPU);
                self.drive_at(rate)
            });
            driver.join().map_err(|_| anyhow!("the load generator panicked"))?
        })
    }

    fn open(&self, poll: &Poll) -> Result<Vec<Connection>> {
        let mut connections = Vec::with_capacity(self.connections);
        for index in 0..self.connections {
            let connection = Connection::open(self.target)?;
            poll.add(&connection.stream, index as u64)?;
            connections.push(connection);
        }
        Ok(connections)
    }

    fn drive_at(&self, rate: f64) -> Result<Vec<Duration>> {
        let mut poll = Poll::new(self.connections)?;
        let mut connections = self.open(&poll)?;
        let mut free: VecDeque<usize> = (0..connections.len()).collect();
        let mut due_of = vec![Duration::ZERO; connections.len()];
        let mut latencies = Vec::with_capacity(self.requests as usize);
        let (start, mut sent) = (instant(), 0);
        while latencies.len() < self.requests as usize {
            ensure!(
                start.elapsed() < self.within,
                "{} responses in {:?}",
                latencies.len(),
                self.within
            );
            while sent < self.requests {
                let due = Duration::from_secs_f64(sent as f64 / rate);
                if due > start.elapsed() {
                    break;
                }
                let Some(index) = free.pop_front() else { break };
                connections[index].send(REQUEST)?;
                due_of[index] = due;
                sent += 1;
            }
            for index in poll.poll_once()? {
                let index = index as usize;
                if let Some(status) = connections[index].receive()? {
                    ensure!(status == 200, "a response of status {status}");
                    latencies.push(start.elapsed().saturating_sub(due_of[index]));
                    free.push_back(index);
                }
            }
        }
        latencies.sort_unstable();
        Ok(latencies)
    }

    /// The closed loop.
    fn drive(&self, write: &impl Fn(u64, &mut Vec<u8>)) -> Result<Tally> {
        let mut poll = Poll::new(self.connections)?;
        let mut connections = self.open(&poll)?;
        let start = instant();
        let (mut sent, mut answered) = (0, 0);
        let mut request = Vec::new();
        let mut send = |connection: &mut Connection, number| {
            request.clear();
            write(number, &mut request);
            connection.send(&request)
        };
        for connection in connections.iter_mut().take(self.requests as usize) {
            send(connection, sent)?;
            sent += 1;
        }
        let mut statuses = BTreeMap::new();
        while answered < self.requests {
            ensure!(start.elapsed() < self.within, "{answered} responses in {:?}", self.within);
            for index in poll.wait()? {
                let connection = &mut connections[index as usize];
                let Some(status) = connection.receive()? else { continue };
                *statuses.entry(status).or_default() += 1;
                answered += 1;
                if sent < self.requests {
                    send(connection, sent)?;
                    sent += 1;
                }
            }
        }
        Ok(Tally { statuses, took: start.elapsed() })
    }
}

impl IdleConnections {
    /// Opens `count` connections to `target`. Each sends one request, `concurrency` at a time; with
    /// 0, none is sent.
    ///
    /// # Errors
    ///
    /// Those of [`Load::run`], or if a status is not 200.
    pub fn open(target: SocketAddr, count: usize, concurrency: usize) -> Result<Self> {
        let mut streams = Vec::with_capacity(count);
        while streams.len() < count {
            let connections = concurrency.clamp(1, count - streams.len());
            let mut connections =
                (0..connections).map(|_| Connection::open(target)).collect::<Result<Vec<_>>>()?;
            if concurrency > 0 {
                connections.iter_mut().try_for_each(|connection| connection.send(REQUEST))?;
                for connection in &mut connections {
                    let status = loop {
                        if let Some(status) = connection.receive()? {
                            break status;
                        }
                    };
                    ensure!(status == 200, "a response of status {status}");
                }
            }
            streams.extend(connections.into_iter().map(|connection| connection.stream));
        }
        Ok(Self(streams))
    }

    /// The number of connections.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

impl Connection {
    fn open(target: SocketAddr) -> Result<Self> {
        let stream =
            TcpStream::connect(target).context("the process under test does not accept")?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Box::new([0; BUFFER]), filled: 0 })
    }

    fn send(&mut self, request: &[u8]) -> Result<()> {
        self.stream.write_all(request).context("the process under test closed a kept connection")
    }

    /// Reads what is available: the status, once the response is complete.
    fn receive(&mut self) -> Result<Option<u16>> {
        let read = self.stream.read(&mut self.buffer[self.filled..])?;
        ensure!(
            read > 0,
            "the process under test closed a kept connection, or its response is too long"
        );
        self.filled += read;
        let Some(response) = response::parse(&self.buffer[..self.filled])? else { return Ok(None) };
        ensure!(response.wire == self.filled, "bytes after the response");
        ensure!(
            response.status != 200 || response.content == origin::CONTENT_LENGTH,
            "a 200 of {} bytes instead of {}",
            response.content,
            origin::CONTENT_LENGTH
        );
        self.filled = 0;
        Ok(Some(response.status))
    }
}
