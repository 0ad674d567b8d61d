//! [`Ledger`]: what happened to a request, for the access log, the metrics and its trace.

use std::{cell::Cell, error::Error, net::IpAddr, rc::Rc, sync::Arc, time::Duration};

use http::StatusCode;
use smallvec::SmallVec;
use tidegate_base::time::{Millis, StoreTime};
use tidegate_charge::Limit;
use tidegate_http1::RequestHead;
use tidegate_identity::{Consumer, KeySecret, OwnedConsumer, TokenHash, token_hash};
use tidegate_rules::plan::{self, Admission};
use tidegate_system::clock::Stopwatch;
use tidegate_throttle::POLICY;
use tidegate_transport::TunnelOutcome;
use tidegate_transport::connection_state::CloseMode;
use tidegate_upstream::{AttemptLog, LoadBalancer, RequestLost, is_own_shortage};

use super::{
    charged_costs::ChargedCosts,
    request_id::RequestId,
    request_trace::RequestTracing,
    rules::{WorkerDomain, WorkerRoute, WorkerRules},
    settlement::{ResponseTotals, Settlement},
};
use crate::metrics::{RouteCounters, WorkerMetrics};
use crate::telemetry::{AccessLine, AccessWriter, CutReason, LimitCost};

/// The status that is logged and counted if the client closes before the response (nginx's code).
const STATUS_CLIENT_CLOSED: u16 = 499;

/// Writes the access log lines of a worker's requests.
pub(super) struct AccessLogger {
    pub(super) writer: AccessWriter,
    /// The key of the hash that stands for a token in the log.
    pub(super) secret: KeySecret,
}

/// When a request arrived.
pub(super) struct Arrival {
    /// The time of day.
    pub(super) at: StoreTime,
    /// Measures the time since then.
    pub(super) stopwatch: Stopwatch,
}

/// What happened to a request so far. Its owner calls `close` when the request ends.
pub struct Ledger {
    pub(super) rules: Rc<WorkerRules>,
    /// `None` if no route was found.
    pub(super) route: Option<Rc<WorkerRoute>>,
    /// The domain of a call to the rate limit service.
    pub(super) domain: Option<Rc<WorkerDomain>>,
    pub(super) request_id: RequestId,
    /// The client's address, as trusted proxies report it.
    pub(super) client_ip: IpAddr,
    /// The hash of the access token, if the throttle or a limit's key has read it.
    pub(super) token_hash: TokenHash,
    pub(super) tracing: RequestTracing,
    /// `None` if the log is off.
    pub(super) access_logger: Option<Rc<AccessLogger>>,
    pub(super) arrival: Arrival,
    /// The response's status, once there is one. For a gRPC refusal, the HTTP status of its error.
    status: Option<u16>,
    /// Who sends the request, on a route with `auth`.
    pub(super) consumer: Option<OwnedConsumer>,
    /// What the limits and the throttle decided.
    pub(super) admission: Admission,
    /// The enforced limits that refused the request, the one with the longest wait last.
    pub(super) refused_by: SmallVec<[Arc<Limit>; 1]>,
    /// How long leaky buckets delayed the request.
    pub(super) delay: Cell<Duration>,
    pub(super) attempts: AttemptLog,
    /// What limits with a variable cost have charged, if the access line shows it.
    pub(super) costs: ChargedCosts,
    /// The time from the first attempt to the response's head; `None` without a response.
    pub(super) upstream_time: Option<Duration>,
    /// Body bytes of the response that were buffered for sending.
    bytes_sent: u64,
    /// `None` unless the response is a tunnel.
    pub(super) tunnel: Option<OpenTunnel>,
    end: ResponseEnd,
}

/// How a response ended.
enum ResponseEnd {
    /// It has not ended.
    Open,
    /// It was written to its end.
    Complete,
    /// It was cut off.
    Cut(CutReason),
}

/// The facts that the end of a request reports in addition to its [`Ledger`].
pub(super) struct RequestEndFacts<'r> {
    /// `None` if the request was malformed.
    pub(super) head: Option<&'r RequestHead>,
    /// The normalized path; empty if the request was malformed.
    pub(super) path: &'r [u8],
    /// The scheme of the connection: `http` or `https`.
    pub(super) connection_scheme: &'static str,
    /// How soon the client's connection must close.
    pub(super) close_mode: CloseMode,
}

impl Ledger {
    /// Who sends the request, if that is known.
    pub(super) fn consumer(&self) -> Option<Consumer<'_>> {
        self.consumer.as_ref().map(OwnedConsumer::view)
    }

    #[inline]
    pub(super) fn new(
        rules: Rc<WorkerRules>,
        request_id: RequestId,
        client_ip: IpAddr,
        arrival: Arrival,
        access_logger: Option<Rc<AccessLogger>>,
    ) -> Self {
        Self {
            rules,
            route: None,
            domain: None,
            request_id,
            client_ip,
            token_hash: TokenHash::Unread,
            tracing: RequestTracing::default(),
            access_logger,
            arrival,
            status: None,
            consumer: None,
            admission: Admission::NotChecked,
            refused_by: SmallVec::new(),
            delay: Cell::default(),
            attempts: AttemptLog::default(),
            costs: ChargedCosts::default(),
            upstream_time: None,
            bytes_sent: 0,
            tunnel: None,
            end: ResponseEnd::Open,
        }
    }

    /// The counters of the route or the domain, or those of requests without one.
    pub(super) fn counters(&self) -> &RouteCounters {
        match (&self.route, &self.domain) {
            (Some(route), _) => &route.counters,
            (None, Some(domain)) => &domain.counters,
            (None, None) => &self.rules.unrouted,
        }
    }

    /// The name of the route, or the label of the domain; empty without both.
    pub(super) fn route_name(&self) -> &str {
        match (&self.route, &self.domain) {
            (Some(route), _) => &route.settings.name,
            (None, domain) => domain.as_ref().map_or("", |domain| &*domain.settings.label),
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
        self.counters().responses[class].add(1);
        if self.consumer.is_some() {
            self.count_plan();
        }
    }

    /// The response's status; `None` without a response.
    pub(super) fn status(&self) -> Option<u16> {
        self.status
    }

    /// Adds body bytes of the response that were buffered for sending.
    pub fn add_bytes_sent(&mut self, bytes: usize) {
        self.bytes_sent += bytes as u64;
    }

    /// Records the bytes of a tunnel so far: to the client, and to the upstream.
    pub fn set_tunnel_bytes(&mut self, (sent, received): (u64, u64)) {
        self.bytes_sent = sent;
        if let Some(tunnel) = &mut self.tunnel {
            tunnel.bytes_received = received;
        }
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
        self.end = ResponseEnd::Complete;
        if let Some(server) = self.attempts.server.as_ref().filter(|_| self.upstream_time.is_some())
        {
            server.endpoint().record_whole_body();
        }
    }

    /// Records why the response was cut off.
    pub fn mark_cut(&mut self, reason: CutReason) {
        self.end = ResponseEnd::Cut(reason);
    }

    /// Records that the response's body failed, and returns the reason for the cut. Logs the
    /// failure unless the client caused it, and counts it if the upstream did.
    #[cold]
    pub fn mark_body_failed(&mut self, error: &std::io::Error) -> CutReason {
        let is_request_lost =
            error.get_ref().is_some_and(<dyn Error + Send + Sync>::is::<RequestLost>);
        if is_request_lost {
            self.mark_cut(CutReason::ClientClosed);
            return CutReason::ClientClosed;
        }
        self.mark_cut(CutReason::UpstreamBroken);
        if is_own_shortage(error) {
            tracing::debug!(server = self.server(), %error, "the gateway could not read the response");
            return CutReason::UpstreamBroken;
        }
        self.record_broken_body();
        let Some(route) = &self.route else { return CutReason::UpstreamBroken };
        if let Some(upstream) = &route.upstream {
            upstream.counters.broken.add(1);
            let due = |balancer: &Rc<LoadBalancer>| balancer.warnings().due("body", balancer.now());
            if let Some(failures) = upstream.balancer.as_ref().and_then(due) {
                let (route, server) = (&route.settings.name, self.server());
                tracing::warn!(%route, server, failures, %error, "the upstream broke off its response");
            }
        }
        CutReason::UpstreamBroken
    }

    /// Records that a response was cut off for `reason`. If the upstream declared a length and then
    /// fell silent, that counts as a broken body; a stream without a length may be silent on
    /// purpose.
    #[cold]
    pub fn mark_response_cut(&mut self, reason: CutReason, length: Option<u64>) {
        self.mark_cut(reason);
        if reason == CutReason::UpstreamIdle && length.is_some() {
            self.record_broken_body();
        }
    }

    fn record_broken_body(&self) {
        if let Some(upstream) = self.route.as_ref().and_then(|route| route.upstream.as_ref())
            && let Some(balancer) = &upstream.balancer
        {
            balancer.record_broken_body(&self.attempts);
        }
    }

    /// The server of the last attempt, as `host:port`; empty if there was none.
    pub(super) fn server(&self) -> &str {
        self.attempts.server.as_ref().map_or("", |server| server.name())
    }

    /// Why the request or its response ended early; `None` if it did not.
    pub(super) fn cut_reason(&self, close_mode: CloseMode) -> Option<CutReason> {
        match self.end {
            ResponseEnd::Complete => None,
            ResponseEnd::Cut(reason) => Some(reason),
            ResponseEnd::Open if close_mode == CloseMode::Immediate => {
                Some(CutReason::DrainTimeout)
            }
            ResponseEnd::Open => Some(CutReason::ClientClosed),
        }
    }

    /// Counts the request, writes its access log line, and queues its trace. Call it once, when the
    /// request ends.
    pub(super) fn close(&mut self, facts: &RequestEndFacts<'_>) {
        let duration = self.arrival.stopwatch.read();
        if self.status.is_none() {
            self.count_response(STATUS_CLIENT_CLOSED);
        }
        self.counters().latency.observe(duration);
        if let Some(logger) = &self.access_logger {
            self.write_access_line(logger, facts, duration);
        }
        if self.tracing.sampled().is_some() {
            self.finish_trace(facts, duration);
        }
    }

    /// Settles the costs of the response, which has ended.
    pub(super) fn settle(&mut self, settlement: &Settlement) {
        settlement.settle(&self.totals(), &mut self.costs);
    }

    /// What is known of the response.
    pub(super) fn totals(&self) -> ResponseTotals {
        ResponseTotals { bytes: self.bytes_sent, duration: self.age() }
    }

    /// The time since the request's head.
    fn age(&self) -> Millis {
        Millis::from_duration(self.arrival.stopwatch.read())
    }

    /// Counts the request of a consumer that has a plan.
    fn count_plan(&self) {
        let plan = self.consumer().and_then(|consumer| consumer.plan);
        let Some(counters) = plan.and_then(|plan| self.rules.plan(plan)) else { return };
        counters.requests.add(1);
        if self.admission.is_refused() {
            counters.refused.add(1);
        }
    }

    /// The name of what refused the request: the limit with the longest wait, or the throttle's
    /// policy; empty if neither refused it.
    fn refused_by(&self) -> &str {
        match self.admission {
            Admission::Throttled => POLICY,
            _ => self.refused_by.last().map_or("", |limit| limit.name()),
        }
    }

    fn write_access_line(
        &self,
        logger: &AccessLogger,
        facts: &RequestEndFacts<'_>,
        duration: Duration,
    ) {
        let sources = &self.rules.snapshot.identity.token;
        let head = facts.head;
        let host = head.map(|head| plan::host_bytes(&head.fields)).unwrap_or_default();
        let layout = logger.writer.layout();
        let header = |name| {
            let head = head.filter(|_| layout.needs_headers());
            head.and_then(|head| head.fields.get(name)).unwrap_or_default()
        };
        let costs = self.costs.iter().map(|(limit, units)| LimitCost { limit, units });
        let costs: SmallVec<[LimitCost<'_>; 2]> = costs.collect();
        logger.writer.write(&AccessLine {
            time: self.arrival.at,
            client: self.client_ip,
            token: head.filter(|_| layout.needs_token()).and_then(|head| match self.token_hash {
                TokenHash::Present(hash) => Some(hash.into()),
                TokenHash::Missing => None,
                TokenHash::Unread => token_hash(sources, &head.fields, logger.secret),
            }),
            consumer: self.consumer().map_or("", |consumer| consumer.name),
            method: head.map_or("", |head| head.method.as_str()).as_bytes(),
            host: &host,
            path: facts.path,
            protocol: head.map_or("", |head| head.version.protocol()),
            route: self.route_name(),
            status: self.status.unwrap_or(STATUS_CLIENT_CLOSED),
            bytes: self.bytes_sent,
            received: self.tunnel.as_ref().map(|tunnel| tunnel.bytes_received),
            cost: &costs,
            duration,
            delay: self.delay.get(),
            limit: self.admission.label(),
            refused_by: self.refused_by(),
            upstream: self.server(),
            upstream_time: self.upstream_time,
            attempts: self.attempts.count,
            priority: self.attempts.priority,
            cut: self.cut_reason(facts.close_mode),
            complete: matches!(self.end, ResponseEnd::Complete),
            request_id: self.request_id.as_bytes(),
            referer: without_secrets(header("referer")),
            user_agent: header("user-agent"),
            trace_id: self.tracing.sampled_id(),
        });
    }
}

/// The URL without its query and fragment, which may hold secrets of the page. Empty if the URL has
/// a user or a password.
fn without_secrets(url: &[u8]) -> &[u8] {
    let url = memchr::memchr2(b'?', b'#', url).map_or(url, |end| &url[..end]);
    let authority = memchr::memmem::find(url, b"//").map_or(url, |at| &url[at + 2..]);
    let authority = authority.split(|byte| *byte == b'/').next().unwrap_or_default();
    if authority.contains(&b'@') { b"" } else { url }
}

/// An open tunnel: the metrics count it until it is dropped.
pub(super) struct OpenTunnel {
    metrics: Arc<WorkerMetrics>,
    /// Bytes from the client that were sent to the upstream.
    bytes_received: u64,
}

impl OpenTunnel {
    pub(super) fn new(metrics: &Arc<WorkerMetrics>) -> Self {
        metrics.tunnels.add(1);
        Self { metrics: Arc::clone(metrics), bytes_received: 0 }
    }
}

impl Drop for OpenTunnel {
    fn drop(&mut self) {
        self.metrics.tunnels.decrement();
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
