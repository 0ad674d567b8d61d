//! One connection to an upstream server, and one exchange on it.
//!
//! A link is driven by the task of the request that uses it and by no other, so an exchange costs no
//! switch between tasks. The codec is our own ([`super::request`], [`super::answer`]): it checks and
//! reads an answer in one pass and writes a request straight from the client's headers.

use std::{
    io,
    task::{Context, Poll},
};

use http::{HeaderMap, Method};
use tokio::net::TcpStream;

use super::{
    answer::Answer,
    request::{Outgoing, SendError},
};
use crate::framing::held::Held;

/// One connection to an upstream server.
pub(super) struct Link {
    pub(super) socket: TcpStream,
    /// What was read and is not yet handed on.
    pub(super) held: Held,
    /// Interim answers of this exchange.
    pub(super) interim: usize,
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
    Body,
    /// The connection failed, or the answer was malformed.
    Failed(io::Error),
}

impl Link {
    /// Makes a link of a connected socket.
    pub(super) fn new(socket: TcpStream) -> Box<Self> {
        let (held, idle_since) = (Held::default(), 0);
        Box::new(Self { socket, held, interim: 0, heard: false, idle_since, used: false })
    }

    /// Whether another exchange may begin on it: the upstream has neither closed it nor sent what
    /// nobody asked for. Costs no system call while nothing has come.
    pub(super) fn is_reusable(&self) -> bool {
        let nothing = self.socket.try_read(&mut [0]);
        self.held.bytes().is_empty()
            && nothing.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Puts it to rest.
    pub(super) fn rest(&mut self, now: u64) {
        self.idle_since = now;
        self.used = true;
        self.interim = 0;
        self.heard = false;
    }

    /// Sends `outgoing` and waits for the answer's head; the rest of the body is sent on with the
    /// answer's. `expired` is asked at every turn whether the time is up.
    pub(super) async fn exchange(
        &mut self,
        outgoing: &mut Outgoing,
        method: &Method,
        map: &mut HeaderMap,
        expired: impl Fn() -> bool,
    ) -> Result<Answer, ExchangeError> {
        std::future::poll_fn(|cx| {
            if expired() {
                return Poll::Ready(Err(ExchangeError::Expired));
            }
            let sending = self.poll_sending(outgoing, cx);
            if let Poll::Ready(Err(SendError::Body)) = sending {
                return Poll::Ready(Err(ExchangeError::Body));
            }
            // An upstream may answer, and close, without reading all: its answer counts.
            match (self.poll_answer(cx, method, map), sending) {
                (Poll::Ready(answer), Poll::Ready(Err(SendError::Io(error)))) => {
                    Poll::Ready(answer.map_err(|_| ExchangeError::Failed(error)))
                }
                (Poll::Ready(answer), _) => Poll::Ready(answer.map_err(ExchangeError::Failed)),
                (Poll::Pending, _) => Poll::Pending,
            }
        })
        .await
    }

    fn poll_sending(
        &mut self,
        outgoing: &mut Outgoing,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        if outgoing.is_sent() {
            return Poll::Ready(Ok(()));
        }
        outgoing.poll_send(&mut self.socket, cx)
    }
}
