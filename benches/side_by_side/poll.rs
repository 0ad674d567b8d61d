//! Waiting for sockets without letting the core fall asleep.
//!
//! A core that idles between two answers must be woken for the next one, and on a virtual machine
//! the waker pays for that: several microseconds, billed to the contestant, and the more the less
//! the load generator itself has to do. So a waiting thread looks again for a while before it
//! sleeps. It yields in between: load generator and upstream share one core.

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

/// Looks before it sleeps: well over a millisecond, longer than any pause under load.
const LOOKS: usize = 4_000;

/// A set of sockets to read from.
pub(crate) struct Poll {
    epoll: OwnedFd,
    events: Vec<Event>,
}

impl Poll {
    /// An empty set; at most `events` are told at a time.
    pub(crate) fn new(events: usize) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, events: Vec::with_capacity(events) })
    }

    /// Adds a socket under a token of the caller's. Closing the socket removes it.
    pub(crate) fn add(&self, socket: impl AsFd, token: u64) -> Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::add(&self.epoll, socket, data, epoll::EventFlags::IN)?)
    }

    /// The tokens of the sockets that are readable now.
    pub(crate) fn look(&mut self) -> Result<impl Iterator<Item = u64>> {
        self.events.clear();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&now))?;
        if self.events.is_empty() {
            thread::yield_now();
        }
        Ok(tokens(&self.events))
    }

    /// The tokens of the readable sockets; none after a second without any.
    pub(crate) fn wait(&mut self) -> Result<impl Iterator<Item = u64>> {
        self.events.clear();
        for _ in 0..LOOKS {
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
