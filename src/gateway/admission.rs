//! The throttle as a request meets it: asked before anything is charged, told when it is answered.

use http::StatusCode;
use smallvec::{SmallVec, smallvec};

use super::{Gateway, activity::ActivityGuard, context::RequestContext, rules::Rules};
use crate::{
    error::GatewayError,
    identity::{Caller, Secret, Subject},
    limit::Admission,
    snapshot::Route,
    throttle::{Admitted, Gate, Newcomer, Turned},
};

impl Gateway {
    /// Who asks, where the throttle wants to know.
    pub(super) fn caller(
        &self,
        route: &Route,
        subject: &Subject<'_>,
    ) -> Result<Option<Caller>, GatewayError> {
        let Some(gate) = self.gate.as_ref().filter(|_| route.throttle) else { return Ok(None) };
        let (k0, k1) = gate.secret();
        Caller::of(subject, Secret(k0, k1)).map(Some).map_err(GatewayError::Ambiguous)
    }

    /// Lets the caller in, or not. Of several tokens, one that is active is enough.
    pub(super) fn admit(&self, context: &mut RequestContext) -> Result<(), GatewayError> {
        let (Some(gate), Some(caller)) = (&self.gate, &context.caller) else { return Ok(()) };
        let counters = &self.shard.throttle;
        let ask = |hash, has_token| gate.admit(hash, has_token, || self.shared.clock.now());
        let admitted = match caller {
            Caller::Address(hash) => ask(*hash, false),
            Caller::Tokens(tokens) => {
                let first = ask(tokens[0], true);
                let others = tokens[1..].iter();
                others.fold(first, |admitted, token| admitted.or_else(|_| ask(*token, true)))
            }
        };
        let turned: Box<Turned> = match admitted {
            Ok(Admitted::Open) => return Ok(()),
            Ok(Admitted::Known) => {
                counters.known.add(1);
                return Ok(());
            }
            Err(turned) => turned,
        };
        let counter = match turned.newcomer {
            Newcomer::Unknown => &counters.unknown,
            Newcomer::Missing => &counters.missing,
            Newcomer::Rejected => &counters.rejected,
        };
        counter.add(1);
        context.admission = Admission::Throttled;
        Err(GatewayError::Throttled(turned))
    }

    /// Records a caller whose tokens the upstream took, now and when the answer has ended.
    pub(super) fn record_activity(
        &self,
        rules: &Rules,
        context: &mut RequestContext,
        status: StatusCode,
    ) {
        let (Some(gate), Some(Caller::Tokens(tokens))) = (&self.gate, &context.caller) else {
            return;
        };
        let Some(settings) = &rules.snapshot.throttle else { return };
        let status = status.as_u16();
        let good = !settings.forget_status.contains(&status);
        let tokens = if good { to_record(gate, tokens) } else { tokens.as_slice().into() };
        for token in &tokens {
            if gate.remember(*token, status, settings) {
                self.shard.throttle.remembered.add(1);
            }
        }
        if good {
            context.activity = Some(ActivityGuard::new(gate, tokens));
        }
    }
}

/// Of a caller's tokens, those that a good answer makes active. It says of no token which of them the
/// upstream looked at: beside one that is active already, others may be made up.
fn to_record(gate: &Gate, tokens: &[u64]) -> SmallVec<[u64; 2]> {
    if let [only] = tokens {
        return smallvec![*only];
    }
    let active: SmallVec<_> = tokens.iter().copied().filter(|token| gate.knows(*token)).collect();
    if active.is_empty() { tokens.into() } else { active }
}
