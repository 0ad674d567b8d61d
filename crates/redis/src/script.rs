//! The commands that call the scripts, and the parsing of their replies.

use std::sync::LazyLock;

use ::redis::{Cmd, Pipeline};
use tidegate_charge::{
    Acquisition, Adjustment, Charge, DecisionSource, Key, Limit, StoreDecision, Verdict,
};
use tidegate_limit::{Algorithm, Calendar, Change, Decision, Grant, Millis, Quota};
use tidegate_system::clock::{Clock, StoreTime};

use super::{
    script_call::{Script, ScriptRef},
    script_texts::{ACQUIRE, ADJUST, CHARGE, PEEK},
};

/// The scripts that workers call.
static SCRIPTS: LazyLock<[Script; 4]> =
    LazyLock::new(|| [CHARGE, ACQUIRE, PEEK, ADJUST].map(Script::new));

/// Reports a gateway alive, and returns the gateways that are alive and recent deletions.
pub(super) const PRESENCE: &str = include_str!("../../../lua/presence.lua");

/// Records deletions for the other gateways.
pub(super) const RESET: &str = include_str!("../../../lua/reset.lua");

/// Number of integers for each charge or adjustment in a reply, after the time.
const FIELDS: usize = 6;

/// Latest `charged_at` that is sent to [`ADJUST`], so that Lua's numbers (doubles) stay exact. No
/// clock reaches it.
const MAX_TIME: StoreTime = StoreTime::from_unix_ms(1 << 52);

/// Makes the commands that read and write records in one namespace.
pub(super) struct Scripts {
    charge: Script,
    acquire: Script,
    peek: Script,
    adjust: Script,
    namespace: Box<str>,
}

impl Scripts {
    pub(super) fn new(namespace: &str) -> Self {
        let [charge, acquire, peek, adjust] = SCRIPTS.clone();
        Self { charge, acquire, peek, adjust, namespace: namespace.into() }
    }

    /// The command that asks Redis which scripts it has cached.
    pub(super) fn exists_command() -> Cmd {
        let mut command = ::redis::cmd("SCRIPT");
        command.arg("EXISTS");
        for script in &*SCRIPTS {
            command.arg(&*script.hash);
        }
        command
    }

    /// The commands that load the scripts that Redis has not cached. `loaded` is the reply to
    /// [`Self::exists_command`].
    pub(super) fn load_commands(loaded: &[bool]) -> Pipeline {
        let mut loads = ::redis::pipe();
        for (index, script) in SCRIPTS.iter().enumerate() {
            if loaded.get(index) != Some(&true) {
                loads.cmd("SCRIPT").arg("LOAD").arg(script.text).ignore();
            }
        }
        loads
    }

    /// The command that charges. If `clock` is a manual one, its time replaces the server's.
    pub(super) fn charge(&self, by: ScriptRef, charges: &[Charge<'_>], clock: &Clock) -> Cmd {
        let mut command = self.charge.command(by);
        self.push_charges(&mut command, charges, clock);
        if charges.len() > 1 {
            for charge in charges {
                command.arg(u8::from(charge.limit.enforce));
            }
        }
        command
    }

    /// The command that charges units for a lease. `clock` as for [`Self::charge`].
    pub(super) fn acquire(
        &self,
        by: ScriptRef,
        acquisition: &Acquisition<'_>,
        clock: &Clock,
    ) -> Cmd {
        let Acquisition { limit, key, demand } = acquisition;
        let mut command = self.acquire.command(by);
        command.arg(1).arg(record_key(&self.namespace, limit, *key)).arg(time_arg(clock));
        push_limit(&mut command, limit, demand.minimum, clock);
        command.arg(demand.needed).arg(demand.extra).arg(demand.extra_divisor.max(1));
        command.arg(demand.returned.units).arg(demand.returned.charged_at.as_unix_ms());
        command
    }

    /// The command that decides without charging. `clock` as for [`Self::charge`].
    pub(super) fn peek(&self, by: ScriptRef, charges: &[Charge<'_>], clock: &Clock) -> Cmd {
        let mut command = self.peek.command(by);
        self.push_charges(&mut command, charges, clock);
        command
    }

    /// The command that adjusts charges. `clock` as for [`Self::charge`].
    pub(super) fn adjust(
        &self,
        by: ScriptRef,
        adjustments: &[Adjustment<'_>],
        clock: &Clock,
    ) -> Cmd {
        let mut command = self.adjust.command(by);
        command.arg(adjustments.len());
        for adjustment in adjustments {
            command.arg(record_key(&self.namespace, adjustment.limit, adjustment.key));
        }
        command.arg(time_arg(clock));
        for adjustment in adjustments {
            let exact = |at: StoreTime| at.min(MAX_TIME).as_unix_ms().cast_signed();
            let charged_at = match adjustment.change {
                Change::Refund { charged_at, .. } => exact(charged_at),
                Change::Overdraw { .. } => -1,
                Change::Release { .. } => -2,
            };
            push_limit(&mut command, adjustment.limit, adjustment.change.cost(), clock);
            command.arg(charged_at);
        }
        command
    }

    /// The command that deletes a caller's records under these limits.
    pub(super) fn delete(&self, limits: &[&Limit], key: Key) -> Cmd {
        let mut command = ::redis::cmd("DEL");
        for limit in limits {
            command.arg(record_key(&self.namespace, limit, key));
        }
        command
    }

    fn push_charges(&self, command: &mut Cmd, charges: &[Charge<'_>], clock: &Clock) {
        command.arg(charges.len());
        for charge in charges {
            command.arg(record_key(&self.namespace, charge.limit, charge.key));
        }
        command.arg(time_arg(clock));
        for charge in charges {
            push_limit(command, charge.limit, charge.cost, clock);
        }
    }
}

/// The scripts' time argument: 0 for the server's clock.
fn time_arg(clock: &Clock) -> u64 {
    clock.manual_now().map_or(0, StoreTime::as_unix_ms)
}

/// Adds a limit's arguments: algorithm, cost, quota, window, resolution, option.
fn push_limit(command: &mut Cmd, limit: &Limit, cost: u64, clock: &Clock) {
    let Quota { limit: quota, window, algorithm } = limit.quota;
    command.arg(algorithm.tag()).arg(cost).arg(quota);
    let option: u64 = match algorithm {
        Algorithm::CalendarWindow(calendar) => {
            return push_calendar(command, calendar, clock.store_time());
        }
        Algorithm::SlidingWindow { strict, .. } => strict.into(),
        Algorithm::LeakyBucket { max_wait } => max_wait.as_ms(),
        Algorithm::Block { duration } => duration.as_ms(),
        Algorithm::SlidingLog
        | Algorithm::FixedWindow
        | Algorithm::TokenBucket
        | Algorithm::Concurrency => 0,
    };
    command.arg(window.as_ms()).arg(algorithm.resolution()).arg(option);
}

/// Adds the length of the calendar's window at `now`, by this gateway's clock, the length of the
/// next window, and the end of the first: the server has no calendar, and its own clock decides in
/// which of them a charge is.
fn push_calendar(command: &mut Cmd, calendar: Calendar, now: StoreTime) {
    let window = calendar.window_at(now);
    let next = calendar.window_at(window.end);
    command.arg(window.length().as_ms()).arg(next.length().as_ms()).arg(window.end.as_unix_ms());
}

/// The Redis key of a record: `NAMESPACE:{KEY}:LIMIT:FINGERPRINT`. The braces are a hash tag: in a
/// Cluster, all records of one key are in one slot.
fn record_key(namespace: &str, limit: &Limit, Key(key): Key) -> String {
    format!("{namespace}:{{{key:032x}}}:{}:{:016x}", limit.name(), limit.identity.fingerprint())
}

/// The verdict in a reply: the time, then [`FIELDS`] for each limit. `None` if the reply is
/// malformed.
pub(super) fn parse_verdict<'a>(
    limits: impl ExactSizeIterator<Item = &'a Limit>,
    reply: &[i64],
) -> Option<Verdict> {
    let (&now, fields) = reply.split_first()?;
    if fields.len() != limits.len() * FIELDS {
        return None;
    }
    let at = parse_time(now)?;
    let mut verdict = Verdict::empty();
    for (limit, fields) in limits.zip(fields.chunks_exact(FIELDS)) {
        let decision = parse_decision(limit, fields)?;
        verdict.push(StoreDecision::new(decision, at, DecisionSource::Store), limit.enforce);
    }
    Some(verdict)
}

/// The grant in a reply to [`Scripts::acquire`], and the time by the server's clock. `None` if the
/// reply is malformed.
pub(super) fn parse_grant(
    acquisition: &Acquisition<'_>,
    reply: &[i64],
) -> Option<(Grant, StoreTime)> {
    let (&now, fields) = reply.split_first()?;
    let (fields, &[units, end]) = fields.split_at_checked(FIELDS)? else { return None };
    let grant = Grant {
        units: u64::try_from(units).ok()?,
        spendable_until: parse_time(end)?,
        decision: parse_decision(acquisition.limit, fields)?,
    };
    Some((grant, parse_time(now)?))
}

/// A time in a reply; `None` if it is negative.
fn parse_time(unix_ms: i64) -> Option<StoreTime> {
    u64::try_from(unix_ms).ok().map(StoreTime::from_unix_ms)
}

/// One limit's fields of a reply.
fn parse_decision(limit: &Limit, fields: &[i64]) -> Option<Decision> {
    let &[admitted, remaining, used, reset_at, retry_at, wait] = fields else { return None };
    Some(Decision {
        admitted: admitted == 1,
        limit: limit.quota.capacity(),
        remaining: u64::try_from(remaining).ok()?,
        used: u64::try_from(used).ok()?,
        reset_at: parse_time(reset_at)?,
        // Negative if the charge was admitted, or can never be.
        retry_at: parse_time(retry_at),
        wait: Millis::from_ms(u64::try_from(wait).ok()?),
    })
}
