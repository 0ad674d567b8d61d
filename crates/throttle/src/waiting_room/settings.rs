//! The settings of the waiting room, and the times that follow from them.

use tidegate_base::time::Millis;

/// Time after which a token is known to be active at all gateways.
pub(super) const KNOWN_ELSEWHERE: Millis = Millis::from_secs(5);

/// Time until all gateways know whose turn it is, with some reserve.
const LEARNS_OF_TURN: Millis = Millis::from_secs(3);

/// The longest time until a user asks again that found no place free when it was its turn.
pub(super) const TURN_RETRY: Millis = Millis::from_secs(3);

/// By how much earlier than it arrives a caller joins the queue, in lifetimes of a ticket. It
/// overtakes the callers that arrived within that time before it, and no others, so all of them are
/// admitted in the end.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct HeadStart(pub u64);

/// The compiled `throttle.waiting_room` section of the configuration, as far as the room itself
/// needs it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RoomSettings {
    /// Time after which a ticket expires if its holder does not ask.
    pub ticket_ttl: Millis,
}

impl RoomSettings {
    /// The length of an epoch, in whole seconds: a ticket that asks in each of them is valid for
    /// `ticket_ttl`.
    pub fn epoch_length(self) -> Millis {
        whole_seconds(self.ticket_ttl / 2).max(Millis::from_secs(1))
    }

    /// The length of a head start, in whole seconds.
    pub fn length_of(self, head_start: HeadStart) -> Millis {
        whole_seconds(self.ticket_ttl * head_start.0)
    }

    /// The longest time between two requests of a client that does as it is asked, in whole
    /// seconds.
    fn max_retry(self) -> Millis {
        whole_seconds(self.ticket_ttl / 3).max(Millis::from_secs(1))
    }

    /// The longest time until a user asks whose turn has come: gateways learn of it with their next
    /// exchanges.
    pub(super) fn longest_pause(self) -> Millis {
        self.max_retry() + LEARNS_OF_TURN
    }

    /// Time for which no place is given out after an outage: the tickets of users who left have
    /// expired, and the users that others admitted are counted as active everywhere.
    pub fn hold(self) -> Millis {
        self.ticket_ttl + KNOWN_ELSEWHERE
    }

    /// The time until a caller is to ask again: shorter near the front of the queue, and different
    /// for different callers.
    pub(super) fn retry_after(self, holder: u64, earliest_wait: Millis) -> Millis {
        let longest = self.max_retry();
        retry_within(holder, (earliest_wait / 4).clamp(TURN_RETRY.min(longest), longest))
    }
}

/// The time until a caller asks again that found no place free when it was its turn, in whole
/// seconds.
pub(super) fn retry_at_turn(holder: u64) -> Millis {
    retry_within(holder, TURN_RETRY)
}

/// A time in whole seconds, at most `longest` and at least two thirds of it, that differs between
/// callers.
fn retry_within(holder: u64, longest: Millis) -> Millis {
    let longest = longest.as_whole_secs();
    Millis::from_secs(longest - holder % (longest / 3 + 1))
}

/// `length`, rounded down to whole seconds.
fn whole_seconds(length: Millis) -> Millis {
    Millis::from_secs(length.as_whole_secs())
}
