//! Two gateways while the shared state is out of reach.

use std::{cell::RefCell, rc::Rc};

use futures_util::FutureExt as _;

use super::{
    super::{desk::SeatDesk, state::RoomState},
    *,
};

#[derive(Default)]
struct SharedState {
    state: RoomState,
    now: StoreTime,
    is_lost: bool,
}

struct SharedStore(Rc<RefCell<SharedState>>);

impl RoomStore for SharedStore {
    async fn exchange(&mut self, call: &RoomCall) -> Result<RoomReply, RedisFailure> {
        let shared = &mut *self.0.borrow_mut();
        if shared.is_lost {
            Err(RedisFailure::Io)
        } else {
            Ok(shared.state.exchange(call, shared.now))
        }
    }

    async fn claim(&mut self, _: Millis, holders: &[u64]) -> Result<Vec<Seat>, RedisFailure> {
        let shared = &mut *self.0.borrow_mut();
        if shared.is_lost {
            Err(RedisFailure::Io)
        } else {
            Ok(shared.state.claim(holders, shared.now))
        }
    }
}

struct TwoGateways {
    shared: Rc<RefCell<SharedState>>,
    rooms: [Arc<WaitingRoom>; 2],
    tickers: [RoomTicker<SharedStore>; 2],
    desks: [SeatDesk<SharedStore>; 2],
    now: StoreTime,
}

impl TwoGateways {
    fn new() -> Self {
        let shared = Rc::<RefCell<SharedState>>::default();
        let secret = SharedSecret::from_namespace("test");
        let rooms = [(); 2].map(|()| WaitingRoom::new(SETTINGS, &secret, START));
        let store = || Some(SharedStore(Rc::clone(&shared)));
        let tickers = rooms.each_ref().map(|room| RoomTicker::new(Arc::clone(room), store()));
        let desks = rooms.each_ref().map(|room| SeatDesk::new(Arc::clone(room), store()));
        let mut gateways = Self { shared, rooms, tickers, desks, now: START };
        gateways.tick(100);
        gateways
    }

    /// A second passes; `active` of 100 users are active.
    fn tick(&mut self, active: u64) {
        self.now += Millis::from_secs(1);
        self.shared.borrow_mut().now = self.now;
        for ticker in &mut self.tickers {
            let tick = RoomTick {
                now: self.now,
                standing: Standing::Demanded,
                active: Some(active),
                max_active: 100,
                memory: Millis::from_mins(30),
                head_start: Millis::ZERO,
            };
            assert!(ticker.tick(tick).now_or_never().is_some());
        }
    }

    fn set_lost(&self, is_lost: bool) {
        self.shared.borrow_mut().is_lost = is_lost;
    }

    /// Asks, and takes a place if it is the user's turn. True if it is admitted.
    fn ask(&mut self, at: usize, holder: u64, ticket: Option<&[u8]>) -> (WaitingPlace, bool) {
        let place = self.rooms[at].ask(holder, ticket, HeadStart::default(), self.now);
        if !place.is_turn() {
            return (place, false);
        }
        let claimed = self.desks[at].claim(&[holder], self.now).now_or_never().expect("no wait");
        (place, claimed == [Seat::Taken])
    }

    /// The ticket of a user that must wait.
    fn wait(&mut self, at: usize, holder: u64, ticket: Option<&[u8]>) -> [u8; TICKET_LEN] {
        let (place, is_admitted) = self.ask(at, holder, ticket);
        assert!(!is_admitted, "{holder} is admitted");
        place.ticket
    }
}

#[test]
fn tickets_that_were_counted_during_a_failure_are_counted_after_it() {
    let mut gateways = TwoGateways::new();
    gateways.set_lost(true);
    gateways.wait(0, 1, None);
    gateways.tick(100);
    gateways.set_lost(false);
    // Within the same half of `ticket_ttl`, so that no ticket is counted again.
    gateways.tick(100);
    assert_eq!(gateways.rooms[1].view().waiting(), 1);
}

#[test]
fn a_gateway_alone_grants_no_place_that_others_may_have_granted() {
    let mut gateways = TwoGateways::new();
    let mut ticket = gateways.wait(0, 1, None);
    (0..5).for_each(|_| gateways.tick(100));
    gateways.set_lost(true);
    for second in 0..64 {
        gateways.tick(0);
        if second % 10 == 0 {
            ticket = gateways.wait(0, 1, Some(&ticket));
        }
    }
    assert_eq!(gateways.rooms[0].view().turns(), 0);
    (0..16).for_each(|_| gateways.tick(0));
    assert!(gateways.ask(0, 1, Some(&ticket)).1);
}
