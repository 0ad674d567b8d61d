//! What a client is sent: an answer's head and its body, as it comes.

use std::task::{Context, Poll};

use http::{Method, StatusCode};

use super::{After, Connection, MAX_DRAINED};
use crate::{
    framing::{
        BodyEncoder, Buffer, Timeout, Version,
        buffer::READ_SIZE,
        socket::yield_turn,
        state::{Ending, Wait},
    },
    gateway::{Answer, Content, RequestContext},
    telemetry::Cut,
    upstream::AnswerStream,
};

/// A task reads or writes so often before another one has its turn.
const MAX_TURNS: usize = 16;

/// An answer that is being written.
struct Outgoing<'a> {
    connection: &'a Connection,
    unsent: Unsent,
    /// What is still to come of the body.
    stream: Option<AnswerStream>,
    encoder: BodyEncoder,
    context: Box<RequestContext>,
    /// Why no more will come.
    broken: bool,
}

/// How an answer's body is written.
struct Plan {
    encoder: BodyEncoder,
    /// Whether a body follows the head.
    has_body: bool,
    /// What the head announces.
    length: Option<u64>,
    chunked: bool,
    /// Whether the end of the connection is the end of the body.
    until_close: bool,
}

impl Connection {
    /// Writes `answer`.
    pub(super) async fn write(&self, answer: Answer) -> After {
        let (method, version) = answer.asked();
        let plan = Plan::of(&answer, &method, version);
        let closes = plan.until_close || !self.goes_on(&answer);
        let mut out = self.input.borrow_mut().take_interim();
        if out.is_empty() {
            out = Buffer::with_capacity(1024);
        }
        write_head(&mut out, &answer, &plan, closes, version);
        let Answer { content, mut context, bounds, .. } = answer;
        let mut stream = None;
        match content {
            Content::Whole(bytes) if plan.has_body => {
                context.sent(bytes.len());
                out.extend_from_slice(&bytes);
            }
            Content::Stream(body) if plan.has_body && !body.is_done() => stream = Some(body),
            // Its connection is free for the next request before the client has read the head.
            _ => {}
        }
        self.state.begin_answer(bounds.gap, bounds.whole);
        let encoder = plan.encoder;
        let mut outgoing = Outgoing {
            connection: self,
            unsent: Unsent::new(out),
            stream,
            encoder,
            context,
            broken: false,
        };
        let ended = std::future::poll_fn(|cx| outgoing.poll(cx)).await;
        match ended {
            Ok(()) => {
                outgoing.context.complete();
                if closes { After::Close } else { After::Reuse }
            }
            Err(cut) => {
                outgoing.context.cut(cut);
                if plan.until_close {
                    // Its close would look like the answer's end.
                    self.socket.reset_on_close();
                }
                After::Drop
            }
        }
    }

    /// Whether another request may follow, as far as it is known before the head is written.
    fn goes_on(&self, answer: &Answer) -> bool {
        let left = self.left.get().map(|left| left.saturating_sub(1));
        self.left.set(left);
        let input = self.input.borrow();
        let in_step = match input.unread_body() {
            Some(left) if left <= MAX_DRAINED => true,
            // It is still on its way to the upstream.
            _ => matches!(&answer.content, Content::Stream(stream) if stream.takes_body()),
        };
        let asked = answer.context.is_persistent();
        asked && in_step && left != Some(0) && self.state.ending() == Ending::No
    }
}

/// What is to be written next. Holds no more than what is unsent, however little the client takes at once.
struct Unsent {
    bytes: Buffer,
    written: usize,
}

impl Unsent {
    fn new(bytes: Buffer) -> Self {
        Self { bytes, written: 0 }
    }

    /// The bytes, oldest first.
    fn bytes(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    /// Notes that the first `count` bytes were written.
    fn advance(&mut self, count: usize) {
        self.written += count;
    }

    /// Where more is added behind them.
    fn tail(&mut self) -> &mut Vec<u8> {
        self.bytes.drain(..std::mem::take(&mut self.written));
        &mut self.bytes
    }
}

impl Outgoing<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Cut>> {
        let state = &self.connection.state;
        for _ in 0..MAX_TURNS {
            match state.timeout() {
                Some(Timeout::ClientRead) => return Poll::Ready(Err(Cut::ClientTimeout)),
                Some(Timeout::AnswerIdle) => return Poll::Ready(Err(Cut::UpstreamIdle)),
                Some(Timeout::Answer) => return Poll::Ready(Err(Cut::AnswerTimeout)),
                _ => {}
            }
            if self.stream.is_some() && self.unsent.bytes().len() < READ_SIZE && self.fill(cx) {
                continue;
            }
            if !self.unsent.bytes().is_empty() {
                match self.connection.socket.poll_write(cx, self.unsent.bytes()) {
                    Poll::Ready(Ok(count)) if count > 0 => {
                        self.unsent.advance(count);
                        state.wait_for(Wait::Gateway);
                        continue;
                    }
                    Poll::Ready(_) => return Poll::Ready(Err(Cut::ClientClosed)),
                    Poll::Pending => {
                        state.wait_for_reader();
                        return Poll::Pending;
                    }
                }
            }
            if self.broken {
                return Poll::Ready(Err(Cut::UpstreamBroken));
            }
            if self.stream.is_none() {
                return Poll::Ready(Ok(()));
            }
            state.wait_for_upstream(None);
            return Poll::Pending;
        }
        yield_turn(cx);
        Poll::Pending
    }

    /// Takes what is there of the body; says whether more may be there.
    fn fill(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(stream) = &mut self.stream else { return false };
        match stream.poll_body(cx, self.encoder, self.unsent.tail()) {
            Poll::Pending => false,
            Poll::Ready(Ok(count)) => {
                self.context.sent(count);
                if stream.is_done() {
                    self.stream = None;
                }
                self.stream.is_some()
            }
            Poll::Ready(Err(error)) => {
                self.context.break_off(&error);
                self.broken = true;
                self.stream = None;
                false
            }
        }
    }
}

impl Plan {
    fn of(answer: &Answer, method: &Method, version: Version) -> Self {
        let bodiless = *method == Method::HEAD || matches!(answer.status.as_u16(), 204 | 304);
        let mut plan = Self {
            encoder: BodyEncoder::Plain,
            has_body: !bodiless,
            length: None,
            chunked: false,
            until_close: false,
        };
        match &answer.content {
            Content::Whole(bytes) => {
                // RFC 9110, 8.6: none with 204, and with 304 that of the answer that was spared.
                plan.length = match answer.status.as_u16() {
                    204 | 304 => None,
                    _ => Some(bytes.len() as u64),
                };
            }
            Content::Stream(stream) => {
                plan.length = stream.announced();
                if plan.has_body && plan.length.is_none() {
                    plan.chunked = version == Version::Http11;
                    plan.until_close = !plan.chunked;
                }
            }
        }
        if plan.chunked {
            plan.encoder = BodyEncoder::Chunked;
        }
        plan
    }
}

fn write_head(out: &mut Vec<u8>, answer: &Answer, plan: &Plan, closes: bool, version: Version) {
    write_status(out, answer.status);
    answer.write_fields(out);
    if let Some(length) = plan.length {
        out.extend_from_slice(b"content-length: ");
        out.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
        out.extend_from_slice(b"\r\n");
    } else if plan.chunked {
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
    fn what_was_written_is_not_kept_while_the_client_takes_little_at_once() {
        let mut unsent = Unsent::new(Buffer::copy_of(b"head"));
        for _ in 0..1000 {
            while unsent.bytes().len() < READ_SIZE {
                unsent.tail().extend_from_slice(&[b'x'; 8 * 1024]);
            }
            // A slow link: the kernel never takes all of it.
            unsent.advance(16 * 1024);
        }
        assert!(unsent.bytes.capacity() <= 4 * READ_SIZE, "{}", unsent.bytes.capacity());
    }
}
