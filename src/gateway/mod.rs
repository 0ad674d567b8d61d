//! The request's path, read top to bottom.
//!
//! [`Gateway::handle`] screens a request, plans it (route and keys), charges its limits, forwards it
//! and answers. Every leaf returns values; only here is it decided what follows from them.

mod account;
mod admission;
mod charging;
mod hold;
mod line;
mod plan;
mod rules;
mod settle;
mod slots;
mod status;
mod visit;

use std::{
    cell::Cell,
    net::IpAddr,
    rc::Rc,
    sync::{Arc, atomic::AtomicU64},
};

use crossbeam_utils::CachePadded;
use http::{HeaderValue, Method, Request, Response, Version, header};
use hyper::body::Incoming;

pub use self::{account::AnswerBody, line::Lines};
use self::{
    account::{Account, LineDraft},
    charging::Payer,
    rules::{Rules, RulesCache},
    slots::Slots,
    visit::Visit,
};
use crate::{
    clock::Clock,
    error::GatewayError,
    framing::Wire,
    identity::{Secret, token_hash},
    limit::Verdict,
    live::Live,
    metrics::{Metrics, RouteCounters, Shard},
    plan::{host, screen},
    respond,
    snapshot::{Action, Route},
    store::{Store, Stores},
    telemetry::AccessLog,
    throttle::{Gate, Throttle},
    upstream::{
        Kind, Upstream, UpstreamError,
        headers::{Forwarding, X_REQUEST_ID},
    },
};

/// What all workers of a process share.
pub struct Shared {
    /// The rules.
    pub live: Live,
    /// The counters of the limits.
    pub stores: Arc<Stores>,
    /// Who is let in when too many users are active; none: everybody.
    pub throttle: Option<Arc<Throttle>>,
    /// The counters of what happened.
    pub metrics: Metrics,
    /// Where limits' time comes from.
    pub clock: Clock,
    /// Who waits for leaky buckets.
    pub lines: Lines,
    /// Where access lines go, if anywhere.
    pub access_log: Option<AccessLog>,
    /// Counts the workers that serve.
    pub serving: AtomicU64,
}

/// One client connection, as its requests see it.
pub struct Peer {
    /// The connection's state.
    pub wire: Rc<Wire>,
    /// The address it comes from.
    pub address: IpAddr,
    /// What it adds to every request.
    pub forwarding: Forwarding,
}

/// One worker's gateway.
pub struct Gateway {
    shared: Arc<Shared>,
    shard: Arc<Shard>,
    store: Rc<Store>,
    gate: Option<Rc<Gate>>,
    cache: RulesCache,
    ids: visit::RequestIds,
    /// What is counted of requests that no route was found for.
    unrouted: Arc<CachePadded<RouteCounters>>,
    /// The worker's coarse clock, in ms.
    clock: Rc<Cell<u64>>,
    warned_at: Cell<u64>,
    /// Tells the store of corrections.
    payer: Rc<Payer>,
    /// What requests hold while they are in flight.
    slots: Rc<Slots>,
}

impl Gateway {
    /// A worker's own gateway. Call it on the worker's runtime. `clock` holds the worker's coarse
    /// time, in ms.
    pub fn new(shared: Arc<Shared>, clock: Rc<Cell<u64>>) -> Self {
        let shard = shared.metrics.shard();
        let store = Rc::new(shared.stores.worker());
        let payer = Rc::new(Payer::new(Rc::clone(&store), shared.clock.clone()));
        Self {
            store,
            gate: shared.throttle.as_ref().map(|throttle| Rc::new(throttle.gate())),
            cache: RulesCache::new(&shared.live, &shard, clock.clone()),
            ids: visit::RequestIds::new(),
            unrouted: shard.route(""),
            warned_at: Cell::new(0),
            slots: Rc::new(Slots::new(Rc::clone(&payer), clock.clone())),
            payer,
            shard,
            shared,
            clock,
        }
    }

    /// The worker's counters.
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// Closes what has been idle too long.
    pub fn sweep(&self) {
        self.cache.sweep();
    }

    /// Takes anew what requests in flight hold on leases. To be called every 100 ms or so.
    pub fn renew(&self) {
        self.slots.renew();
    }

    /// Answers one request. Every end is an answer; none is an error.
    pub async fn handle(&self, peer: &Peer, request: Request<Incoming>) -> Response<AnswerBody> {
        let rules = self.cache.get(&self.shared.live, &self.shard);
        let account = Account::new(self.unrouted.clone(), peer.wire.clone());
        let trusted = rules.snapshot.identity.trusted_proxies.contains(peer.address);
        let mut visit = Visit::new(request, trusted, &self.ids, account);
        let answer = self.proxy(&rules, peer, &mut visit).await;
        self.answer(&rules, peer, visit, answer)
    }

    async fn proxy(
        &self,
        rules: &Rules,
        peer: &Peer,
        visit: &mut Visit,
    ) -> Result<Response<respond::Content>, GatewayError> {
        self.screen(peer, visit)?;
        let mut plan = self.plan(rules, peer, visit)?;
        if let Some(target) = plan.target.take() {
            visit.parts.uri = target;
        }
        visit.asks = std::mem::take(&mut plan.asks);
        let route = &rules.snapshot.routes[plan.route];
        peer.wire.allow(route.request_timeout.as_millis() as u64);
        self.admit(visit)?;
        visit.check_length(route)?;
        visit.account.limit = "none";
        if !visit.asks.is_empty() {
            let mut verdict = self.charge(rules, plan.route, visit).await?;
            let held = must_wait(route, &verdict);
            let outcome = if held {
                // Boxed, so that requests that are not held do not carry its state.
                Box::pin(self.hold(rules, plan.route, peer, visit, &mut verdict)).await
            } else {
                Ok(())
            };
            visit.verdict = Some(verdict);
            outcome?;
        }
        match &route.action {
            Action::Upstream(upstream) => self.forward(rules, route, upstream, peer, visit).await,
            Action::Status(limits) => self.tell(limits, &plan.looks, visit).await,
        }
    }

    /// Refuses what is not served, whatever the route.
    fn screen(&self, peer: &Peer, visit: &mut Visit) -> Result<(), GatewayError> {
        if let Some(fault) = peer.wire.fault() {
            self.shard.malformed.add(1);
            return Err(GatewayError::Framing(fault));
        }
        screen(&mut visit.parts, visit.expects)
    }

    /// What the access line will need, where there is an access log.
    fn draft_line(
        &self,
        rules: &Rules,
        visit: &Visit,
        client: IpAddr,
        host: &str,
        path: &str,
        route: &str,
    ) -> Option<Box<LineDraft>> {
        let log = self.shared.access_log.as_ref()?;
        let sources = &rules.snapshot.identity.token;
        let (k0, k1) = self.shared.stores.seed();
        Some(Box::new(LineDraft {
            log: log.clone(),
            time: self.shared.clock.now(),
            client,
            token: token_hash(sources, &visit.parts.headers, Secret(k0, k1)),
            method: Some(visit.parts.method.clone()),
            host: host.to_owned(),
            path: path.to_owned(),
            route: route.to_owned(),
            request_id: visit.id().to_owned(),
        }))
    }

    /// The access line of a request that ended before it had a route.
    #[cold]
    fn draft_early_line(&self, rules: &Rules, peer: &Peer, visit: &mut Visit) {
        // What stands in for a malformed head says nothing of it.
        let known = peer.wire.fault().is_none();
        let host = host(&visit.parts);
        let (host, path) = if known { (&*host, visit.parts.uri.path()) } else { ("", "") };
        let proxies = &rules.snapshot.identity.trusted_proxies;
        let client = proxies.client(peer.address, &visit.parts.headers).ip;
        let mut line = self.draft_line(rules, visit, client, host, path, "");
        if let Some(line) = line.as_mut().filter(|_| !known) {
            line.method = None;
        }
        visit.account.line = line;
    }

    /// Asks the upstream.
    async fn forward(
        &self,
        rules: &Rules,
        route: &Route,
        upstream: &Upstream,
        peer: &Peer,
        visit: &mut Visit,
    ) -> Result<Response<respond::Content>, GatewayError> {
        let servers = match &upstream.kind {
            Kind::Respond(fixed) => return Ok(respond::fixed(fixed).map(respond::Content::Whole)),
            Kind::Servers(servers) => servers,
        };
        let tokens = &rules.snapshot.identity.token;
        let outgoing = visit.outgoing(peer, route, tokens, &servers.targets[0]);
        let (method, map) = (&visit.parts.method, std::mem::take(&mut visit.parts.headers));
        let balance = &rules.balances[upstream.index];
        match balance.forward(servers, outgoing, method, map, &peer.wire).await {
            Ok(answer) => Ok(answer.map(respond::Content::Stream)),
            Err(error) => Err(self.blame(rules, upstream, peer, visit, error)),
        }
    }

    /// Whose fault it is that no answer came: the client's, where its body failed.
    #[cold]
    fn blame(
        &self,
        rules: &Rules,
        upstream: &Upstream,
        peer: &Peer,
        visit: &Visit,
        error: UpstreamError,
    ) -> GatewayError {
        if let Some(fault) = settle::body_fault(&peer.wire) {
            return fault;
        }
        if let Some(route) = visit.route {
            if let Some(counters) = &rules.routes[route].upstream {
                counters.of(error.kind()).add(1);
            }
            let now = self.clock.get();
            if now.saturating_sub(self.warned_at.get()) >= 1000 {
                self.warned_at.set(now);
                let upstream = &upstream.name;
                tracing::warn!(%upstream, %error, "the upstream failed");
            }
        }
        GatewayError::Upstream(error)
    }

    /// Turns an outcome into the answer, with its headers and its account.
    fn answer(
        &self,
        rules: &Rules,
        peer: &Peer,
        mut visit: Visit,
        outcome: Result<Response<respond::Content>, GatewayError>,
    ) -> Response<AnswerBody> {
        if visit.account.line.is_none() && self.shared.access_log.is_some() {
            self.draft_early_line(rules, peer, &mut visit);
        }
        let failed = outcome.is_err();
        let mut response = match outcome {
            Ok(response) => {
                self.remember(rules, &mut visit, response.status());
                response
            }
            Err(error) => refuse(rules, &mut visit, error),
        };
        self.settle(rules, &mut visit, &response);
        let headers = response.headers_mut();
        if let (Some(verdict), Some(index)) = (&visit.verdict, visit.route) {
            let (which, names) = (rules.snapshot.headers, &rules.routes[index].names);
            let told = respond::Told { route: &rules.snapshot.routes[index], asks: &visit.asks };
            respond::rate_headers(headers, told, names, verdict, which, visit.cross_origin);
        }
        headers.insert(X_REQUEST_ID, visit.request_id.clone());
        if settle::settle(&mut visit, peer, failed) {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        visit.account.status = response.status().as_u16();
        let unread = visit.parts.method == Method::HEAD;
        visit.account.until_close = visit.parts.version == Version::HTTP_10;
        response.map(|content| {
            let body = AnswerBody::new(content, visit.account);
            if unread { body.unread() } else { body }
        })
    }
}

/// Whether a limit that is enforced holds the request back.
fn must_wait(route: &Route, verdict: &Verdict) -> bool {
    let mut decided = route.limits.iter().zip(&verdict.decisions);
    decided.any(|(used, decision)| decision.wait > 0 && used.policy.limit.enforce)
}

/// The answer to a request that ended early, but for the headers that every answer has.
fn refuse(rules: &Rules, visit: &mut Visit, error: GatewayError) -> Response<respond::Content> {
    let route = visit.route.map(|route| &rules.snapshot.routes[route]);
    let map = std::mem::take(&mut visit.parts.headers);
    let mut response = respond::error(&error, route, visit.id(), map);
    match error {
        GatewayError::Refused(verdict) => visit.verdict = Some(*verdict),
        GatewayError::Throttled(turned) => {
            let which = rules.snapshot.headers;
            let headers = response.headers_mut();
            respond::throttle_headers(headers, &turned, which, visit.cross_origin);
        }
        GatewayError::NoRoute | GatewayError::OtherMethods(_) => visit.account.limit = "none",
        _ => {}
    }
    response.map(respond::Content::Whole)
}
