//! The waiting room: users that the throttle does not admit wait in the order of their arrival, and
//! are admitted as places become free.
//!
//! # What it promises
//!
//! - The turn of tickets comes in the order of their places, to the second, at all gateways. A
//!   place is the time of arrival, less a [`HeadStart`].
//! - No more users are admitted than there are free places: `max_active`, less the active users,
//!   less the places that were taken by users who may not be active yet.
//! - A place is taken by a user that asks when it is its turn. Users who have left take none.
//! - A ticket admits one token. Its holder must ask at least once in each half of `ticket_ttl`.
//! - Memory and the work in Redis do not grow with the number of waiting users: clients carry their
//!   places. The users who took a place are known for some seconds.
//!
//! # How
//!
//! A request that is refused gets a [`ticket`]: its place in the queue, which is the time of its
//! arrival. The ticket is sent back with the next request. Each gateway counts the tickets that ask
//! in each half of `ticket_ttl`, an [`RoomEpoch`], by intervals of places ([`counts`], [`place`]).
//! Once a second it adds its counts to those of all gateways and reads the frontier ([`state`], in
//! Redis `lua/waiting_room.lua`): it is the turn of tickets up to it. Such a user asks the shared
//! state for a place ([`desk`], in Redis `lua/waiting_seat.lua`), and is admitted if one is free.
//!
//! | file | content |
//! |---|---|
//! | `settings` | the settings, and the times that follow from them |
//! | [`ticket`] | signing and reading tickets |
//! | [`place`] | places, epochs, and the intervals in which tickets are counted |
//! | [`counts`] | the counts of one gateway |
//! | [`state`] | the shared state: counts, frontier, free places. Pure |
//! | `view` | what workers read: the frontier, a ticket's place and its expected wait |
//! | [`desk`] | takes places for the users whose turn it is |
//! | `entering` | the users that have taken a place, until their first responses begin |
//! | `redis` | the shared state in Redis |
//! | `ticker` | the exchange once a second, and what a gateway does without Redis |

pub mod counts;
pub mod desk;
mod entering;
pub mod place;
mod redis;
mod settings;
pub mod state;
mod ticker;
pub mod ticket;
mod view;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use self::{
    counts::EpochCounts,
    desk::{MAX_CLAIMS, SeatClaim},
    entering::EnteringUsers,
    state::{RoomState, Seat},
    ticket::{TICKET_LEN, Ticket, TicketFault, TicketKey},
};
pub use self::{
    entering::EnteringUser,
    place::{EpochIndex, QueueTime, RoomEpoch, UnixSecond},
    redis::RedisRoomStore,
    settings::{HeadStart, RoomSettings},
    ticker::{RoomStore, RoomTick, RoomTicker},
    view::{RoomView, WaitBasis},
};
use tidegate_base::counter::Counter;
use tidegate_base::time::{Millis, StoreTime};
use tidegate_redis::RedisFailure;
use tidegate_system::secret::SharedSecret;

/// How far the clocks of two gateways may differ.
const MAX_SKEW: Millis = Millis::from_secs(2);

/// The place of a caller that waits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WaitingPlace {
    /// The ticket to send back.
    pub ticket: [u8; TICKET_LEN],
    /// The position in the queue, from 1.
    pub place: u64,
    /// The expected wait in whole seconds, at least one.
    pub expected_wait: Millis,
    /// What the expected wait is computed from.
    pub basis: WaitBasis,
    /// The time until the caller is to ask again, in whole seconds, at least one.
    pub retry_after: Millis,
    /// How the caller stands in the queue.
    pub standing: QueueStanding,
}

impl WaitingPlace {
    /// True if the caller sent no usable ticket.
    pub fn is_new(&self) -> bool {
        matches!(self.standing, QueueStanding::Newcomer { .. })
    }

    /// True if it is the caller's turn: it is admitted if [`WaitingRoom::claim`] gives it a place.
    pub fn is_turn(&self) -> bool {
        self.standing == QueueStanding::Turn
    }

    /// Why the ticket that the caller sent was replaced.
    pub fn fault(&self) -> Option<TicketFault> {
        match self.standing {
            QueueStanding::Newcomer { fault } => fault,
            _ => None,
        }
    }

    /// The ticket as text.
    pub fn ticket(&self) -> &str {
        std::str::from_utf8(&self.ticket).unwrap_or_default()
    }
}

/// How a caller stands in the queue.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum QueueStanding {
    /// It sent no usable ticket, and gets one.
    Newcomer {
        /// Why the ticket that it sent was replaced; `None` if it sent none.
        fault: Option<TicketFault>,
    },
    /// Its turn has not come.
    Waiting,
    /// It is its turn: it is admitted if [`WaitingRoom::claim`] gives it a place.
    Turn,
    /// It would be its turn, but the operator has closed the room.
    TurnWhileClosed,
}

/// Counters of the exchange with Redis. One thread writes them, any thread may read them.
#[derive(Debug, Default)]
pub struct RoomStats {
    /// Commands sent to Redis.
    pub calls: Counter,
    failures: [Counter; RedisFailure::ALL.len()],
}

impl RoomStats {
    fn count_failure(&self, failure: RedisFailure) {
        self.failures[failure.index()].add(1);
    }

    /// Number of exchanges that failed with this kind of failure.
    pub fn failures(&self, failure: RedisFailure) -> u64 {
        self.failures[failure.index()].get()
    }
}

/// The waiting room of a process.
pub struct WaitingRoom {
    settings: RoomSettings,
    key: TicketKey,
    counts: ArcSwap<EpochCounts>,
    view: ArcSwap<RoomView>,
    is_closed: AtomicBool,
    /// The room as this gateway alone sees it.
    own: Mutex<RoomState>,
    entering: Arc<EnteringUsers>,
    /// Number of requests since the last exchange whose turn it was while the room was closed.
    turned_away: AtomicU64,
    claims: mpsc::Sender<SeatClaim>,
    /// The claims, until the desk takes them.
    unserved: Mutex<Option<mpsc::Receiver<SeatClaim>>>,
    /// The shared state for the ticker and for the desk, until they take it.
    stores: Mutex<Vec<RedisRoomStore>>,
    /// Counters of the exchange.
    pub stats: RoomStats,
}

impl WaitingRoom {
    /// An empty room at `now`. Gateways with the same `secret` accept each other's tickets.
    pub fn new(settings: RoomSettings, secret: &SharedSecret, now: StoreTime) -> Arc<Self> {
        let second = UnixSecond::of(now);
        let epoch = RoomEpoch::at(second, settings.epoch_length());
        let (claims, unserved) = mpsc::channel(MAX_CLAIMS);
        Arc::new(Self {
            settings,
            key: TicketKey::new(secret.for_tickets()),
            counts: ArcSwap::from_pointee(EpochCounts::new(epoch, second)),
            view: ArcSwap::from_pointee(RoomView::new(now)),
            is_closed: AtomicBool::new(false),
            own: Mutex::default(),
            entering: Arc::default(),
            turned_away: AtomicU64::default(),
            claims,
            unserved: Mutex::new(Some(unserved)),
            stores: Mutex::default(),
            stats: RoomStats::default(),
        })
    }

    /// Shares the room through `stores`, each a connection to the same state, once the control loop
    /// of the throttle begins.
    pub fn share(&self, stores: [RedisRoomStore; 2]) {
        *self.stores.lock() = stores.into();
    }

    /// One of the stores that [`Self::share`] has set.
    pub(super) fn take_store(&self) -> Option<RedisRoomStore> {
        self.stores.lock().pop()
    }

    /// The number of users that have taken a place and whose first response has not begun.
    fn entering(&self) -> u64 {
        self.entering.count()
    }

    /// Asks for a place for `holder`, whose turn it is; `None` if none is free or the shared state
    /// cannot be reached. The control loop of the throttle must run. `now` is the time by the
    /// filters' clock.
    pub async fn claim(&self, holder: u64, now: StoreTime) -> Option<EnteringUser> {
        if self.entering.contains(holder) {
            return Some(EnteringUser::new(holder, &self.entering));
        }
        let (answer, answered) = tokio::sync::oneshot::channel();
        self.claims.try_send(SeatClaim { holder, now, answer }).ok()?;
        self.enter(holder, answered.await.ok()?)
    }

    /// As [`Self::claim`], in the state of this gateway alone.
    pub fn claim_alone(&self, holder: u64, now: StoreTime) -> Option<EnteringUser> {
        if self.entering.contains(holder) {
            return Some(EnteringUser::new(holder, &self.entering));
        }
        let seats = self.own.lock().claim(&[holder], now);
        self.enter(holder, *seats.first()?)
    }

    fn enter(&self, holder: u64, seat: Seat) -> Option<EnteringUser> {
        (seat != Seat::None).then(|| EnteringUser::new(holder, &self.entering))
    }

    /// The settings, which only a restart changes.
    pub fn settings(&self) -> RoomSettings {
        self.settings
    }

    /// The state as of the last exchange.
    pub fn view(&self) -> Arc<RoomView> {
        self.view.load_full()
    }

    /// True if the operator has closed the room: it gives out tickets, and admits none.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Closes the room, at once.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    /// Opens the room again, at once.
    pub fn open(&self) {
        self.is_closed.store(false, Ordering::Relaxed);
    }

    /// The place of the caller `holder`, the keyed hash of its token, that sent this ticket. `now`
    /// is the time by the filters' clock.
    pub fn ask(
        &self,
        holder: u64,
        sent: Option<&[u8]>,
        head_start: HeadStart,
        now: StoreTime,
    ) -> WaitingPlace {
        let second = UnixSecond::of(now);
        let (counts, view) = (self.counts.load(), self.view.load());
        let epoch = counts.epoch();
        let opened = sent.map(|text| self.verify(text, holder, second, epoch));
        let standing = self.standing(opened, &view);
        let mut ticket = if let Some(Ok(ticket)) = opened {
            ticket
        } else {
            let earlier = self.settings.length_of(head_start);
            // Behind the frontier, its turn would come at once.
            let first = view.frontier().second().next();
            self.key.issue(holder, second.before(earlier).max(first).min(second))
        };
        if standing == QueueStanding::TurnWhileClosed {
            self.turned_away.fetch_add(1, Ordering::Relaxed);
        }
        if ticket.counted_at < epoch.start() {
            let queued_in = ticket.queued_at.second();
            match standing {
                QueueStanding::Newcomer { .. } if queued_in < epoch.start() => {
                    counts.count_early(holder, queued_in);
                }
                QueueStanding::Newcomer { .. } | QueueStanding::Waiting => {
                    counts.count(holder, queued_in);
                }
                QueueStanding::Turn | QueueStanding::TurnWhileClosed => {}
            }
            // One within the epoch.
            ticket.counted_at = second.clamp(epoch.start(), epoch.last());
        }
        let place = view.place(ticket.queued_at);
        WaitingPlace {
            ticket: match sent.and_then(|text| text.try_into().ok()) {
                // A ticket has one text: signing it again would give the same.
                Some(text) if opened == Some(Ok(ticket)) => text,
                _ => self.key.seal(ticket, holder),
            },
            place,
            expected_wait: view.expected_wait(place),
            basis: view.basis(),
            retry_after: match standing {
                QueueStanding::Newcomer { .. } | QueueStanding::Waiting => {
                    self.settings.retry_after(holder, view.earliest_wait(place))
                }
                QueueStanding::Turn | QueueStanding::TurnWhileClosed => {
                    settings::retry_at_turn(holder)
                }
            },
            standing,
        }
    }

    /// How the caller stands that sent a ticket, `opened`.
    fn standing(
        &self,
        opened: Option<Result<Ticket, TicketFault>>,
        view: &RoomView,
    ) -> QueueStanding {
        match opened {
            None => QueueStanding::Newcomer { fault: None },
            Some(Err(fault)) => QueueStanding::Newcomer { fault: Some(fault) },
            Some(Ok(ticket)) if !view.is_turn(ticket.queued_at) => QueueStanding::Waiting,
            Some(Ok(_)) if self.is_closed() => QueueStanding::TurnWhileClosed,
            Some(Ok(_)) => QueueStanding::Turn,
        }
    }

    /// Verifies a ticket at the time `second`.
    fn verify(
        &self,
        text: &[u8],
        holder: u64,
        second: UnixSecond,
        epoch: RoomEpoch,
    ) -> Result<Ticket, TicketFault> {
        let ticket = self.key.open(text, holder)?;
        let latest = second.after(MAX_SKEW);
        // Another gateway may have begun the next epoch already.
        let latest_count = latest.after(epoch.length);
        if ticket.queued_at.second() > latest || ticket.counted_at > latest_count {
            return Err(TicketFault::Future);
        }
        if ticket.counted_at < epoch.previous().start() {
            return Err(TicketFault::Expired);
        }
        Ok(ticket)
    }
}

#[cfg(test)]
mod tests;
