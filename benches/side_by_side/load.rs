//! The client: a closed loop of kept-alive connections, each with one request in flight.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};

use crate::{answer, cpus, origin, poll::Poll};

/// What every client sends. No body, and only headers that every client sends.
const REQUEST: &[u8] = b"GET /items/1 HTTP/1.1\r\n\
    Host: bench.example\r\n\
    User-Agent: side-by-side\r\n\
    Accept: */*\r\n\r\n";

/// Room for one answer.
const BUFFER: usize = 8 * 1024;

/// A bounded amount of traffic.
pub(crate) struct Load {
    /// The contestant; on loopback.
    pub(crate) target: SocketAddr,
    /// Connections, each opened once and kept.
    pub(crate) connections: usize,
    /// Requests over all connections.
    pub(crate) requests: u64,
    /// Not answered in this time: an error.
    pub(crate) within: Duration,
}

/// What came back.
pub(crate) struct Tally {
    /// How often each status was answered.
    pub(crate) statuses: BTreeMap<u16, u64>,
    /// From the first request to the last answer.
    pub(crate) took: Duration,
}

/// One connection.
struct Lane {
    stream: TcpStream,
    buffer: Box<[u8; BUFFER]>,
    filled: usize,
}

impl Load {
    /// Sends all requests from a thread of its own and waits for all answers.
    ///
    /// Errors: a closed connection, an answer that is not HTTP/1.1 or has a 200's body of a wrong
    /// length, or the time is over.
    pub(crate) fn run(&self) -> Result<Tally> {
        ensure!(self.target.ip().is_loopback(), "loopback only");
        thread::scope(|scope| {
            let driver = scope.spawn(|| {
                cpus::pin(cpus::SURROUNDINGS);
                self.drive()
            });
            driver.join().map_err(|_| anyhow!("the load generator panicked"))?
        })
    }

    /// The closed loop.
    fn drive(&self) -> Result<Tally> {
        let mut poll = Poll::new(self.connections)?;
        let mut lanes = Vec::with_capacity(self.connections);
        for index in 0..self.connections {
            let lane = Lane::open(self.target)?;
            poll.add(&lane.stream, index as u64)?;
            lanes.push(lane);
        }

        let start = Instant::now();
        let (mut asked, mut answered) = (0, 0);
        for lane in lanes.iter_mut().take(self.requests as usize) {
            lane.ask()?;
            asked += 1;
        }
        let mut statuses = BTreeMap::new();
        while answered < self.requests {
            ensure!(start.elapsed() < self.within, "{answered} answers in {:?}", self.within);
            for index in poll.wait()? {
                let lane = &mut lanes[index as usize];
                let Some(status) = lane.hear()? else { continue };
                *statuses.entry(status).or_default() += 1;
                answered += 1;
                if asked < self.requests {
                    lane.ask()?;
                    asked += 1;
                }
            }
        }
        Ok(Tally { statuses, took: start.elapsed() })
    }
}

impl Lane {
    fn open(target: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(target).context("the contestant does not accept")?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Box::new([0; BUFFER]), filled: 0 })
    }

    fn ask(&mut self) -> Result<()> {
        self.stream.write_all(REQUEST).context("the contestant closed a kept connection")
    }

    /// Reads what is there: the status, once the answer is whole.
    fn hear(&mut self) -> Result<Option<u16>> {
        let read = self.stream.read(&mut self.buffer[self.filled..])?;
        ensure!(read > 0, "the contestant closed a kept connection, or its answer is too long");
        self.filled += read;
        let Some(answer) = answer::read(&self.buffer[..self.filled])? else { return Ok(None) };
        ensure!(answer.wire == self.filled, "bytes after the answer");
        ensure!(
            answer.status != 200 || answer.content == origin::CONTENT,
            "a 200 of {} bytes, sent were {}",
            answer.content,
            origin::CONTENT
        );
        self.filled = 0;
        Ok(Some(answer.status))
    }
}
