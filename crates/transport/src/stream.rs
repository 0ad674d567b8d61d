//! The byte stream beneath HTTP: TCP, a Unix socket, or TLS over either.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
    time::Duration,
};

use rustls::{CommonState, ConnectionCommon};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::TlsStream;

/// A connected stream socket.
#[derive(Debug)]
pub enum RawSocket {
    /// TCP.
    Tcp(TcpStream),
    /// A Unix domain socket.
    Unix(UnixStream),
}

/// A connected byte stream.
#[derive(Debug)]
pub enum Transport {
    /// Without TLS.
    Plain(RawSocket),
    /// With TLS, after the handshake.
    Tls(Box<TlsStream<RawSocket>>),
}

impl From<TcpStream> for Transport {
    fn from(stream: TcpStream) -> Self {
        Self::Plain(RawSocket::Tcp(stream))
    }
}

impl From<TlsStream<RawSocket>> for Transport {
    fn from(stream: TlsStream<RawSocket>) -> Self {
        Self::Tls(Box::new(stream))
    }
}

impl RawSocket {
    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(cx),
            Self::Unix(stream) => stream.poll_read_ready(cx),
        }
    }

    fn is_read_closed(&self, cx: &mut Context<'_>) -> bool {
        let ready = match self {
            Self::Tcp(stream) => pin!(stream.ready(Interest::READABLE)).poll(cx),
            Self::Unix(stream) => pin!(stream.ready(Interest::READABLE)).poll(cx),
        };
        matches!(ready, Poll::Ready(Ok(ready)) if ready.is_read_closed())
    }

    fn check_error(&self) -> io::Result<()> {
        let error = match self {
            Self::Tcp(stream) => stream.take_error()?,
            Self::Unix(stream) => stream.take_error()?,
        };
        error.map_or(Ok(()), Err)
    }

    fn try_read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read(bytes),
            Self::Unix(stream) => stream.try_read(bytes),
        }
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            Self::Unix(stream) => stream.try_write(bytes),
        }
    }
}

impl AsFd for RawSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

impl AsyncRead for RawSocket {
    #[inline]
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl Transport {
    /// The underlying socket, with or without TLS.
    pub fn socket(&self) -> &RawSocket {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }

    /// The state of the TLS session.
    pub fn session(&self) -> Option<&CommonState> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => Some(stream.get_ref().1),
        }
    }

    /// True if the socket is readable: bytes, the end of the stream or an error. Otherwise the task
    /// is woken when it becomes readable.
    pub(super) fn poll_readable(&self, cx: &mut Context<'_>) -> bool {
        self.socket().poll_read_ready(cx).is_ready()
    }

    /// An error if the connection has failed, even if earlier bytes are unread.
    pub(super) fn check_error(&self) -> io::Result<()> {
        self.socket().check_error()
    }

    /// True if the runtime was notified that the peer closed its side or the connection failed.
    pub(super) fn is_read_closed(&self, cx: &mut Context<'_>) -> bool {
        self.socket().is_read_closed(cx)
    }

    /// True if the peer has neither closed the connection nor sent bytes for HTTP. TLS records such
    /// as session tickets are processed.
    pub(super) fn is_quiet(&mut self) -> bool {
        match self {
            Self::Plain(socket) => socket
                .try_read(&mut [0])
                .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock),
            Self::Tls(stream) => {
                let mut byte = [0];
                let mut context = Context::from_waker(Waker::noop());
                Pin::new(stream).poll_read(&mut context, &mut ReadBuf::new(&mut byte)).is_pending()
            }
        }
    }

    /// Closes the writing side: the peer reads the end of the stream. With TLS, sends
    /// `close_notify` first, if the kernel accepts it.
    pub(super) fn shutdown(&mut self) {
        self.send_close_notify();
        // Fails only on a connection that is already closed.
        let _ = SockRef::from(self.socket()).shutdown(std::net::Shutdown::Write);
    }

    /// Ends the TLS session, if there is one, so that the peer knows that the data is complete.
    pub(super) fn send_close_notify(&mut self) {
        if let Self::Tls(stream) = self {
            match &mut **stream {
                TlsStream::Client(stream) => {
                    let (socket, session) = stream.get_mut();
                    send_close_notify(socket, session);
                }
                TlsStream::Server(stream) => {
                    let (socket, session) = stream.get_mut();
                    send_close_notify(socket, session);
                }
            }
        }
    }

    /// Enables TCP keep-alive: the kernel notices that the peer is gone about two minutes after its
    /// last byte.
    pub fn enable_tcp_keepalive(&self) {
        let probes = TcpKeepalive::new()
            .with_time(Duration::from_mins(1))
            .with_interval(Duration::from_secs(20))
            .with_retries(3);
        // Fails for a Unix socket, whose peer cannot vanish.
        let _ = SockRef::from(self.socket()).set_tcp_keepalive(&probes);
    }

    /// Makes the socket send RST instead of FIN when it is dropped.
    pub(super) fn reset_on_close(&self) {
        // If this fails, the connection is closed with FIN.
        let _ = SockRef::from(self.socket()).set_linger(Some(Duration::ZERO));
    }
}

fn send_close_notify<T>(socket: &RawSocket, session: &mut ConnectionCommon<T>) {
    session.send_close_notify();
    let mut socket = TryWrite(socket);
    while session.wants_write() && session.write_tls(&mut socket).is_ok_and(|sent| sent > 0) {}
}

/// Writes without waiting.
struct TryWrite<'a>(&'a RawSocket);

impl io::Write for TryWrite<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsyncRead for Transport {
    #[inline]
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(cx, buf),
            Self::Tls(stream) => {
                let read = Pin::new(&mut **stream).poll_read(cx, buf);
                if stream.get_ref().1.wants_write() {
                    // The session's own records, such as the alert that refuses a renegotiation,
                    // would otherwise wait for the next write. The next write also reports a
                    // failure.
                    let _ = Pin::new(&mut **stream).poll_flush(cx);
                }
                read
            }
        }
    }
}

/// Implements `AsyncWrite` for an enum through the stream that it holds.
macro_rules! forward_writes {
    ($name:ident: $($variant:ident),+) => {
        impl AsyncWrite for $name {
            #[inline]
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                match self.get_mut() {
                    $(Self::$variant(stream) => Pin::new(stream).poll_write(cx, bytes)),+
                }
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                slices: &[io::IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                match self.get_mut() {
                    $(Self::$variant(stream) => Pin::new(stream).poll_write_vectored(cx, slices)),+
                }
            }

            fn is_write_vectored(&self) -> bool {
                match self {
                    $(Self::$variant(stream) => stream.is_write_vectored()),+
                }
            }

            #[inline]
            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    $(Self::$variant(stream) => Pin::new(stream).poll_flush(cx)),+
                }
            }

            fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    $(Self::$variant(stream) => Pin::new(stream).poll_shutdown(cx)),+
                }
            }
        }
    };
}

forward_writes!(RawSocket: Tcp, Unix);
forward_writes!(Transport: Plain, Tls);
