//! The gate that each worker has: who is let in, and who is remembered. Nothing here locks or waits.

use std::{cell::RefCell, sync::Arc, sync::atomic::Ordering};

use arc_swap::{ArcSwap, Cache};

use super::{Filter, Settings, Throttle, geometry::Millis, recent::Recent};
use crate::mix::local_token;

/// The status that tells a token is not valid; others say that something is not allowed with it.
const UNAUTHORIZED: u16 = 401;

/// For so many minutes after the one in which a token was turned away nothing else is believed of it.
/// Not for long: an active user whose token was refused once could not earn a good answer meanwhile.
const LATELY: u64 = 1;

/// How far apart, as a share of memory and within bounds in ms, the refused are told to come back.
const SPREAD: (u64, Millis, Millis) = (10, 30_000, 300_000);

/// Why a caller is let in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Admitted {
    /// Everybody is.
    Open,
    /// It has been active lately.
    Known,
}

/// Why a caller is not let in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Newcomer {
    /// Its token has not been active lately.
    Unknown,
    /// It brought no token.
    Missing,
    /// Its token was turned away lately.
    Rejected,
}

/// What a caller who is not let in is told.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Turned {
    /// Why.
    pub newcomer: Newcomer,
    /// How many may be active.
    pub max_active: u64,
    /// How many are, or are taken to be: at least `max_active`.
    pub active: u64,
    /// How long an active user is remembered, in ms.
    pub memory: Millis,
    /// Now, in ms since the epoch, by the clock that `reset_at` goes by.
    pub now: Millis,
    /// When it may find room, in ms since the epoch; the same for the same caller, and another for
    /// another, so that they do not return in one herd.
    pub reset_at: Millis,
}

/// One worker's gate.
pub struct Gate {
    throttle: Arc<Throttle>,
    filter: RefCell<Cache<Arc<ArcSwap<Filter>>, Arc<Filter>>>,
    recent: Recent,
}

impl Gate {
    pub(super) fn new(throttle: Arc<Throttle>) -> Self {
        let filter = RefCell::new(Cache::new(Arc::clone(&throttle.filter)));
        Self { throttle, filter, recent: Recent::new() }
    }

    /// The secret that callers are hashed under.
    pub fn secret(&self) -> (u64, u64) {
        self.filter.borrow_mut().load().seed().secret
    }

    /// Whether a caller is let in at `now` (ms since the epoch, the gateway's clock). `caller` is the
    /// keyed hash of the token, or where there is no token, of whatever tells callers apart.
    pub fn admit(
        &self,
        caller: u64,
        has_token: bool,
        now: impl FnOnce() -> Millis,
    ) -> Result<Admitted, Box<Turned>> {
        if !self.throttle.refusing.load(Ordering::Relaxed) {
            return Ok(Admitted::Open);
        }
        let newcomer = if has_token { self.look_up(caller) } else { Some(Newcomer::Missing) };
        match newcomer {
            None => Ok(Admitted::Known),
            Some(newcomer) => Err(Box::new(self.turn_away(newcomer, caller, now()))),
        }
    }

    fn look_up(&self, token: u64) -> Option<Newcomer> {
        if self.is_rejected(token) {
            return Some(Newcomer::Rejected);
        }
        if self.knows(token) { None } else { Some(Newcomer::Unknown) }
    }

    /// Whether an upstream has turned `token` away lately.
    fn is_rejected(&self, token: u64) -> bool {
        let mut filter = self.filter.borrow_mut();
        let filter = filter.load();
        let minute = filter.geometry().minute(*filter.live().end());
        self.throttle.rejected.contains(local_token(token), minute, LATELY)
    }

    /// Whether `token` has been active lately.
    pub fn knows(&self, token: u64) -> bool {
        let mut filter = self.filter.borrow_mut();
        let filter = filter.load();
        self.recent.contains(local_token(token), *filter.live().end()) || filter.knows(token)
    }

    #[cold]
    fn turn_away(&self, newcomer: Newcomer, caller: u64, now: Millis) -> Turned {
        let (status, settings) = (self.throttle.status.load(), self.throttle.settings.load());
        let memory = settings.sizing.memory;
        let (share, least, most) = SPREAD;
        let spread = (caller >> 16) % (memory / share).clamp(least, most);
        let now = now.saturating_add_signed(status.offset);
        Turned {
            newcomer,
            max_active: settings.marks.max_active,
            active: status.estimate.tokens.max(settings.marks.max_active),
            memory,
            now,
            reset_at: status.room_at + spread,
        }
    }

    /// Takes in how an upstream answered a request with the token `token`: one that it answered well
    /// is known from now on. Returns whether that was news to the current generation.
    pub fn remember(&self, token: u64, status: u16, settings: &Settings) -> bool {
        let mut filter = self.filter.borrow_mut();
        let filter = filter.load();
        let (generation, local) = (*filter.live().end(), local_token(token));
        if settings.forget_status.contains(&status) {
            if status == UNAUTHORIZED {
                self.throttle.rejected.insert(local, filter.geometry().minute(generation));
            }
            return false;
        }
        self.throttle.rejected.remove(local);
        self.record(filter, token, generation)
    }

    /// Notes that `token` is active still: an answer of which [`Self::remember`] took the beginning has
    /// ended, perhaps much later.
    pub fn remain(&self, token: u64) {
        let mut filter = self.filter.borrow_mut();
        let filter = filter.load();
        self.record(filter, token, *filter.live().end());
    }

    fn record(&self, filter: &Filter, token: u64, generation: u64) -> bool {
        let local = local_token(token);
        if self.recent.contains(local, generation) {
            return false;
        }
        let news = filter.record(token);
        self.recent.insert(local, generation);
        news
    }
}
