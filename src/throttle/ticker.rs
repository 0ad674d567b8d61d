//! Once a second: turn the filters, exchange them with the others, count who is active, decide whether
//! to throttle. It has a thread of its own: filters are large, and nothing else should wait for them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio_util::sync::CancellationToken;

use super::{
    Filter, Status, Throttle, estimate,
    filter::GRACE,
    mode::Watch,
    sync::{Exchange, Sync, next_tick},
};
use crate::{
    clock::{self, Clock},
    store::Failure,
};

/// How long a gateway that is not loaded waits before it tries again.
const RETRY: Duration = Duration::from_millis(500);

/// How long one exchange may take.
const EXCHANGE: Duration = Duration::from_secs(10);

/// How often the filters are turned while an exchange lasts.
const TURN: Duration = Duration::from_secs(1);

impl Throttle {
    /// Ticks until `stop` is cancelled. `exchange` reaches the other gateways; none: there are none.
    pub async fn run<E: Exchange>(
        self: Arc<Self>,
        mut exchange: Option<E>,
        clock: Clock,
        stop: CancellationToken,
    ) {
        let mut ticker = Ticker::new(&self, &clock);
        loop {
            let began = clock.now();
            let ticked = stop.run_until_cancelled(ticker.tick(exchange.as_mut())).await;
            if ticked.is_none() {
                return;
            }
            let waited = if self.status().loaded {
                let dice = getrandom::u32().unwrap_or_default();
                let next = next_tick(began / 1000 + 1, dice);
                stop.run_until_cancelled(clock.reached(next)).await
            } else {
                stop.run_until_cancelled(tokio::time::sleep(RETRY)).await
            };
            if waited.is_none() {
                return;
            }
        }
    }
}

struct Ticker<'a> {
    throttle: &'a Throttle,
    clock: &'a Clock,
    watch: Watch,
    sync: Sync,
    /// By how much Redis' clock is ahead of this machine's, in ms, once that is known.
    ahead: Option<i64>,
    /// What this machine's clock last showed, and when.
    seen: Option<(u64, Instant)>,
    /// Up to this generation, something that was recorded is lost.
    blind_until: Option<u64>,
}

impl<'a> Ticker<'a> {
    fn new(throttle: &'a Throttle, clock: &'a Clock) -> Self {
        let sync = Sync::new(Arc::clone(&throttle.stats));
        Self {
            throttle,
            clock,
            watch: Watch::default(),
            sync,
            ahead: None,
            seen: None,
            blind_until: None,
        }
    }

    async fn tick<E: Exchange>(&mut self, exchange: Option<&mut E>) {
        let shared = exchange.is_some();
        self.mind_steps(shared);
        self.filter().turn(self.now());
        if let Some(exchange) = exchange {
            let (throttle, clock, ahead) = (self.throttle, self.clock, self.ahead.unwrap_or(0));
            let exchanging = async {
                if throttle.status().loaded {
                    // However long Redis takes, a token is recorded in the generation of its time.
                    tokio::select! {
                        exchanged = self.exchange(exchange) => exchanged,
                        () = keep_turning(throttle, clock, ahead) => Ok(()),
                    }
                } else {
                    self.load(exchange).await
                }
            };
            // Cut off, it loses nothing; and the filters must be turned in time.
            let exchanged = tokio::time::timeout(EXCHANGE, exchanging).await;
            let exchanged = exchanged.unwrap_or(Err(Failure::Timeout));
            // The exchange has counted a failure and told of it; what could not be written stays dirty.
            if exchanged.is_ok() {
                self.filter().turn(self.now());
            }
        }
        self.count(shared);
    }

    fn filter(&self) -> Arc<Filter> {
        self.throttle.filter.load_full()
    }

    /// The time that the filters go by, in ms since the epoch.
    fn now(&self) -> u64 {
        self.clock.now().saturating_add_signed(self.ahead.unwrap_or(0))
    }

    /// Tells the others what is known here, and learns what they know.
    async fn exchange<E: Exchange>(&mut self, exchange: &mut E) -> Result<(), Failure> {
        let synced = self.sync.tick(&self.filter(), exchange).await?;
        self.follow(synced.ahead);
        Ok(())
    }

    /// Learns all that the others know, before anything is refused.
    async fn load<E: Exchange>(&mut self, exchange: &mut E) -> Result<(), Failure> {
        self.ahead = Some(exchange.time().await?.ahead);
        if *self.filter().live().end() > self.filter().geometry().index(self.now()) {
            self.begin_anew();
        }
        self.filter().turn(self.now());
        self.sync.load(&self.filter(), exchange).await?;
        let tokens = self.estimate().tokens;
        self.watch.loaded();
        tracing::info!(tokens, "the throttle's filters are loaded");
        Ok(())
    }

    /// Takes over Redis' clock. One that jumps forgets users before their time, so then nobody is
    /// refused until memory is whole again.
    fn follow(&mut self, ahead: i64) {
        let before = self.ahead.replace(ahead).unwrap_or(ahead);
        let generation = self.filter().geometry().generation;
        if before.abs_diff(ahead) > generation {
            tracing::warn!(by_ms = ahead - before, "Redis' clock was set, or this machine's was");
            self.go_blind();
        }
    }

    /// Sees whether this machine's clock was set. What is known of Redis' clock holds all the same;
    /// where there is none, the filters follow, and forget.
    fn mind_steps(&mut self, shared: bool) {
        // A clock that is moved by hand is moved on purpose.
        if self.clock.manual_now().is_some() {
            return;
        }
        let (now, instant) = (self.clock.now(), clock::instant());
        let Some((then, since)) = self.seen.replace((now, instant)) else { return };
        let passed = instant.saturating_duration_since(since).as_millis() as u64;
        self.stepped(now.wrapping_sub(then + passed).cast_signed(), shared);
    }

    /// This machine's clock was set forward by `step` ms, or back.
    fn stepped(&mut self, step: i64, shared: bool) {
        if step.unsigned_abs() <= self.filter().geometry().generation {
            return;
        }
        tracing::warn!(by_ms = step, "this machine's clock was set");
        if shared {
            self.ahead = self.ahead.map(|ahead| ahead - step);
        } else {
            self.go_blind();
        }
    }

    /// Refuses nobody until all that may have been forgotten too early would have been forgotten. Before
    /// the filters are turned: who is looked up in them in between would be put out.
    fn go_blind(&mut self) {
        let filter = self.filter();
        // The filters may be ahead of the time, and then stay there.
        let last = filter.geometry().index(self.now()).max(*filter.live().end());
        self.blind_until = Some(last);
        self.throttle.publish(|status| status.complete = false);
    }

    /// Puts an empty filter in the place of one that is ahead of Redis' time, for a filter cannot turn back.
    /// If something had been recorded in that, nobody is refused until it would have been forgotten.
    fn begin_anew(&mut self) {
        let old = self.filter();
        let new = Arc::new(Filter::new(*old.geometry(), *old.seed(), self.now()));
        self.throttle.filter.store(Arc::clone(&new));
        if old.live().any(|index| old.take_changed(index)) {
            self.blind_until = Some(*new.live().end());
        }
        self.sync = Sync::new(Arc::clone(&self.throttle.stats));
    }

    fn estimate(&self) -> estimate::Estimate {
        let filter = self.filter();
        estimate::estimate(filter.geometry(), filter.occupied())
    }

    /// Counts who is active, and decides by that.
    fn count(&mut self, shared: bool) {
        let (filter, estimate, now) = (self.filter(), self.estimate(), self.now());
        let geometry = filter.geometry();
        // The oldest generation leaves memory with the next one's beginning.
        let falls_at = (geometry.index(now) + 1) * geometry.generation + GRACE;
        let marks = self.throttle.settings().marks;
        let crowded = self.watch.tick(now, &estimate, &marks, falls_at);
        let room_at = self.watch.room_at();
        let loaded = !shared || self.sync.is_loaded();
        let complete = (!shared || self.sync.is_complete(&filter))
            && self.blind_until.is_none_or(|last| last < *filter.live().start());
        let offset = self.ahead.unwrap_or(0);
        self.throttle.publish(|status| {
            let (mode, ticks) = (status.mode, status.ticks + 1);
            *status = Status { mode, crowded, estimate, loaded, complete, room_at, offset, ticks };
        });
    }
}

/// Turns the filters for as long as it is asked to, and never ends.
async fn keep_turning(throttle: &Throttle, clock: &Clock, ahead: i64) {
    loop {
        tokio::time::sleep(TURN).await;
        throttle.filter.load_full().turn(clock.now().saturating_add_signed(ahead));
    }
}

#[cfg(test)]
mod tests;
