//! A socket that the HTTP library has, and that can still be asked whether the other side is there.

use std::{
    cell::RefCell,
    io,
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf},
    net::TcpStream,
};

/// One of the hands on a socket. While nobody reads, as before a body that is not wanted yet, an end
/// of the stream stays unread; but the system tells of it beside the data.
#[derive(Clone, Debug)]
pub struct Tap(Rc<RefCell<TcpStream>>);

impl Tap {
    /// The first hand on a socket.
    pub fn new(socket: TcpStream) -> Self {
        Self(Rc::new(RefCell::new(socket)))
    }

    /// Whether the other side has closed, or reset, the connection, as far as the runtime has heard of
    /// it; also while there are bytes before the end that nobody has read.
    pub fn is_closed(&self, cx: &mut Context<'_>) -> bool {
        let socket = self.0.borrow();
        let ready = pin!(socket.ready(Interest::READABLE)).poll(cx);
        matches!(ready, Poll::Ready(Ok(ready)) if ready.is_read_closed())
    }

    /// The socket, once no other hand is on it.
    pub fn into_inner(self) -> Option<TcpStream> {
        Rc::try_unwrap(self.0).ok().map(RefCell::into_inner)
    }
}

impl AsyncRead for Tap {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_read(cx, buf)
    }
}

impl AsyncWrite for Tap {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.borrow().is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_shutdown(cx)
    }
}
