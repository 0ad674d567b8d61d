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
//! - `context.rs`, `request_id.rs`: the state of a request until its response ends, and its id.
//! - `ledger.rs`, `request_trace.rs`, `spans.rs`: the record of a request for access log, metrics and trace.
//! - `rules.rs`: the snapshot, and for each route the worker's counters and the balancer of its upstream.
//! - `checks.rs`: executes the decision of [`plan::decide`](crate::plan::decide), and the checks before the limits.
//! - `authentication.rs`, `auth_failures.rs`, `blocked_addresses.rs`: who sends a request; addresses that sent too many
//!   wrong credentials.
//! - `consumer_records.rs`: the records of consumers, loaded or looked up in Redis.
//! - `passwords.rs`, `auth_service.rs`: verification of passwords; services that decide who sends a request.
//! - `admission.rs`, `activity.rs`: the throttle.
//! - `inspection.rs`: the bodies of requests that limits read.
//! - `charging.rs`, `charged_limit.rs`, `charged_costs.rs`, `concurrency_lease.rs`, `background.rs`: charges and
//!   corrections; `settlement.rs`: costs that are known when a response ends; `settled_report.rs`: their trailers.
//! - `delay.rs`, `delay_queue.rs`: requests that wait for slots of leaky buckets.
//! - `forward.rs`, `mirror.rs`, `quota_status.rs`, `decide.rs`: the actions of a route.
//! - `rate_limit_service.rs`, `call_charges.rs`, `grpc_streams.rs`: calls to the rate limit service, which have a domain instead of a route.
//! - `acme_challenge.rs`: responses to an authority that checks a domain.
//! - `cors.rs`: the CORS header fields.
//! - `compress.rs`: decides if a response is compressed.
//! - `draft_response.rs`, `finish.rs`, `response.rs`, `response_header.rs`, `date.rs`: the response;
//!   `decision_log.rs`: logs the decisions.
//! - `connection_limit.rs`: the bound on open connections, which workers enforce.

mod acme_challenge;
mod activity;
mod admission;
mod auth_failures;
mod auth_service;
mod authentication;
mod background;
mod blocked_addresses;
mod call_charges;
mod charged_costs;
mod charged_limit;
mod charging;
mod checks;
mod compress;
mod concurrency_lease;
mod connection_limit;
mod consumer_records;
mod context;
mod cors;
mod date;
mod decide;
mod decision_log;
mod delay;
mod delay_queue;
mod draft_response;
mod finish;
mod forward;
mod grpc_streams;
mod inspection;
mod ledger;
mod mirror;
mod passwords;
mod quota_status;
mod rate_limit_service;
mod request_id;
mod request_trace;
mod response;
mod response_header;
mod rules;
mod settled_report;
mod settlement;
mod spans;

use std::{
    cell::Cell,
    net::IpAddr,
    rc::Rc,
    sync::{Arc, atomic::AtomicU64},
};

use tokio_util::sync::CancellationToken;

use self::{
    auth_service::AuthServices,
    background::Background,
    charged_limit::{ChargedLimit, ChargedLimits},
    checks::{AdmittedRequest, CheckOutcome},
    concurrency_lease::LeaseTable,
    context::{Held, RequestContext},
    date::DateCache,
    draft_response::DraftResponse,
    finish::refusal,
    ledger::{AccessLogger, Arrival},
    mirror::Mirrors,
    request_id::{RequestId, RequestIds},
    response_header::ResponseHeader,
    rules::{RulesCache, WorkerRules},
    settlement::Settlement,
};
pub use self::{
    auth_service::KnownAdmissions,
    blocked_addresses::BlockedAddresses,
    connection_limit::{ConnectionLimit, ConnectionPermit},
    context::AnsweredRequest,
    delay_queue::DelayQueues,
    ledger::Ledger,
    passwords::PasswordVerifier,
    response::{Content, Response},
};
use crate::{
    acme::AcmeCertificates,
    auth::jwt::TokenCache,
    client_usage::{ClientHandle, ClientTable, ClientUsage, UsageCount},
    clock::{Clock, CoarseClock, CoarseTime},
    compress::CompressionBudget,
    consumer_store::ConsumerStore,
    error::{AuthOutage, GatewayError},
    http1::RequestHead,
    identity::{KeySecret, client::mask_address},
    key_sets::KeySets,
    limit::Admission,
    live::{LiveConsumers, LiveOverrides, LiveSnapshot},
    metrics::{Metrics, WorkerMetrics},
    overrides::OverrideStore,
    plan::{NextStep, RequestDecision, Via},
    respond,
    snapshot::{Action, Route},
    store::{CounterStore, StoreHandle},
    telemetry::{AccessLog, AccessWriter},
    throttle::{AdmissionGate, Throttle},
    tls::{ClientCertificate, SelectedCertificate},
    trace::{ChildSpanKind, IdSource, TraceQueue},
    transport::ClientStream,
    upstream::{PeerAddress, ProxiedClient, UpstreamError, UpstreamKind, UpstreamRegistry},
};

/// Ticks between two sweeps of idle upstream connections.
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
    /// Cancelled when the gateway has been asked to stop: it is no longer ready, though it may still accept requests.
    pub leaving: CancellationToken,
    /// Bounds the open client connections.
    pub connection_limit: Arc<ConnectionLimit>,
    /// The process's resources that each client address uses.
    pub clients: Arc<ClientTable>,
    /// The memory for compressing responses.
    pub compression: Arc<CompressionBudget>,
    /// The bytes of requests' bodies that limits have read and that are not forwarded yet.
    pub inspected_bytes: Arc<UsageCount>,
    /// This process's `Via` entry.
    pub via: Via,
    /// The current consumers.
    pub consumers: LiveConsumers,
    /// The current overrides of quotas.
    pub overrides: LiveOverrides,
    /// Where overrides are kept.
    pub override_store: OverrideStore,
    /// The key sets of the issuers of signed tokens.
    pub key_sets: Arc<KeySets>,
    /// The consumers that are kept in Redis; `None` without a Redis.
    pub consumer_store: Option<ConsumerStore>,
    /// The client addresses that sent too many wrong credentials.
    pub blocked_addresses: BlockedAddresses,
    /// Verifies passwords.
    pub passwords: PasswordVerifier,
    /// What services that authenticate requests have admitted.
    pub known_admissions: KnownAdmissions,
    /// The certificates that are ordered from authorities.
    pub acme: Arc<AcmeCertificates>,
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
    /// The resources that its address uses.
    pub usage: ClientHandle,
    /// Its address and the address that it connected to, for PROXY protocol headers to upstreams. From the received
    /// PROXY protocol header, or else from the socket.
    pub proxied: ProxiedClient,
    /// Its address as forwarding headers show it.
    pub forwarding: PeerAddress,
    /// The certificate of the connection; `None` without TLS.
    pub certificate: Option<SelectedCertificate>,
    /// The client's certificate, if the listener asks for one.
    pub client_certificate: Option<Box<ClientCertificate>>,
    /// See [`ListenerRules::redirect_https`](crate::snapshot::ListenerRules).
    pub redirect_https: Option<u16>,
    /// What its connection is for.
    pub purpose: ListenerPurpose,
}

/// What the connections of a listener are for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ListenerPurpose {
    /// Requests, which have a route.
    Routes,
    /// Calls to the rate limit service.
    RateLimits,
}

/// A worker's gateway: it answers the requests of all of the worker's connections.
pub struct Gateway {
    shared: Arc<Shared>,
    metrics: Arc<WorkerMetrics>,
    store: Rc<StoreHandle>,
    gate: Option<Rc<AdmissionGate>>,
    /// The secret of the hashes by which the throttle identifies callers; `None` if there is no throttle.
    throttle_secret: Option<KeySecret>,
    access_log: Option<Rc<AccessWriter>>,
    cache: RulesCache,
    ids: RequestIds,
    trace_ids: IdSource,
    /// The name of the store in spans.
    store_name: &'static str,
    dates: DateCache,
    /// The worker's clock.
    coarse_clock: CoarseClock,
    /// When the last warning about a request was logged.
    warned_at: Cell<CoarseTime>,
    /// The calls to the store that outlive their request.
    background: Rc<Background>,
    /// The leases of concurrency permits.
    leases: Rc<LeaseTable>,
    /// The mirrored copies of requests that are in flight.
    mirrors: Rc<Mirrors>,
    /// Connections to services that authenticate requests.
    auth_services: AuthServices,
    /// The signed tokens that were verified.
    tokens: TokenCache,
}

impl Gateway {
    /// The gateway of the current worker; call it on the worker's runtime.
    pub fn new(shared: Arc<Shared>, coarse_clock: CoarseClock) -> Self {
        let metrics = shared.metrics.add_worker();
        let store = Rc::new(shared.store.worker());
        let background = Rc::new(Background::new(Rc::clone(&store), shared.clock.clone()));
        let gate = shared.throttle.as_ref().map(|throttle| Rc::new(throttle.gate()));
        Self {
            store,
            throttle_secret: gate.as_ref().map(|gate| gate.token_secret()),
            gate,
            access_log: shared.access_log.as_ref().map(|log| Rc::new(log.writer())),
            cache: RulesCache::new(&shared, &metrics, coarse_clock.clone()),
            ids: RequestIds::new(),
            trace_ids: IdSource::default(),
            store_name: if shared.store.connector().is_some() { "redis" } else { "memory" },
            dates: DateCache::new(shared.clock.now()),
            warned_at: Cell::new(coarse_clock.now()),
            leases: Rc::new(LeaseTable::new(Rc::clone(&background), coarse_clock.clone())),
            background,
            mirrors: Rc::new(Mirrors::new(coarse_clock.clone())),
            auth_services: AuthServices::default(),
            tokens: TokenCache::new(),
            metrics,
            shared,
            coarse_clock,
        }
    }

    /// The worker's metrics.
    pub fn metrics(&self) -> &WorkerMetrics {
        &self.metrics
    }

    /// The resources that the client at this address uses, over all workers. IPv6 addresses with the same first
    /// `client.ipv6_prefix` bits are one client.
    pub fn client_usage(&self, address: IpAddr) -> Arc<ClientUsage> {
        let prefix = self.shared.live.snapshot().identity.ipv6_prefix;
        self.shared.clients.usage(mask_address(address, prefix))
    }

    /// Does the periodic work that is due. Call it every 100 ms; `count` numbers the calls.
    pub fn tick(&self, count: u32) {
        self.dates.set(self.shared.clock.now());
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
        if peer.purpose == ListenerPurpose::RateLimits {
            // Boxed, so that requests do not carry its state.
            return Box::pin(self.answer_call(peer, head, client)).await;
        }
        if let Some(body) = self.challenge_response(peer, &head) {
            return self.respond_to_challenge(peer, head, client, body);
        }
        let mut request = self.begin(self.rules(), peer, head, client);
        // It is large, so it is changed in place and never moved.
        let mut decision = self.decide(&request.ledger.rules, peer, &request.head);
        self.apply_decision(peer, &mut request, &mut decision);
        let next = &mut decision.next;
        if let NextStep::ReadCheck(door) = *next {
            // Boxed, so that other requests do not carry its state.
            *next = Box::pin(self.read_check(peer, &mut request, door)).await;
        }
        let mut limits = ChargedLimits::new();
        // Boxed, as the counting of failures is, so that other requests do not carry its state.
        let checked = match self.check(peer, &mut request, next) {
            Ok(CheckOutcome::Unidentified(pending)) => {
                Box::pin(self.check_identity(peer, &mut request, next, pending)).await
            }
            checked => checked,
        };
        let checked = match checked {
            Ok(CheckOutcome::ClaimsPlace(pending)) => {
                Box::pin(self.claim_place(peer, &mut request, next, pending)).await
            }
            checked => checked,
        };
        let outcome = match checked {
            Ok(CheckOutcome::Answered(reply)) => Ok(DraftResponse::Local(reply)),
            Ok(CheckOutcome::Admitted(mut admitted)) => {
                self.serve(peer, &mut request, &mut admitted, &mut limits).await
            }
            // A request waits once for each.
            Ok(CheckOutcome::Unidentified(_) | CheckOutcome::ClaimsPlace(_)) => {
                Err(GatewayError::CannotAuthenticate(AuthOutage::Service))
            }
            Err(error) if error.counted_by().is_some() => {
                Err(Box::pin(self.count_failure(&mut request, error)).await)
            }
            Err(error) => Err(error),
        };
        let mut draft = outcome.unwrap_or_else(|error| refusal(&request, &limits, error));
        if let Some(settlement) = &mut request.held.settlement {
            settlement.begin_response(&mut draft);
        }
        self.correct_charges(&mut request.ledger, &mut limits, &draft).await;
        self.finish(request, &limits, draft)
    }

    /// The current rules.
    fn rules(&self) -> Rc<WorkerRules> {
        self.cache.get(&self.shared, &self.metrics)
    }

    /// Records in `request` what was decided.
    fn apply_decision(
        &self,
        peer: &Peer,
        request: &mut RequestContext,
        decision: &mut RequestDecision,
    ) {
        if let Some(asked) = decision.asked.take() {
            request.ask_about(*asked);
        }
        request.path = decision.path.take();
        request.ledger.token_hash = decision.token_hash;
        if let Some(address) = &decision.client {
            request.ledger.client_ip = address.ip;
            if address.ip != peer.address {
                request.usage = self.client_usage(address.ip).into();
            }
        }
        let route = decision.next.route();
        request.ledger.route = route.map(|index| Rc::clone(&request.rules().routes[index]));
    }

    /// The context of a request that begins now.
    fn begin(
        &self,
        rules: Rc<WorkerRules>,
        peer: &Peer,
        head: Box<RequestHead>,
        client: Rc<dyn ClientStream>,
    ) -> Box<RequestContext> {
        self.metrics.requests_by_version[head.version as usize].add(1);
        let from_trusted_proxy = rules.snapshot.identity.trusted_proxies.contains(peer.address);
        let given = if from_trusted_proxy { RequestId::from_head(&head) } else { None };
        let tracing = self.begin_trace(&rules, || spans::received(&head, from_trusted_proxy));
        // Boxed: it is moved many times with the response.
        let mut request = Box::new(RequestContext {
            head,
            question: None,
            path: None,
            client,
            usage: peer.usage.clone(),
            connection_scheme: peer.forwarding.scheme(),
            from_trusted_proxy,
            held: Held::default(),
            response: ResponseHeader::default(),
            ledger: self.ledger(rules, peer, given.unwrap_or_else(|| self.ids.next())),
        });
        request.ledger.tracing = tracing;
        request
    }

    /// The ledger of a request that begins now.
    // Inline, so that it is built where it stays.
    #[inline]
    fn ledger(&self, rules: Rc<WorkerRules>, peer: &Peer, request_id: RequestId) -> Ledger {
        let access_logger = self.access_log.as_ref().map(|writer| AccessLogger {
            writer: Rc::clone(writer),
            secret: self.shared.store.key_secret(),
        });
        let arrival = Arrival {
            at: self.shared.clock.store_time(),
            stopwatch: self.shared.clock.stopwatch(),
        };
        Ledger::new(rules, request_id, peer.address, arrival, access_logger)
    }

    /// Processes an admitted request up to the head of its response: charges its limits, delays it if they require a
    /// delay, and executes its route's action. `limits` receives the charges.
    async fn serve(
        &self,
        peer: &Peer,
        request: &mut RequestContext,
        admitted: &mut AdmittedRequest<'_>,
        limits: &mut ChargedLimits,
    ) -> Result<DraftResponse, GatewayError> {
        let settings = Arc::clone(&admitted.route.settings);
        if let Some(inspection) = &settings.inspection {
            // Boxed, so that other requests do not carry its state.
            Box::pin(self.inspect_body(peer, request, admitted, inspection)).await?;
        }
        let AdmittedRequest { route, plan } = &*admitted;
        if !plan.charges.is_empty() {
            limits.extend(route.charged_limits(&plan.charges));
            let admission = self.charge(request, limits).await;
            request.ledger.admission = admission;
            match admission {
                Admission::Refused | Admission::Blocked => {
                    return Err(GatewayError::LimitExceeded);
                }
                Admission::Unknown => return Err(GatewayError::StoreUnavailable),
                _ => {}
            }
            if settings.has_variable_cost {
                request.ledger.note_costs(limits);
            }
            if settings.settles {
                request.held.settlement = Settlement::new(&self.background, limits);
            }
            if limits.iter().any(ChargedLimit::is_delayed) {
                // Boxed, so that requests without a delay do not carry its state.
                self.begin_span(&mut request.ledger.tracing, || ChildSpanKind::Delay);
                let delayed = Box::pin(self.delay(request, limits)).await;
                self.end_span(&mut request.ledger.tracing);
                delayed?;
            }
        }
        let response = match &route.settings.action {
            Action::Upstream(upstream) => self.forward(peer, request, admitted, upstream).await?,
            Action::Status(limits) => {
                let reported = self.quota_status(limits, &plan.status_charges).await;
                if reported.is_err() {
                    request.ledger.admission = Admission::Unknown;
                }
                DraftResponse::Local(reported?)
            }
            Action::Redirect(redirect) => {
                let location =
                    request.routed(route).with_values(|values| redirect.to.render(values));
                let location = location.ok_or(GatewayError::MalformedTarget)?;
                DraftResponse::Local(respond::redirect_reply(&location, redirect.status))
            }
            Action::Respond(fixed) => DraftResponse::Local(respond::fixed_reply(fixed)),
            Action::Decide(_) => DraftResponse::Local(Self::admission(request, route)),
        };
        if response.is_mistaken_for_tunnel(&request.head) {
            return Err(GatewayError::Upstream(UpstreamError::UpgradeUnsupported));
        }
        if let Some(caller) = plan.caller.as_ref().filter(|_| has_checked_caller(&route.settings)) {
            self.record_activity(request, caller, response.status());
        }
        Ok(response)
    }
}

/// True if a successful response on `route` shows that the caller's credentials are valid: servers check its token, and
/// the gateway itself does before it admits a request for another proxy. Its other responses make no caller active.
fn has_checked_caller(route: &Route) -> bool {
    match &route.action {
        Action::Upstream(upstream) => matches!(upstream.kind, UpstreamKind::Servers(_)),
        Action::Decide(_) => route.auth.is_some(),
        Action::Status(_) | Action::Redirect(_) | Action::Respond(_) => false,
    }
}
