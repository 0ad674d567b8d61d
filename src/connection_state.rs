//! The state machine of a connection: what it waits for, and its deadlines.
//!
//! Deadlines use no timers: a connection stores its state in a [`StateCell`], and the worker checks all
//! cells ten times a second. All times are in ms of the worker's coarse clock.

use std::{
    cell::{Cell, RefCell},
    task::Waker,
};

use crate::clock::{CoarseClock, CoarseTime};

/// What a connection waits for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConnectionState {
    /// The first byte of the next request.
    Idle {
        /// The end of the previous request.
        since: CoarseTime,
    },
    /// The end of a request's head.
    Head {
        /// The head's first byte; for the first request, the accept.
        since: CoarseTime,
    },
    /// The response's head.
    Request {
        /// The deadline of the response's head. `None`: unlimited, or the route is not known yet.
        deadline: Option<CoarseTime>,
        /// What the request currently waits for.
        wait: Wait,
    },
    /// The end of the response.
    Response {
        /// The deadline of the whole response, if it has one.
        deadline: Option<CoarseTime>,
        /// The longest time between two reads from the upstream, in ms. `None`: unlimited.
        idle_timeout: Option<u64>,
        /// What the response currently waits for.
        wait: Wait,
    },
    /// The rest of a request's body, which is discarded.
    Drain {
        /// The deadline.
        deadline: CoarseTime,
    },
    /// Bytes of either side of a tunnel, after an upgrade.
    Tunnel {
        /// The last byte that was moved.
        since: CoarseTime,
        /// The longest time without a byte, in ms. `None`: unlimited.
        idle_timeout: Option<u64>,
    },
    /// The client's close, after the gateway has shut down its own side. Received bytes are discarded.
    Linger {
        /// The last received byte.
        since: CoarseTime,
        /// The deadline of the whole state.
        deadline: CoarseTime,
    },
}

/// The longest time between two updates of a worker's coarse time, in ms.
pub const COARSE_TICK: u64 = 100;

/// What a request or response currently waits for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Wait {
    /// The counter store, a delay or a connect to an upstream. Only the state's own deadline applies.
    Gateway,
    /// More of the body from the client.
    ClientBody {
        /// The last progress.
        since: CoarseTime,
    },
    /// The client, which has to read the response.
    ClientRead {
        /// The last progress.
        since: CoarseTime,
    },
    /// The upstream.
    Upstream {
        /// The last progress of the upstream or of the request's body.
        since: CoarseTime,
        /// The longest time without progress, in ms, while the response's head is awaited.
        response_timeout: Option<u64>,
    },
}

/// The deadline that has passed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Timeout {
    /// No further request arrived.
    Idle,
    /// A request's head was not completed.
    Head,
    /// The client stopped sending its body.
    ClientBody,
    /// The client stopped reading.
    ClientRead,
    /// The upstream did not respond in time.
    Upstream,
    /// The whole request took too long.
    Request,
    /// The upstream stopped sending the response.
    ResponseIdle,
    /// The whole response took too long.
    Response,
    /// A tunnel was idle.
    Tunnel,
    /// The rest of a body did not arrive, or the client did not close.
    Close,
}

/// The timeouts of a client connection, in ms; `None`: unlimited.
#[derive(Clone, Copy, Debug)]
pub struct ClientTimeouts {
    /// From the accept, or a head's first byte, to its last byte.
    pub head: Option<u64>,
    /// Between two requests.
    pub idle: Option<u64>,
    /// Between two reads of a request's body, and between two writes of a response.
    pub body: Option<u64>,
}

/// The time without a byte after which a lingering connection is closed, in ms.
const LINGER_GAP: u64 = 2_000;

impl ConnectionState {
    /// The deadline that has passed at `now`, if any.
    pub fn overdue(self, now: CoarseTime, timeouts: &ClientTimeouts) -> Option<Timeout> {
        let gap_exceeded = |since: CoarseTime, limit: Option<u64>| {
            limit.is_some_and(|limit| now.saturating_sub(since) > limit)
        };
        let deadline_passed =
            |deadline: Option<CoarseTime>| deadline.is_some_and(|deadline| now > deadline);
        match self {
            Self::Idle { since } => gap_exceeded(since, timeouts.idle).then_some(Timeout::Idle),
            Self::Head { since } => gap_exceeded(since, timeouts.head).then_some(Timeout::Head),
            Self::Request { deadline, wait } => match wait {
                Wait::ClientBody { since } => (gap_exceeded(since, timeouts.body)
                    || deadline_passed(deadline))
                .then_some(Timeout::ClientBody),
                Wait::ClientRead { since } => (gap_exceeded(since, timeouts.body)
                    || deadline_passed(deadline))
                .then_some(Timeout::ClientRead),
                Wait::Upstream { since, response_timeout }
                    if gap_exceeded(since, response_timeout) =>
                {
                    Some(Timeout::Upstream)
                }
                _ => deadline_passed(deadline).then_some(Timeout::Request),
            },
            Self::Response { deadline, idle_timeout, wait } => match wait {
                _ if deadline_passed(deadline) => Some(Timeout::Response),
                Wait::ClientBody { since } => {
                    gap_exceeded(since, timeouts.body).then_some(Timeout::ClientBody)
                }
                Wait::ClientRead { since } => {
                    gap_exceeded(since, timeouts.body).then_some(Timeout::ClientRead)
                }
                Wait::Upstream { since, .. } => {
                    gap_exceeded(since, idle_timeout).then_some(Timeout::ResponseIdle)
                }
                Wait::Gateway => None,
            },
            Self::Drain { deadline } => (now > deadline).then_some(Timeout::Close),
            Self::Tunnel { since, idle_timeout } => {
                gap_exceeded(since, idle_timeout).then_some(Timeout::Tunnel)
            }
            Self::Linger { since, deadline } => {
                (now > deadline || gap_exceeded(since, Some(LINGER_GAP))).then_some(Timeout::Close)
            }
        }
    }
}

/// When a connection must close, from the least to the most strict.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum CloseMode {
    /// Not at all.
    KeepOpen,
    /// After the current request; an idle connection after its next one.
    AfterRequest,
    /// After the current request; an idle connection at once.
    WhenIdle,
    /// At once; a request in progress is aborted.
    Immediate,
}

/// One connection's state, shared by its task and the worker's sweep.
#[derive(Debug)]
pub struct StateCell {
    coarse_clock: CoarseClock,
    state: Cell<ConnectionState>,
    timeout: Cell<Option<Timeout>>,
    close_mode: Cell<CloseMode>,
    /// See [`Self::set_swept`].
    is_swept: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl StateCell {
    /// The state of a connection accepted now. `coarse_clock` is the worker's coarse clock, in ms.
    pub fn new(coarse_clock: CoarseClock) -> Self {
        let state = Cell::new(ConnectionState::Head { since: coarse_clock.now() });
        let (timeout, close_mode) = (Cell::new(None), Cell::new(CloseMode::KeepOpen));
        let (is_swept, waker) = (Cell::new(false), RefCell::new(None));
        Self { coarse_clock, state, timeout, close_mode, is_swept, waker }
    }

    /// The worker's coarse time, in ms.
    pub fn now(&self) -> CoarseTime {
        self.coarse_clock.now()
    }

    /// The current state.
    pub fn get(&self) -> ConnectionState {
        self.state.get()
    }

    /// Enters `state` and clears the timeout of the previous state.
    pub fn enter(&self, state: ConnectionState) {
        self.state.set(state);
        self.timeout.set(None);
    }

    /// Enters [`ConnectionState::Request`] without a deadline: the route is not known yet.
    pub fn begin_request(&self) {
        self.enter(ConnectionState::Request { deadline: None, wait: Wait::Gateway });
    }

    /// Sets the deadline of the response's head to `timeout` ms from now; `None`: unlimited. It is not early, though
    /// the coarse time may be that of the last tick.
    pub fn set_request_timeout(&self, timeout: Option<u64>) {
        if let ConnectionState::Request { wait, .. } = self.state.get() {
            let next_tick = self.now().saturating_add(COARSE_TICK);
            let deadline = timeout.map(|timeout| next_tick.saturating_add(timeout));
            self.state.set(ConnectionState::Request { deadline, wait });
        }
    }

    /// Enters [`ConnectionState::Response`]. `idle_timeout` bounds the time between two reads from
    /// the upstream, `timeout` the whole response, both in ms.
    pub fn begin_response(&self, idle_timeout: Option<u64>, timeout: Option<u64>) {
        let deadline = timeout.map(|timeout| self.now().saturating_add(timeout));
        self.enter(ConnectionState::Response { deadline, idle_timeout, wait: Wait::Gateway });
    }

    /// Enters [`ConnectionState::Tunnel`]. `idle_timeout` bounds the time without a byte, in ms.
    pub fn begin_tunnel(&self, idle_timeout: Option<u64>) {
        self.enter(ConnectionState::Tunnel { since: self.now(), idle_timeout });
    }

    /// Records that a tunnel has moved a byte.
    pub fn mark_tunnel_progress(&self) {
        if let ConnectionState::Tunnel { idle_timeout, .. } = self.state.get() {
            self.begin_tunnel(idle_timeout);
        }
    }

    /// Goes on with a request after a timeout of the upstream, to the same deadline.
    pub fn resume_request(&self) {
        if let ConnectionState::Request { deadline, .. } = self.state.get() {
            self.enter(ConnectionState::Request { deadline, wait: Wait::Gateway });
        }
    }

    /// Sets what the current request or response waits for.
    pub fn set_wait(&self, wait: Wait) {
        self.state.set(match self.state.get() {
            ConnectionState::Request { deadline, .. } => {
                ConnectionState::Request { deadline, wait }
            }
            ConnectionState::Response { deadline, idle_timeout, .. } => {
                ConnectionState::Response { deadline, idle_timeout, wait }
            }
            other => other,
        });
    }

    fn wait(&self) -> Option<Wait> {
        match self.state.get() {
            ConnectionState::Request { wait, .. } | ConnectionState::Response { wait, .. } => {
                Some(wait)
            }
            _ => None,
        }
    }

    /// Whether the upstream is awaited.
    pub fn awaits_upstream(&self) -> bool {
        matches!(self.wait(), Some(Wait::Upstream { .. }))
    }

    /// Begins a wait for more of the client's body. A wait that has begun keeps its start.
    pub fn begin_client_body_wait(&self) {
        if !matches!(self.wait(), Some(Wait::ClientBody { .. })) {
            self.set_wait(Wait::ClientBody { since: self.now() });
        }
    }

    /// Begins a wait for the client to read. A wait that has begun keeps its start.
    pub fn begin_client_read_wait(&self) {
        if !matches!(self.wait(), Some(Wait::ClientRead { .. })) {
            self.set_wait(Wait::ClientRead { since: self.now() });
        }
    }

    /// Begins a wait for the upstream. A wait that has begun keeps its start. `response_timeout` bounds the
    /// wait for the response's head, in ms.
    pub fn begin_upstream_wait(&self, response_timeout: Option<u64>) {
        if !matches!(self.wait(), Some(Wait::Upstream { .. })) {
            self.set_wait(Wait::Upstream { since: self.now(), response_timeout });
        }
    }

    /// The deadline that has passed in the current state, if any.
    pub fn timeout(&self) -> Option<Timeout> {
        self.timeout.get()
    }

    /// Records the passed deadline and wakes the connection's task.
    pub fn expire(&self, timeout: Timeout) {
        self.timeout.set(Some(timeout));
        self.wake();
    }

    /// When the connection must close.
    pub fn close_mode(&self) -> CloseMode {
        self.close_mode.get()
    }

    /// Sets the close mode, unless the current one is stricter, and wakes the connection's task.
    pub fn request_close(&self, mode: CloseMode) {
        self.close_mode.set(self.close_mode.get().max(mode));
        self.wake();
    }

    /// Whether each sweep wakes the connection's task, for what the runtime does not report.
    pub fn set_swept(&self, is_swept: bool) {
        self.is_swept.set(is_swept);
    }

    /// See [`Self::set_swept`].
    pub fn is_swept(&self) -> bool {
        self.is_swept.get()
    }

    /// Wakes the connection's task.
    pub fn wake(&self) {
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }

    /// Stores the waker of the connection's task.
    pub fn register(&self, waker: &Waker) {
        let mut stored = self.waker.borrow_mut();
        if !stored.as_ref().is_some_and(|stored| stored.will_wake(waker)) {
            *stored = Some(waker.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUTS: ClientTimeouts =
        ClientTimeouts { head: Some(100), idle: Some(200), body: Some(50) };

    fn ms(ms: u64) -> CoarseTime {
        CoarseTime::from_ms(ms)
    }

    fn cell(now_ms: u64) -> (StateCell, CoarseClock) {
        let clock = CoarseClock::new(ms(now_ms));
        (StateCell::new(clock.clone()), clock)
    }

    fn due(cell: &StateCell, now_ms: u64) -> Option<Timeout> {
        cell.get().overdue(ms(now_ms), &TIMEOUTS)
    }

    #[test]
    fn head_and_idle_connections_have_their_own_timeouts() {
        let (cell, _) = cell(1000);
        assert_eq!((due(&cell, 1100), due(&cell, 1101)), (None, Some(Timeout::Head)));
        cell.enter(ConnectionState::Idle { since: ms(1000) });
        assert_eq!((due(&cell, 1200), due(&cell, 1201)), (None, Some(Timeout::Idle)));
    }

    #[test]
    fn request_timeout_applies_whatever_the_request_waits_for() {
        let (cell, _) = cell(1000);
        cell.begin_request();
        assert_eq!(due(&cell, 1 << 40), None);
        cell.set_request_timeout(Some(1000));
        // Never early, though the coarse time was up to a tick behind.
        assert_eq!((due(&cell, 2100), due(&cell, 2101)), (None, Some(Timeout::Request)));
        cell.begin_upstream_wait(None);
        assert_eq!(due(&cell, 2101), Some(Timeout::Request));
        cell.set_request_timeout(None);
        assert_eq!(due(&cell, 1 << 40), None);
    }

    #[test]
    fn timeout_names_the_side_that_was_waited_for() {
        let (cell, clock) = cell(1000);
        cell.begin_request();
        cell.set_request_timeout(Some(40));
        cell.begin_client_body_wait();
        assert_eq!(due(&cell, 1141), Some(Timeout::ClientBody), "the upstream is not waited for");
        cell.set_request_timeout(Some(10_000));
        clock.set(ms(1040));
        cell.begin_client_body_wait();
        assert_eq!(due(&cell, 1051), Some(Timeout::ClientBody), "no progress since 1000");
        cell.begin_upstream_wait(Some(30));
        assert_eq!((due(&cell, 1070), due(&cell, 1071)), (None, Some(Timeout::Upstream)));
    }

    #[test]
    fn response_is_bounded_by_its_gaps_and_its_own_deadline() {
        let (cell, clock) = cell(1000);
        cell.begin_request();
        cell.set_request_timeout(Some(100));
        cell.begin_response(Some(300), None);
        cell.begin_upstream_wait(None);
        assert_eq!((due(&cell, 1300), due(&cell, 1301)), (None, Some(Timeout::ResponseIdle)));
        clock.set(ms(1300));
        cell.begin_client_read_wait();
        assert_eq!((due(&cell, 1350), due(&cell, 1351)), (None, Some(Timeout::ClientRead)));
        cell.begin_response(None, Some(70));
        cell.begin_upstream_wait(None);
        assert_eq!((due(&cell, 1370), due(&cell, 1371)), (None, Some(Timeout::Response)));
    }

    #[test]
    fn lingering_ends_without_progress_and_at_its_deadline() {
        let (cell, _) = cell(0);
        cell.enter(ConnectionState::Linger { since: ms(500), deadline: ms(30_000) });
        assert_eq!((due(&cell, 2500), due(&cell, 2501)), (None, Some(Timeout::Close)));
        cell.enter(ConnectionState::Linger { since: ms(29_900), deadline: ms(30_000) });
        assert_eq!(due(&cell, 30_001), Some(Timeout::Close));
    }

    #[test]
    fn tunnel_ends_when_it_is_idle() {
        let (cell, clock) = cell(1000);
        cell.begin_tunnel(Some(300));
        assert_eq!((due(&cell, 1300), due(&cell, 1301)), (None, Some(Timeout::Tunnel)));
        clock.set(ms(1300));
        cell.mark_tunnel_progress();
        assert_eq!((due(&cell, 1600), due(&cell, 1601)), (None, Some(Timeout::Tunnel)));
        cell.begin_tunnel(None);
        assert_eq!(due(&cell, 1 << 40), None);
    }

    #[test]
    fn next_state_clears_the_timeout() {
        let (cell, _) = cell(0);
        cell.begin_request();
        cell.expire(Timeout::ClientBody);
        assert_eq!(cell.timeout(), Some(Timeout::ClientBody));
        cell.begin_response(None, None);
        assert_eq!(cell.timeout(), None);
    }
}
