//! Active-user admission control for a request: checked before any limit is charged, updated from
//! the response.

use std::{rc::Rc, sync::Arc};

use http::StatusCode;
use smallvec::{SmallVec, smallvec};
use tidegate_base::mix::mix64;
use tidegate_http1::Fields;
use tidegate_identity::{Caller, KeySecret, TokenHash, caller_key};
use tidegate_rules::error::GatewayError;
use tidegate_rules::snapshot::WaitingRoomRules;
use tidegate_throttle::{
    AdmissionDenied, AdmissionGate, AdmitReason, DenyReason, GateCaller, POLICY,
};

use super::{Shared, activity::ActivityGuard, context::RequestContext};
use crate::metrics::WorkerMetrics;

/// The request header by which a program sends its ticket of the waiting room, and the response
/// header that has it.
const TICKET_HEADER: &str = "x-tidegate-ticket";

/// What the throttle says of a caller that it does not refuse.
pub(super) enum Admittance {
    Admitted,
    /// It is the caller's turn in the waiting room: it is admitted if a place is free.
    ClaimsPlace(TurnClaim),
}

/// A caller that asks for a place.
pub(super) struct TurnClaim {
    /// The keyed hash of its tokens.
    holder: u64,
    /// The refusal if no place is free.
    denied: Box<AdmissionDenied>,
}

/// A worker's part of the throttle.
pub(super) struct WorkerThrottle {
    shared: Arc<Shared>,
    metrics: Arc<WorkerMetrics>,
    gate: Rc<AdmissionGate>,
    /// The secret of the hashes by which callers are identified.
    pub(super) secret: KeySecret,
}

impl WorkerThrottle {
    /// The current worker's part of the process's throttle, if there is one.
    pub(super) fn new(shared: &Arc<Shared>, metrics: &Arc<WorkerMetrics>) -> Option<Self> {
        let gate = Rc::new(shared.throttle.as_ref()?.gate());
        let secret = gate.token_secret();
        let (shared, metrics) = (Arc::clone(shared), Arc::clone(metrics));
        Some(Self { shared, metrics, gate, secret })
    }

    /// The caller for the throttle, on a route with `auth`.
    pub(super) fn authenticated_caller(&self, request: &RequestContext) -> Caller {
        let prefix = request.rules().snapshot.identity.ipv6_prefix;
        let client = request.ledger.client_ip;
        Caller::authenticated(request.ledger.consumer(), client, prefix, self.secret)
    }

    /// Refuses the request while the throttle admits only active users and the caller is not one.
    /// If the caller has several tokens, one of them must be active.
    pub(super) fn admit(
        &self,
        request: &RequestContext,
        caller: &Caller,
    ) -> Result<Admittance, GatewayError> {
        let gate = &self.gate;
        let counters = &self.metrics.throttle;
        let check = |caller| gate.admit(caller, || self.shared.clock.store_time());
        let admitted = match caller {
            Caller::Address(hash) => check(GateCaller::Address(*hash)),
            Caller::Tokens(tokens) => {
                let first = check(GateCaller::Token(tokens[0]));
                let others = tokens[1..].iter();
                others.fold(first, |admitted, token| {
                    admitted.or_else(|_| check(GateCaller::Token(*token)))
                })
            }
        };
        let denied: Box<AdmissionDenied> = match admitted {
            Ok(AdmitReason::NotThrottling) => return Ok(Admittance::Admitted),
            Ok(AdmitReason::Active) => {
                counters.known.add(1);
                return Ok(Admittance::Admitted);
            }
            Err(denied) => denied,
        };
        match caller {
            Caller::Tokens(tokens) => self.ask_room(request, tokens, denied),
            Caller::Address(_) => Err(self.refuse(request, denied)),
        }
    }

    /// Counts and logs that the throttle refuses the request. Returns the error.
    #[cold]
    fn refuse(&self, request: &RequestContext, denied: Box<AdmissionDenied>) -> GatewayError {
        let counters = &self.metrics.throttle;
        let counter = match denied.reason {
            DenyReason::Unknown => &counters.unknown,
            DenyReason::Missing => &counters.missing,
            DenyReason::Rejected => &counters.rejected,
        };
        counter.add(1);
        tracing::debug!(
            request_id = &*String::from_utf8_lossy(request.ledger.request_id.as_bytes()),
            reason = ?denied.reason,
            "refused by the throttle"
        );
        self.count_throttled_caller(request);
        GatewayError::Throttled(denied)
    }

    /// Asks the waiting room about a caller that is not active, if there is a room.
    fn ask_room(
        &self,
        request: &RequestContext,
        tokens: &[u64],
        denied: Box<AdmissionDenied>,
    ) -> Result<Admittance, GatewayError> {
        let Some(rules) = &request.rules().snapshot.waiting_room else {
            return Err(self.refuse(request, denied));
        };
        let counters = &self.metrics.throttle;
        let ticket = sent_ticket(rules, &request.head.fields);
        let plan = request.ledger.consumer().and_then(|consumer| consumer.plan);
        let head_start = request.rules().snapshot.head_start(plan);
        let holder = holder(tokens);
        let denied = self.gate.ask_room(holder, ticket, head_start, denied);
        if denied.is_turn() {
            return Ok(Admittance::ClaimsPlace(TurnClaim { holder, denied }));
        }
        if let Some(waiting) = &denied.waiting {
            if waiting.is_new() {
                counters.room_tickets.add(1);
            }
            if let Some(fault) = waiting.fault() {
                counters.room_faults[fault as usize].add(1);
            }
        }
        Err(self.refuse(request, denied))
    }

    /// Takes a place in the waiting room for a caller whose turn it is.
    ///
    /// # Errors
    /// None is free.
    pub(super) async fn take_place(
        &self,
        request: &mut RequestContext,
        claim: TurnClaim,
    ) -> Result<(), GatewayError> {
        let TurnClaim { holder, denied } = claim;
        let entering = match self.gate.room() {
            Some(room) => room.claim(holder, denied.now).await,
            None => None,
        };
        if entering.is_none() {
            return Err(self.refuse(request, denied));
        }
        self.metrics.throttle.room_admitted.add(1);
        request.held.entering = entering;
        Ok(())
    }

    /// Counts the caller that the throttle refuses, under the same hash that limits keyed by
    /// `token` use.
    #[cold]
    fn count_throttled_caller(&self, request: &RequestContext) {
        let identity = &request.rules().snapshot.identity;
        let key = match request.ledger.token_hash {
            TokenHash::Present(hash) => hash.into(),
            TokenHash::Missing | TokenHash::Unread => caller_key(
                &identity.token,
                &request.head.fields,
                request.ledger.client_ip,
                identity.ipv6_prefix,
                self.shared.store.key_secret(),
            ),
        };
        let consumer = request.ledger.consumer().map(|consumer| consumer.name);
        let now = self.shared.clock.store_time();
        self.metrics.count_refused_caller(now, POLICY, key, consumer);
    }

    /// Reports a response to the throttle when the response begins: the caller's tokens become
    /// active unless the response's status is in `forget_status`. Tokens that became active are
    /// recorded again when the response ends.
    pub(super) fn record_activity(
        &self,
        request: &mut RequestContext,
        caller: &Caller,
        status: StatusCode,
    ) {
        let (gate, Caller::Tokens(tokens)) = (&self.gate, caller) else { return };
        let Some(settings) = &request.ledger.rules.snapshot.throttle else { return };
        let status = status.as_u16();
        let accepted = !settings.forget_status.contains(status);
        let tokens =
            if accepted { tokens_to_record(gate, tokens) } else { tokens.as_slice().into() };
        for token in &tokens {
            if gate.record_response(*token, status, settings) {
                self.metrics.throttle.recorded.add(1);
            }
        }
        if accepted {
            request.held.activity = Some(ActivityGuard::new(gate, tokens));
        }
        // From here on, the user counts as active, or has no place.
        request.held.entering = None;
    }
}

/// The keyed hash that stands for all tokens of a caller: a ticket is for all of them together.
fn holder(tokens: &[u64]) -> u64 {
    let (first, others) =
        tokens.split_first().map_or((0, tokens), |(first, others)| (*first, others));
    others.iter().fold(first, |hash, token| mix64(hash).wrapping_add(*token))
}

/// The ticket in the header or the cookie. A header that is sent twice counts as none.
fn sent_ticket<'r>(rules: &WaitingRoomRules, fields: &'r Fields) -> Option<&'r [u8]> {
    let mut headers = fields.get_all(TICKET_HEADER);
    match (headers.next(), headers.next()) {
        (Some(ticket), None) => return Some(ticket.trim_ascii()),
        (Some(_), Some(_)) => return None,
        _ => {}
    }
    let pairs = fields.get_all("cookie").flat_map(|line| line.split(|byte| *byte == b';'));
    let mut values = pairs.filter_map(|pair| {
        let value = pair.trim_ascii_start().strip_prefix(rules.cookie.as_bytes())?;
        value.strip_prefix(b"=")
    });
    values.next().map(<[u8]>::trim_ascii)
}

/// The tokens to record after an accepted response. If the caller has several tokens and some are
/// already active, returns only the active ones: the upstream may not have checked the others,
/// which may be forged.
fn tokens_to_record(gate: &AdmissionGate, tokens: &[u64]) -> SmallVec<[u64; 2]> {
    if let [only] = tokens {
        return smallvec![*only];
    }
    let active: SmallVec<_> =
        tokens.iter().copied().filter(|token| gate.is_active(*token)).collect();
    if active.is_empty() { tokens.into() } else { active }
}
