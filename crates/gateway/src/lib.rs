//! [`Gateway`]: answers requests.
//!
//! [`Gateway::handle`] checks a request, plans it (route and keys), passes it through the throttle,
//! charges its limits, delays it if needed, forwards it, and corrects the charges from the
//! response. What decides (`tidegate_rules::plan` and `respond`, `tidegate_limit`) only computes
//! results; the gateway acts on them. It does not depend on the protocol version: a connection passes a head and a
//! [`ClientStream`](tidegate_transport::ClientStream), and writes the [`Response`].
//!
//! It reads no configuration file: `tidegate::server` builds it, and starts the threads that run
//! [`worker`]. Only passwords and logs have threads of their own here. Its smallest use is a
//! `tidegate::server::Server`, because it needs rules, a store and a runtime for each worker.
//!
//! A worker's [`Gateway`] has the path of a request. Beside it stand three objects with a state of
//! their own: `Authenticator` finds out who sends a request, `WorkerThrottle` admits active callers,
//! `Charger` charges the limits.
//!
//! The files, in the order of the path:
//!
//! - `handle.rs`: the path itself.
//! - `context.rs`, `request_id.rs`: the state of a request until its response ends, and its id.
//! - `ledger.rs`, `request_trace.rs`, `spans.rs`: the record of a request for access log, metrics
//!   and trace.
//! - `rules.rs`: the snapshot, and for each route the worker's counters and the balancer of its
//!   upstream.
//! - `checks.rs`: executes the decision of [`plan::decide`](tidegate_rules::plan::decide), and the
//!   checks before the limits; `completion.rs`: the decision's second half.
//! - `authenticator.rs`, `authentication.rs`, `auth_failures.rs`, `blocked_addresses.rs`: who sends
//!   a request; addresses that sent too many wrong credentials.
//! - `consumer_records.rs`: the records of consumers, loaded or looked up in Redis.
//! - `passwords.rs`, `auth_service.rs`: verification of passwords; services that decide who sends a
//!   request.
//! - `admission.rs`, `activity.rs`: the throttle.
//! - `inspection.rs`: the bodies of requests that limits read.
//! - `charging.rs`, `charged_limit.rs`, `charged_costs.rs`, `concurrency_lease.rs`,
//!   `background.rs`: charges and corrections; `settlement.rs`: costs that are known when a
//!   response ends; `settled_report.rs`: their trailers.
//! - `delay.rs`, `delay_queue.rs`: requests that wait for slots of leaky buckets.
//! - `forward.rs`, `mirror.rs`, `quota_status.rs`, `decide.rs`: the actions of a route.
//! - `rate_limit_service.rs`, `call_charges.rs`, `grpc_streams.rs`: calls to the rate limit
//!   service, which have a domain instead of a route.
//! - `acme_challenge.rs`: responses to an authority that checks a domain.
//! - `cors.rs`: the CORS header fields.
//! - `compress.rs`: decides if a response is compressed.
//! - `draft_response.rs`, `finish.rs`, `response.rs`, `response_header.rs`, `date.rs`: the
//!   response; `decision_log.rs`: logs the decisions.
//! - `worker.rs`, `connection.rs`: the threads and the connections around it; `metrics.rs`,
//!   `telemetry.rs`: what they count and log.
//! - `connection_limit.rs`: the bound on open connections, which workers enforce.

mod acme_challenge;
mod activity;
mod admission;
mod auth_failures;
mod auth_service;
mod authentication;
mod authenticator;
mod background;
mod blocked_addresses;
mod call_charges;
mod charged_costs;
mod charged_limit;
mod charging;
mod checks;
mod completion;
mod compress;
mod concurrency_lease;
pub mod connection;
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
mod handle;
mod inspection;
mod ledger;
pub mod metrics;
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
pub mod telemetry;
pub mod worker;

use std::{
    cell::Cell,
    net::IpAddr,
    rc::Rc,
    sync::{Arc, atomic::AtomicU64},
};

use tokio_util::sync::CancellationToken;

use self::{
    admission::WorkerThrottle, authenticator::Authenticator, charging::Charger, date::DateCache,
    ledger::AccessLogger, mirror::Mirrors, request_id::RequestIds, rules::RulesCache,
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
use tidegate_access::consumer_store::ConsumerStore;
use tidegate_access::key_sets::KeySets;
use tidegate_access::overrides::OverrideStore;
use tidegate_identity::client::mask_address;
use tidegate_rules::live::{LiveOverrides, LiveSnapshot};
use tidegate_rules::plan::Via;
use tidegate_store::CounterStore;
use tidegate_system::client_usage::{ClientHandle, ClientTable, ClientUsage, UsageCount};
use tidegate_system::clock::{Clock, CoarseClock, CoarseTime};
use tidegate_throttle::Throttle;
use tidegate_tls::acme::AcmeCertificates;
use tidegate_tls::{ClientCertificate, SelectedCertificate};
use tidegate_trace::{IdSource, TraceQueue};
use tidegate_transport::compress::CompressionBudget;
use tidegate_upstream::{PeerAddress, ProxiedClient, UpstreamRegistry};

use crate::metrics::{Metrics, WorkerMetrics};
use crate::telemetry::AccessLog;

/// Ticks between two sweeps of idle upstream connections.
const TICKS_PER_POOL_SWEEP: u32 = 10;

/// The state that all threads of a process share.
pub struct Shared {
    /// The current configuration, with the consumers.
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
    /// Cancelled when the gateway has been asked to stop: it is no longer ready, though it may
    /// still accept requests.
    pub leaving: CancellationToken,
    /// Bounds the open client connections.
    pub connection_limit: Arc<ConnectionLimit>,
    /// The process's resources that each client address uses.
    pub clients: Arc<ClientTable>,
    /// The same of callers of the rate limit service: a proxy there must not close the other ports
    /// to its address.
    pub callers: Arc<ClientTable>,
    /// The memory for compressing responses.
    pub compression: Arc<CompressionBudget>,
    /// The bytes of requests' bodies that limits have read and that are not forwarded yet.
    pub inspected_bytes: Arc<UsageCount>,
    /// This process's `Via` entry.
    pub via: Via,
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
    /// The clients of listeners with this purpose.
    pub fn client_table(&self, purpose: ListenerPurpose) -> &Arc<ClientTable> {
        match purpose {
            ListenerPurpose::Routes => &self.clients,
            ListenerPurpose::RateLimits => &self.callers,
        }
    }

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
    /// Its address and the address that it connected to, for PROXY protocol headers to upstreams.
    /// From the received PROXY protocol header, or else from the socket.
    pub proxied: ProxiedClient,
    /// Its address as forwarding headers show it.
    pub forwarding: PeerAddress,
    /// The certificate of the connection; `None` without TLS.
    pub certificate: Option<SelectedCertificate>,
    /// The client's certificate, if the listener asks for one.
    pub client_certificate: Option<Box<ClientCertificate>>,
    /// See [`ListenerRules::redirect_https`](tidegate_rules::snapshot::ListenerRules).
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
    authenticator: Authenticator,
    /// `None` admits every caller.
    throttle: Option<WorkerThrottle>,
    charger: Charger,
    access_logger: Option<Rc<AccessLogger>>,
    cache: RulesCache,
    ids: RequestIds,
    trace_ids: IdSource,
    dates: DateCache,
    /// The worker's clock.
    coarse_clock: CoarseClock,
    /// When the last warning about a request was logged.
    warned_at: Cell<CoarseTime>,
    /// The mirrored copies of requests that are in flight.
    mirrors: Rc<Mirrors>,
}

impl Gateway {
    /// The gateway of the current worker; call it on the worker's runtime.
    pub fn new(shared: Arc<Shared>, coarse_clock: CoarseClock) -> Self {
        let metrics = shared.metrics.add_worker();
        let charger = Charger::new(&shared, &metrics, coarse_clock.clone());
        let store = Rc::clone(&charger.store);
        Self {
            authenticator: Authenticator::new(Arc::clone(&shared), store, coarse_clock.clone()),
            throttle: WorkerThrottle::new(&shared, &metrics),
            charger,
            access_logger: shared.access_log.as_ref().map(|log| {
                let secret = shared.store.key_secret();
                Rc::new(AccessLogger { writer: log.writer(), secret })
            }),
            cache: RulesCache::new(&shared, &metrics, coarse_clock.clone()),
            ids: RequestIds::new(),
            trace_ids: IdSource::default(),
            dates: DateCache::new(shared.clock.store_time()),
            warned_at: Cell::new(coarse_clock.now()),
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

    /// The resources that the client at this address uses, over all workers. IPv6 addresses with
    /// the same first `client.ipv6_prefix` bits are one client.
    pub fn client_usage(&self, address: IpAddr) -> Arc<ClientUsage> {
        let prefix = self.shared.live.snapshot().identity.ipv6_prefix;
        self.shared.clients.usage(mask_address(address, prefix))
    }

    /// True for the address of a trusted proxy.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        self.shared.live.snapshot().identity.trusted_proxies.contains(peer)
    }

    /// Does the periodic work that is due. Call it every 100 ms; `count` numbers the calls.
    pub fn tick(&self, count: u32) {
        self.dates.set(self.shared.clock.store_time());
        self.mirrors.sweep();
        self.charger.leases.renew();
        self.cache.yield_connections();
        if let Some(logger) = &self.access_logger {
            logger.writer.flush_if_older(self.coarse_clock.now());
        }
        if count.is_multiple_of(TICKS_PER_POOL_SWEEP) {
            // Drops replaced rules even if no request arrives.
            self.cache.get(&self.shared, &self.metrics);
            self.cache.sweep_pools();
        }
    }
}
