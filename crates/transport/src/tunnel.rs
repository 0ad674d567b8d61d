//! A tunnel: bytes in both directions between a client and an upstream, after an upgrade.
//!
//! Each direction has one buffer, and reads again only after the whole buffer is written: a slow
//! reader stops the sender. The buffer holds at most one read of a socket, or an HTTP/2 stream's
//! window. The end of one direction closes only that direction. `http2_end` is the end of a tunnel
//! over an HTTP/2 stream.

mod http2_end;

use std::{
    io,
    task::{Context, Poll},
};

pub use self::http2_end::{Http2TunnelEnd, poll_capacity};
use tidegate_base::time::{CoarseTime, Millis};
use tidegate_http1::Buffer;

use super::{
    read_buffer::{ReadBuffer, poll_read},
    socket::{SharedSocket, yield_turn},
};
use crate::connection_state::{StateCell, SweepWake};

/// Maximum number of reads and writes of one direction in one poll. Then the task yields to others.
const MAX_ROUNDS: usize = 16;

/// Maximum time that the last bytes of a failed side wait for the other side to accept them.
const FLUSH_TIMEOUT: Millis = Millis::from_ms(500);

/// One end of a tunnel.
pub trait TunnelEnd {
    /// Appends arrived bytes to `out`. Ready with their number; 0 at the end of the stream.
    ///
    /// # Errors
    /// The connection failed.
    fn poll_read(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<io::Result<usize>>;

    /// Called when read bytes cannot be written: see [`super::Http2Receiver::read_ahead`].
    ///
    /// # Errors
    /// The connection failed, which a read would report only after the unread bytes.
    fn read_ahead(&mut self, cx: &mut Context<'_>) -> io::Result<()>;

    /// Writes as much of `bytes`, which must not be empty, as is accepted now. Ready with the
    /// number of bytes.
    ///
    /// # Errors
    /// The connection failed.
    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;

    /// Ready when no written bytes are held back on this side.
    ///
    /// # Errors
    /// The connection failed.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Closes the writing side; the reading side stays open.
    ///
    /// # Errors
    /// The connection failed.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Ready when [`Self::abort`] would discard no written bytes, or the connection failed.
    fn poll_written(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_flush(cx).map(drop)
    }

    /// Makes the other side see a failed connection instead of an orderly end.
    fn abort(&mut self);
}

/// The outcome of a tunnel.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TunnelOutcome {
    /// Both sides closed, or the upstream closed and receives no more.
    Complete,
    /// The client's connection failed.
    ClientFailed,
    /// The upstream's connection failed.
    UpstreamFailed,
    /// Neither side sent anything for the idle timeout.
    TimedOut,
}

/// A tunnel between a client `C` and an upstream `U`.
pub struct Tunnel<C, U> {
    client: C,
    upstream: U,
    upload: Direction,
    download: Direction,
    /// The length of the response's head, which is written before the first byte of the tunnel.
    head_length: u64,
    /// The failure of the tunnel, and the time until which earlier bytes may wait to be sent.
    failed: Option<(TunnelOutcome, CoarseTime)>,
}

/// One direction of a tunnel.
#[derive(Default)]
struct Direction {
    bytes: Buffer,
    /// Number of `bytes` that were written.
    written: usize,
    phase: Phase,
    /// After a failure of the source, the time until which its last bytes may wait for the target.
    failing_until: Option<CoarseTime>,
    /// Bytes written to the target so far.
    sent: u64,
    /// Reads and writes so far.
    steps: u64,
}

/// The phase of one direction.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Phase {
    #[default]
    Open,
    /// The source has ended; the target is closed after the last byte.
    SourceEnded,
    /// The source failed. All bytes read from it were sent, or dropped after [`FLUSH_TIMEOUT`].
    SourceFailed,
    /// The target was closed after the last byte.
    Ended,
    /// The target failed.
    TargetFailed,
}

impl Direction {
    fn has_unsent(&self) -> bool {
        self.written < self.bytes.len()
    }

    /// Moves bytes from `source` to `target` until one of them is not ready. `now` is the coarse
    /// time.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        now: CoarseTime,
        source: &mut impl TunnelEnd,
        target: &mut impl TunnelEnd,
    ) {
        for _ in 0..MAX_ROUNDS {
            if self.has_unsent() {
                match target.poll_write(cx, &self.bytes[self.written..]) {
                    Poll::Pending => {
                        if self.failing_until.is_none() && source.read_ahead(cx).is_err() {
                            self.failing_until = Some(now + FLUSH_TIMEOUT);
                        }
                        if self.failing_until.is_some_and(|until| now > until) {
                            // The target may never accept the rest.
                            self.discard(Phase::SourceFailed);
                        }
                        return;
                    }
                    Poll::Ready(Ok(count)) if count > 0 => {
                        self.written += count;
                        self.sent += count as u64;
                        self.steps += 1;
                    }
                    Poll::Ready(_) => return self.discard(Phase::TargetFailed),
                }
                continue;
            }
            self.bytes.clear();
            self.written = 0;
            match self.phase {
                Phase::Open => match source.poll_read(cx, &mut self.bytes) {
                    Poll::Pending => {
                        // An idle tunnel holds no buffer.
                        self.bytes = Buffer::default();
                        if let Poll::Ready(Err(_)) = target.poll_flush(cx) {
                            self.discard(Phase::TargetFailed);
                        }
                        return;
                    }
                    // A socket reports its failure once, and then an end.
                    Poll::Ready(Ok(0)) if self.failing_until.is_some() => {
                        self.phase = Phase::SourceFailed;
                    }
                    Poll::Ready(Ok(0)) => self.phase = Phase::SourceEnded,
                    Poll::Ready(Ok(_)) => self.steps += 1,
                    Poll::Ready(Err(_)) => self.phase = Phase::SourceFailed,
                },
                Phase::SourceEnded => match target.poll_close(cx) {
                    Poll::Pending => return,
                    Poll::Ready(Ok(())) => self.phase = Phase::Ended,
                    Poll::Ready(Err(_)) => return self.discard(Phase::TargetFailed),
                },
                Phase::SourceFailed | Phase::Ended | Phase::TargetFailed => return,
            }
        }
        yield_turn(cx);
    }

    /// Ends the direction, and drops its unsent bytes.
    fn discard(&mut self, phase: Phase) {
        self.phase = phase;
        self.bytes = Buffer::default();
        self.written = 0;
    }
}

impl<C: TunnelEnd, U: TunnelEnd> Tunnel<C, U> {
    /// A tunnel that first writes `head` to the client.
    pub fn new(client: C, upstream: U, head: Buffer) -> Self {
        let head_length = head.len() as u64;
        let download = Direction { bytes: head, ..Direction::default() };
        let upload = Direction::default();
        Self { client, upstream, upload, download, head_length, failed: None }
    }

    /// The number of bytes written to the client, and to the upstream.
    pub fn bytes(&self) -> (u64, u64) {
        (self.download.sent.saturating_sub(self.head_length), self.upload.sent)
    }

    /// Moves bytes in both directions. Ready when the tunnel has ended. `state` holds the tunnel's
    /// idle timeout.
    pub fn poll(&mut self, cx: &mut Context<'_>, state: &StateCell) -> Poll<TunnelOutcome> {
        if self.failed.is_some() {
            return self.poll_abort(cx, state);
        }
        let steps = self.upload.steps + self.download.steps;
        self.upload.poll(cx, state.now(), &mut self.client, &mut self.upstream);
        self.download.poll(cx, state.now(), &mut self.upstream, &mut self.client);
        if self.upload.steps + self.download.steps > steps {
            state.mark_tunnel_progress();
        }
        let outcome = match self.outcome() {
            Some(TunnelOutcome::Complete) => return Poll::Ready(TunnelOutcome::Complete),
            Some(outcome) => outcome,
            None if state.expired_deadline().is_some() => TunnelOutcome::TimedOut,
            None => {
                // While a target is slow, its source is not read, and nothing wakes the task if the
                // source fails.
                let has_unsent = self.upload.has_unsent() || self.download.has_unsent();
                state.set_sweep_wake(if has_unsent {
                    SweepWake::Always
                } else {
                    SweepWake::OnTimeout
                });
                return Poll::Pending;
            }
        };
        let failing_until = self.upload.failing_until.or(self.download.failing_until);
        self.failed = Some((outcome, failing_until.unwrap_or(state.now() + FLUSH_TIMEOUT)));
        // If a side accepts no more, only the sweep can end the wait for it.
        state.begin_tunnel(None);
        state.set_sweep_wake(SweepWake::Always);
        self.poll_abort(cx, state)
    }

    /// Resets both sides once they have accepted the written bytes, such as a last message, or
    /// their time is over.
    fn poll_abort(&mut self, cx: &mut Context<'_>, state: &StateCell) -> Poll<TunnelOutcome> {
        let Some((outcome, until)) = self.failed else { return Poll::Pending };
        let client = self.client.poll_written(cx);
        let upstream = self.upstream.poll_written(cx);
        if (client.is_pending() || upstream.is_pending()) && state.now() <= until {
            return Poll::Pending;
        }
        self.client.abort();
        self.upstream.abort();
        Poll::Ready(outcome)
    }

    /// The outcome; `None` until the tunnel has ended.
    fn outcome(&self) -> Option<TunnelOutcome> {
        let Self { upload, download, .. } = self;
        if download.phase == Phase::SourceFailed {
            return Some(TunnelOutcome::UpstreamFailed);
        }
        if upload.phase == Phase::SourceFailed {
            return Some(TunnelOutcome::ClientFailed);
        }
        // A side to which a write failed is still read to its end: it may have sent bytes before.
        match (upload.phase, download.phase) {
            (Phase::Ended | Phase::TargetFailed, Phase::Ended) => Some(TunnelOutcome::Complete),
            (Phase::Ended, Phase::TargetFailed) => Some(TunnelOutcome::ClientFailed),
            (Phase::TargetFailed, Phase::TargetFailed) => Some(TunnelOutcome::UpstreamFailed),
            _ => None,
        }
    }
}

/// Reads for a [`TunnelEnd`] over a socket: first `before`, which was read before the tunnel began.
pub fn poll_read_socket(
    before: &mut ReadBuffer,
    socket: &SharedSocket,
    cx: &mut Context<'_>,
    out: &mut Vec<u8>,
) -> Poll<io::Result<usize>> {
    if before.is_empty() {
        return poll_read(socket, cx, |bytes| {
            out.extend_from_slice(bytes);
            bytes.len()
        });
    }
    let count = before.bytes().len();
    out.extend_from_slice(before.bytes());
    before.consume(count);
    Poll::Ready(Ok(count))
}

#[cfg(test)]
mod tests;
