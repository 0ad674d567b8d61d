//! Process-local ids for the entries of this process's tables, keyed with a secret drawn at start.
//!
//! Record ids and tokens are hashes under a secret that clients may know: if none is configured, it
//! is derived from the namespace. A table indexed by their bits would let a client choose keys that
//! collide with a certain caller's, and evict that caller's entries.
//!
//! A Feistel network of four rounds. Each round xors one half of the id with a mask: a 64 by 64 bit
//! product of the other half and the secret, with the product's halves xored. Every bit of the
//! result depends on two products, because one alone maps consecutive ids to a regular pattern. So
//! ids that agree in some bits, or differ by a chosen amount, collide as rarely as random ids.
//! Every round is invertible, so different ids stay different.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
    sync::LazyLock,
};

use super::folded_multiply;

/// The key of a round: a value to xor with one half, and an odd factor for the result.
type RoundKey = (u64, u64);

static SECRET: LazyLock<[RoundKey; 4]> = LazyLock::new(|| {
    // Each `RandomState` has its own keys, seeded by the operating system's random numbers.
    let random = || RandomState::new().build_hasher().finish();
    std::array::from_fn(|_| (random(), random() | 1))
});

/// The process-local id of a record. `record` is the id that all gateways share. Different records
/// have different local ids.
#[inline]
pub fn local_id(record: u128) -> u128 {
    let [first, second, third, fourth] = &*SECRET;
    let (mut high, mut low) = ((record >> 64) as u64, record as u64);
    low ^= mask(high, first);
    high ^= mask(low, second);
    low ^= mask(high, third);
    high ^= mask(low, fourth);
    u128::from(high) << 64 | u128::from(low)
}

/// The process-local id of a token. Different tokens share an id as rarely as random 64-bit numbers
/// are equal.
#[inline]
pub fn local_token(token: u64) -> u64 {
    let [first, second, ..] = &*SECRET;
    mask(mask(token, first), second)
}

#[inline]
fn mask(half: u64, (xor, factor): &RoundKey) -> u64 {
    folded_multiply(half ^ xor, *factor)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Ids that agree in all but 16 bits, at each position, and ids with equal halves.
    fn chosen_ids() -> impl Iterator<Item = Vec<u128>> {
        let windows = (0..=112).step_by(8).map(|at| (0..1 << 16).map(|n| n << at).collect());
        windows.chain([(0..1 << 16).map(|n| n << 64 | n).collect()])
    }

    #[test]
    fn different_ids_stay_different() {
        for ids in chosen_ids() {
            let local: HashSet<u128> = ids.iter().map(|&id| local_id(id)).collect();
            assert_eq!(local.len(), ids.len());
        }
        let tokens: HashSet<u64> = (0..1 << 16).map(|n| local_token(n << 30)).collect();
        assert_eq!(tokens.len(), 1 << 16);
    }

    /// 65,536 random numbers of 16 bits take about 63% of the possible values.
    #[test]
    fn bits_of_an_id_do_not_determine_bits_of_the_local_id() {
        let assert_spread =
            |values: HashSet<u16>| assert!(values.len() > 37_000, "{}", values.len());
        for ids in chosen_ids() {
            for at in [0, 16, 48, 64, 96, 112] {
                assert_spread(ids.iter().map(|&id| (local_id(id) >> at) as u16).collect());
            }
        }
        for shift in (0..=48).step_by(8) {
            for at in [0, 48] {
                assert_spread(
                    (0..1 << 16).map(|n| (local_token(n << shift) >> at) as u16).collect(),
                );
            }
        }
    }
}
