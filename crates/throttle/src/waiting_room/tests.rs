use tidegate_redis::RedisFailure;

use super::{
    state::{RoomCall, RoomReply, Seat, Standing},
    *,
};

mod hostile;
mod outage;

const START: StoreTime = StoreTime::from_unix_ms(1_700_000_010_000);
const SETTINGS: RoomSettings = RoomSettings { ticket_ttl: Millis::from_mins(1) };

/// A store that cannot be reached.
struct LostStore;

impl RoomStore for LostStore {
    async fn exchange(&mut self, _: &RoomCall) -> Result<RoomReply, RedisFailure> {
        Err(RedisFailure::Io)
    }

    async fn claim(&mut self, _: Millis, _: &[u64]) -> Result<Vec<Seat>, RedisFailure> {
        Err(RedisFailure::Io)
    }
}

/// A room without other gateways, on a clock of its own.
struct LoneRoom {
    room: Arc<WaitingRoom>,
    ticker: RoomTicker<LostStore>,
    now: StoreTime,
    standing: Standing,
    /// The longest head start.
    head_start: Millis,
}

impl LoneRoom {
    fn new() -> Self {
        let room = WaitingRoom::new(SETTINGS, &SharedSecret::from_namespace("test"), START);
        let ticker = RoomTicker::new(Arc::clone(&room), None);
        let standing = Standing::Demanded;
        let mut lone = Self { room, ticker, now: START, standing, head_start: Millis::ZERO };
        lone.tick(100);
        lone
    }

    /// A second passes; `active` of 100 users are active.
    fn tick(&mut self, active: u64) {
        self.now += Millis::from_secs(1);
        let tick = RoomTick {
            now: self.now,
            standing: self.standing,
            active: Some(active),
            max_active: 100,
            memory: Millis::from_mins(30),
            head_start: self.head_start,
        };
        let ticked = futures_util::future::FutureExt::now_or_never(self.ticker.tick(tick));
        assert!(ticked.is_some_and(|outcome| outcome.is_ok()));
    }

    fn wait(&self, holder: u64, ticket: Option<&[u8]>) -> WaitingPlace {
        self.enter(holder, ticket, HeadStart::default())
    }

    /// The place of a caller that is not admitted.
    fn enter(&self, holder: u64, ticket: Option<&[u8]>, head_start: HeadStart) -> WaitingPlace {
        let (place, is_admitted) = self.ask(holder, ticket, head_start);
        assert!(!is_admitted, "{holder} is admitted");
        place
    }

    fn is_admitted(&self, holder: u64, ticket: &[u8]) -> bool {
        self.ask(holder, Some(ticket), HeadStart::default()).1
    }

    /// Asks, and takes a place if it is the caller's turn. True if it is admitted.
    fn ask(
        &self,
        holder: u64,
        ticket: Option<&[u8]>,
        head_start: HeadStart,
    ) -> (WaitingPlace, bool) {
        let place = self.room.ask(holder, ticket, head_start, self.now);
        let is_admitted = place.is_turn() && self.room.claim_alone(holder, self.now).is_some();
        (place, is_admitted)
    }
}

/// The estimate of active users, which knows changes five seconds later. A hundred are active at
/// the start.
struct KnownUsers {
    left: u64,
    active: Vec<u64>,
}

impl KnownUsers {
    fn new() -> Self {
        Self { left: 0, active: vec![100; 6] }
    }

    fn known(&mut self, admitted: u64) -> u64 {
        self.active.push(100 + admitted - self.left);
        self.active[self.active.len() - 6]
    }
}

#[test]
fn a_ticket_is_admitted_when_it_is_its_turn() {
    let mut lone = LoneRoom::new();
    let first = lone.wait(1, None);
    assert!(first.is_new() && first.fault().is_none() && first.place == 1);
    (0..4).for_each(|_| lone.tick(100));
    let second = lone.wait(2, None);
    assert_eq!(second.place, 2);
    let again = lone.wait(1, Some(&first.ticket));
    assert_eq!((again.ticket, again.is_new()), (first.ticket, false));
    (0..4).for_each(|_| lone.tick(100));
    lone.tick(99);
    assert!(lone.is_admitted(1, &first.ticket));
    assert!(!lone.is_admitted(2, &second.ticket));
    (0..30).for_each(|_| lone.tick(100));
    let second = lone.wait(2, Some(&second.ticket));
    (0..40).for_each(|_| lone.tick(100));
    let second = lone.wait(2, Some(&second.ticket));
    assert!(second.fault().is_none());
    lone.tick(99);
    assert!(lone.is_admitted(2, &second.ticket));
}

#[test]
fn a_caller_with_a_head_start_overtakes_those_who_came_shortly_before() {
    let mut lone = LoneRoom::new();
    (0..4).for_each(|_| lone.tick(100));
    let usual = lone.wait(1, None);
    (0..4).for_each(|_| lone.tick(100));
    let early = lone.enter(9, None, HeadStart(1));
    assert_eq!((early.place, early.is_new()), (1, true));
    (0..4).for_each(|_| lone.tick(100));
    assert_eq!(lone.wait(1, Some(&usual.ticket)).place, 2);
    assert!(!lone.is_admitted(9, &early.ticket), "no place is free");
    lone.tick(99);
    assert!(lone.is_admitted(9, &early.ticket) && !lone.is_admitted(1, &usual.ticket));
    lone.tick(98);
    assert!(lone.is_admitted(1, &usual.ticket));
}

/// Head starts that reach back to before the throttle began.
#[test]
fn callers_with_head_starts_enter_in_the_order_of_their_places() {
    let mut lone = LoneRoom::new();
    (lone.standing, lone.head_start) = (Standing::Calm, Millis::from_mins(5));
    (0..400).for_each(|_| lone.tick(50));
    lone.standing = Standing::Demanded;
    // One caller a second: usual ones, then those with a short head start, then those with a long
    // one.
    let arrivals = (0..5).map(|_| 0).chain((0..15).map(|_| 2)).chain((0..15).map(|_| 5));
    let arrivals: Vec<u64> = arrivals.collect();
    let mut waiting: Vec<(usize, [u8; TICKET_LEN])> = Vec::new();
    let mut admitted = Vec::new();
    let mut users = KnownUsers::new();
    for second in 0..400 {
        // From a minute on, a user leaves every fourth second.
        users.left += u64::from(second > 60 && second % 4 == 0);
        lone.tick(users.known(admitted.len() as u64));
        if let Some(head_start) = arrivals.get(second) {
            let place = lone.enter(second as u64, None, HeadStart(*head_start));
            waiting.push((second, place.ticket));
        }
        waiting.retain_mut(|(caller, ticket)| {
            let (place, is_admitted) =
                lone.ask(*caller as u64, Some(&*ticket), HeadStart::default());
            *ticket = place.ticket;
            if is_admitted {
                admitted.push(*caller);
            }
            !is_admitted
        });
        assert!(admitted.len() as u64 <= users.left, "{admitted:?} of {} in {second}", users.left);
    }
    let expected: Vec<usize> = (20..35).chain(5..20).chain(0..5).collect();
    assert_eq!(admitted, expected);
}

#[test]
fn callers_with_a_head_start_take_no_more_than_the_free_places_and_starve_no_other() {
    let mut lone = LoneRoom::new();
    // By caller: its ticket, while it waits.
    let mut waiting: Vec<(u64, Option<[u8; TICKET_LEN]>)> = Vec::new();
    let (mut admitted, mut usual_admitted_at) = (0_u64, None);
    let mut users = KnownUsers::new();
    for second in 0..400 {
        // A user leaves every other second.
        users.left += second % 2;
        lone.tick(users.known(admitted));
        let (caller, head_start) = if second == 20 { (1, 0) } else { (1_000 + second, 1) };
        if second < 300 {
            let place = lone.enter(caller, None, HeadStart(head_start));
            waiting.push((caller, Some(place.ticket)));
        }
        for (caller, ticket) in &mut waiting {
            let Some(sent) = *ticket else { continue };
            let (place, is_admitted) = lone.ask(*caller, Some(&sent), HeadStart::default());
            *ticket = Some(place.ticket).filter(|_| !is_admitted);
            admitted += u64::from(is_admitted);
            if is_admitted && *caller == 1 {
                usual_admitted_at = Some(second);
            }
        }
    }
    // It is overtaken by those who came within a minute after it: sixty at half a place a second,
    // and those before it.
    assert!(
        usual_admitted_at.is_some_and(|second| (60..=220).contains(&second)),
        "{usual_admitted_at:?}"
    );
    assert!(admitted <= users.left && admitted + 10 > users.left, "{admitted} of {}", users.left);
}

#[test]
fn a_ticket_is_for_one_token() {
    let mut lone = LoneRoom::new();
    let ticket = lone.wait(1, None).ticket;
    let copied = lone.wait(2, Some(&ticket));
    assert_eq!((copied.fault(), copied.is_new()), (Some(TicketFault::Forged), true));
    (0..5).for_each(|_| lone.tick(100));
    lone.tick(0);
    assert!(lone.is_admitted(1, &ticket));
    assert!(!lone.is_admitted(3, &ticket), "a copy admits no other token");
}

#[test]
fn tickets_expire_unless_they_ask() {
    let mut lone = LoneRoom::new();
    let (one, other) = (lone.wait(1, None), lone.wait(2, None));
    (0..31).for_each(|_| lone.tick(100));
    let one = lone.wait(1, Some(&one.ticket));
    assert!(!one.is_new());
    (0..31).for_each(|_| lone.tick(100));
    assert_eq!(lone.wait(2, Some(&other.ticket)).fault(), Some(TicketFault::Expired));
    assert!(!lone.wait(1, Some(&one.ticket)).is_new());
    let place = lone.wait(9, None).place;
    assert_eq!(place, 2, "a ticket that expired is not counted");
}

#[test]
fn a_ticket_of_the_future_is_refused() {
    let lone = LoneRoom::new();
    let later = |seconds| UnixSecond::of(lone.now).after(Millis::from_secs(seconds));
    for (queued, counted, fault) in [(3, 0, true), (0, 33, true), (2, 30, false)] {
        let ticket =
            Ticket { queued_at: QueueTime::of_second(later(queued)), counted_at: later(counted) };
        let waiting = lone.wait(1, Some(&lone.room.key.seal(ticket, 1)));
        assert_eq!(
            waiting.fault(),
            Some(TicketFault::Future).filter(|_| fault),
            "{queued} {counted}"
        );
    }
}

#[test]
fn replays_and_lost_tickets_count_a_caller_once() {
    let mut lone = LoneRoom::new();
    let first = lone.wait(1, None).ticket;
    for _ in 0..50 {
        lone.wait(1, None);
        lone.wait(1, Some(b"junk"));
    }
    (0..31).for_each(|_| lone.tick(100));
    for _ in 0..50 {
        lone.wait(1, Some(&first));
    }
    (0..4).for_each(|_| lone.tick(100));
    assert_eq!(lone.room.view().waiting(), 1);
}

#[test]
fn a_closed_room_gives_tickets_and_admits_none() {
    let mut lone = LoneRoom::new();
    let ticket = lone.wait(1, None).ticket;
    lone.room.close();
    (0..5).for_each(|_| lone.tick(0));
    assert!(!lone.is_admitted(1, &ticket));
    lone.room.open();
    lone.tick(0);
    assert!(lone.is_admitted(1, &ticket));
}

#[test]
fn a_closed_room_grants_no_place() {
    let mut lone = LoneRoom::new();
    lone.wait(1, None);
    lone.room.close();
    (0..8).for_each(|_| lone.tick(0));
    assert_eq!((lone.room.view().turns(), lone.room.view().waiting()), (0, 1));
}

#[test]
fn users_whose_turn_it_is_are_counted_while_the_room_is_closed() {
    let mut lone = LoneRoom::new();
    let mut ticket = lone.wait(1, None).ticket;
    (0..5).for_each(|_| lone.tick(99));
    lone.room.close();
    for _ in 0..100 {
        lone.tick(0);
        ticket = lone.wait(1, Some(&ticket)).ticket;
    }
    let view = lone.room.view();
    assert!(view.waiting() + view.pending() >= 1, "{view:?}");
}

#[test]
fn a_user_whose_request_is_in_flight_takes_no_second_place() {
    let mut lone = LoneRoom::new();
    let tickets = [1, 2].map(|holder| lone.wait(holder, None).ticket);
    (0..5).for_each(|_| lone.tick(98));
    assert!(lone.room.ask(1, Some(&tickets[0]), HeadStart::default(), lone.now).is_turn());
    let first = lone.room.claim_alone(1, lone.now).expect("a free place");
    (0..10).for_each(|_| lone.tick(98));
    // One place is left.
    let second = lone.room.claim_alone(1, lone.now).expect("its own place");
    assert_eq!(lone.room.entering(), 1);
    assert!(lone.room.claim_alone(2, lone.now).is_some());
    assert!(lone.room.claim_alone(3, lone.now).is_none());
    drop((first, second));
    assert_eq!(lone.room.entering(), 0);
}

/// A gateway starts in the middle of a second.
#[test]
fn it_is_not_the_turn_of_users_who_come_right_after_the_start() {
    let now = START + Millis::from_ms(900);
    let room = WaitingRoom::new(SETTINGS, &SharedSecret::from_namespace("test"), now);
    let tickets: Vec<_> = (0..50)
        .map(|holder| (holder, room.ask(holder, None, HeadStart::default(), now).ticket))
        .collect();
    let mut lone = LoneRoom { room: Arc::clone(&room), ..LoneRoom::new() };
    lone.ticker = RoomTicker::new(Arc::clone(&room), None);
    lone.now = now;
    lone.tick(100);
    let is_turn = |(holder, ticket): &(u64, [u8; TICKET_LEN])| {
        room.ask(*holder, Some(ticket), HeadStart::default(), lone.now).is_turn()
    };
    assert_eq!(tickets.iter().filter(|ticket| is_turn(ticket)).count(), 0);
}

#[test]
fn closing_the_room_stops_tickets_whose_turn_has_come() {
    let mut lone = LoneRoom::new();
    let ticket = lone.wait(1, None).ticket;
    (0..5).for_each(|_| lone.tick(99));
    lone.room.close();
    assert!(!lone.is_admitted(1, &ticket));
    lone.room.open();
    assert!(lone.is_admitted(1, &ticket));
}

#[test]
fn clients_return_well_before_their_tickets_expire() {
    let lone = LoneRoom::new();
    for wait in [1, 10, 100, 10_000] {
        let time = |holder| lone.room.settings.retry_after(holder, Millis::from_secs(wait));
        let times: Vec<Millis> = (0..200).map(time).collect();
        let (least, most) = (*times.iter().min().unwrap(), *times.iter().max().unwrap());
        let [lowest, highest] = [2, 20].map(Millis::from_secs);
        assert!(least >= lowest && most <= highest, "{wait}: {least} to {most}");
    }
}
