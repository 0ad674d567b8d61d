//! Record ids: the local and the shared id of a caller's record under a limit, and an id of its
//! quota.

use tidegate_base::mix;
use tidegate_charge::{Key, Limit};
use tidegate_limit::{Algorithm, MAX_UNITS, Quota};

/// A record and the quota that a charge was decided under. A reload that changes the quota keeps
/// the record, but invalidates what was cached under the old quota.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct RecordId {
    /// The record: a hash of the caller's key and the limit's identity, independent of the quota.
    pub(crate) record: u128,
    /// A number for the settings that differ among the quotas of one record: the limit, and
    /// [`Quota::variant`].
    pub(crate) quota_id: u64,
}

impl RecordId {
    /// A caller's record under `limit`, with the limit's current quota.
    pub(crate) fn of(limit: &Limit, key: Key) -> Self {
        Self { record: record_id(limit, key), quota_id: quota_id(&limit.quota) }
    }
}

/// The local id of a caller's record under `limit`, as used by all tables of this process. Clients
/// cannot predict which ids collide in a table.
pub(crate) fn record_id(limit: &Limit, key: Key) -> u128 {
    local_record_id(shared_record_id(limit, key))
}

/// The local id of the record with this shared id.
pub(crate) fn local_record_id(shared: u128) -> u128 {
    mix::local_id(shared)
}

/// The shared id of a caller's record under `limit`: the same at all gateways on one Redis.
pub(crate) fn shared_record_id(limit: &Limit, key: Key) -> u128 {
    key.0 ^ limit.identity.hash()
}

/// A number for each quota of a record, whose algorithm never changes. Distinct, because only
/// windows have more than 2^32 - 1 units, and the variants of a window are fewer than 2^11.
fn quota_id(quota: &Quota) -> u64 {
    let variant = u64::from(quota.variant());
    let shift = match quota.algorithm {
        Algorithm::SlidingWindow { .. } | Algorithm::FixedWindow | Algorithm::CalendarWindow(_) => {
            MAX_UNITS.trailing_ones()
        }
        Algorithm::SlidingLog
        | Algorithm::TokenBucket
        | Algorithm::LeakyBucket { .. }
        | Algorithm::Concurrency
        | Algorithm::Block { .. } => u32::BITS,
    };
    variant << shift | quota.limit
}
