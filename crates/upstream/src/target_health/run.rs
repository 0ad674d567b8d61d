//! [`FailureRun`]: a target's consecutive failures, and the clients whose requests failed.

use std::net::IpAddr;

use tidegate_system::clock::CoarseTime;

use super::{AttemptKind, Failure};

/// An attempt that failed.
#[derive(Clone, Copy, Debug)]
pub struct FailedAttempt {
    /// Its kind.
    pub kind: AttemptKind,
    /// The failure.
    pub failure: Failure,
    /// The masked address of the request's client.
    pub client: IpAddr,
    /// The time at which the attempt began.
    pub sent: CoarseTime,
}

/// The failures of a target since its last success.
#[derive(Clone, Debug, Default)]
pub(super) struct FailureRun {
    /// Number of failures.
    pub(super) count: u32,
    /// Number of failed connects among them. A client cannot cause one.
    connects: u32,
    /// The clients whose requests failed, without failed connects.
    clients: FailedClients,
}

/// The clients whose requests failed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum FailedClients {
    #[default]
    None,
    One(IpAddr),
    Several,
}

impl FailedAttempt {
    /// True if the failure counts in a run that began after `last_success`. A request that was sent
    /// before that success shows nothing about the target after it: the request itself may be slow.
    /// A failed connect always counts; broken bodies have a count of their own, which whole bodies
    /// reset.
    pub(super) fn counts_after(&self, last_success: CoarseTime) -> bool {
        match self.failure {
            Failure::Connect(_) | Failure::BrokenBodies => true,
            Failure::Reset(_) | Failure::Timeout | Failure::Malformed(_) | Failure::Status(_) => {
                self.sent >= last_success
            }
        }
    }
}

impl FailureRun {
    /// Adds a failure.
    pub(super) fn count(&mut self, attempt: &FailedAttempt) {
        self.count = self.count.saturating_add(1);
        if matches!(attempt.failure, Failure::Connect(_)) {
            self.connects = self.connects.saturating_add(1);
            return;
        }
        self.clients = match self.clients {
            FailedClients::None => FailedClients::One(attempt.client),
            FailedClients::One(client) if client == attempt.client => self.clients,
            FailedClients::One(_) | FailedClients::Several => FailedClients::Several,
        };
    }

    /// True if there are no failures.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// True if `failures` of them show that the target itself fails: failed connects, or failed
    /// requests of at least two clients. One client may send requests that fail at any target.
    pub(super) fn is_of_target(&self, failures: u32) -> bool {
        let requests_suffice = self.clients == FailedClients::Several && self.count >= failures;
        requests_suffice || self.connects >= failures
    }

    /// Checks the invariants between the fields, in debug builds.
    pub(super) fn check(&self) {
        let requests = self.count - self.connects;
        let is_consistent = match self.clients {
            FailedClients::None => requests == 0,
            FailedClients::One(_) => requests > 0,
            FailedClients::Several => requests > 1,
        };
        debug_assert!(is_consistent, "clients and failures differ: {self:?}");
    }
}
