//! What a client sends: heads, and bodies as they are asked for.

use std::task::{Context, Poll, ready};

use super::Connection;
use crate::framing::{
    BodyDecoder, BodyEncoder, BodyFault, Buffer, ClientStream, ConnectionState, Fault, Fields,
    HeadBounds, HeadParser, Length, ReadBuffer, RequestHead, Socket, StateCell, Timeout, Version,
    buffer::poll_read, head::read_on, start_line::RequestLine, state::Ending,
};

/// Interim answers that a client does not take are dropped beyond so many bytes.
const MAX_INTERIM: usize = 64 * 1024;

/// What came of waiting for a request.
pub(super) enum Received {
    /// A request.
    Request(Box<RequestHead>),
    /// What is none.
    Refused(Fault),
    /// No more.
    End,
}

/// What was read of a connection, and what it means.
#[derive(Debug)]
pub(super) struct Input {
    /// Read, and not yet used.
    buffer: ReadBuffer,
    /// A head that is not whole yet.
    head: Option<Box<HeadParser<RequestLine>>>,
    /// The body of the request that is served.
    body: BodyDecoder,
    length: Length,
    /// Whether the client waits for a word before it sends the body.
    expects: bool,
    /// Whether it knows interim answers.
    informed: bool,
    /// Interim answers that are still to be written.
    interim: Buffer,
    /// Whether what follows has no reading.
    broken: bool,
}

impl Default for Input {
    fn default() -> Self {
        Self {
            buffer: ReadBuffer::default(),
            head: None,
            body: BodyDecoder::none(),
            length: Length::Known(0),
            expects: false,
            informed: false,
            interim: Buffer::default(),
            broken: false,
        }
    }
}

impl Connection {
    /// Waits for the next request.
    pub(super) async fn receive(&self) -> Received {
        let received = std::future::poll_fn(|cx| self.poll_receive(cx)).await;
        if let Received::Refused(_) = received {
            self.input.borrow_mut().broken = true;
        }
        received
    }

    fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Received> {
        let input = &mut *self.input.borrow_mut();
        loop {
            match input.parse(self.bounds) {
                Ok(Some(head)) => {
                    input.begin(&head);
                    return Poll::Ready(Received::Request(head));
                }
                Ok(None) => {}
                Err(fault) => return Poll::Ready(Received::Refused(fault)),
            }
            match (self.state.timeout(), self.state.ending()) {
                (_, Ending::Now) | (Some(Timeout::Idle), _) => return Poll::Ready(Received::End),
                (Some(_), _) if input.has_begun() => {
                    return Poll::Ready(Received::Refused(Fault::HeadTimeout));
                }
                (Some(_), _) => return Poll::Ready(Received::End),
                (None, _) => {}
            }
            if input.has_begun()
                && let ConnectionState::Idle { .. } = self.state.get()
            {
                self.state.enter(ConnectionState::Head { since: self.state.now() });
            }
            let read = match input.poll_head(&self.socket, cx, self.bounds) {
                Poll::Pending if self.state.ending() == Ending::WhenIdle && !input.has_begun() => {
                    return Poll::Ready(Received::End);
                }
                read => ready!(read),
            };
            match read {
                Ok(Some(head)) => {
                    input.begin(&head);
                    return Poll::Ready(Received::Request(head));
                }
                Ok(None) => {}
                Err(ReadEnd::Refused(fault)) => return Poll::Ready(Received::Refused(fault)),
                Err(ReadEnd::Closed) => return Poll::Ready(Received::End),
            }
        }
    }

    /// Writes what waits of interim answers. An error: the client is gone.
    pub(super) fn poll_interim(&self, cx: &mut Context<'_>) -> Result<(), ()> {
        let input = &mut *self.input.borrow_mut();
        while !input.interim.is_empty() {
            match self.socket.poll_write(cx, &input.interim) {
                Poll::Pending => break,
                Poll::Ready(Ok(count)) if count > 0 => drop(input.interim.drain(..count)),
                Poll::Ready(_) => return Err(()),
            }
        }
        Ok(())
    }
}

/// Why no head came.
enum ReadEnd {
    Refused(Fault),
    Closed,
}

impl Input {
    /// Whether a part of a head has come.
    fn has_begun(&self) -> bool {
        self.head.is_some() || !matches!(self.buffer.bytes(), b"" | b"\r")
    }

    /// Looks for a whole head among what was read before.
    fn parse(&mut self, bounds: HeadBounds) -> Result<Option<Box<RequestHead>>, Fault> {
        if self.buffer.is_empty() {
            return Ok(None);
        }
        if self.head.is_none() {
            let blank = blank_lines(self.buffer.bytes());
            self.buffer.consume(blank);
        }
        let (head, used) = read_head(&mut self.head, self.buffer.bytes(), bounds)?;
        self.buffer.consume(used);
        Ok(head)
    }

    /// Reads once, and looks for a whole head.
    fn poll_head(
        &mut self,
        socket: &Socket,
        cx: &mut Context<'_>,
        bounds: HeadBounds,
    ) -> Poll<Result<Option<Box<RequestHead>>, ReadEnd>> {
        let Self { buffer, head, .. } = self;
        let read = ready!(poll_read(socket, cx, |bytes| {
            if bytes.is_empty() {
                return Err(ReadEnd::Closed);
            }
            if !buffer.is_empty() || head.is_some() {
                buffer.push(bytes);
                return Ok(None);
            }
            // The usual case: a head in one piece, read where it lies.
            let bytes = &bytes[blank_lines(bytes)..];
            let (found, used) = read_head(head, bytes, bounds).map_err(ReadEnd::Refused)?;
            buffer.push(&bytes[used..]);
            Ok(found)
        }));
        Poll::Ready(read.unwrap_or(Err(ReadEnd::Closed)))
    }

    /// The request of `head` is served from now on.
    fn begin(&mut self, head: &RequestHead) {
        self.body = BodyDecoder::new(Some(head.body));
        self.length = head.body;
        self.informed = head.version == Version::Http11;
        self.expects = head.expects && self.informed && !self.body.is_done();
        self.interim.clear();
    }

    /// How many bytes of the body are unread, where that is known and they can be had. `None`: too many
    /// to say.
    pub(super) fn unread_body(&self) -> Option<u64> {
        match self.body.left() {
            _ if self.broken => None,
            Some(0) => Some(0),
            // A client that was not told to go on may send the body, or not.
            _ if self.expects => None,
            left => left,
        }
    }

    /// Takes what is still to be written of interim answers.
    pub(super) fn take_interim(&mut self) -> Buffer {
        std::mem::take(&mut self.interim)
    }

    /// Reads on to the end of the body and throws it away. Ready with whether the end was reached.
    pub(super) fn poll_discard(&mut self, socket: &Socket, cx: &mut Context<'_>) -> Poll<bool> {
        let mut discarded = Buffer::with_capacity(0);
        loop {
            let read = self.poll_body(socket, cx, BodyEncoder::Plain, &mut discarded);
            match ready!(read) {
                Ok(0) => return Poll::Ready(true),
                Ok(_) => discarded.clear(),
                Err(_) => return Poll::Ready(false),
            }
        }
    }

    fn poll_body(
        &mut self,
        socket: &Socket,
        cx: &mut Context<'_>,
        encoder: BodyEncoder,
        out: &mut Vec<u8>,
    ) -> Poll<Result<usize, BodyFault>> {
        let Self { buffer, body, broken, .. } = self;
        loop {
            if body.is_done() {
                return Poll::Ready(Ok(0));
            }
            if let Some(fault) = body.fault() {
                *broken = true;
                return Poll::Ready(Err(BodyFault::Malformed(fault)));
            }
            let added = if buffer.is_empty() {
                let read = ready!(poll_read(socket, cx, |bytes| {
                    if bytes.is_empty() {
                        return Err(BodyFault::Gone);
                    }
                    let moved = body.transfer(bytes, encoder, out);
                    let (used, added) = moved.map_err(BodyFault::Malformed)?;
                    buffer.push(&bytes[used..]);
                    Ok(added)
                }));
                read.unwrap_or(Err(BodyFault::Gone))
            } else {
                let moved = body.transfer(buffer.bytes(), encoder, out);
                moved.map_err(BodyFault::Malformed).map(|(used, added)| {
                    buffer.consume(used);
                    added
                })
            };
            match added {
                Ok(0) => {}
                Ok(added) => return Poll::Ready(Ok(added)),
                Err(fault) => {
                    *broken = true;
                    return Poll::Ready(Err(fault));
                }
            }
        }
    }
}

/// How many bytes at the start of `bytes` are empty lines: RFC 9112, 2.2.
fn blank_lines(bytes: &[u8]) -> usize {
    let lines = bytes.chunks_exact(2).take_while(|line| *line == b"\r\n");
    2 * lines.count()
}

/// Reads a head at the start of `bytes`, going on where `parser` stopped.
fn read_head(
    parser: &mut Option<Box<HeadParser<RequestLine>>>,
    bytes: &[u8],
    bounds: HeadBounds,
) -> Result<(Option<Box<RequestHead>>, usize), Fault> {
    // A lone CR may be the first half of an empty line, which belongs to no head.
    if parser.is_none() && matches!(bytes, b"" | b"\r") {
        return Ok((None, 0));
    }
    let (head, used) =
        read_on(parser, bytes, || HeadParser::request(bounds), HeadParser::<RequestLine>::finish)?;
    Ok((head.map(Box::new), used))
}

impl ClientStream for Connection {
    fn state(&self) -> &StateCell {
        &self.state
    }

    fn length(&self) -> Length {
        self.input.borrow().length
    }

    fn poll_body(
        &self,
        cx: &mut Context<'_>,
        encoder: BodyEncoder,
        out: &mut Vec<u8>,
    ) -> Poll<Result<usize, BodyFault>> {
        {
            let input = &mut *self.input.borrow_mut();
            if std::mem::take(&mut input.expects) {
                input.interim.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
            }
        }
        if self.poll_interim(cx).is_err() {
            return Poll::Ready(Err(BodyFault::Gone));
        }
        self.input.borrow_mut().poll_body(&self.socket, cx, encoder, out)
    }

    fn give_up_body(&self) {
        self.input.borrow_mut().broken = true;
    }

    fn take_trailers(&self) -> Option<Box<Fields>> {
        self.input.borrow_mut().body.take_trailers()
    }

    fn inform(&self, status: u16, fields: &mut dyn FnMut(&mut Vec<u8>)) {
        let input = &mut *self.input.borrow_mut();
        if !input.informed || input.interim.len() > MAX_INTERIM {
            return;
        }
        let status = http::StatusCode::from_u16(status).unwrap_or(http::StatusCode::PROCESSING);
        super::output::write_status(&mut input.interim, status);
        fields(&mut input.interim);
        input.interim.extend_from_slice(b"\r\n");
    }
}
