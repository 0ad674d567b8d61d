//! The claim of a request to a place at an endpoint, and places that clients hold beyond their
//! shares.

use super::RequestAttempts;
use crate::{
    PlaceOwner,
    paced_place::{PacedPlace, PlaceClaim},
};

impl RequestAttempts<'_> {
    /// Lets the request's body hold `place` while it is incomplete.
    pub(super) fn hold_upload(&self, place: Option<Box<PacedPlace>>) {
        if let Some(upload) = self.holder.and_then(|holder| holder.upload) {
            upload.hold(place);
        }
    }

    /// The request's claim to a place; `None` if the upstream has no bounds, or for a mirrored
    /// copy, which no client waits for.
    pub(super) fn claim(&self) -> Option<PlaceClaim> {
        let PlaceOwner { client, upload, .. } = self.holder?;
        let is_incomplete = upload.is_some_and(|upload| !upload.is_complete());
        Some(PlaceClaim { client, is_paced: is_incomplete || self.wanted.is_upgrade })
    }

    /// The number of places, at all targets, that clients hold beyond their shares. They become
    /// free soon if requests wait for them.
    pub(super) fn excess_places(&self) -> u32 {
        let bounds = &self.endpoints.set.servers.bounds;
        if self.is_share_full || !bounds.is_bounded() {
            return 0;
        }
        let client = self.holder.map(|holder| holder.client);
        let pools = self.endpoints.pools.iter();
        pools.map(|pool| pool.endpoint().excess_places(client, bounds)).sum()
    }

    /// True if the request must leave the next place at the endpoint to waiting ones, because its
    /// client holds its share.
    pub(super) fn is_behind_waiting(&self, index: usize) -> bool {
        let bounds = &self.endpoints.set.servers.bounds;
        let endpoint = self.endpoints.pools[index].endpoint();
        self.ticket.is_none()
            && self.holder.is_some_and(|holder| endpoint.is_behind_waiting(holder.client, bounds))
    }

    /// True if the request has waited long enough for a place that another client holds beyond its
    /// share. It keeps waiting while such a place is held at a client's pace, because that place
    /// becomes free soon.
    pub(super) fn has_waited_enough(&self) -> bool {
        let bounds = &self.endpoints.set.servers.bounds;
        self.waits_until.is_some_and(|until| self.clock().uptime() >= until)
            && self
                .endpoints
                .pools
                .iter()
                .all(|pool| pool.endpoint().excess_places(None, bounds) == 0)
    }
}
