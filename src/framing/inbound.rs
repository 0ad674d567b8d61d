//! A client's connection, read strictly: the HTTP library is handed a head only when it is whole and
//! has one reading, and a body only to its end.

use std::{
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{
    chunked::Chunked,
    fault::Fault,
    head::{Length, check_request},
    held::Held,
    wire::{Phase, Wire},
};

/// The request that stands in for a head that was refused: it carries the fault through the HTTP
/// library to the gateway, which answers and closes. A client that sends the same line is answered
/// like anyone else, because the fault itself travels beside it.
const STAND_IN: &[u8] = b"GET / HTTP/1.1\r\nhost: refused\r\nconnection: close\r\n\r\n";

/// So many bytes that follow a request are taken in before it is answered.
const AHEAD: usize = 16 * 1024;

/// The largest head, in bytes and in headers.
#[derive(Clone, Copy, Debug)]
pub struct HeadBounds {
    /// In bytes, from the method to the empty line.
    pub bytes: usize,
    /// In headers.
    pub headers: usize,
}

impl HeadBounds {
    /// Checks the request's head that `bytes` begin with, its size too. As [`check_request`].
    pub fn check(self, bytes: &[u8]) -> Result<Option<(usize, Length)>, Fault> {
        match check_request(bytes, self.headers) {
            Ok(Some((length, _))) if length > self.bytes => Err(self.too_large(bytes)),
            Ok(None) if bytes.len() > self.bytes => Err(self.too_large(bytes)),
            other => other,
        }
    }

    /// What is too large about a head: its first line alone, or all of it.
    fn too_large(self, bytes: &[u8]) -> Fault {
        let line = memchr::memchr(b'\n', bytes);
        let fits = line.is_some_and(|end| end < self.bytes);
        if fits { Fault::HeadTooLarge } else { Fault::TargetTooLong }
    }
}

/// What the next bytes belong to.
#[derive(Debug)]
enum State {
    Head,
    /// A body of known length: bytes left.
    Known(u64),
    Chunked(Chunked),
    /// The stand-in was handed over: nothing more is read for the HTTP library.
    Refused,
}

/// A client's connection, read strictly.
#[derive(Debug)]
pub struct Inbound<S> {
    io: S,
    wire: Rc<Wire>,
    bounds: HeadBounds,
    held: Held,
    /// How many held bytes have been checked and may be handed over.
    checked: usize,
    /// How many held bytes were found to be no whole head yet.
    incomplete: usize,
    state: State,
}

impl<S> Inbound<S> {
    /// Wraps a connection that was just accepted.
    pub fn new(io: S, wire: Rc<Wire>, bounds: HeadBounds) -> Self {
        Self {
            io,
            wire,
            bounds,
            held: Held::default(),
            checked: 0,
            incomplete: 0,
            state: State::Head,
        }
    }

    /// Gives the connection back.
    pub fn into_inner(self) -> S {
        self.io
    }

    fn refuse(&mut self, fault: Fault) {
        self.wire.fail(fault);
        self.held.clear();
        self.held.push(STAND_IN);
        self.checked = STAND_IN.len();
        self.state = State::Refused;
        self.wire.begin();
    }

    /// Looks for a whole head among the held bytes.
    fn check_head(&mut self) {
        while let Some(rest) = self.held.bytes().strip_prefix(b"\r\n") {
            let skipped = self.held.bytes().len() - rest.len();
            self.held.skip(skipped);
        }
        match self.bounds.check(self.held.bytes()) {
            Err(fault) => self.refuse(fault),
            Ok(Some((length, body))) => {
                self.checked = length;
                self.incomplete = 0;
                self.state = match body {
                    Length::Known(0) => State::Head,
                    Length::Known(length) => State::Known(length),
                    Length::Chunked => State::Chunked(Chunked::default()),
                };
                self.wire.begin();
            }
            Ok(None) => self.incomplete = self.held.bytes().len(),
        }
    }

    /// How many of `bytes` belong to the body; what is left begins the next head.
    fn follow_body(&mut self, bytes: &[u8]) -> Result<usize, Fault> {
        let count = match &mut self.state {
            State::Known(left) => {
                let count = (*left).min(bytes.len() as u64);
                *left -= count;
                if *left == 0 {
                    self.state = State::Head;
                }
                count as usize
            }
            State::Chunked(chunked) => {
                let count = chunked.feed(bytes)?;
                if chunked.is_done() {
                    self.state = State::Head;
                }
                count
            }
            State::Head | State::Refused => 0,
        };
        let over = matches!(self.state, State::Head) && !self.wire.is_busy();
        self.wire.enter(if over { Phase::Idle } else { Phase::Busy });
        Ok(count)
    }
}

impl<S: AsyncRead + Unpin> Inbound<S> {
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Progress>> {
        if self.wire.expired() == Some(Phase::Head) {
            if self.held.bytes().is_empty() {
                return Poll::Ready(Ok(Progress::End));
            }
            self.refuse(Fault::HeadTimeout);
            return Poll::Ready(Ok(Progress::More));
        }
        let count = ready!(self.held.fill(&mut self.io, cx))?;
        if count == 0 {
            return Poll::Ready(Ok(Progress::End));
        }
        if self.wire.phase() == Phase::Idle {
            self.wire.enter(Phase::Head);
        }
        let fresh = self.held.bytes().len() - count;
        // Only a line's end, or too many bytes, can change what was found before.
        let complete = memchr::memchr(b'\n', &self.held.bytes()[fresh..]).is_some();
        if complete || self.held.bytes().len() > self.bounds.bytes {
            self.check_head();
        }
        Poll::Ready(Ok(Progress::More))
    }

    fn poll_body(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.wire.expired() == Some(Phase::Body) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        if read.is_pending() && self.wire.phase() != Phase::Body {
            self.wire.enter(Phase::Body);
        }
        ready!(read)?;
        let fresh = &buf.filled()[before..];
        let count = match self.follow_body(fresh) {
            Ok(count) => count,
            Err(fault) => {
                self.wire.fail(fault);
                return Poll::Ready(Err(fault.into()));
            }
        };
        if count < fresh.len() {
            self.held.push(&fresh[count..]);
            buf.set_filled(before + count);
        }
        Poll::Ready(Ok(()))
    }

    /// While a request is being answered: takes in a little of what follows it, so that a client that
    /// has gone is noticed. None of it is looked at before the answer is over, because what is wrong
    /// with it is not this request's fault.
    fn poll_ahead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if !self.held.bytes().is_empty() {
                self.wire.hold_ahead();
            }
            if self.held.bytes().len() >= AHEAD {
                return Poll::Pending;
            }
            if ready!(self.held.fill(&mut self.io, cx))? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Body bytes that came together with their head.
    fn take_held_body(&mut self) -> io::Result<()> {
        let held = std::mem::take(&mut self.held);
        let followed = self.follow_body(held.bytes());
        self.held = held;
        match followed {
            Ok(count) => {
                self.checked = count;
                Ok(())
            }
            Err(fault) => {
                self.wire.fail(fault);
                Err(fault.into())
            }
        }
    }
}

enum Progress {
    More,
    End,
}

impl<S: AsyncRead + Unpin> AsyncRead for Inbound<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if this.checked > 0 {
                this.checked -= this.held.hand_over(this.checked, buf);
                return Poll::Ready(Ok(()));
            }
            match this.state {
                State::Refused => return Poll::Pending,
                State::Head if this.wire.is_busy() => return this.poll_ahead(cx),
                State::Head if this.held.bytes().is_empty() => {}
                State::Head => {
                    if this.wire.phase() == Phase::Idle {
                        this.wire.enter(Phase::Head);
                    }
                    if this.held.bytes().len() != this.incomplete {
                        this.check_head();
                    }
                    if this.checked > 0 {
                        continue;
                    }
                }
                State::Known(_) | State::Chunked(_) if this.held.bytes().is_empty() => {
                    return this.poll_body(cx, buf);
                }
                State::Known(_) | State::Chunked(_) => {
                    this.take_held_body()?;
                    continue;
                }
            }
            match ready!(this.poll_head(cx))? {
                Progress::More => {}
                Progress::End => return Poll::Ready(Ok(())),
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Inbound<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.io).poll_write(cx, buf);
        this.wire.write_blocked(written.is_pending());
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.io).poll_write_vectored(cx, bufs);
        this.wire.write_blocked(written.is_pending());
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
