//! Functions that mix bits: hashes of words, and random numbers from a seed.
//!
//! | file | content |
//! |---|---|
//! | `local_id` | keyed ids for the tables of this process: a client cannot choose keys that collide |
//! | `split_mix` | the generator `SplitMix64` and its hash of a word |

mod local_id;
mod split_mix;

pub use self::{
    local_id::{local_id, local_token},
    split_mix::{SplitMix, mix64},
};

/// Multiplies two words and xors the halves of the product: each bit of the result depends on all
/// bits of `value` if `factor` is odd and has ones in most places.
#[inline]
pub fn folded_multiply(value: u64, factor: u64) -> u64 {
    let product = u128::from(value) * u128::from(factor);
    (product >> 64) as u64 ^ product as u64
}
