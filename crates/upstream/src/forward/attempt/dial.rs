//! Connects to a chosen endpoint, and makes room when the process lacks connections.

use std::{future::poll_fn, io, time::Duration};

use super::{RequestAttempts, Retries, place::AttemptCandidate};
use crate::{
    InFlight, connection_budget::is_address_unavailable, forward::UpstreamError,
    pool::UpstreamConnection,
};

/// The time after which a request tries again when the process lacks a connection: other workers
/// close their idle ones meanwhile.
const SHORTAGE_CHECK: Duration = Duration::from_millis(50);
/// The maximum number of these tries.
const MAX_SHORTAGE_CHECKS: u32 = 5;

/// What a request that cannot connect to a target may do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum DialChoice {
    /// It may go to another target.
    Other,
    /// It fails: there is another target, but the request has no retry left.
    Final,
    /// It fails: there is no other target.
    Only,
}

impl RequestAttempts<'_> {
    /// What follows if the connect to `index` fails.
    pub(super) fn dial_choice(&mut self, index: usize, retries: &Retries) -> DialChoice {
        let now = self.balancer.state.now();
        self.excluded.push(index);
        let other = self.choose(now);
        self.excluded.pop();
        if other.is_none() {
            DialChoice::Only
        } else if retries.left == 0 || !self.endpoints.set.servers.retry_on.connect {
            DialChoice::Final
        } else {
            DialChoice::Other
        }
    }

    /// Opens a connection like [`Self::connect`]. The request leaves the queue once its connection
    /// counts: the next one need not wait until it is open, but may not open one before it.
    pub(super) async fn connect_in_turn(
        &mut self,
        candidate: &mut AttemptCandidate,
        choice: DialChoice,
        retries: &mut Retries,
    ) -> Result<io::Result<UpstreamConnection>, UpstreamError> {
        let mut ticket = self.ticket.take();
        // Boxed, so that requests on idle connections do not hold its state.
        let mut connecting = Box::pin(self.connect(candidate, choice, retries));
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

    /// Makes room after a `shortage` of the process, which is not a server's failure. From the
    /// second call on, also waits.
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
