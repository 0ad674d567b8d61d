//! The socket of a connection. It is read and written through `&self`, so it need not be split into
//! halves.

use std::{
    cell::RefCell,
    io,
    pin::{Pin, pin},
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::stream::Transport;

/// Schedules the task after other runnable tasks and pending I/O. The caller must then return
/// `Pending`.
pub fn yield_turn(cx: &mut Context<'_>) {
    let _ = pin!(tokio::task::yield_now()).poll(cx);
}

/// A connected stream whose two directions are used through `&self`.
#[derive(Debug)]
pub struct SharedSocket(RefCell<Transport>);

impl SharedSocket {
    /// Takes ownership of a connected stream.
    pub fn new(transport: impl Into<Transport>) -> Self {
        Self(RefCell::new(transport.into()))
    }

    /// Returns the stream.
    pub fn into_transport(self) -> Transport {
        self.0.into_inner()
    }

    /// Reads the bytes that have arrived. Ready without bytes at the end of the stream.
    ///
    /// # Errors
    /// The read failed.
    #[inline]
    pub fn poll_read(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_read(cx, buf)
    }

    /// Writes as much of `bytes` as the stream accepts, and returns the number of bytes. With TLS,
    /// some of them may still be buffered: see [`Self::poll_flush`].
    ///
    /// # Errors
    /// The write failed.
    #[inline]
    pub fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_write(cx, bytes)
    }

    /// Like [`Self::poll_write`], from several slices.
    ///
    /// # Errors
    /// The write failed.
    pub fn poll_write_vectored(
        &self,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_write_vectored(cx, slices)
    }

    /// True if [`Self::poll_write_vectored`] can write more than the first slice.
    pub fn is_write_vectored(&self) -> bool {
        self.0.borrow().is_write_vectored()
    }

    /// Closes the writing side once everything was written. With TLS, the session ends first.
    ///
    /// # Errors
    /// The write failed.
    pub fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_shutdown(cx)
    }

    /// Ready when the kernel has accepted everything that was written.
    ///
    /// # Errors
    /// The write failed.
    #[inline]
    pub fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_flush(cx)
    }

    /// True if the socket is readable: bytes, the end of the stream or an error. Otherwise the task
    /// is woken when it becomes readable.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> bool {
        self.0.borrow().poll_readable(cx)
    }

    /// True if the runtime was notified that the peer closed its side or the connection failed,
    /// even if earlier bytes are unread. The task is not woken when this changes.
    pub fn is_read_closed(&self, cx: &mut Context<'_>) -> bool {
        self.0.borrow().is_read_closed(cx)
    }

    /// Checks for a failure of the connection, even if earlier bytes are unread. Costs a system
    /// call.
    ///
    /// # Errors
    /// The connection has failed.
    pub fn check_error(&self) -> io::Result<()> {
        self.0.borrow().check_error()
    }

    /// True if the peer has neither closed the connection nor sent bytes. Without TLS, this costs
    /// no system call while nothing has arrived.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.0.borrow_mut().is_quiet()
    }

    /// Enables TCP keep-alive, for a connection that may be silent for long.
    pub fn enable_tcp_keepalive(&self) {
        self.0.borrow().enable_tcp_keepalive();
    }

    /// Closes the writing side: the peer reads the end of the stream.
    pub fn shutdown(&self) {
        self.0.borrow_mut().shutdown();
    }

    /// Ends the TLS session, if there is one, so that the peer knows that the data is complete.
    pub fn send_close_notify(&self) {
        self.0.borrow_mut().send_close_notify();
    }

    /// Makes the socket send RST instead of FIN when it is dropped.
    pub fn reset_on_close(&self) {
        self.0.borrow().reset_on_close();
    }
}
