//! [`ReadAhead`]: a buffer for a response whose client does not read.

use std::io;

use tidegate_http1::BodyEncoder;
use tidegate_transport::read_buffer::READ_SIZE;

use super::{
    client_holdings::Holding, endpoint::InFlight, paced_place::PacedPlace, upload::reserve_buffer,
};

/// Bytes of a response, read ahead so that its place at the target becomes free. While the buffer
/// is full and the client does not read, the client holds the place.
pub(super) struct ReadAhead {
    pub(super) bytes: Vec<u8>,
    /// Number of `bytes` that were taken.
    start: usize,
    /// The size of the buffer, in bytes.
    limit: usize,
    _buffer: Option<Holding>,
    place: Option<PacedPlace>,
    /// The failure that ends the response after `bytes`.
    pub(super) failure: Option<io::Error>,
}

/// The state of a response's place at the target while it waits for its client.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub enum ReadAheadOutcome {
    /// The place is free, or the target decides when it becomes free.
    Unpaced,
    /// The place counts in the client's share. The transfer must be polled at each sweep.
    Paced,
    /// The client has lost the place: it is too slow, or beyond its share.
    Lost,
}

impl ReadAhead {
    /// An empty buffer for the response of `in_flight`; `None` if its upstream has no bounds.
    pub(super) fn new(in_flight: &InFlight) -> Option<Self> {
        let holder = in_flight.holder()?;
        let endpoint = in_flight.pool().endpoint();
        let buffer = reserve_buffer(endpoint.buffers(), holder.held.client);
        let size = holder.set.servers.bounds.pacing.response_buffer;
        Some(Self {
            bytes: Vec::new(),
            start: 0,
            limit: if buffer.is_some() { size } else { 0 },
            _buffer: buffer,
            place: None,
            failure: None,
        })
    }

    /// True if nothing is left to take.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.failure.is_none()
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes.len() - self.start >= self.limit
    }

    /// Drops the bytes that were taken, before more are read.
    pub(super) fn compact(&mut self) {
        self.bytes.drain(..std::mem::take(&mut self.start));
    }

    /// Moves the next bytes to `out`, encoded by `encoder`. Returns their number; 0 if there are
    /// none.
    pub(super) fn take(&mut self, encoder: BodyEncoder, out: &mut Vec<u8>) -> usize {
        let end = self.bytes.len().min(self.start + READ_SIZE);
        encoder.write(out, |out| out.extend_from_slice(&self.bytes[self.start..end]));
        let count = end - std::mem::replace(&mut self.start, end);
        if end == self.bytes.len() {
            (self.bytes, self.start) = (Vec::new(), 0);
        }
        self.add(count);
        count
    }

    /// Counts bytes that the client is about to get.
    pub(super) fn add(&mut self, count: usize) {
        if let Some(place) = &mut self.place {
            place.add(count);
        }
    }

    /// Records that the response waits for the target.
    pub(super) fn mark_waiting_for_target(&mut self, in_flight: &InFlight) {
        if let Some(place) = &mut self.place {
            place.stop(in_flight.pool().now());
        }
    }

    /// Records that the response waits for the client: the buffer is full and the client does not
    /// read.
    pub(super) fn mark_waiting_for_client(&mut self, in_flight: &InFlight) -> ReadAheadOutcome {
        let now = in_flight.pool().now();
        if self.place.is_none() {
            self.place = in_flight.pace(now);
        }
        let Some(place) = &mut self.place else { return ReadAheadOutcome::Unpaced };
        if place.wait(now) { ReadAheadOutcome::Lost } else { ReadAheadOutcome::Paced }
    }

    /// Ends the client's hold on the place.
    pub(super) fn release_place(&mut self) {
        self.place = None;
    }
}
