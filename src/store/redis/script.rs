//! The scripts' text, and the translation of charges into arguments and of replies into verdicts.

use std::sync::LazyLock;

use crate::limit::{
    Algorithm, Change, Charge, Decided, Decider, Decision, Fetch, Grant, Key, Limit, Millis, Quota,
    Settlement, Verdict,
};
use redis::{Cmd, Pipeline};

/// What stands before each script that reads records: the algorithms, and how records are read and
/// written. A new algorithm is one line here.
macro_rules! with_records {
    ($($script:literal),+) => {
        concat!(
            include_str!("../../../lua/prelude.lua"),
            include_str!("../../../lua/sliding_window.lua"),
            include_str!("../../../lua/sliding_log.lua"),
            include_str!("../../../lua/fixed_window.lua"),
            include_str!("../../../lua/token_bucket.lua"),
            include_str!("../../../lua/leaky_bucket.lua"),
            include_str!("../../../lua/holes.lua"),
            include_str!("../../../lua/concurrency.lua"),
            include_str!("../../../lua/record.lua"),
            $(include_str!($script)),+,
        )
    };
}

/// Charges all limits of a request, or none.
const CHARGE: &str = with_records!("../../../lua/charge.lua");

/// Takes tokens ahead.
const ACQUIRE: &str = with_records!("../../../lua/acquire.lua");

/// Tells what limits say, and charges nothing.
const LOOK: &str = with_records!("../../../lua/look.lua");

/// Corrects what requests were charged.
const SETTLE: &str = with_records!("../../../lua/settle.lua");

/// The scripts that a worker calls.
const TEXTS: [&str; 4] = [CHARGE, ACQUIRE, LOOK, SETTLE];

/// The names that Redis knows them by, in the same order.
static NAMES: LazyLock<[Box<str>; 4]> =
    LazyLock::new(|| TEXTS.map(|text| redis::Script::new(text).get_hash().into()));

/// Reports a gateway alive and counts those that are.
pub(super) const PRESENCE: &str = include_str!("../../../lua/presence.lua");

/// Notes that records were deleted.
pub(super) const RESET: &str = include_str!("../../../lua/reset.lua");

/// Integers that a script returns for each charge or correction, after the time.
const FIELDS: usize = 6;

/// The latest time that scripts are told: what lies behind is no time of any clock, and Lua would round
/// it.
const LAST: Millis = 1 << 52;

/// The scripts that read records, and the names that Redis knows them by.
pub(super) struct Scripts {
    charge: Box<str>,
    acquire: Box<str>,
    look: Box<str>,
    settle: Box<str>,
    namespace: Box<str>,
}

impl Scripts {
    pub(super) fn new(namespace: &str) -> Self {
        let [charge, acquire, look, settle] = NAMES.clone();
        Self { charge, acquire, look, settle, namespace: namespace.into() }
    }

    /// The command that asks which of the scripts Redis knows.
    pub(super) fn exist() -> Cmd {
        let mut command = redis::cmd("SCRIPT");
        command.arg("EXISTS");
        for name in &*NAMES {
            command.arg(&**name);
        }
        command
    }

    /// The commands that load the scripts and run nothing, but for those that the answer to
    /// [`Self::exist`] says are known.
    pub(super) fn load(known: &[bool]) -> Pipeline {
        let mut loads = redis::pipe();
        for (at, text) in TEXTS.iter().enumerate() {
            if known.get(at) != Some(&true) {
                loads.cmd("SCRIPT").arg("LOAD").arg(text).ignore();
            }
        }
        loads
    }

    /// The command that charges; `by` says how it names the script. `now` is 0 for the server's clock.
    pub(super) fn charge(&self, by: By, charges: &[Charge<'_>], now: Millis) -> Cmd {
        let mut command = by.script(&self.charge, CHARGE);
        self.charges(&mut command, charges, now);
        if charges.len() > 1 {
            for charge in charges {
                command.arg(u8::from(charge.limit.enforce));
            }
        }
        command
    }

    /// The command that takes tokens ahead.
    pub(super) fn acquire(&self, by: By, fetch: &Fetch<'_>, now: Millis) -> Cmd {
        let Fetch { limit, key, order } = fetch;
        let mut command = by.script(&self.acquire, ACQUIRE);
        command.arg(1).arg(record(&self.namespace, limit, *key)).arg(now);
        ask(&mut command, limit, order.least);
        command.arg(order.needed).arg(order.extra).arg(order.share.max(1));
        command.arg(order.back.tokens).arg(order.back.charged_at);
        command
    }

    /// The command that looks.
    pub(super) fn look(&self, by: By, charges: &[Charge<'_>], now: Millis) -> Cmd {
        let mut command = by.script(&self.look, LOOK);
        self.charges(&mut command, charges, now);
        command
    }

    /// The command that forgets what these limits remember of a caller.
    pub(super) fn reset(&self, limits: &[&Limit], key: Key) -> Cmd {
        let mut command = redis::cmd("DEL");
        for limit in limits {
            command.arg(record(&self.namespace, limit, key));
        }
        command
    }

    fn charges(&self, command: &mut Cmd, charges: &[Charge<'_>], now: Millis) {
        command.arg(charges.len());
        for charge in charges {
            command.arg(record(&self.namespace, charge.limit, charge.key));
        }
        command.arg(now);
        for charge in charges {
            ask(command, charge.limit, charge.cost);
        }
    }

    /// The command that corrects.
    pub(super) fn settle(&self, by: By, settlements: &[Settlement<'_>], now: Millis) -> Cmd {
        let mut command = by.script(&self.settle, SETTLE);
        command.arg(settlements.len());
        for settlement in settlements {
            command.arg(record(&self.namespace, settlement.limit, settlement.key));
        }
        command.arg(now);
        for settlement in settlements {
            let exact = |at: Millis| at.min(LAST).cast_signed();
            let charged_at = match settlement.change {
                Change::Refund { charged_at, .. } => exact(charged_at),
                Change::Overdraw { .. } => -1,
            };
            ask(&mut command, settlement.limit, settlement.change.cost());
            command.arg(charged_at);
        }
        command
    }
}

/// How a command names its script.
#[derive(Clone, Copy, Debug)]
pub(super) enum By {
    /// By the hash that Redis remembers it under.
    Name,
    /// By its text, which Redis then remembers.
    Text,
}

impl By {
    fn script(self, name: &str, text: &str) -> Cmd {
        let mut command = redis::cmd(match self {
            Self::Name => "EVALSHA",
            Self::Text => "EVAL",
        });
        command.arg(match self {
            Self::Name => name,
            Self::Text => text,
        });
        command
    }
}

/// What a script is told of one limit: algorithm, cost, quota, window, resolution, option.
fn ask(command: &mut Cmd, limit: &Limit, cost: u32) {
    let Quota { limit: quota, window, resolution, max_wait, strict } = limit.quota;
    let option = if limit.algorithm == Algorithm::LeakyBucket { max_wait } else { strict.into() };
    command.arg(limit.algorithm.tag()).arg(cost);
    command.arg(quota).arg(window).arg(resolution).arg(option);
}

/// The Redis key of a record: `NAMESPACE:{KEY}:LIMIT:FINGERPRINT`. The braces make all limits that
/// count by the same key parts live on one node of a Cluster.
fn record(namespace: &str, limit: &Limit, Key(key): Key) -> String {
    format!("{namespace}:{{{key:032x}}}:{}:{:016x}", limit.name, limit.fingerprint)
}

/// What a script's reply says of these limits; `None` if it is not what the script returns.
pub(super) fn verdict<'a>(
    limits: impl ExactSizeIterator<Item = &'a Limit>,
    reply: &[i64],
) -> Option<Verdict> {
    let (&now, fields) = reply.split_first()?;
    if fields.len() != limits.len() * FIELDS {
        return None;
    }
    let at = u64::try_from(now).ok()?;
    let mut verdict = Verdict::empty();
    for (limit, fields) in limits.zip(fields.chunks_exact(FIELDS)) {
        let decision = decision(limit, fields)?;
        verdict.push(Decided { decision, at, by: Decider::Store }, limit.enforce);
    }
    Some(verdict)
}

/// What a reply to [`Scripts::acquire`] says, and the time by the server's clock; `None` if it is not
/// what the script returns.
pub(super) fn granted(fetch: &Fetch<'_>, reply: &[i64]) -> Option<(Grant, Millis)> {
    let (&now, fields) = reply.split_first()?;
    let (fields, &[tokens, end]) = fields.split_at_checked(FIELDS)? else { return None };
    let grant = Grant {
        tokens: u32::try_from(tokens).ok()?,
        end: u64::try_from(end).ok()?,
        decision: decision(fetch.limit, fields)?,
    };
    Some((grant, u64::try_from(now).ok()?))
}

/// One limit's part of a reply.
fn decision(limit: &Limit, fields: &[i64]) -> Option<Decision> {
    let &[admitted, remaining, used, reset_at, retry_at, wait] = fields else { return None };
    Some(Decision {
        admitted: admitted == 1,
        limit: limit.ceiling(),
        remaining: u64::try_from(remaining).ok()?,
        used: u64::try_from(used).ok()?,
        reset_at: u64::try_from(reset_at).ok()?,
        // Negative: admitted, or never.
        retry_at: u64::try_from(retry_at).ok(),
        wait: u64::try_from(wait).ok()?,
    })
}
