//! [`Gateway::handle`]: the path of one request, from its head to the head of its response.

use std::rc::Rc;

use tidegate_http1::RequestHead;
use tidegate_rules::error::GatewayError;
use tidegate_rules::plan::{Admission, NextStep, RequestDecision};
use tidegate_rules::respond;
use tidegate_rules::snapshot::{Action, Route};
use tidegate_trace::ChildSpanKind;
use tidegate_transport::ClientStream;
use tidegate_upstream::{UpstreamError, UpstreamKind};

use super::{
    Gateway, ListenerPurpose, Peer,
    charged_limit::{ChargedLimit, ChargedLimits},
    checks::AdmittedRequest,
    context::{Held, RequestContext},
    draft_response::DraftResponse,
    finish::refusal,
    ledger::{Arrival, Ledger},
    request_id::RequestId,
    response::Response,
    response_header::ResponseHeader,
    rules::WorkerRules,
    settlement::Settlement,
    spans,
};

impl Gateway {
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
        let mut decision = self.decide(&request.ledger.rules, peer, &request.head);
        self.apply_decision(peer, &mut request, &mut decision);
        let mut limits = ChargedLimits::new();
        let outcome = loop {
            // In place: it is large.
            match decision.next {
                // Boxed, so that other requests do not carry its state. This ends: a second read
                // finds no message, and refuses.
                NextStep::ReadCheck(door) => {
                    decision.next = Box::pin(self.read_check(peer, &mut request, door)).await;
                }
                NextStep::Answer(ref answer) => {
                    break Ok(DraftResponse::Local(Self::answer(&mut request, answer)));
                }
                NextStep::Refuse(refusal) => {
                    break Err(self.refuse_decided(peer, &mut request, refusal));
                }
                NextStep::Proceed(ref mut pending) => {
                    break match self.check(peer, &mut request, pending).await {
                        Ok(admitted) => {
                            self.serve(peer, &mut request, &admitted, &mut limits).await
                        }
                        Err(error) if error.counted_by().is_some() => {
                            // Boxed likewise.
                            Err(Box::pin(self.authenticator.count_failure(&mut request, error))
                                .await)
                        }
                        Err(error) => Err(error),
                    };
                }
            }
        };
        let mut draft = outcome.unwrap_or_else(|error| refusal(&request, &limits, error));
        if let Some(settlement) = &mut request.held.settlement {
            settlement.begin_response(&mut draft);
        }
        self.charger.correct_charges(&mut request.ledger, &mut limits, &draft).await;
        self.finish(request, &limits, draft)
    }

    /// The current rules.
    pub(super) fn rules(&self) -> Rc<WorkerRules> {
        self.cache.get(&self.shared, &self.metrics)
    }

    /// Records in `request` what was decided.
    pub(super) fn apply_decision(
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
    pub(super) fn begin(
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
            call_id: None,
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
    pub(super) fn ledger(
        &self,
        rules: Rc<WorkerRules>,
        peer: &Peer,
        request_id: RequestId,
    ) -> Ledger {
        let arrival = Arrival {
            at: self.shared.clock.store_time(),
            stopwatch: self.shared.clock.stopwatch(),
        };
        Ledger::new(rules, request_id, peer.address, arrival, self.access_logger.clone())
    }

    /// Processes an admitted request up to the head of its response: charges its limits, delays it
    /// if they require a delay, and executes its route's action. `limits` receives the charges.
    async fn serve(
        &self,
        peer: &Peer,
        request: &mut RequestContext,
        admitted: &AdmittedRequest<'_>,
        limits: &mut ChargedLimits,
    ) -> Result<DraftResponse, GatewayError> {
        let AdmittedRequest { route, caller, decision } = admitted;
        let settings = &route.settings;
        if !decision.charges.is_empty() {
            limits.extend(route.charged_limits(&decision.charges));
            let admission = self.charger.charge(request, limits).await;
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
                request.held.settlement = Settlement::new(&self.charger.background, limits);
            }
            if limits.iter().any(ChargedLimit::is_delayed) {
                // Boxed, so that requests without a delay do not carry its state.
                let clock = &self.shared.clock;
                request.ledger.tracing.begin_span(clock, || ChildSpanKind::Delay);
                let delayed = Box::pin(self.charger.delay(request, limits)).await;
                request.ledger.tracing.end_span(clock);
                delayed?;
            }
        }
        let response = match &route.settings.action {
            Action::Upstream(upstream) => self.forward(peer, request, admitted, upstream).await?,
            Action::Status(limits) => {
                let planned = decision.status.as_deref();
                let planned =
                    planned.ok_or(GatewayError::Bug("nothing is decided on a status route"))?;
                let reported = self.quota_status(limits, planned).await;
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
        if let (Some(throttle), Some(caller)) = (&self.throttle, caller)
            && has_checked_caller(settings)
        {
            throttle.record_activity(request, caller, response.status());
        }
        Ok(response)
    }
}

/// True if a successful response on `route` shows that the caller's credentials are valid: servers
/// check its token, and the gateway itself does before it admits a request for another proxy. Its
/// other responses make no caller active.
fn has_checked_caller(route: &Route) -> bool {
    match &route.action {
        Action::Upstream(upstream) => matches!(upstream.kind, UpstreamKind::Servers(_)),
        Action::Decide(_) => route.auth.is_some(),
        Action::Status(_) | Action::Redirect(_) | Action::Respond(_) => false,
    }
}
