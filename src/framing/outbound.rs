//! A connection to an upstream, read strictly: an answer's head is handed on only when it is whole and
//! has one reading.

use std::{
    cell::Cell,
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{head::check_answer, held::Held};

/// The largest head of an answer, in bytes.
const MAX_HEAD: usize = 64 * 1024;

/// What a connection to an upstream is about to do.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Turn {
    /// What comes is a body, or nothing should come at all.
    #[default]
    Rest,
    /// A request is about to be written. What comes before its first byte belongs to no answer.
    Request,
    /// What comes begins an answer.
    Answer,
}

/// Whose turn it is: [`Turn::Request`] is set by whoever sends one.
pub type Armed = Rc<Cell<Turn>>;

/// A connection to an upstream, read strictly.
#[derive(Debug)]
pub struct Outbound<S> {
    io: S,
    armed: Armed,
    held: Held,
    checked: usize,
}

impl<S> Outbound<S> {
    /// Wraps a new connection; `armed` is shared with whoever sends requests.
    pub fn new(io: S, armed: Armed) -> Self {
        Self { io, armed, held: Held::default(), checked: 0 }
    }

    fn write_begins(&self) {
        if self.armed.get() == Turn::Request {
            self.armed.set(Turn::Answer);
        }
    }

    /// Looks for whole heads among the held bytes: any number of interim ones, then the final one.
    fn check_heads(&mut self) -> io::Result<()> {
        while let Some((length, status)) = check_answer(&self.held.bytes()[self.checked..])? {
            if length > MAX_HEAD {
                return Err(too_large());
            }
            self.checked += length;
            if status >= 200 {
                self.armed.set(Turn::Rest);
                // The body is the HTTP library's to follow.
                self.checked = self.held.bytes().len();
                break;
            }
        }
        if self.held.bytes().len() - self.checked > MAX_HEAD {
            return Err(too_large());
        }
        Ok(())
    }
}

fn too_large() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the answer's head is too large")
}

impl<S: AsyncRead + Unpin> AsyncRead for Outbound<S> {
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
            if this.armed.get() != Turn::Answer {
                return Pin::new(&mut this.io).poll_read(cx, buf);
            }
            let count = ready!(this.held.fill(&mut this.io, cx))?;
            if count == 0 {
                return Poll::Ready(Ok(()));
            }
            this.check_heads()?;
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Outbound<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.write_begins();
        Pin::new(&mut this.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.write_begins();
        Pin::new(&mut this.io).poll_write_vectored(cx, bufs)
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
