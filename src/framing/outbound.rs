//! A connection to an upstream, read strictly: an answer's head is handed on only when it is whole and
//! has one reading.

use std::{
    cell::{Cell, RefCell},
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{head::check_answer, held::Held};

/// The largest head of an answer, in bytes.
const MAX_HEAD: usize = 64 * 1024;

/// What a connection to an upstream and its user tell one another about the exchange under way.
#[derive(Debug, Default)]
pub struct Exchange {
    /// Whether the next bytes begin an answer.
    awaiting: Cell<bool>,
    /// Whether what is sent is kept.
    recording: Cell<bool>,
    sent: RefCell<Vec<u8>>,
}

impl Exchange {
    /// A request is about to be sent. `recording`: its bytes are kept until an answer comes, so that
    /// it can be sent again.
    pub fn begin(&self, recording: bool) {
        self.awaiting.set(true);
        self.recording.set(recording);
        self.sent.borrow_mut().clear();
    }

    /// What was sent of the request, where it was to be kept and no answer came.
    pub fn take_sent(&self) -> Option<Vec<u8>> {
        (self.recording.get() && self.awaiting.get()).then(|| self.sent.take())
    }

    fn record(&self, bytes: &[u8]) {
        if self.recording.get() && self.awaiting.get() {
            self.sent.borrow_mut().extend_from_slice(bytes);
        }
    }
}

/// A connection to an upstream, read strictly.
#[derive(Debug)]
pub struct Outbound<S> {
    io: S,
    exchange: Rc<Exchange>,
    held: Held,
    checked: usize,
}

impl<S> Outbound<S> {
    /// Wraps a new connection; whoever sends a request says so to `exchange`.
    pub fn new(io: S, exchange: Rc<Exchange>) -> Self {
        Self { io, exchange, held: Held::default(), checked: 0 }
    }

    /// Looks for whole heads among the held bytes: any number of interim ones, then the final one.
    fn check_heads(&mut self) -> io::Result<()> {
        while let Some((length, status)) = check_answer(&self.held.bytes()[self.checked..])? {
            self.checked += length;
            if status >= 200 {
                self.exchange.awaiting.set(false);
                // The body is the HTTP library's to follow.
                self.checked = self.held.bytes().len();
                break;
            }
        }
        if self.held.bytes().len() - self.checked > MAX_HEAD {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the answer's head is too large",
            ));
        }
        Ok(())
    }
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
            if !this.exchange.awaiting.get() {
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
        let written = ready!(Pin::new(&mut this.io).poll_write(cx, buf))?;
        this.exchange.record(&buf[..written]);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}
