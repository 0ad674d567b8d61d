//! [`OverrideTable`]: the overrides that apply to requests, by limit and caller.
//!
//! The table is made from all overrides and one snapshot, when either changes. A request that keeps
//! an older or newer snapshot than the table's, because a reload is going on, finds its override by
//! the limit's name and derives the quota by itself.

use std::{borrow::Borrow, hash::Hash, sync::Arc};

use ahash::RandomState;
use hashbrown::HashMap;
use tidegate_access::overrides::{Override, OverrideId, OverrideSet, OverrideTarget};
use tidegate_charge::{Key, Limit};
use tidegate_config::{Config, PlanQuota};
use tidegate_identity::Consumer;
use tidegate_system::clock::StoreTime;

use super::{LimitPolicy, PlanLimit, Snapshot, quota::TooManyUnits, section::Section};

/// The overrides of all limits.
#[derive(Debug, Default)]
pub struct OverrideTable {
    /// By the limits' indices in the snapshot.
    limits: Vec<LimitSlot>,
    /// The overrides that do not apply, and why.
    unused: Vec<UnusedOverride>,
}

/// A limit of the snapshot.
#[derive(Debug)]
struct LimitSlot {
    /// The limit that the quotas were derived from.
    base: Arc<Limit>,
    overrides: Option<Box<LimitOverrides>>,
}

/// The overrides of one limit.
#[derive(Debug, Default)]
struct LimitOverrides {
    keys: HashMap<Key, Arc<AppliedOverride>, RandomState>,
    consumers: HashMap<Box<str>, Arc<AppliedOverride>, RandomState>,
    plans: HashMap<Box<str>, Arc<AppliedOverride>, RandomState>,
}

/// An override, and what it makes of its limit.
#[derive(Clone, Debug)]
pub struct AppliedOverride {
    /// The override.
    pub own: Arc<Override>,
    /// What applies instead of the limit.
    pub limit: PlanLimit,
}

/// An override that does not apply with this configuration.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UnusedOverride {
    /// Its id.
    pub id: OverrideId,
    /// What is wrong, and what was expected.
    pub fault: String,
}

/// The overrides at the time of a request.
#[derive(Clone, Debug)]
pub struct OverridesAt {
    /// The overrides.
    pub table: Arc<OverrideTable>,
    /// The time by which they end.
    pub now: StoreTime,
}

/// Two are equal if they are the same override with the same quota.
impl PartialEq for AppliedOverride {
    fn eq(&self, other: &Self) -> bool {
        let units = |limit: &PlanLimit| match limit {
            PlanLimit::Quota(limit) => Some(limit.quota),
            PlanLimit::Unlimited | PlanLimit::Blocked => None,
        };
        self.own == other.own && units(&self.limit) == units(&other.limit)
    }
}

impl Eq for AppliedOverride {}

impl AppliedOverride {
    /// The override `own` of the limit of `policy`.
    ///
    /// # Errors
    ///
    /// The quota does not fit the limit: what is wrong, and what was expected.
    pub fn new(own: &Arc<Override>, policy: &LimitPolicy) -> Result<Self, String> {
        let limit = match own.quota {
            PlanQuota::Unlimited => PlanLimit::Unlimited,
            PlanQuota::Blocked => PlanLimit::Blocked,
            PlanQuota::Units(units) => policy.with_units(units)?,
            PlanQuota::Rate(rate) => {
                let window = policy.shape.configured_window();
                if rate.window != window {
                    let name = policy.limit.name();
                    return Err(format!(
                        "`{rate}`, though the window of `{name}` is {window}; expected a number, or the limit's own window"
                    ));
                }
                policy.with_units(rate.quota)?
            }
        };
        Ok(Self { own: Arc::clone(own), limit })
    }
}

impl LimitPolicy {
    /// The limit with another number of units, which counts in the same records.
    fn with_units(&self, units: u64) -> Result<PlanLimit, String> {
        let quota = self.shape.with_units(units);
        if let Some(TooManyUnits { what, expected }) = TooManyUnits::of(&quota) {
            return Err(format!("{what}; expected {expected}"));
        }
        let cost = self.limit.cost;
        if cost > quota.capacity() {
            return Err(format!(
                "`{units}`, less than the cost of a request; expected at least {cost}, or `blocked`"
            ));
        }
        Ok(PlanLimit::Quota(Arc::new(self.limit.with_quota(quota))))
    }
}

impl LimitOverrides {
    fn insert(&mut self, applied: AppliedOverride) {
        let applied = Arc::new(applied);
        match applied.own.target.clone() {
            OverrideTarget::Key(key) => _ = self.keys.insert(key, applied),
            OverrideTarget::Consumer(name) => _ = self.consumers.insert(name, applied),
            OverrideTarget::Plan(name) => _ = self.plans.insert(name, applied),
        }
    }

    /// The first override in force: by key, by consumer, by plan.
    fn find(
        &self,
        key: Key,
        consumer: Option<Consumer<'_>>,
        now: StoreTime,
    ) -> Option<&Arc<AppliedOverride>> {
        let plan = consumer.and_then(|consumer| consumer.plan);
        in_force(&self.keys, Some(&key), now)
            .or_else(|| in_force(&self.consumers, consumer.map(|consumer| consumer.name), now))
            .or_else(|| in_force(&self.plans, plan, now))
    }
}

fn in_force<'t, K: Borrow<Q> + Eq + Hash, Q: Eq + Hash + ?Sized>(
    table: &'t HashMap<K, Arc<AppliedOverride>, RandomState>,
    target: Option<&Q>,
    now: StoreTime,
) -> Option<&'t Arc<AppliedOverride>> {
    if table.is_empty() {
        return None;
    }
    table.get(target?).filter(|applied| applied.own.is_in_force(now))
}

impl OverrideTable {
    /// The overrides of `set` under the limits of `snapshot`. Ended ones are in it: time is judged
    /// by each request.
    pub fn new(set: &OverrideSet, snapshot: &Snapshot) -> Self {
        let mut table = Self::default();
        let slots = snapshot.limits.iter();
        table.limits = slots
            .map(|policy| LimitSlot { base: Arc::clone(&policy.limit), overrides: None })
            .collect();
        let index_of: HashMap<&str, usize, RandomState> = snapshot
            .limits
            .iter()
            .enumerate()
            .map(|(index, policy)| (policy.limit.name(), index))
            .collect();
        for (id, own) in set.iter() {
            let Some(&index) = index_of.get(&*own.limit) else {
                let fault = format!("no limit is called `{}`; expected one of `limits`", own.limit);
                table.unused.push(UnusedOverride { id, fault });
                continue;
            };
            let policy = &snapshot.limits[index];
            match AppliedOverride::new(own, policy) {
                Ok(applied) => {
                    table.limits[index].overrides.get_or_insert_default().insert(applied);
                }
                Err(fault) => table.unused.push(UnusedOverride { id, fault }),
            }
        }
        table
    }

    /// The overrides that do not apply with this configuration.
    pub fn unused(&self) -> &[UnusedOverride] {
        &self.unused
    }

    /// The override of the limit of `policy` that applies at `now` to the caller with `key`.
    #[inline]
    pub fn find(
        &self,
        policy: &LimitPolicy,
        key: Key,
        consumer: Option<Consumer<'_>>,
        now: StoreTime,
    ) -> Option<Arc<AppliedOverride>> {
        match self.limits.get(policy.limit.index) {
            Some(LimitSlot { base, overrides }) if Arc::ptr_eq(base, &policy.limit) => {
                overrides.as_ref()?.find(key, consumer, now).map(Arc::clone)
            }
            _ => self.derive(policy, key, consumer, now),
        }
    }

    /// As [`Self::find`], for a limit of another snapshot, or for a candidate, which has no
    /// overrides.
    #[cold]
    fn derive(
        &self,
        policy: &LimitPolicy,
        key: Key,
        consumer: Option<Consumer<'_>>,
        now: StoreTime,
    ) -> Option<Arc<AppliedOverride>> {
        if policy.is_candidate() {
            return None;
        }
        let named = self.limits.iter().find(|slot| slot.base.name() == policy.limit.name())?;
        let found = named.overrides.as_ref()?.find(key, consumer, now)?;
        AppliedOverride::new(&found.own, policy).ok().map(Arc::new)
    }
}

/// Reports a file of overrides that would not be used.
pub(super) fn check(root: &Section<'_>, config: &Config) {
    let Some(own) = &config.overrides else { return };
    let section = root.at("overrides").at("file");
    let has_redis = config.store.redis.is_some();
    let expected = "no `overrides`: with `store.redis`, all gateways share the overrides in Redis";
    section.ensure(!has_redis, "a file of overrides, though there is Redis", expected);
    section.ensure(own.file.file_name().is_some(), "no file", "the path of a file");
}

impl OverridesAt {
    /// See [`OverrideTable::find`].
    #[inline]
    pub fn find(
        &self,
        policy: &LimitPolicy,
        key: Key,
        consumer: Option<Consumer<'_>>,
    ) -> Option<Arc<AppliedOverride>> {
        self.table.find(policy, key, consumer, self.now)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_base::time::ms;
    use tidegate_config as config;

    use super::*;
    use crate::snapshot::SecretReading;

    /// Limits whose quotas depend on more than a number, and one with a candidate.
    const RULES: &str = "
limits:
  bucket: {algorithm: leaky_bucket, quota: 10, window: 1s, max_queue: 5, key: [consumer]}
  costly: {quota: 30, window: 1m, key: [consumer], cost: 3, candidate: {quota: 9}}
  exact: {algorithm: token_bucket, quota: 5, window: 365d, key: [consumer]}
upstreams: {app: {respond: {}}}
routes: [{name: a, upstream: app, limits: [bucket, costly, exact]}]
";
    const NOW: StoreTime = StoreTime::from_unix_ms(1_800_000_000_000);

    fn snapshot(text: &str) -> Snapshot {
        let loaded = config::parse("t.yaml", text).unwrap_or_else(|error| panic!("{error}"));
        Snapshot::compile(&loaded, SecretReading::Unread)
            .unwrap_or_else(|faults| panic!("{faults}"))
    }

    fn set(records: &[&str]) -> OverrideSet {
        let mut set = OverrideSet::default();
        for record in records {
            set.insert(Override::of_json(record.as_bytes()).unwrap());
        }
        set
    }

    fn policy<'s>(snapshot: &'s Snapshot, name: &str) -> &'s Arc<LimitPolicy> {
        snapshot.limits.iter().find(|policy| policy.limit.name() == name).unwrap()
    }

    const ACME: Option<Consumer<'_>> = Some(Consumer::new("acme", Some("gold")));

    fn quota(table: &OverrideTable, policy: &LimitPolicy) -> Option<tidegate_limit::Quota> {
        match &table.find(policy, Key(7), ACME, NOW)?.limit {
            PlanLimit::Quota(limit) => {
                assert_eq!(limit.identity, policy.limit.identity, "both share one counter");
                assert_eq!(limit.index, policy.limit.index);
                Some(limit.quota)
            }
            PlanLimit::Unlimited | PlanLimit::Blocked => None,
        }
    }

    #[test]
    fn an_override_is_the_limit_with_the_quota_that_the_configuration_would_give() {
        let snapshot = snapshot(RULES);
        for name in ["bucket", "costly", "exact"] {
            for units in [3, 4, 20, 100] {
                let record = format!(r#"{{"limit":"{name}","consumer":"acme","quota":{units}}}"#);
                let table = OverrideTable::new(&set(&[&record]), &snapshot);
                let line = RULES.lines().find(|line| line.contains(&format!("  {name}:"))).unwrap();
                let (before, after) = line.split_once("quota: ").unwrap();
                let (_, after) = after.split_once(',').unwrap();
                let text = RULES.replace(line, &format!("{before}quota: {units},{after}"));
                let text = text.replace("candidate: {quota: 9}", "candidate: {quota: 3}");
                let expected = policy(&self::snapshot(&text), name).limit.quota;
                assert_eq!(
                    quota(&table, policy(&snapshot, name)),
                    Some(expected),
                    "{name} {units}"
                );
            }
        }
    }

    #[test]
    fn a_quota_that_does_not_fit_is_not_used() {
        let snapshot = snapshot(RULES);
        for (record, expected) in [
            (
                r#"{"limit":"costly","consumer":"acme","quota":2}"#,
                "expected at least 3, or `blocked`",
            ),
            (
                r#"{"limit":"costly","consumer":"acme","quota":"9/1h"}"#,
                "the window of `costly` is 1m",
            ),
            (
                r#"{"limit":"exact","consumer":"acme","quota":4294967295}"#,
                "too large to count exactly",
            ),
            (r#"{"limit":"gone","consumer":"acme","quota":5}"#, "no limit is called `gone`"),
        ] {
            let table = OverrideTable::new(&set(&[record]), &snapshot);
            let [unused] = table.unused() else { panic!("{record}") };
            assert!(unused.fault.contains(expected), "{record}: {}", unused.fault);
            assert!(snapshot.limits.iter().all(|own| quota(&table, own).is_none()), "{record}");
        }
    }

    #[test]
    fn a_candidate_keeps_its_quota() {
        let snapshot = snapshot(RULES);
        let record = r#"{"limit":"costly","consumer":"acme","quota":50}"#;
        let table = OverrideTable::new(&set(&[record]), &snapshot);
        let costly = policy(&snapshot, "costly");
        assert!(quota(&table, costly).is_some());
        assert!(quota(&table, costly.candidate.as_ref().unwrap()).is_none());
    }

    #[test]
    fn a_request_with_another_snapshot_derives_its_own_quota() {
        let (old, new) =
            (snapshot(RULES), snapshot(&RULES.replacen("limits:", "limits:\n  a: 1/1m", 1)));
        let record = r#"{"limit":"costly","consumer":"acme","quota":"50/1m"}"#;
        let table = OverrideTable::new(&set(&[record]), &old);
        for snapshot in [&old, &new] {
            let costly = policy(snapshot, "costly");
            assert_eq!(quota(&table, costly).map(|quota| quota.limit), Some(50));
            assert!(quota(&table, policy(snapshot, "bucket")).is_none());
        }
        let other = snapshot(&RULES.replace("window: 1m", "window: 1h"));
        assert!(quota(&table, policy(&other, "costly")).is_none(), "50/1m is no quota of an hour");
    }

    proptest! {
        /// By key, then by consumer, then by plan; ended ones count as absent.
        #[test]
        fn the_most_specific_override_in_force_applies(
            ends in prop::array::uniform3(prop::option::of(0..3_u64)),
            has in any::<[bool; 3]>(),
        ) {
            let snapshot = snapshot(RULES);
            let targets = [
                OverrideTarget::Key(Key(7)),
                OverrideTarget::Consumer("acme".into()),
                OverrideTarget::Plan("gold".into()),
            ];
            let mut set = OverrideSet::default();
            let mut expected = None;
            for (rank, target) in targets.into_iter().enumerate() {
                if !has[rank] {
                    continue;
                }
                let until = ends[rank].map(|end| (NOW + ms(end)).before(ms(1)));
                let quota = PlanQuota::Units(100 + rank as u64);
                let (reason, by) = ("".into(), "".into());
                let own = Override { limit: "costly".into(), target, quota, until, reason, by, set_at: None };
                if own.is_in_force(NOW) && expected.is_none() {
                    expected = Some(100 + rank as u64);
                }
                set.insert(own);
            }
            let table = OverrideTable::new(&set, &snapshot);
            let found = quota(&table, policy(&snapshot, "costly"));
            prop_assert_eq!(found.map(|quota| quota.limit), expected);
            let stranger = table.find(policy(&snapshot, "costly"), Key(8), None, NOW);
            prop_assert!(stranger.is_none());
        }
    }
}
