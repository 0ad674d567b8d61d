//! The keys that gateways share beside records, and how long each stays.

use super::script;

/// How long a report of being alive counts, in ms. Reports come once a second.
pub(super) const LIFETIME: u64 = 5_000;

/// How long it is noted that a record was deleted, in ms: longer than a gateway may miss reports and still
/// count as alive.
pub(super) const NOTE_LIFETIME: u64 = 2 * LIFETIME;

/// How long the secret outlives the last gateway, in seconds: longer than any window worth keeping.
pub(super) const SEED_LIFETIME: u64 = 30 * 24 * 3_600;

/// The keys that gateways share, beside records.
pub(super) struct Keys {
    gateways: String,
    pub(super) seed: String,
    resets: String,
    /// Their hash tag in a Cluster.
    pub(super) tag: String,
}

impl Keys {
    pub(super) fn new(namespace: &str, is_cluster: bool) -> Self {
        let named = if is_cluster { format!("{{{namespace}}}") } else { namespace.to_owned() };
        Self {
            gateways: format!("{named}:gateways"),
            seed: format!("{named}:seed"),
            resets: format!("{named}:resets"),
            tag: namespace.to_owned(),
        }
    }

    /// The command that notes the deletion of records.
    pub(super) fn note_resets(&self, records: &[u128]) -> redis::Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(script::RESET).arg(1).arg(&self.resets).arg(NOTE_LIFETIME);
        for record in records {
            command.arg(format!("{record:032x}"));
        }
        command
    }

    /// The command that reports a gateway, or with a `lifetime` of 0 says goodbye.
    pub(super) fn report(&self, id: &str, lifetime: u64, since: u64) -> redis::Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(script::PRESENCE).arg(2).arg(&self.gateways).arg(&self.resets);
        command.arg(id).arg(lifetime).arg(since);
        command
    }
}
