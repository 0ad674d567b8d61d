//! Keeps a caller active for the throttle while its answer is on its way.

use std::rc::Rc;

use smallvec::SmallVec;

use crate::throttle::Gate;

/// The tokens of a caller whose answer is on its way: as long as that lasts the caller is active.
pub(super) struct ActivityGuard {
    gate: Rc<Gate>,
    tokens: SmallVec<[u64; 2]>,
}

impl ActivityGuard {
    pub(super) fn new(gate: &Rc<Gate>, tokens: SmallVec<[u64; 2]>) -> Self {
        Self { gate: Rc::clone(gate), tokens }
    }
}

impl Drop for ActivityGuard {
    fn drop(&mut self) {
        for token in &self.tokens {
            self.gate.remain(*token);
        }
    }
}
