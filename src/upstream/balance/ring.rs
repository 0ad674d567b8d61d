//! The ring of consistent hashing: each endpoint has points on it, and a key belongs to the next point.
//!
//! As ketama and Envoy's ring hash: if an endpoint goes, only its own keys move. The points are hashes of the
//! endpoint's name alone, so that all gateways have the same ring, in whatever order the endpoints come.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use crate::mix::mix64;

/// The points of an endpoint for each unit of its weight, unless the ring would be too large. The keys of
/// endpoints with equal weights differ in number by a standard deviation of 1/16 at most.
const POINTS: u64 = 256;
/// About the most points of a ring. Beyond it all endpoints have fewer, by a power of 2.
const MAX_POINTS: u64 = 1 << 18;
/// The bits of a point that hold its endpoint; those above hold its place.
const INDEX_BITS: u32 = 24;

/// Points in ascending order, and the hash of each endpoint's name.
#[derive(Debug)]
pub(super) struct Ring {
    points: Box<[u64]>,
    names: Box<[u64]>,
}

impl Ring {
    /// The ring of endpoints given by name and weight. Those of weight 0 have no point.
    pub(super) fn new<'a>(endpoints: impl Iterator<Item = (&'a str, u32)> + Clone) -> Self {
        // The number of an endpoint's points does not depend on the others, as long as the ring has room.
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

    /// The endpoints of the points from the key's on, once round the ring. An endpoint comes several times.
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

/// The hash of a name, without a secret: it is the same on all gateways, and clients do not choose it.
fn hash(name: &str) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(name.as_bytes());
    hasher.finish()
}
