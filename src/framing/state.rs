//! What a connection waits for, and for how long.
//!
//! Deadlines are swept, not scheduled: the connection keeps its state in a cell, which costs a store,
//! and the worker looks at all of them a few times a second. All times are the worker's coarse clock,
//! in ms.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    task::Waker,
};

/// What a connection waits for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConnectionState {
    /// The first byte of a further request.
    Idle {
        /// The end of the request before.
        since: u64,
    },
    /// The end of a head.
    Head {
        /// The head's first byte; of the first head, the accept.
        since: u64,
    },
    /// The head of the answer.
    Request {
        /// The end of [`Self::Request`] as a whole; `None` until the route is known, or for ever.
        until: Option<u64>,
        /// Who is waited for now.
        wait: Wait,
    },
    /// The end of the answer.
    Answer {
        /// The end of the answer as a whole, where it has one.
        until: Option<u64>,
        /// The longest gap in what the upstream sends, where it is bounded.
        gap: Option<u64>,
        /// Who is waited for now.
        wait: Wait,
    },
    /// The rest of a request's body, which is thrown away.
    Drain {
        /// The end of it.
        until: u64,
    },
    /// The client's own close, while what it still sends is thrown away.
    Linger {
        /// When something came last.
        since: u64,
        /// The end of it, whatever comes.
        until: u64,
    },
}

/// Who is waited for while a request is served.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Wait {
    /// Nobody with a deadline of their own: a limit's store, a delay, a connection to the upstream.
    Gateway,
    /// The client, to send more of its body.
    ClientBody {
        /// When it sent something last.
        since: u64,
    },
    /// The client, to take what is written.
    ClientRead {
        /// When it took something last.
        since: u64,
    },
    /// The upstream.
    Upstream {
        /// When it, or the request's body, moved last.
        since: u64,
        /// How long it may take to the head of the answer.
        within: Option<u64>,
    },
}

/// A deadline that has passed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Timeout {
    /// No further request came.
    Idle,
    /// A head did not end.
    Head,
    /// The client did not go on with its body.
    ClientBody,
    /// The client did not go on reading.
    ClientRead,
    /// The upstream did not answer in its time.
    Upstream,
    /// The request as a whole took too long.
    Request,
    /// The upstream did not go on with the answer.
    AnswerIdle,
    /// The answer as a whole took too long.
    Answer,
    /// The rest of a body did not come, or a client did not close.
    Close,
}

/// How long a client may take, in ms; `None`: for ever.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// From the accept, or a head's first byte, to its last.
    pub head: Option<u64>,
    /// Between two requests.
    pub idle: Option<u64>,
    /// Between two reads of a body, and between two writes of an answer.
    pub body: Option<u64>,
}

/// A lingering connection is closed after so long without a byte, in ms.
const LINGER_GAP: u64 = 2_000;

impl ConnectionState {
    /// The deadline that has passed at `now`, if one has.
    pub fn overdue(self, now: u64, deadlines: &Deadlines) -> Option<Timeout> {
        let passed = |since: u64, limit: Option<u64>| {
            limit.is_some_and(|limit| now.saturating_sub(since) > limit)
        };
        let over = |until: Option<u64>| until.is_some_and(|until| now > until);
        match self {
            Self::Idle { since } => passed(since, deadlines.idle).then_some(Timeout::Idle),
            Self::Head { since } => passed(since, deadlines.head).then_some(Timeout::Head),
            Self::Request { until, wait } => {
                match wait {
                    Wait::ClientBody { since } => (passed(since, deadlines.body) || over(until))
                        .then_some(Timeout::ClientBody),
                    Wait::ClientRead { since } => (passed(since, deadlines.body) || over(until))
                        .then_some(Timeout::ClientRead),
                    Wait::Upstream { since, within } if passed(since, within) => {
                        Some(Timeout::Upstream)
                    }
                    _ => over(until).then_some(Timeout::Request),
                }
            }
            Self::Answer { until, gap, wait } => match wait {
                _ if over(until) => Some(Timeout::Answer),
                Wait::ClientBody { since } => {
                    passed(since, deadlines.body).then_some(Timeout::ClientBody)
                }
                Wait::ClientRead { since } => {
                    passed(since, deadlines.body).then_some(Timeout::ClientRead)
                }
                Wait::Upstream { since, .. } => passed(since, gap).then_some(Timeout::AnswerIdle),
                Wait::Gateway => None,
            },
            Self::Drain { until } => (now > until).then_some(Timeout::Close),
            Self::Linger { since, until } => {
                (now > until || passed(since, Some(LINGER_GAP))).then_some(Timeout::Close)
            }
        }
    }
}

/// How far a connection is asked to end.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Ending {
    /// It goes on.
    No,
    /// After the request that it is in, or the next one.
    Soon,
    /// As soon as no request is being read or answered.
    WhenIdle,
    /// At once, whatever it does.
    Now,
}

/// One connection's state, as its task and the worker's sweep share it. Of HTTP/2 each stream has one.
#[derive(Debug)]
pub struct StateCell {
    clock: Rc<Cell<u64>>,
    state: Cell<ConnectionState>,
    timeout: Cell<Option<Timeout>>,
    ending: Cell<Ending>,
    waker: RefCell<Option<Waker>>,
}

impl StateCell {
    /// A connection that was just accepted. `clock` holds the worker's coarse time, in ms.
    pub fn new(clock: Rc<Cell<u64>>) -> Self {
        let state = Cell::new(ConnectionState::Head { since: clock.get() });
        let (timeout, ending) = (Cell::new(None), Cell::new(Ending::No));
        Self { clock, state, timeout, ending, waker: RefCell::new(None) }
    }

    /// The worker's coarse time, in ms.
    pub fn now(&self) -> u64 {
        self.clock.get()
    }

    /// What is waited for.
    pub fn get(&self) -> ConnectionState {
        self.state.get()
    }

    /// Waits for something else from now on; what had passed before counts no more.
    pub fn enter(&self, state: ConnectionState) {
        self.state.set(state);
        self.timeout.set(None);
    }

    /// A head is whole: a request is served from now on, with no deadline of its own yet.
    pub fn begin_request(&self) {
        self.enter(ConnectionState::Request { until: None, wait: Wait::Gateway });
    }

    /// The answer's head must be there before `timeout` ms have passed.
    pub fn allow(&self, timeout: Option<u64>) {
        if let ConnectionState::Request { wait, .. } = self.state.get() {
            let until = timeout.map(|timeout| self.now().saturating_add(timeout));
            self.state.set(ConnectionState::Request { until, wait });
        }
    }

    /// The answer's head is there; `gap` and `timeout` bound the rest of it, in ms.
    pub fn begin_answer(&self, gap: Option<u64>, timeout: Option<u64>) {
        let until = timeout.map(|timeout| self.now().saturating_add(timeout));
        self.enter(ConnectionState::Answer { until, gap, wait: Wait::Gateway });
    }

    /// Says who is waited for from now on, while a request is served.
    pub fn wait_for(&self, wait: Wait) {
        self.state.set(match self.state.get() {
            ConnectionState::Request { until, .. } => ConnectionState::Request { until, wait },
            ConnectionState::Answer { until, gap, .. } => {
                ConnectionState::Answer { until, gap, wait }
            }
            other => other,
        });
    }

    fn wait(&self) -> Option<Wait> {
        match self.state.get() {
            ConnectionState::Request { wait, .. } | ConnectionState::Answer { wait, .. } => {
                Some(wait)
            }
            _ => None,
        }
    }

    /// The client is waited for to send more of its body; nothing new if it was before.
    pub fn wait_for_body(&self) {
        if !matches!(self.wait(), Some(Wait::ClientBody { .. })) {
            self.wait_for(Wait::ClientBody { since: self.now() });
        }
    }

    /// The client is waited for to take what is written; nothing new if it was before.
    pub fn wait_for_reader(&self) {
        if !matches!(self.wait(), Some(Wait::ClientRead { .. })) {
            self.wait_for(Wait::ClientRead { since: self.now() });
        }
    }

    /// The upstream is waited for; nothing new if it was before. `within`: to the answer's head, in ms.
    pub fn wait_for_upstream(&self, within: Option<u64>) {
        if !matches!(self.wait(), Some(Wait::Upstream { .. })) {
            self.wait_for(Wait::Upstream { since: self.now(), within });
        }
    }

    /// The deadline that has passed, if one has since the state was entered.
    pub fn timeout(&self) -> Option<Timeout> {
        self.timeout.get()
    }

    /// Ends what is waited for: the connection's task wakes and finds the deadline passed.
    pub fn expire(&self, timeout: Timeout) {
        self.timeout.set(Some(timeout));
        self.wake();
    }

    /// How far the connection is asked to end.
    pub fn ending(&self) -> Ending {
        self.ending.get()
    }

    /// Asks the connection to end, no later than `ending` says.
    pub fn end(&self, ending: Ending) {
        self.ending.set(self.ending.get().max(ending));
        self.wake();
    }

    /// Lets the connection's task look around.
    pub fn wake(&self) {
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }

    /// Keeps the connection's task reachable.
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

    const DEADLINES: Deadlines = Deadlines { head: Some(100), idle: Some(200), body: Some(50) };

    fn cell(now: u64) -> (StateCell, Rc<Cell<u64>>) {
        let clock = Rc::new(Cell::new(now));
        (StateCell::new(clock.clone()), clock)
    }

    fn due(cell: &StateCell, now: u64) -> Option<Timeout> {
        cell.get().overdue(now, &DEADLINES)
    }

    #[test]
    fn a_silent_connection_has_the_heads_deadline_and_an_idle_one_its_own() {
        let (cell, _) = cell(1000);
        assert_eq!((due(&cell, 1100), due(&cell, 1101)), (None, Some(Timeout::Head)));
        cell.enter(ConnectionState::Idle { since: 1000 });
        assert_eq!((due(&cell, 1200), due(&cell, 1201)), (None, Some(Timeout::Idle)));
    }

    #[test]
    fn a_request_is_held_to_its_routes_deadline_whatever_the_gateway_does() {
        let (cell, _) = cell(1000);
        cell.begin_request();
        assert_eq!(due(&cell, 1 << 40), None);
        cell.allow(Some(1000));
        assert_eq!((due(&cell, 2000), due(&cell, 2001)), (None, Some(Timeout::Request)));
        cell.wait_for_upstream(None);
        assert_eq!(due(&cell, 2001), Some(Timeout::Request));
        cell.allow(None);
        assert_eq!(due(&cell, 1 << 40), None);
    }

    #[test]
    fn who_is_waited_for_is_who_is_blamed() {
        let (cell, clock) = cell(1000);
        cell.begin_request();
        cell.allow(Some(40));
        cell.wait_for_body();
        assert_eq!(due(&cell, 1041), Some(Timeout::ClientBody), "not the upstream's fault");
        cell.allow(Some(10_000));
        clock.set(1040);
        cell.wait_for_body();
        assert_eq!(due(&cell, 1051), Some(Timeout::ClientBody), "it did not go on since 1000");
        cell.wait_for_upstream(Some(30));
        assert_eq!((due(&cell, 1070), due(&cell, 1071)), (None, Some(Timeout::Upstream)));
    }

    #[test]
    fn an_answer_may_last_while_it_moves() {
        let (cell, clock) = cell(1000);
        cell.begin_request();
        cell.allow(Some(100));
        cell.begin_answer(Some(300), None);
        cell.wait_for_upstream(None);
        assert_eq!((due(&cell, 1300), due(&cell, 1301)), (None, Some(Timeout::AnswerIdle)));
        clock.set(1300);
        cell.wait_for_reader();
        assert_eq!((due(&cell, 1350), due(&cell, 1351)), (None, Some(Timeout::ClientRead)));
        cell.begin_answer(None, Some(70));
        cell.wait_for_upstream(None);
        assert_eq!((due(&cell, 1370), due(&cell, 1371)), (None, Some(Timeout::Answer)));
    }

    #[test]
    fn lingering_ends_without_progress_and_at_its_end() {
        let (cell, _) = cell(0);
        cell.enter(ConnectionState::Linger { since: 500, until: 30_000 });
        assert_eq!((due(&cell, 2500), due(&cell, 2501)), (None, Some(Timeout::Close)));
        cell.enter(ConnectionState::Linger { since: 29_900, until: 30_000 });
        assert_eq!(due(&cell, 30_001), Some(Timeout::Close));
    }

    #[test]
    fn what_passed_before_does_not_count_in_the_next_state() {
        let (cell, _) = cell(0);
        cell.begin_request();
        cell.expire(Timeout::ClientBody);
        assert_eq!(cell.timeout(), Some(Timeout::ClientBody));
        cell.begin_answer(None, None);
        assert_eq!(cell.timeout(), None);
    }
}
