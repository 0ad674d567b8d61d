//! The receiving side of an HTTP/2 stream.

use std::task::{Context, Poll, ready};

use h2::RecvStream;
use http::HeaderMap;

/// Reads the data of one stream in order. Reading data returns its bytes to the sender's
/// flow-control windows.
///
/// While the reader waits for something else, it should take arriving data with
/// [`Self::read_ahead`]: the library counts unread small frames over all streams of a connection,
/// and closes the connection if there are too many. Only the windows bound the bytes that are read
/// ahead.
#[derive(Debug)]
pub struct Http2Receiver {
    stream: RecvStream,
    /// Data that was read ahead, whose bytes are not yet returned to the windows.
    ahead: Vec<u8>,
}

impl Http2Receiver {
    /// A receiver for `stream`, from which nothing was read yet.
    pub fn new(stream: RecvStream) -> Self {
        Self { stream, ahead: Vec::new() }
    }

    /// Calls `take` with the next bytes. Ready with their number; 0 at the end of the data.
    ///
    /// # Errors
    /// The stream or the connection failed.
    pub fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
        take: impl FnOnce(&[u8]),
    ) -> Poll<Result<usize, h2::Error>> {
        if !self.ahead.is_empty() {
            let ahead = std::mem::take(&mut self.ahead);
            take(&ahead);
            self.release(ahead.len());
            return Poll::Ready(Ok(ahead.len()));
        }
        loop {
            match ready!(self.stream.poll_data(cx)) {
                Some(Ok(data)) if data.is_empty() => {}
                Some(Ok(data)) => {
                    take(&data);
                    self.release(data.len());
                    return Poll::Ready(Ok(data.len()));
                }
                Some(Err(error)) => return Poll::Ready(Err(error)),
                None => return Poll::Ready(Ok(0)),
            }
        }
    }

    /// Takes arrived data out of the library's queue. The task is woken when more arrives.
    ///
    /// # Errors
    /// The stream or the connection failed. The next read also fails.
    pub fn read_ahead(&mut self, cx: &mut Context<'_>) -> Result<(), h2::Error> {
        loop {
            match self.stream.poll_data(cx) {
                Poll::Ready(Some(Ok(data))) => self.ahead.extend_from_slice(&data),
                Poll::Ready(Some(Err(error))) => return Err(error),
                // The next read returns the end again.
                Poll::Ready(None) | Poll::Pending => return Ok(()),
            }
        }
    }

    /// The trailers, after the end of the data.
    ///
    /// # Errors
    /// The stream or the connection failed.
    pub fn poll_trailers(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<HeaderMap>, h2::Error>> {
        self.stream.poll_trailers(cx)
    }

    /// True if neither data nor trailers are left to read.
    pub fn is_end_stream(&self) -> bool {
        self.ahead.is_empty() && self.stream.is_end_stream()
    }

    /// True if the sender has ended the stream, and nothing of it waits in the library.
    pub fn has_ended(&self) -> bool {
        self.stream.is_end_stream()
    }

    fn release(&mut self, count: usize) {
        // Fails only if the stream is over.
        let _ = self.stream.flow_control().release_capacity(count);
    }
}
