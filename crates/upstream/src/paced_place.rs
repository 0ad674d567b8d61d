//! [`PacedPlace`]: a place at a target that is held while the gateway waits for the client.

use std::{net::IpAddr, sync::Arc};

use tidegate_system::clock::CoarseTime;

use super::{
    EndpointSet, EndpointState,
    client_holdings::Holding,
    pace::{EXCESS_WINDOW, Pace, WINDOW},
};

/// A client's claim to a place.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlaceClaim {
    /// The client's masked address.
    pub(super) client: IpAddr,
    /// True if the client decides how long the place is held: its body is incomplete, or it asks
    /// for a tunnel.
    pub(super) is_paced: bool,
}

/// The reason why a request gets no place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum NoPlace {
    /// The target has no room.
    Full,
    /// The client holds its whole share of the target's places in [`PacedPlace`]s.
    ShareFull,
}

/// The client whose request holds a place, and the endpoints with their bounds.
#[derive(Debug)]
pub(super) struct PlaceHolder {
    /// Counts the place as the client's.
    pub(super) held: Holding,
    pub(super) set: Arc<EndpointSet>,
    /// Counts the place as held at the client's pace.
    pub(super) paced: Option<Box<PacedPlace>>,
}

/// A place (one of a target's bounded requests in flight) that a client holds at its own pace: the
/// gateway waits for the client to send its body or to read the response. The place counts towards
/// the client's share. A client that is too slow loses it; beyond the share, the client also loses
/// it to requests that wait for room.
#[derive(Debug)]
pub(super) struct PacedPlace {
    counted: Holding,
    endpoint: Arc<EndpointState>,
    set: Arc<EndpointSet>,
    pace: Pace,
    /// The time of the last check: shares change slowly, and are behind a lock.
    checked_at: CoarseTime,
}

impl PacedPlace {
    /// The place counted by `counted`, at `endpoint` of `set`, from `now` on.
    pub(super) fn new(
        counted: Holding,
        endpoint: &Arc<EndpointState>,
        set: &Arc<EndpointSet>,
        now: CoarseTime,
    ) -> Self {
        let (endpoint, set) = (Arc::clone(endpoint), Arc::clone(set));
        Self { counted, endpoint, set, pace: Pace::default(), checked_at: now }
    }

    /// Counts bytes that the client has sent or read.
    pub(super) fn add(&mut self, bytes: usize) {
        self.pace.add(bytes);
    }

    /// Records that the gateway no longer waits for the client.
    pub(super) fn stop(&mut self, now: CoarseTime) {
        self.pace.stop(now);
    }

    /// Records that the gateway waits for the client. True if the client loses the place.
    pub(super) fn wait(&mut self, now: CoarseTime) -> bool {
        self.pace.wait(now);
        if now == std::mem::replace(&mut self.checked_at, now) {
            return false;
        }
        let (endpoint, bounds) = (&self.endpoint, &self.set.servers.bounds);
        let min_rate = bounds.pacing.min_rate;
        let is_excess = endpoint.paced().of(self.counted.client) > endpoint.client_share(bounds);
        let is_lost = if is_excess {
            endpoint.is_full(bounds) && endpoint.has_waiting()
                || self.pace.is_slow(now, min_rate.max(1), EXCESS_WINDOW)
        } else {
            self.pace.is_slow(now, min_rate, WINDOW)
        };
        if is_lost {
            endpoint.count_lost_place();
        }
        is_lost
    }
}
