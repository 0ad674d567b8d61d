//! One stream of an HTTP/2 connection: a request, and its body.

use std::{
    cell::{Cell, RefCell},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h2::{Reason, RecvStream, ext::Protocol, server::SendResponse};
use http::{Request, StatusCode};
use tidegate_http1::{
    BodyEncoder, BodyLength, Fields, FramingError, Http2Head, MessageKind, RequestHead,
    StreamContent, header_map::from_fields, header_map::to_trailers, upgrade::requested_protocol,
};
use tidegate_transport::connection_state::{CloseMode, ConnectionState, StateCell};
use tidegate_transport::{BodyError, ClientStream, Http2Receiver, socket::yield_turn};

use super::super::{DRAIN_TIMEOUT, MAX_DRAINED};
use super::{
    ClientHttp2Connection, FIELD_OVERHEAD, MAX_CLIENT_HEAD_BYTES, MAX_MESSAGE_BYTES,
    lingering::LingeringUpload,
};
use crate::{Gateway, Peer, Response};

/// Maximum number of interim (1xx) responses to forward on one stream. Further ones are dropped.
const MAX_INTERIM_RESPONSES: u32 = 32;

/// One stream, which carries one request.
pub(super) struct Http2Stream {
    connection: Rc<ClientHttp2Connection>,
    state: StateCell,
    body: RefCell<Body>,
    /// The client's side of an extended CONNECT, until its tunnel begins.
    tunnel: RefCell<Option<Http2Receiver>>,
    /// The handle to send interim responses and the response's head; `None` once the head is sent.
    pub(super) respond: RefCell<Option<SendResponse<Bytes>>>,
    interim_responses: Cell<u32>,
    /// Number of bytes of the head that the connection has counted.
    head_bytes: Cell<usize>,
    /// The same for a gRPC message.
    message_bytes: Cell<usize>,
}

impl Drop for Http2Stream {
    fn drop(&mut self) {
        let head = self.head_bytes.get();
        if head > 0 {
            self.connection.release_head(head);
            self.connection.peer.usage.head_bytes.subtract(head as u64);
        }
        let all = &self.connection.message_bytes;
        all.set(all.get() - self.message_bytes.get());
    }
}

/// The request's body.
struct Body {
    stream: Option<Http2Receiver>,
    length: BodyLength,
    trailers: Option<Box<Fields>>,
    /// True if the client waits for `100 Continue` before it sends the body.
    expects_continue: bool,
    /// True if the gateway reads no more of it.
    is_abandoned: bool,
}

impl Http2Stream {
    pub(super) fn new(connection: Rc<ClientHttp2Connection>) -> Rc<Self> {
        let state = StateCell::new(connection.coarse_clock.clone());
        let body = Body {
            stream: None,
            length: BodyLength::Known(0),
            trailers: None,
            expects_continue: false,
            is_abandoned: false,
        };
        Rc::new(Self {
            connection,
            state,
            body: RefCell::new(body),
            tunnel: RefCell::new(None),
            respond: RefCell::new(None),
            interim_responses: Cell::new(0),
            head_bytes: Cell::new(0),
            message_bytes: Cell::new(0),
        })
    }

    /// Answers the request. Ends early if the client resets the stream.
    pub(super) fn serve(
        self: Rc<Self>,
        gateway: &Gateway,
        request: Request<RecvStream>,
        respond: SendResponse<Bytes>,
    ) -> impl Future<Output = ()> {
        *self.respond.borrow_mut() = Some(respond);
        // Boxed before the connection takes the stream, so that an idle connection has no room for
        // the state of a request, and where it stays: it is large.
        let exchange = Box::write(Box::new_uninit(), self.clone().exchange(gateway, request));
        let exchange = Box::into_pin(exchange);
        async move {
            let was_reset = std::future::poll_fn(|cx| {
                self.state.register(cx.waker());
                let mut respond = self.respond.borrow_mut();
                let reset = respond.as_mut().map(|respond| respond.poll_reset(cx));
                Poll::Ready(reset.is_some_and(|reset| reset.is_ready()))
            });
            // The stream may have been reset before it was accepted.
            if was_reset.await {
                return self.count_reset();
            }
            match self.while_open(exchange).await {
                None => self.count_reset(),
                Some(None) => {}
                // Boxed: few streams need its state.
                Some(Some(upload)) => Box::pin(upload.discard(&self.state)).await,
            }
        }
    }

    /// Reserves room for a head, in the connection and among all heads of the client's address. False
    /// if there is none.
    fn reserve_head(&self, gateway: &Gateway, head: &RequestHead) -> bool {
        let bytes = head.fields.bytes().len() + head.fields.len() * FIELD_OVERHEAD;
        if !self.connection.reserve_head(bytes) {
            return false;
        }
        let Peer { address, usage, .. } = &self.connection.peer;
        // A trusted proxy is not bounded: its connections carry many clients.
        let is_counted = usage.head_bytes.try_add(bytes as u64, MAX_CLIENT_HEAD_BYTES)
            || gateway.trusts(*address) && usage.head_bytes.try_add(bytes as u64, u64::MAX);
        if !is_counted {
            self.connection.release_head(bytes);
            return false;
        }
        self.head_bytes.set(bytes);
        true
    }

    /// Answers the request. Returns the rest of its body if that has to linger.
    async fn exchange(
        self: Rc<Self>,
        gateway: &Gateway,
        request: Request<RecvStream>,
    ) -> Option<Box<LingeringUpload>> {
        self.state.begin_request();
        let (parts, body) = request.into_parts();
        let is_bodiless = body.is_end_stream();
        let body = Http2Receiver::new(body);
        let content = if is_bodiless { StreamContent::Nothing } else { StreamContent::Data };
        let protocol = parts.extensions.get::<Protocol>().map(Protocol::as_str);
        let head = Http2Head { parts: &parts, protocol, content };
        let head = RequestHead::from_http2(head, self.connection.bounds);
        drop(parts);
        if head.as_ref().is_ok_and(|head| !self.reserve_head(gateway, head)) {
            if let Some(mut respond) = self.respond.borrow_mut().take() {
                respond.send_reset(Reason::REFUSED_STREAM);
            }
            gateway.metrics().streams_refused.add(1);
            return None;
        }
        let peer = &self.connection.peer;
        let response = match head {
            Ok(head) => {
                if requested_protocol(&head).is_some() {
                    *self.tunnel.borrow_mut() = Some(body);
                } else {
                    *self.body.borrow_mut() = Body {
                        stream: (!is_bodiless).then_some(body),
                        length: head.length,
                        trailers: None,
                        expects_continue: !is_bodiless && head.expects_continue(),
                        is_abandoned: false,
                    };
                }
                gateway.handle(peer, Box::new(head), self.clone()).await
            }
            Err(error) => gateway.refuse_malformed(peer, error, self.clone()),
        };
        let refuses_upload = self.refuses_upload(&response);
        super::write(&self, response).await;
        if refuses_upload {
            let upload = &mut self.body.borrow_mut().stream;
            let lingering = LingeringUpload::take(&self.connection, upload);
            if lingering.is_some() {
                return lingering;
            }
        }
        if let Some(refused) = self.take_tunnel() {
            // Data that the client sends to a refused tunnel is discarded like a body.
            self.body.borrow_mut().stream = Some(refused);
        }
        self.drain_body().await;
        None
    }

    /// True if `response` is an error or a redirect, and the client may still send more of the body
    /// than is drained. False for an extended CONNECT, and for gRPC, whose clients have many calls
    /// open.
    fn refuses_upload(&self, response: &Response) -> bool {
        let may_be_long = |body: &Body| {
            body.stream.is_some() && (body.length == BodyLength::Chunked || !is_drainable(body))
        };
        response.status >= StatusCode::MULTIPLE_CHOICES
            && may_be_long(&self.body.borrow())
            && !response.answers_grpc()
    }

    /// Drives `work` to its end; `None` if the client resets the stream first, or the worker closes
    /// the connection with [`CloseMode::Immediate`].
    async fn while_open<T>(&self, mut work: Pin<Box<impl Future<Output = T>>>) -> Option<T> {
        std::future::poll_fn(|cx| {
            if self.state.close_mode() == CloseMode::Immediate {
                return Poll::Ready(None);
            }
            if !self.connection.take_stream_turn() {
                yield_turn(cx);
                return Poll::Pending;
            }
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(done));
            }
            if let Some(body) = &mut self.body.borrow_mut().stream {
                // The next read returns an error again.
                let _ = body.read_ahead(cx);
            }
            // Once the head is sent, the writer notices a reset.
            match &mut *self.respond.borrow_mut() {
                Some(respond) => respond.poll_reset(cx).map(|_| None),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Counts a stream that the client reset.
    pub(super) fn count_reset(&self) {
        self.connection.flood.count_reset(self.connection.coarse_clock.now());
    }

    /// Ready if the connection has room for more data to send.
    pub(super) fn poll_send_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.connection.send_budget.poll_room(cx)
    }

    /// The number of flushes of the connection.
    pub(super) fn flushes(&self) -> u64 {
        self.connection.send_budget.flushes()
    }

    /// Ready if the connection has flushed more than `flushes` times.
    pub(super) fn poll_flushed(&self, cx: &mut Context<'_>, flushes: u64) -> Poll<()> {
        self.connection.send_budget.poll_flushed(cx, flushes)
    }

    /// Counts bytes of a head that wait for the socket.
    pub(super) fn count_queued(&self, bytes: usize) {
        self.connection.send_budget.add(bytes);
    }

    /// Counts bytes of a body that were sent to the client.
    pub(super) fn count_sent(&self, bytes: u64) {
        self.connection.send_budget.add(bytes as usize);
        self.connection.flood.count_sent(self.connection.coarse_clock.now(), bytes);
    }

    /// Takes the client's side of an extended CONNECT.
    pub(super) fn take_tunnel(&self) -> Option<Http2Receiver> {
        self.tunnel.borrow_mut().take()
    }

    /// Reads and discards the rest of the request's body, if it is at most [`MAX_DRAINED`] long. A
    /// stream that is dropped before its end is reset, and some clients then lose the response.
    async fn drain_body(&self) {
        if !is_drainable(&self.body.borrow()) {
            return;
        }
        self.state.enter(ConnectionState::Drain { deadline: self.state.now() + DRAIN_TIMEOUT });
        let mut drained = 0;
        std::future::poll_fn(|cx| {
            let mut body = self.body.borrow_mut();
            let Some(stream) = &mut body.stream else { return Poll::Ready(()) };
            while self.state.expired_deadline().is_none() && drained <= MAX_DRAINED {
                match ready!(stream.poll_data(cx, |_| {})) {
                    Ok(0) | Err(_) => break,
                    Ok(count) => drained += count as u64,
                }
            }
            Poll::Ready(())
        })
        .await;
    }
}

/// True if the body is, as far as is known, short enough to be drained.
fn is_drainable(body: &Body) -> bool {
    let is_short = match body.length {
        BodyLength::Known(length) => length <= MAX_DRAINED,
        BodyLength::Chunked => true,
    };
    // A client that waits for `100 Continue` does not send the body.
    body.stream.is_some() && is_short && !body.expects_continue && !body.is_abandoned
}

impl ClientStream for Http2Stream {
    fn state(&self) -> &StateCell {
        &self.state
    }

    fn length(&self) -> BodyLength {
        self.body.borrow().length
    }

    fn poll_body(
        &self,
        cx: &mut Context<'_>,
        encoder: BodyEncoder,
        out: &mut Vec<u8>,
    ) -> Poll<Result<usize, BodyError>> {
        let body = &mut *self.body.borrow_mut();
        if std::mem::take(&mut body.expects_continue)
            && let Some(respond) = &mut *self.respond.borrow_mut()
        {
            let mut response = http::Response::new(());
            *response.status_mut() = StatusCode::CONTINUE;
            // Fails only if the stream is over, which the next read reports.
            let _ = respond.send_informational(response);
        }
        if body.is_abandoned {
            return Poll::Ready(Ok(0));
        }
        let Some(stream) = &mut body.stream else { return Poll::Ready(Ok(0)) };
        let take = |data: &[u8]| encoder.write(out, |out| out.extend_from_slice(data));
        match ready!(stream.poll_data(cx, take)) {
            Ok(0) => {}
            Ok(count) => {
                self.state().note_body(count)?;
                return Poll::Ready(Ok(count));
            }
            Err(error) => return Poll::Ready(Err(body_error(&error))),
        }
        match ready!(stream.poll_trailers(cx)) {
            Ok(Some(map)) => {
                body.trailers = Some(Box::new(
                    to_trailers(&map, MessageKind::Request).map_err(BodyError::Malformed)?,
                ));
            }
            Ok(None) => {}
            Err(error) => return Poll::Ready(Err(body_error(&error))),
        }
        body.stream = None;
        Poll::Ready(Ok(0))
    }

    fn awaits_continue(&self) -> bool {
        self.body.borrow().expects_continue
    }

    fn abandon_body(&self) {
        // The stream is kept: if its receiving side were dropped, it could not linger.
        self.body.borrow_mut().is_abandoned = true;
    }

    fn reserve_message(&self, bytes: usize) -> bool {
        let (own, all) = (&self.message_bytes, &self.connection.message_bytes);
        own.set(own.get() + bytes);
        all.set(all.get() + bytes);
        all.get() <= MAX_MESSAGE_BYTES
    }

    fn take_trailers(&self) -> Option<Box<Fields>> {
        self.body.borrow_mut().trailers.take()
    }

    fn send_interim(&self, status: u16, fields: &Fields) {
        let count = self.interim_responses.get();
        self.interim_responses.set(count + 1);
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::PROCESSING);
        if let Some(respond) = &mut *self.respond.borrow_mut()
            && count < MAX_INTERIM_RESPONSES
        {
            let mut response = http::Response::new(());
            *response.status_mut() = status;
            *response.headers_mut() = from_fields(fields);
            let _ = respond.send_informational(response);
        }
    }
}

fn body_error(error: &h2::Error) -> BodyError {
    // The library resets a stream whose body contradicts its Content-Length.
    if error.is_library() {
        BodyError::Malformed(FramingError::LengthMalformed)
    } else {
        BodyError::ClientClosed
    }
}
