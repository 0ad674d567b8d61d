//! The throttle as a request meets it: asked before anything is charged, told when it is answered.

use std::rc::Rc;

use http::StatusCode;

use super::{Gateway, context::RequestContext, rules::Rules};
use crate::{
    error::GatewayError,
    identity::{Caller, Secret, Subject},
    snapshot::Route,
    throttle::{Admitted, Gate, Newcomer},
};

/// A known caller whose answer is on its way: as long as that lasts the caller is active.
pub(super) struct Stay {
    gate: Rc<Gate>,
    token: u64,
}

impl Drop for Stay {
    fn drop(&mut self) {
        self.gate.remain(self.token);
    }
}

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

    /// Lets the caller in, or not.
    pub(super) fn admit(&self, context: &mut RequestContext) -> Result<(), GatewayError> {
        let (Some(gate), Some(caller)) = (&self.gate, context.caller) else { return Ok(()) };
        let counters = &self.shard.throttle;
        match gate.admit(caller.hash, caller.has_token, || self.shared.clock.now()) {
            Ok(Admitted::Open) => Ok(()),
            Ok(Admitted::Known) => {
                counters.known.add(1);
                Ok(())
            }
            Err(turned) => {
                let counter = match turned.newcomer {
                    Newcomer::Unknown => &counters.unknown,
                    Newcomer::Missing => &counters.missing,
                    Newcomer::Rejected => &counters.rejected,
                };
                counter.add(1);
                context.limit = "throttled";
                Err(GatewayError::Throttled(turned))
            }
        }
    }

    /// Remembers a caller whose token the upstream took, now and when the answer has ended.
    pub(super) fn remember(&self, rules: &Rules, context: &mut RequestContext, status: StatusCode) {
        let (Some(gate), Some(caller)) = (&self.gate, context.caller) else { return };
        let Some(settings) = rules.snapshot.throttle.as_ref().filter(|_| caller.has_token) else {
            return;
        };
        let status = status.as_u16();
        if gate.remember(caller.hash, status, settings) {
            self.shard.throttle.remembered.add(1);
        }
        if !settings.forget_status.contains(&status) {
            context.stay = Some(Stay { gate: Rc::clone(gate), token: caller.hash });
        }
    }
}
