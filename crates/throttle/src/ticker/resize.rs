//! Changes the size of the filters without losing a token.
//!
//! The new filter is published together with the old one: from then on workers record in the new
//! one and look up in both. Then the bits are copied. A worker that took the old filter earlier may
//! still be recording in it, so the old one is kept for a further second and copied again before it
//! is dropped.

use std::sync::Arc;

use super::{Ticker, rotate_continually};
use crate::{Filter, live_filters::LiveFilters};

/// Number of positions to copy between two rotations: a few dozen ms.
const COPY_PART: usize = 1 << 24;

/// Number of further ticks for which the old filter is kept. The last of them begins at least 1 s
/// after the resize.
const TICKS_KEPT: u64 = 2;

impl Ticker {
    /// Publishes an empty filter of another size together with the current one, and copies the
    /// bits.
    pub(super) async fn resize(&mut self, growth: u32) {
        let before = self.filter();
        let template = Arc::clone(&before);
        // A large allocation takes long, and the filters must be rotated in time.
        let allocated = tokio::task::spawn_blocking(move || template.resized(growth));
        let clock_offset = self.clock_offset.unwrap_or_default();
        let new = tokio::select! {
            new = allocated => new,
            () = rotate_continually(&self.throttle, &self.clock, clock_offset) => return,
        };
        let Ok(new) = new else { return };
        let [from, to] = [&before, &new].map(|filter| filter.geometry().bytes());
        tracing::info!(from, to, "throttle filters resized, in bytes");
        let live = Arc::new(LiveFilters { current: Arc::new(new), before: Some(before) });
        // Both have the same live generations.
        live.rotate(self.now());
        self.throttle.filter.store(Arc::clone(&live));
        self.copy(&live).await;
        self.drop_before_at = Some(self.throttle.status().ticks + TICKS_KEPT);
    }

    /// Drops the filter of the previous size, once no worker records in it.
    pub(super) async fn finish_resize(&mut self) {
        if self.drop_before_at.is_none_or(|at| self.throttle.status().ticks < at) {
            return;
        }
        self.drop_before_at = None;
        let live = self.throttle.filter.load_full();
        self.copy(&live).await;
        let current = Arc::clone(&live.current);
        self.throttle.filter.store(Arc::new(LiveFilters { current, before: None }));
    }

    async fn copy(&self, live: &LiveFilters) {
        let Some(before) = &live.before else { return };
        let positions = |filter: &Filter| filter.geometry().bits;
        let all = positions(before).max(positions(&live.current));
        live.current.take_marks(before);
        for start in (0..all).step_by(COPY_PART) {
            live.rotate(self.now());
            live.current.absorb(before, start..all.min(start + COPY_PART));
            tokio::task::yield_now().await;
        }
    }
}
