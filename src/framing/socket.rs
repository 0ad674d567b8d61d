//! One connection's socket. Both directions are used through `&self`, so that the connection alone
//! owns it, and one handle is enough.

use std::{
    cell::RefCell,
    io,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf},
    net::TcpStream,
};

/// Wakes the task again after other tasks, and what has come for them meanwhile, have had their turn.
pub fn yield_turn(cx: &mut Context<'_>) {
    let _ = pin!(tokio::task::yield_now()).poll(cx);
}

/// One connection's socket.
#[derive(Debug)]
pub struct Socket(RefCell<TcpStream>);

impl Socket {
    /// Takes a connected socket over.
    pub fn new(stream: TcpStream) -> Self {
        Self(RefCell::new(stream))
    }

    /// Reads what has come. Ready without bytes at the end of the stream.
    pub fn poll_read(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_read(cx, buf)
    }

    /// Writes as much of `bytes` as the kernel takes.
    pub fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_write(cx, bytes)
    }

    /// Whether something can be read: bytes, the end of the stream or an error. While nothing can, the
    /// task is woken when that changes.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> bool {
        self.0.borrow().poll_read_ready(cx).is_ready()
    }

    /// Whether the peer has closed its side or the connection has failed, as far as the runtime has
    /// heard; also while bytes before the end are unread. Nothing is woken when that changes.
    pub fn is_read_closed(&self, cx: &mut Context<'_>) -> bool {
        let stream = self.0.borrow();
        let ready = pin!(stream.ready(Interest::READABLE)).poll(cx);
        matches!(ready, Poll::Ready(Ok(ready)) if ready.is_read_closed())
    }

    /// Whether the peer has neither closed nor sent anything. Costs no system call while nothing came.
    pub fn is_quiet(&self) -> bool {
        let read = self.0.borrow().try_read(&mut [0]);
        read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Tells the peer that nothing more will be sent.
    pub fn shutdown(&self) {
        // A connection that has failed is as shut as one can be.
        let _ = SockRef::from(&*self.0.borrow()).shutdown(std::net::Shutdown::Write);
    }

    /// Resets the connection when it is dropped, instead of closing it in order.
    pub fn reset_on_close(&self) {
        // Where it fails the connection is closed in order; nothing else can be done.
        let _ = SockRef::from(&*self.0.borrow()).set_linger(Some(Duration::ZERO));
    }
}
