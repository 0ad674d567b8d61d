//! The line of those who found no tokens, and what is known only under its lock.
//!
//! At most one fetch is in flight. It claims what the word still holds into the pot, so that nobody who
//! comes later overtakes the line: the word is empty until nobody stands any more. Each in the line is
//! decided as one by one at the store: in order, and who does not fit is passed over.

use std::{collections::VecDeque, mem};

use smallvec::SmallVec;

use super::{
    Outcome, Reply, Waiter,
    pace::Pace,
    told::Told,
    word::{MAX_TOKENS, Tokens},
};
use crate::{
    limit::{Back, Decision, Millis, Order, Reserve},
    store::Failure,
};

/// No token is held for longer, in ms: clocks that differ by a thousandth are 60 ms apart then, and tokens that
/// are used so slowly are better kept at the store.
const HELD: u64 = 60_000;

/// The state under an entry's lock.
pub(super) struct Line<W> {
    waiting: VecDeque<W>,
    /// How many stood when the fetch in flight began; those behind them came since.
    ordered: usize,
    /// Whether a fetch is in flight.
    pub(super) fetching: bool,
    /// Tokens kept from the word while a fetch is in flight; else none, with the word's end.
    pub(super) pot: Pot,
    /// What was not spent before its sub-window ended, and is to be given back.
    pub(super) late: SmallVec<[Back; 2]>,
    /// How much to fetch.
    pub(super) pace: Pace,
    /// Whether the entry has left the book: it never gets tokens again.
    pub(super) retired: bool,
    /// Whether the record was deleted while a fetch was in flight.
    pub(super) forgotten: bool,
    /// What the sweep last saw in the word, and since which tick.
    pub(super) seen: (Tokens, u64),
}

/// Tokens of one sub-window.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Pot {
    pub(super) tokens: u32,
    /// The first tick at which none may be spent any more.
    pub(super) deadline: u64,
    /// The same by the store's clock, in ms; 0 if nothing was granted yet.
    pub(super) end: Millis,
}

impl Pot {
    /// What is left of it, to be given back: any time in its sub-window will do.
    fn back(self) -> Back {
        Back { charged_at: self.end.saturating_sub(1), tokens: self.tokens }
    }
}

/// What a fetch asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Ask {
    pub(super) order: Order,
    /// Whether nothing was kept here when it began.
    pub(super) alone: bool,
}

/// What comes of a reply.
pub(super) struct Settled {
    /// What there is to tell those who take what is left.
    pub(super) told: Option<Told>,
    /// Tokens that the operator has forgotten.
    pub(super) forgotten: u32,
}

impl<W> Default for Line<W> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            ordered: 0,
            fetching: false,
            pot: Pot::default(),
            late: SmallVec::new(),
            pace: Pace::default(),
            retired: false,
            forgotten: false,
            seen: (Tokens { deadline: 0, count: MAX_TOKENS }, 0),
        }
    }
}

impl<W: Waiter> Line<W> {
    /// Stands at its end.
    pub(super) fn stand(&mut self, waiter: W) {
        self.waiting.push_back(waiter);
    }

    /// Whether nobody stands.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Tokens that are kept here, given out or not.
    pub(super) fn kept(&self) -> u64 {
        let late = self.late.iter().map(|back| u64::from(back.tokens));
        late.sum::<u64>() + u64::from(self.pot.tokens)
    }

    /// Sets aside what has ended by `ticks`, to be given back.
    pub(super) fn expire(&mut self, ticks: u64) {
        if ticks >= self.pot.deadline {
            self.set_aside();
        }
    }

    /// Sets aside what is in the pot, to be given back.
    pub(super) fn set_aside(&mut self) {
        let back = self.pot.back();
        self.pot.tokens = 0;
        if back.tokens == 0 {
            return;
        }
        let mut late = self.late.iter_mut();
        match late.find(|other| other.charged_at == back.charged_at) {
            Some(other) => other.tokens = other.tokens.saturating_add(back.tokens),
            None => self.late.push(back),
        }
    }

    /// Begins a fetch at `ticks` for those who stand; what the word held is in the pot.
    pub(super) fn begin(&mut self, ticks: u64, reserve: Reserve, share: u32) -> Ask {
        self.expire(ticks);
        self.fetching = true;
        self.ordered = self.waiting.len();
        let extra = self.pace.next(ticks, reserve);
        let back = self.late.pop().unwrap_or_default();
        let costs = self.waiting.iter().map(Waiter::cost);
        let least = costs.clone().min().unwrap_or(1).saturating_sub(self.pot.tokens).max(1);
        let needed = costs.fold(0, u32::saturating_add).saturating_sub(self.pot.tokens);
        let order = Order { least, needed: needed.max(least), extra, share, back };
        Ask { order, alone: self.pot.tokens == 0 }
    }

    /// Ends a fetch with the store's reply. Who still stands then needs another one.
    pub(super) fn settle(&mut self, ask: &Ask, reply: &Reply) -> Settled {
        let ticks = reply.received;
        let granted = reply.grant.tokens;
        let cut = granted < ask.order.needed;
        self.pace.fill(ticks, !cut && granted >= ask.order.needed.saturating_add(ask.order.extra));
        self.pour(reply);
        let decision = &reply.grant.decision;
        let told = Told {
            end: self.pot.end,
            deadline: self.pot.deadline,
            remaining: decision.remaining,
            reset_at: decision.reset_at,
            charged_at: reply.now,
            offset: reply.now.wrapping_sub(reply.received),
        };
        let newcomers = self.waiting.split_off(self.ordered.min(self.waiting.len()));
        let ordered = mem::replace(&mut self.waiting, newcomers);
        // What was granted for them was decided at the store, however late the reply is.
        let usable = granted > 0 || ticks < self.pot.deadline;
        let mut kept = VecDeque::new();
        for waiter in self.serve(ordered, usable, &told, reply.received) {
            if !cut {
                // What they counted on in the pot has ended meanwhile: they keep their places.
                kept.push_back(waiter);
            } else if waiter.cost() == ask.order.least {
                let decision = Decision { admitted: false, ..*decision };
                waiter.serve(Outcome::Refused { decision, now: reply.now });
            } else {
                waiter.serve(Outcome::Ask);
            }
        }
        let forgotten =
            if mem::take(&mut self.forgotten) { mem::take(&mut self.pot.tokens) } else { 0 };
        kept.append(&mut self.waiting);
        self.waiting = self.serve(kept, ticks < self.pot.deadline, &told, ticks);
        if cut && granted > 0 {
            // It is all that was left, taken for those who are too dear: others may need it.
            self.set_aside();
        }
        Settled { told: (self.pot.end > 0).then_some(told), forgotten }
    }

    /// Ends a fetch that failed: the pot serves the line as far as it reaches, and nobody stands any
    /// more. `ticks` is `None` where nobody knows the time: then nothing is spent.
    pub(super) fn fail(&mut self, failure: Option<Failure>, ticks: Option<u64>, told: &Told) {
        let waiting = mem::take(&mut self.waiting);
        let live = ticks.is_some_and(|ticks| ticks < self.pot.deadline);
        for waiter in self.serve(waiting, live, told, ticks.unwrap_or(0)) {
            waiter.serve(Outcome::Failed(failure));
        }
        self.forgotten = false;
    }

    /// Puts a grant into the pot.
    fn pour(&mut self, reply: &Reply) {
        let grant = &reply.grant;
        if reply.now >= self.pot.end || (grant.tokens > 0 && grant.end != self.pot.end) {
            self.set_aside();
        }
        if grant.tokens == 0 {
            return;
        }
        self.pot = Pot {
            tokens: self.pot.tokens.saturating_add(grant.tokens),
            // The store's ms and this process' do not begin together, and in a long time they drift apart.
            deadline: reply.sent + grant.end.saturating_sub(reply.now + 1).min(HELD),
            end: grant.end,
        };
    }

    /// Gives tokens of the pot out in order, if they may be spent; returns who is left.
    fn serve(&mut self, line: VecDeque<W>, live: bool, told: &Told, ticks: u64) -> VecDeque<W> {
        let mut left = VecDeque::new();
        for waiter in line {
            let cost = waiter.cost();
            match self.pot.tokens.checked_sub(cost).filter(|_| live) {
                // Who has gone takes nothing.
                Some(rest) => {
                    if waiter.serve(Outcome::Granted(told.taken(ticks, rest))) {
                        self.pot.tokens = rest;
                    }
                }
                None => left.push_back(waiter),
            }
        }
        left
    }
}
