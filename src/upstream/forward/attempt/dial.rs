//! Connects to a chosen endpoint: races both address families of its name, and makes room when the process
//! lacks connections.

use std::{future::poll_fn, io, pin::pin, rc::Rc, time::Duration};

use futures_util::future::{Either, select};

use super::{CONNECT_FAILED, RequestAttempts, Retries, peer_server};
use crate::{
    trace::AttemptResult,
    upstream::{
        InFlight,
        connection_budget::is_address_unavailable,
        forward::UpstreamError,
        pool::UpstreamConnection,
        target_health::{AttemptKind, FailedAttempt, Failure},
    },
};

/// The time after which a connect is raced with one over the other address family (RFC 8305, section 8).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// The time after which a request goes on to another target. The kernel repeats a lost packet that opens a connection
/// after 1 s: a target that needs longer is slower than another one.
const CONNECT_WITH_CHOICE: Duration = Duration::from_secs(1);
/// The time after which a request tries again when the process lacks a connection: other workers close their
/// idle ones meanwhile.
const SHORTAGE_CHECK: Duration = Duration::from_millis(50);
/// The maximum number of these tries.
const MAX_SHORTAGE_CHECKS: u32 = 5;

/// A new connection.
pub(super) struct Dialed {
    /// The endpoint, whose address family may differ from the chosen one's.
    pub(super) index: usize,
    pub(super) connection: UpstreamConnection,
}

/// Whether a request that cannot connect to a target has another target to try.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum DialChoice {
    /// The next attempt goes to another target.
    Other,
    /// The request fails if this target does not accept it.
    Last,
}

impl RequestAttempts<'_> {
    /// Whether another target follows if the connect to `index` fails.
    pub(super) fn dial_choice(&mut self, index: usize, retries: &Retries) -> DialChoice {
        if retries.left == 0 || !self.endpoints.set.servers.retry_on.connect {
            return DialChoice::Last;
        }
        let now = self.balancer.state.now();
        self.excluded.push(index);
        let other = self.choose(now);
        self.excluded.pop();
        if other.is_some() { DialChoice::Other } else { DialChoice::Last }
    }

    /// Opens a connection like [`Self::connect`]. The request leaves the queue once its connection counts: the next one
    /// need not wait until it is open, but may not open one before it.
    pub(super) async fn connect_in_turn(
        &mut self,
        index: usize,
        choice: DialChoice,
        in_flight: &mut InFlight,
    ) -> Result<io::Result<Dialed>, UpstreamError> {
        let mut ticket = self.ticket.take();
        // Boxed, so that requests on idle connections do not hold its state.
        let mut connecting = Box::pin(self.connect(index, choice, in_flight));
        let connected = poll_fn(|cx| {
            let connected = connecting.as_mut().poll(cx);
            if connected.is_pending() {
                ticket = None;
            }
            connected
        })
        .await;
        drop(connecting);
        self.ticket = ticket;
        connected
    }

    /// Opens a connection to the endpoint. If that takes long and the endpoint's name has an address of the
    /// other family, races both. The first connection wins, and `in_flight` then counts the request there.
    /// The outer error means that the request's deadline has passed.
    async fn connect(
        &mut self,
        index: usize,
        choice: DialChoice,
        in_flight: &mut InFlight,
    ) -> Result<io::Result<Dialed>, UpstreamError> {
        let endpoints = Rc::clone(&self.endpoints);
        let configured = endpoints.set.servers.connect_timeout;
        let connect = async |index: usize| {
            let pool = &endpoints.pools[index];
            let connected = match choice {
                DialChoice::Other => {
                    pool.connect(configured.min(CONNECT_WITH_CHOICE), self.wanted).await
                }
                // A server whose queue is full drops what opens a connection, so a second attempt may succeed.
                DialChoice::Last => match pool.connect(configured, self.wanted).await {
                    Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                        pool.connect(configured, self.wanted).await
                    }
                    connected => connected,
                },
            };
            io::Result::Ok(Dialed { index, connection: connected? })
        };
        let has_family = endpoints.set.members[index].state.target.resolved.is_some();
        let sibling =
            if has_family { endpoints.set.sibling(index, self.balancer.state.now()) } else { None };
        let Some(sibling) = sibling.filter(|sibling| !self.excluded.contains(sibling)) else {
            return self.until_deadline(connect(index)).await;
        };
        let clock = self.clock();
        // A connect that loses the race in spite of its head start counts as failed: its address family may drop packets.
        let mut first_has_failed = true;
        let race = async {
            let mut first = pin!(connect(index));
            let delay = pin!(clock.sleep(ATTEMPT_DELAY));
            if let Either::Left((connected, _)) = select(first.as_mut(), delay).await {
                return connected;
            }
            match select(first, pin!(connect(sibling))).await {
                Either::Left((Ok(connected), _)) | Either::Right((Ok(connected), _)) => {
                    Ok(connected)
                }
                Either::Left((Err(error), second)) => {
                    first_has_failed = !self.is_own_shortage(index, &error);
                    second.await
                }
                Either::Right((Err(_), first)) => first.await,
            }
        };
        let connected = self.until_deadline(race).await?;
        if let Ok(Dialed { index: winner, .. }) = &connected
            && *winner == sibling
        {
            let pool = &endpoints.pools[sibling];
            in_flight.move_to(pool, &endpoints.set);
            self.attempts.server = Some(Rc::clone(pool));
            self.attempts.count += 1;
            self.end_attempt(AttemptResult::Failed(CONNECT_FAILED));
            if let Some(trace) = &mut self.trace {
                trace.begin_attempt(peer_server(pool), clock.uptime());
            }
            let now = self.balancer.state.now();
            if first_has_failed {
                let failed = FailedAttempt {
                    kind: AttemptKind::Regular,
                    failure: Failure::Connect,
                    client: self.client_address,
                    sent: now,
                };
                endpoints.set.record_failure(index, failed, now, clock);
            }
        }
        Ok(connected)
    }

    pub(super) fn is_own_shortage(&self, index: usize, error: &io::Error) -> bool {
        self.endpoints.pools[index].endpoint().is_own_shortage(error)
    }

    /// Ends an attempt for which no connection was opened, as if it had not begun.
    pub(super) fn withdraw(&mut self, in_flight: InFlight) {
        self.attempts.count -= 1;
        if let Some(trace) = &mut self.trace {
            trace.forget_attempt();
        }
        in_flight.withdraw();
    }

    /// Makes room after a `shortage` of the process, which is not a server's failure. From the second call
    /// on, also waits.
    #[cold]
    pub(super) async fn make_room(
        &self,
        shortage: io::Error,
        checks: u32,
    ) -> Result<(), UpstreamError> {
        // A closed connection keeps its port for a while.
        if !is_address_unavailable(&shortage) {
            self.balancer.pools.close_idle();
        }
        match checks {
            0 => Ok(()),
            1..=MAX_SHORTAGE_CHECKS => self.wait(SHORTAGE_CHECK).await,
            _ => {
                self.balancer.state.load.connection_budget.count_shortage();
                Err(UpstreamError::Shortage(shortage))
            }
        }
    }
}
