//! Random ids of traces and spans.

use std::{cell::Cell, sync::LazyLock};

use ahash::RandomState;

use super::SpanContext;

/// Seeded by the operating system's random numbers, as each [`RandomState`] is.
static CHILDREN: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Makes the ids of one worker: keyed hashes of consecutive numbers.
#[derive(Debug, Default)]
pub struct IdSource {
    random: RandomState,
    next: Cell<u64>,
}

impl IdSource {
    /// The id of a span.
    pub fn span_id(&self) -> u64 {
        let number = self.next.get();
        self.next.set(number.wrapping_add(1));
        self.random.hash_one(number).max(1)
    }

    /// The ids of a new trace and of its first span.
    pub fn context(&self) -> SpanContext {
        let trace_id = u128::from(self.span_id()) << 64 | u128::from(self.span_id());
        SpanContext { trace_id, span_id: self.span_id() }
    }
}

/// The id of the child with this number.
pub(super) fn child_id(parent: SpanContext, number: u64) -> u64 {
    CHILDREN.hash_one((parent.trace_id, parent.span_id, number)).max(1)
}

#[cfg(test)]
mod tests {
    use hashbrown::HashSet;

    use super::*;

    #[test]
    fn ids_are_unique() {
        let (one, other) = (IdSource::default(), IdSource::default());
        let mut ids = HashSet::new();
        for _ in 0..1000 {
            let contexts = [one.context(), other.context()];
            for context in contexts {
                ids.insert(context.trace_id);
                ids.insert(context.span_id.into());
                ids.extend((0..2).map(|number| u128::from(child_id(context, number))));
            }
        }
        assert_eq!(ids.len(), 8000);
    }
}
