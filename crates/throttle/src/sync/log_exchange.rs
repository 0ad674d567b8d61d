//! The part of a tick that exchanges new tokens: reads the logs, then appends to them.

use tidegate_base::time::StoreTime;
use tidegate_redis::RedisFailure;

use super::{
    FilterSync, WriteBudget,
    filter_store::{AppendOutcome, FilterStore},
    token_log::{LogId, Unsent, group, max_len, max_log_len},
};
use crate::{
    Filter,
    geometry::{MINUTE, UnixMinute},
};

impl FilterSync {
    /// Learns the new tokens of other gateways, then sends those of this one.
    pub(super) async fn exchange_tokens(
        &mut self,
        filter: &Filter,
        store: &mut impl FilterStore,
        now: StoreTime,
        budget: &mut WriteBudget,
    ) -> Result<(), RedisFailure> {
        let geometry = filter.geometry();
        let recent = recent_generations(filter);
        for generation in recent {
            let tokens = filter.take_newcomers(generation).into_iter();
            let unsent = tokens.map(|token| Unsent { generation, token });
            self.log.push(unsent, 2 * geometry.max_newcomers());
        }
        self.log.drop_before(recent[0]);
        self.receive_tokens(filter, store, now).await?;
        for generation in recent {
            let log = log_id(filter, generation, UnixMinute::of(now));
            let tokens = self.log.unsent(generation, max_len(geometry));
            if tokens.is_empty() || self.log.is_full(log) {
                continue;
            }
            match store.append_log(log, &tokens, max_log_len(geometry)).await {
                Ok(AppendOutcome::Appended) => self.log.set_sent(&tokens),
                Ok(AppendOutcome::Full) => self.log.set_full(log),
                // Reads may still succeed.
                Err(RedisFailure::Server) => budget.write_error = Some(RedisFailure::Server),
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    /// Learns the new tokens of other gateways: all that are kept, if this gateway starts or was
    /// away, else those of about a second.
    pub(super) async fn receive_tokens(
        &mut self,
        filter: &Filter,
        store: &mut impl FilterStore,
        now: StoreTime,
    ) -> Result<(), RedisFailure> {
        let is_behind = !self.loaded || self.has_unread_generations();
        let geometry = filter.geometry();
        let most = if is_behind { max_log_len(geometry) } else { max_len(geometry) };
        let minute = UnixMinute::of(now);
        let recent = recent_generations(filter);
        let logs = recent.into_iter().flat_map(|generation| {
            [minute.before(MINUTE), minute].map(|sent| log_id(filter, generation, sent))
        });
        let offsets = self.log.follow(logs);
        let parts = store.read_logs(&offsets, most).await?;
        let generations = recent.into_iter().flat_map(|generation| [generation; 2]);
        for (at, (generation, part)) in generations.zip(&parts).enumerate() {
            let tokens = self.log.receive(at, generation, part, most);
            if filter.learn(generation, &tokens) {
                self.generations.entry(generation).logged = true;
            }
        }
        Ok(())
    }
}

/// The generations whose logs are exchanged: a token of the previous one may have been sent after
/// its end.
fn recent_generations(filter: &Filter) -> [u64; 2] {
    let current = *filter.live_generations().end();
    [current.saturating_sub(1), current]
}

/// The log of a generation for the tokens that are sent in the minute `sent`.
fn log_id(filter: &Filter, generation: u64, sent: UnixMinute) -> LogId {
    let geometry = filter.geometry();
    let group = group(geometry, filter.hash_keys());
    LogId { minute: geometry.minute(generation), sent, group }
}

#[cfg(test)]
mod tests;
