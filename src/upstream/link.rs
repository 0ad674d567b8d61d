//! One connection to an upstream server, and one exchange on it.

use std::{
    cell::Cell,
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
use crate::framing::{Armed, Outbound, Turn};

type Driver = http1::Connection<TokioIo<Outbound<TcpStream>>, RequestBody>;

/// The HTTP library's own buffers grow to this: a whole head, and what one client may lag behind.
const BUFFER: usize = 128 * 1024;
/// In one turn, the parts of a connection may answer one another so often.
const TURNS: usize = 8;

/// One connection to an upstream server. Driven by whoever uses it; nobody drives an idle one.
pub struct Link {
    sender: SendRequest<RequestBody>,
    driver: Option<Driver>,
    armed: Armed,
    signal: Arc<LinkWaker>,
    waker: Waker,
    /// When it was last put back, by the worker's coarse clock, in ms.
    pub(super) idle_since: u64,
    /// Whether it has carried an exchange before.
    pub(super) used: bool,
}

impl Link {
    /// Makes a link of a connected socket.
    pub(super) async fn new(socket: TcpStream) -> hyper::Result<Self> {
        let armed = Rc::new(Cell::new(Turn::Rest));
        let io = TokioIo::new(Outbound::new(socket, armed.clone()));
        let mut builder = http1::Builder::new();
        builder.writev(false).max_buf_size(BUFFER);
        let (sender, driver) = builder.handshake(io).await?;
        let signal = Arc::new(LinkWaker::default());
        let waker = Waker::from(signal.clone());
        Ok(Self { sender, driver: Some(driver), armed, signal, waker, idle_since: 0, used: false })
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
    /// time is up. The error gives the request back where nothing of it was sent.
    pub(super) async fn exchange(
        mut self,
        request: Request<RequestBody>,
        expired: impl Fn() -> bool,
    ) -> Result<(Response<Incoming>, Self), ExchangeError> {
        self.armed.set(Turn::Request);
        let mut answer = std::pin::pin!(self.sender.try_send_request(request));
        let result = std::future::poll_fn(|cx| {
            if expired() {
                return Poll::Ready(Err(ExchangeError::Expired));
            }
            self.turn(cx, |cx| answer.as_mut().poll(cx)).map_err(ExchangeError::from)
        })
        .await;
        result.map(|answer| (answer, self))
    }

    /// Polls `part` and the driver in turns until neither goes on.
    fn turn<T>(
        &mut self,
        cx: &mut Context<'_>,
        mut part: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        self.signal.enter(cx.waker());
        let own = &mut Context::from_waker(&self.waker);
        let mut result = Poll::Pending;
        for _ in 0..TURNS {
            let driven = match &mut self.driver {
                Some(driver) => Pin::new(driver).poll(own).is_ready(),
                None => false,
            };
            if driven {
                self.driver = None;
            }
            result = part(own);
            if result.is_ready() || !self.signal.again() {
                break;
            }
        }
        self.signal.leave();
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
    Failed(hyper::Error),
}

impl From<TrySendError<Request<RequestBody>>> for ExchangeError {
    fn from(mut error: TrySendError<Request<RequestBody>>) -> Self {
        match error.take_message() {
            Some(request) => Self::Unsent(Box::new(request)),
            None => Self::Failed(error.into_error()),
        }
    }
}

/// The body of an upstream's answer, as it comes. Puts its connection back when it has ended.
pub struct AnswerStream {
    body: Incoming,
    link: Option<Link>,
    pool: Rc<Pool>,
    ended: bool,
}

impl AnswerStream {
    pub(super) fn new(body: Incoming, link: Link, pool: Rc<Pool>) -> Self {
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
        // What has already come is handed on before more is read.
        let mut first = Pin::new(&mut *body).poll_frame(&mut Context::from_waker(&link.waker));
        if first.is_pending() {
            first = link.turn(cx, |cx| Pin::new(&mut *body).poll_frame(cx));
        }
        let frame = std::task::ready!(first);
        // Trailers are the last frame; nobody may ask for one more.
        let last = matches!(&frame, Some(Ok(frame)) if frame.is_trailers());
        this.ended = frame.is_none() || last || this.body.is_end_stream();
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
