//! The state of one target, as its attempts determine it:
//!
//! ```text
//!                  eject
//!   InService ───────────────▶ Ejected { until } ◀──┐
//!       ▲                       │   │  ▲   │        │ begin_trial: moves `until`
//!       │   return_to_service,  │   │  │   └────────┘
//!       └── without slow start ─┘   │  │
//!              return_to_service,   │  │ eject
//!              with slow start      ▼  │
//!                              SlowStart { since }
//! ```
//!
//! The results of its health checks, and a weight of 0, are independent of this state.

use std::net::IpAddr;

use tidegate_base::time::{CoarseTime, Millis};

use super::{
    ALL_DOWN_TRIAL_INTERVAL, FailedAttempt, Failure, HealthSettings,
    run::FailureRun,
    view::{HealthView, ViewKind},
};

/// The health of one target: failures since the last success, its ejection, and its health checks.
///
/// [`UpstreamHealth`](super::UpstreamHealth) has the rules that also consider the other targets.
#[derive(Clone, Debug, Default)]
pub struct TargetHealth {
    pub(super) state: TargetState,
    /// Failures since the last success.
    pub(super) run: FailureRun,
    /// The time of the last success, as of the last
    /// [`UpstreamHealth::note_success`](super::UpstreamHealth::note_success).
    pub(super) last_success: CoarseTime,
    /// The client of the last trial of the current ejection.
    pub(super) trial_client: Option<IpAddr>,
    /// The time at which failures of a single client, which do not eject the target, were last
    /// reported.
    pub(super) last_notice: Option<CoarseTime>,
    /// True if only the maximum share prevents the target's ejection.
    pub(super) is_kept: bool,
    /// The duration of the last ejection; zero before the first.
    pub(super) last_duration: Millis,
    /// The end of the last ejection.
    pub(super) returned_at: CoarseTime,
    /// Failed health checks since the last passed one.
    pub(super) failed_checks: u32,
    /// Passed health checks since the last failed one or the last ejection.
    pub(super) passed_checks: u32,
    /// True if its health checks find it down.
    pub(super) is_down: bool,
    /// True if its weight is 0.
    is_drained: bool,
}

/// A target's state, which attempts determine.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum TargetState {
    /// It takes requests.
    #[default]
    InService,
    /// It takes requests, with slow start since this time.
    SlowStart(CoarseTime),
    /// It takes no requests, and at the end one trial.
    Ejected {
        /// The start.
        since: CoarseTime,
        /// The end. During a trial, the time when the next one may begin.
        until: CoarseTime,
    },
}

impl TargetHealth {
    /// A target of a new upstream: in service with its whole weight.
    pub fn new() -> Self {
        Self::default()
    }

    /// A target that is added to an upstream at `now`: in service with slow start.
    pub fn appearing(now: CoarseTime) -> Self {
        Self { state: TargetState::SlowStart(now), ..Self::default() }
    }

    /// The same target, drained or not. A drained target, with weight 0, does not count for the
    /// maximum share of ejected targets, nor as a target in service.
    #[must_use]
    pub fn with_weight(self, weight: u32) -> Self {
        Self { is_drained: weight == 0, ..self }
    }

    /// Checks the invariants between the fields, in debug builds.
    pub(super) fn check(&self) {
        debug_assert!(
            !self.is_ejected() || self.run.is_empty(),
            "ejected, with failures: {self:?}"
        );
        debug_assert!(!self.is_ejected() || !self.last_duration.is_zero(), "no duration: {self:?}");
        debug_assert!(!self.is_kept || !self.run.is_empty(), "kept without failures: {self:?}");
        debug_assert!(
            self.trial_client.is_none() || self.is_ejected(),
            "a trial without an ejection: {self:?}"
        );
        self.run.check();
        debug_assert!(
            self.passed_checks == 0 || self.failed_checks == 0,
            "health checks passed and failed in a row: {self:?}"
        );
    }

    /// The view for the choice.
    pub(super) fn view(&self) -> HealthView {
        let failures = self.run.count;
        match self.state {
            _ if self.is_drained => HealthView::new(ViewKind::Drained, CoarseTime::ZERO, failures),
            _ if self.is_down => HealthView::new(ViewKind::Down, CoarseTime::ZERO, failures),
            TargetState::InService => {
                HealthView::new(ViewKind::InService, CoarseTime::ZERO, failures)
            }
            TargetState::SlowStart(since) => HealthView::new(ViewKind::SlowStart, since, failures),
            TargetState::Ejected { until, .. } => {
                HealthView::new(ViewKind::Ejected, until, failures)
            }
        }
    }

    /// True if the target has a weight, so that it counts for the maximum share.
    pub(super) fn is_member(&self) -> bool {
        !self.is_drained
    }

    /// True if the target takes requests.
    pub(super) fn is_in_service(&self) -> bool {
        !self.is_drained && !self.is_down && !self.is_ejected()
    }

    /// True if failed attempts have ejected the target. Stays true during its trial.
    pub(super) fn is_ejected(&self) -> bool {
        matches!(self.state, TargetState::Ejected { .. })
    }

    /// True if only failed attempts keep the target out of service.
    pub(super) fn counts_as_ejected(&self) -> bool {
        self.is_member() && !self.is_down && self.is_ejected()
    }

    /// The end of the ejection.
    pub(super) fn ejected_until(&self) -> Option<CoarseTime> {
        match self.state {
            TargetState::Ejected { until, .. } => Some(until),
            TargetState::InService | TargetState::SlowStart(_) => None,
        }
    }

    /// Starts an ejection. Returns its duration, which doubles if the target has been back
    /// for less than the last ejection's duration.
    pub(super) fn eject(&mut self, settings: &HealthSettings, now: CoarseTime) -> Millis {
        let is_repeated =
            !self.last_duration.is_zero() && now.since(self.returned_at) <= self.last_duration;
        let doubled = self.last_duration.saturating_mul(2).min(settings.max_duration);
        let duration = if is_repeated { doubled } else { settings.duration };
        self.last_duration = duration.max(Millis::MILLISECOND);
        self.state = TargetState::Ejected { since: now, until: now.after(self.last_duration) };
        self.run = FailureRun::default();
        self.is_kept = false;
        self.passed_checks = 0;
        self.last_duration
    }

    /// Ends an ejection, or the time that the target was down.
    pub(super) fn return_to_service(&mut self, settings: &HealthSettings, now: CoarseTime) {
        if self.is_ejected() {
            self.returned_at = now;
        }
        self.state = if settings.slow_start.is_zero() {
            TargetState::InService
        } else {
            TargetState::SlowStart(now)
        };
        self.trial_client = None;
        self.run = FailureRun::default();
        self.is_kept = false;
    }

    /// Lets the ejection end at `limit` if it would end later.
    pub(super) fn shorten_ejection(&mut self, limit: CoarseTime) {
        if let TargetState::Ejected { until, .. } = &mut self.state {
            *until = (*until).min(limit);
        }
    }

    /// Records a failed attempt while the target is in service. Returns false, and counts nothing,
    /// if it was sent before the last success.
    pub(super) fn count_failure(&mut self, attempt: &FailedAttempt) -> bool {
        let counts = attempt.counts_after(self.last_success);
        if counts {
            self.run.count(attempt);
        }
        counts
    }

    /// Claims the trial of an ejected target until `lease` has passed. False if it is not due.
    /// A client that had a trial waits a little longer for the next, so that other clients'
    /// requests come first: its own may be the ones that fail.
    pub(super) fn claim_trial(&mut self, client: IpAddr, lease: Millis, now: CoarseTime) -> bool {
        let TargetState::Ejected { until, .. } = &mut self.state else { return false };
        let extra = if self.trial_client == Some(client) {
            self.last_duration.min(ALL_DOWN_TRIAL_INTERVAL)
        } else {
            Millis::ZERO
        };
        if until.after(extra) > now {
            return false;
        }
        *until = now.after(lease.max(Millis::MILLISECOND));
        self.trial_client = Some(client);
        true
    }

    /// True if the failures suffice for an ejection while another target works.
    pub(super) fn has_failed(&self, settings: &HealthSettings) -> bool {
        self.run.count >= settings.failures.max(1)
    }

    /// True if failures of one client may be reported again: once in the duration of an ejection.
    pub(super) fn is_notice_due(&self, settings: &HealthSettings, now: CoarseTime) -> bool {
        self.last_notice.is_none_or(|last| now.since(last) >= settings.duration)
    }

    /// True if the failures suffice for an ejection even of the last target.
    pub(super) fn has_surely_failed(&self, settings: &HealthSettings) -> bool {
        self.run.is_of_target(settings.failures.max(1))
    }

    /// True if this failure suffices while another target works: a failed connect counts at once,
    /// and broken bodies were counted before.
    pub(super) fn is_suspected(&self, failure: Failure, settings: &HealthSettings) -> bool {
        self.has_failed(settings) || matches!(failure, Failure::Connect(_) | Failure::BrokenBodies)
    }
}
