//! The ring of consistent hashing: each endpoint has points on it, and a key belongs to the next
//! point.
//!
//! As with ketama and Envoy's ring hash, removing an endpoint moves only its own keys. The points
//! are hashes of the endpoint's name alone, so all gateways have the same ring, whatever the order
//! of the endpoints.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;
use tidegate_base::mix::mix64;

/// Number of points for each unit of an endpoint's weight, unless the ring would be too large.
/// Among endpoints of equal weight, the number of keys has a standard deviation of at most 1/16 of
/// the mean.
const POINTS: u64 = 256;
/// Approximate maximum number of points of a ring. Beyond it, all endpoints have fewer, by a power
/// of 2.
const MAX_POINTS: u64 = 1 << 18;
/// Number of low bits of a point that hold its endpoint. The upper bits hold its position on the
/// ring.
const INDEX_BITS: u32 = 24;

/// Points in ascending order, and the hash of each endpoint's name.
#[derive(Debug)]
pub(super) struct Ring {
    points: Box<[u64]>,
    names: Box<[u64]>,
}

impl Ring {
    /// A ring of endpoints, each given by name and weight. With weight 0 an endpoint has no points.
    pub(super) fn new<'a>(endpoints: impl Iterator<Item = (&'a str, u32)> + Clone) -> Self {
        // The number of an endpoint's points does not depend on the others, while the ring has
        // room.
        let total: u64 = endpoints.clone().map(|(_, weight)| POINTS * u64::from(weight)).sum();
        let unit = total.div_ceil(MAX_POINTS).next_power_of_two();
        let names: Box<[u64]> = endpoints.clone().map(|(name, _)| hash(name)).collect();
        let mut points = Vec::new();
        for (index, (_, weight)) in endpoints.enumerate().filter(|(_, (_, weight))| *weight > 0) {
            let count = (POINTS * u64::from(weight) / unit).max(1);
            let places = (0..count).map(|point| mix64(names[index].wrapping_add(mix64(point + 1))));
            points.extend(places.map(|place| place >> INDEX_BITS << INDEX_BITS | index as u64));
        }
        points.sort_unstable();
        Self { points: points.into(), names }
    }

    /// The endpoints of the points from the key on, once round the ring. An endpoint appears
    /// several times.
    pub(super) fn walk(&self, key: u64) -> impl Iterator<Item = usize> {
        let start = self.points.partition_point(|&point| point < mix64(key));
        let (before, after) = self.points.split_at(start);
        after.iter().chain(before).map(|&point| (point & ((1 << INDEX_BITS) - 1)) as usize)
    }

    /// The rank of an endpoint for a key: as random as a hash, and the same on all gateways.
    #[inline]
    pub(super) fn rank(&self, index: usize, key: u64) -> u64 {
        mix64(key ^ self.names[index])
    }
}

/// The hash of a name. It needs no secret: it must be the same on all gateways, and clients do not
/// choose names.
fn hash(name: &str) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(name.as_bytes());
    hasher.finish()
}
