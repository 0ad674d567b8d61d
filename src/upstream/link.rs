//! One connection to an upstream server, and one exchange on it.
//!
//! A link is driven by the task of the request that uses it and by no other, so an exchange costs no
//! switch between tasks.

use std::{
    io,
    task::{Context, Poll, ready},
};

use super::request::{Outgoing, SendError};
use crate::framing::{
    AnswerHead, BodyFault, ClientStream, Fault, HeadParser, ReadBuffer, Socket, Timeout, Version,
    buffer::poll_read, head::read_on, start_line::StatusLine, state::Wait,
};

/// The most interim answers before the final one.
const MAX_INTERIM: usize = 32;

/// One connection to an upstream server.
pub(super) struct Link {
    pub(super) socket: Socket,
    /// What was read and is not yet handed on.
    pub(super) buffer: ReadBuffer,
    /// A head that is not whole yet.
    head: Option<Box<HeadParser<StatusLine>>>,
    /// Interim answers of this exchange.
    interim: usize,
    /// Whether anything of the answer has come.
    pub(super) heard: bool,
    /// When it was last put back, by the worker's coarse clock, in ms.
    pub(super) idle_since: u64,
    /// Whether it has carried an exchange before.
    pub(super) used: bool,
}

/// Why an exchange gave no answer.
#[derive(Debug)]
pub(super) enum ExchangeError {
    /// The time was up.
    Expired,
    /// The client's body failed.
    Body(BodyFault),
    /// The connection failed, or the answer was malformed.
    Failed(io::Error),
}

impl Link {
    /// Makes a link of a connected socket.
    pub(super) fn new(socket: Socket) -> Self {
        let (buffer, idle_since) = (ReadBuffer::default(), 0);
        Self { socket, buffer, head: None, interim: 0, heard: false, idle_since, used: false }
    }

    /// Whether another exchange may begin on it: the upstream has neither closed it nor sent what
    /// was not asked for. Costs no system call while nothing has come.
    pub(super) fn is_reusable(&self) -> bool {
        self.buffer.is_empty() && self.socket.is_quiet()
    }

    /// Puts it to rest.
    pub(super) fn rest(&mut self, now: u64) {
        self.idle_since = now;
        self.used = true;
        self.interim = 0;
        self.heard = false;
    }

    /// Sends `outgoing` and waits for the answer's head, `within` so many ms of the last progress; the
    /// rest of the body is sent on with the answer's. Interim answers are passed on to `client`.
    pub(super) async fn exchange(
        &mut self,
        outgoing: &mut Outgoing,
        client: &dyn ClientStream,
        within: Option<u64>,
    ) -> Result<AnswerHead, ExchangeError> {
        let state = client.state();
        state.wait_for(Wait::Gateway);
        std::future::poll_fn(|cx| {
            match state.timeout() {
                Some(Timeout::Upstream | Timeout::Request) => {
                    return Poll::Ready(Err(ExchangeError::Expired));
                }
                Some(Timeout::ClientBody) => {
                    return Poll::Ready(Err(ExchangeError::Body(BodyFault::TimedOut)));
                }
                _ => {}
            }
            let sending = outgoing.poll_send(&self.socket, cx);
            if let Poll::Ready(Err(SendError::Body(fault))) = sending {
                return Poll::Ready(Err(ExchangeError::Body(fault)));
            }
            // An upstream may answer, and close, without reading all: its answer counts.
            match (self.poll_answer(cx, client), sending) {
                (Poll::Ready(answer), Poll::Ready(Err(SendError::Io(error)))) => {
                    Poll::Ready(answer.map_err(|_| ExchangeError::Failed(error)))
                }
                (Poll::Ready(answer), _) => Poll::Ready(answer.map_err(ExchangeError::Failed)),
                (Poll::Pending, _) => {
                    if outgoing.waits_for_client() {
                        state.wait_for_body();
                    } else {
                        state.wait_for_upstream(within);
                    }
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Reads until the final answer's head is whole.
    fn poll_answer(
        &mut self,
        cx: &mut Context<'_>,
        client: &dyn ClientStream,
    ) -> Poll<io::Result<AnswerHead>> {
        loop {
            let Self { socket, buffer, head, heard, .. } = self;
            let read = ready!(poll_read(socket, cx, |bytes| {
                *heard |= !bytes.is_empty();
                if bytes.is_empty() {
                    Err(Fault::Incomplete)
                } else if buffer.is_empty() {
                    let (found, used) = read_head(head, bytes)?;
                    buffer.push(&bytes[used..]);
                    Ok(found)
                } else {
                    buffer.push(bytes);
                    let (found, used) = read_head(head, buffer.bytes())?;
                    buffer.consume(used);
                    Ok(found)
                }
            }))?;
            let mut found = read.map_err(io::Error::from)?;
            while let Some(answer) = found {
                if answer.status >= 200 {
                    return Poll::Ready(Ok(answer));
                }
                self.interim += 1;
                if self.interim > MAX_INTERIM {
                    return Poll::Ready(Err(Fault::Interim.into()));
                }
                if answer.status != 100 && answer.version == Version::Http11 {
                    client.inform(answer.status, &mut |out| {
                        super::answer::write_fields(&answer, out, may_inform);
                    });
                }
                let (next, used) = read_head(&mut self.head, self.buffer.bytes())?;
                self.buffer.consume(used);
                found = next;
            }
        }
    }
}

/// Reads a head at the start of `bytes`, going on where `parser` stopped.
fn read_head(
    parser: &mut Option<Box<HeadParser<StatusLine>>>,
    bytes: &[u8],
) -> Result<(Option<AnswerHead>, usize), Fault> {
    if bytes.is_empty() {
        return Ok((None, 0));
    }
    read_on(parser, bytes, HeadParser::answer, HeadParser::<StatusLine>::finish)
}

/// Whether an interim answer's field goes on: what the gateway itself says with the final one does not.
fn may_inform(name: &[u8]) -> bool {
    let starts = |prefix: &[u8]| {
        name.get(..prefix.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(prefix))
    };
    !(starts(b"x-ratelimit") || starts(b"ratelimit") || starts(b"x-request-id"))
}
