//! gRPC calls whose response is sent while it is made: the watched health, and reflection.

use std::{
    rc::Rc,
    task::{Context, Poll, ready},
};

use prost::Message;

use crate::{
    connection_state::CloseMode,
    grpc::{
        MAX_MESSAGE,
        descriptors::FileTable,
        frame_message,
        health::{HealthCheckResponse, ServingStatus},
        next_frame,
        reflection::{ReflectionRequest, answer},
    },
    http1::BodyEncoder,
    transport::ClientStream,
    upstream::OwnBody,
};

/// The status of a service that is `running` as long as the gateway does.
pub(super) fn status_now(client: &dyn ClientStream, running: ServingStatus) -> ServingStatus {
    let is_stopping = client.state().close_mode() > CloseMode::KeepOpen;
    match running {
        ServingStatus::Serving if is_stopping => ServingStatus::NotServing,
        status => status,
    }
}

/// The health of a service, sent now and when the gateway stops.
pub(super) struct HealthWatch {
    client: Rc<dyn ClientStream>,
    /// The status of the service while the gateway runs.
    running: ServingStatus,
    sent: Option<ServingStatus>,
}

impl HealthWatch {
    pub(super) fn new(client: Rc<dyn ClientStream>, running: ServingStatus) -> Self {
        Self { client, running, sent: None }
    }
}

impl OwnBody for HealthWatch {
    fn poll(&mut self, _: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<usize> {
        let is_stopping = self.client.state().close_mode() > CloseMode::KeepOpen;
        let status = status_now(&*self.client, self.running);
        if self.sent == Some(status) {
            // The stream ends with the connection; its state wakes the task when that must close.
            return if is_stopping { Poll::Ready(0) } else { Poll::Pending };
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
}

impl ReflectionStream {
    pub(super) fn new(client: Rc<dyn ClientStream>, files: &'static [FileTable]) -> Self {
        Self { client, files, received: Vec::new() }
    }

    /// The answer to the next question; `None` if it is incomplete, or if it cannot be read.
    fn next_answer(&mut self) -> Result<Option<Vec<u8>>, ()> {
        let Some(frame) = next_frame(&self.received).map_err(drop)? else { return Ok(None) };
        let question = ReflectionRequest::decode(frame.message).map_err(drop)?;
        let rest = frame.rest.len();
        self.received.drain(..self.received.len() - rest);
        Ok(Some(frame_message(&answer(question, self.files).encode_to_vec())))
    }
}

impl OwnBody for ReflectionStream {
    fn poll(&mut self, cx: &mut Context<'_>, out: &mut Vec<u8>) -> Poll<usize> {
        loop {
            match self.next_answer() {
                Ok(Some(framed)) => {
                    out.extend_from_slice(&framed);
                    return Poll::Ready(framed.len());
                }
                Ok(None) if self.received.len() <= MAX_MESSAGE => {}
                Ok(None) | Err(()) => return Poll::Ready(0),
            }
            if self.client.state().close_mode() > CloseMode::KeepOpen {
                return Poll::Ready(0);
            }
            let read = self.client.poll_body(cx, BodyEncoder::Plain, &mut self.received);
            if !matches!(ready!(read), Ok(1..)) {
                return Poll::Ready(0);
            }
        }
    }
}
