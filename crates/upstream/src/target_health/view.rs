//! [`HealthView`]: the part of a target's health that the choice reads, in one atomic word.

use tidegate_balance::FULL_RAMP;
use tidegate_base::time::{CoarseTime, Millis};

/// The share of the weight at which slow start begins, in 1/1024: 10 %.
const MIN_RAMP: u32 = 103;

/// The bits of the kind.
const KIND: u64 = 0b111;
/// The bit for failures since the last success.
const HAS_FAILURES: u64 = 0b1000;
/// The bits below the time.
const TIME_SHIFT: u32 = 4;

/// A target's health in 64 bits, as of the last event: a kind and a time in ms. The default is in
/// service.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct HealthView(u64);

/// A target's state as of the last event. The discriminants are part of the packed format.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ViewKind {
    InService = 0,
    /// In service since the view's time, with slow start.
    SlowStart = 1,
    /// Ejected until the view's time; then a trial is due.
    Ejected = 2,
    Down = 3,
    Drained = 4,
}

/// A target's availability for the choice.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Availability {
    /// It is in service.
    Available,
    /// Its ejection has ended: one attempt may try it (half-open).
    Trial,
    /// It is ejected, down or drained.
    Unavailable,
}

/// A target's health at a time, for metrics and the admin API.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TargetStatus {
    /// In service with its whole weight.
    Up,
    /// In service with a part of its weight.
    SlowStart,
    /// Ejected by its failures.
    Ejected,
    /// Its ejection has ended, and its trial is due.
    HalfOpen,
    /// Down by its health checks.
    Down,
    /// Its weight is 0.
    Drained,
}

/// An upstream's ability to take requests, from its targets' health.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ServiceLevel {
    /// At least one target is in service.
    Serving,
    /// All are ejected or down.
    AllDown {
        /// The time until one may be tried.
        retry_after: Millis,
    },
}

impl HealthView {
    pub(super) fn new(kind: ViewKind, time: CoarseTime, failures: u32) -> Self {
        let flag = if failures > 0 { HAS_FAILURES } else { 0 };
        Self(time.as_ms() << TIME_SHIFT | flag | kind as u64)
    }

    /// The view that [`HealthView::to_bits`] packed.
    #[inline]
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The view in one word, for an atomic. 0 is the default.
    #[inline]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    #[inline]
    fn kind(self) -> ViewKind {
        match self.0 & KIND {
            0 => ViewKind::InService,
            1 => ViewKind::SlowStart,
            2 => ViewKind::Ejected,
            3 => ViewKind::Down,
            _ => ViewKind::Drained,
        }
    }

    #[inline]
    fn time(self) -> CoarseTime {
        CoarseTime::from_ms(self.0 >> TIME_SHIFT)
    }

    /// The target's availability at `now`.
    #[inline]
    pub fn availability(self, now: CoarseTime) -> Availability {
        match self.kind() {
            ViewKind::InService | ViewKind::SlowStart => Availability::Available,
            ViewKind::Ejected if self.time() <= now => Availability::Trial,
            ViewKind::Ejected | ViewKind::Down | ViewKind::Drained => Availability::Unavailable,
        }
    }

    /// The share of its weight that the target has at `now`, in 1/1024. It rises from 10 % to the
    /// whole over `slow_start`. A trial has 10 %.
    #[inline]
    pub fn ramp(self, now: CoarseTime, slow_start: Millis) -> u32 {
        match self.kind() {
            ViewKind::SlowStart => {
                let passed = now.since(self.time());
                if passed >= slow_start {
                    return FULL_RAMP;
                }
                let gained = u128::from(FULL_RAMP - MIN_RAMP) * u128::from(passed.as_ms());
                MIN_RAMP + (gained / u128::from(slow_start.as_ms())) as u32
            }
            ViewKind::InService => FULL_RAMP,
            ViewKind::Ejected | ViewKind::Down | ViewKind::Drained => MIN_RAMP,
        }
    }

    /// True if attempts have failed since the last success. Otherwise, a regular success changes
    /// nothing.
    #[inline]
    pub fn has_failures(self) -> bool {
        self.0 & HAS_FAILURES != 0
    }

    /// The status at `now`, with the upstream's `slow_start`.
    pub fn status(self, now: CoarseTime, slow_start: Millis) -> TargetStatus {
        match self.kind() {
            ViewKind::SlowStart if self.ramp(now, slow_start) < FULL_RAMP => {
                TargetStatus::SlowStart
            }
            ViewKind::InService | ViewKind::SlowStart => TargetStatus::Up,
            ViewKind::Ejected if self.time() <= now => TargetStatus::HalfOpen,
            ViewKind::Ejected => TargetStatus::Ejected,
            ViewKind::Down => TargetStatus::Down,
            ViewKind::Drained => TargetStatus::Drained,
        }
    }
}

impl TargetStatus {
    /// All, in the order of their severity.
    pub const ALL: [Self; 6] =
        [Self::Up, Self::SlowStart, Self::HalfOpen, Self::Ejected, Self::Down, Self::Drained];

    /// The status as one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::SlowStart => "slow_start",
            Self::Ejected => "ejected",
            Self::HalfOpen => "half_open",
            Self::Down => "down",
            Self::Drained => "drained",
        }
    }
}

impl ServiceLevel {
    /// The service level of an upstream, from its targets' views. `check_interval` is the time
    /// between health checks, after which a target that is down may be up.
    pub fn of(
        views: impl Iterator<Item = HealthView>,
        now: CoarseTime,
        check_interval: Millis,
    ) -> Self {
        let mut retry_after = None;
        for view in views {
            let wait = match view.kind() {
                ViewKind::InService | ViewKind::SlowStart => return Self::Serving,
                ViewKind::Ejected => view.time().since(now),
                ViewKind::Down => check_interval,
                ViewKind::Drained => continue,
            };
            retry_after = Some(retry_after.map_or(wait, |least: Millis| least.min(wait)));
        }
        Self::AllDown { retry_after: retry_after.unwrap_or(check_interval) }
    }
}
