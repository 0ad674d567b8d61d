//! The limit algorithms: pure functions of `(state, now, input)`.
//!
//! Nothing here reads a clock, does I/O or waits. Each algorithm is one file with a Lua twin of the
//! same name in `lua/`; a differential test drives random sequences through both.

mod acquire;
pub mod concurrency;
mod counts;
pub mod fixed_window;
mod holes;
mod horizon;
pub mod leaky_bucket;
#[cfg(test)]
mod promises;
pub mod sliding_log;
pub mod sliding_window;
mod state;
pub mod token_bucket;
mod verdict;

pub use acquire::{Back, Fetch, Grant, MAX_AHEAD, Order};
pub use counts::Counts;
pub use horizon::Horizon;
pub use state::State;
pub use verdict::{Admission, Decided, Decider, Outcome, Verdict};

/// A point in time, in milliseconds since the Unix epoch.
pub type Millis = u64;

/// The largest product of quota and sub-window length (ms) that keeps the arithmetic of both twins
/// exact: Lua counts in doubles, whose integers end at 2^53.
pub const MAX_QUOTA_MILLIS: u64 = 1 << 52;

/// The most that a bucket may owe, in quota-milliseconds: near the end of the numbers that Lua counts
/// and divides exactly, and almost twice what [`MAX_QUOTA_MILLIS`] lets a full one owe.
pub const MAX_EXACT: u64 = (1 << 53) - (1 << 36);

/// How far a clock may step back and still be taken for jitter between clocks: a record then stands
/// still. A clock that steps back further was set, and the record moves with it.
pub const MAX_STEP_BACK: Millis = 5_000;

/// The most sub-windows that a window may be divided into.
pub const MAX_RESOLUTION: u32 = 60;

/// Who is counted: a keyed 128-bit hash of a limit's key parts. Never the parts themselves.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Key(pub u128);

/// How much may pass in how long.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Quota {
    /// What may be charged in one window, in units of cost.
    pub limit: u32,
    /// The window's length in ms.
    pub window: Millis,
    /// Sub-windows that a sliding window is divided into; divides `window`. 1 for all others.
    pub resolution: u32,
    /// The longest that a leaky bucket delays, in ms; 0 for all others.
    pub max_wait: u32,
    /// Whether a sliding window counts its oldest sub-window in full.
    pub strict: bool,
}

impl Quota {
    /// `limit` in each `window`, in sub-windows of `1 / resolution` of it; neither strict nor waiting.
    pub fn new(limit: u32, window: Millis, resolution: u32) -> Self {
        Self { limit, window, resolution, max_wait: 0, strict: false }
    }

    /// The length of one sub-window in ms.
    pub fn sub_window(&self) -> Millis {
        self.window / u64::from(self.resolution)
    }
}

/// Which algorithm counts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Algorithm {
    /// Weighted counters of sub-windows: [`sliding_window`].
    SlidingWindow,
    /// The time of every charge: [`sliding_log`].
    SlidingLog,
    /// One counter and the time of its end: [`fixed_window`].
    FixedWindow,
    /// A burst, refilled at a constant rate: [`token_bucket`].
    TokenBucket,
    /// A constant rate, kept by delaying: [`leaky_bucket`].
    LeakyBucket,
    /// Slots that requests hold while they are in flight: [`concurrency`].
    Concurrency,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::SlidingWindow,
        Self::SlidingLog,
        Self::FixedWindow,
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::Concurrency,
    ];

    /// The name it goes by in `lua/`, where its twin registers itself.
    pub fn tag(self) -> &'static str {
        match self {
            Self::SlidingWindow => "sliding_window",
            Self::SlidingLog => "sliding_log",
            Self::FixedWindow => "fixed_window",
            Self::TokenBucket => "token_bucket",
            Self::LeakyBucket => "leaky_bucket",
            Self::Concurrency => "concurrency",
        }
    }
}

/// What happens to a request when the shared store cannot be asked.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum OnFailure {
    /// This gateway enforces its share, quota / gateways alive, from its own memory.
    #[default]
    Local,
    /// The limit admits.
    Open,
    /// The limit refuses, with 503.
    Closed,
}

/// How many tokens a gateway takes from the shared store at a time.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Reserve {
    /// As many as each request costs: every request asks the store.
    #[default]
    Off,
    /// As many as are used up in a moment.
    Auto,
    /// So many.
    Tokens(u32),
}

/// One configured limit.
///
/// Its identity, the pair of `name` and `fingerprint`, leaves the quota's number out: a reload that
/// changes the quota keeps what has been used.
#[derive(Clone, Debug)]
pub struct Limit {
    /// The name that the operator gave it; shown in headers and metrics.
    pub name: Box<str>,
    /// A hash of what makes its counters meaningful: algorithm, window, resolution, key parts.
    pub fingerprint: u64,
    /// Which algorithm counts.
    pub algorithm: Algorithm,
    /// How much may pass in how long.
    pub quota: Quota,
    /// What one request costs.
    pub cost: u32,
    /// What happens when the shared store cannot be asked.
    pub on_failure: OnFailure,
    /// How many tokens a gateway takes from the shared store at a time.
    pub reserve: Reserve,
    /// Whether it may refuse. One that may not is charged where it would have admitted, and nobody
    /// feels it.
    pub enforce: bool,
    /// Its place in the snapshot's list and in every per-limit metric.
    pub index: usize,
}

impl Limit {
    /// The most that a caller who has used nothing may use at once, as decisions tell it: the quota, or
    /// a leaky bucket's slots.
    pub fn ceiling(&self) -> u64 {
        match self.algorithm {
            Algorithm::LeakyBucket => leaky_bucket::slots(&self.quota),
            _ => u64::from(self.quota.limit),
        }
    }

    /// How long after a charge a correction of it may still matter, in ms.
    pub fn reach(&self) -> Millis {
        let Quota { window, max_wait, .. } = self.quota;
        match self.algorithm {
            Algorithm::SlidingWindow => window + self.quota.sub_window(),
            Algorithm::LeakyBucket => window + u64::from(max_wait),
            _ => window,
        }
    }

    /// 128 bits that tell this limit's records from every other limit's: a store combines them with a
    /// [`Key`] by exclusive or. Two limits may count by the same key parts and so share a `Key`; their
    /// names differ, and so do their records. Names are the operator's, so no secret is needed here:
    /// an attacker knows neither side of the combination.
    pub fn identity(&self) -> u128 {
        let (words, rest) = self.name.as_bytes().as_chunks::<8>();
        let folded = words
            .iter()
            .fold(fold(self.fingerprint), |hash, word| fold(hash ^ u64::from_le_bytes(*word)));
        let rest = rest.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
        // The length tells names apart whose rests differ by leading zeros alone.
        let low = fold(fold(folded ^ rest) ^ self.name.len() as u64);
        u128::from(low) | u128::from(fold(!low)) << 64
    }
}

/// Stirs 64 bits: both halves of a product with an odd constant, folded.
fn fold(value: u64) -> u64 {
    let product = u128::from(value ^ 0x9e37_79b9_7f4a_7c15) * 0xa076_1d64_78bd_642f;
    (product >> 64) as u64 ^ product as u64
}

/// One limit, one caller, one request.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// The limit that is asked.
    pub limit: &'a Limit,
    /// Who is counted.
    pub key: Key,
    /// What the request costs, in the quota's units; 0 only looks: it is admitted and charges nothing.
    pub cost: u32,
}

/// What is corrected once a request is over: see [`Change`].
#[derive(Clone, Copy, Debug)]
pub struct Settlement<'a> {
    /// The limit that was charged.
    pub limit: &'a Limit,
    /// Who was counted.
    pub key: Key,
    /// What to correct.
    pub change: Change,
}

/// A correction of what was charged.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Change {
    /// Gives back so many units of a charge made at that time, by the clock that decided it
    /// ([`Decided::at`]); only what still counts, and never below nothing.
    Refund {
        /// When they were charged; of a leaky bucket, when they were to be released: that and
        /// [`Decision::wait`].
        charged_at: Millis,
        /// How many.
        cost: u32,
    },
    /// Charges so many units more without asking: the quota may be overdrawn.
    Overdraw {
        /// How many.
        cost: u32,
    },
}

impl Change {
    /// How many units it is about.
    pub fn cost(self) -> u32 {
        let (Self::Refund { cost, .. } | Self::Overdraw { cost }) = self;
        cost
    }
}

/// What one limit says of one charge.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Decision {
    /// Whether this limit alone would let the request pass.
    pub admitted: bool,
    /// The quota that was enforced.
    pub limit: u64,
    /// What is left after this request, in units of cost.
    pub remaining: u64,
    /// What is used after this request; above `limit` only when the quota was lowered.
    pub used: u64,
    /// The stored reset-at: never moves back, and later only with a charge.
    pub reset_at: Millis,
    /// The first ms at which the same charge would be admitted if nobody else charged; `None` when
    /// admitted, and when the cost is above the quota, so that it never would be.
    pub retry_at: Option<Millis>,
    /// How long the gateway holds the admitted request back, in ms: a leaky bucket's delay, else 0.
    pub wait: Millis,
}

/// The time that counts for a record that was last charged at `seen`, and by how much the record
/// moves back before that: a record's time never runs backwards, except with a clock that was set.
fn settle(seen: Millis, now: Millis) -> (Millis, Millis) {
    match seen.saturating_sub(now) {
        0 => (now, 0),
        behind if behind <= MAX_STEP_BACK => (seen, 0),
        behind => (now, behind),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_name_and_fingerprint_has_its_own_identity() {
        let mut seen = BTreeSet::new();
        let mut names: Vec<String> = (0..5_000).map(|n| format!("limit-{n}")).collect();
        names.extend((0..20).map(|n| "a".repeat(n)));
        names.extend((0..20).map(|n| "\0".repeat(n + 1)));
        for name in &names {
            for fingerprint in [0, 1, u64::MAX] {
                let limit = Limit {
                    name: name.as_str().into(),
                    fingerprint,
                    algorithm: Algorithm::SlidingWindow,
                    quota: Quota::new(1, 1_000, 1),
                    cost: 1,
                    on_failure: OnFailure::Local,
                    reserve: Reserve::Off,
                    enforce: true,
                    index: 0,
                };
                assert!(seen.insert(limit.identity()), "{name:?} {fingerprint}");
            }
        }
    }
}
