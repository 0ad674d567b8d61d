//! The waiting room in the control loop of a throttle.

use super::{Ticker, estimate::Estimate};
use crate::{
    mode::ThrottleMode,
    waiting_room::{RoomTick, RoomView, state::Standing},
};

impl Ticker {
    /// Exchanges with the waiting room, if there is one.
    pub(super) async fn tick_room(&mut self) {
        let (estimate, now) = (self.estimate(), self.now());
        let (status, settings) = (self.throttle.status(), self.throttle.settings());
        let is_over_threshold = self.hysteresis.is_over_threshold();
        let Some(room) = &mut self.room else { return };
        let is_known = status.loaded && status.complete;
        let standing = match status.mode {
            _ if !is_known => Standing::Silent,
            ThrottleMode::Off => Standing::Silent,
            ThrottleMode::On => Standing::Forced,
            ThrottleMode::Auto if is_over_threshold => Standing::Demanded,
            ThrottleMode::Auto => Standing::Calm,
        };
        let max_active = settings.watermarks.max_active;
        let tokens = if estimate.saturated { max_active } else { estimate.tokens };
        let active = Some(tokens).filter(|_| standing != Standing::Silent);
        let (memory, head_start) = (settings.sizing.memory, settings.head_start);
        let tick = RoomTick { now, standing, active, max_active, memory, head_start };
        let outcome = room.tick(tick).await;
        // `RoomTicker` has counted a failure; the room continues alone.
        if outcome.is_ok_and(|reply| !status.loaded && reply.was_throttling()) {
            self.hysteresis.resume();
        }
    }

    /// The active users, with those who wait or have just been admitted: throttling ends only when
    /// there is a place for each of them.
    pub(super) fn with_room(&self, estimate: &Estimate) -> Estimate {
        let demand = self.room_view(|view| view.waiting() + view.pending());
        Estimate { tokens: estimate.tokens + demand.unwrap_or(0), ..*estimate }
    }

    /// True if another gateway throttles because too many users are active: all gateways of a room
    /// agree.
    pub(super) fn is_demanded_elsewhere(&self) -> bool {
        self.room_view(RoomView::is_demanded).unwrap_or(false)
    }

    /// True without a room.
    pub(super) fn is_room_synced(&self) -> bool {
        self.room_view(RoomView::is_synced).unwrap_or(true)
    }

    fn room_view<T>(&self, read: impl FnOnce(&RoomView) -> T) -> Option<T> {
        self.throttle.room.as_ref().map(|room| read(&room.view()))
    }
}
