//! Once a second: turn the filters, count who is active, decide whether to throttle. It has a thread of
//! its own: filters are large, and nothing else should wait for them.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{Status, Throttle, estimate, filter::GRACE, geometry::Millis, mode::Watch};
use crate::clock::Clock;

impl Throttle {
    /// Ticks until `stop` is cancelled.
    pub async fn run(self: Arc<Self>, clock: Clock, stop: CancellationToken) {
        let mut watch = Watch::default();
        loop {
            let now = clock.now();
            self.count(&mut watch, now);
            let next = (now / 1000 + 1) * 1000;
            if stop.run_until_cancelled(clock.reached(next)).await.is_none() {
                return;
            }
        }
    }

    /// Turns the filters to `now` (ms since the epoch, by the filters' clock) and decides by how full
    /// they are.
    fn count(&self, watch: &mut Watch, now: Millis) {
        let (filter, settings) = (self.filter.load_full(), self.settings());
        filter.turn(now);
        let geometry = filter.geometry();
        let estimate = estimate::estimate(geometry, filter.occupied());
        // The oldest generation leaves memory with the next one's beginning.
        let falls_at = (geometry.index(now) + 1) * geometry.generation + GRACE;
        let crowded = watch.tick(now, &estimate, &settings.marks, falls_at);
        let room_at = watch.room_at();
        self.publish(|status| {
            *status = Status { crowded, estimate, room_at, ticks: status.ticks + 1, ..*status };
        });
    }
}
