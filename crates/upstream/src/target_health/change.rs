//! Changes of health, each for one log line.

use std::fmt;

use smallvec::SmallVec;
use tidegate_base::time::Millis;

use super::failure::{CheckFailure, Failure};

/// The changes that one event causes.
pub type Changes = SmallVec<[HealthChange; 2]>;

/// A change of a target's health. Its text is the reason.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HealthChange {
    /// The target's index. For [`HealthEvent::AllDown`], the index of the last target in service.
    pub index: usize,
    /// What changed.
    pub event: HealthEvent,
}

/// What changed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HealthEvent {
    /// The target is ejected: it gets no request for a time.
    Ejected {
        /// The cause.
        cause: EjectionCause,
        /// The duration.
        duration: Millis,
    },
    /// The target is not ejected in spite of its failures.
    KeptInService {
        /// The cause for which it would be ejected.
        cause: EjectionCause,
        /// The reason why it stays in service.
        reason: KeptReason,
    },
    /// An ejected target is in service again.
    Returned(ReturnCause),
    /// The target is down by its health checks.
    Down {
        /// The failed checks in a row.
        checks: u32,
        /// The failure of the last check.
        failure: CheckFailure,
    },
    /// The target is up again by its health checks.
    Up {
        /// The passed checks in a row.
        checks: u32,
    },
    /// No target is left in service.
    AllDown,
}

/// The reason why a target is ejected.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EjectionCause {
    /// Attempts failed.
    Failures {
        /// The failures in a row.
        count: u32,
        /// The last one.
        last: Failure,
    },
    /// The trial after an ejection failed.
    Trial(Failure),
}

/// The reason why a failing target stays in service.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KeptReason {
    /// The maximum share of targets is already ejected.
    MaxShare,
    /// It is the last target, and all requests that failed came from one client.
    OneClient,
}

/// The reason why an ejected target is in service again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReturnCause {
    /// Its trial succeeded.
    Trial,
    /// More than the maximum share was ejected while all failed, and now one works again.
    MaxShare,
}

impl HealthEvent {
    /// True if a target has failed.
    pub(crate) fn is_failure(self) -> bool {
        !matches!(self, Self::Returned(_) | Self::Up { .. })
    }

    /// The event as one word, for a field of a log line: `ejected`, `kept`, `returned`, `down`,
    /// `up` or `all_down`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ejected { .. } => "ejected",
            Self::KeptInService { .. } => "kept",
            Self::Returned(_) => "returned",
            Self::Down { .. } => "down",
            Self::Up { .. } => "up",
            Self::AllDown => "all_down",
        }
    }
}

impl fmt::Display for HealthChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.event.fmt(f)
    }
}

impl fmt::Display for HealthEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ejected { cause, duration } => {
                write!(f, "ejected for {} s: {cause}", duration.as_secs_f64())
            }
            Self::KeptInService { cause, reason } => write!(f, "not ejected, because {reason}: {cause}"),
            Self::Returned(ReturnCause::Trial) => {
                f.write_str("in service again: the trial request succeeded")
            }
            Self::Returned(ReturnCause::MaxShare) => f.write_str(
                "in service again: another target works, and no more than the maximum share is ejected",
            ),
            Self::Down { checks, failure } => {
                write!(f, "{checks} failed health checks in a row, the last: {failure}")
            }
            Self::Up { checks } => write!(f, "{checks} passed health checks in a row"),
            Self::AllDown => f.write_str("no target is left in service"),
        }
    }
}

impl fmt::Display for KeptReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MaxShare => "the maximum share of targets is already ejected",
            Self::OneClient => "it is the last target and all failed requests came from one client",
        })
    }
}

impl fmt::Display for EjectionCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failures { count: 1, last } => write!(f, "{last}"),
            Self::Failures { count, last } => {
                write!(f, "{count} failures in a row, the last: {last}")
            }
            Self::Trial(failure) => write!(f, "the trial request failed: {failure}"),
        }
    }
}
