//! [`InFlight`] and [`ConnectionGuard`]: count a request in flight, and an open connection.

use std::{
    io,
    rc::Rc,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use tidegate_system::clock::CoarseTime;

use super::{EndpointState, NO_LIMIT};
use crate::{
    EndpointSet, Pool,
    paced_place::{NoPlace, PacedPlace, PlaceClaim, PlaceHolder},
};

/// Counts a request in flight at an endpoint until it is dropped.
pub struct InFlight {
    pool: Rc<Pool>,
    /// The number of requests in flight when this one began, including it.
    pub(crate) count: u32,
    wakes_pending: bool,
    is_totalled: bool,
    /// The client of the request; only at an upstream with bounds. Boxed, because responses are
    /// moved many times.
    holder: Option<Box<PlaceHolder>>,
}

impl InFlight {
    /// Begins a request at the endpoint of `pool`, a member of `set`.
    ///
    /// # Errors
    /// The endpoint has no room, or the client of `claim` already holds its whole share of places
    /// at its own pace.
    pub(crate) fn begin(
        pool: &Rc<Pool>,
        set: &Arc<EndpointSet>,
        claim: Option<PlaceClaim>,
    ) -> Result<Self, NoPlace> {
        let bounds = &set.servers.bounds;
        let (max_requests, is_bounded) = (bounds.max_requests, bounds.bounds_requests());
        let endpoint = pool.endpoint();
        let limit = if is_bounded { endpoint.request_limit(max_requests) } else { NO_LIMIT };
        let Some(PlaceClaim { client, is_paced }) = claim.filter(|_| bounds.is_bounded()) else {
            return Ok(Self::counted(endpoint.begin(limit).ok_or(NoPlace::Full)?, pool, set));
        };
        let share = endpoint.client_share(bounds);
        let counted = match is_paced {
            true => {
                Some(endpoint.paced.try_add(client, share, NO_LIMIT).ok_or(NoPlace::ShareFull)?)
            }
            false if endpoint.is_share_full(client, bounds) => return Err(NoPlace::ShareFull),
            false => None,
        };
        let count = endpoint.begin(limit).ok_or(NoPlace::Full)?;
        let paced = counted.map(|held| Box::new(PacedPlace::new(held, endpoint, set, pool.now())));
        let mut begun = Self::counted(count, pool, set);
        let held = endpoint.held.add(client);
        begun.holder = Some(Box::new(PlaceHolder { held, set: Arc::clone(set), paced }));
        Ok(begun)
    }

    /// Moves the request to the endpoint of `pool`, even if that endpoint has no room.
    pub(crate) fn move_to(&mut self, pool: &Rc<Pool>, set: &EndpointSet) {
        let mut moved = Self::counted(pool.endpoint().count_request(), pool, set);
        moved.holder = self.holder.take();
        if moved.take_paced().is_some() {
            let paced = moved.pace(pool.now());
            if let Some(holder) = &mut moved.holder {
                holder.paced = paced.map(Box::new);
            }
        }
        if let Some(holder) = &mut moved.holder {
            holder.held = pool.endpoint().held.add(holder.held.client);
        }
        *self = moved;
    }

    /// Counts the request as held at the client's pace, even beyond the client's share; `None`
    /// without bounds.
    pub(crate) fn pace(&self, now: CoarseTime) -> Option<PacedPlace> {
        let PlaceHolder { held, set, .. } = self.holder()?;
        let endpoint = self.pool.endpoint();
        Some(PacedPlace::new(endpoint.paced.add(held.client), endpoint, set, now))
    }

    /// Takes the request's [`PacedPlace`] out of it; `None` if its place is not held at the
    /// client's pace.
    pub(crate) fn take_paced(&mut self) -> Option<Box<PacedPlace>> {
        self.holder.as_mut()?.paced.take()
    }

    /// The client of the request; `None` at an upstream without bounds.
    pub(crate) fn holder(&self) -> Option<&PlaceHolder> {
        self.holder.as_deref()
    }

    fn counted(count: u32, pool: &Rc<Pool>, set: &EndpointSet) -> Self {
        let (endpoint, is_totalled) = (pool.endpoint(), set.counts_total());
        endpoint.counters.requests.fetch_add(1, Relaxed);
        if is_totalled {
            endpoint.load.in_flight.fetch_add(1, Relaxed);
        }
        // Even with `max_pending: 0`, requests wait for other workers' idle connections, and for
        // places that clients hold beyond their share.
        let wakes_pending = set.servers.bounds.is_bounded();
        let pool = Rc::clone(pool);
        Self { pool, count, wakes_pending, is_totalled, holder: None }
    }

    /// The worker's connections to the endpoint.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Ends a request that could not be sent, as if it had not begun. Wakes no waiting request:
    /// this one waits next, and two could wake each other endlessly.
    pub(crate) fn withdraw(mut self) {
        self.wakes_pending = false;
        self.pool.endpoint().counters.requests.fetch_sub(1, Relaxed);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // Frees the client's share before the wake: the next request may be the same client's.
        drop(self.holder.take());
        let endpoint = self.pool.endpoint();
        endpoint.in_flight.fetch_sub(1, Relaxed);
        if self.is_totalled {
            endpoint.load.in_flight.fetch_sub(1, Relaxed);
        }
        if self.wakes_pending {
            endpoint.load.pending.wake_next();
        }
    }
}

/// Counts an open connection to an endpoint until it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionGuard(Arc<EndpointState>);

impl ConnectionGuard {
    /// Counts a connection.
    ///
    /// # Errors
    /// [`io::ErrorKind::QuotaExceeded`] if `max_connections` are open to the endpoint. `EMFILE` if
    /// the process has reached its own maximum.
    pub(crate) fn open(
        endpoint: &Arc<EndpointState>,
        max_connections: Option<u32>,
    ) -> io::Result<Self> {
        let limit = max_connections.unwrap_or(u32::MAX);
        let add = |count| (count < limit).then_some(count + 1);
        let added = endpoint.connections.fetch_update(Relaxed, Relaxed, add);
        endpoint.is_starved.store(added.is_err(), Relaxed);
        added.map_err(|_| io::ErrorKind::QuotaExceeded)?;
        if let Err(error) = endpoint.load.connection_budget.count_opened() {
            endpoint.connections.fetch_sub(1, Relaxed);
            return Err(error);
        }
        Ok(Self(Arc::clone(endpoint)))
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
        self.0.load.connection_budget.count_closed();
        self.0.load.pending.wake_next();
    }
}
