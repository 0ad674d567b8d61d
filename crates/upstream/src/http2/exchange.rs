//! One exchange on an HTTP/2 connection: sends the request, and waits for the head of its response.

use std::{
    io,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h2::{Reason, SendStream, client::ResponseFuture};
use http::StatusCode;
use tidegate_base::time::Millis;
use tidegate_http1::{
    BodyLength, FramingError, ResponseHead, Version, head::ConnectionOptions,
    head::MAX_RESPONSE_FIELDS, header_map::to_fields, start_line::MAX_STATUS,
};
use tidegate_transport::connection_state::{ExpiredDeadline, Wait};
use tidegate_transport::{ClientStream, Http2Receiver, tunnel::Http2TunnelEnd};

use super::{
    Http2Slot, MAX_HEAD,
    body::{Http2Body, Upload},
    io_error,
};
use crate::{
    exchange::{
        ExchangeError, MAX_INTERIM_RESPONSES, begin_wait, check_deadlines, forward_interim,
    },
    outgoing_head::AttemptHead,
    request::{OutgoingRequest, SendError},
    upgrade::UpgradeRequest,
};

/// Maximum number of repetitions of a request whose stream the server refused. Without a bound, a
/// server that refuses everything would get the request in a loop.
const MAX_REFUSALS: u32 = 2;
/// Maximum number of repetitions of a request because the server has ended the connection with
/// GOAWAY. Servers may do so after an undisclosed number of requests.
const MAX_ENDED_CONNECTIONS: u32 = 8;

impl Http2Slot {
    /// Sends `outgoing` with `head`, and waits for the response's head, at most `response_timeout`
    /// after the last progress. A response that arrives before the body is sent is returned at once;
    /// [`Http2Body`] sends the rest. Interim responses are forwarded to `client`.
    ///
    /// # Errors
    /// A deadline has passed, the client's body failed, or the connection or the response failed.
    pub(crate) async fn exchange(
        &self,
        head: AttemptHead<'_>,
        outgoing: &mut OutgoingRequest,
        client: &dyn ClientStream,
        response_timeout: Option<Millis>,
    ) -> Result<Http2Response, ExchangeError> {
        let state = client.state();
        state.set_wait(Wait::Internal);
        let mut send = self.connection.send.clone();
        std::future::poll_fn(|cx| match state.expired_deadline() {
            Some(ExpiredDeadline::Upstream | ExpiredDeadline::Request) => {
                Poll::Ready(Err(ExchangeError::Expired))
            }
            _ => match send.poll_ready(cx) {
                Poll::Ready(ready) => Poll::Ready(ready.map_err(failed)),
                Poll::Pending => {
                    state.begin_upstream_wait(response_timeout);
                    Poll::Pending
                }
            },
        })
        .await
        .inspect_err(|_| self.connection.is_retired.set(true))?;
        let is_upgrade = outgoing.http2_upgrade().is_some();
        if is_upgrade && !send.is_extended_connect_protocol_enabled() {
            return Err(ExchangeError::UpgradeUnsupported);
        }
        let ends = !outgoing.has_body() && !is_upgrade;
        let request = outgoing.http2_head(head).map_err(ExchangeError::Request)?;
        let sent = send.send_request(request, ends).map_err(failed);
        // The connection has no further stream identifier, or has just failed.
        let (mut response, stream) = sent.inspect_err(|_| self.connection.is_retired.set(true))?;
        outgoing.mark_http2_started();
        let (mut upload, mut tunnel) = (None, None);
        if is_upgrade {
            tunnel = Some(stream);
        } else if !ends {
            upload = Some(Upload::new(stream));
        }
        let mut interim_responses = 0;
        let result = std::future::poll_fn(|cx| {
            check_deadlines(state)?;
            if let Some(sending) = &mut upload {
                match sending.poll_send(outgoing, cx) {
                    Poll::Ready(Err(SendError::Body(error))) => {
                        return Poll::Ready(Err(ExchangeError::Body(error)));
                    }
                    // After an error as well: the server may have answered without reading the
                    // whole body.
                    Poll::Ready(Ok(()) | Err(SendError::Io(_))) => upload = None,
                    Poll::Pending => {}
                }
            }
            while let Poll::Ready(Some(Ok(interim))) = response.poll_informational(cx) {
                interim_responses += 1;
                let error = if interim.status() == StatusCode::SWITCHING_PROTOCOLS {
                    // RFC 9113, 8.6.
                    FramingError::UnexpectedUpgrade
                } else if interim_responses > MAX_INTERIM_RESPONSES {
                    FramingError::TooManyInterim
                } else {
                    if interim.status() == StatusCode::CONTINUE {
                        outgoing.continue_body(cx);
                        continue;
                    }
                    self.has_sent_interim.set(true);
                    let head = response_head(interim.status(), interim.headers());
                    forward_interim(client, &head);
                    continue;
                };
                return Poll::Ready(Err(ExchangeError::Failed(error.into())));
            }
            match poll_head(&mut response, cx) {
                Poll::Ready(head) => Poll::Ready(head.map_err(failed)),
                Poll::Pending => {
                    match upload {
                        Some(_) => begin_wait(state, outgoing, response_timeout),
                        None => state.begin_upstream_wait(response_timeout),
                    }
                    Poll::Pending
                }
            }
        })
        .await;
        let result = result.and_then(|(head, stream)| {
            check_head(head, outgoing.http2_upgrade()).map(|head| (head, stream))
        });
        self.conclude(result, upload, tunnel)
    }

    /// The response, or the error of an exchange. After an error the rest of the request is not
    /// sent.
    fn conclude(
        &self,
        result: Result<(ResponseHead, Http2Receiver), ExchangeError>,
        mut upload: Option<Upload>,
        mut tunnel: Option<SendStream<Bytes>>,
    ) -> Result<Http2Response, ExchangeError> {
        match result {
            Ok((head, stream)) => {
                if let Some(unused) = tunnel.as_mut().filter(|_| head.status >= 300) {
                    // The server refused the upgrade with an ordinary response. Reading its body
                    // reports an error of this send.
                    let _ = unused.send_data(Bytes::new(), true);
                    tunnel = None;
                }
                Ok(Http2Response { head, stream, upload, tunnel })
            }
            Err(error) => {
                if retires(&error) {
                    self.connection.is_retired.set(true);
                }
                let upload = upload.as_mut().map(Upload::stream);
                if let Some(stream) = upload.or(tunnel.as_mut()) {
                    stream.send_reset(Reason::CANCEL);
                }
                Err(error)
            }
        }
    }
}

/// The response to one exchange.
pub(crate) struct Http2Response {
    pub(crate) head: ResponseHead,
    stream: Http2Receiver,
    upload: Option<Upload>,
    /// The sending side of a stream on which another protocol begins.
    tunnel: Option<SendStream<Bytes>>,
}

impl Http2Response {
    /// The status.
    pub(crate) fn status(&self) -> u16 {
        self.head.status
    }

    /// Takes the sending side of a stream on which another protocol begins.
    pub(crate) fn take_tunnel(&mut self) -> Option<SendStream<Bytes>> {
        self.tunnel.take()
    }

    /// The head, and the stream whose sending side is `send`.
    pub(crate) fn into_tunnel(self, send: SendStream<Bytes>) -> (ResponseHead, Http2TunnelEnd) {
        (self.head, Http2TunnelEnd::new(send, self.stream))
    }

    /// The body, which also sends the rest of `outgoing`.
    pub(crate) fn into_body(
        self,
        outgoing: OutgoingRequest,
        slot: Http2Slot,
    ) -> (ResponseHead, Http2Body) {
        let upload = self.upload.map(|upload| (upload, outgoing));
        let stream = self.stream;
        (self.head, Http2Body::new(stream, upload, slot))
    }
}

/// Checks the bounds of `head`. A 2xx to an upgrade becomes the response for the client.
fn check_head(
    mut head: ResponseHead,
    upgrade: Option<&UpgradeRequest>,
) -> Result<ResponseHead, ExchangeError> {
    let malformed = |error: FramingError| ExchangeError::Failed(error.into());
    if head.fields.len() > MAX_RESPONSE_FIELDS {
        return Err(malformed(FramingError::TooManyFields(MAX_RESPONSE_FIELDS)));
    }
    if head.fields.bytes().len() > MAX_HEAD {
        return Err(malformed(FramingError::HeadTooLarge(MAX_HEAD)));
    }
    if head.status > MAX_STATUS {
        return Err(malformed(FramingError::StatusLine));
    }
    let mut lengths = head.fields.get_all("content-length");
    if let Some(length) = lengths.next() {
        if lengths.next().is_some() {
            return Err(malformed(FramingError::LengthRepeated));
        }
        // The library reads an empty value as 0.
        if length.is_empty() || !length.iter().all(u8::is_ascii_digit) {
            return Err(malformed(FramingError::LengthMalformed));
        }
    }
    drop(lengths);
    if let Some(upgrade) = upgrade.filter(|_| head.status < 300) {
        upgrade.accept_http2(&mut head).map_err(malformed)?;
    }
    Ok(head)
}

/// Waits for the head of the final response.
fn poll_head(
    response: &mut ResponseFuture,
    cx: &mut Context<'_>,
) -> Poll<Result<(ResponseHead, Http2Receiver), h2::Error>> {
    let response = ready!(std::pin::Pin::new(response).poll(cx))?;
    let (parts, stream) = response.into_parts();
    let head = response_head(parts.status, &parts.headers);
    Poll::Ready(Ok((head, Http2Receiver::new(stream))))
}

fn response_head(status: StatusCode, headers: &http::HeaderMap) -> ResponseHead {
    let length = headers.get(http::header::CONTENT_LENGTH);
    let length = length.and_then(|value| value.to_str().ok()?.parse().ok()).map(BodyLength::Known);
    ResponseHead {
        status: status.as_u16(),
        version: Version::Http2,
        fields: to_fields(headers),
        length,
        connection: ConnectionOptions::default(),
    }
}

/// True if this failure retires the connection. A hung server keeps its connections open, whereas a
/// server that resets a stream continues the others.
fn retires(error: &ExchangeError) -> bool {
    match error {
        ExchangeError::Expired => true,
        ExchangeError::Failed(error) => !h2_error(error).is_some_and(h2::Error::is_reset),
        ExchangeError::Body(_) | ExchangeError::Request(_) | ExchangeError::UpgradeUnsupported => {
            false
        }
    }
}

/// True if the connection failed, not just this exchange.
pub(crate) fn is_connection_lost(error: &ExchangeError) -> bool {
    let ExchangeError::Failed(error) = error else { return false };
    let malformed = error.get_ref().and_then(|error| error.downcast_ref::<FramingError>());
    malformed.is_none() && !h2_error(error).is_some_and(h2::Error::is_reset)
}

fn h2_error(error: &io::Error) -> Option<&h2::Error> {
    error.get_ref()?.downcast_ref()
}

fn failed(error: h2::Error) -> ExchangeError {
    ExchangeError::Failed(io_error(error))
}

/// True if the server wants the request over HTTP/1.1.
pub(crate) fn requires_http1(error: &io::Error) -> bool {
    h2_error(error).is_some_and(|error| error.reason() == Some(Reason::HTTP_1_1_REQUIRED))
}

/// Maximum number of repetitions after such an error: above 0 if the server has certainly not
/// processed the request (RFC 9113, 8.7).
pub(crate) fn max_resends(error: &io::Error) -> u32 {
    let Some(error) = h2_error(error).filter(|error| error.is_remote()) else { return 0 };
    match error.reason() {
        Some(Reason::REFUSED_STREAM) => MAX_REFUSALS,
        // RFC 9113, 7.
        Some(Reason::HTTP_1_1_REQUIRED) if error.is_reset() => 1,
        Some(Reason::NO_ERROR) if error.is_go_away() => MAX_ENDED_CONNECTIONS,
        _ => 0,
    }
}
