//! The keys in Redis by which gateways find each other, and the commands on them.

use tidegate_base::time::{Millis, StoreTime};

use super::script;

/// Time for which a gateway counts as alive after a report. Reports are sent once a second.
pub(super) const REPORT_LIFETIME: Millis = Millis::from_secs(5);

/// Time for which the deletion of a record is kept for other gateways. It exceeds the time for which
/// a gateway counts as alive without a report.
pub(super) const DELETION_LIFETIME: Millis = REPORT_LIFETIME.saturating_mul(2);

/// The presence keys of one namespace.
pub(super) struct PresenceKeys {
    gateways: String,
    resets: String,
    /// The hash tag of the keys in a Cluster.
    pub(super) hash_tag: String,
}

impl PresenceKeys {
    /// The keys of `namespace`.
    pub(super) fn new(namespace: &str) -> Self {
        Self::with_prefix(namespace, namespace)
    }

    /// The keys of `namespace` in a Cluster, with a hash tag.
    pub(super) fn in_cluster(namespace: &str) -> Self {
        Self::with_prefix(namespace, &format!("{{{namespace}}}"))
    }

    fn with_prefix(namespace: &str, prefix: &str) -> Self {
        Self {
            gateways: format!("{prefix}:gateways"),
            resets: format!("{prefix}:resets"),
            hash_tag: namespace.to_owned(),
        }
    }

    /// The command that records deletions for the other gateways.
    pub(super) fn announce_deletions(&self, records: &[u128]) -> ::redis::Cmd {
        let mut command = ::redis::cmd("EVAL");
        command.arg(script::RESET).arg(1).arg(&self.resets).arg(DELETION_LIFETIME.as_ms());
        for record in records {
            command.arg(format!("{record:032x}"));
        }
        command
    }

    /// The command that reports a gateway alive. Its reply has the deletions since `since`, by
    /// the server's clock.
    pub(super) fn report(&self, member: &str, since: StoreTime) -> ::redis::Cmd {
        self.presence(member, REPORT_LIFETIME, since)
    }

    /// The command that removes a stopping gateway.
    pub(super) fn leave(&self, member: &str) -> ::redis::Cmd {
        self.presence(member, Millis::ZERO, StoreTime::ZERO)
    }

    fn presence(&self, member: &str, lifetime: Millis, since: StoreTime) -> ::redis::Cmd {
        let mut command = ::redis::cmd("EVAL");
        command.arg(script::PRESENCE).arg(2).arg(&self.gateways).arg(&self.resets);
        command.arg(member).arg(lifetime.as_ms()).arg(since.as_unix_ms());
        command
    }
}
