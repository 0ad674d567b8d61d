//! The client: kept-alive connections, each with one request in flight. As a closed loop
//! ([`Load::run`]) it asks as fast as it is answered; as an open loop ([`Load::run_at`]) at a fixed
//! rate, however long answers take; [`Idle`] connections ask once at the most.

use std::{
    collections::{BTreeMap, VecDeque},
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

/// Connections that wait for nothing, until it is dropped.
pub(crate) struct Idle(Vec<TcpStream>);

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

    /// Sends a request each `1 / rate` seconds, for all of `requests`. Returns how long each took,
    /// sorted, from the time at which it was due: waiting for a free connection counts.
    ///
    /// Errors: as of [`Self::run`], or an answer other than 200.
    pub(crate) fn run_at(&self, rate: f64) -> Result<Vec<Duration>> {
        thread::scope(|scope| {
            let driver = scope.spawn(|| {
                cpus::pin(cpus::SURROUNDINGS);
                self.drive_at(rate)
            });
            driver.join().map_err(|_| anyhow!("the load generator panicked"))?
        })
    }

    fn open(&self, poll: &Poll) -> Result<Vec<Lane>> {
        let mut lanes = Vec::with_capacity(self.connections);
        for index in 0..self.connections {
            let lane = Lane::open(self.target)?;
            poll.add(&lane.stream, index as u64)?;
            lanes.push(lane);
        }
        Ok(lanes)
    }

    fn drive_at(&self, rate: f64) -> Result<Vec<Duration>> {
        let mut poll = Poll::new(self.connections)?;
        let mut lanes = self.open(&poll)?;
        let mut free: VecDeque<usize> = (0..lanes.len()).collect();
        let mut due_of = vec![Duration::ZERO; lanes.len()];
        let mut took = Vec::with_capacity(self.requests as usize);
        let (start, mut asked) = (Instant::now(), 0);
        while took.len() < self.requests as usize {
            ensure!(start.elapsed() < self.within, "{} answers in {:?}", took.len(), self.within);
            while asked < self.requests {
                let due = Duration::from_secs_f64(asked as f64 / rate);
                if due > start.elapsed() {
                    break;
                }
                let Some(index) = free.pop_front() else { break };
                lanes[index].ask()?;
                due_of[index] = due;
                asked += 1;
            }
            for index in poll.look()? {
                let index = index as usize;
                if let Some(status) = lanes[index].hear()? {
                    ensure!(status == 200, "an answer of status {status}");
                    took.push(start.elapsed().saturating_sub(due_of[index]));
                    free.push_back(index);
                }
            }
        }
        took.sort_unstable();
        Ok(took)
    }

    /// The closed loop.
    fn drive(&self) -> Result<Tally> {
        let mut poll = Poll::new(self.connections)?;
        let mut lanes = self.open(&poll)?;
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

impl Idle {
    /// Opens `count` connections to `target`. Each asks once, `together` at a time; none, if that is 0.
    ///
    /// Errors: as of [`Load::run`], or an answer other than 200.
    pub(crate) fn open(target: SocketAddr, count: usize, together: usize) -> Result<Self> {
        let mut streams = Vec::with_capacity(count);
        while streams.len() < count {
            let lanes = together.clamp(1, count - streams.len());
            let mut lanes = (0..lanes).map(|_| Lane::open(target)).collect::<Result<Vec<_>>>()?;
            if together > 0 {
                lanes.iter_mut().try_for_each(Lane::ask)?;
                for lane in &mut lanes {
                    let status = loop {
                        if let Some(status) = lane.hear()? {
                            break status;
                        }
                    };
                    ensure!(status == 200, "an answer of status {status}");
                }
            }
            streams.extend(lanes.into_iter().map(|lane| lane.stream));
        }
        Ok(Self(streams))
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
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
