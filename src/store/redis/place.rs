//! Where a record lives, decided by the tag in its Redis key: the same for all gateways.

use std::{hash::Hasher as _, io::Write as _};

use siphasher::sip::SipHasher13;

use crate::limit::Key;

/// How many slots a Cluster has.
pub(super) const SLOTS: u16 = 16_384;

/// What one script call can reach together: a shard by its rank, a Cluster's slot, or all there is.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(in crate::store) struct Place(pub(super) u16);

impl Place {
    /// Where everything is, where there is one server.
    pub(in crate::store) const ONLY: Self = Self(0);
}

/// The tag of all records of a caller: what stands between braces in their Redis keys.
pub(super) fn tag(key: Key) -> [u8; 32] {
    let mut tag = [b'0'; 32];
    // 32 digits fit into 32 bytes.
    let _ = write!(&mut tag[..], "{:032x}", key.0);
    tag
}

/// The slot of a tag, as every Cluster counts.
pub(super) fn slot(tag: &[u8]) -> u16 {
    crc16::State::<crc16::XMODEM>::calculate(tag) % SLOTS
}

/// A tag that lives in `slot`.
pub(super) fn slot_tag(slot: u16) -> String {
    let mut tags = (0..u32::MAX).map(|number| number.to_string());
    let found = tags.find(|tag| self::slot(tag.as_bytes()) == slot);
    found.unwrap_or_default()
}

/// Which of the `shards` has a tag, by rendezvous: the one whose name hashes highest with it. So a shard
/// that is added or taken away moves its own keys and no others, and the order of the list is nothing.
pub(super) fn shard<'a>(shards: impl Iterator<Item = &'a str>, tag: &[u8]) -> Place {
    let weight = |name: &str| {
        // The keys are a part of the format: all gateways must agree, whatever their version.
        let mut hasher = SipHasher13::new_with_keys(0x7469_6465_6761_7465, 0x7368_6172_6473_0001);
        hasher.write(name.as_bytes());
        hasher.write_u8(0xff);
        hasher.write(tag);
        hasher.finish()
    };
    let weighed = shards.enumerate().map(|(rank, name)| (weight(name), name, rank));
    let rank = weighed.max().map_or(0, |(_, _, rank)| rank);
    Place(u16::try_from(rank).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(slot(b"123456789"), 0x31c3);
        assert_eq!(slot(b"foo"), 12_182);
        for wanted in [0, 1, 8_191, 16_383] {
            assert_eq!(slot(slot_tag(wanted).as_bytes()), wanted);
        }
    }

    #[test]
    fn a_tag_is_what_stands_in_the_records_name() {
        assert_eq!(&tag(Key(0xab)), format!("{:032x}", 0xab).as_bytes());
        assert_eq!(&tag(Key(u128::MAX)), &[b'f'; 32]);
    }

    #[test]
    fn shards_share_evenly_whatever_their_order_and_one_more_takes_only_its_own() {
        let names = ["a:6379", "b:6379", "c:6379"];
        let backwards = ["c:6379", "b:6379", "a:6379"];
        let four = ["a:6379", "b:6379", "c:6379", "d:6379"];
        let (mut counts, mut moved) = ([0; 3], 0);
        for key in 0..30_000 {
            let tag = tag(Key(key));
            let Place(at) = shard(names.into_iter(), &tag);
            let Place(behind) = shard(backwards.into_iter(), &tag);
            assert_eq!(names[usize::from(at)], backwards[usize::from(behind)]);
            let Place(of_four) = shard(four.into_iter(), &tag);
            assert!(of_four == at || of_four == 3, "only the new one takes keys");
            moved += i32::from(of_four == 3);
            counts[usize::from(at)] += 1;
        }
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
        assert!((7_000..8_000).contains(&moved), "{moved}");
    }

    #[test]
    fn a_place_does_not_change_with_the_version() {
        let places = (0..16).map(|key| shard(["a:1", "b:1"].into_iter(), &tag(Key(key))).0);
        let places: Vec<u16> = places.collect();
        assert_eq!(places, [1, 1, 0, 1, 1, 1, 0, 1, 0, 0, 0, 1, 1, 0, 0, 0]);
    }
}
