//! The claim of a request to a place at an endpoint, and what clients hold beyond their shares.

use super::Run;
use crate::upstream::{
    PlaceHolder,
    paced_place::{Claim, PacedPlace},
};

impl Run<'_> {
    /// The request's body, if it is still awaited, holds `place`.
    pub(super) fn hold_upload(&self, place: Option<Box<PacedPlace>>) {
        if let Some(upload) = self.holder.and_then(|holder| holder.upload) {
            upload.hold(place);
        }
    }

    /// What the request claims a place with; `None` without a client.
    pub(super) fn claim(&self) -> Option<Claim> {
        let PlaceHolder { client, upload } = self.holder?;
        let is_incomplete = upload.is_some_and(|upload| !upload.is_complete());
        Some(Claim { client, is_paced: is_incomplete || self.choice.is_upgrade })
    }

    /// The places at all targets that clients hold beyond their shares. They return soon if requests wait for them.
    pub(super) fn excess_places(&self) -> u32 {
        let bounds = &self.endpoints.set.servers.bounds;
        if self.is_share_full || !bounds.is_bounded() {
            return 0;
        }
        let excess = self.endpoints.pools.iter().map(|pool| {
            let endpoint = pool.endpoint();
            endpoint.paced().excess(endpoint.client_share(bounds))
        });
        excess.sum()
    }
}
