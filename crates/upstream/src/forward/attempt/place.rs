//! The next endpoint with room for a request, and the wait for one.

use std::{rc::Rc, sync::atomic::Ordering::Relaxed, time::Duration};

use tidegate_base::{
    priority::Priority,
    time::{Millis, Uptime},
};

use super::{Attempt, RequestAttempts};
use crate::{
    InFlight,
    forward::UpstreamError,
    paced_place::NoPlace,
    pending::PlaceRequest,
    pool::UpstreamConnection,
    target_health::{AttemptKind, Availability, ServiceLevel},
};

/// Maximum time until a waiting request looks for room again.
const PENDING_CHECK: Duration = Duration::from_millis(100);
/// The time that a request waits, with `max_pending: 0`, for places that other clients hold beyond
/// their share.
const EXCESS_WAIT: Duration = Duration::from_millis(250);
/// `Retry-After` if the names of an upstream are not resolved yet, another request makes
/// the trial, or the request has failed at all endpoints in service.
const SHORT_RETRY: Millis = Millis::from_secs(1);

/// A chosen endpoint.
pub(super) struct AttemptCandidate {
    pub(super) index: usize,
    pub(super) kind: AttemptKind,
    pub(super) start: Uptime,
    pub(super) in_flight: InFlight,
}

impl AttemptCandidate {
    /// The attempt on a `connection` to the endpoint.
    pub(super) fn connected(self, connection: UpstreamConnection) -> Attempt {
        let Self { index, kind, start, in_flight } = self;
        Attempt { index, kind, connection, start, in_flight }
    }
}

impl RequestAttempts<'_> {
    /// The next endpoint with room. Waits for one if requests may wait.
    pub(super) async fn next(&mut self) -> Result<AttemptCandidate, UpstreamError> {
        loop {
            if let Some(chosen) = self.next_at_once()? {
                return Ok(chosen);
            }
            let max_pending = self.endpoints.set.servers.bounds.max_pending;
            self.wait_in_queue(max_pending).await?;
            self.follow_reload();
        }
    }

    /// The next endpoint with room; `None` if the request has to wait.
    pub(super) fn next_at_once(&mut self) -> Result<Option<AttemptCandidate>, UpstreamError> {
        // Waiting requests come first.
        let waits = self.endpoints.set.servers.bounds.max_pending > 0
            && match &self.ticket {
                Some(place) => !place.is_first(),
                None => self.balancer.state.load.pending.has_first(),
            };
        // The first attempt begins with the request: reading the clock costs as much as the choice.
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        let start = if is_first { self.started } else { self.clock().uptime() };
        if waits {
            return Ok(None);
        }
        let chosen = self.try_next(start)?;
        if chosen.is_some()
            && let Some(ticket) = &self.ticket
        {
            ticket.take_place();
        }
        Ok(chosen)
    }

    /// Uses the endpoints and bounds of a reload that came while the request waited. Attempts stay
    /// with the endpoints of the first one, to which their indices belong.
    fn follow_reload(&mut self) {
        if self.attempts.count == 0 {
            self.endpoints = self.balancer.endpoints();
            self.wanted.max_connections = self.endpoints.set.servers.bounds.max_connections;
        }
    }

    /// Chooses an endpoint with room; `None` if endpoints are in service, but full.
    fn try_next(&mut self, start: Uptime) -> Result<Option<AttemptCandidate>, UpstreamError> {
        let (now, endpoints) = (start.to_coarse(), Rc::clone(&self.endpoints));
        let mut has_lost_race = false;
        self.is_share_full = false;
        while let Some(choice) = self.choose(now) {
            let index = choice.index;
            if self.is_behind_waiting(index) {
                self.is_share_full = true;
                has_lost_race = true;
                self.excluded.push(index);
                continue;
            }
            let view = endpoints.set.members[index].state.view();
            let mut kind = AttemptKind::Regular;
            if view.availability(now) == Availability::Trial {
                let bounds = &endpoints.set.servers.bounds;
                let endpoint = endpoints.pools[index].endpoint();
                // At its full share, the client would claim the trial, but get no place for it.
                if self.holder.is_some_and(|own| endpoint.is_share_full(own.client, bounds)) {
                    self.is_share_full = true;
                    has_lost_race = true;
                    self.excluded.push(index);
                    continue;
                }
                if !endpoints.set.begin_trial(index, self.client_address, now) {
                    self.excluded.push(index);
                    continue;
                }
                kind = AttemptKind::Trial;
            }
            match InFlight::begin(&endpoints.pools[index], &endpoints.set, self.claim()) {
                Ok(in_flight) => {
                    return Ok(Some(AttemptCandidate { index, kind, start, in_flight }));
                }
                Err(NoPlace::ShareFull) => self.is_share_full = true,
                Err(NoPlace::Full) => {}
            }
            has_lost_race = true;
            self.excluded.push(index);
        }
        self.excluded.truncate(self.failed);
        if has_lost_race || endpoints.set.has_full_endpoint(&self.excluded, now) {
            return Ok(None);
        }
        let retry_after = match endpoints.set.state(now) {
            // Without endpoints, the names are not resolved yet.
            _ if endpoints.pools.is_empty() => SHORT_RETRY,
            ServiceLevel::AllDown { retry_after } => retry_after,
            // Another request makes the trial, or this request has failed at all endpoints in
            // service.
            ServiceLevel::Serving => SHORT_RETRY,
        };
        if self.attempts.count == 0 {
            self.balancer.state.refused_down.fetch_add(1, Relaxed);
        }
        Err(UpstreamError::Down { retry_after })
    }

    fn overloaded(&self) -> UpstreamError {
        let priority = self.place_request().priority;
        self.balancer.state.shed[priority.index()].fetch_add(1, Relaxed);
        UpstreamError::Overloaded(priority)
    }

    /// The request, for the queue. A mirrored copy, which no client waits for, has the lowest
    /// priority.
    fn place_request(&self) -> PlaceRequest {
        let client = self.holder.map(|holder| holder.client);
        let priority = self.holder.map_or(Priority::LOWEST, |holder| holder.priority);
        PlaceRequest { client, priority }
    }

    /// Returns when there may be room. The request keeps its position in the queue.
    async fn wait_in_queue(&mut self, max_pending: u32) -> Result<(), UpstreamError> {
        let state = &*self.balancer.state;
        let place = if let Some(place) = self.ticket.take() {
            if self.has_waited_enough() {
                return Err(self.overloaded());
            }
            place
        } else {
            // Even with `max_pending: 0`, a request may wait for places that clients hold beyond
            // their shares.
            let max = max_pending.max(self.excess_places());
            self.waits_until = (max_pending == 0).then(|| self.clock().uptime() + EXCESS_WAIT);
            let entered = state.load.pending.enter(max, self.place_request());
            entered.ok_or_else(|| self.overloaded())?
        };
        place.set_passed_over(self.is_share_full);
        let woken = self.clock().timeout(PENDING_CHECK, place.woken());
        match self.until_deadline(woken).await {
            Ok(_) if place.is_displaced() => Err(self.overloaded()),
            Ok(_) => {
                self.ticket = Some(place);
                Ok(())
            }
            Err(_) => Err(self.overloaded()),
        }
    }

    /// Handles an endpoint with `max_connections` open: waits for a place, or passes the endpoint
    /// over.
    pub(super) async fn wait_for_connection(&mut self, index: usize) -> Result<(), UpstreamError> {
        self.excluded.push(index);
        let now = self.balancer.state.now();
        if self.choose(now).is_some() {
            return Ok(());
        }
        // Even without `max_pending`, wait for other workers' idle connections; they are closed
        // soon.
        let idle = self.endpoints.pools[index].endpoint().idle_connections();
        let max_pending = self.endpoints.set.servers.bounds.max_pending.max(idle);
        self.wait_in_queue(max_pending).await?;
        self.excluded.truncate(self.failed);
        Ok(())
    }
}
