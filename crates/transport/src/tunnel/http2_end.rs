//! [`Http2TunnelEnd`]: a tunnel end on an HTTP/2 stream.

use std::{
    io,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use h2::{Reason, SendStream};

use super::{super::http2_receiver::Http2Receiver, TunnelEnd};

/// A tunnel end on an HTTP/2 stream (RFC 8441, 5).
pub struct Http2TunnelEnd {
    send: SendStream<Bytes>,
    receive: Http2Receiver,
    queue: Arc<WriteTracker>,
}

/// Tracks the data of one stream that the library has not yet written: each [`QueuedData`] holds a
/// reference, so a count of 1 means that no data is queued.
#[derive(Default)]
struct WriteTracker {
    /// The task that waits for the last data to be written.
    waker: AtomicWaker,
}

/// Data of one frame. The library drops it after it has written it and all earlier data.
struct QueuedData {
    bytes: Box<[u8]>,
    queue: Arc<WriteTracker>,
}

impl AsRef<[u8]> for QueuedData {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for QueuedData {
    fn drop(&mut self) {
        self.queue.waker.wake();
    }
}

impl Http2TunnelEnd {
    /// The end with both directions of one stream.
    pub fn new(send: SendStream<Bytes>, receive: Http2Receiver) -> Self {
        Self { send, receive, queue: Arc::default() }
    }
}

impl TunnelEnd for Http2TunnelEnd {
    fn poll_read(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        self.receive.poll_data(cx, |data| out.extend_from_slice(data)).map_err(io::Error::other)
    }

    fn read_ahead(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        self.receive.read_ahead(cx).map_err(io::Error::other)
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        check_reset(&self.send.poll_reset(cx))?;
        let count = ready!(poll_capacity(&mut self.send, cx, bytes.len()))?;
        let data = QueuedData { bytes: bytes[..count].into(), queue: Arc::clone(&self.queue) };
        let sent = self.send.send_data(Bytes::from_owner(data), false);
        Poll::Ready(sent.map(|()| count).map_err(io::Error::other))
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(check_reset(&self.send.poll_reset(cx)))
    }

    fn poll_close(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.send.send_data(Bytes::new(), true).map_err(io::Error::other))
    }

    fn poll_written(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.send.poll_reset(cx).is_ready() {
            return Poll::Ready(());
        }
        self.queue.waker.register(cx.waker());
        match Arc::strong_count(&self.queue) {
            1 => Poll::Ready(()),
            _ => Poll::Pending,
        }
    }

    fn abort(&mut self) {
        self.send.send_reset(Reason::CANCEL);
    }
}

/// Ready with the number of bytes that may be sent now, 1 to `wanted`.
///
/// # Errors
/// The stream is over.
pub fn poll_capacity(
    send: &mut SendStream<Bytes>,
    cx: &mut Context<'_>,
    wanted: usize,
) -> Poll<io::Result<usize>> {
    send.reserve_capacity(wanted);
    let mut allowed = send.capacity();
    while allowed == 0 {
        // Reports every change of the window, including one to zero.
        allowed = match ready!(send.poll_capacity(cx)) {
            Some(Ok(allowed)) => allowed,
            Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
            None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        };
    }
    Poll::Ready(Ok(allowed.min(wanted)))
}

/// An error if the other side has reset the stream.
fn check_reset(reset: &Poll<Result<Reason, h2::Error>>) -> io::Result<()> {
    match reset {
        Poll::Pending => Ok(()),
        Poll::Ready(_) => Err(io::ErrorKind::ConnectionReset.into()),
    }
}
