//! How many users are active, from how full the filters are.

use super::geometry::Geometry;

/// Distinct tokens over all live generations.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Estimate {
    /// The most likely number; when saturated, the largest that can be told.
    pub tokens: u64,
    /// The true number is within this of it in 95 of 100 cases; without meaning when saturated.
    pub error: u64,
    /// The filters are too full to tell: at least [`Self::tokens`].
    pub saturated: bool,
}

/// Reads the estimate off the `occupied` positions.
pub fn estimate(geometry: &Geometry, occupied: usize) -> Estimate {
    let _ = (geometry, occupied);
    todo!()
}

/// The largest number of tokens that filters of this geometry can tell.
pub fn ceiling(geometry: &Geometry) -> u64 {
    let _ = geometry;
    todo!()
}
