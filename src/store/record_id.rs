//! What names a caller's record to this process, and the quota that it was asked under.

use crate::{
    limit::{Key, Limit, Quota},
    mix,
};

/// A record and the quota that a charge met there. A reload that changes the quota keeps the record, and
/// what was learnt of it under the old quota holds no more.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct RecordId {
    /// The record: the caller's key and the limit's identity, of whatever quota.
    pub(crate) record: u128,
    /// What a reload may change without giving up the record: the quota's number, a leaky bucket's
    /// longest wait, a sliding window's strictness.
    pub(crate) quota: u64,
}

impl RecordId {
    /// The record that `limit` keeps of a caller, under its quota of now.
    pub(crate) fn of(limit: &Limit, key: Key) -> Self {
        Self { record: record(limit, key), quota: of_quota(&limit.quota) }
    }
}

/// The record that `limit` keeps of a caller, under whatever quota, by the name that all tables of this
/// process use: no client can tell which of these names share a place.
pub(crate) fn record(limit: &Limit, key: Key) -> u128 {
    local_record(shared_record(limit, key))
}

/// The same by the name that all gateways of one store have for it.
pub(crate) fn local_record(shared: u128) -> u128 {
    mix::local_name(shared)
}

/// The name that all gateways of one store have for the record.
pub(crate) fn shared_record(limit: &Limit, key: Key) -> u128 {
    key.0 ^ limit.identity()
}

/// One number for each quota that a record may be asked under: only a sliding window is strict, and with
/// one no request waits.
fn of_quota(quota: &Quota) -> u64 {
    let number = u64::from(quota.limit) << 32 | u64::from(quota.max_wait);
    if quota.strict { !number } else { number }
}
