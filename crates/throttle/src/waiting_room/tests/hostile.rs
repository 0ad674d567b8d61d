//! Arbitrary bytes of clients, and arbitrary replies of Redis.

use std::collections::VecDeque;

use futures_util::FutureExt as _;
use proptest::prelude::*;

use super::{super::state::ProfilePoint, *};

/// A store with prepared replies; then it cannot be reached.
struct PreparedStore(VecDeque<RoomReply>);

impl RoomStore for PreparedStore {
    async fn exchange(&mut self, _: &RoomCall) -> Result<RoomReply, RedisFailure> {
        self.0.pop_front().ok_or(RedisFailure::Io)
    }

    async fn claim(&mut self, _: Millis, _: &[u64]) -> Result<Vec<Seat>, RedisFailure> {
        Err(RedisFailure::Io)
    }
}

/// The shared room admits everyone who has arrived before `now`.
fn open_room(now: StoreTime) -> Arc<WaitingRoom> {
    let room = WaitingRoom::new(SETTINGS, &SharedSecret::from_namespace("test"), START);
    let frontier = QueueTime::at(now);
    tick_all(&room, [RoomReply { frontier, now, ..RoomReply::default() }], now);
    assert_eq!(room.view().frontier(), frontier);
    room
}

/// Ticks once for each reply, and twice without any.
fn tick_all(
    room: &Arc<WaitingRoom>,
    replies: impl IntoIterator<Item = RoomReply>,
    from: StoreTime,
) {
    let replies: VecDeque<RoomReply> = replies.into_iter().collect();
    let ticks = replies.len() as u64 + 2;
    let mut ticker = RoomTicker::new(Arc::clone(room), Some(PreparedStore(replies)));
    for second in 0..ticks {
        let now = from + Millis::from_secs(second);
        let tick = RoomTick {
            now,
            standing: Standing::Demanded,
            active: Some(90),
            max_active: 100,
            memory: Millis::from_mins(30),
            head_start: Millis::ZERO,
        };
        let _ = ticker.tick(tick).now_or_never();
        let view = room.view();
        assert!(view.frontier() <= QueueTime::at(now), "ahead of the clock");
        assert!(view.waiting() < u64::MAX - view.pending());
        let waiting = room.ask(second, None, HeadStart::default(), now);
        assert!(!waiting.is_turn(), "admitted without a ticket");
        let second = Millis::from_secs(1);
        assert!(waiting.expected_wait >= second && waiting.retry_after >= second);
        assert!(waiting.place >= 1);
    }
}

/// Any reply that the parser accepts.
fn reply() -> impl Strategy<Value = RoomReply> {
    let micros = QueueTime::at(START).as_micros();
    let number =
        move || prop_oneof![0..100_u64, micros - 9_000_000..micros + 9_000_000, 0..1_u64 << 53];
    let point = (number(), number());
    let point = point.prop_map(|(second, tickets)| {
        let second = UnixSecond::from_secs(second);
        ProfilePoint { second, tickets }
    });
    let numbers = prop::array::uniform8(number());
    (numbers, prop::collection::vec(point, 0..6)).prop_map(|(numbers, mut profile)| {
        let [frontier, base, demanded_at, calm_at, now, gateways, turns, pending] = numbers;
        profile.sort_by_key(|point| (point.second, point.tickets));
        RoomReply {
            frontier: QueueTime::from_micros(frontier),
            base: UnixSecond::from_secs(base),
            demanded_at: StoreTime::from_unix_ms(demanded_at),
            calm_at: StoreTime::from_unix_ms(calm_at),
            now: StoreTime::from_unix_ms(now),
            gateways,
            turns,
            pending,
            profile,
        }
    })
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_not_admitted(text in prop_oneof![
        prop::collection::vec(any::<u8>(), 0..80),
        "[A-Za-z0-9_-]{37}[AQgw]".prop_map(String::into_bytes),
    ]) {
        let now = START + Millis::from_secs(5);
        let waiting = open_room(now).ask(1, Some(&text), HeadStart::default(), now);
        prop_assert!(!waiting.is_turn());
        prop_assert!(waiting.is_new() && waiting.fault().is_some());
    }

    #[test]
    fn arbitrary_replies_do_not_panic_nor_open_the_room(
        replies in prop::collection::vec(reply(), 1..8),
    ) {
        let room = WaitingRoom::new(SETTINGS, &SharedSecret::from_namespace("test"), START);
        tick_all(&room, replies, START);
    }
}

#[test]
fn an_issued_ticket_is_admitted_by_an_open_room() {
    let lone = LoneRoom::new();
    let ticket = lone.wait(1, None).ticket;
    let now = START + Millis::from_secs(5);
    assert!(open_room(now).ask(1, Some(&ticket), HeadStart::default(), now).is_turn());
}
