//! Writes a response to a client: the head, and the body as it arrives, with back-pressure.

use std::task::{Context, Poll};

use http::{Method, StatusCode};

use super::{
    Connection, Disposition, MAX_DRAINED,
    body_wait::{MAX_POLL_ROUNDS, await_client_read, check_deadlines},
};
use crate::{
    connection_state::{CloseMode, Wait},
    gateway::{AnsweredRequest, Content, Response},
    http1::{BodyEncoder, Buffer, Version},
    telemetry::CutReason,
    transport::{read_buffer::READ_SIZE, socket::yield_turn},
    upstream::ResponseBody,
};

/// A response that is being written. The request is logged when `request` is dropped.
struct ResponseWriter<'a> {
    connection: &'a Connection,
    unsent: WriteBuffer,
    /// The rest of the body; `None` at its end.
    stream: Option<ResponseBody>,
    encoder: BodyEncoder,
    request: AnsweredRequest,
    /// Whether the body ends with the connection.
    until_close: bool,
    /// Why the body has no end.
    cut_reason: Option<CutReason>,
}

/// How a response's body is delimited (RFC 9112, 6.3).
pub(super) struct ResponseFraming {
    encoder: BodyEncoder,
    /// Whether a body follows the head.
    pub(super) has_body: bool,
    /// The value of `Content-Length`, in bytes.
    pub(super) length: Option<u64>,
    chunked: bool,
    /// Whether the body ends with the connection.
    until_close: bool,
}

impl Connection {
    /// Writes `response`. Returns the fate of the connection.
    pub(super) async fn write(&self, response: Response) -> Disposition {
        if let Content::Tunnel(_) = response.content {
            // Boxed, so that other responses do not hold its state.
            return Box::pin(self.tunnel(response)).await;
        }
        let (method, version) = response.method_and_version();
        let framing = ResponseFraming::of(&response, &method, version);
        let closes = framing.until_close || !self.keep_alive(&response);
        let mut out = self.input.borrow_mut().take_interim();
        if out.is_empty() {
            out = Buffer::with_capacity(1024);
        }
        write_head(&mut out, &response, &framing, closes, version);
        let Response { content, mut request, timeouts, .. } = response;
        let mut stream = None;
        match content {
            Content::Whole(bytes) if framing.has_body => {
                request.ledger_mut().add_bytes_sent(bytes.len());
                out.extend_from_slice(&bytes);
            }
            Content::Stream(body) if framing.has_body && !body.is_done() => stream = Some(body),
            // No body is sent: an upstream's stream is dropped now, which frees its connection.
            unused => drop(unused),
        }
        self.state.begin_response(timeouts.idle, timeouts.total);
        let encoder = framing.encoder;
        let mut writer = ResponseWriter {
            connection: self,
            unsent: WriteBuffer::new(out),
            stream,
            encoder,
            request,
            until_close: framing.until_close,
            cut_reason: None,
        };
        let result = std::future::poll_fn(|cx| writer.poll(cx)).await;
        self.state.set_wake_on_sweep(false);
        match result {
            Ok(()) => {
                writer.request.ledger_mut().mark_complete();
                if closes { Disposition::Linger } else { Disposition::Reuse }
            }
            Err(reason) => {
                writer.request.ledger_mut().mark_response_cut(reason, framing.length);
                if framing.until_close {
                    // An orderly close would look like the end of the body.
                    self.socket.reset_on_close();
                }
                Disposition::Abort
            }
        }
    }

    /// Counts the request; returns whether another may follow on this connection.
    fn keep_alive(&self, response: &Response) -> bool {
        let requests_left = self.requests_left.get().map(|left| left.saturating_sub(1));
        self.requests_left.set(requests_left);
        let input = self.input.borrow();
        let is_drainable = match input.unread_body_len() {
            Some(unread) if unread <= MAX_DRAINED => true,
            // The upstream is still reading the body.
            _ => {
                matches!(&response.content, Content::Stream(stream) if stream.is_sending_request())
            }
        };
        response.request.is_persistent()
            && is_drainable
            && requests_left != Some(0)
            && self.state.close_mode() == CloseMode::KeepOpen
    }
}

/// Bytes to be written. Written bytes are removed before more are appended, so that the buffer
/// stays small even if the client reads little at a time.
struct WriteBuffer {
    bytes: Buffer,
    written: usize,
}

impl WriteBuffer {
    fn new(bytes: Buffer) -> Self {
        Self { bytes, written: 0 }
    }

    /// The unsent bytes, oldest first.
    fn bytes(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    /// Marks the first `count` unsent bytes as written.
    fn advance(&mut self, count: usize) {
        self.written += count;
    }

    /// The buffer to append to.
    fn tail(&mut self) -> &mut Vec<u8> {
        self.bytes.drain(..std::mem::take(&mut self.written));
        &mut self.bytes
    }
}

impl ResponseWriter<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CutReason>> {
        let state = &self.connection.state;
        for _ in 0..MAX_POLL_ROUNDS {
            check_deadlines(state)?;
            if self.stream.is_some() && self.unsent.bytes().len() < READ_SIZE && self.fill(cx) {
                continue;
            }
            if !self.unsent.bytes().is_empty() {
                match self.connection.socket.poll_write(cx, self.unsent.bytes()) {
                    Poll::Ready(Ok(count)) if count > 0 => {
                        self.unsent.advance(count);
                        state.set_wait(Wait::Internal);
                        continue;
                    }
                    Poll::Ready(_) => return Poll::Ready(Err(CutReason::ClientClosed)),
                    Poll::Pending => {
                        return await_client_read(state, self.stream.as_mut(), cx);
                    }
                }
            }
            if let Some(reason) = self.cut_reason {
                return Poll::Ready(Err(reason));
            }
            if self.stream.is_none() {
                return self.poll_end(cx);
            }
            // What is left in a TLS session must not wait for the upstream.
            if let Poll::Ready(Err(_)) = self.connection.socket.poll_flush(cx) {
                return Poll::Ready(Err(CutReason::ClientClosed));
            }
            state.begin_upstream_wait(None);
            return Poll::Pending;
        }
        yield_turn(cx);
        Poll::Pending
    }

    /// Ready when the kernel has the whole response. With TLS, the session may still hold a part, and its own
    /// end, without which a body that ends with the connection is incomplete.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CutReason>> {
        let socket = &self.connection.socket;
        let polled =
            if self.until_close { socket.poll_shutdown(cx) } else { socket.poll_flush(cx) };
        match polled {
            Poll::Ready(ended) => Poll::Ready(ended.map_err(|_| CutReason::ClientClosed)),
            Poll::Pending => {
                self.connection.state.begin_client_read_wait();
                Poll::Pending
            }
        }
    }

    /// Reads from the body into the buffer; returns whether more may be ready.
    fn fill(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(stream) = &mut self.stream else { return false };
        match stream.poll_body(cx, self.encoder, self.unsent.tail()) {
            Poll::Pending => false,
            Poll::Ready(Ok(count)) => {
                self.request.ledger_mut().add_bytes_sent(count);
                if stream.is_done() {
                    self.stream = None;
                }
                self.stream.is_some()
            }
            Poll::Ready(Err(error)) => {
                self.cut_reason = Some(self.request.ledger_mut().mark_body_failed(&error));
                self.stream = None;
                false
            }
        }
    }
}

impl ResponseFraming {
    /// The framing of `response` to a request with `method` and `version`.
    pub(super) fn of(response: &Response, method: &Method, version: Version) -> Self {
        let is_bodiless = *method == Method::HEAD || matches!(response.status.as_u16(), 204 | 304);
        let mut framing = Self {
            encoder: BodyEncoder::Plain,
            has_body: !is_bodiless,
            length: None,
            chunked: false,
            until_close: false,
        };
        match &response.content {
            Content::Whole(bytes) => {
                // RFC 9110, 8.6: no Content-Length in a 204; in a 304 it would be the 200's.
                framing.length = match response.status.as_u16() {
                    204 | 304 => None,
                    _ => Some(bytes.len() as u64),
                };
            }
            Content::Tunnel(_) => framing.has_body = false,
            Content::Stream(stream) => {
                framing.length = stream.declared_length();
                if framing.has_body && framing.length.is_none() {
                    framing.chunked = version == Version::Http11;
                    framing.until_close = version == Version::Http10;
                }
            }
        }
        if framing.chunked {
            framing.encoder = BodyEncoder::Chunked;
        }
        framing
    }
}

fn write_head(
    out: &mut Vec<u8>,
    response: &Response,
    framing: &ResponseFraming,
    closes: bool,
    version: Version,
) {
    write_status(out, response.status);
    response.write_fields(out);
    if let Some(length) = framing.length {
        out.extend_from_slice(b"content-length: ");
        out.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
        out.extend_from_slice(b"\r\n");
    } else if framing.chunked {
        out.extend_from_slice(b"transfer-encoding: chunked\r\n");
    }
    if closes {
        out.extend_from_slice(b"connection: close\r\n");
    } else if version == Version::Http10 {
        out.extend_from_slice(b"connection: keep-alive\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes a status line.
pub(super) fn write_status(out: &mut Vec<u8>, status: StatusCode) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(status.as_str().as_bytes());
    out.extend_from_slice(b" ");
    out.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buffer_stays_small_when_the_client_reads_slowly() {
        let mut unsent = WriteBuffer::new(Buffer::copy_of(b"head"));
        for _ in 0..1000 {
            while unsent.bytes().len() < READ_SIZE {
                unsent.tail().extend_from_slice(&[b'x'; 8 * 1024]);
            }
            // A slow link: the kernel never accepts all of it.
            unsent.advance(16 * 1024);
        }
        assert!(unsent.bytes.capacity() <= 4 * READ_SIZE, "{}", unsent.bytes.capacity());
    }
}
