//! The floor: an epoll loop that passes bytes between each client and a connection of its own to
//! the upstream, and reads nothing of them. It shows what the kernel alone costs a forwarded
//! request.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
};

use anyhow::{Context as _, Result};
use rustix::{
    buffer::spare_capacity,
    event::epoll::{self, CreateFlags, EventData, EventFlags},
};

/// The argument that makes this program the floor, followed by the addresses of the listener and of
/// the upstream.
pub(crate) const ARGUMENT: &str = "--floor";
/// The listener's token. The token of a stream is its index in [`Floor::streams`].
const LISTENER: u64 = u64::MAX;

/// The streams in pairs: a client at an even index, its upstream connection at the next one.
struct Floor {
    epoll: OwnedFd,
    listener: TcpListener,
    origin: SocketAddr,
    streams: Vec<Option<TcpStream>>,
}

/// Runs the floor if the arguments of the program ask for it. Then it does not return.
pub(crate) fn run_if_asked() -> Result<()> {
    let mut arguments = std::env::args().skip_while(|argument| argument != ARGUMENT).skip(1);
    let (Some(listen), Some(origin)) = (arguments.next(), arguments.next()) else { return Ok(()) };
    let listener = TcpListener::bind(listen.parse::<SocketAddr>()?)?;
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    Floor { epoll, listener, origin: origin.parse()?, streams: Vec::new() }.run()
}

impl Floor {
    fn run(mut self) -> Result<()> {
        let mut events = Vec::with_capacity(256);
        let mut buffer = vec![0; 64 * 1024];
        loop {
            events.clear();
            epoll::wait(&self.epoll, spare_capacity(&mut events), None)?;
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept()?,
                    token => self.pass(token as usize, &mut buffer),
                }
            }
        }
    }

    fn accept(&mut self) -> Result<()> {
        let (client, _) = self.listener.accept()?;
        let upstream = TcpStream::connect(self.origin).context("the upstream does not listen")?;
        for stream in [client, upstream] {
            stream.set_nodelay(true)?;
            let token = EventData::new_u64(self.streams.len() as u64);
            epoll::add(&self.epoll, &stream, token, EventFlags::IN)?;
            self.streams.push(Some(stream));
        }
        Ok(())
    }

    /// Passes what one stream has to the other of its pair. Drops both when one has ended.
    fn pass(&mut self, from: usize, buffer: &mut [u8]) {
        let to = from ^ 1;
        let Some(source) = &mut self.streams[from] else { return };
        let count = source.read(buffer).unwrap_or(0);
        let target = self.streams[to].as_mut().filter(|_| count > 0);
        let is_passed = target.is_some_and(|target| target.write_all(&buffer[..count]).is_ok());
        if !is_passed {
            self.streams[from] = None;
            self.streams[to] = None;
        }
    }
}
