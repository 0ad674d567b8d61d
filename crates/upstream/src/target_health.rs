//! The health of an upstream's targets: a state machine of attempts and health checks.
//!
//! ```text
//!                 failures                 the ejection ends
//!   in service ───────────────▶ ejected ───────────────────────▶ trial
//!       ▲  ▲                       ▲                            │    │
//!       │  │                       └──── fails: twice as long ──┘    │
//!       │  └──────────────── succeeds: slow start ───────────────────┘
//!       │
//!       └── health checks: `unhealthy_after` failed in a row ──▶ down,
//!           until `healthy_after` passed in a row: slow start
//! ```
//!
//! - **Passive**: a number of failures in a row ejects a target; a failed connect ejects it at
//!   once. A success resets the count, and a request that was sent before it does not count. If a
//!   target fails again soon after its return, its ejection takes twice as long.
//! - **Bound**: the suspicion behind an ejection may be wrong: the fault may be the network's or
//!   the requests'. So at most a share of the targets is ejected, and at least one stays in
//!   service. Only when all targets in service have failed the full number of times in a row, by
//!   failed connects or by the requests of at least two clients, are all down: one client may send
//!   requests that fail at any target. Then each is tried once a second, by the requests of
//!   different clients in turn.
//! - **Active**: a target that its health checks find down is known to be down, not just suspected,
//!   so it does not count in the share. Passed health checks end an ejection early, with a trial.
//!
//! Envoy's outlier detection has the same parts. The clock may be any that only goes forward.

mod change;
mod failure;
mod run;
mod target;
mod view;

use std::net::IpAddr;

pub use change::{Changes, EjectionCause, HealthChange, HealthEvent, KeptReason, ReturnCause};
pub(super) use failure::NoHttp2;
pub use failure::{CheckFailure, ConnectFailure, Failure, LostConnection};
pub use run::FailedAttempt;
pub use target::TargetHealth;
pub use view::{Availability, HealthView, ServiceLevel, TargetStatus};

use tidegate_base::time::{CoarseTime, Millis};

use self::{run::FailureRun, target::TargetState};

/// The time between trials of a target while all are down.
pub const ALL_DOWN_TRIAL_INTERVAL: Millis = Millis::from_secs(1);

/// The rules for ejections and health checks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HealthSettings {
    /// Number of failures in a row that eject a target.
    pub failures: u32,
    /// The duration of the first ejection. It doubles each time the target fails again soon after
    /// its return.
    pub duration: Millis,
    /// Maximum duration of an ejection.
    pub max_duration: Millis,
    /// Maximum share of ejected targets while one works, in percent. With 0 none is ever ejected.
    pub max_share: u32,
    /// Number of failed health checks in a row after which a target is down.
    pub unhealthy_after: u32,
    /// Number of passed health checks in a row after which it is up.
    pub healthy_after: u32,
    /// The time between health checks; zero without them.
    pub check_interval: Millis,
    /// The duration of slow start; zero without it.
    pub slow_start: Millis,
}

/// The kind of an attempt that has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AttemptKind {
    /// At a target in service.
    Regular,
    /// At a target whose ejection had ended, permitted by [`UpstreamHealth::begin_trial`].
    Trial,
}

/// The health of all targets of one upstream.
///
/// After each call that changes it, the caller publishes the target's view, or the views of all
/// targets if there were [`Changes`]. It does so under the same lock as the call, so that no older
/// view overwrites a newer one.
#[derive(Clone, Debug)]
pub struct UpstreamHealth {
    settings: HealthSettings,
    targets: Vec<TargetHealth>,
}

impl UpstreamHealth {
    /// The health of these targets at `now`. If targets were removed, some ejected ones may return.
    pub fn new(settings: HealthSettings, targets: Vec<TargetHealth>, now: CoarseTime) -> Self {
        let mut health = Self { settings, targets };
        health.release_excess(now, &mut Changes::new());
        health.check();
        health
    }

    /// The targets.
    pub fn targets(&self) -> &[TargetHealth] {
        &self.targets
    }

    /// The view of a target, for the choice.
    pub fn view(&self, index: usize) -> HealthView {
        self.targets[index].view()
    }

    /// The upstream's service level at `now`.
    pub fn state(&self, now: CoarseTime) -> ServiceLevel {
        let views = self.targets.iter().map(TargetHealth::view);
        ServiceLevel::of(views, now, self.settings.check_interval)
    }

    /// Claims the trial of a target whose ejection has ended, for a request of the client with this
    /// masked address. False if another attempt has it, or if this client had the last trial and
    /// other clients come first. If its result is not recorded, the next trial may begin after the
    /// duration of a first ejection, but after at most [`ALL_DOWN_TRIAL_INTERVAL`] while all are
    /// down.
    pub fn begin_trial(&mut self, index: usize, client: IpAddr, now: CoarseTime) -> bool {
        let lease = if self.is_all_down() {
            self.settings.duration.min(ALL_DOWN_TRIAL_INTERVAL)
        } else {
            self.settings.duration
        };
        let target = &mut self.targets[index];
        match target.state {
            _ if target.is_down => false,
            TargetState::InService | TargetState::SlowStart(_) => true,
            TargetState::Ejected { .. } => target.claim_trial(client, lease, now),
        }
    }

    /// Notes that an attempt at the target succeeded at `at`. A caller that skips
    /// [`Self::record_success`] while there are no failures calls this before it records a failure.
    pub fn note_success(&mut self, index: usize, at: CoarseTime) {
        let target = &mut self.targets[index];
        target.last_success = target.last_success.max(at);
    }

    /// Records an attempt that succeeded.
    pub fn record_success(&mut self, index: usize, kind: AttemptKind, now: CoarseTime) -> Changes {
        let changes = self.apply_success(index, kind, now);
        self.check();
        changes
    }

    fn apply_success(&mut self, index: usize, kind: AttemptKind, now: CoarseTime) -> Changes {
        let mut changes = Changes::new();
        self.note_success(index, now);
        let target = &mut self.targets[index];
        if !target.is_ejected() {
            target.run = FailureRun::default();
            target.is_kept = false;
        } else if kind == AttemptKind::Trial {
            target.return_to_service(&self.settings, now);
            if !target.is_down {
                let event = HealthEvent::Returned(ReturnCause::Trial);
                changes.push(HealthChange { index, event });
            }
            self.release_excess(now, &mut changes);
        }
        // Attempts sent before the ejection may still succeed.
        changes
    }

    /// Records an attempt that failed.
    pub fn record_failure(
        &mut self,
        index: usize,
        attempt: FailedAttempt,
        now: CoarseTime,
    ) -> Changes {
        let changes = self.apply_failure(index, attempt, now);
        self.check();
        changes
    }

    fn apply_failure(&mut self, index: usize, attempt: FailedAttempt, now: CoarseTime) -> Changes {
        let failure = attempt.failure;
        let target = &mut self.targets[index];
        if self.settings.max_share == 0 || target.is_down || !target.is_member() {
            return Changes::new();
        }
        if target.is_ejected() {
            // Attempts sent before the ejection may still fail.
            return match attempt.kind {
                AttemptKind::Trial => self.fail_trial(index, failure, now),
                AttemptKind::Regular => Changes::new(),
            };
        }
        if !target.count_failure(&attempt) || !target.is_suspected(failure, &self.settings) {
            return Changes::new();
        }
        let cause = EjectionCause::Failures { count: target.run.count, last: failure };
        self.suspect(index, cause, now)
    }

    /// Records a health check.
    pub fn record_check(
        &mut self,
        index: usize,
        result: Result<(), CheckFailure>,
        now: CoarseTime,
    ) -> Changes {
        let changes = self.apply_check(index, result, now);
        self.check();
        changes
    }

    fn apply_check(
        &mut self,
        index: usize,
        result: Result<(), CheckFailure>,
        now: CoarseTime,
    ) -> Changes {
        let mut changes = Changes::new();
        let target = &mut self.targets[index];
        match result {
            Ok(()) => {
                target.failed_checks = 0;
                target.passed_checks = target.passed_checks.saturating_add(1);
                if target.passed_checks < self.settings.healthy_after {
                    return changes;
                }
                if target.is_down {
                    target.is_down = false;
                    target.return_to_service(&self.settings, now);
                    let event = HealthEvent::Up { checks: target.passed_checks };
                    changes.push(HealthChange { index, event });
                    self.release_excess(now, &mut changes);
                } else if target.passed_checks == self.settings.healthy_after.max(1) {
                    target.shorten_ejection(now);
                }
            }
            Err(failure) => {
                target.passed_checks = 0;
                target.failed_checks = target.failed_checks.saturating_add(1);
                if target.is_down || target.failed_checks < self.settings.unhealthy_after {
                    return changes;
                }
                let was_serving = target.is_in_service();
                target.is_down = true;
                let event = HealthEvent::Down { checks: target.failed_checks, failure };
                changes.push(HealthChange { index, event });
                if was_serving && self.is_all_down() {
                    changes.push(HealthChange { index, event: HealthEvent::AllDown });
                    self.hasten_trials(now);
                }
            }
        }
        changes
    }

    /// Decides whether to eject a suspected target in service.
    fn suspect(&mut self, index: usize, cause: EjectionCause, now: CoarseTime) -> Changes {
        let settings = self.settings;
        let works = |(other, target): (usize, &TargetHealth)| {
            other != index && target.is_in_service() && !target.has_surely_failed(&settings)
        };
        let mut changes = Changes::new();
        if !self.targets.iter().enumerate().any(works) {
            // The last working target is ejected only after the full number of failures, of several
            // clients.
            let target = &mut self.targets[index];
            if target.has_surely_failed(&settings) {
                self.eject_all(index, cause, now, &mut changes);
            } else if target.has_failed(&settings) && target.is_notice_due(&settings, now) {
                target.last_notice = Some(now);
                let event = HealthEvent::KeptInService { cause, reason: KeptReason::OneClient };
                changes.push(HealthChange { index, event });
            }
        } else if self.ejected_count() < self.max_ejected() {
            let duration = self.targets[index].eject(&settings, now);
            changes.push(HealthChange { index, event: HealthEvent::Ejected { cause, duration } });
        } else if !std::mem::replace(&mut self.targets[index].is_kept, true) {
            let event = HealthEvent::KeptInService { cause, reason: KeptReason::MaxShare };
            changes.push(HealthChange { index, event });
        }
        changes
    }

    /// Ejects a target again after a failed trial. While all are down, this is not a change.
    fn fail_trial(&mut self, index: usize, failure: Failure, now: CoarseTime) -> Changes {
        let is_all_down = self.is_all_down();
        let settings = self.settings;
        let target = &mut self.targets[index];
        let mut changes = Changes::new();
        if is_all_down {
            let wait = target.last_duration.min(ALL_DOWN_TRIAL_INTERVAL);
            target.state = TargetState::Ejected { since: now, until: now.after(wait) };
        } else {
            // Doubles the duration: a failed trial counts as a failure right after the return.
            target.returned_at = now;
            let duration = target.eject(&settings, now);
            let cause = EjectionCause::Trial(failure);
            changes.push(HealthChange { index, event: HealthEvent::Ejected { cause, duration } });
        }
        changes
    }

    /// Ejects all targets in service: each has failed often enough.
    fn eject_all(
        &mut self,
        last: usize,
        cause: EjectionCause,
        now: CoarseTime,
        changes: &mut Changes,
    ) {
        let duration = self.settings.duration.min(ALL_DOWN_TRIAL_INTERVAL);
        let in_service = self.targets.iter_mut().enumerate().filter(|(_, own)| own.is_in_service());
        for (index, target) in in_service {
            let cause = match cause {
                EjectionCause::Failures { last: failure, .. } if index != last => {
                    EjectionCause::Failures { count: target.run.count, last: failure }
                }
                cause => cause,
            };
            target.eject(&self.settings, now);
            let event = HealthEvent::Ejected { cause, duration };
            changes.push(HealthChange { index, event });
        }
        self.hasten_trials(now);
        changes.push(HealthChange { index: last, event: HealthEvent::AllDown });
    }

    /// While all are down, an ejection ends after [`ALL_DOWN_TRIAL_INTERVAL`].
    fn hasten_trials(&mut self, now: CoarseTime) {
        for target in &mut self.targets {
            if let TargetState::Ejected { since, .. } = target.state {
                target.shorten_ejection(now.max(since.after(ALL_DOWN_TRIAL_INTERVAL)));
            }
        }
    }

    /// After all were down and one works again, lets targets return until at most the share is
    /// ejected. Targets whose ejection ends first return first.
    fn release_excess(&mut self, now: CoarseTime, changes: &mut Changes) {
        if self.is_all_down() {
            return;
        }
        let excess = self.ejected_count().saturating_sub(self.max_ejected());
        for _ in 0..excess {
            let ejected =
                self.targets.iter().enumerate().filter(|(_, one)| one.counts_as_ejected());
            let Some((index, _)) = ejected.min_by_key(|(_, one)| one.ejected_until()) else {
                break;
            };
            self.targets[index].return_to_service(&self.settings, now);
            let event = HealthEvent::Returned(ReturnCause::MaxShare);
            changes.push(HealthChange { index, event });
        }
    }

    /// Checks the invariants of all targets, in debug builds.
    fn check(&self) {
        if cfg!(debug_assertions) {
            self.targets.iter().for_each(TargetHealth::check);
            assert!(
                self.ejected_count() <= self.max_ejected() || self.is_all_down(),
                "more than the share is ejected while a target works: {self:?}"
            );
        }
    }

    /// True if no target is in service.
    fn is_all_down(&self) -> bool {
        !self.targets.iter().any(TargetHealth::is_in_service)
    }

    /// The number of ejected targets.
    fn ejected_count(&self) -> usize {
        self.targets.iter().filter(|target| target.counts_as_ejected()).count()
    }

    /// The maximum number of ejected targets while one works.
    fn max_ejected(&self) -> usize {
        let members = self.targets.iter().filter(|target| target.is_member()).count();
        members * self.settings.max_share.min(100) as usize / 100
    }
}

#[cfg(test)]
mod tests;
