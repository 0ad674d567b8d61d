//! Maps a record to its shard by the hash tag in its Redis key. All gateways compute the same
//! shard.

use std::{hash::Hasher as _, io::Write as _};

use siphasher::sip::SipHasher13;
use tidegate_charge::Key;

/// Number of slots in a Cluster.
pub(super) const SLOTS: u16 = 16_384;

/// A set of keys that one script call can reach: the index of a configured shard, in the order of
/// names, or a Cluster's slot.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ShardId(pub(super) u16);

impl ShardId {
    /// The only shard, if there is one server.
    pub const ONLY: Self = Self(0);
}

/// The hash tag of a caller's records: the text between braces in their Redis keys.
pub(super) fn hash_tag(key: Key) -> [u8; 32] {
    let mut tag = [b'0'; 32];
    // 32 digits fit into 32 bytes.
    let _ = write!(&mut tag[..], "{:032x}", key.0);
    tag
}

/// The slot of a tag: CRC16 modulo [`SLOTS`], as the Redis Cluster specification defines it.
pub(super) fn slot_of_tag(tag: &[u8]) -> u16 {
    let mut remainder = 0_u16;
    for &byte in tag {
        remainder = remainder << 8 ^ CRC16[usize::from((remainder >> 8) as u8 ^ byte)];
    }
    remainder % SLOTS
}

/// The remainder of each byte under CRC-16/XMODEM: polynomial 0x1021, most significant bit first.
const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let mut remainder = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            let polynomial = if remainder & 0x8000 == 0 { 0 } else { 0x1021 };
            remainder = remainder << 1 ^ polynomial;
            bit += 1;
        }
        table[byte] = remainder;
        byte += 1;
    }
    table
};

/// A hash tag whose keys are in this slot.
pub(super) fn tag_of_slot(slot: u16) -> String {
    let mut tags = (0..u32::MAX).map(|number| number.to_string());
    let found = tags.find(|tag| slot_of_tag(tag.as_bytes()) == slot);
    found.unwrap_or_default()
}

/// The shard of a tag, by rendezvous hashing (Thaler and Ravishankar, 1998): the shard whose name,
/// hashed together with the tag, has the highest hash. Adding or removing a shard moves only its
/// own keys, and the order of the list has no effect.
pub(super) fn shard_of_tag<'a>(names: impl Iterator<Item = &'a str>, tag: &[u8]) -> ShardId {
    let weight = |name: &str| {
        // These constants never change: gateways of all versions must choose the same shard.
        let mut hasher = SipHasher13::new_with_keys(0x7469_6465_6761_7465, 0x7368_6172_6473_0001);
        hasher.write(name.as_bytes());
        hasher.write_u8(0xff);
        hasher.write(tag);
        hasher.finish()
    };
    let weighted = names.enumerate().map(|(index, name)| (weight(name), name, index));
    let index = weighted.max().map_or(0, |(_, _, index)| index);
    ShardId(u16::try_from(index).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_match_the_specification() {
        assert_eq!(slot_of_tag(b"123456789"), 0x31c3);
        // As `CLUSTER KEYSLOT` of a Redis server returns them.
        assert_eq!(slot_of_tag(b""), 0);
        assert_eq!(slot_of_tag(b"foo"), 12_182);
        assert_eq!(slot_of_tag(b"bar"), 5_061);
        assert_eq!(slot_of_tag(b"user1000"), 3_443);
        for slot in [0, 1, 8_191, 16_383] {
            assert_eq!(slot_of_tag(tag_of_slot(slot).as_bytes()), slot);
        }
    }

    #[test]
    fn hash_tag_is_the_keys_32_hexadecimal_digits() {
        assert_eq!(&hash_tag(Key(0xab)), format!("{:032x}", 0xab).as_bytes());
        assert_eq!(&hash_tag(Key(u128::MAX)), &[b'f'; 32]);
    }

    #[test]
    fn shards_share_evenly_in_any_order_and_an_added_shard_takes_only_its_own_keys() {
        let names = ["a:6379", "b:6379", "c:6379"];
        let reversed = ["c:6379", "b:6379", "a:6379"];
        let four = ["a:6379", "b:6379", "c:6379", "d:6379"];
        let (mut counts, mut moved) = ([0; 3], 0);
        for key in 0..30_000 {
            let tag = hash_tag(Key(key));
            let ShardId(of_three) = shard_of_tag(names.into_iter(), &tag);
            let ShardId(of_reversed) = shard_of_tag(reversed.into_iter(), &tag);
            assert_eq!(names[usize::from(of_three)], reversed[usize::from(of_reversed)]);
            let ShardId(of_four) = shard_of_tag(four.into_iter(), &tag);
            assert!(of_four == of_three || of_four == 3, "only the new shard takes keys");
            moved += i32::from(of_four == 3);
            counts[usize::from(of_three)] += 1;
        }
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
        assert!((7_000..8_000).contains(&moved), "{moved}");
    }

    #[test]
    fn the_shard_of_a_key_is_the_same_in_all_versions() {
        let shard = |key| shard_of_tag(["a:1", "b:1"].into_iter(), &hash_tag(Key(key))).0;
        let shards: Vec<u16> = (0..16).map(shard).collect();
        assert_eq!(shards, [1, 1, 0, 1, 1, 1, 0, 1, 0, 0, 0, 1, 1, 0, 0, 0]);
    }
}
