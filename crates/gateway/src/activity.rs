//! [`ActivityGuard`]: records a caller as active again for the throttle when its response ends.

use std::rc::Rc;

use smallvec::SmallVec;
use tidegate_throttle::AdmissionGate;

/// The tokens of a caller whose response is being sent. Dropping this, at the end of the response,
/// records them as active again, so that the end of a long response counts as activity.
pub(super) struct ActivityGuard {
    gate: Rc<AdmissionGate>,
    tokens: SmallVec<[u64; 2]>,
}

impl ActivityGuard {
    pub(super) fn new(gate: &Rc<AdmissionGate>, tokens: SmallVec<[u64; 2]>) -> Self {
        Self { gate: Rc::clone(gate), tokens }
    }
}

impl Drop for ActivityGuard {
    fn drop(&mut self) {
        for token in &self.tokens {
            self.gate.record_activity(*token);
        }
    }
}
