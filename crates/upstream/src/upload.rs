//! [`BufferedUpload`]: a request's body that is read before the request takes a place at a target.

use std::{
    cell::{Cell, RefCell},
    net::IpAddr,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
};

use tidegate_base::time::{CoarseTime, Millis};
use tidegate_http1::{BodyEncoder, BodyLength};
use tidegate_transport::connection_state::{COARSE_TICK, SweepWake, Wait};
use tidegate_transport::{
    BodyError, ClientStream, ClientStreamLayer, KeptBytes, read_buffer::READ_SIZE,
    socket::yield_turn,
};

use super::{
    LoadBalancer, Pacing,
    client_holdings::{ClientHoldings, Holding},
    paced_place::PacedPlace,
};

/// Time of a pause after which a body of unknown length is forwarded: its client may be waiting for
/// the response.
const PAUSE: Millis = Millis::from_secs(1);
/// Maximum number of reads in one poll. Then the task yields.
const MAX_READS_PER_POLL: usize = 8;
/// The maximum number of buffers of one client at one upstream.
const MAX_BUFFERS_OF_CLIENT: u32 = 128;
/// The maximum number of buffers at one upstream.
const MAX_BUFFERS: u32 = 1024;

/// Reserves a buffer for a transfer that waits for its client; `None` if the client or all clients
/// have too many.
pub(super) fn reserve_buffer(buffers: &Arc<ClientHoldings>, client: IpAddr) -> Option<Holding> {
    buffers.try_add(client, MAX_BUFFERS_OF_CLIENT, MAX_BUFFERS)
}

/// The settings of an upload.
#[derive(Clone, Copy, Debug)]
pub struct UploadSettings {
    /// The client's masked address.
    pub client: IpAddr,
    /// The bounds of buffering.
    pub pacing: Pacing,
    /// True if the client may wait for the response before it sends more, as in a gRPC stream. The
    /// request then takes its place at once.
    pub is_streaming: bool,
}

/// A request's body. [`Self::fill`] reads it until it is complete or fills its buffer. The rest is
/// forwarded as it arrives, while the request's place counts in the client's share.
pub struct BufferedUpload {
    client: Rc<dyn ClientStream>,
    settings: UploadSettings,
    body: RefCell<BufferedBody>,
    /// True once the target has responded.
    is_answered: Cell<bool>,
}

#[derive(Default)]
struct BufferedBody {
    kept: KeptBytes,
    /// Number of bytes that have arrived.
    received: u64,
    /// True once the end has arrived.
    has_ended: bool,
    /// True if it was forwarded because it paused.
    has_paused: bool,
    buffer: Option<Holding>,
    place: Option<Box<PacedPlace>>,
}

impl BufferedUpload {
    /// The unread body of `client`'s request.
    pub fn new(client: Rc<dyn ClientStream>, settings: UploadSettings) -> Rc<Self> {
        let (body, is_answered) = (RefCell::default(), Cell::new(false));
        Rc::new(Self { client, settings, body, is_answered })
    }

    /// Reads until the body is complete or fills its buffer. Returns early if its client may wait
    /// for the response.
    ///
    /// # Errors
    /// The body failed, is longer than allowed, or is late.
    pub async fn fill(&self, balancer: &LoadBalancer) -> Result<(), BodyError> {
        let state = self.client.state();
        let mut progressed_at = state.now();
        let filled = std::future::poll_fn(|cx| {
            if state.expired_deadline().is_some() {
                return Poll::Ready(Err(BodyError::TimedOut));
            }
            let read = self.poll_fill(cx, balancer, &mut progressed_at);
            if read.is_pending() {
                state.begin_client_body_wait();
            }
            read
        });
        let filled = filled.await;
        state.set_sweep_wake(SweepWake::OnTimeout);
        state.set_wait(Wait::Internal);
        filled
    }

    fn poll_fill(
        &self,
        cx: &mut Context<'_>,
        balancer: &LoadBalancer,
        progressed_at: &mut CoarseTime,
    ) -> Poll<Result<(), BodyError>> {
        let (state, body) = (self.client.state(), &mut *self.body.borrow_mut());
        let limit = self.settings.pacing.request_buffer;
        for _ in 0..MAX_READS_PER_POLL {
            if body.kept.bytes.len() >= limit.max(READ_SIZE) {
                return Poll::Ready(Ok(()));
            }
            match self.client.poll_body(cx, BodyEncoder::Plain, &mut body.kept.bytes) {
                Poll::Ready(Ok(0)) => {
                    body.has_ended = true;
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Ok(count)) => {
                    body.received += count as u64;
                    *progressed_at = state.now();
                    state.set_wait(Wait::Internal);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    let is_over = self.must_begin(body, balancer, *progressed_at);
                    return if is_over { Poll::Ready(Ok(())) } else { Poll::Pending };
                }
            }
        }
        yield_turn(cx);
        Poll::Pending
    }

    /// True if the request must take a place before its body is complete.
    fn must_begin(
        &self,
        body: &mut BufferedBody,
        balancer: &LoadBalancer,
        since: CoarseTime,
    ) -> bool {
        let UploadSettings { client, pacing, is_streaming, .. } = self.settings;
        if is_streaming || body.kept.bytes.len() >= pacing.request_buffer {
            return true;
        }
        if body.buffer.is_none() {
            body.buffer = reserve_buffer(balancer.buffers(), client);
            if body.buffer.is_none() {
                return true;
            }
        }
        if self.client.length() != BodyLength::Chunked {
            return false;
        }
        self.client.state().set_sweep_wake(SweepWake::Always);
        // The coarse time of the last read may be a tick behind.
        let has_paused = self.client.state().now() > since + PAUSE + COARSE_TICK;
        body.has_paused = has_paused && balancer.has_share(client);
        body.has_paused
    }

    /// True once the whole body has arrived, so that the client does not decide how long the
    /// request takes.
    pub(super) fn is_complete(&self) -> bool {
        let body = self.body.borrow();
        body.has_ended || self.client.length() == BodyLength::Known(body.received)
    }

    /// Sets the place that the body holds at the client's pace; `None` releases it.
    pub(super) fn hold(&self, place: Option<Box<PacedPlace>>) {
        self.body.borrow_mut().place = place;
    }

    /// Records that the target has responded.
    pub(super) fn mark_answered(&self) {
        self.is_answered.set(true);
    }

    /// True if the client may pause for any time, because it may be waiting for the target.
    fn may_pause(&self, body: &BufferedBody) -> bool {
        self.settings.is_streaming || body.has_paused && self.is_answered.get()
    }

    /// Reads the bytes after the buffer.
    fn poll_rest(
        &self,
        body: &mut BufferedBody,
        cx: &mut Context<'_>,
        encoder: BodyEncoder,
        out: &mut Vec<u8>,
    ) -> Poll<Result<usize, BodyError>> {
        let state = self.client.state();
        let Poll::Ready(read) = self.client.poll_body(cx, encoder, out) else {
            let may_pause = self.may_pause(body);
            if let Some(place) = &mut body.place {
                state.set_sweep_wake(if may_pause {
                    SweepWake::OnTimeout
                } else {
                    SweepWake::Always
                });
                if !may_pause && place.wait(state.now()) {
                    return Poll::Ready(Err(BodyError::TooSlow));
                }
            }
            return Poll::Pending;
        };
        let count = read?;
        body.received += count as u64;
        body.has_ended = count == 0;
        if body.has_ended || self.client.length() == BodyLength::Known(body.received) {
            body.place = None;
            state.set_sweep_wake(SweepWake::OnTimeout);
        } else if let Some(place) = &mut body.place {
            place.add(count);
            place.stop(state.now());
        }
        Poll::Ready(Ok(count))
    }
}

impl ClientStreamLayer for BufferedUpload {
    fn client(&self) -> &dyn ClientStream {
        &*self.client
    }

    fn poll_layer(
        &self,
        cx: &mut Context<'_>,
        encoder: BodyEncoder,
        out: &mut Vec<u8>,
    ) -> Poll<Result<usize, BodyError>> {
        let body = &mut *self.body.borrow_mut();
        if let Some(count) = body.kept.forward(encoder, out) {
            if body.kept.is_forwarded() {
                body.buffer = None;
            }
            return Poll::Ready(Ok(count));
        }
        if body.has_ended {
            return Poll::Ready(Ok(0));
        }
        self.poll_rest(body, cx, encoder, out)
    }
}
