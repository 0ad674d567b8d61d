//! The filter of a throttle, and its predecessor while it is being resized.

use std::sync::Arc;

use tidegate_base::time::StoreTime;

use super::Filter;

/// The filter in which tokens are recorded, and during a change of size also the filter from which
/// the bits are copied. Each token is in at least one of them.
pub(super) struct LiveFilters {
    pub(super) current: Arc<Filter>,
    /// The filter of the previous size, until its bits are copied and no worker records in it.
    pub(super) before: Option<Arc<Filter>>,
}

impl LiveFilters {
    pub(super) fn new(current: Filter) -> Self {
        Self { current: Arc::new(current), before: None }
    }

    /// See [`Filter::contains`].
    pub(super) fn contains(&self, token: u64) -> bool {
        self.current.contains(token)
            || self.before.as_ref().is_some_and(|before| before.contains(token))
    }

    /// See [`Filter::record`].
    pub(super) fn record(&self, token: u64) -> bool {
        self.current.record(token)
    }

    /// The index of the current generation.
    pub(super) fn generation(&self) -> u64 {
        *self.current.live_generations().end()
    }

    /// Rotates both filters; see [`Filter::rotate`].
    pub(super) fn rotate(&self, now: StoreTime) {
        self.current.rotate(now);
        if let Some(before) = &self.before {
            before.rotate(now);
        }
    }

    /// The memory of both, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        let before = self.before.as_ref().map_or(0, |before| before.geometry().bytes());
        self.current.geometry().bytes() + before
    }
}
