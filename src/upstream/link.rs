//! One connection to an upstream server, and one exchange on it.

use std::{
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::{
    body::Incoming,
    client::conn::{
        TrySendError,
        http1::{self, SendRequest},
    },
};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::{body::RequestBody, pool::Pool, waker::LinkWaker};
use crate::framing::{Exchange, Outbound};

type Driver = http1::Connection<TokioIo<Outbound<TcpStream>>, RequestBody>;

/// In one turn, the parts of a connection may answer one another so often.
const TURNS: usize = 8;

/// One connection to an upstream server. Driven by whoever uses it; nobody drives an idle one.
pub struct Link {
    sender: SendRequest<RequestBody>,
    driver: Option<Driver>,
    exchange: Rc<Exchange>,
    signal: Arc<LinkWaker>,
    waker: Waker,
    /// When it was last put back, by the worker's coarse clock, in ms.
    pub(super) idle_since: u64,
    /// Whether it has carried an exchange before.
    pub(super) used: bool,
}

impl Link {
    /// Makes a link of a connected socket.
    pub(super) async fn new(socket: TcpStream) -> hyper::Result<Box<Self>> {
        let exchange = Rc::new(Exchange::default());
        let io = TokioIo::new(Outbound::new(socket, exchange.clone()));
        let (sender, driver) = http1::Builder::new().writev(false).handshake(io).await?;
        let signal = Arc::new(LinkWaker::default());
        let waker = Waker::from(signal.clone());
        let driver = Some(driver);
        Ok(Box::new(Self { sender, driver, exchange, signal, waker, idle_since: 0, used: false }))
    }

    /// Whether another exchange may begin on it.
    pub(super) fn is_reusable(&self) -> bool {
        self.driver.is_some() && self.sender.is_ready()
    }

    /// Stops waking its last user.
    pub(super) fn rest(&mut self, now: u64) {
        self.signal.release();
        self.idle_since = now;
        self.used = true;
    }

    /// Sends `request` and waits for the answer's head. `expired` is asked at every turn whether the
    /// time is up. The error gives the request back where nothing of it was sent, and its bytes where
    /// they were to be kept: `recording`, only for a request without a body.
    pub(super) async fn exchange(
        mut self: Box<Self>,
        request: Request<RequestBody>,
        recording: bool,
        expired: impl Fn() -> bool,
    ) -> Result<(Response<Incoming>, Box<Self>), ExchangeError> {
        self.exchange.begin(recording);
        let mut answer = std::pin::pin!(self.sender.try_send_request(request));
        let sent = std::future::poll_fn(|cx| {
            if expired() {
                return Poll::Ready(None);
            }
            self.turn(cx, |cx| answer.as_mut().poll(cx)).map(Some)
        })
        .await;
        match sent {
            Some(Ok(answer)) => Ok((answer, self)),
            Some(Err(error)) => Err(ExchangeError::new(error, &self.exchange)),
            None => Err(ExchangeError::Expired),
        }
    }

    /// Polls `part` and the driver in turns until neither goes on.
    fn turn<T>(
        &mut self,
        cx: &mut Context<'_>,
        mut part: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        self.signal.enter(cx.waker());
        let own = &mut Context::from_waker(&self.waker);
        // What has already come is handed on before more is read.
        let mut result = part(own);
        for _ in 0..TURNS {
            if result.is_ready() {
                break;
            }
            self.signal.again();
            let Some(driver) = &mut self.driver else { break };
            if Pin::new(driver).poll(own).is_ready() {
                self.driver = None;
            }
            result = part(own);
            if !self.signal.again() {
                break;
            }
        }
        self.signal.leave(result.is_pending());
        result
    }
}

/// Why an exchange gave no answer.
pub(super) enum ExchangeError {
    /// The connection was closed before anything was sent: the request is whole.
    Unsent(Box<Request<RequestBody>>),
    /// The time was up.
    Expired,
    /// Anything else; the upstream may have seen the request.
    Failed {
        /// What happened.
        error: hyper::Error,
        /// The bytes of the request, where they were to be kept.
        sent: Option<Vec<u8>>,
    },
}

impl ExchangeError {
    fn new(mut error: TrySendError<Request<RequestBody>>, exchange: &Exchange) -> Self {
        match error.take_message() {
            Some(request) => Self::Unsent(Box::new(request)),
            None => Self::Failed { error: error.into_error(), sent: exchange.take_sent() },
        }
    }
}

/// The body of an upstream's answer, as it comes. Puts its connection back when it has ended.
pub struct AnswerStream {
    body: Incoming,
    link: Option<Box<Link>>,
    pool: Rc<Pool>,
    ended: bool,
}

impl AnswerStream {
    pub(super) fn new(body: Incoming, link: Box<Link>, pool: Rc<Pool>) -> Self {
        Self { ended: body.is_end_stream(), body, link: Some(link), pool }
    }
}

impl Body for AnswerStream {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        let Some(link) = &mut this.link else { return Poll::Ready(None) };
        let body = &mut this.body;
        let frame = std::task::ready!(link.turn(cx, |cx| Pin::new(&mut *body).poll_frame(cx)));
        this.ended = frame.is_none() || this.body.is_end_stream();
        if let Some(Ok(frame)) = frame {
            return Poll::Ready(Some(Ok(super::headers::clean_trailers(frame))));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for AnswerStream {
    fn drop(&mut self) {
        if let Some(link) = self.link.take().filter(|_| self.ended) {
            self.pool.put(link);
        }
    }
}
