//! The path of a request through the gateway.
//!
//! [`Gateway::handle`] checks a request, plans it (route and keys), passes it through the throttle,
//! charges its limits, delays it if needed, forwards it, and corrects the charges from the response.
//! The modules that decide (`plan`, `limit`, `respond`) only compute results; the gateway acts on
//! them. It does not depend on the protocol version: a connection passes a head and a
//! [`ClientStream`], and writes the [`Response`].
//!
//! The files, in the order of the path:
//!
//! - `context.rs`, `request_id.rs`, `request_trace.rs`, `spans.rs`: the state of one request, its log line and its trace.
//! - `rules.rs`: the snapshot with the worker's counters and pools.
//! - `plan.rs`: executes the decision of [`plan::decide`](crate::plan::decide), up to the limits.
//! - `in_flight.rs`: the bound on requests in flight of one client address.
//! - `admission.rs`, `activity.rs`: the throttle.
//! - `charging.rs`, `charged_limit.rs`, `concurrency_lease.rs`, `background.rs`: charges and
//!   corrections.
//! - `delay.rs`, `delay_queue.rs`: requests that wait for slots of leaky buckets.
//! - `forward.rs`, `mirror.rs`, `quota_status.rs`, `route_reply.rs`: the actions of a route.
//! - `cors.rs`: the fields of CORS.
//! - `compress.rs`: whether a response is compressed.
//! - `draft_response.rs`, `response.rs`, `date.rs`: the response; `decision_log.rs`: what was decided, for the log.
//! - `connection_limit.rs`: the bound on open connections, which workers enforce.

mod activity;
mod admission;
mod background;
mod charged_limit;
mod charging;
mod compress;
mod concurrency_lease;
mod connection_limit;
mod context;
mod cors;
mod date;
mod decision_log;
mod delay;
mod delay_queue;
mod draft_response;
mod forward;
mod in_flight;
mod mirror;
mod plan;
mod quota_status;
mod request_id;
mod request_trace;
mod response;
mod route_reply;
mod rules;
mod spans;

use std::{
    cell::Cell,
    net::IpAddr,
    rc::Rc,
    sync::{Arc, atomic::AtomicU64},
};

use crossbeam_utils::CachePadded;

use self::{
    background::Background,
    charged_limit::ChargedLimit,
    compress::ResponseCompression,
    concurrency_lease::LeaseTable,
    context::{AccessLogger, OpenTunnel},
    date::DateCache,
    draft_response::{DraftResponse, is_extended_connect},
    mirror::Mirrors,
    plan::CheckedRequest,
    request_id::RequestIds,
    rules::{RulesCache, WorkerRules},
};
pub use self::{
    connection_limit::{ConnectionLimit, ConnectionPermit},
    context::RequestContext,
    delay_queue::DelayQueues,
    response::{Content, Response, ResponseTimeouts},
};
use crate::{
    client_usage::{ClientHandle, ClientTable, ClientUsage},
    clock::{Clock, CoarseClock, CoarseTime},
    compress::CompressionBudget,
    error::GatewayError,
    http1::{Fields, FramingError, RequestHead, Version},
    identity::client::mask_address,
    live::LiveSnapshot,
    metrics::{Metrics, RouteCounters, WorkerMetrics},
    plan::Via,
    respond::{self, ErrorForm},
    snapshot::Action,
    store::{CounterStore, StoreHandle},
    telemetry::{AccessLog, AccessWriter},
    throttle::{AdmissionGate, Throttle},
    tls::SelectedName,
    trace::{ChildSpanKind, IdSource, TraceQueue},
    transport::ClientStream,
    upstream::{PeerAddress, ProxiedClient, UpstreamContent, UpstreamError, UpstreamRegistry},
};

/// Ticks from one removal of idle upstream connections to the next.
const TICKS_PER_POOL_SWEEP: u32 = 10;

/// The state that all threads of a process share.
pub struct Shared {
    /// The current configuration.
    pub live: LiveSnapshot,
    /// The state of the upstreams: endpoints, health, load.
    pub upstreams: Arc<UpstreamRegistry>,
    /// The store of the limits' counters.
    pub store: Arc<CounterStore>,
    /// Active-user admission control; `None` admits everyone.
    pub throttle: Option<Arc<Throttle>>,
    /// The metrics.
    pub metrics: Metrics,
    /// The clock of limits and of all timers.
    pub clock: Clock,
    /// The requests that leaky buckets delay.
    pub delay_queues: DelayQueues,
    /// The access log; `None` if it is off.
    pub access_log: Option<AccessLog>,
    /// The spans of sampled requests, on their way to the collector.
    pub traces: Arc<TraceQueue>,
    /// The number of workers that accept connections.
    pub accepting_workers: AtomicU64,
    /// Bounds the open client connections.
    pub connection_limit: Arc<ConnectionLimit>,
    /// What each client address uses of the process's resources.
    pub clients: Arc<ClientTable>,
    /// The memory for compressing responses.
    pub compression: Arc<CompressionBudget>,
    /// This process's `Via` entry.
    pub via: Via,
}

impl Shared {
    /// Reopens the access log's file, after a rotation. Returns at once.
    pub fn reopen_logs(&self) {
        if let Some(log) = &self.access_log {
            log.reopen();
        }
    }
}

/// The other end of a client connection: a client, or a proxy in front of the gateway.
pub struct Peer {
    /// Its address, with IPv4-mapped IPv6 as IPv4.
    pub address: IpAddr,
    /// What its address uses.
    pub usage: ClientHandle,
    /// Its address and the listener's, as the PROXY protocol reports them.
    pub proxied: ProxiedClient,
    /// Its address as forwarding headers show it.
    pub forwarding: PeerAddress,
    /// The certificate of the connection; `None` in clear.
    pub certificate: Option<SelectedName>,
    /// See [`ListenerRules::redirect_https`](crate::snapshot::ListenerRules).
    pub redirect_https: Option<u16>,
}

/// A worker's gateway: it answers the requests of all of the worker's connections.
pub struct Gateway {
    shared: Arc<Shared>,
    metrics: Arc<WorkerMetrics>,
    store: Rc<StoreHandle>,
    gate: Option<Rc<AdmissionGate>>,
    access_log: Option<Rc<AccessWriter>>,
    cache: RulesCache,
    ids: RequestIds,
    trace_ids: IdSource,
    /// What spans call the store.
    store_name: &'static str,
    dates: DateCache,
    /// The counters of requests without a route.
    unrouted: Arc<CachePadded<RouteCounters>>,
    /// The worker's clock.
    coarse_clock: CoarseClock,
    /// When the last warning about a request was logged.
    warned_at: Cell<CoarseTime>,
    /// The calls to the store that outlive their request.
    background: Rc<Background>,
    /// The leases of concurrency permits.
    leases: Rc<LeaseTable>,
    /// The copies of requests that are under way.
    mirrors: Rc<Mirrors>,
}

impl Gateway {
    /// The gateway of the current worker; call it on the worker's runtime.
    pub fn new(shared: Arc<Shared>, coarse_clock: CoarseClock) -> Self {
        let metrics = shared.metrics.add_worker();
        let store = Rc::new(shared.store.worker());
        let background = Rc::new(Background::new(Rc::clone(&store), shared.clock.clone()));
        Self {
            store,
            gate: shared.throttle.as_ref().map(|throttle| Rc::new(throttle.gate())),
            access_log: shared.access_log.as_ref().map(|log| Rc::new(log.writer())),
            cache: RulesCache::new(&shared, &metrics, coarse_clock.clone()),
            ids: RequestIds::new(),
            trace_ids: IdSource::default(),
            store_name: if shared.store.connector().is_some() { "redis" } else { "memory" },
            dates: DateCache::default(),
            unrouted: metrics.route(""),
            warned_at: Cell::new(coarse_clock.now()),
            leases: Rc::new(LeaseTable::new(Rc::clone(&background), coarse_clock.clone())),
            background,
            mirrors: Rc::new(Mirrors::new(coarse_clock.clone())),
            metrics,
            shared,
            coarse_clock,
        }
    }

    /// The worker's metrics.
    pub fn metrics(&self) -> &WorkerMetrics {
        &self.metrics
    }

    /// What the client at this address uses, over all workers; IPv6 networks of `client.ipv6_prefix` bits are one.
    pub fn client_usage(&self, address: IpAddr) -> Arc<ClientUsage> {
        let prefix = self.shared.live.snapshot().identity.ipv6_prefix;
        self.shared.clients.usage(mask_address(address, prefix))
    }

    /// Does the chores that are due. Call it every 100 ms with the number of the call.
    pub fn tick(&self, count: u32) {
        self.mirrors.sweep();
        self.leases.renew();
        self.cache.yield_connections();
        if let Some(log) = &self.access_log {
            log.flush_if_older(self.coarse_clock.now());
        }
        if count.is_multiple_of(TICKS_PER_POOL_SWEEP) {
            // Drops replaced rules even if no request arrives.
            self.cache.get(&self.shared, &self.metrics);
            self.cache.sweep_pools();
        }
    }

    /// Answers one request, whose body is read from `client`. Every failure becomes a response.
    pub async fn handle(
        &self,
        peer: &Peer,
        head: Box<RequestHead>,
        client: Rc<dyn ClientStream>,
    ) -> Response {
        let mut context = self.context(peer, Some(head), client);
        let outcome = self.proxy(peer, &mut context).await;
        let draft = self.draft(&mut context, outcome);
        self.correct_charges(&mut context, &draft).await;
        self.finish(context, draft)
    }

    /// Answers bytes that are not a valid request, or a head that did not arrive in time.
    pub fn refuse_malformed(
        &self,
        peer: &Peer,
        error: FramingError,
        client: Rc<dyn ClientStream>,
    ) -> Response {
        self.metrics.malformed.add(1);
        let mut context = self.context(peer, None, client);
        let draft = self.draft(&mut context, Err(GatewayError::Framing(error)));
        self.finish(context, draft)
    }

    fn context(
        &self,
        peer: &Peer,
        head: Option<Box<RequestHead>>,
        client: Rc<dyn ClientStream>,
    ) -> Box<RequestContext> {
        let rules = self.cache.get(&self.shared, &self.metrics);
        let counters = self.unrouted.clone();
        let stopwatch = self.shared.clock.stopwatch();
        if let Some(head) = &head {
            self.metrics.requests_by_version[head.version as usize].add(1);
        }
        let context =
            RequestContext::new(rules, peer, head, client, counters, &self.ids, stopwatch);
        // Boxed: it is moved many times with the response.
        let mut context = Box::new(context);
        if let Some(writer) = &self.access_log {
            context.arrived_at = self.shared.clock.now();
            let secret = self.shared.store.key_secret();
            let logger = AccessLogger { writer: Rc::clone(writer), secret };
            context.access_logger = Some(logger);
        }
        context.tracing = self.begin_trace(&context);
        context
    }

    /// Handles a request from its head to the head of its response.
    async fn proxy(
        &self,
        peer: &Peer,
        context: &mut RequestContext,
    ) -> Result<DraftResponse, GatewayError> {
        let admitted = match self.check(peer, context)? {
            CheckedRequest::Answered(reply) => return Ok(DraftResponse::Local(reply)),
            CheckedRequest::Admitted(admitted) => admitted,
        };
        let rules = &Rc::clone(&context.rules);
        let route = &rules.snapshot.routes[admitted.route];
        if !context.limits.is_empty() {
            self.charge(context).await?;
            if context.limits.iter().any(is_delayed) {
                // Boxed, so that requests without a delay do not carry its state.
                self.begin_span(context, || ChildSpanKind::Delay);
                let delayed = Box::pin(self.delay(context)).await;
                self.end_span(context);
                delayed?;
            }
        }
        match &route.action {
            Action::Upstream(upstream) => {
                self.forward(rules, admitted.route, upstream, peer, context).await
            }
            Action::Status(limits) => {
                self.quota_status(limits, &admitted.status_requests, context).await
            }
            Action::Redirect(redirect) => route_reply::redirect(redirect, context),
            Action::Respond(fixed) => Ok(route_reply::respond(fixed, context)),
        }
    }

    /// Turns the outcome into a response, and records the caller's activity for the throttle.
    #[inline]
    fn draft(
        &self,
        context: &mut RequestContext,
        outcome: Result<DraftResponse, GatewayError>,
    ) -> DraftResponse {
        let rules = Rc::clone(&context.rules);
        match outcome {
            Ok(draft) if draft.is_mistaken_for_tunnel(context.head()) => {
                let error = GatewayError::Upstream(UpstreamError::UpgradeUnsupported);
                DraftResponse::Local(error_reply(&rules, context, error))
            }
            Ok(draft) => {
                self.record_activity(&rules, context, draft.status());
                draft
            }
            Err(error) => DraftResponse::Local(error_reply(&rules, context, error)),
        }
    }

    /// Adds the fields that every response has, and the rate-limit headers.
    fn finish(&self, mut context: Box<RequestContext>, draft: DraftResponse) -> Response {
        let rules = Rc::clone(&context.rules);
        let rules = &*rules;
        let status = draft.status();
        let mut suppressed = respond::SuppressedHeaders::default();
        let (mut upstream, mut fields, mut content) = match draft {
            DraftResponse::Local(reply) => (None, reply.fields, Content::Whole(reply.body)),
            DraftResponse::Upstream(head, UpstreamContent::Body(stream)) => {
                (Some(head), Fields::new(), Content::Stream(stream))
            }
            DraftResponse::Upstream(head, UpstreamContent::Tunnel(tunnel)) => {
                context.tunnel = Some(OpenTunnel::new(&self.metrics));
                (Some(head), Fields::new(), Content::Tunnel(tunnel))
            }
        };
        let mut timeouts = ResponseTimeouts::default();
        if let Some(index) = context.route {
            let route = &rules.snapshot.routes[index];
            if context.admission.is_decided() {
                let reader = cors::rate_header_reader(rules, &context);
                let (families, reports) = (rules.snapshot.headers, context.reports());
                suppressed = respond::write_rate_headers(&mut fields, reports, families, reader);
            }
            let millis = |bound: Option<std::time::Duration>| bound.map(|b| b.as_millis() as u64);
            timeouts.idle = millis(route.response_idle_timeout);
            timeouts.total = millis(route.response_body_timeout);
            timeouts.tunnel_idle = millis(route.tunnel_idle_timeout);
            if let (Some(rules), Some(head), Content::Stream(body)) =
                (&route.compress, &mut upstream, &mut content)
            {
                let budget = &self.shared.compression;
                ResponseCompression { budget, rules }.apply(&context, head, body, &mut fields);
            }
        }
        suppressed.cors = cors::write_fields(&mut fields, rules, &context, upstream.as_ref());
        fields.push("x-request-id", context.request_id.as_bytes());
        if !upstream.as_ref().is_some_and(|head| head.fields.contains("date")) {
            self.dates.with(self.shared.clock.now(), |date| fields.push("date", date));
        }
        context.record_status(status);
        decision_log::log_decisions(&context, status.as_u16());
        let status = if context.is_grpc_refusal { respond::GRPC_HTTP_STATUS } else { status };
        Response { status, content, timeouts, context, upstream, fields, suppressed }
    }
}

/// Whether an enforced limit delays the request.
fn is_delayed(limit: &ChargedLimit) -> bool {
    let wait = limit.outcome.decided().map_or(0, |decided| decided.decision.wait);
    wait > 0 && limit.limit().enforce
}

/// The response to a request that was refused or failed.
fn error_reply(
    rules: &WorkerRules,
    context: &mut RequestContext,
    error: GatewayError,
) -> respond::LocalReply {
    context.is_grpc_refusal = context.head.as_ref().is_some_and(|head| {
        // A gRPC refusal is a 200, which would open the tunnel.
        let is_http2 = head.version == Version::Http2;
        is_http2 && respond::is_grpc(&head.fields) && !is_extended_connect(head)
    });
    let mut reply = if context.is_grpc_refusal {
        respond::grpc_refusal(&error, context.reports())
    } else {
        let head = context.head.as_ref();
        let form = head.map_or(ErrorForm::Problem, |head| ErrorForm::of(&head.fields));
        let bodies =
            context.route.and_then(|route| rules.snapshot.routes[route].error_bodies.as_ref());
        let own = bodies.and_then(|bodies| bodies.get(error.status()));
        respond::error_reply(&error, context.reports(), context.request_id.as_str(), form, own)
    };
    if let GatewayError::Throttled(denied) = error {
        let reader = cors::rate_header_reader(rules, context);
        let (families, fields) = (rules.snapshot.headers, &mut reply.fields);
        respond::write_throttle_headers(fields, &denied, families, reader);
    }
    reply
}
