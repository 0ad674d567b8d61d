//! [`RequestContext`]: everything about one request, from its head to its access log line.

use std::{cell::Cell, net::IpAddr, rc::Rc, sync::Arc, time::Duration};

use crossbeam_utils::CachePadded;
use http::StatusCode;
use smallvec::SmallVec;

use super::{
    Peer,
    activity::ActivityGuard,
    charged_limit::ChargedLimit,
    concurrency_lease::ConcurrencyPermits,
    request_id::{RequestId, RequestIds},
    rules::WorkerRules,
};
use crate::{
    clock::Stopwatch,
    framing::{ClientStream, RequestHead, state::CloseMode},
    identity::{Caller, KeySecret, token_hash},
    limit::Admission,
    metrics::RouteCounters,
    plan,
    respond::LimitReport,
    telemetry::{AccessLine, AccessWriter, CutReason},
    upstream::Attempts,
};

/// The status that is logged and counted if the client closes before the response (nginx's code).
const STATUS_CLIENT_CLOSED: u16 = 499;

/// Writes a request's access log line.
pub(super) struct AccessLogger {
    pub(super) writer: Rc<AccessWriter>,
    /// The key of the hash that stands for a token in the log.
    pub(super) secret: KeySecret,
}

/// One request in the gateway. Dropping it releases what the request holds, counts it and logs it,
/// even if the client goes away early.
pub struct RequestContext {
    pub(super) rules: Rc<WorkerRules>,
    /// `None` if it was malformed.
    pub(super) head: Option<Box<RequestHead>>,
    pub(super) client: Rc<dyn ClientStream>,
    pub(super) route: Option<usize>,
    /// The client's address, as trusted proxies report it.
    pub(super) client_ip: IpAddr,
    /// The normalized path, if it differs from the path in the head.
    pub(super) path: Option<Box<str>>,
    /// The limits that the request is charged to.
    pub(super) limits: SmallVec<[ChargedLimit; 2]>,
    /// The caller, if the throttle applies to the route.
    pub(super) caller: Option<Caller>,
    pub(super) request_id: RequestId,
    /// Whether the peer is a trusted proxy, so that its `X-Forwarded-*` are used.
    pub(super) from_trusted_proxy: bool,
    pub(super) counters: Arc<CachePadded<RouteCounters>>,
    /// The response's status, once there is one.
    status: Option<u16>,
    /// What the limits and the throttle decided.
    pub(super) admission: Admission,
    /// How long leaky buckets delayed the request.
    pub(super) delay: Cell<Duration>,
    pub(super) attempts: Attempts,
    /// The time from the first attempt to the response's head, or to the failure.
    pub(super) upstream_time: Option<Duration>,
    /// Keeps the caller active for the throttle until the response ends.
    pub(super) activity: Option<ActivityGuard>,
    /// The concurrency permits that the request holds until the response ends.
    pub(super) permits: Option<ConcurrencyPermits>,
    pub(super) access_logger: Option<AccessLogger>,
    /// The arrival, in ms since the epoch; only set if there is an access log.
    pub(super) arrived_at: u64,
    stopwatch: Stopwatch,
    /// Body bytes of the response that were buffered for sending.
    bytes_sent: u64,
    is_complete: bool,
    cut_reason: Option<CutReason>,
}

impl RequestContext {
    pub(super) fn new(
        rules: Rc<WorkerRules>,
        peer: &Peer,
        head: Option<Box<RequestHead>>,
        client: Rc<dyn ClientStream>,
        counters: Arc<CachePadded<RouteCounters>>,
        ids: &RequestIds,
        stopwatch: Stopwatch,
    ) -> Self {
        let from_trusted_proxy = rules.snapshot.identity.trusted_proxies.contains(peer.address);
        let given = head
            .as_ref()
            .filter(|_| from_trusted_proxy)
            .and_then(|head| RequestId::from_head(head));
        Self {
            rules,
            client,
            route: None,
            client_ip: peer.address,
            path: None,
            limits: SmallVec::new(),
            caller: None,
            request_id: given.unwrap_or_else(|| ids.next()),
            from_trusted_proxy,
            counters,
            status: None,
            admission: Admission::NotChecked,
            delay: Cell::default(),
            attempts: Attempts::default(),
            upstream_time: None,
            activity: None,
            permits: None,
            access_logger: None,
            arrived_at: 0,
            stopwatch,
            bytes_sent: 0,
            is_complete: false,
            cut_reason: None,
            head,
        }
    }

    /// The request's head; `None` if it was malformed.
    pub fn head(&self) -> Option<&RequestHead> {
        self.head.as_deref()
    }

    /// Whether the client keeps the connection open for another request.
    pub fn is_persistent(&self) -> bool {
        self.head().is_some_and(RequestHead::is_persistent)
    }

    /// The limits and their outcomes, for the response.
    pub(super) fn reports(&self) -> impl Iterator<Item = LimitReport<'_>> + Clone {
        self.limits.iter().map(ChargedLimit::report)
    }

    /// The normalized path.
    pub(super) fn path(&self) -> &str {
        match (&self.path, &self.head) {
            (Some(path), _) => path,
            (None, Some(head)) => head.path(),
            (None, None) => "",
        }
    }

    /// Records and counts the response's status. Called before the client can read the response, so
    /// that a later scrape of the metrics includes it.
    pub(super) fn record_status(&mut self, status: StatusCode) {
        self.status = Some(status.as_u16());
        self.count_response(status.as_u16());
    }

    fn count_response(&self, status: u16) {
        let class = usize::from(status / 100).clamp(1, 5) - 1;
        self.counters.responses[class].add(1);
    }

    /// Adds body bytes of the response that were buffered for sending.
    pub fn add_bytes_sent(&mut self, bytes: usize) {
        self.bytes_sent += bytes as u64;
    }

    /// Records that the response was written to its end.
    pub fn mark_complete(&mut self) {
        self.is_complete = true;
    }

    /// Records why the response was cut off.
    pub fn mark_cut(&mut self, reason: CutReason) {
        self.cut_reason = Some(reason);
    }

    /// Records, counts and logs that the upstream broke off its response.
    #[cold]
    pub fn mark_upstream_broken(&mut self, error: &std::io::Error) {
        self.cut_reason = Some(CutReason::UpstreamBroken);
        if let Some(route) = self.route {
            if let Some(counters) = &self.rules.routes[route].upstream {
                counters.broken.add(1);
            }
            let server = self.attempts.server.as_ref().map_or("", |server| server.authority());
            tracing::debug!(server, %error, "the upstream broke off its response");
        }
    }

    fn write_access_line(&self, logger: &AccessLogger, duration: Duration) {
        let route = self.route.map(|route| &*self.rules.snapshot.routes[route].name);
        let sources = &self.rules.snapshot.identity.token;
        let head = self.head.as_ref();
        let host = head.map(|head| plan::host(&head.fields)).unwrap_or_default();
        let default_cut = if self.client.state().close_mode() == CloseMode::Immediate {
            CutReason::DrainTimeout
        } else {
            CutReason::ClientClosed
        };
        logger.writer.write(&AccessLine {
            time: self.arrived_at,
            client: self.client_ip,
            token: head.and_then(|head| token_hash(sources, &head.fields, logger.secret)),
            method: head.map_or("", |head| head.method.as_str()).as_bytes(),
            host: host.as_bytes(),
            path: self.path().as_bytes(),
            route: route.unwrap_or_default(),
            status: self.status.unwrap_or(STATUS_CLIENT_CLOSED),
            bytes: self.bytes_sent,
            duration,
            delay: self.delay.get(),
            limit: self.admission.label(),
            upstream: self.attempts.server.as_ref().map_or("", |server| server.authority()),
            upstream_time: self.upstream_time,
            attempts: self.attempts.count,
            cut: if self.is_complete { None } else { Some(self.cut_reason.unwrap_or(default_cut)) },
            complete: self.is_complete,
            request_id: self.request_id.as_bytes(),
        });
    }
}

impl Drop for RequestContext {
    fn drop(&mut self) {
        let duration = self.stopwatch.read();
        if self.status.is_none() {
            self.count_response(STATUS_CLIENT_CLOSED);
        }
        self.counters.latency.observe(duration);
        if let Some(logger) = &self.access_logger {
            self.write_access_line(logger, duration);
        }
    }
}
