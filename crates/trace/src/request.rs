//! The spans of one sampled request, while it is handled.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use tidegate_base::time::{StoreTime, Uptime};

use super::{RequestStart, SpanContext, ids::child_id};

/// The most child spans of a request.
const MAX_CHILDREN: usize = 64;

/// The spans of one sampled request: its own, and a child for each piece of work that it waited
/// for. Children are dated by the clock's uptime.
#[derive(Debug)]
pub struct RequestTrace {
    /// The request's own span.
    pub context: SpanContext,
    /// The sender's span in the same trace.
    pub(super) parent: Option<u64>,
    /// The sender's span if the sender is not trusted, so that the request begins a new trace.
    pub(super) link: Option<SpanContext>,
    /// The sender's `tracestate`.
    pub(super) state: Option<Box<str>>,
    pub(super) start: RequestStart,
    pub(super) end: Uptime,
    pub(super) children: Vec<Child>,
    /// The number of children beyond [`MAX_CHILDREN`].
    pub(super) dropped_children: u32,
    /// The attempts so far.
    attempts: u32,
    /// The contents of the request's own span; `None` until the request ends.
    pub(super) summary: Option<RequestSummary>,
}

/// A piece of work that a request waited for.
#[derive(Debug)]
pub(super) struct Child {
    pub(super) id: u64,
    pub(super) start: Uptime,
    /// `None` if the request ended before the child.
    pub(super) end: Option<Uptime>,
    pub(super) work: ChildSpanKind,
}

/// The work that a child span records.
#[derive(Debug)]
pub enum ChildSpanKind {
    /// The store's decision.
    Charge {
        /// Where the counters are: `memory` or `redis`.
        store: &'static str,
        /// The decision, as in the access log; empty until it is made.
        decision: &'static str,
    },
    /// The correction of charges by the response.
    Correction {
        /// Where the counters are.
        store: &'static str,
    },
    /// The wait for a leaky bucket's slot.
    Delay,
    /// An attempt at an upstream's server, to the response's head.
    Attempt {
        /// The server.
        server: PeerServer,
        /// The number of attempts before it.
        resends: u32,
        /// `None` until its end.
        result: Option<AttemptResult>,
    },
}

/// The server of an attempt.
#[derive(Debug)]
pub struct PeerServer {
    /// The host, or a socket's path.
    pub address: Box<str>,
    /// The port; `None` for a socket.
    pub port: Option<u16>,
    /// The address that the host was resolved to.
    pub peer: Option<SocketAddr>,
    /// `http` or `https`.
    pub scheme: &'static str,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug)]
pub enum AttemptResult {
    /// With a response of this status.
    Status(u16),
    /// Without a response, for this reason.
    Failed(&'static str),
}

/// The contents of a request's own span.
#[derive(Debug)]
pub struct RequestSummary {
    /// The method; empty if the request could not be parsed.
    pub method: Box<str>,
    /// The path, without query.
    pub path: Box<str>,
    /// `http` or `https`.
    pub scheme: &'static str,
    /// The protocol and its version, such as `HTTP/1.1`.
    pub protocol: &'static str,
    /// The requested host, with its port if it has one.
    pub host: Box<str>,
    /// The client's address; `None` if addresses are not recorded.
    pub client: Option<IpAddr>,
    /// The consumer's name, if it is known.
    pub consumer: Option<Box<str>>,
    /// The route's name and its path pattern.
    pub route: Option<(Box<str>, Box<str>)>,
    /// The response's status; `None` without one.
    pub status: Option<u16>,
    /// The decision of the limits, as in the access log.
    pub limit: &'static str,
    /// The limits that refused the request.
    pub refused_by: Vec<Box<str>>,
    /// The request's id.
    pub request_id: Box<str>,
    /// Why the request or its response ended early.
    pub error: Option<&'static str>,
}

impl RequestTrace {
    pub(super) fn new(context: SpanContext, start: RequestStart) -> Self {
        Self {
            context,
            parent: None,
            link: None,
            state: None,
            end: start.uptime,
            start,
            children: Vec::new(),
            dropped_children: 0,
            attempts: 0,
            summary: None,
        }
    }

    /// Begins a child span. Children do not overlap: the last one must have ended.
    pub fn begin(&mut self, work: ChildSpanKind, now: Uptime) {
        if self.children.len() == MAX_CHILDREN {
            self.dropped_children += 1;
            return;
        }
        let id = child_id(self.context, self.children.len() as u64);
        self.children.push(Child { id, start: now, end: None, work });
    }

    /// The child that has not ended.
    fn open(&mut self) -> Option<&mut Child> {
        let is_open = self.dropped_children == 0;
        self.children.last_mut().filter(|child| is_open && child.end.is_none())
    }

    /// Ends the child span.
    pub fn end(&mut self, now: Uptime) {
        if let Some(child) = self.open() {
            child.end = Some(now);
        }
    }

    /// Ends the store's decision.
    pub fn end_charge(&mut self, label: &'static str, now: Uptime) {
        if let Some(child) = self.open()
            && let ChildSpanKind::Charge { decision, .. } = &mut child.work
        {
            *decision = label;
        }
        self.end(now);
    }

    /// Begins an attempt at `server`.
    pub fn begin_attempt(&mut self, server: PeerServer, now: Uptime) {
        let resends = self.attempts;
        self.attempts += 1;
        self.begin(ChildSpanKind::Attempt { server, resends, result: None }, now);
    }

    /// The id of the attempt's span, which the request to the server carries.
    pub fn attempt_id(&mut self) -> u64 {
        let own = self.context.span_id;
        self.open().map_or(own, |child| child.id)
    }

    /// Ends the attempt.
    pub fn end_attempt(&mut self, ended: AttemptResult, now: Uptime) {
        if let Some(child) = self.open()
            && let ChildSpanKind::Attempt { result, .. } = &mut child.work
        {
            *result = Some(ended);
            self.end(now);
        }
    }

    /// Removes the attempt's span: nothing was sent, so it does not count as an attempt.
    pub fn forget_attempt(&mut self) {
        if let Some(child) = self.open()
            && matches!(child.work, ChildSpanKind::Attempt { .. })
        {
            self.children.pop();
            self.attempts -= 1;
        }
    }

    /// Ends the request's own span, `duration` after its start.
    pub fn finish(&mut self, summary: RequestSummary, duration: Duration) {
        self.end = self.start.uptime + duration;
        self.summary = Some(summary);
    }

    /// When the request ended.
    pub fn ended_at(&self) -> StoreTime {
        StoreTime::from_unix_ms(self.nanos(self.end) / 1_000_000)
    }

    /// The number of spans.
    pub(super) fn span_count(&self) -> u64 {
        1 + self.children.len() as u64
    }

    /// The ns from the epoch to `at`, for encoding.
    pub(super) fn nanos(&self, at: Uptime) -> u64 {
        let since = at.saturating_sub(self.start.uptime).as_nanos();
        self.start.time.as_nanos().saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }
}
