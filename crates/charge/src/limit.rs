//! [`Limit`]: a configured limit.

use std::sync::Arc;

use tidegate_base::{mix::folded_multiply, time::Millis};
use tidegate_limit::{Algorithm, Quota};
use tidegate_vocabulary::OnFailure;

use super::LimitIdentity;

/// Suffix of a block's name, after its limit's name. No configured name has the character `~`.
const BLOCK_SUFFIX: &str = "~block";

/// Distinguishes the fingerprints of blocks. It must not change, because records in Redis have it
/// in their name.
const BLOCK_FINGERPRINT: u64 = 0x9e37_79b9_7f4a_7c15;

/// How many units a gateway takes from the shared store in one call.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum LeaseSize {
    /// The cost of the request: every request calls the store.
    #[default]
    Off,
    /// A batch that adapts to the rate at which the units are used.
    Auto,
    /// Batches of this many units.
    Units(u64),
}

/// One configured limit.
#[derive(Clone, Debug)]
pub struct Limit {
    /// Its name, and a fingerprint of the settings that its counters depend on.
    pub identity: LimitIdentity,
    /// The quota of each caller, and the algorithm that decides.
    pub quota: Quota,
    /// The cost of one request.
    pub cost: u64,
    /// The decision when the shared store gives no answer.
    pub on_failure: OnFailure,
    /// How many units a gateway takes from the shared store in one call.
    pub lease_size: LeaseSize,
    /// True if the limit may refuse. If false (a dry run), it charges the requests that it would
    /// admit, and affects no request.
    pub enforce: bool,
    /// The block that is charged beside the limit; `None` if the limit blocks no caller.
    pub block: Option<Arc<Limit>>,
    /// The limit with months that start at day 1, 2 and so on up to 31, if customers have billing
    /// days under it.
    pub by_billing_day: Option<Arc<[Arc<Limit>]>>,
    /// The caller's number for it, such as its index in a list.
    pub index: usize,
}

impl Limit {
    /// An enforced limit of requests that cost 1. It leases no units; while Redis is unavailable,
    /// each gateway enforces its share.
    pub fn new(identity: LimitIdentity, quota: Quota) -> Self {
        Self {
            identity,
            quota,
            cost: 1,
            on_failure: OnFailure::Local,
            lease_size: LeaseSize::Off,
            enforce: true,
            block: None,
            by_billing_day: None,
            index: 0,
        }
    }

    /// The configured name; shown in headers and metrics.
    pub fn name(&self) -> &str {
        self.identity.name()
    }

    /// The block that is charged beside this limit: it begins after `after` refusals within
    /// `within`, and lasts `duration`.
    #[must_use]
    pub fn with_block(self, after: u64, within: Millis, duration: Millis) -> Self {
        let name = format!("{}{BLOCK_SUFFIX}", self.name());
        let distinct = self.identity.fingerprint() ^ within.as_ms();
        let fingerprint = folded_multiply(distinct, BLOCK_FINGERPRINT);
        let block = Self {
            identity: LimitIdentity::new(name, fingerprint),
            quota: Quota::new(after, within, Algorithm::Block { duration }),
            cost: 1,
            lease_size: LeaseSize::Off,
            ..self.clone()
        };
        Self { block: Some(Arc::new(block)), ..self }
    }

    /// The limit with another quota.
    #[must_use]
    pub fn with_quota(&self, quota: Quota) -> Self {
        let limit = Self { quota, by_billing_day: None, ..self.clone() };
        if self.by_billing_day.is_some() { limit.with_billing_days() } else { limit }
    }

    /// The limit with a copy for each billing day, if it counts calendar months.
    #[must_use]
    pub fn with_billing_days(self) -> Self {
        let Algorithm::CalendarWindow(calendar) = self.quota.algorithm else { return self };
        if calendar.month_start() == 0 {
            return self;
        }
        let of_day = |day| {
            let algorithm = Algorithm::CalendarWindow(calendar.with_month_start(day));
            Arc::new(Self { quota: Quota { algorithm, ..self.quota }, ..self.clone() })
        };
        let by_billing_day = Some((1..=31).map(of_day).collect());
        Self { by_billing_day, ..self }
    }

    /// The limit for a consumer with this billing day.
    #[inline]
    pub fn for_billing_day(self: &Arc<Self>, day: Option<u8>) -> &Arc<Self> {
        let of_day = || self.by_billing_day.as_ref()?.get(usize::from(day?).checked_sub(1)?);
        of_day().unwrap_or(self)
    }

    /// The name of the limit that this block belongs to.
    pub fn blocked_name(&self) -> &str {
        self.name().strip_suffix(BLOCK_SUFFIX).unwrap_or(self.name())
    }

    /// The algorithm that decides.
    pub fn algorithm(&self) -> Algorithm {
        self.quota.algorithm
    }
}
