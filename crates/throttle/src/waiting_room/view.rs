//! What workers read of the room: the frontier, places and expected waits.

use tidegate_base::time::{Millis, StoreTime};

use super::{
    place::{QueueTime, UnixSecond},
    state::ProfilePoint,
};

/// The longest expected wait: 30 days.
const MAX_WAIT: Millis = Millis::from_mins(30 * 24 * 60);

/// What an expected wait is computed from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WaitBasis {
    /// The places that became free lately.
    Measured,
    /// No place has become free since users wait: the time after which a user that has left is not
    /// active any more, and the usual rate after it.
    Memory,
}

/// The room as of the last exchange.
#[derive(Clone, Debug, PartialEq)]
pub struct RoomView {
    pub(super) frontier: QueueTime,
    /// The waiting tickets by place, in the order of places.
    pub(super) profile: Vec<ProfilePoint>,
    /// Users who are admitted, but may not be active yet.
    pub(super) pending: u64,
    /// Tickets whose turn has come since the shared state began.
    pub(super) turns: u64,
    /// Tickets whose turn comes in a second, on average.
    pub(super) rate: f64,
    /// What the rate is.
    pub(super) basis: WaitBasis,
    /// Time for which a user stays active.
    pub(super) memory: Millis,
    /// True once the shared state was read.
    pub(super) is_synced: bool,
    /// True if it is the state of all gateways, not that of this one alone.
    pub(super) is_shared: bool,
    /// True if a gateway throttles because too many users are active.
    pub(super) is_demanded: bool,
    /// The time of the exchange.
    pub(super) at: StoreTime,
}

impl RoomView {
    pub(super) fn new(now: StoreTime) -> Self {
        Self {
            // All tickets of this second are behind it.
            frontier: QueueTime::of_second(UnixSecond::of(now)),
            profile: Vec::new(),
            pending: 0,
            turns: 0,
            rate: 0.0,
            basis: WaitBasis::Measured,
            memory: Millis::ZERO,
            is_synced: false,
            is_shared: false,
            is_demanded: false,
            at: now,
        }
    }

    /// The last place whose turn has come.
    pub fn frontier(&self) -> QueueTime {
        self.frontier
    }

    /// True if it is the turn of a ticket with this place.
    pub fn is_turn(&self, queued_at: QueueTime) -> bool {
        self.is_synced && queued_at <= self.frontier
    }

    /// The number of waiting tickets, at all gateways.
    pub fn waiting(&self) -> u64 {
        self.profile.last().map_or(0, |point| point.tickets)
    }

    /// Users who may not be active yet: they have taken a place lately, or are expected to take a
    /// free one.
    pub fn pending(&self) -> u64 {
        self.pending
    }

    /// Tickets whose turn has come since the shared state began.
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// True once the shared state was read.
    pub fn is_synced(&self) -> bool {
        self.is_synced
    }

    /// True if a gateway throttles because too many users are active.
    pub fn is_demanded(&self) -> bool {
        self.is_demanded
    }

    /// How long the first of the queue has waited; zero without waiting tickets.
    pub fn lag(&self) -> Millis {
        if self.profile.is_empty() { Millis::ZERO } else { self.at.since(self.frontier.time()) }
    }

    /// The position of a place in the queue, from 1. Within a step of the profile, tickets are
    /// taken for evenly spread.
    pub fn place(&self, queued_at: QueueTime) -> u64 {
        let end = |point: &ProfilePoint| QueueTime::of_second(point.second);
        let next = self.profile.partition_point(|point| end(point) <= queued_at);
        let Some(point) = self.profile.get(next) else { return self.waiting() + 1 };
        let before = next.checked_sub(1).and_then(|index| self.profile.get(index));
        let from = before.map_or(self.frontier, end);
        let ahead = before.map_or(0, |point| point.tickets);
        let width = end(point).distance_from(from).max(1.0);
        let share = queued_at.distance_from(from) / width;
        ahead + (point.tickets.saturating_sub(ahead) as f64 * share).floor() as u64 + 1
    }

    /// The expected wait of a place, in whole seconds, at least one.
    pub fn expected_wait(&self, place: u64) -> Millis {
        let first = match self.basis {
            WaitBasis::Measured => Millis::ZERO,
            WaitBasis::Memory => self.memory,
        };
        wait_of(first.as_secs_f64() + place as f64 / self.rate)
    }

    /// The wait of a place if places become free at the present rate at once, in whole seconds, at
    /// least one: the earliest time at which it is worth asking.
    pub fn earliest_wait(&self, place: u64) -> Millis {
        wait_of(place as f64 / self.rate)
    }

    /// What expected waits are computed from.
    pub fn basis(&self) -> WaitBasis {
        self.basis
    }

    /// The expected wait of a user that arrives now, in whole seconds; zero while no user waits.
    pub fn newcomers_wait(&self) -> Millis {
        match self.waiting() {
            0 => Millis::ZERO,
            waiting => self.expected_wait(waiting + 1),
        }
    }
}

/// A wait in whole seconds, rounded up, from one second to [`MAX_WAIT`].
fn wait_of(seconds: f64) -> Millis {
    Millis::from_secs(seconds.clamp(1.0, MAX_WAIT.as_secs_f64()).ceil() as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: StoreTime = StoreTime::from_unix_ms(1_700_000_100_000);

    fn view(profile: &[(u64, u64)]) -> RoomView {
        let second = |seconds: u64| UnixSecond::from_secs(1_700_000_000 + seconds);
        let points = profile.iter();
        let points =
            points.map(|(end, tickets)| ProfilePoint { second: second(*end), tickets: *tickets });
        RoomView {
            frontier: QueueTime::of_second(second(0)),
            profile: points.collect(),
            rate: 2.0,
            ..RoomView::new(NOW)
        }
    }

    fn at(seconds: u64) -> QueueTime {
        QueueTime::of_second(UnixSecond::from_secs(1_700_000_000 + seconds))
    }

    #[test]
    fn a_place_counts_the_tickets_before_it() {
        let view = view(&[(10, 10), (20, 110)]);
        let places = [(0, 1), (5, 6), (10, 11), (15, 61), (20, 111), (90, 111)];
        for (second, place) in places {
            assert_eq!(view.place(at(second)), place, "{second}");
        }
        let secs = Millis::from_secs;
        assert_eq!((view.waiting(), view.lag()), (110, secs(100)));
        assert_eq!([1, 111].map(|place| view.expected_wait(place)), [1, 56].map(secs));
        assert_eq!(view.newcomers_wait(), secs(56));
        let waits = RoomView { basis: WaitBasis::Memory, memory: secs(120), ..view };
        assert_eq!([1, 111].map(|place| waits.expected_wait(place)), [121, 176].map(secs));
        assert_eq!(waits.earliest_wait(1), secs(1), "it may ask earlier");
        let empty = RoomView::new(NOW);
        assert_eq!((empty.place(at(5)), empty.expected_wait(1)), (1, secs(2_592_000)));
        assert_eq!((empty.lag(), empty.newcomers_wait()), (Millis::ZERO, Millis::ZERO));
    }

    proptest! {
        #[test]
        fn a_later_ticket_has_no_better_place(
            steps in prop::collection::vec((1_u64..50, 1_u64..500), 0..20), one in 0_u64..2_000, other in 0_u64..2_000,
        ) {
            let points = steps.iter().scan((0, 0), |sum, (seconds, tickets)| {
                *sum = (sum.0 + seconds, sum.1 + tickets);
                Some(*sum)
            });
            let view = view(&points.collect::<Vec<_>>());
            let (first, last) = (one.min(other), one.max(other));
            prop_assert!(view.place(at(first)) <= view.place(at(last)));
            prop_assert!(view.place(at(last)) <= view.waiting() + 1);
        }
    }
}
