//! [`RequestContext`]: everything about one request, from its head to its access log line.

use std::{cell::Cell, error::Error, net::IpAddr, rc::Rc, sync::Arc, time::Duration};

use crossbeam_utils::CachePadded;
use http::StatusCode;
use smallvec::SmallVec;

use super::{
    Peer,
    activity::ActivityGuard,
    charged_limit::ChargedLimit,
    concurrency_lease::ConcurrencyPermits,
    request_id::{RequestId, RequestIds},
    request_trace::RequestTracing,
    rules::WorkerRules,
};
use crate::{
    client_usage::{ClientHandle, RequestInFlight},
    clock::{Stopwatch, StoreTime},
    connection_state::CloseMode,
    http1::RequestHead,
    identity::{Caller, KeySecret, token_hash},
    limit::Admission,
    metrics::{RouteCounters, WorkerMetrics},
    plan::{self, RoutedRequest},
    respond::LimitReport,
    snapshot::Action,
    telemetry::{AccessLine, AccessWriter, CutReason},
    throttle::POLICY,
    transport::{ClientStream, TunnelOutcome},
    upstream::{AttemptLog, RequestLost, is_own_shortage},
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
    /// What that address uses of the process's resources.
    pub(super) usage: ClientHandle,
    /// Counts it there as in flight.
    pub(super) in_flight: Option<RequestInFlight>,
    /// The normalized path, if it differs from the path in the head.
    pub(super) path: Option<Box<str>>,
    /// The limits that the request is charged to.
    pub(super) limits: SmallVec<[ChargedLimit; 2]>,
    /// The caller, if the throttle applies to the route.
    pub(super) caller: Option<Caller>,
    pub(super) request_id: RequestId,
    /// The scheme of the connection: `http` or `https`.
    pub(super) connection_scheme: &'static str,
    /// Whether the peer is a trusted proxy, so that its `X-Forwarded-*` are used.
    pub(super) from_trusted_proxy: bool,
    pub(super) counters: Arc<CachePadded<RouteCounters>>,
    /// The response's status, once there is one. Of a refusal to gRPC, its meaning in HTTP.
    status: Option<u16>,
    /// Whether the gateway itself answers in gRPC, so that the status is in a header field.
    pub(super) is_grpc_refusal: bool,
    /// What the limits and the throttle decided.
    pub(super) admission: Admission,
    /// How long leaky buckets delayed the request.
    pub(super) delay: Cell<Duration>,
    pub(super) attempts: AttemptLog,
    /// The hash of the parts that the upstream chooses a target by; 0 without.
    pub(super) hash_key: u64,
    /// The time from the first attempt to the response's head; `None` without a response.
    pub(super) upstream_time: Option<Duration>,
    /// Keeps the caller active for the throttle until the response ends.
    pub(super) activity: Option<ActivityGuard>,
    /// The concurrency permits that the request holds until the response ends.
    pub(super) permits: Option<ConcurrencyPermits>,
    /// Counts the request as an open tunnel.
    pub(super) tunnel: Option<OpenTunnel>,
    pub(super) access_logger: Option<AccessLogger>,
    pub(super) tracing: RequestTracing,
    /// The arrival, in ms since the epoch; only set if there is an access log.
    pub(super) arrived_at: u64,
    stopwatch: Stopwatch,
    /// Body bytes of the response that were buffered for sending.
    bytes_sent: u64,
    /// Bytes of the client that were sent to the upstream through a tunnel.
    bytes_received: u64,
    is_complete: bool,
    cut_reason: Option<CutReason>,
}

/// What forwarding reads of a request, and what it records.
pub(super) struct Forwarding<'c> {
    pub(super) routed: RoutedRequest<'c>,
    pub(super) attempts: &'c mut AttemptLog,
    pub(super) tracing: &'c mut RequestTracing,
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
            usage: peer.usage.clone(),
            in_flight: None,
            path: None,
            limits: SmallVec::new(),
            caller: None,
            request_id: given.unwrap_or_else(|| ids.next()),
            connection_scheme: peer.forwarding.scheme(),
            from_trusted_proxy,
            counters,
            status: None,
            is_grpc_refusal: false,
            admission: Admission::NotChecked,
            delay: Cell::default(),
            attempts: AttemptLog::default(),
            hash_key: 0,
            upstream_time: None,
            activity: None,
            permits: None,
            tunnel: None,
            access_logger: None,
            tracing: RequestTracing::default(),
            arrived_at: 0,
            stopwatch,
            bytes_sent: 0,
            bytes_received: 0,
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

    /// What forwarding reads and records; `None` without a route.
    pub(super) fn forwarding(&mut self) -> Option<Forwarding<'_>> {
        let Self { rules, head, path, request_id, attempts, tracing, .. } = self;
        let head = head.as_deref()?;
        let snapshot = &rules.snapshot;
        let routed = RoutedRequest {
            route: &snapshot.routes[self.route?],
            head,
            path: path.as_deref().unwrap_or_else(|| head.path()),
            client_ip: self.client_ip,
            request_id: request_id.as_bytes(),
            connection_scheme: self.connection_scheme,
            from_trusted_proxy: self.from_trusted_proxy,
            slashes: snapshot.http.slashes,
        };
        Some(Forwarding { routed, attempts, tracing })
    }

    /// The request on its route; `None` without one.
    pub(super) fn routed(&self) -> Option<RoutedRequest<'_>> {
        let (snapshot, head) = (&self.rules.snapshot, self.head.as_deref()?);
        Some(RoutedRequest {
            route: &snapshot.routes[self.route?],
            head,
            path: self.path(),
            client_ip: self.client_ip,
            request_id: self.request_id.as_bytes(),
            connection_scheme: self.connection_scheme,
            from_trusted_proxy: self.from_trusted_proxy,
            slashes: snapshot.http.slashes,
        })
    }

    /// Whether a rule of the route removes or replaces this field of the upstream's response.
    pub(super) fn drops_response_field(&self, name: &[u8]) -> bool {
        let route = self.route.map(|route| &self.rules.snapshot.routes[route]);
        let rules = route.and_then(|route| route.edits.response_headers.as_ref());
        rules.is_some_and(|rules| rules.drops(name))
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

    /// Records the bytes of a tunnel so far: to the client, and to the upstream.
    pub fn set_tunnel_bytes(&mut self, (sent, received): (u64, u64)) {
        self.bytes_sent = sent;
        self.bytes_received = received;
    }

    /// Records how a tunnel ended.
    pub fn mark_tunnel_end(&mut self, outcome: TunnelOutcome) {
        match outcome {
            TunnelOutcome::Complete => self.mark_complete(),
            TunnelOutcome::ClientFailed => self.mark_cut(CutReason::ClientClosed),
            TunnelOutcome::UpstreamFailed => self.mark_cut(CutReason::UpstreamBroken),
            TunnelOutcome::TimedOut => self.mark_cut(CutReason::TunnelIdle),
        }
    }

    /// Records that the response was written to its end.
    pub fn mark_complete(&mut self) {
        self.is_complete = true;
        if let Some(server) = self.attempts.server.as_ref().filter(|_| self.upstream_time.is_some())
        {
            server.endpoint().record_whole_body();
        }
    }

    /// Records why the response was cut off.
    pub fn mark_cut(&mut self, reason: CutReason) {
        self.cut_reason = Some(reason);
    }

    /// Records why the response's body has no end. That the upstream broke it off is counted and logged.
    #[cold]
    pub fn mark_body_failed(&mut self, error: &std::io::Error) -> CutReason {
        let is_request_lost =
            error.get_ref().is_some_and(<dyn Error + Send + Sync>::is::<RequestLost>);
        if is_request_lost {
            self.mark_cut(CutReason::ClientClosed);
            return CutReason::ClientClosed;
        }
        self.mark_cut(CutReason::UpstreamBroken);
        if let Some(route) = self.route
            && let Some(counters) = &self.rules.routes[route].upstream
        {
            counters.broken.add(1);
        }
        if !is_own_shortage(error) {
            self.record_broken_body();
        }
        let server = self.attempts.server.as_deref().map_or("", |server| server.name());
        tracing::debug!(server, %error, "the upstream broke off its response");
        CutReason::UpstreamBroken
    }

    /// Records that a response was cut off for `reason`. A declared length that the upstream is silent about
    /// instead of delivering counts as a broken body; a stream without a length may be silent by intent.
    #[cold]
    pub fn mark_response_cut(&mut self, reason: CutReason, has_length: bool) {
        self.mark_cut(reason);
        if reason == CutReason::UpstreamIdle && has_length {
            self.record_broken_body();
        }
    }

    fn record_broken_body(&self) {
        if let (Some(server), Some(route)) = (self.attempts.server.as_deref(), self.route)
            && let Action::Upstream(upstream) = &self.rules.snapshot.routes[route].action
            && let Some(balancer) = &self.rules.load_balancers[upstream.index]
        {
            balancer.record_broken_body(server);
        }
    }

    /// The response's status; `None` without a response.
    pub(super) fn status(&self) -> Option<u16> {
        self.status
    }

    /// Why the request or its response ended early.
    pub(super) fn cut_reason(&self) -> Option<CutReason> {
        let default = if self.client.state().close_mode() == CloseMode::Immediate {
            CutReason::DrainTimeout
        } else {
            CutReason::ClientClosed
        };
        (!self.is_complete).then(|| self.cut_reason.unwrap_or(default))
    }

    /// What refused the request: of several limits the one with the longest wait, or the throttle's policy; empty if
    /// none did.
    fn refused_by(&self) -> &str {
        match self.admission {
            Admission::Throttled => POLICY,
            Admission::Refused => {
                let enforced = self.limits.iter().filter(|limit| limit.limit().enforce);
                let refusing = enforced.filter_map(|own| Some((own, own.outcome.refused()?)));
                let longest = refusing.max_by_key(|(_, refused)| {
                    // Without a time no wait helps.
                    refused.decision.retry_at.unwrap_or(StoreTime::MAX)
                });
                longest.map_or("", |(limit, _)| &*limit.limit().name)
            }
            _ => "",
        }
    }

    fn write_access_line(&self, logger: &AccessLogger, duration: Duration) {
        let route = self.route.map(|route| &*self.rules.snapshot.routes[route].name);
        let sources = &self.rules.snapshot.identity.token;
        let head = self.head.as_ref();
        let host = head.map(|head| plan::host(&head.fields)).unwrap_or_default();
        let layout = logger.writer.layout();
        let header = |name| {
            let head = head.filter(|_| layout.needs_headers());
            head.and_then(|head| head.fields.get(name)).unwrap_or_default()
        };
        logger.writer.write(&AccessLine {
            time: self.arrived_at,
            client: self.client_ip,
            token: head
                .filter(|_| layout.needs_token())
                .and_then(|head| token_hash(sources, &head.fields, logger.secret)),
            method: head.map_or("", |head| head.method.as_str()).as_bytes(),
            host: host.as_bytes(),
            path: self.path().as_bytes(),
            protocol: head.map_or("", |head| head.version.protocol()),
            route: route.unwrap_or_default(),
            status: self.status.unwrap_or(STATUS_CLIENT_CLOSED),
            bytes: self.bytes_sent,
            received: self.tunnel.as_ref().map(|_| self.bytes_received),
            duration,
            delay: self.delay.get(),
            limit: self.admission.label(),
            refused_by: self.refused_by(),
            upstream: self.attempts.server.as_ref().map_or("", |server| server.name()),
            upstream_time: self.upstream_time,
            attempts: self.attempts.count,
            cut: self.cut_reason(),
            complete: self.is_complete,
            request_id: self.request_id.as_bytes(),
            referer: without_secrets(header("referer")),
            user_agent: header("user-agent"),
            trace_id: self.tracing.trace.sampled_id(),
        });
    }
}

/// A URL up to its query or fragment, which may hold secrets of the page; nothing of one with a user or a password.
fn without_secrets(url: &[u8]) -> &[u8] {
    let url = memchr::memchr2(b'?', b'#', url).map_or(url, |end| &url[..end]);
    let authority = memchr::memmem::find(url, b"//").map_or(url, |at| &url[at + 2..]);
    let authority = authority.split(|byte| *byte == b'/').next().unwrap_or_default();
    if authority.contains(&b'@') { b"" } else { url }
}

/// Counts an open tunnel in the metrics until it is dropped.
pub(super) struct OpenTunnel(Arc<WorkerMetrics>);

impl OpenTunnel {
    pub(super) fn new(metrics: &Arc<WorkerMetrics>) -> Self {
        metrics.tunnels.add(1);
        Self(Arc::clone(metrics))
    }
}

impl Drop for OpenTunnel {
    fn drop(&mut self) {
        self.0.tunnels.decrement();
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
        if self.tracing.sampled().is_some() {
            self.finish_trace(duration);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::without_secrets;

    #[test]
    fn a_referer_is_logged_without_secrets() {
        for (sent, logged) in [
            ("https://a.test/b?token=c", "https://a.test/b"),
            ("https://a.test/@user#x", "https://a.test/@user"),
            ("https://me:pw@a.test/b", ""),
            ("me:pw@a.test", ""),
            ("", ""),
        ] {
            assert_eq!(without_secrets(sent.as_bytes()), logged.as_bytes(), "{sent}");
        }
    }
}
