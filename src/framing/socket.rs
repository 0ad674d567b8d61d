//! The socket of a connection. It is read and written through `&self`, so it need not be split into
//! halves.

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

/// Schedules the task behind other runnable tasks and pending I/O. The caller must then return `Pending`.
pub fn yield_turn(cx: &mut Context<'_>) {
    let _ = pin!(tokio::task::yield_now()).poll(cx);
}

/// A connected socket whose two directions are used through `&self`.
#[derive(Debug)]
pub struct SharedSocket(RefCell<TcpStream>);

impl SharedSocket {
    /// Takes ownership of a connected socket.
    pub fn new(stream: TcpStream) -> Self {
        Self(RefCell::new(stream))
    }

    /// Reads the bytes that have arrived. Ready without bytes at the end of the stream.
    ///
    /// # Errors
    /// The read failed.
    pub fn poll_read(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_read(cx, buf)
    }

    /// Writes as much of `bytes` as the kernel accepts, and returns the number of bytes.
    ///
    /// # Errors
    /// The write failed.
    pub fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_write(cx, bytes)
    }

    /// Whether the socket is readable: bytes, the end of the stream or an error. Otherwise the task is
    /// woken when it becomes readable.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> bool {
        self.0.borrow().poll_read_ready(cx).is_ready()
    }

    /// Whether the runtime was notified that the peer closed its side or the connection failed, even if
    /// bytes before the end are unread. The task is not woken when this changes.
    pub fn is_read_closed(&self, cx: &mut Context<'_>) -> bool {
        let stream = self.0.borrow();
        let ready = pin!(stream.ready(Interest::READABLE)).poll(cx);
        matches!(ready, Poll::Ready(Ok(ready)) if ready.is_read_closed())
    }

    /// Whether the peer has neither closed the connection nor sent bytes. Costs no system call while
    /// nothing has arrived.
    pub fn is_quiet(&self) -> bool {
        let read = self.0.borrow().try_read(&mut [0]);
        read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Closes the writing side: the peer reads the end of the stream.
    pub fn shutdown(&self) {
        // Fails only on a connection that is already closed.
        let _ = SockRef::from(&*self.0.borrow()).shutdown(std::net::Shutdown::Write);
    }

    /// Makes the drop of the socket send RST instead of FIN.
    pub fn reset_on_close(&self) {
        // If this fails, the connection is closed with FIN.
        let _ = SockRef::from(&*self.0.borrow()).set_linger(Some(Duration::ZERO));
    }
}
