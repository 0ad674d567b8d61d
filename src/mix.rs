//! Names of entries in this process's tables, by a secret that the process draws at its start.
//!
//! Keys and tokens are hashes under a secret that clients may know: where none is configured it follows
//! from the namespace. A table that took places by their bits would let a client choose keys that fall
//! beside a certain caller's, and push it out.
//!
//! Each half of a name is masked by a function of the other half and of the secret, four times: the two
//! halves of a product of 64 by 64 bits, folded. One such product is linear in nothing, but regular for
//! names in a row; every bit of the result has gone through two. So names that agree in some bits, or differ
//! by a chosen amount, fall together as rarely as any others. As in every Feistel network each step can be
//! undone, so that names that differ still differ.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
    sync::LazyLock,
};

/// Of each step what is added to a half, and what that is multiplied by, which is odd.
type Step = (u64, u64);

static SECRET: LazyLock<[Step; 4]> = LazyLock::new(|| {
    // Keyed by the operating system's random numbers, and each state by another key.
    let random = || RandomState::new().build_hasher().finish();
    std::array::from_fn(|_| (random(), random() | 1))
});

/// The name in this process of what has the name `record` at all gateways.
#[inline]
pub fn local_name(record: u128) -> u128 {
    let [first, second, third, fourth] = &*SECRET;
    let (mut high, mut low) = ((record >> 64) as u64, record as u64);
    low ^= mask(high, first);
    high ^= mask(low, second);
    low ^= mask(high, third);
    high ^= mask(low, fourth);
    u128::from(high) << 64 | u128::from(low)
}

/// The same of 64 bits. Two may become one here, as rarely as two random numbers of 64 bits are the same.
#[inline]
pub fn local_token(token: u64) -> u64 {
    let [first, second, ..] = &*SECRET;
    mask(mask(token, first), second)
}

#[inline]
fn mask(half: u64, (add, times): &Step) -> u64 {
    let product = u128::from(half ^ add) * u128::from(*times);
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Names that agree in all but 16 bits, wherever those are, and names whose halves are alike.
    fn chosen() -> impl Iterator<Item = Vec<u128>> {
        let windows = (0..=112).step_by(8).map(|at| (0..1 << 16).map(|n| n << at).collect());
        windows.chain([(0..1 << 16).map(|n| n << 64 | n).collect()])
    }

    #[test]
    fn names_that_differ_still_do() {
        for names in chosen() {
            let local: HashSet<u128> = names.iter().map(|&name| local_name(name)).collect();
            assert_eq!(local.len(), names.len());
        }
        let tokens: HashSet<u64> = (0..1 << 16).map(|n| local_token(n << 30)).collect();
        assert_eq!(tokens.len(), 1 << 16);
    }

    /// Of 65,536 random numbers of 16 bits about 63% of the possible ones are there.
    #[test]
    fn no_bits_of_a_name_choose_those_of_the_local_one() {
        let spread = |places: HashSet<u16>| assert!(places.len() > 37_000, "{}", places.len());
        for names in chosen() {
            for at in [0, 16, 48, 64, 96, 112] {
                spread(names.iter().map(|&name| (local_name(name) >> at) as u16).collect());
            }
        }
        for shift in (0..=48).step_by(8) {
            for at in [0, 48] {
                spread((0..1 << 16).map(|n| (local_token(n << shift) >> at) as u16).collect());
            }
        }
    }
}
