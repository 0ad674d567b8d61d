//! gRPC calls whose response is sent while it is made: the watched health, and reflection.

use std::{
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

use prost::Message;
use tidegate_envoy::grpc::{
    GrpcError, GrpcStatus, decode_message,
    descriptors::FileTable,
    frame_message,
    health::{HealthCheckResponse, ServingStatus},
    next_frame,
    reflection::{ReflectionRequest, answer},
};
use tidegate_http1::{BodyEncoder, Fields};
use tidegate_transport::ClientStream;
use tidegate_transport::connection_state::CloseMode;
use tidegate_upstream::OwnBody;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// The status of a service that is `running` as long as the gateway does. `leaving` is cancelled
/// when it has been asked to stop.
pub(super) fn status_now(
    client: &dyn ClientStream,
    leaving: &CancellationToken,
    running: ServingStatus,
) -> ServingStatus {
    let is_closing = client.state().close_mode() > CloseMode::KeepOpen;
    match running {
        ServingStatus::Serving if is_closing || leaving.is_cancelled() => ServingStatus::NotServing,
        status => status,
    }
}

/// The health of a service, sent now and when the gateway stops.
pub(super) struct HealthWatch {
    client: Rc<dyn ClientStream>,
    leaving: CancellationToken,
    /// Wakes the stream when the gateway has been asked to stop.
    left: Pin<Box<WaitForCancellationFutureOwned>>,
    /// The status of the service while the gateway runs.
    running: ServingStatus,
    sent: Option<ServingStatus>,
}

impl HealthWatch {
    pub(super) fn new(
        client: Rc<dyn ClientStream>,
        leaving: &CancellationToken,
        running: ServingStatus,
    ) -> Self {
        let leaving = leaving.clone();
        let left = Box::pin(leaving.clone().cancelled_owned());
        Self { client, leaving, left, running, sent: None }
    }
}

impl OwnBody for HealthWatch {
    fn poll(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<usize> {
        let is_closing = self.client.state().close_mode() > CloseMode::KeepOpen;
        let status = status_now(&*self.client, &self.leaving, self.running);
        if self.sent == Some(status) {
            if !self.leaving.is_cancelled() && self.left.as_mut().poll(cx).is_ready() {
                // It was asked to stop since the status was read.
                cx.waker().wake_by_ref();
            }
            // The stream ends with the connection; its state wakes the task when that must close.
            return if is_closing { Poll::Ready(0) } else { Poll::Pending };
        }
        self.sent = Some(status);
        let framed = frame_message(&HealthCheckResponse::new(status).encode_to_vec());
        out.extend_from_slice(&framed);
        Poll::Ready(framed.len())
    }
}

/// Answers to questions of a client about services, one after the other.
pub(super) struct ReflectionStream {
    client: Rc<dyn ClientStream>,
    files: &'static [FileTable],
    /// Bytes of questions that are not complete.
    received: Vec<u8>,
    /// Why the stream ended before the client's last question was answered.
    failure: Option<GrpcError>,
}

impl ReflectionStream {
    pub(super) fn new(client: Rc<dyn ClientStream>, files: &'static [FileTable]) -> Self {
        Self { client, files, received: Vec::new(), failure: None }
    }

    /// The answer to the next question; `None` if it is incomplete.
    fn next_answer(&mut self) -> Result<Option<Vec<u8>>, GrpcError> {
        let Some(frame) = next_frame(&self.received)? else { return Ok(None) };
        let question = ReflectionRequest::decode(frame.message).map_err(|error| {
            let text = format!("the message cannot be read: {error}");
            GrpcError::new(GrpcStatus::InvalidArgument, text)
        })?;
        let rest = frame.rest.len();
        self.received.drain(..self.received.len() - rest);
        Ok(Some(frame_message(&answer(question, self.files).encode_to_vec())))
    }

    /// The next answer; `None` if the client asks no more, or the gateway stops.
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Vec<u8>>, GrpcError>> {
        loop {
            if let Some(framed) = self.next_answer()? {
                return Poll::Ready(Ok(Some(framed)));
            }
            if self.client.state().close_mode() > CloseMode::KeepOpen {
                return Poll::Ready(Ok(None));
            }
            let read = self.client.poll_body(cx, BodyEncoder::Plain, &mut self.received);
            if ready!(read).map_err(GrpcError::from)? == 0 {
                if !self.received.is_empty() {
                    // The body ends within a question.
                    decode_message(&self.received)?;
                }
                return Poll::Ready(Ok(None));
            }
        }
    }
}

impl OwnBody for ReflectionStream {
    fn poll(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<usize> {
        let framed = match ready!(self.poll_answer(cx)) {
            Ok(framed) => framed.unwrap_or_default(),
            Err(failure) => {
                self.failure = Some(failure);
                return Poll::Ready(0);
            }
        };
        out.extend_from_slice(&framed);
        Poll::Ready(framed.len())
    }

    fn take_trailers(&mut self) -> Option<Fields> {
        let failure = self.failure.take()?;
        let mut fields = Fields::new();
        failure.write(&mut fields);
        Some(fields)
    }
}
