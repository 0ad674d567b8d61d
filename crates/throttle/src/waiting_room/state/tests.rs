use proptest::prelude::*;

use super::*;

/// The length of an epoch, in seconds.
const LENGTH: u64 = 30;

/// The start of an epoch.
const START: UnixSecond = UnixSecond::from_secs(1_700_000_010 / LENGTH * LENGTH);

fn after(second: u64) -> UnixSecond {
    START.after(Millis::from_secs(second))
}

fn before(second: u64) -> QueueTime {
    QueueTime::of_second(START.before(Millis::from_secs(second)))
}

fn time(second: u64) -> StoreTime {
    after(second).time()
}

/// A call at `second` after the start, with tickets of (second, number) for the epoch of `second`.
fn call(second: u64, tickets: &[(u64, u64)], active: Option<u64>) -> RoomCall {
    let count = |(second, tickets): &(u64, u64)| IntervalCount {
        second: after(*second),
        tickets: *tickets,
    };
    RoomCall {
        epoch: RoomEpoch::at(after(second), Millis::from_secs(LENGTH)),
        counted: [vec![], tickets.iter().map(count).collect()],
        standing: Standing::Demanded,
        active,
        max_active: 100,
        frontier: QueueTime::of_second(START),
        hold: Millis::from_secs(65),
        ask: Millis::from_secs(20),
        entering: 0,
        turned_away: 0,
        head_start: Millis::ZERO,
        share: 1,
    }
}

fn place(second: u64) -> QueueTime {
    QueueTime::of_second(after(second))
}

/// A state whose epoch has 10 tickets in each of the seconds 0 to 4.
fn filled() -> RoomState {
    let mut state = RoomState::default();
    let tickets: Vec<_> = (0..5).map(|second| (second, 10)).collect();
    state.exchange(&call(5, &tickets, None), time(5));
    state
}

/// The number of `holders` that take a place at `second`.
fn take(state: &mut RoomState, holders: std::ops::Range<u64>, second: u64) -> usize {
    let holders: Vec<u64> = holders.collect();
    let seats = state.claim(&holders, time(second));
    seats.into_iter().filter(|seat| *seat == Seat::Taken).count()
}

#[test]
fn the_frontier_passes_as_many_tickets_as_there_are_places() {
    let mut state = filled();
    let reply = state.exchange(&call(8, &[], Some(85)), time(8));
    assert_eq!(reply.frontier, place(1).advanced(500_000.0));
    assert_eq!((reply.turns, reply.pending, reply.waiting()), (15, 15, 35));
    // Their users have time to ask.
    let reply = state.exchange(&call(9, &[], Some(85)), time(9));
    assert_eq!((reply.turns, reply.waiting()), (15, 35));
    let reply = state.exchange(&call(10, &[], Some(80)), time(10));
    assert_eq!((reply.turns, reply.frontier), (20, place(2)));
}

#[test]
fn no_more_places_are_taken_than_are_free() {
    let mut state = filled();
    state.exchange(&call(8, &[], Some(90)), time(8));
    assert_eq!((take(&mut state, 0..7, 8), take(&mut state, 7..20, 8)), (7, 3));
    let again = state.claim(&[3, 15], time(8));
    assert_eq!(again, [Seat::Kept, Seat::None], "a user takes one place");
    // Until they are counted as active.
    let reply = state.exchange(&call(9, &[], Some(90)), time(9));
    assert_eq!((reply.pending, take(&mut state, 20..30, 9)), (10, 0));
    state.exchange(&call(10, &[], Some(95)), time(10));
    assert_eq!(take(&mut state, 20..30, 10), 0, "five of them are active");
    state.exchange(&call(15, &[], Some(95)), time(15));
    assert_eq!(take(&mut state, 20..30, 15), 5);
}

/// Such as users whose first requests an upstream has failed: they may not all enter once it is up.
#[test]
fn a_place_is_kept_for_some_seconds_only() {
    let mut state = filled();
    state.exchange(&call(8, &[], Some(90)), time(8));
    assert_eq!(take(&mut state, 0..10, 8), 10);
    for second in 9..15 {
        state.exchange(&call(second, &[], Some(90)), time(second));
    }
    assert_eq!(take(&mut state, 10..20, 14), 10, "the first ten did not become active");
    let again = state.claim(&(0..10).collect::<Vec<_>>(), time(14));
    assert_eq!(again, [Seat::None; 10]);
}

#[test]
fn a_place_is_kept_while_the_first_response_is_on_its_way() {
    let mut state = filled();
    state.exchange(&call(8, &[], Some(90)), time(8));
    assert_eq!(take(&mut state, 0..10, 8), 10);
    for second in 9..20 {
        let entering = RoomCall { entering: 4, ..call(second, &[], Some(90)) };
        state.exchange(&entering, time(second));
    }
    assert_eq!(take(&mut state, 20..40, 20), 6);
}

#[test]
fn places_wait_for_gateways_to_exchange() {
    let mut state = filled();
    state.exchange(&call(8, &[], Some(90)), time(8));
    assert_eq!(take(&mut state, 0..1, 14), 0);
    assert_eq!(take(&mut state, 0..1, 13), 1);
}

/// Users who gave up are passed, more of them each time, until others come.
#[test]
fn the_frontier_runs_ahead_over_users_who_do_not_come() {
    let mut state = RoomState::default();
    let mut passed = Vec::new();
    for second in 5..200 {
        // All tickets ask in each epoch, as those of users who leave and of those who follow them.
        let tickets: Vec<_> = (0..1_000).map(|second| (second, 10)).collect();
        let tickets: &[_] = if second % LENGTH == 5 { &tickets } else { &[] };
        let mut old = call(second, tickets, Some(98));
        let ago = Millis::from_secs(2_000);
        old.counted[1].iter_mut().for_each(|count| count.second = count.second.before(ago));
        old.frontier = before(2_000);
        passed.push(state.exchange(&old, time(second)).turns);
    }
    let steps: Vec<u64> = passed.iter().copied().step_by(25).collect();
    assert!(steps.is_sorted(), "{steps:?}");
    let last = passed.last().copied().unwrap_or_default();
    assert!(last > 500, "two places: {steps:?}");
}

#[test]
fn the_frontier_moves_once_a_second_for_all_gateways() {
    let mut state = filled();
    for gateway in 0..5 {
        let reply = state.exchange(&call(8, &[], Some(90 - gateway)), time(8));
        assert_eq!((reply.turns, reply.frontier), (10, place(1)));
    }
    // The largest number of active users since then counts: 89.
    let reply = state.exchange(&call(9, &[], Some(70)), time(9));
    assert_eq!((reply.turns, reply.gateways), (11, 5));
}

#[test]
fn young_tickets_are_not_passed_before_all_counts_have_arrived() {
    let mut state = filled();
    let reply = state.exchange(&call(6, &[], Some(0)), time(6));
    assert_eq!((reply.frontier, reply.turns), (place(3), 30));
    let reply = state.exchange(&call(9, &[], Some(0)), time(9));
    assert_eq!((reply.frontier, reply.turns, reply.waiting()), (place(5), 50, 0));
}

#[test]
fn tickets_that_no_longer_ask_hold_up_no_other() {
    let mut state = filled();
    // In the next epoch only those of the second 4 ask; those of the first four seconds were given
    // up.
    let mut reply = RoomReply::default();
    for second in 6..65 {
        let tickets: &[_] = if second == 35 { &[(4, 10)] } else { &[] };
        reply = state.exchange(&call(second, tickets, None), time(second));
    }
    assert_eq!(reply.waiting(), 10);
    let reply = state.exchange(&call(66, &[], Some(95)), time(66));
    assert_eq!(reply.turns, 5);
    assert!(reply.frontier > place(4) && reply.frontier < place(5), "{reply:?}");
}

#[test]
fn everyone_is_admitted_once_no_gateway_throttles() {
    let mut state = filled();
    let calm = |second| RoomCall { standing: Standing::Calm, ..call(second, &[], Some(5)) };
    let reply = state.exchange(&calm(6), time(6));
    assert!(reply.frontier < place(6), "another gateway throttles: {reply:?}");
    let reply = state.exchange(&calm(9), time(9));
    assert_eq!((reply.frontier, reply.waiting()), (place(9), 0));
    assert!(!reply.was_throttling() && !reply.is_demanded());
}

#[test]
fn a_lost_state_counts_all_tickets_before_it_admits_any() {
    let mut state = RoomState::default();
    let own = before(300);
    let lost = |second, tickets: &[_]| RoomCall { frontier: own, ..call(second, tickets, Some(0)) };
    for second in 0..59 {
        let reply = state.exchange(&lost(second, &[(0, 1)]), time(second));
        assert_eq!((reply.frontier, reply.turns), (own, 0), "{second}");
    }
    for second in 59..64 {
        state.exchange(&lost(second, &[]), time(second));
    }
    let reply = state.exchange(&lost(64, &[]), time(64));
    assert!(reply.turns > 0);
}

/// Tickets are counted by intervals from a base. The first one that was counted after a loss is not
/// the oldest.
#[test]
fn a_lost_state_keeps_the_order_of_tickets_that_are_counted_late() {
    let mut state = RoomState::default();
    let own = before(300);
    let lost = |second, tickets: &[_], active| {
        let mut call = RoomCall { frontier: own, ..call(second, tickets, Some(active)) };
        let ago = Millis::from_secs(100);
        call.counted[1].iter_mut().for_each(|count| count.second = count.second.before(ago));
        call
    };
    // The old tickets of the first epoch were counted before the loss.
    for second in 5..95 {
        let tickets: &[_] = match second % LENGTH {
            7 => &[(90, 10)],
            9 if second > LENGTH => &[(0, 10)],
            _ => &[],
        };
        state.exchange(&lost(second, tickets, 100), time(second));
    }
    let reply = state.exchange(&lost(96, &[], 98), time(96));
    assert!(reply.turns == 2 && reply.frontier < before(98), "{reply:?}");
}

#[test]
fn no_place_is_granted_until_gateways_have_reported_again() {
    let mut state = filled();
    assert_eq!(state.exchange(&call(8, &[], Some(90)), time(8)).turns, 10);
    for second in 20..=31 {
        let tickets: &[_] = if second < 31 { &[(1, 1), (4, 5)] } else { &[] };
        let reply = state.exchange(&call(second, tickets, Some(0)), time(second));
        assert_eq!(reply.turns, 10, "{second}");
    }
    for second in 32..35 {
        state.exchange(&call(second, &[], Some(0)), time(second));
    }
    assert!(state.exchange(&call(36, &[], Some(0)), time(36)).turns > 10);
}

#[test]
fn a_restarted_gateway_knows_that_the_room_was_in_use() {
    let mut state = filled();
    let silent = RoomCall { standing: Standing::Silent, active: None, ..call(20, &[], None) };
    let reply = state.exchange(&silent, time(20));
    assert!(reply.was_throttling() && !reply.is_demanded());
}

proptest! {
    /// Whatever gateways report, the frontier never moves back, and no more users are expected than
    /// places are free.
    #[test]
    fn places_are_granted_only_while_they_are_free(
        steps in prop::collection::vec(
            (0_u64..3_000, prop::collection::vec((0_u64..200, 0_u64..50), 0..4), prop::option::of(0_u64..150), 0_u8..4),
            1..120,
        ),
    ) {
        let mut state = RoomState::default();
        let (mut now, mut before) = (time(0), RoomReply::default());
        for (delay, tickets, active, standing) in steps {
            now += Millis::from_ms(delay);
            let second = now.since(START.time()).as_whole_secs();
            let tickets: Vec<_> =
                tickets.into_iter().map(|(ago, tickets)| (second.saturating_sub(ago), tickets)).collect();
            let standing = [Standing::Silent, Standing::Calm, Standing::Forced, Standing::Demanded][usize::from(standing)];
            let reply = state.exchange(&RoomCall { standing, ..call(second, &tickets, active) }, now);
            prop_assert!(reply.frontier >= before.frontier);
            prop_assert!(reply.frontier <= QueueTime::at(now));
            prop_assert!(reply.turns >= before.turns && reply.pending <= 100, "{reply:?}");
            prop_assert!(reply.profile.is_sorted_by(|one, next| one.second < next.second && one.tickets <= next.tickets));
            before = reply;
        }
    }
}
