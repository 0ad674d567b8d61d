//! What is written down of a request when it is over, however it ends.

use std::{
    cell::Cell,
    net::IpAddr,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::Bytes;
use crossbeam_utils::CachePadded;
use http_body::{Body, Frame, SizeHint};

use super::{admission::Stay, slots::Lent};
use crate::{
    clock,
    framing::Wire,
    metrics::RouteCounters,
    respond::Content,
    telemetry::{AccessLine, AccessWriter},
};

/// The status that stands in logs where the client was gone before an answer.
const CLIENT_GONE: u16 = 499;

/// One request's account. It is closed, and counted, when it is dropped.
pub(super) struct Account {
    pub(super) started: Instant,
    pub(super) counters: Arc<CachePadded<RouteCounters>>,
    pub(super) status: u16,
    /// As [`AccessLine::limit`] tells it; `unasked` until the limits are, or nothing is to be asked.
    pub(super) limit: &'static str,
    /// How long it was held back.
    pub(super) delay: Cell<Duration>,
    pub(super) wire: Rc<Wire>,
    pub(super) line: Option<Box<LineDraft>>,
    /// Keeps the caller known to the throttle; held for its drop.
    pub(super) stay: Option<Stay>,
    /// Slots that it holds while it is in flight; held for their drop.
    pub(super) lent: Option<Lent>,
    /// Whether the answer may end with the connection, so that a cut could pass for its end.
    pub(super) until_close: bool,
    bytes: u64,
    complete: bool,
}

/// What the access line needs of the request; kept only where there is an access log.
pub(super) struct LineDraft {
    pub(super) log: Rc<AccessWriter>,
    pub(super) time: u64,
    pub(super) client: IpAddr,
    /// A keyed hash of the access token, where there is one.
    pub(super) token: Option<u64>,
    /// None where the request could not be read.
    pub(super) method: Option<http::Method>,
    pub(super) host: String,
    pub(super) path: String,
    pub(super) route: String,
    pub(super) request_id: String,
}

impl Account {
    pub(super) fn new(counters: Arc<CachePadded<RouteCounters>>, wire: Rc<Wire>) -> Self {
        Self {
            started: clock::instant(),
            counters,
            status: CLIENT_GONE,
            limit: "unasked",
            delay: Cell::default(),
            wire,
            line: None,
            stay: None,
            lent: None,
            until_close: false,
            bytes: 0,
            complete: false,
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let took = clock::instant().saturating_duration_since(self.started);
        let class = usize::from(self.status / 100).clamp(1, 5) - 1;
        self.counters.answers[class].add(1);
        self.counters.latency.observe(took);
        self.wire.finish();
        if self.until_close && !self.complete {
            self.wire.break_off();
        }
        if let Some(line) = &self.line {
            line.log.write(&AccessLine {
                time: line.time,
                client: line.client,
                method: line.method.as_ref().map_or("", http::Method::as_str).as_bytes(),
                host: line.host.as_bytes(),
                path: line.path.as_bytes(),
                status: self.status,
                route: &line.route,
                limit: self.limit,
                token: line.token,
                bytes: self.bytes,
                took,
                delay: self.delay.get(),
                upstream: "",
                upstream_time: None,
                attempts: 0,
                cut: None,
                complete: self.complete,
                request_id: line.request_id.as_bytes(),
            });
        }
    }
}

/// An answer's body, and the account that is closed with it.
pub struct AnswerBody {
    content: Content,
    account: Account,
}

impl AnswerBody {
    pub(super) fn new(content: Content, account: Account) -> Self {
        let mut body = Self { content, account };
        body.account.complete = body.is_end_stream();
        body
    }

    /// Notes that none of the body will be asked for, as after a HEAD.
    pub(super) fn unread(mut self) -> Self {
        self.account.complete = true;
        self
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::io::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        let frame = match &mut this.content {
            Content::Whole(bytes) if bytes.is_empty() => None,
            Content::Whole(bytes) => Some(Ok(Frame::data(std::mem::take(bytes)))),
            Content::Stream(stream) => std::task::ready!(Pin::new(stream).poll_frame(cx)),
        };
        if let Some(Ok(frame)) = &frame {
            this.account.bytes += frame.data_ref().map_or(0, Bytes::len) as u64;
        }
        this.account.complete =
            frame.is_none() || (this.is_end_stream() && matches!(frame, Some(Ok(_))));
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Whole(bytes) => bytes.is_empty(),
            Content::Stream(stream) => stream.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Content::Stream(stream) => stream.size_hint(),
        }
    }
}
