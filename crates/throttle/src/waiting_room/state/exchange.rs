//! What a gateway sends to the shared state, and the reply.

use tidegate_base::time::{Millis, StoreTime};

use crate::waiting_room::{
    counts::IntervalCount,
    place::{QueueTime, RoomEpoch, UnixSecond},
};

/// Time for which a gateway's report that it throttles is valid.
pub(super) const REPORT_VALID: Millis = Millis::from_secs(3);

/// What a gateway reports of its throttle.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Standing {
    /// Nothing: it has not loaded its filters, or its throttle is off.
    Silent,
    /// It admits all users, because few are active.
    Calm,
    /// It throttles by the operator's choice.
    Forced,
    /// It throttles, because too many users are active.
    Demanded,
}

/// A gateway's exchange with the shared state.
#[derive(Clone, Debug, PartialEq)]
pub struct RoomCall {
    /// The epoch of `counted`.
    pub epoch: RoomEpoch,
    /// Tickets counted since the last exchange, in the epoch before `epoch` and in `epoch`.
    pub counted: [Vec<IntervalCount>; 2],
    /// What the gateway does.
    pub standing: Standing,
    /// The estimated number of active users; `None` if the gateway does not know it, or its room is
    /// closed.
    pub active: Option<u64>,
    /// The number of users that may be active.
    pub max_active: u64,
    /// The gateway's own frontier, from which a lost state starts again.
    pub frontier: QueueTime,
    /// Time for which no place is given out after an outage.
    pub hold: Millis,
    /// The longest time between two requests of a waiting user.
    pub ask: Millis,
    /// The number of users whose first request is in flight at the gateway.
    pub entering: u64,
    /// The number of requests since the last exchange whose turn it was, and that the closed room
    /// refused.
    pub turned_away: u64,
    /// The longest head start: how far the frontier stays behind while all users are admitted, so
    /// that users with a head start have places of their own in front of the queue.
    pub head_start: Millis,
    /// Number of gateways that divide the places; 1 in the shared state.
    pub share: u64,
}

/// The number of waiting tickets up to a place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ProfilePoint {
    /// The second before which they are.
    pub second: UnixSecond,
    /// The tickets between the frontier and this second.
    pub tickets: u64,
}

/// The reply to a [`RoomCall`].
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RoomReply {
    /// The last admitted place.
    pub frontier: QueueTime,
    /// The base of the distances of the next epoch.
    pub base: UnixSecond,
    /// When a gateway last reported [`Standing::Demanded`].
    pub demanded_at: StoreTime,
    /// When all users were last admitted.
    pub calm_at: StoreTime,
    /// The time of the state.
    pub now: StoreTime,
    /// Number of exchanges in the last step: about the number of gateways.
    pub gateways: u64,
    /// Tickets that the frontier has passed since the state began.
    pub turns: u64,
    /// Users who may not be active yet: they have taken a place lately, or are expected to take a
    /// free one.
    pub pending: u64,
    /// Waiting tickets by place.
    pub profile: Vec<ProfilePoint>,
}

impl RoomReply {
    /// The number of waiting tickets.
    pub fn waiting(&self) -> u64 {
        self.profile.last().map_or(0, |point| point.tickets)
    }

    /// True if a gateway throttles, because too many users are active.
    pub fn is_demanded(&self) -> bool {
        self.demanded_at > StoreTime::ZERO && self.now.since(self.demanded_at) <= REPORT_VALID
    }

    /// True if gateways throttled when the last one of them ended.
    pub fn was_throttling(&self) -> bool {
        self.calm_at < self.demanded_at
    }
}
