//! Bounds the memory of compression.

use std::{cell::Cell, rc::Rc};

/// Most bodies that a worker compresses at once. Further ones are sent as they are.
const MAX_AT_ONCE: usize = 256;

/// The bodies that a worker compresses.
#[derive(Default)]
pub struct Compressions(Rc<Cell<usize>>);

/// A body that is being compressed.
pub struct CompressionPermit(Rc<Cell<usize>>);

impl Compressions {
    /// Begins with one more body; `None` if there are too many.
    pub fn begin(&self) -> Option<CompressionPermit> {
        let count = self.0.get();
        (count < MAX_AT_ONCE).then(|| {
            self.0.set(count + 1);
            CompressionPermit(Rc::clone(&self.0))
        })
    }
}

impl Drop for CompressionPermit {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}
