//! The part of a tick that reads generations and merges their payloads.

use std::borrow::Cow;

use tidegate_redis::RedisFailure;

use super::{
    FilterStore, FilterSync, PayloadVersion, ReadOutcome, WriteBudget, generations::GenerationState,
};
use crate::{
    Filter, Geometry,
    payload::{self, PayloadError},
};

/// Number of generations that a tick reads after a failure: a gateway catches up slowly.
pub(super) const CATCH_UP_READS: usize = 3;

/// Minimum time of a pass over the generations, in ticks.
const MIN_PASS: u64 = 30;

/// The result of a read from Redis.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ReadState {
    Absent,
    Present,
    /// A payload that can be merged only after the filter has grown.
    TooLarge,
}

impl FilterSync {
    /// Reads generations round-robin: soon after a failure, and if many gateways write, only the
    /// ones that most have written.
    pub(super) async fn read_others(
        &mut self,
        filter: &Filter,
        store: &mut impl FilterStore,
        budget: &mut WriteBudget,
    ) -> Result<(), RedisFailure> {
        let live = filter.live_generations();
        let selected = if self.unread_generations > 0 {
            self.generations.round_robin(live, CATCH_UP_READS)
        } else {
            let unsettled = if self.pace.is_reduced() { settling(filter.geometry()) } else { 0 };
            let range = *live.start()..=live.end().saturating_sub(unsettled);
            let pause = MIN_PASS / (range.clone().count() as u64).max(1);
            if !self.tick.is_multiple_of(pause.max(1)) {
                return Ok(());
            }
            self.generations.round_robin(range, 1)
        };
        for index in selected {
            if self.pace.is_due(self.tick) {
                self.sync_generation(filter, store, index, budget).await?;
            } else {
                self.read(filter, store, index).await?;
            }
            self.unread_generations = self.unread_generations.saturating_sub(1);
        }
        Ok(())
    }

    /// Merges the payload of a generation.
    pub(super) async fn read(
        &mut self,
        filter: &Filter,
        store: &mut impl FilterStore,
        index: u64,
    ) -> Result<ReadState, RedisFailure> {
        let geometry = filter.geometry();
        let (minute, max_len) = (geometry.minute(index), payload::max_len(geometry));
        let GenerationState { known, dirty, logged, .. } = *self.generations.entry(index);
        // The known version may lack tokens of the logs, if their gateway failed before it wrote
        // them.
        let is_certain = dirty || !logged;
        match store.read(minute, known.filter(|_| is_certain), max_len).await? {
            ReadOutcome::Unchanged => {}
            ReadOutcome::Absent => {
                if known.is_some() {
                    // The payload was evicted or Redis was flushed, so others may be gone as well.
                    self.unread_generations = filter.live_generations().count();
                }
                let state = self.generations.entry(index);
                state.dirty |= known.is_some() || logged;
                (state.known, state.foreign) = (None, false);
                return Ok(ReadState::Absent);
            }
            ReadOutcome::Unusable(error, version) => self.reject(index, error, version),
            ReadOutcome::Value(version, payload) => {
                match payload::decode(geometry, filter.hash_keys(), &payload) {
                    Err(error) => self.reject(index, error, Some(version)),
                    Ok(bits) => return Ok(self.merge(filter, index, version, &bits)),
                }
            }
        }
        Ok(ReadState::Present)
    }

    /// Merges the bits of a payload, converted to the size of the filter, unless the filter must
    /// grow first.
    fn merge(
        &mut self,
        filter: &Filter,
        index: u64,
        version: PayloadVersion,
        bits: &[u8],
    ) -> ReadState {
        let geometry = filter.geometry();
        let growth = (bits.len() * 8 / geometry.configured_bits()) as u32;
        let bits = if growth == geometry.growth {
            Cow::Borrowed(bits)
        } else {
            Cow::Owned(payload::resize(bits, geometry.bits / 8))
        };
        let allowed = growth.min(self.max_growth);
        if allowed > geometry.growth && !payload::is_sparse(&bits) {
            self.wanted_growth = self.wanted_growth.max(Some(allowed));
            self.generations.entry(index).load_failed |= !self.loaded;
            return ReadState::TooLarge;
        }
        if let Some(merged) = filter.merge(index, &bits) {
            let state = self.generations.entry(index);
            state.known = Some(version);
            state.dirty = merged.remote_missing > 0;
            (state.logged, state.foreign, state.load_failed) = (false, false, false);
        }
        ReadState::Present
    }

    /// Handles an unusable payload. It is replaced with this gateway's bits, even if there are
    /// none: other gateways then read the new version and add their bits. Only payloads of gateways
    /// with another configuration are not replaced.
    fn reject(&mut self, index: u64, error: PayloadError, version: Option<PayloadVersion>) {
        self.stats.count_unusable(error);
        let is_loading = !self.loaded;
        let state = self.generations.entry(index);
        let foreign = matches!(error, PayloadError::Geometry | PayloadError::Seed);
        // If a foreign payload has replaced a usable one, Redis has lost the usable one's bits.
        state.dirty |= !foreign || (state.known.is_some() && !state.foreign);
        (state.known, state.foreign, state.logged) = (version, foreign, false);
        state.load_failed |= is_loading;
    }
}

/// Number of generations after which most gateways have written one, of the gateways that remember
/// it.
fn settling(geometry: &Geometry) -> u64 {
    1 + u64::from(geometry.complete_generations) / 5
}
