//! The request's path, read top to bottom.
//!
//! [`Gateway::handle`] screens a request, plans it (route and keys), charges its limits, forwards it
//! and answers. Every leaf returns values; only here is it decided what follows from them. Which
//! protocol carries the request is not known here.

mod activity;
mod admission;
mod answer;
mod background;
mod charged_limit;
mod charging;
mod context;
mod date;
mod delay;
mod delay_queue;
mod draft;
mod forward;
mod leases;
mod places;
mod plan;
mod request_id;
mod rules;
mod status;
mod via;

use std::{
    cell::Cell,
    net::IpAddr,
    rc::Rc,
    sync::{Arc, atomic::AtomicU64},
};

use crossbeam_utils::CachePadded;

pub use self::{
    answer::{Answer, AnswerBounds, Content},
    context::RequestContext,
    delay_queue::DelayQueues,
    places::{Place, Places},
    via::Via,
};
use self::{
    background::Background,
    charged_limit::ChargedLimit,
    context::LineWriter,
    date::DateCache,
    draft::Draft,
    leases::LeaseTable,
    request_id::RequestIds,
    rules::{Rules, RulesCache},
};
use crate::{
    clock::Clock,
    error::GatewayError,
    framing::{ClientStream, Fault, Fields, Length, RequestHead},
    identity::Secret,
    limit::Admission,
    live::Live,
    metrics::{Metrics, RouteCounters, Shard},
    plan::screen,
    respond,
    snapshot::{Action, Route},
    store::{Store, Stores},
    telemetry::{AccessLog, AccessWriter},
    throttle::{Gate, Throttle},
    upstream::Forwarding,
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
    pub delay_queues: DelayQueues,
    /// Where access lines go, if anywhere.
    pub access_log: Option<AccessLog>,
    /// Counts the workers that serve.
    pub serving: AtomicU64,
    /// How many connections may be open.
    pub places: Arc<Places>,
    /// This process in `Via`.
    pub via: Via,
}

impl Shared {
    /// Opens the access log's file anew, as after a rotation. Returns at once.
    pub fn reopen_logs(&self) {
        if let Some(log) = &self.access_log {
            log.reopen();
        }
    }
}

/// One client connection, as its requests see it.
pub struct Peer {
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
    access_log: Option<Rc<AccessWriter>>,
    cache: RulesCache,
    ids: RequestIds,
    dates: DateCache,
    /// What is counted of requests that no route was found for.
    unrouted: Arc<CachePadded<RouteCounters>>,
    /// The worker's coarse clock, in ms.
    clock: Rc<Cell<u64>>,
    warned_at: Cell<u64>,
    /// Tells the store of corrections.
    background: Rc<Background>,
    /// What requests hold while they are in flight.
    leases: Rc<LeaseTable>,
}

impl Gateway {
    /// A worker's own gateway. Call it on the worker's runtime. `clock` holds the worker's coarse
    /// time, in ms.
    pub fn new(shared: Arc<Shared>, clock: Rc<Cell<u64>>) -> Self {
        let shard = shared.metrics.shard();
        let store = Rc::new(shared.stores.worker());
        let background = Rc::new(Background::new(Rc::clone(&store), shared.clock.clone()));
        Self {
            store,
            gate: shared.throttle.as_ref().map(|throttle| Rc::new(throttle.gate())),
            access_log: shared.access_log.as_ref().map(|log| Rc::new(log.writer())),
            cache: RulesCache::new(&shared.live, &shard, clock.clone()),
            ids: RequestIds::new(),
            dates: DateCache::default(),
            unrouted: shard.route(""),
            warned_at: Cell::new(0),
            leases: Rc::new(LeaseTable::new(Rc::clone(&background), clock.clone())),
            background,
            shard,
            shared,
            clock,
        }
    }

    /// The worker's counters.
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// Closes what has been idle too long, and leaves rules that were replaced.
    pub fn sweep(&self) {
        self.cache.get(&self.shared.live, &self.shard);
        self.cache.sweep();
    }

    /// Renews what requests in flight hold on leases. To be called every 100 ms or so.
    pub fn renew(&self) {
        self.leases.renew();
    }

    /// Hands over access lines that are a second old. To be called every 100 ms or so.
    pub fn flush_log(&self) {
        if let Some(log) = &self.access_log {
            log.flush_if_older(self.clock.get());
        }
    }

    /// Answers one request, whose body is `client`'s. Every end is an answer; none is an error.
    pub async fn handle(
        &self,
        peer: &Peer,
        head: Box<RequestHead>,
        client: Rc<dyn ClientStream>,
    ) -> Answer {
        let mut context = self.context(peer, Some(head), client);
        let outcome = self.proxy(peer, &mut context).await;
        let draft = self.draft(&mut context, outcome);
        self.adjust(&mut context, &draft).await;
        self.answer(context, draft)
    }

    /// Answers what is no request.
    pub fn refuse(&self, peer: &Peer, fault: Fault, client: Rc<dyn ClientStream>) -> Answer {
        self.shard.malformed.add(1);
        let mut context = self.context(peer, None, client);
        let draft = self.draft(&mut context, Err(GatewayError::Framing(fault)));
        self.answer(context, draft)
    }

    fn context(
        &self,
        peer: &Peer,
        head: Option<Box<RequestHead>>,
        client: Rc<dyn ClientStream>,
    ) -> Box<RequestContext> {
        let rules = self.cache.get(&self.shared.live, &self.shard);
        let counters = self.unrouted.clone();
        let context = RequestContext::new(rules, peer, head, client, counters, &self.ids);
        // Boxed: it goes with the answer through many hands.
        let mut context = Box::new(context);
        if let Some(writer) = &self.access_log {
            let (k0, k1) = self.shared.stores.secret();
            context.time = self.shared.clock.now();
            context.line = Some(LineWriter { writer: Rc::clone(writer), secret: Secret(k0, k1) });
        }
        context
    }

    async fn proxy(
        &self,
        peer: &Peer,
        context: &mut RequestContext,
    ) -> Result<Draft, GatewayError> {
        let rules = Rc::clone(&context.rules);
        let rules = &*rules;
        let Some(head) = &context.head else { return Err(GatewayError::Target) };
        screen(head)?;
        if self.shared.via.is_in(&head.fields) {
            return Err(GatewayError::Loop);
        }
        if head.is_about_server() {
            context.admission = Admission::Unlimited;
            return Ok(Draft::Reply(respond::server_options()));
        }
        let length = head.body;
        let plan = self.plan(rules, peer, context)?;
        let route = &rules.snapshot.routes[plan.route];
        let timeout = route.request_timeout.map(|timeout| timeout.as_millis() as u64);
        context.client.state().allow(timeout);
        self.admit(context)?;
        check_length(length, route)?;
        context.admission = Admission::Unlimited;
        if !context.limits.is_empty() {
            self.charge(context).await?;
            if context.limits.iter().any(must_wait) {
                // Boxed, so that requests that are not held do not carry its state.
                Box::pin(self.hold(context)).await?;
            }
        }
        match &route.action {
            Action::Upstream(upstream) => {
                self.forward(rules, plan.route, upstream, peer, context).await
            }
            Action::Status(limits) => self.quota_status(limits, &plan.told, context).await,
        }
    }

    /// Turns an outcome into an answer, but for the fields that every answer has.
    #[inline]
    fn draft(&self, context: &mut RequestContext, outcome: Result<Draft, GatewayError>) -> Draft {
        let rules = Rc::clone(&context.rules);
        match outcome {
            Ok(draft) => {
                self.record_activity(&rules, context, draft.status());
                draft
            }
            Err(error) => Draft::Reply(refuse(&rules, context, error)),
        }
    }

    /// Adds the fields that every answer has.
    fn answer(&self, mut context: Box<RequestContext>, draft: Draft) -> Answer {
        let rules = Rc::clone(&context.rules);
        let rules = &*rules;
        let status = draft.status();
        let mut replaced = respond::Replaced::default();
        let (upstream, mut fields, content) = match draft {
            Draft::Reply(reply) => (None, reply.fields, Content::Whole(reply.body)),
            Draft::Upstream(head, stream) => (Some(head), Fields::new(), Content::Stream(stream)),
        };
        let mut bounds = AnswerBounds::default();
        if let Some(index) = context.route {
            let route = &rules.snapshot.routes[index];
            if context.admission.is_decided() {
                let (which, cross_origin) = (rules.snapshot.headers, is_cross_origin(&context));
                replaced =
                    respond::rate_headers(&mut fields, context.reports(), which, cross_origin);
            }
            let millis = |bound: Option<std::time::Duration>| bound.map(|b| b.as_millis() as u64);
            bounds.gap = millis(route.answer_idle_timeout);
            bounds.whole = millis(route.answer_timeout);
        }
        fields.push("x-request-id", context.request_id.as_bytes());
        if !upstream.as_ref().is_some_and(|head| head.fields.contains("date")) {
            self.dates.with(self.shared.clock.now(), |date| fields.push("date", date));
        }
        context.answered(status);
        Answer { status, content, bounds, context, upstream, fields, replaced }
    }
}

/// Whether a browser asks for another site.
fn is_cross_origin(context: &RequestContext) -> bool {
    context.head.as_ref().is_some_and(|head| head.fields.contains("origin"))
}

/// Refuses a body that says it is longer than `route` allows.
fn check_length(length: Length, route: &Route) -> Result<(), GatewayError> {
    match length {
        Length::Known(length) if length > route.max_body => Err(GatewayError::BodyTooLong),
        _ => Ok(()),
    }
}

/// Whether a limit that is enforced holds the request back.
fn must_wait(limit: &ChargedLimit) -> bool {
    let wait = limit.outcome.decided().map_or(0, |decided| decided.decision.wait);
    wait > 0 && limit.limit().enforce
}

/// The answer to a request that ended early, but for the fields that every answer has.
fn refuse(rules: &Rules, context: &mut RequestContext, error: GatewayError) -> respond::Reply {
    let mut reply = respond::error(&error, context.reports(), context.request_id.as_str());
    match error {
        GatewayError::Throttled(turned) => {
            let (which, cross_origin) = (rules.snapshot.headers, is_cross_origin(context));
            respond::throttle_headers(&mut reply.fields, &turned, which, cross_origin);
        }
        GatewayError::NoRoute | GatewayError::OtherMethods(_) => {
            context.admission = Admission::Unlimited;
        }
        _ => {}
    }
    reply
}
