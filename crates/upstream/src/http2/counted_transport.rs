//! [`CountedTransport`]: a transport that counts the empty DATA frames of an HTTP/2 server.

use std::{
    cell::Cell,
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

use tidegate_transport::{FrameCounter, Transport};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A transport, and the number of the empty DATA frames that it has read.
#[derive(Debug)]
pub(super) struct CountedTransport {
    transport: Transport,
    counter: FrameCounter,
    empty_frames: Rc<Cell<u64>>,
}

impl CountedTransport {
    /// The transport of a connection on which the server has sent nothing yet.
    pub(super) fn new(transport: Transport) -> Self {
        Self { transport, counter: FrameCounter::of_server(), empty_frames: Rc::default() }
    }

    /// The number of empty DATA frames, which follows the connection.
    pub(super) fn empty_frames(&self) -> Rc<Cell<u64>> {
        Rc::clone(&self.empty_frames)
    }
}

impl AsyncRead for CountedTransport {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let filled = buf.filled().len();
        ready!(Pin::new(&mut this.transport).poll_read(cx, buf))?;
        let frames = this.counter.count(&buf.filled()[filled..]);
        this.empty_frames.set(this.empty_frames.get() + frames.empty);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for CountedTransport {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.transport).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.transport).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_shutdown(cx)
    }
}
