//! The admission gate of a worker: decides whether a caller is admitted, and records responses.
//! Nothing here locks or waits.

use std::{cell::RefCell, sync::Arc, sync::atomic::Ordering};

use arc_swap::{ArcSwap, Cache};
use tidegate_base::mix::local_token;
use tidegate_base::time::{Millis, StoreTime};
use tidegate_system::secret::KeySecret;

use super::{
    Throttle, ThrottleSettings,
    live_filters::LiveFilters,
    recent::RecentTokens,
    waiting_room::{HeadStart, WaitingPlace, WaitingRoom},
};

/// The status for an invalid token. The other statuses in `forget_status` may mean that a valid
/// token lacks a permission.
const UNAUTHORIZED: u16 = 401;

/// Time for which a token stays rejected after the minute of its 401. It is short, because one
/// stray 401 denies an active user for that long. Minutes are read as the first minute
/// of the generation: if generations last several minutes, a token stays rejected until its
/// generation ends.
const REJECTED: Millis = Millis::from_mins(1);

/// Retry times are spread over the time `memory` divided by this, within [`MIN_RETRY_SPREAD`] and
/// [`MAX_RETRY_SPREAD`].
const RETRY_SPREAD_DIVISOR: u64 = 10;

/// Minimum spread of retry times.
const MIN_RETRY_SPREAD: Millis = Millis::from_secs(30);

/// Maximum spread of retry times.
const MAX_RETRY_SPREAD: Millis = Millis::from_mins(5);

/// The reason why a caller is admitted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AdmitReason {
    /// The throttle is not throttling.
    NotThrottling,
    /// The caller's token is active.
    Active,
}

/// The reason why a caller is denied.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DenyReason {
    /// The caller's token is not active.
    Unknown,
    /// The request has no token.
    Missing,
    /// An upstream answered the caller's token with 401 recently.
    Rejected,
}

/// Who sent a request, as the gate distinguishes callers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GateCaller {
    /// The owner of a token, by its keyed hash.
    Token(u64),
    /// A client without a token, by the keyed hash of its address.
    Address(u64),
}

/// A denial, with the values for the response.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AdmissionDenied {
    /// The reason for the denial.
    pub reason: DenyReason,
    /// The configured maximum number of active users.
    pub max_active: u64,
    /// The estimated number of active users, reported as at least `max_active`.
    pub active: u64,
    /// Time for which a token stays active after its last good response.
    pub memory: Millis,
    /// The current time, by the same clock as `reset_at`.
    pub now: StoreTime,
    /// The time at which the caller may be admitted. It differs between callers, to avoid a
    /// thundering herd, and is stable for one caller.
    pub reset_at: StoreTime,
    /// The caller's place in the waiting room; `None` if it does not wait there.
    pub waiting: Option<WaitingPlace>,
}

impl AdmissionDenied {
    /// True if it is the caller's turn in the waiting room.
    pub fn is_turn(&self) -> bool {
        self.waiting.is_some_and(|waiting| waiting.is_turn())
    }

    /// The denial of a caller that waits in the waiting room.
    fn waiting_at(self, place: WaitingPlace) -> Self {
        Self { reset_at: self.now + place.expected_wait, waiting: Some(place), ..self }
    }
}

/// The admission gate of one worker.
pub struct AdmissionGate {
    throttle: Arc<Throttle>,
    filter: RefCell<Cache<Arc<ArcSwap<LiveFilters>>, Arc<LiveFilters>>>,
    recent: RecentTokens,
}

impl AdmissionGate {
    pub(super) fn new(throttle: Arc<Throttle>) -> Self {
        let filter = RefCell::new(Cache::new(Arc::clone(&throttle.filter)));
        Self { throttle, filter, recent: RecentTokens::new() }
    }

    /// The secret with which callers are hashed.
    pub fn token_secret(&self) -> KeySecret {
        self.filter.borrow_mut().load().current.hash_keys().token_secret
    }

    /// Decides whether a caller is admitted. `now` reads the gateway's clock; it is called only for
    /// a denial.
    ///
    /// # Errors
    ///
    /// [`AdmissionDenied`] while the throttle is throttling and the caller is not active.
    pub fn admit(
        &self,
        caller: GateCaller,
        now: impl FnOnce() -> StoreTime,
    ) -> Result<AdmitReason, Box<AdmissionDenied>> {
        if !self.throttle.throttling.load(Ordering::Relaxed) {
            return Ok(AdmitReason::NotThrottling);
        }
        let (reason, hash) = match caller {
            GateCaller::Address(hash) => (DenyReason::Missing, hash),
            GateCaller::Token(hash) => match self.deny_reason(hash) {
                None => return Ok(AdmitReason::Active),
                Some(reason) => (reason, hash),
            },
        };
        Err(Box::new(self.deny(reason, hash, now())))
    }

    /// The reason to deny `token`; `None` if it is active.
    fn deny_reason(&self, token: u64) -> Option<DenyReason> {
        if self.is_rejected(token) {
            return Some(DenyReason::Rejected);
        }
        if self.is_active(token) { None } else { Some(DenyReason::Unknown) }
    }

    /// True if an upstream answered `token` with 401 recently.
    fn is_rejected(&self, token: u64) -> bool {
        let mut filter = self.filter.borrow_mut();
        let filter = filter.load();
        let minute = filter.current.geometry().minute(filter.generation());
        self.throttle.rejected.contains(local_token(token), minute, REJECTED)
    }

    /// True if `token` is active: recorded in a live generation.
    pub fn is_active(&self, token: u64) -> bool {
        let mut filter = self.filter.borrow_mut();
        let filter = filter.load();
        self.recent.contains(local_token(token), filter.generation()) || filter.contains(token)
    }

    #[cold]
    fn deny(&self, reason: DenyReason, caller: u64, now: StoreTime) -> AdmissionDenied {
        let (status, settings) = (self.throttle.status.load(), self.throttle.settings.load());
        let memory = settings.sizing.memory;
        let spread = (memory / RETRY_SPREAD_DIVISOR).clamp(MIN_RETRY_SPREAD, MAX_RETRY_SPREAD);
        let delay = Millis::from_ms(caller >> 16) % spread;
        let now = status.clock_offset.apply(now);
        AdmissionDenied {
            reason,
            max_active: settings.watermarks.max_active,
            active: status.estimate.tokens.max(settings.watermarks.max_active),
            memory,
            now,
            reset_at: status.retry_at + delay,
            waiting: None,
        }
    }

    /// The waiting room, if there is one.
    pub fn room(&self) -> Option<&WaitingRoom> {
        self.throttle.room.as_deref()
    }

    /// The denial of a caller with its place in the waiting room, if there is one: `holder` is the
    /// keyed hash of its tokens, and `ticket` the ticket that it sent. A caller that has no token,
    /// or a rejected one, gets no place.
    #[must_use]
    pub fn ask_room(
        &self,
        holder: u64,
        ticket: Option<&[u8]>,
        head_start: HeadStart,
        mut denied: Box<AdmissionDenied>,
    ) -> Box<AdmissionDenied> {
        if let Some(room) = self.room().filter(|_| denied.reason == DenyReason::Unknown) {
            let place = room.ask(holder, ticket, head_start, denied.now);
            // In the same box: a refusal allocates once.
            *denied = denied.waiting_at(place);
        }
        denied
    }

    /// Records `token` as active after an upstream's response, unless its `status` is in the
    /// settings' `forget_status`; a 401 in that list records `token` as rejected instead. True if
    /// the token was recorded as active and is new in the current generation.
    pub fn record_response(&self, token: u64, status: u16, settings: &ThrottleSettings) -> bool {
        let mut filter = self.filter.borrow_mut();
        let filter = filter.load();
        let (generation, local) = (filter.generation(), local_token(token));
        if settings.forget_status.contains(status) {
            if status == UNAUTHORIZED {
                let minute = filter.current.geometry().minute(generation);
                self.throttle.rejected.insert(local, minute);
            }
            return false;
        }
        self.throttle.rejected.remove(local);
        self.record(filter, token, generation)
    }

    /// Records `token` as active again when a response ends, which may be long after
    /// [`Self::record_response`].
    pub fn record_activity(&self, token: u64) {
        let mut filter = self.filter.borrow_mut();
        let filter = filter.load();
        self.record(filter, token, filter.generation());
    }

    fn record(&self, filter: &LiveFilters, token: u64, generation: u64) -> bool {
        let local = local_token(token);
        if self.recent.contains(local, generation) {
            return false;
        }
        let is_new = filter.record(token);
        self.recent.insert(local, generation);
        is_new
    }
}
