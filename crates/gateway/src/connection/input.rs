//! Reads from a client: request heads, and bodies on demand.

use std::task::{Context, Poll, ready};

use tidegate_http1::{
    BodyDecoder, BodyEncoder, BodyLength, Buffer, Fields, FramingError, HeadBounds, HeadParser,
    RequestHead, Version, head::resume_parse, start_line::RequestLine,
};
use tidegate_transport::connection_state::{
    CloseMode, ConnectionState, ExpiredDeadline, StateCell,
};
use tidegate_transport::{
    BodyError, ClientStream, ReadBuffer, SharedSocket, read_buffer::poll_read, socket::yield_turn,
};

use super::{Connection, MAX_DISCARDS_PER_POLL};

/// Maximum number of bytes of unsent interim (1xx) responses. Further ones are dropped.
const MAX_INTERIM_BYTES: usize = 64 * 1024;

/// The result of waiting for a request.
pub(super) enum ReceiveOutcome {
    /// A request's head.
    Request(Box<RequestHead>),
    /// Bytes that are not a valid request, or a head that did not arrive in time.
    Malformed(FramingError),
    /// The client closed the connection, it was idle too long, or the worker is draining.
    Closed,
}

/// The read side of a connection: its buffer, and the state of its parser.
#[derive(Debug)]
pub(super) struct Input {
    /// Bytes that were read and not yet parsed.
    buffer: ReadBuffer,
    /// The parser of an incomplete head.
    head: Option<Box<HeadParser<RequestLine>>>,
    /// The body of the current request.
    body: BodyDecoder,
    /// The declared length of that body.
    length: BodyLength,
    /// True if the client waits for `100 Continue` before it sends the body.
    expects_continue: bool,
    /// True if the client may receive interim responses: only over HTTP/1.1.
    accepts_interim: bool,
    /// Pending interim responses.
    interim: Buffer,
    /// True if the end of the current request is unknown, so that no other can be read after it.
    desynced: bool,
}

impl Default for Input {
    fn default() -> Self {
        Self {
            buffer: ReadBuffer::default(),
            head: None,
            body: BodyDecoder::none(),
            length: BodyLength::Known(0),
            expects_continue: false,
            accepts_interim: false,
            interim: Buffer::default(),
            desynced: false,
        }
    }
}

impl Input {
    /// The input that begins with `buffer`.
    pub(super) fn new(buffer: ReadBuffer) -> Self {
        Self { buffer, ..Self::default() }
    }
}

impl Connection {
    /// Waits for the next request.
    pub(super) async fn receive(&self) -> ReceiveOutcome {
        std::future::poll_fn(|cx| self.poll_receive(cx)).await
    }

    /// Waits for the next request; `None` if none begins for about [`WARM_TIME`](super::WARM_TIME).
    pub(super) async fn receive_soon(&self) -> Option<ReceiveOutcome> {
        self.is_warm.set(true);
        let received = std::future::poll_fn(|cx| match self.poll_receive(cx) {
            Poll::Ready(received) => Poll::Ready(Some(received)),
            Poll::Pending if self.is_warm.get() => Poll::Pending,
            Poll::Pending => Poll::Ready(None),
        })
        .await;
        self.is_warm.set(false);
        received
    }

    fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<ReceiveOutcome> {
        let received = self.poll_next(cx);
        if let Poll::Ready(ReceiveOutcome::Malformed(_)) = received {
            self.input.borrow_mut().desynced = true;
        }
        received
    }

    fn poll_next(&self, cx: &mut Context<'_>) -> Poll<ReceiveOutcome> {
        let input = &mut *self.input.borrow_mut();
        loop {
            match input.parse_buffered(self.bounds) {
                Ok(Some(head)) => {
                    input.begin_request(&head);
                    return Poll::Ready(ReceiveOutcome::Request(head));
                }
                Ok(None) => {}
                Err(error) => return Poll::Ready(ReceiveOutcome::Malformed(error)),
            }
            match (self.state.expired_deadline(), self.state.close_mode()) {
                (_, CloseMode::Immediate) | (Some(ExpiredDeadline::Idle), _) => {
                    return Poll::Ready(ReceiveOutcome::Closed);
                }
                (Some(_), _) if input.has_partial_head() => {
                    return Poll::Ready(ReceiveOutcome::Malformed(FramingError::HeadTimeout));
                }
                (Some(_), _) => return Poll::Ready(ReceiveOutcome::Closed),
                (None, _) => {}
            }
            if input.has_partial_head()
                && let ConnectionState::Idle { .. } = self.state.get()
            {
                self.state.enter(ConnectionState::Head { since: self.state.now() });
            }
            let read = match input.poll_head(&self.socket, cx, self.bounds) {
                Poll::Pending
                    if self.state.close_mode() == CloseMode::WhenIdle
                        && !input.has_partial_head() =>
                {
                    return Poll::Ready(ReceiveOutcome::Closed);
                }
                read => ready!(read),
            };
            match read {
                Ok(Some(head)) => {
                    input.begin_request(&head);
                    return Poll::Ready(ReceiveOutcome::Request(head));
                }
                Ok(None) => {}
                Err(HeadError::Malformed(error)) => {
                    return Poll::Ready(ReceiveOutcome::Malformed(error));
                }
                Err(HeadError::Closed) => return Poll::Ready(ReceiveOutcome::Closed),
            }
        }
    }

    /// Writes pending interim responses. `Err` if the client is gone.
    pub(super) fn poll_interim(&self, cx: &mut Context<'_>) -> Result<(), ()> {
        let input = &mut *self.input.borrow_mut();
        while !input.interim.is_empty() {
            match self.socket.poll_write(cx, &input.interim) {
                Poll::Pending => break,
                Poll::Ready(Ok(count)) if count > 0 => drop(input.interim.drain(..count)),
                Poll::Ready(_) => return Err(()),
            }
        }
        // A part may still be in a TLS session.
        match self.socket.poll_flush(cx) {
            Poll::Ready(Err(_)) => Err(()),
            _ => Ok(()),
        }
    }
}

/// The reason why no head was read.
enum HeadError {
    Malformed(FramingError),
    Closed,
}

impl Input {
    /// True if a part of a head has arrived.
    fn has_partial_head(&self) -> bool {
        self.head.is_some() || !matches!(self.buffer.bytes(), b"" | b"\r")
    }

    /// Parses a head from the buffer; `None` if it is incomplete.
    fn parse_buffered(
        &mut self,
        bounds: HeadBounds,
    ) -> Result<Option<Box<RequestHead>>, FramingError> {
        if self.buffer.is_empty() {
            return Ok(None);
        }
        if self.head.is_none() {
            let blank = blank_lines(self.buffer.bytes());
            self.buffer.consume(blank);
        }
        let (head, used) = parse_head(&mut self.head, self.buffer.bytes(), bounds)?;
        self.buffer.consume(used);
        Ok(head)
    }

    /// Reads once, and parses a head; ready with `None` if it is incomplete.
    fn poll_head(
        &mut self,
        socket: &SharedSocket,
        cx: &mut Context<'_>,
        bounds: HeadBounds,
    ) -> Poll<Result<Option<Box<RequestHead>>, HeadError>> {
        let Self { buffer, head, .. } = self;
        let read = ready!(poll_read(socket, cx, |bytes| {
            if bytes.is_empty() {
                return Err(HeadError::Closed);
            }
            if !buffer.is_empty() || head.is_some() {
                buffer.push(bytes);
                return Ok(None);
            }
            // The usual case: a head in one piece, parsed without a copy.
            let bytes = &bytes[blank_lines(bytes)..];
            let (found, used) = parse_head(head, bytes, bounds).map_err(HeadError::Malformed)?;
            buffer.push(&bytes[used..]);
            Ok(found)
        }));
        Poll::Ready(read.unwrap_or(Err(HeadError::Closed)))
    }

    /// Makes the request of `head` the current one.
    fn begin_request(&mut self, head: &RequestHead) {
        self.body = BodyDecoder::of_request(head.length);
        self.length = head.length;
        self.accepts_interim = head.version == Version::Http11;
        self.expects_continue =
            self.accepts_interim && !self.body.is_done() && head.expects_continue();
        self.interim.clear();
    }

    /// True if the unread rest of the body may be discarded to reach the next request: it arrives
    /// in any case, and it is at most `max` bytes long. The response tells the client so, which
    /// would otherwise send its next request into a connection that closes.
    pub(super) fn is_drainable(&self, max: u64) -> bool {
        match self.body.remaining() {
            _ if self.desynced => false,
            Some(0) => true,
            // Without `100 Continue`, the client may or may not send the body.
            _ if self.expects_continue => false,
            Some(unread) => unread <= max,
            // Chunks, of any number.
            None => false,
        }
    }

    /// True if an unread rest of the body arrives in chunks.
    pub(super) fn awaits_chunks(&self) -> bool {
        !self.expects_continue && !self.desynced && self.body.remaining().is_none()
    }

    /// True if the body was read to its end.
    pub(super) fn is_body_read(&self) -> bool {
        self.body.remaining() == Some(0)
    }

    /// Takes the pending interim responses.
    pub(super) fn take_interim(&mut self) -> Buffer {
        std::mem::take(&mut self.interim)
    }

    /// Takes the bytes that were read and not parsed.
    pub(super) fn take_unread(&mut self) -> ReadBuffer {
        std::mem::take(&mut self.buffer)
    }

    /// Reads and discards the rest of the body, at most `left` bytes, which it counts down. Ready
    /// with true if the body's end was reached.
    pub(super) fn poll_drain_body(
        &mut self,
        socket: &SharedSocket,
        left: &mut u64,
        cx: &mut Context<'_>,
    ) -> Poll<bool> {
        let mut discarded = Buffer::with_capacity(0);
        for _ in 0..MAX_DISCARDS_PER_POLL {
            let read = self.poll_body(socket, cx, BodyEncoder::Plain, &mut discarded);
            match ready!(read) {
                Ok(0) => return Poll::Ready(true),
                Ok(count) if count as u64 <= *left => *left -= count as u64,
                Ok(_) | Err(_) => return Poll::Ready(false),
            }
            discarded.clear();
        }
        yield_turn(cx);
        Poll::Pending
    }

    /// Appends body bytes to `out`, encoded by `encoder`. Ready with the number of body bytes,
    /// without the encoder's framing; 0 at the end of the body.
    fn poll_body(
        &mut self,
        socket: &SharedSocket,
        cx: &mut Context<'_>,
        encoder: BodyEncoder,
        out: &mut Vec<u8>,
    ) -> Poll<Result<usize, BodyError>> {
        let Self { buffer, body, desynced, .. } = self;
        loop {
            if body.is_done() {
                return Poll::Ready(Ok(0));
            }
            if let Some(error) = body.error() {
                *desynced = true;
                return Poll::Ready(Err(BodyError::Malformed(error)));
            }
            let added = if buffer.is_empty() {
                let read = ready!(poll_read(socket, cx, |bytes| {
                    if bytes.is_empty() {
                        return Err(BodyError::ClientClosed);
                    }
                    let transcoded = body.transcode(bytes, encoder, out);
                    let (used, added) = transcoded.map_err(BodyError::Malformed)?;
                    buffer.push(&bytes[used..]);
                    Ok(added)
                }));
                read.unwrap_or(Err(BodyError::ClientClosed))
            } else {
                let transcoded = body.transcode(buffer.bytes(), encoder, out);
                transcoded.map_err(BodyError::Malformed).map(|(used, added)| {
                    buffer.consume(used);
                    added
                })
            };
            match added {
                Ok(0) => {}
                Ok(added) => return Poll::Ready(Ok(added)),
                Err(error) => {
                    *desynced = true;
                    return Poll::Ready(Err(error));
                }
            }
        }
    }
}

/// The length of the empty lines before a request line, in bytes: they are ignored (RFC 9112, 2.2).
fn blank_lines(bytes: &[u8]) -> usize {
    let lines = bytes.chunks_exact(2).take_while(|line| *line == b"\r\n");
    2 * lines.count()
}

/// Parses a head at the start of `bytes`, continuing where `parser` stopped. Returns the head, if
/// it is complete, and the number of bytes consumed.
fn parse_head(
    parser: &mut Option<Box<HeadParser<RequestLine>>>,
    bytes: &[u8],
    bounds: HeadBounds,
) -> Result<(Option<Box<RequestHead>>, usize), FramingError> {
    // A lone CR may be the first half of an empty line before the head.
    if parser.is_none() && matches!(bytes, b"" | b"\r") {
        return Ok((None, 0));
    }
    resume_parse(
        parser,
        bytes,
        || HeadParser::request(bounds),
        |parser, bytes| parser.finish(bytes).map(Box::new),
    )
}

impl ClientStream for Connection {
    fn state(&self) -> &StateCell {
        &self.state
    }

    fn length(&self) -> BodyLength {
        self.input.borrow().length
    }

    fn poll_body(
        &self,
        cx: &mut Context<'_>,
        encoder: BodyEncoder,
        out: &mut Vec<u8>,
    ) -> Poll<Result<usize, BodyError>> {
        {
            let input = &mut *self.input.borrow_mut();
            if std::mem::take(&mut input.expects_continue) {
                input.interim.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
            }
        }
        if self.poll_interim(cx).is_err() {
            return Poll::Ready(Err(BodyError::ClientClosed));
        }
        let read = self.input.borrow_mut().poll_body(&self.socket, cx, encoder, out);
        if let Poll::Ready(Ok(count @ 1..)) = read {
            self.state().note_body(count)?;
        }
        read
    }

    fn awaits_continue(&self) -> bool {
        let input = self.input.borrow();
        // A client that has begun to send does not wait.
        input.expects_continue && input.buffer.is_empty()
    }

    fn abandon_body(&self) {
        self.input.borrow_mut().desynced = true;
    }

    fn take_trailers(&self) -> Option<Box<Fields>> {
        self.input.borrow_mut().body.take_trailers()
    }

    fn send_interim(&self, status: u16, fields: &Fields) {
        let input = &mut *self.input.borrow_mut();
        if !input.accepts_interim || input.interim.len() > MAX_INTERIM_BYTES {
            return;
        }
        let status = http::StatusCode::from_u16(status).unwrap_or(http::StatusCode::PROCESSING);
        super::output::write_status(&mut input.interim, status);
        fields.write_to(&mut input.interim, |_| true);
        input.interim.extend_from_slice(b"\r\n");
    }
}
