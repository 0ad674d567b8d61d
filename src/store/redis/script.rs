//! The scripts' text, and the translation of charges into arguments and of replies into verdicts.

use redis::Cmd;
use smallvec::SmallVec;

use crate::limit::{Charge, Decision, Millis, Verdict};

/// Charges all limits of a request: the algorithms, then the driver. A new algorithm is one line here.
const CHARGE: &str = concat!(
    include_str!("../../../lua/prelude.lua"),
    include_str!("../../../lua/sliding_window.lua"),
    include_str!("../../../lua/charge.lua"),
);

/// Reports a gateway alive and counts those that are.
pub(super) const PRESENCE: &str = include_str!("../../../lua/presence.lua");

/// Integers that the script returns for each charge, after the time.
const FIELDS: usize = 5;

/// The charging script and the name that Redis knows it by.
pub(super) struct ChargeScript {
    sha: Box<str>,
    namespace: Box<str>,
}

impl ChargeScript {
    pub(super) fn new(namespace: &str) -> Self {
        let sha = redis::Script::new(CHARGE).get_hash().into();
        Self { sha, namespace: namespace.into() }
    }

    /// The command that loads the script and runs nothing.
    pub(super) fn load() -> Cmd {
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(CHARGE);
        command
    }

    /// The command that charges, by the script's name. `now` is 0 for the server's own clock.
    pub(super) fn call(&self, charges: &[Charge<'_>], now: Millis) -> Cmd {
        self.command("EVALSHA", &self.sha, charges, now)
    }

    /// The same with the script's text, which Redis then remembers.
    pub(super) fn load_and_call(&self, charges: &[Charge<'_>], now: Millis) -> Cmd {
        self.command("EVAL", CHARGE, charges, now)
    }

    fn command(&self, verb: &str, script: &str, charges: &[Charge<'_>], now: Millis) -> Cmd {
        let mut command = redis::cmd(verb);
        command.arg(script).arg(charges.len());
        for charge in charges {
            command.arg(record(&self.namespace, charge));
        }
        command.arg(now);
        for charge in charges {
            let quota = &charge.limit.quota;
            command
                .arg(charge.limit.algorithm.tag())
                .arg(charge.cost)
                .arg(quota.limit)
                .arg(quota.window)
                .arg(quota.resolution);
        }
        command
    }
}

/// The Redis key of a record: `NAMESPACE:{KEY}:LIMIT:FINGERPRINT`. The braces make all limits that
/// count by the same key parts live on one node of a Cluster.
fn record(namespace: &str, charge: &Charge<'_>) -> String {
    let (key, limit) = (charge.key.0, charge.limit);
    format!("{namespace}:{{{key:032x}}}:{}:{:016x}", limit.name, limit.fingerprint)
}

/// What the script's reply says; `None` if it is not what the script returns.
pub(super) fn verdict(charges: &[Charge<'_>], reply: &[i64]) -> Option<Verdict> {
    let (&now, fields) = reply.split_first()?;
    if fields.len() != charges.len() * FIELDS {
        return None;
    }
    let mut decisions = SmallVec::new();
    for (charge, fields) in charges.iter().zip(fields.chunks_exact(FIELDS)) {
        let &[admitted, remaining, used, reset_at, retry_at] = fields else { return None };
        decisions.push(Decision {
            admitted: admitted == 1,
            limit: u64::from(charge.limit.quota.limit),
            remaining: u64::try_from(remaining).ok()?,
            used: u64::try_from(used).ok()?,
            reset_at: u64::try_from(reset_at).ok()?,
            // Negative: admitted, or never.
            retry_at: u64::try_from(retry_at).ok(),
            counted: true,
        });
    }
    let admitted = decisions.iter().all(|decision: &Decision| decision.admitted);
    Some(Verdict { admitted, now: u64::try_from(now).ok()?, decisions })
}
