//! [`StateCell`]: a connection's state, shared by its task and the worker's sweep.

use std::{
    cell::{Cell, RefCell},
    task::Waker,
};

use tidegate_base::time::{CoarseTime, Millis};
use tidegate_system::clock::CoarseClock;

use super::{
    COARSE_TICK, ClientTimeouts, CloseMode, ConnectionState, ExpiredDeadline, MIN_BODY_RATE, Wait,
};
use crate::BodyError;

/// When a sweep wakes a connection's task.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SweepWake {
    /// Only if a deadline has passed.
    OnTimeout,
    /// At each sweep, to notice what the runtime does not report.
    Always,
}

/// One connection's state, shared by its task and the worker's sweep.
#[derive(Debug)]
pub struct StateCell {
    coarse_clock: CoarseClock,
    state: Cell<ConnectionState>,
    timeout: Cell<Option<ExpiredDeadline>>,
    close_mode: Cell<CloseMode>,
    sweep_wake: Cell<SweepWake>,
    waker: RefCell<Option<Waker>>,
    /// The time at which the current request's body was read last; `None` before its first byte.
    body_read_at: Cell<Option<CoarseTime>>,
    /// How many bytes the rest of the current request's body may have.
    body_left: Cell<u64>,
}

impl StateCell {
    /// The state of a connection accepted now.
    pub fn new(coarse_clock: CoarseClock) -> Self {
        Self {
            state: Cell::new(ConnectionState::Head { since: coarse_clock.now() }),
            coarse_clock,
            timeout: Cell::new(None),
            close_mode: Cell::new(CloseMode::KeepOpen),
            sweep_wake: Cell::new(SweepWake::OnTimeout),
            waker: RefCell::new(None),
            body_read_at: Cell::new(None),
            body_left: Cell::new(u64::MAX),
        }
    }

    /// The worker's coarse time.
    pub fn now(&self) -> CoarseTime {
        self.coarse_clock.now()
    }

    /// The current state.
    pub fn get(&self) -> ConnectionState {
        self.state.get()
    }

    /// Enters `state` and clears the timeout of the previous state.
    pub fn enter(&self, state: ConnectionState) {
        debug_assert!(self.get().can_become(state), "from {:?} to {state:?}", self.get());
        self.set(state);
        self.timeout.set(None);
    }

    /// Sets the state, and keeps a timeout that has passed.
    fn set(&self, state: ConnectionState) {
        debug_assert!(
            state.since().is_none_or(|since| since <= self.now()),
            "{state:?} begins in the future"
        );
        self.state.set(state);
    }

    /// Enters [`ConnectionState::Request`] without a deadline: the route is not known yet.
    pub fn begin_request(&self) {
        self.body_read_at.set(None);
        self.body_left.set(u64::MAX);
        self.enter(ConnectionState::Request { deadline: None, wait: Wait::Internal });
    }

    /// Bounds the request's body to `bytes`, none of which was read yet. Before, the route is not
    /// known, and nothing is read for it.
    pub fn set_max_body(&self, bytes: u64) {
        self.body_left.set(bytes);
    }

    /// Notes that `bytes` of the request's body were read, and moves the request's deadline by the
    /// time since the last read: an upload that flows is not late, however long it takes.
    ///
    /// The bytes pay for at most the time that they take at [`MIN_BODY_RATE`]. A client that sends
    /// a byte now and then gains nothing.
    ///
    /// # Errors
    /// The body is longer than [`Self::set_max_body`] allows. This is the only place that finds it
    /// out while a body arrives; an announced length is compared before.
    pub fn note_body(&self, bytes: usize) -> Result<(), BodyError> {
        let left = self.body_left.get().checked_sub(bytes as u64).ok_or(BodyError::TooLong)?;
        self.body_left.set(left);
        self.note_flow(bytes);
        Ok(())
    }

    fn note_flow(&self, bytes: usize) {
        let now = self.now();
        let last_read = self.body_read_at.replace(Some(now));
        let ConnectionState::Request { deadline: Some(deadline), wait } = self.state.get() else {
            return;
        };
        let ((Some(since), _) | (None, Wait::ClientBody { since })) = (last_read, wait) else {
            return;
        };
        let paid = Millis::from_ms(bytes as u64 * 1_000 / MIN_BODY_RATE);
        let flowed = now.since(since).min(paid);
        let deadline = Some(deadline.after(flowed));
        self.set(ConnectionState::Request { deadline, wait });
    }

    /// Sets the deadline of the response's head to `timeout` from now; `None`: unlimited.
    pub fn set_request_timeout(&self, timeout: Option<Millis>) {
        if let ConnectionState::Request { wait, .. } = self.state.get() {
            let deadline = self.deadline(timeout);
            self.set(ConnectionState::Request { deadline, wait });
        }
    }

    /// Moves the deadline of the response's head to at most `timeout` from now.
    pub fn shorten_request_timeout(&self, timeout: Millis) {
        if let ConnectionState::Request { deadline, wait } = self.state.get() {
            let sooner = self.deadline(Some(timeout));
            let deadline = deadline.into_iter().chain(sooner).min();
            self.set(ConnectionState::Request { deadline, wait });
        }
    }

    /// The time `timeout` from now. Never earlier, though the coarse clock may lag by one tick.
    fn deadline(&self, timeout: Option<Millis>) -> Option<CoarseTime> {
        let next_tick = self.now().after(COARSE_TICK);
        timeout.map(|timeout| next_tick.after(timeout))
    }

    /// Enters [`ConnectionState::Response`]. `idle_timeout` bounds the time between two reads from
    /// the upstream, `timeout` the whole response.
    pub fn begin_response(&self, idle_timeout: Option<Millis>, timeout: Option<Millis>) {
        let deadline = self.deadline(timeout);
        self.enter(ConnectionState::Response { deadline, idle_timeout, wait: Wait::Internal });
    }

    /// Enters [`ConnectionState::Tunnel`]. `idle_timeout` bounds the time without a byte.
    pub fn begin_tunnel(&self, idle_timeout: Option<Millis>) {
        self.enter(ConnectionState::Tunnel { since: self.now(), idle_timeout });
    }

    /// Records that a tunnel has moved a byte.
    pub fn mark_tunnel_progress(&self) {
        if let ConnectionState::Tunnel { idle_timeout, .. } = self.state.get() {
            self.begin_tunnel(idle_timeout);
        }
    }

    /// Continues a request after a timeout of the upstream, with the same deadline.
    pub fn resume_request(&self) {
        if let ConnectionState::Request { deadline, .. } = self.state.get() {
            self.enter(ConnectionState::Request { deadline, wait: Wait::Internal });
        }
    }

    /// Sets the event that the current request or response waits for.
    pub fn set_wait(&self, wait: Wait) {
        self.set(match self.state.get() {
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

    /// True while the request or response waits for the upstream.
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

    /// Begins a wait for the upstream. A wait that has begun keeps its start. `response_timeout`
    /// bounds the wait for the response's head.
    pub fn begin_upstream_wait(&self, response_timeout: Option<Millis>) {
        if !matches!(self.wait(), Some(Wait::Upstream { .. })) {
            self.set_wait(Wait::Upstream { since: self.now(), response_timeout });
        }
    }

    /// The deadline that has passed in the current state, if any.
    pub fn expired_deadline(&self) -> Option<ExpiredDeadline> {
        self.timeout.get()
    }

    /// Records the passed deadline and wakes the connection's task.
    pub fn expire(&self, timeout: ExpiredDeadline) {
        debug_assert!(self.get().can_exceed(timeout), "{timeout:?} in {:?}", self.get());
        self.timeout.set(Some(timeout));
        self.wake();
    }

    /// How soon the connection must close.
    pub fn close_mode(&self) -> CloseMode {
        self.close_mode.get()
    }

    /// Sets the close mode, unless the current one is stricter, and wakes the connection's task.
    pub fn request_close(&self, mode: CloseMode) {
        self.close_mode.set(self.close_mode.get().max(mode));
        self.wake();
    }

    /// Sets when a sweep wakes the connection's task.
    pub fn set_sweep_wake(&self, sweep_wake: SweepWake) {
        self.sweep_wake.set(sweep_wake);
    }

    /// Expires the deadline of the current state if it has passed at `now`. Otherwise wakes the
    /// task if its [`SweepWake`] is `Always`.
    pub fn sweep(&self, now: CoarseTime, timeouts: &ClientTimeouts) {
        match self.get().overdue(now, timeouts) {
            Some(timeout) => self.expire(timeout),
            None if self.sweep_wake.get() == SweepWake::Always => self.wake(),
            None => {}
        }
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
