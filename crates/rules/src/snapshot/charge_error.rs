//! [`ChargePlanError`]: why a request cannot be charged, and the syntax of a cost in a header.

use http::HeaderName;
use tidegate_identity::{AmbiguousValue, trim};

/// The reason why a request cannot be charged to a limit.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ChargePlanError {
    /// A part of the key is ambiguous.
    #[error("{0}")]
    Ambiguous(#[from] AmbiguousValue),
    /// The consumer's plan blocks the limit.
    #[error("the plan of this consumer does not include this request")]
    PlanBlocked,
    /// An override blocks the limit.
    #[error("an operator has blocked this caller")]
    OverrideBlocked,
    /// The cost header has no valid value.
    #[error("header {name} (the request's cost) must be a whole number from 1 to {max}")]
    Cost {
        /// The header.
        name: HeaderName,
        /// The maximum value.
        max: u64,
    },
    /// The member of the request's body that has the estimate of the cost is no number.
    #[error("`{0}` in the request's body (the estimate of its cost) must be a number")]
    Estimate(String),
}

/// Parses decimal digits; a number that overflows is `u64::MAX`.
pub(super) fn parse_decimal(text: &[u8]) -> Option<u64> {
    let text = trim(text);
    let is_decimal = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let add = |sum: u64, digit: &u8| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
    is_decimal.then(|| text.iter().fold(0, add))
}
