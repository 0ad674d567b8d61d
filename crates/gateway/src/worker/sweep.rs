//! A worker's periodic work, ten times a second: the coarse clock, deadlines, and the gateway's
//! ticks.

use std::{
    rc::{Rc, Weak},
    time::Duration,
};

use tidegate_base::time::Millis;
use tidegate_transport::connection_state::{COARSE_TICK, ClientTimeouts, CloseMode};

use super::Worker;
use crate::connection::Sweepable;

/// Interval between two sweeps, which check deadlines and set the coarse clock.
const SWEEP_INTERVAL: Duration = COARSE_TICK.as_duration();
/// Time after which an idle connection is closed while others wait to be accepted.
const IDLE_TIMEOUT_WHEN_FULL: Millis = Millis::from_secs(5);

impl Worker {
    /// Registers a connection for the sweep and the drain.
    pub(super) fn register<C: Sweepable + 'static>(&self, connection: &Rc<C>) {
        connection.request_close(match self.close_mode.get() {
            // The connection is new, so its first request may be on its way.
            CloseMode::WhenIdle => CloseMode::AfterRequest,
            mode => mode,
        });
        let connection: Weak<C> = Rc::downgrade(connection);
        self.connections.borrow_mut().push(connection);
    }

    pub(super) fn close_connections(&self, mode: CloseMode) {
        self.close_mode.set(mode);
        let connections = self.connections.borrow();
        connections.iter().filter_map(Weak::upgrade).for_each(|open| open.request_close(mode));
    }

    /// Sets the coarse clock, expires deadlines and ticks the gateway, every [`SWEEP_INTERVAL`].
    pub(super) async fn sweep(self: Rc<Self>) {
        let clock = &self.shared.clock;
        let mut ticks = clock.interval(SWEEP_INTERVAL);
        for count in 1_u32.. {
            ticks.tick().await;
            let now = clock.uptime().to_coarse();
            self.coarse_clock.set(now);
            self.gateway.metrics().sweeps.add(1);
            let deadlines = self.deadlines();
            self.connections.borrow_mut().retain(|connection| {
                let Some(connection) = connection.upgrade() else { return false };
                connection.sweep(now, &deadlines);
                true
            });
            self.gateway.tick(count);
        }
    }

    /// The timeouts of clients. While no further connection is accepted, idle ones make room.
    fn deadlines(&self) -> ClientTimeouts {
        let http = self.shared.live.snapshot().http;
        let mut timeouts = http.timeouts;
        if self.shared.connection_limit.is_full(http.max_connections) {
            let idle = timeouts.idle.unwrap_or(Millis::MAX);
            timeouts.idle = Some(idle.min(IDLE_TIMEOUT_WHEN_FULL));
        }
        timeouts
    }
}
