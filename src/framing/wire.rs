//! What a connection, its requests and the worker's sweep know of one another.
//!
//! Deadlines are swept, not scheduled: a connection notes what it waits for and since when, in cells
//! that cost a store, and the worker looks at all of them a few times a second.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    task::Waker,
};

use super::fault::Fault;

/// What a connection waits for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Phase {
    /// The first byte of a further request.
    Idle,
    /// The rest of a head; also the first byte after the accept.
    Head,
    /// More of a request's body, wanted here and not come yet.
    Body,
    /// The client to take what is written.
    Write,
    /// The head of the upstream's answer, or its turn to be forwarded.
    Answer,
    /// The end of a request as a whole.
    Busy,
}

/// How long each phase may last, in ms.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// From the accept, or a head's first byte, to its last.
    pub head: u64,
    /// Between two requests.
    pub idle: u64,
    /// Between two reads of a body, and between two writes of an answer.
    pub body: u64,
}

/// One client connection as its parts share it. Times are the worker's coarse clock, in ms.
#[derive(Debug)]
pub struct Wire {
    clock: Rc<Cell<u64>>,
    phase: Cell<Phase>,
    since: Cell<u64>,
    writing_since: Cell<Option<u64>>,
    request_until: Cell<u64>,
    answer_within: Cell<u64>,
    answer_until: Cell<u64>,
    body_fault: Cell<Option<bool>>,
    busy: Cell<bool>,
    held_back: Cell<bool>,
    fault: Cell<Option<Fault>>,
    expired: Cell<Option<Phase>>,
    linger: Cell<bool>,
    ahead: Cell<bool>,
    last: Cell<bool>,
    broken: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Wire {
    /// A connection that was just accepted. `clock` holds the worker's coarse time, in ms.
    pub fn new(clock: Rc<Cell<u64>>) -> Self {
        Self {
            since: Cell::new(clock.get()),
            clock,
            phase: Cell::new(Phase::Head),
            writing_since: Cell::new(None),
            request_until: Cell::new(u64::MAX),
            answer_within: Cell::new(0),
            answer_until: Cell::new(u64::MAX),
            body_fault: Cell::new(None),
            busy: Cell::new(false),
            held_back: Cell::new(false),
            fault: Cell::new(None),
            expired: Cell::new(None),
            linger: Cell::new(false),
            ahead: Cell::new(false),
            last: Cell::new(false),
            broken: Cell::new(false),
            waker: RefCell::new(None),
        }
    }

    /// Notes that the connection waits for something else from now on.
    pub(super) fn enter(&self, phase: Phase) {
        self.phase.set(phase);
        self.since.set(self.clock.get());
    }

    pub(super) fn phase(&self) -> Phase {
        self.phase.get()
    }

    pub(super) fn write_blocked(&self, blocked: bool) {
        if !blocked {
            self.writing_since.set(None);
        } else if self.writing_since.get().is_none() {
            self.writing_since.set(Some(self.clock.get()));
        }
    }

    /// A request's head is whole; nothing of the next request counts before [`Self::finish`].
    pub(super) fn begin(&self) {
        self.busy.set(true);
        self.body_fault.set(None);
        self.expired.set(None);
        self.enter(Phase::Busy);
    }

    /// The request's answer must be written before `timeout` ms have passed.
    pub fn allow(&self, timeout: u64) {
        self.request_until.set(self.clock.get().saturating_add(timeout));
    }

    /// The request waits for its turn, its body unread: until [`Self::let_go`] no deadline holds but its
    /// own, and that one can be answered.
    pub fn hold_back(&self) {
        self.held_back.set(true);
    }

    /// Ends [`Self::hold_back`].
    pub fn let_go(&self) {
        self.held_back.set(false);
        if self.phase.get() == Phase::Body {
            self.enter(Phase::Body);
        }
    }

    /// Whether the request waits for its turn.
    pub fn is_held_back(&self) -> bool {
        self.held_back.get()
    }

    /// The upstream is asked; the head of its answer must come within `timeout` ms, counted from the
    /// last progress of the request's body.
    pub fn await_answer(&self, timeout: u64) {
        self.answer_within.set(timeout);
        self.answer_until.set(self.clock.get().saturating_add(timeout));
    }

    /// The answer's head has come, or is no longer waited for.
    pub fn answered(&self) {
        self.answer_until.set(u64::MAX);
    }

    /// Another part of the request's body went on to the upstream.
    pub fn body_moved(&self) {
        if self.answer_until.get() != u64::MAX {
            self.await_answer(self.answer_within.get());
        }
    }

    /// The request's body was too long, or else could not be read.
    pub fn fail_body(&self, too_long: bool) {
        self.body_fault.set(Some(too_long));
        self.linger.set(true);
    }

    /// What [`Self::fail_body`] was told, if it was.
    pub fn body_fault(&self) -> Option<bool> {
        self.body_fault.get()
    }

    /// The answer's last byte has been handed over.
    pub fn finish(&self) {
        self.busy.set(false);
        self.request_until.set(u64::MAX);
        self.answer_until.set(u64::MAX);
        let phase = self.phase.get();
        self.enter(if phase == Phase::Busy { Phase::Idle } else { phase });
        if self.ahead.take() {
            self.wake();
        }
    }

    /// Bytes of a further request wait for the end of this one.
    pub(super) fn hold_ahead(&self) {
        self.ahead.set(true);
    }

    /// Whether a request is being answered.
    pub fn is_busy(&self) -> bool {
        self.busy.get()
    }

    pub(super) fn fail(&self, fault: Fault) {
        self.fault.set(Some(fault));
        self.linger.set(true);
    }

    /// What was wrong with what the client sent, if anything was.
    pub fn fault(&self) -> Option<Fault> {
        self.fault.get()
    }

    /// Asks that the connection, once closed, first takes in what the client is still sending: a
    /// close with bytes unread resets the connection and can destroy the answer on its way.
    pub fn linger(&self) {
        self.linger.set(true);
    }

    /// Whether [`Self::linger`] was asked for.
    pub fn lingers(&self) -> bool {
        self.linger.get()
    }

    /// Asks that the request in flight, or the next one, is the connection's last.
    pub fn end_soon(&self) {
        self.last.set(true);
    }

    /// Whether [`Self::end_soon`] was asked for.
    pub fn is_last(&self) -> bool {
        self.last.get()
    }

    /// Asks that the connection is reset, not closed: its close would look like an answer's end.
    pub fn break_off(&self) {
        self.broken.set(true);
    }

    /// Whether [`Self::break_off`] was asked for.
    pub fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// Which deadline has passed at `now`, if one has.
    pub fn overdue(&self, now: u64, deadlines: &Deadlines) -> Option<Phase> {
        let passed = |since: u64, limit: u64| now.saturating_sub(since) > limit;
        let awaited = self.answer_until.get();
        if now > awaited || (awaited != u64::MAX && now > self.request_until.get()) {
            return Some(Phase::Answer);
        }
        if now > self.request_until.get() {
            return Some(if self.held_back.get() { Phase::Answer } else { Phase::Busy });
        }
        if self.writing_since.get().is_some_and(|since| passed(since, deadlines.body)) {
            return Some(Phase::Write);
        }
        let phase = self.phase.get();
        let limit = match phase {
            Phase::Idle if !self.busy.get() => deadlines.idle,
            Phase::Head if !self.busy.get() => deadlines.head,
            Phase::Body if !self.held_back.get() => deadlines.body,
            _ => return None,
        };
        passed(self.since.get(), limit).then_some(phase)
    }

    /// Ends what the connection waits for: its task wakes and finds the phase expired.
    pub fn expire(&self, phase: Phase) {
        self.expired.set(Some(phase));
        self.wake();
    }

    /// Lets the connection's task look around.
    pub fn wake(&self) {
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }

    /// The phase that expired, if one has.
    pub fn expired(&self) -> Option<Phase> {
        self.expired.get()
    }

    /// Keeps the connection's task reachable for [`Self::expire`].
    pub fn register(&self, waker: &Waker) {
        let mut kept = self.waker.borrow_mut();
        if !kept.as_ref().is_some_and(|kept| kept.will_wake(waker)) {
            *kept = Some(waker.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINES: Deadlines = Deadlines { head: 100, idle: 200, body: 50 };

    fn wire() -> (Wire, Rc<Cell<u64>>) {
        let clock = Rc::new(Cell::new(1000));
        (Wire::new(clock.clone()), clock)
    }

    #[test]
    fn a_silent_connection_has_the_heads_deadline_and_an_idle_one_its_own() {
        let (wire, _) = wire();
        assert_eq!(wire.overdue(1100, &DEADLINES), None);
        assert_eq!(wire.overdue(1101, &DEADLINES), Some(Phase::Head));
        wire.enter(Phase::Idle);
        assert_eq!(wire.overdue(1200, &DEADLINES), None);
        assert_eq!(wire.overdue(1201, &DEADLINES), Some(Phase::Idle));
    }

    #[test]
    fn a_request_in_flight_is_held_to_its_own_deadline_only() {
        let (wire, clock) = wire();
        wire.enter(Phase::Idle);
        wire.begin();
        wire.allow(1000);
        assert_eq!(wire.overdue(2000, &DEADLINES), None);
        assert_eq!(wire.overdue(2001, &DEADLINES), Some(Phase::Busy));
        clock.set(1900);
        wire.finish();
        assert_eq!(wire.overdue(2100, &DEADLINES), None);
        assert_eq!(wire.overdue(2101, &DEADLINES), Some(Phase::Idle));
    }

    #[test]
    fn a_stalled_body_and_a_stalled_reader_are_overdue() {
        let (wire, clock) = wire();
        wire.begin();
        wire.allow(10_000);
        wire.enter(Phase::Body);
        assert_eq!(wire.overdue(1051, &DEADLINES), Some(Phase::Body));
        wire.enter(Phase::Busy);
        wire.write_blocked(true);
        clock.set(1040);
        wire.write_blocked(true);
        assert_eq!(wire.overdue(1051, &DEADLINES), Some(Phase::Write));
        wire.write_blocked(false);
        assert_eq!(wire.overdue(1051, &DEADLINES), None);
    }

    #[test]
    fn a_request_that_waits_for_its_turn_is_held_to_its_own_deadline_only() {
        let (wire, clock) = wire();
        wire.begin();
        wire.allow(1000);
        wire.enter(Phase::Body);
        wire.hold_back();
        assert_eq!(wire.overdue(2000, &DEADLINES), None);
        assert_eq!(wire.overdue(2001, &DEADLINES), Some(Phase::Answer));
        clock.set(1500);
        wire.let_go();
        assert_eq!(wire.overdue(1550, &DEADLINES), None);
        assert_eq!(wire.overdue(1551, &DEADLINES), Some(Phase::Body));
    }

    #[test]
    fn what_an_upstream_failed_at_does_not_outlast_its_request() {
        let (wire, clock) = wire();
        wire.begin();
        wire.allow(10_000);
        wire.await_answer(30);
        assert_eq!(wire.overdue(1031, &DEADLINES), Some(Phase::Answer));
        clock.set(1031);
        wire.finish();
        assert_eq!(wire.overdue(1231, &DEADLINES), None);
        assert_eq!(wire.overdue(1232, &DEADLINES), Some(Phase::Idle));
    }

    #[test]
    fn a_body_that_moves_after_the_answer_awaits_none() {
        let (wire, _) = wire();
        wire.begin();
        wire.allow(10_000);
        wire.await_answer(30);
        wire.answered();
        wire.body_moved();
        assert_eq!(wire.overdue(2000, &DEADLINES), None);
    }
}
