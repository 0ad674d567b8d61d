//! Active-user admission control for a request: checked before any limit is charged, updated from
//! the response.

use http::StatusCode;
use smallvec::{SmallVec, smallvec};

use super::{Gateway, activity::ActivityGuard, context::RequestContext};
use crate::{
    error::GatewayError,
    identity::{Caller, caller_key},
    throttle::{AdmissionDenied, AdmissionGate, AdmitReason, DenyReason, GateCaller, POLICY},
};

impl Gateway {
    /// Refuses the request while the throttle admits only active users and the caller is not one.
    /// If the caller has several tokens, one of them must be active.
    pub(super) fn admit(
        &self,
        request: &RequestContext,
        caller: &Caller,
    ) -> Result<(), GatewayError> {
        let Some(gate) = &self.gate else { return Ok(()) };
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
            Ok(AdmitReason::NotThrottling) => return Ok(()),
            Ok(AdmitReason::Active) => {
                counters.known.add(1);
                return Ok(());
            }
            Err(denied) => denied,
        };
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
        Err(GatewayError::Throttled(denied))
    }

    /// Counts the caller that the throttle refuses, under the same hash that limits keyed by `token` use.
    #[cold]
    fn count_throttled_caller(&self, request: &RequestContext) {
        let identity = &request.rules().snapshot.identity;
        let key = caller_key(
            &identity.token,
            &request.head.fields,
            request.ledger.client_ip,
            identity.ipv6_prefix,
            self.shared.store.key_secret(),
        );
        let consumer = request.ledger.consumer().map(|consumer| consumer.name);
        self.metrics.count_refused_caller(self.shared.clock.now(), POLICY, key, consumer);
    }

    /// Reports a response to the throttle when the response begins: the caller's tokens become active unless the
    /// response's status is in `forget_status`. Tokens that became active are recorded again when the response ends.
    pub(super) fn record_activity(
        &self,
        request: &mut RequestContext,
        caller: &Caller,
        status: StatusCode,
    ) {
        let (Some(gate), Caller::Tokens(tokens)) = (&self.gate, caller) else { return };
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
    }
}

/// The tokens to record after an accepted response. If the caller has several tokens and some are already active,
/// returns only the active ones: the upstream may not have checked the others, which may be forged.
fn tokens_to_record(gate: &AdmissionGate, tokens: &[u64]) -> SmallVec<[u64; 2]> {
    if let [only] = tokens {
        return smallvec![*only];
    }
    let active: SmallVec<_> =
        tokens.iter().copied().filter(|token| gate.is_active(*token)).collect();
    if active.is_empty() { tokens.into() } else { active }
}
