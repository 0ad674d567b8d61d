//! The control loop of a throttle: once a second, rotates the filters, synchronizes them, estimates
//! the number of active users and decides whether to throttle. It has its own thread, because
//! operations on whole filters take long.

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

mod resize;
mod room;

use tidegate_base::time::Millis;
use tidegate_redis::RedisFailure;
use tidegate_system::clock::{Clock, StoreTime, Uptime};

use super::{
    ClockOffset, Filter, FilterSharing, Throttle, ThrottleStatus, estimate,
    filter::GRACE,
    growth::GrowthControl,
    live_filters::LiveFilters,
    mode::Hysteresis,
    sync::{FilterStore, FilterSync, next_attempt, next_tick},
    waiting_room::{RedisRoomStore, RoomTicker, desk::SeatDesk},
};

/// Pause between two attempts to load the shared filters.
const LOAD_RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Timeout of one load or synchronization.
const SYNC_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval between two rotations during a synchronization.
const ROTATE_INTERVAL: Duration = Duration::from_secs(1);

impl Throttle {
    /// Runs the control loop until `stop` is cancelled. `store` holds the shared filters; with
    /// `None`, the filters are not shared.
    pub async fn run<S: FilterStore>(
        self: Arc<Self>,
        store: Option<S>,
        clock: Clock,
        stop: CancellationToken,
    ) {
        let sharing = if store.is_some() { FilterSharing::Shared } else { FilterSharing::Local };
        let ticker = Ticker::new(&self, &clock, sharing);
        let desk = self.room.clone().map(|room| {
            let store = room.take_store();
            SeatDesk::new(room, store)
        });
        let serving = async move {
            if let Some(desk) = desk {
                desk.serve().await;
            }
        };
        tokio::join!(ticker.run(store, stop.clone()), stop.run_until_cancelled(serving));
    }
}

/// The state of the control loop.
pub(super) struct Ticker {
    throttle: Arc<Throttle>,
    clock: Clock,
    sharing: FilterSharing,
    hysteresis: Hysteresis,
    growth: GrowthControl,
    /// The number of the tick at which the filter of the previous size is dropped.
    drop_before_at: Option<u64>,
    sync: FilterSync,
    /// The waiting room, if there is one.
    room: Option<RoomTicker<RedisRoomStore>>,
    /// Redis' clock minus this machine's; `None` until Redis was reached.
    clock_offset: Option<ClockOffset>,
    /// The last reading of this machine's clock, and the time of that reading by [`Clock::uptime`].
    last_reading: Option<(StoreTime, Uptime)>,
    /// Generations up to this one may lack recorded tokens.
    incomplete_until: Option<u64>,
}

impl Ticker {
    pub(super) fn new(throttle: &Arc<Throttle>, clock: &Clock, sharing: FilterSharing) -> Self {
        let sync = FilterSync::new(Arc::clone(&throttle.stats));
        Self {
            throttle: Arc::clone(throttle),
            clock: clock.clone(),
            sharing,
            hysteresis: Hysteresis::default(),
            growth: GrowthControl::default(),
            drop_before_at: None,
            sync,
            room: throttle
                .room
                .as_ref()
                .map(|room| RoomTicker::new(Arc::clone(room), room.take_store())),
            clock_offset: None,
            last_reading: None,
            incomplete_until: None,
        }
    }

    /// Ticks once a second, or twice while Redis is lost, until `stop` is cancelled.
    async fn run<S: FilterStore>(mut self, mut store: Option<S>, stop: CancellationToken) {
        loop {
            let started = self.clock.store_time();
            if stop.run_until_cancelled(self.tick(store.as_mut())).await.is_none() {
                return;
            }
            let waited = if self.throttle.status().loaded {
                let next = if self.sync.has_lost_store() {
                    next_attempt(started)
                } else {
                    next_tick(started, getrandom::u32().unwrap_or_default())
                };
                stop.run_until_cancelled(self.clock.sleep_until_wall_clock(next)).await
            } else {
                stop.run_until_cancelled(self.clock.sleep(LOAD_RETRY_INTERVAL)).await
            };
            if waited.is_none() {
                return;
            }
        }
    }

    /// Ticks once. Without a `store` and without growth of the filters, it waits for nothing.
    pub(super) async fn tick<S: FilterStore>(&mut self, store: Option<&mut S>) {
        let started = self.clock.store_time();
        self.detect_clock_step();
        self.rotate();
        self.finish_resize().await;
        self.sync.set_max_growth(self.throttle.settings().max_growth());
        if let Some(store) = store {
            let throttle = Arc::clone(&self.throttle);
            let clock = self.clock.clone();
            let clock_offset = self.clock_offset.unwrap_or_default();
            let synchronizing = async {
                if throttle.status().loaded {
                    // A slow Redis must not delay rotation.
                    tokio::select! {
                        outcome = self.synchronize(store) => outcome,
                        () = rotate_continually(&throttle, &clock, clock_offset) => Ok(()),
                    }
                } else {
                    self.load(store).await
                }
            };
            // Cancelling loses nothing, and the filters must be rotated in time.
            let outcome = clock.timeout(SYNC_TIMEOUT, synchronizing).await;
            let outcome = outcome.unwrap_or(Err(RedisFailure::Timeout));
            // `FilterSync` has counted and logged the failure; unwritten generations stay dirty.
            if outcome.is_ok() {
                self.rotate();
            }
        }
        self.tick_room().await;
        let fills = self.filter().fills(self.filter().geometry().growth);
        self.publish_status(&fills, started);
        self.adapt_size(&fills).await;
    }

    /// Resizes the filters if their fill or a payload in Redis needs it. `fills` are of the current
    /// filter.
    async fn adapt_size(&mut self, fills: &[f64]) {
        if self.drop_before_at.is_some() {
            return;
        }
        let (filter, settings) = (self.filter(), self.throttle.settings());
        let own = self.growth.wanted(&filter, fills, settings.max_growth(), self.now());
        let Some(growth) = self.sync.wanted_growth().max(own) else { return };
        self.resize(growth).await;
        self.growth.set_resized(fills.last().copied().unwrap_or(0.0), self.now());
    }

    fn filter(&self) -> Arc<Filter> {
        Arc::clone(&self.throttle.filter.load().current)
    }

    fn rotate(&self) {
        self.throttle.filter.load().rotate(self.now());
    }

    /// The time by the filters' clock.
    fn now(&self) -> StoreTime {
        self.clock_offset.unwrap_or_default().apply(self.clock.store_time())
    }

    /// Exchanges filters with the other gateways once.
    async fn synchronize<S: FilterStore>(&mut self, store: &mut S) -> Result<(), RedisFailure> {
        let report = self.sync.tick(&self.filter(), store).await?;
        self.set_clock_offset(report.clock_offset);
        Ok(())
    }

    /// Loads the filters of the other gateways, before any request is denied.
    async fn load<S: FilterStore>(&mut self, store: &mut S) -> Result<(), RedisFailure> {
        self.clock_offset = Some(store.time().await?.clock_offset);
        if *self.filter().live_generations().end() > self.filter().geometry().index(self.now()) {
            self.replace_filter();
        }
        self.rotate();
        self.sync.load(&self.filter(), store).await?;
        if !self.sync.is_loaded() {
            return Ok(());
        }
        let tokens = self.estimate().tokens;
        self.hysteresis.prime();
        tracing::info!(tokens, "throttle filters loaded");
        Ok(())
    }

    /// Adopts Redis' clock. A jump may drop active users too early, so denials are suspended until
    /// the filters are complete again.
    fn set_clock_offset(&mut self, clock_offset: ClockOffset) {
        let before = self.clock_offset.replace(clock_offset).unwrap_or(clock_offset);
        let step = clock_offset.minus(before);
        if step.length() > self.filter().geometry().generation_length {
            tracing::warn!(
                by_ms = step.as_ms(),
                "clock step detected: Redis' clock or this machine's was set"
            );
            self.suspend_denials();
        }
    }

    /// Detects that this machine's clock was set. With Redis, only the offset changes; without
    /// Redis, the filters follow the clock and may drop active users too early.
    fn detect_clock_step(&mut self) {
        // Tests step a manual clock on purpose.
        if self.clock.manual_now().is_some() {
            return;
        }
        let (now, uptime) = (self.clock.store_time(), self.clock.uptime());
        let Some((then, since)) = self.last_reading.replace((now, uptime)) else { return };
        let passed = Millis::from_duration(uptime.saturating_sub(since));
        self.apply_clock_step(ClockOffset::between(now, then + passed));
    }

    /// Handles a step of this machine's clock: the clock minus itself before it was set.
    fn apply_clock_step(&mut self, step: ClockOffset) {
        if step.length() <= self.filter().geometry().generation_length {
            return;
        }
        tracing::warn!(by_ms = step.as_ms(), "clock step detected: this machine's clock was set");
        match self.sharing {
            FilterSharing::Shared => {
                self.clock_offset = self.clock_offset.map(|clock_offset| clock_offset.minus(step));
            }
            FilterSharing::Local => self.suspend_denials(),
        }
    }

    /// Suspends denials until every token that may have been dropped too early would have expired.
    /// Call it before the filters are rotated: lookups in between would deny active users.
    fn suspend_denials(&mut self) {
        let filter = self.filter();
        // Filters that are ahead of the clock stay ahead.
        let last = filter.geometry().index(self.now()).max(*filter.live_generations().end());
        self.incomplete_until = Some(last);
        self.throttle.publish(|status| status.complete = false);
    }

    /// Replaces a filter that is ahead of Redis' time with an empty one, because a filter cannot
    /// rotate back. If tokens were recorded in the old one, denials are suspended until they would
    /// have expired.
    fn replace_filter(&mut self) {
        let old = self.filter();
        let new = LiveFilters::new(Filter::new(*old.geometry(), *old.hash_keys(), self.now()));
        let last = new.generation();
        self.throttle.filter.store(Arc::new(new));
        self.drop_before_at = None;
        if old.live_generations().any(|index| old.take_changed(index)) {
            self.incomplete_until = Some(last);
        }
        self.sync = FilterSync::new(Arc::clone(&self.throttle.stats));
    }

    fn estimate(&self) -> estimate::Estimate {
        let filter = self.filter();
        estimate::estimate(filter.geometry(), filter.occupied())
    }

    /// Estimates the number of active users, decides whether to throttle, and publishes both, for
    /// the tick that began at `started`.
    fn publish_status(&mut self, fills: &[f64], started: StoreTime) {
        let (filter, estimate, now) = (self.filter(), self.estimate(), self.now());
        let geometry = filter.geometry();
        // The oldest generation expires `GRACE` after the next one starts.
        let next_expiry = geometry.start_of(geometry.index(now) + 1) + GRACE;
        let watermarks = self.throttle.settings().watermarks;
        let demand = self.with_room(&estimate);
        let over_threshold = self.hysteresis.tick(now, &demand, &watermarks, next_expiry)
            || self.is_demanded_elsewhere();
        let retry_at = self.hysteresis.retry_at();
        let is_local = self.sharing == FilterSharing::Local;
        let loaded = is_local || (self.sync.is_loaded() && self.is_room_synced());
        let complete = (is_local || self.sync.is_complete(&filter))
            && self.incomplete_until.is_none_or(|last| last < *filter.live_generations().start());
        let clock_offset = self.clock_offset.unwrap_or_default();
        let false_positive = estimate::false_positive(geometry, fills);
        let times = false_positive / self.throttle.settings().sizing.false_positive;
        let memory_bytes = self.throttle.filter.load().bytes();
        self.throttle.publish(|status| {
            let (mode, ticks) = (status.mode, status.ticks + 1);
            let capacity = status.capacity.next(times);
            *status = ThrottleStatus {
                mode,
                over_threshold,
                estimate,
                loaded,
                complete,
                retry_at,
                clock_offset,
                ticks,
                updated_at: started,
                false_positive,
                capacity,
                memory_bytes,
            };
        });
    }
}

/// Rotates the filters periodically; never returns.
async fn rotate_continually(throttle: &Throttle, clock: &Clock, clock_offset: ClockOffset) {
    loop {
        clock.sleep(ROTATE_INTERVAL).await;
        throttle.filter.load().rotate(clock_offset.apply(clock.store_time()));
    }
}

#[cfg(test)]
mod tests;
