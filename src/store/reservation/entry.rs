//! One caller under one quota: the word, what was told, and the line.

use std::sync::Arc;

use super::{
    Outcome, Reply, Taken, Waiter,
    atomics::{Atomics, Lock, Native},
    book::{GiveBack, Name, Tally},
    fetching::Fetching,
    line::{Ask, Line},
    told::{Board, Told},
    word::{MAX_TOKENS, Tokens, Word},
};
use crate::{
    limit::{Back, Key, Limit, Millis},
    store::Failure,
};

/// Tokens that nobody has taken of for so many ms are given back, though they could be spent still:
/// others may need them.
pub const IDLE: u64 = 1_000;

/// An entry that nobody has used for so many ms leaves the book.
pub const RETIRE: u64 = 10_000;

/// What came of joining the line.
pub enum Joined<W: Waiter, A: Atomics = Native> {
    /// There were tokens after all: the waiter has been told.
    Served,
    /// It stands in line, behind a fetch in flight.
    Waiting,
    /// It stands in line, and whoever joined must now ask the store.
    Fetch(Fetching<W, A>),
    /// The entry has left the book, or the book is full: nothing can be had here.
    Gone(W),
}

/// The tokens of one caller under one quota at this gateway.
pub struct Entry<W: Waiter, A: Atomics = Native> {
    word: Word<A>,
    board: Board<A>,
    line: A::Lock<Line<W>>,
    name: Name,
    limit: Arc<Limit>,
    key: Key,
    tally: Arc<Tally>,
}

impl<W: Waiter, A: Atomics> Entry<W, A> {
    pub(super) fn new(name: Name, limit: Arc<Limit>, key: Key, tally: Arc<Tally>) -> Self {
        Self {
            word: Word::default(),
            board: Board::default(),
            line: A::Lock::new(Line::default()),
            name,
            limit,
            key,
            tally,
        }
    }

    /// The limit that is counted.
    pub fn limit(&self) -> &Arc<Limit> {
        &self.limit
    }

    /// Who is counted.
    pub fn key(&self) -> Key {
        self.key
    }

    pub(super) fn name(&self) -> Name {
        self.name
    }

    /// Takes `cost` tokens (at least 1) at `ticks` if they are here. No lock, but where a reply comes at
    /// this very moment; nobody who stands in line is overtaken.
    #[inline]
    pub fn take(&self, cost: u32, ticks: u64) -> Option<Taken> {
        let before = self.board.read();
        let left = self.word.take(cost, ticks)?;
        match before {
            Some((version, told)) if self.board.is_current(version) => {
                Some(told.taken(ticks, left.count))
            }
            _ => Some(self.taken_meanwhile(ticks)),
        }
    }

    /// What is left here belongs to another reply than the one that can be read now: it is left out.
    #[cold]
    fn taken_meanwhile(&self, ticks: u64) -> Taken {
        self.line.with(|_| self.board.read_locked()).taken(ticks, 0)
    }

    /// Gives back `cost` tokens that were taken here at `now` ([`Taken::now`]) while their sub-window
    /// lasts, for the next to take: the store hears nothing of it. False if it has ended, or nothing is
    /// kept here any more: then they are refunded at the store, at that time.
    pub fn give_back(&self, now: Millis, cost: u32, ticks: u64) -> bool {
        let span = self.limit.quota.sub_window();
        let lasts = |end: Millis, deadline: u64| {
            (end.saturating_sub(span)..end).contains(&now) && ticks < deadline
        };
        if let Some((_, told)) = self.board.read()
            && lasts(told.end, told.deadline)
            && self.word.give(told.deadline, cost)
        {
            return true;
        }
        self.line.with(|line| {
            let kept = line.fetching && lasts(line.pot.end, line.pot.deadline);
            if kept {
                line.pot.tokens = line.pot.tokens.saturating_add(cost);
            }
            kept
        })
    }

    /// Puts back `cost` tokens that were taken at `now`, and whose sub-window has ended: the store is told
    /// with the next fetch, or the sweep.
    pub fn set_aside(&self, now: Millis, cost: u32) {
        self.line.with(|line| {
            if line.retired || line.forgotten {
                self.tally.forgot(cost.into());
            } else {
                line.late.push(Back { charged_at: now, tokens: cost });
            }
        });
    }

    /// Stands in line at `ticks`, after [`Self::take`] gave nothing.
    pub fn join(self: &Arc<Self>, waiter: W, ticks: u64) -> Joined<W, A> {
        self.line.with(|line| {
            if line.retired {
                return Joined::Gone(waiter);
            }
            if line.fetching {
                line.stand(waiter);
                return Joined::Waiting;
            }
            line.pot.tokens = self.word.claim().count;
            line.expire(ticks);
            if let Some(rest) = line.pot.tokens.checked_sub(waiter.cost()) {
                let told = self.board.read_locked();
                if waiter.serve(Outcome::Granted(told.taken(ticks, rest))) {
                    line.pot.tokens = rest;
                }
                self.publish(line);
                return Joined::Served;
            }
            line.stand(waiter);
            let ask = line.begin(ticks, self.limit.reserve, self.tally.share());
            Joined::Fetch(Fetching::new(Arc::clone(self), ask))
        })
    }

    /// Puts what is in the pot into the word, where nobody stands in line.
    fn publish(&self, line: &mut Line<W>) {
        line.fetching = false;
        let pot = line.pot;
        if pot.end == 0 {
            return;
        }
        let kept = pot.tokens.min(MAX_TOKENS);
        line.pot.tokens -= kept;
        line.set_aside();
        self.word.publish(Tokens { deadline: pot.deadline, count: kept });
    }

    pub(super) fn complete(&self, ask: &Ask, reply: &Reply) -> Option<Ask> {
        self.line.with(|line| {
            let settled = line.settle(ask, reply);
            self.tally.granted(reply.grant.tokens, ask.order.back.tokens);
            self.tally.forgot(u64::from(settled.forgotten));
            line.seen.1 = reply.received;
            if let Some(told) = settled.told {
                self.board.write(&told);
            }
            if line.is_empty() {
                self.publish(line);
                return None;
            }
            Some(line.begin(reply.received, self.limit.reserve, self.tally.share()))
        })
    }

    pub(super) fn fail(&self, ask: &Ask, failure: Option<Failure>, ticks: Option<u64>) {
        self.line.with(|line| {
            let order = &ask.order;
            if matches!(failure, Some(Failure::Open | Failure::Server)) {
                // It was never sent, or not made.
                if order.back.tokens > 0 && !line.forgotten {
                    line.late.push(order.back);
                }
            } else {
                self.tally.lost(order);
            }
            line.fail(failure, ticks, &self.board.read_locked());
            self.publish(line);
        });
    }

    /// Forgets all tokens: the operator has deleted the record, and what is in flight was charged to it.
    pub(super) fn forget(&self) {
        self.line.with(|line| {
            let count = u64::from(self.word.claim().count) + line.kept();
            self.tally.forgot(count);
            line.pot = super::line::Pot::default();
            line.late.clear();
            line.forgotten = line.fetching;
        });
    }

    /// Looks after it at `ticks`: gives `out` what has to go back to the store, if that can be told, which
    /// is asked only where it matters; else all stays. Returns whether it has left for good. With `ticks`
    /// at [`u64::MAX`], everything goes.
    pub(super) fn sweep(
        &self,
        ticks: u64,
        can_tell: impl FnOnce(Key) -> bool,
        out: &mut Vec<GiveBack>,
    ) -> bool {
        self.line.with(|line| {
            let held = self.word.peek();
            if !line.fetching && held != line.seen.0 {
                line.seen = (held, if ticks == u64::MAX { 0 } else { ticks });
            }
            let unused = ticks.saturating_sub(line.seen.1);
            let due = !line.late.is_empty() || (!line.fetching && unused >= IDLE);
            let keeps = held.count > 0 || line.kept() > 0;
            if !due || (keeps && !can_tell(self.key)) {
                return line.retired;
            }
            if !line.fetching {
                if unused >= IDLE && held.count > 0 {
                    line.pot.tokens = self.word.claim().count;
                    line.set_aside();
                    line.pace.shrink();
                    line.seen.0 = self.word.peek();
                }
                if unused >= RETIRE && self.word.peek().count == 0 {
                    // Nothing is published any more, and the empty word takes nothing back.
                    line.pot.tokens = self.word.claim().count;
                    line.set_aside();
                    line.retired = true;
                }
            }
            for back in line.late.drain(..) {
                self.tally.gave_back(back.tokens);
                out.push(GiveBack { limit: Arc::clone(&self.limit), key: self.key, back });
            }
            line.retired
        })
    }

    /// Tokens that are kept here: in the word, the pot, and what is to be given back.
    pub(super) fn outstanding(&self) -> u64 {
        self.line.with(|line| u64::from(self.word.peek().count) + line.kept())
    }

    /// Tokens that can be spent here at `ticks`.
    pub(super) fn spendable(&self, ticks: u64) -> u32 {
        let live = |count: u32, deadline: u64| if ticks < deadline { count } else { 0 };
        self.line.with(|line| {
            let held = self.word.peek();
            live(held.count, held.deadline) + live(line.pot.tokens, line.pot.deadline)
        })
    }

    /// Whether it has left the book.
    pub(super) fn is_retired(&self) -> bool {
        self.line.with(|line| line.retired)
    }

    /// What was last told.
    pub fn told(&self) -> Told {
        self.line.with(|_| self.board.read_locked())
    }
}

/// What may be put back into the store's record.
impl From<Back> for crate::limit::Change {
    fn from(Back { charged_at, tokens }: Back) -> Self {
        Self::Refund { charged_at, cost: tokens }
    }
}
