//! One caller under one quota: its tokens, the requests that wait for more, and the fetch in flight.
//!
//! At most one fetch is in flight. While it is, no request takes tokens: what is here is kept for those
//! that wait. Each is decided as if they had come to the store one by one: in order, and one that costs
//! more than is left is passed over.

use std::{mem, sync::Arc};

use smallvec::SmallVec;

use super::{
    chunk_sizer::ChunkSizer,
    snapshot::{LeaseSnapshot, Taken},
    wait_queue::WaitQueue,
    waiter::{Reply, Waiter, WaiterOutcome},
};
use crate::{
    limit::{Back, Decision, Key, Limit, Millis, Order, Quota},
    store::Failure,
};

/// Tokens that no request has taken of for so many ms are given back, though they could be spent still:
/// other gateways may need them.
pub const IDLE: u64 = 1_000;

/// A lease that no request has used for so many ms is removed.
pub const RETIRE: u64 = 10_000;

/// No token is kept for longer, in ms: clocks that differ by a thousandth are 60 ms apart then, and
/// tokens that are used so slowly are better kept at the store.
const MAX_HOLD: u64 = 60_000;

/// Tokens of one sub-window.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct TokenCell {
    count: u32,
    /// The first tick at which none may be spent any more.
    deadline: u64,
    /// The same by the store's clock, in ms; 0 if nothing was granted yet.
    end: Millis,
}

impl TokenCell {
    /// How many may be spent at `ticks`.
    fn live(&self, ticks: u64) -> u32 {
        if ticks < self.deadline { self.count } else { 0 }
    }

    /// Whether what was charged at `now`, by the store's clock, was charged to the sub-window of these
    /// tokens, and that lasts at `ticks`.
    fn covers(&self, quota: &Quota, now: Millis, ticks: u64) -> bool {
        let start = self.end.saturating_sub(quota.sub_window());
        (start..self.end).contains(&now) && ticks < self.deadline
    }
}

/// What a fetch asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct FetchOrder {
    pub(super) order: Order,
    /// Whether no token was here when it began.
    pub(super) is_alone: bool,
}

/// What came of joining the queue.
pub(super) enum Enqueued {
    /// There were tokens: the waiter has been served.
    Served,
    /// It waits behind a fetch in flight.
    Waiting,
    /// It waits, and this has to be asked of the store.
    Fetch(FetchOrder),
}

/// What becomes of the tokens of an order that failed.
pub(super) enum Unfetched {
    /// The order was never sent, or not executed: what it was to give back is still here.
    Kept,
    /// The same, and the operator has deleted the record of what it was to give back.
    Forgotten(u32),
    /// The outcome is unknown: so many are lost at the most.
    Lost(u64),
}

/// The tokens of one caller under one quota at this gateway.
pub(super) struct Lease<W> {
    limit: Arc<Limit>,
    key: Key,
    tokens: TokenCell,
    snapshot: LeaseSnapshot,
    queue: WaitQueue<W>,
    fetch: Option<InFlight>,
    /// Tokens that were not spent before their sub-window ended, and are to be given back.
    unspent: SmallVec<[Back; 2]>,
    sizer: ChunkSizer,
    /// The tick at which tokens were last taken or fetched.
    used_at: u64,
}

/// The fetch that is under way.
#[derive(Clone, Copy)]
struct InFlight {
    /// How many waited when it began.
    ordered: usize,
    /// Whether the operator has deleted the record since.
    is_forgotten: bool,
}

impl<W: Waiter> Lease<W> {
    pub(super) fn new(limit: Arc<Limit>, key: Key, ticks: u64) -> Self {
        Self {
            limit,
            key,
            tokens: TokenCell::default(),
            snapshot: LeaseSnapshot::default(),
            queue: WaitQueue::default(),
            fetch: None,
            unspent: SmallVec::new(),
            sizer: ChunkSizer::default(),
            used_at: ticks,
        }
    }

    pub(super) fn limit(&self) -> &Arc<Limit> {
        &self.limit
    }

    pub(super) fn key(&self) -> Key {
        self.key
    }

    pub(super) fn snapshot(&self) -> LeaseSnapshot {
        self.snapshot
    }

    /// Tokens that are kept here, to be spent or to be given back.
    pub(super) fn outstanding(&self) -> u64 {
        let unspent = self.unspent.iter().map(|back| u64::from(back.tokens));
        unspent.sum::<u64>() + u64::from(self.tokens.count)
    }

    /// Tokens that can be spent here at `ticks`.
    pub(super) fn spendable(&self, ticks: u64) -> u32 {
        self.tokens.live(ticks)
    }

    /// Takes `cost` tokens at `ticks` if they are here and no request waits for them.
    #[inline]
    pub(super) fn take(&mut self, cost: u32, ticks: u64) -> Option<Taken> {
        if self.fetch.is_some() {
            return None;
        }
        let rest = self.tokens.live(ticks).checked_sub(cost)?;
        self.tokens.count = rest;
        self.used_at = ticks;
        Some(self.snapshot.taken(ticks, rest))
    }

    /// Puts back `cost` tokens that were taken at `now`, while their sub-window lasts; what is left then.
    pub(super) fn give_back(&mut self, now: Millis, cost: u32, ticks: u64) -> Option<Taken> {
        if !self.tokens.covers(&self.limit.quota, now, ticks) {
            return None;
        }
        self.tokens.count = self.tokens.count.saturating_add(cost);
        Some(self.snapshot.taken(ticks, self.tokens.count))
    }

    /// Keeps tokens to be given back with the next fetch, or the sweep; false if the operator has deleted
    /// their record.
    pub(super) fn set_aside(&mut self, back: Back) -> bool {
        if self.fetch.is_some_and(|fetch| fetch.is_forgotten) {
            return false;
        }
        let mut unspent = self.unspent.iter_mut();
        match unspent.find(|other| other.charged_at == back.charged_at) {
            Some(other) => other.tokens = other.tokens.saturating_add(back.tokens),
            None if back.tokens > 0 => self.unspent.push(back),
            None => {}
        }
        true
    }

    /// Adds a request at `ticks`, after [`Self::take`] gave nothing.
    pub(super) fn enqueue(&mut self, waiter: W, ticks: u64, share: u32) -> Enqueued {
        self.used_at = ticks;
        if self.fetch.is_some() {
            self.queue.push(waiter);
            return Enqueued::Waiting;
        }
        self.expire(ticks);
        if let Some(rest) = self.tokens.count.checked_sub(waiter.cost()) {
            if waiter.serve(WaiterOutcome::Granted(self.snapshot.taken(ticks, rest))) {
                self.tokens.count = rest;
            }
            return Enqueued::Served;
        }
        self.queue.push(waiter);
        Enqueued::Fetch(self.begin(ticks, share))
    }

    /// Begins a fetch at `ticks` for the requests that wait.
    fn begin(&mut self, ticks: u64, share: u32) -> FetchOrder {
        self.expire(ticks);
        self.fetch = Some(InFlight { ordered: self.queue.len(), is_forgotten: false });
        let extra = self.sizer.next(ticks, self.limit.reserve);
        let back = self.unspent.pop().unwrap_or_default();
        let (cheapest, all) = self.queue.costs();
        let least = cheapest.saturating_sub(self.tokens.count).max(1);
        let needed = all.saturating_sub(self.tokens.count).max(least);
        let order = Order { least, needed, extra, share, back };
        FetchOrder { order, is_alone: self.tokens.count == 0 }
    }

    /// Ends a fetch with the store's reply. Returns the next, if requests still wait, and how many tokens
    /// the operator has forgotten.
    pub(super) fn complete(
        &mut self,
        ask: &FetchOrder,
        reply: &Reply,
        share: u32,
    ) -> (Option<FetchOrder>, u32) {
        let Reply { grant, now, received, .. } = reply;
        let Order { least, needed, extra, .. } = ask.order;
        let decision = grant.decision;
        let is_cut = grant.tokens < needed;
        self.used_at = *received;
        self.sizer.fill(*received, grant.tokens >= needed.saturating_add(extra));
        self.receive(reply);
        self.snapshot = LeaseSnapshot {
            end: self.tokens.end,
            remaining: decision.remaining,
            reset_at: decision.reset_at,
            charged_at: *now,
            offset: now.wrapping_sub(*received),
        };
        let fetch = self.fetch.take();
        let newcomers = self.queue.split_off(fetch.map_or(0, |fetch| fetch.ordered));
        // What was granted for them was decided at the store, however late the reply is.
        if grant.tokens > 0 || *received < self.tokens.deadline {
            self.grant(*received);
        }
        if is_cut {
            let decision = Decision { admitted: false, ..decision };
            let refused = WaiterOutcome::Refused { decision, now: *now };
            let queue = mem::take(&mut self.queue);
            queue.end(|cost| if cost == least { refused } else { WaiterOutcome::Ask });
        }
        // Otherwise the tokens here that they counted on have ended meanwhile: they keep their places.
        let is_forgotten = fetch.is_some_and(|fetch| fetch.is_forgotten);
        let forgotten = if is_forgotten { mem::take(&mut self.tokens.count) } else { 0 };
        self.queue.append(newcomers);
        if *received < self.tokens.deadline {
            self.grant(*received);
        }
        if is_cut && grant.tokens > 0 {
            // It is all that was left, taken for requests that cost more: others may need it.
            self.set_aside_all();
        }
        let next = (!self.queue.is_empty()).then(|| self.begin(*received, share));
        (next, forgotten)
    }

    /// Ends a fetch that failed, or was abandoned (`None`) at a time that is unknown: what is here serves
    /// the requests that wait as far as it reaches, and no request waits any more. Returns what became of
    /// the order's tokens.
    pub(super) fn fail(&mut self, ask: &FetchOrder, failure: Option<(Failure, u64)>) -> Unfetched {
        let Order { needed, extra, back, .. } = ask.order;
        let is_unknown = !matches!(failure, Some((Failure::Open | Failure::Server, _)));
        let unfetched = if is_unknown {
            Unfetched::Lost([needed, extra, back.tokens].map(u64::from).iter().sum())
        } else if self.set_aside(back) {
            Unfetched::Kept
        } else {
            Unfetched::Forgotten(back.tokens)
        };
        if let Some((_, ticks)) = failure.filter(|&(_, ticks)| ticks < self.tokens.deadline) {
            self.grant(ticks);
        }
        self.fetch = None;
        let failure = failure.map(|(failure, _)| failure);
        mem::take(&mut self.queue).end(|_| WaiterOutcome::Failed(failure));
        unfetched
    }

    /// Spends tokens for the requests that wait.
    fn grant(&mut self, ticks: u64) {
        let Self { queue, tokens, snapshot, .. } = self;
        queue.grant(&mut tokens.count, |rest| WaiterOutcome::Granted(snapshot.taken(ticks, rest)));
    }

    /// Adds a grant to the tokens that are here.
    fn receive(&mut self, reply: &Reply) {
        let grant = &reply.grant;
        let is_other = grant.tokens > 0 && grant.end != self.tokens.end;
        if reply.now >= self.tokens.end || is_other {
            self.set_aside_all();
        }
        if grant.tokens == 0 {
            return;
        }
        self.tokens = TokenCell {
            count: self.tokens.count.saturating_add(grant.tokens),
            // The store's ms and this process' do not begin together, and in a long time they drift apart.
            deadline: reply.sent + grant.end.saturating_sub(reply.now + 1).min(MAX_HOLD),
            end: grant.end,
        };
    }

    fn expire(&mut self, ticks: u64) {
        if ticks >= self.tokens.deadline {
            self.set_aside_all();
        }
    }

    /// Sets aside all tokens that are here.
    fn set_aside_all(&mut self) {
        // Any time in their sub-window will do.
        let charged_at = self.tokens.end.saturating_sub(1);
        let back = Back { charged_at, tokens: mem::take(&mut self.tokens.count) };
        // From here they go to what is left at the store: the sum that clients are told stays.
        self.snapshot.remaining += u64::from(back.tokens);
        self.set_aside(back);
    }

    /// Forgets all tokens: the operator has deleted the record, and what is in flight was charged to it.
    /// Returns how many.
    pub(super) fn forget(&mut self) -> u64 {
        let count = self.outstanding();
        self.tokens = TokenCell::default();
        self.unspent.clear();
        if let Some(fetch) = &mut self.fetch {
            fetch.is_forgotten = true;
        }
        count
    }

    /// Sets aside what no request has used for [`IDLE`], and gives `out` what has to go back to the
    /// store, unless the store cannot be reached now; then all stays. Returns whether to remove the lease.
    pub(super) fn sweep(
        &mut self,
        ticks: u64,
        is_reachable: impl FnOnce(Key) -> bool,
        out: &mut Vec<Back>,
    ) -> bool {
        let unused = if self.fetch.is_some() { 0 } else { ticks.saturating_sub(self.used_at) };
        if unused < IDLE && self.unspent.is_empty() {
            return false;
        }
        if self.outstanding() > 0 && !is_reachable(self.key) {
            return false;
        }
        if unused >= IDLE && self.tokens.count > 0 {
            self.set_aside_all();
            self.sizer.shrink();
        }
        out.extend(self.unspent.drain(..));
        unused >= RETIRE
    }

    /// Gives `out` all tokens that are here. Returns whether to remove the lease: no fetch is in flight.
    pub(super) fn drain(&mut self, out: &mut Vec<Back>) -> bool {
        let is_idle = self.fetch.is_none();
        if is_idle {
            self.set_aside_all();
        }
        out.extend(self.unspent.drain(..));
        is_idle
    }
}
