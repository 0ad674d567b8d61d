//! Waits for sockets without letting the core go idle.
//!
//! On a virtual machine, waking an idle core costs the waking process several microseconds. That
//! time would be charged to the process under test, most often when the load generator has the
//! least work. So a waiting thread polls for a while before it sleeps. It yields in between,
//! because the load generator and the upstream share one core.

use std::{os::fd::OwnedFd, thread};

use anyhow::Result;
use rustix::{
    buffer::spare_capacity,
    event::{
        Timespec,
        epoll::{self, Event},
    },
    fd::AsFd,
};

/// Polls before a thread sleeps: together over a millisecond, longer than any pause under load.
const SPINS: usize = 4_000;

/// A set of sockets to read from.
pub(super) struct Poll {
    epoll: OwnedFd,
    events: Vec<Event>,
}

impl Poll {
    /// An empty set that reports at most `events` sockets at a time.
    pub(super) fn new(events: usize) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, events: Vec::with_capacity(events) })
    }

    /// Adds a socket under a token. Closing the socket removes it.
    pub(super) fn add(&self, socket: impl AsFd, token: u64) -> Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::add(&self.epoll, socket, data, epoll::EventFlags::IN)?)
    }

    /// The tokens of the sockets that are readable now.
    pub(super) fn poll_once(&mut self) -> Result<impl Iterator<Item = u64>> {
        self.events.clear();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&now))?;
        if self.events.is_empty() {
            thread::yield_now();
        }
        Ok(tokens(&self.events))
    }

    /// Waits until a socket is readable, for at most a second. Returns the tokens of the readable
    /// ones.
    pub(super) fn wait(&mut self) -> Result<impl Iterator<Item = u64>> {
        self.events.clear();
        for _ in 0..SPINS {
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&now))?;
            if !self.events.is_empty() {
                return Ok(tokens(&self.events));
            }
            thread::yield_now();
        }
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&second))?;
        Ok(tokens(&self.events))
    }
}

fn tokens(events: &[Event]) -> impl Iterator<Item = u64> {
    events.iter().map(|event| event.data.u64())
}
