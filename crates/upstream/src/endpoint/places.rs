//! The places of an endpoint: how many requests may be in flight, and how many of them one client
//! may hold.

use std::{
    net::IpAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use super::{EndpointState, NO_LIMIT};
use crate::{Bounds, client_holdings::ClientHoldings};

impl EndpointState {
    /// The maximum number of requests in flight: the lower of `max_requests` and the adaptive
    /// limit.
    pub(super) fn request_limit(&self, max_requests: Option<u32>) -> u32 {
        self.adaptive_limit.load(Relaxed).min(max_requests.unwrap_or(NO_LIMIT))
    }

    /// Records the number of concurrent streams that an HTTP/2 connection allows.
    pub(crate) fn set_streams(&self, streams: usize) {
        self.streams.store(streams.min(u32::MAX as usize) as u32, Relaxed);
    }

    /// The number of requests that the bounds allow at a time.
    fn places(&self, bounds: &Bounds) -> u32 {
        let streams = self.streams.load(Relaxed).max(1);
        let connections =
            bounds.max_connections.map_or(NO_LIMIT, |max| max.saturating_mul(streams));
        self.request_limit(bounds.max_requests).min(connections)
    }

    /// The number of places that one client may hold at its own pace.
    pub(crate) fn client_share(&self, bounds: &Bounds) -> u32 {
        let share = u64::from(self.places(bounds)) * u64::from(bounds.pacing.client_share) / 100;
        share.clamp(1, NO_LIMIT.into()) as u32
    }

    /// True if the client holds its share of the places at its own pace.
    pub(crate) fn is_share_full(&self, client: IpAddr, bounds: &Bounds) -> bool {
        bounds.is_bounded() && self.paced.of(client) >= self.client_share(bounds)
    }

    /// True if a new request of the client must leave the next place to a waiting one, because the
    /// client holds its share.
    pub(crate) fn is_behind_waiting(&self, client: IpAddr, bounds: &Bounds) -> bool {
        self.has_waiting()
            && self.held.of(client) >= self.client_share(bounds)
            && self.load.pending.has_first()
    }

    /// The number of places held beyond their clients' shares that a request of `client` may wait
    /// for. If `client` is below its own share, it may wait for all of them. Otherwise, or without
    /// a client, it may wait only for the places that clients hold at their own pace.
    pub(crate) fn excess_places(&self, client: Option<IpAddr>, bounds: &Bounds) -> u32 {
        let share = self.client_share(bounds);
        match client {
            Some(client) if self.held.of(client) < share => self.held.excess(share),
            _ => self.paced.excess(share),
        }
    }

    /// True if all places are taken.
    pub(crate) fn is_full(&self, bounds: &Bounds) -> bool {
        self.in_flight() >= self.places(bounds)
    }

    /// The places that clients hold at their own pace.
    pub(crate) fn paced(&self) -> &Arc<ClientHoldings> {
        &self.paced
    }

    /// The places that clients hold at their own pace.
    pub fn paced_places(&self) -> u32 {
        self.paced.total()
    }

    /// The buffers of the upstream.
    pub(crate) fn buffers(&self) -> &Arc<ClientHoldings> {
        &self.load.buffers
    }

    /// True if requests wait for room at a target of the upstream.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.load.pending.is_empty()
    }

    /// The number of places that clients have lost since the start, because they were too slow or
    /// beyond their share.
    pub fn lost_places(&self) -> u64 {
        self.counters.lost_places.load(Relaxed)
    }

    #[cold]
    pub(crate) fn count_lost_place(&self) {
        self.counters.lost_places.fetch_add(1, Relaxed);
    }

    /// True if another request fits.
    pub(crate) fn has_room(&self, max_requests: Option<u32>) -> bool {
        self.in_flight() < self.request_limit(max_requests)
    }

    /// Counts a request in flight. Returns their number.
    pub(super) fn count_request(&self) -> u32 {
        self.in_flight.fetch_add(1, Relaxed) + 1
    }

    /// Counts a request in flight, unless `limit` is reached. Returns their number.
    pub(super) fn begin(&self, limit: u32) -> Option<u32> {
        if limit == NO_LIMIT {
            return Some(self.count_request());
        }
        let add = |count| (count < limit).then_some(count + 1);
        self.in_flight.fetch_update(Relaxed, Relaxed, add).ok().map(|count| count + 1)
    }
}
