//! The part of a tick that writes generations whose payloads in Redis lack bits.

use tidegate_base::time::{Millis, StoreTime};
use tidegate_redis::RedisFailure;

use super::{
    CommitOutcome, FilterStore, FilterSync, PayloadVersion, ReadOutcome, WriteBudget,
    reading::ReadState,
};
use crate::{
    Filter, Geometry,
    payload::{self, PayloadError},
};

/// Maximum number of generations that a tick writes. The bound is low because a payload can be
/// several MB long.
pub(super) const MAX_COMMITS: usize = 4;

/// Age of the current generation in Redis from which a gateway that seldom writes replaces it: a
/// gateway that starts then needs no older logs.
const CURRENT_AGE: Millis = Millis::from_secs(30);

/// Time for which Redis keeps a payload after its generation has expired.
const EXPIRY_MARGIN: Millis = Millis::from_mins(10);

impl FilterSync {
    /// Synchronizes dirty generations.
    pub(super) async fn write_dirty(
        &mut self,
        filter: &Filter,
        store: &mut impl FilterStore,
        now: StoreTime,
        budget: &mut WriteBudget,
    ) -> Result<(), RedisFailure> {
        let live = filter.live_generations();
        for index in self.generations.dirty(live.clone(), MAX_COMMITS) {
            // Until it has ended, one gateway may write for all: the others' new tokens are in its
            // filter.
            let is_skipped = index == *live.end()
                && self.pace.is_reduced()
                && self.is_young(filter, store, index, now).await?;
            if !is_skipped {
                self.sync_generation(filter, store, index, budget).await?;
            }
        }
        Ok(())
    }

    /// True if the payload of a generation was written less than [`CURRENT_AGE`] ago. Does not
    /// fetch it.
    async fn is_young(
        &mut self,
        filter: &Filter,
        store: &mut impl FilterStore,
        index: u64,
        now: StoreTime,
    ) -> Result<bool, RedisFailure> {
        let known = self.generations.entry(index).known;
        let version = match store.read(filter.geometry().minute(index), known, 0).await? {
            ReadOutcome::Unchanged => known,
            ReadOutcome::Unusable(PayloadError::TooLong, version) => version,
            _ => None,
        };
        // A time stamp may be ahead of the clock.
        let is_young = |at: StoreTime| now.since(at).max(at.since(now)) < CURRENT_AGE;
        Ok(version.is_some_and(|version| is_young(version.timestamp)))
    }

    /// Reads a generation, and writes it if it is dirty afterwards.
    pub(super) async fn sync_generation(
        &mut self,
        filter: &Filter,
        store: &mut impl FilterStore,
        index: u64,
        budget: &mut WriteBudget,
    ) -> Result<(), RedisFailure> {
        let found = self.read(filter, store, index).await?;
        let tick = self.tick;
        let state = self.generations.entry(index);
        if !state.dirty
            || state.foreign
            || found == ReadState::TooLarge
            || budget.remaining_commits == 0
            || budget.write_error.is_some()
        {
            return Ok(());
        }
        // If the generation has expired since it was read, no gateway needs it.
        let Some(bits) = filter.export(index) else { return Ok(()) };
        if found == ReadState::Absent && bits.iter().all(|&byte| byte == 0) {
            state.dirty = false;
            return Ok(());
        }
        if payload::is_saturated(&bits) {
            // Other gateways would reject the payload and write their own, in an endless loop.
            state.dirty = false;
            return Ok(());
        }
        let geometry = filter.geometry();
        let payload = payload::encode(geometry, filter.hash_keys(), &bits);
        budget.remaining_commits -= 1;
        state.last_attempt = tick;
        let expected = state.known.map(|version| version.timestamp);
        let minute = geometry.minute(index);
        match store.commit(minute, expected, &payload, expiry(geometry)).await {
            Ok(CommitOutcome::Committed(timestamp)) => {
                self.stats.commits.add(1);
                let state = self.generations.entry(index);
                state.known = Some(PayloadVersion { timestamp, len: payload.len() as u64 });
                (state.dirty, state.logged, state.last_attempt) = (false, false, 0);
                self.pace.count_commit();
            }
            Ok(CommitOutcome::Conflict) => {
                self.stats.conflicts.add(1);
                self.pace.count_conflict();
            }
            // Reads may still succeed.
            Err(RedisFailure::Server) => budget.write_error = Some(RedisFailure::Server),
            Err(failure) => return Err(failure),
        }
        Ok(())
    }
}

/// Time for which Redis keeps a payload after a commit: the time for which its generation is live,
/// and [`EXPIRY_MARGIN`].
fn expiry(geometry: &Geometry) -> Millis {
    let live = geometry.generation_length * (u64::from(geometry.complete_generations) + 1);
    live + EXPIRY_MARGIN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_keeps_a_payload_longer_than_gateways_keep_its_generation() {
        let geometry = Geometry {
            bits: 8,
            growth: 1,
            hashes: 1,
            generation_length: Millis::from_mins(20),
            complete_generations: 30,
        };
        assert_eq!(expiry(&geometry), Millis::from_mins(31 * 20 + 10));
    }
}
