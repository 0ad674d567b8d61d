//! Compiles the quotas of plans.

use std::sync::Arc;

use tidegate_charge::Limit;
use tidegate_config::{self as config, Config, PlanQuota};

use super::policy::{PlanLimit, PlanTier};
use super::quota::{QUOTA_KEYS, alternative_quota};
use super::section::Section;

/// Maximum number of plans: consumers refer to them by 16-bit numbers.
const MAX_PLANS: usize = u16::MAX as usize;

/// Reports plans with faulty names, and quotas of limits that do not exist.
pub(super) fn check(root: &Section<'_>, config: &Config) {
    let section = root.at("plans");
    let expected = format!("at most {MAX_PLANS}");
    section.ensure(config.plans.len() <= MAX_PLANS, "too many plans", &expected);
    for (plan, settings) in &config.plans {
        let section = section.entry(plan);
        section.ensure_key_name(plan);
        for limit in settings.quotas.keys() {
            section.entry(limit).ensure_key_reference("limit", limit, &config.limits);
        }
    }
}

/// Compiles the quotas of all plans for `limit`, the compiled form of `configured`, whose section
/// is `section`.
pub(super) fn compile(
    section: &Section<'_>,
    configured: &config::LimitConfig,
    limit: &Limit,
    named: &NamedQuotas<'_>,
) -> Vec<PlanTier> {
    let compiled = named.quotas().map(|(plan, quota)| {
        let at = section.root().at("plans").entry(plan).entry(named.limit);
        let limit = match quota {
            PlanQuota::Unlimited => PlanLimit::Unlimited,
            PlanQuota::Blocked => PlanLimit::Blocked,
            PlanQuota::Units(units) => plan_limit(section, &at, configured, limit, units),
            PlanQuota::Rate(rate) => {
                let is_known = section.can_read(&["window"]);
                let is_same = rate.window == configured.window || !is_known;
                let what = format!(
                    "`{rate}`, though the window of `{}` is {}",
                    named.limit, configured.window
                );
                let expected =
                    format!("{}/{}: a plan changes the quota alone", rate.quota, configured.window);
                at.ensure(is_same, &what, &expected);
                plan_limit(section, &at, configured, limit, rate.quota)
            }
        };
        PlanTier { plan: plan.into(), limit }
    });
    compiled.collect()
}

/// The limit with another number of units.
fn plan_limit(
    section: &Section<'_>,
    at: &Section<'_>,
    configured: &config::LimitConfig,
    limit: &Limit,
    units: u64,
) -> PlanLimit {
    let quota = alternative_quota(section, at, configured, units);
    let is_known = section.can_read(&QUOTA_KEYS) && section.can_read(&["cost"]);
    if limit.cost > quota.capacity() && is_known {
        let expected = format!("at least the cost, {}: no request would be admitted", limit.cost);
        at.fault(format!("`{units}`"), &expected);
    }
    PlanLimit::Quota(Arc::new(limit.with_quota(quota)))
}

/// The quotas that plans give the consumers of one limit.
pub(super) struct NamedQuotas<'c> {
    /// The limit's name.
    pub(super) limit: &'c str,
    /// The configuration.
    pub(super) config: &'c Config,
}

impl<'c> NamedQuotas<'c> {
    /// The plans with a quota for the limit.
    fn quotas(&self) -> impl Iterator<Item = (&'c str, PlanQuota)> {
        let Self { limit, config } = *self;
        config.plans.iter().filter_map(move |(plan, settings)| {
            let quota = settings.quotas.get(limit)?;
            Some((plan.as_str(), *quota))
        })
    }
}

#[cfg(test)]
mod tests {
    use tidegate_config as config;

    use crate::snapshot::{PlanLimit, SecretReading, Snapshot};

    fn compile(plans: &str, limit: &str) -> Result<Snapshot, String> {
        let text = format!(
            "plans: {plans}
limits: {{one: {{quota: 30, window: 1m, {limit}}}}}
upstreams: {{app: {{respond: {{}}}}}}
routes: [{{name: a, upstream: app, limits: [one]}}]
"
        );
        let loaded = config::parse("t.yaml", &text).map_err(|error| error.to_string())?;
        Snapshot::compile(&loaded, SecretReading::Unread).map_err(|faults| faults.to_string())
    }

    #[test]
    fn a_plan_is_the_limit_with_another_quota() {
        let plans = "{free: {one: 60/1m}, gold: {one: 1000}, staff: {one: unlimited}, off: {one: 0}, other: {}}";
        let snapshot = compile(plans, "").unwrap();
        let policy = &snapshot.limits[0];
        let quotas = policy.plans.iter().map(|tier| match &tier.limit {
            PlanLimit::Quota(limit) => {
                assert_eq!(limit.identity, policy.limit.identity, "both share one counter");
                format!("{} {}", tier.plan, limit.quota.limit)
            }
            PlanLimit::Unlimited => format!("{} unlimited", tier.plan),
            PlanLimit::Blocked => format!("{} blocked", tier.plan),
        });
        let quotas: Vec<String> = quotas.collect();
        assert_eq!(quotas, ["free 60", "gold 1000", "off blocked", "staff unlimited"]);
    }

    #[test]
    fn faulty_plans_are_refused() {
        for (plans, limit, expected) in [
            (
                "{free: {one: 60/1h}}",
                "",
                "1:21: `60/1h`, though the window of `one` is 1m, expected 60/1m",
            ),
            ("{free: {on: 60}}", "", "1:16: unknown limit `on`, expected `one`"),
            ("{'a b': {}}", "", "1:9: `a b`, expected a name of 1 to 64"),
            ("{free: {one: 2}}", "cost: 3", "1:21: `2`, expected at least the cost, 3"),
            ("{free: {one: 60/m}}", "", "1:21: `60/m`, expected `60/1m`: a quota such as 1000"),
            ("{free: {one: -1}}", "", "1:21: `-1`, expected a quota such as 1000"),
            ("{free: {one: lots}}", "", "1:21: `lots`, expected a quota such as 1000"),
            ("{free: 5}", "", "1:15: `5`, expected a mapping"),
        ] {
            let faults = compile(plans, limit).unwrap_err();
            assert!(faults.contains(&format!("t.yaml:{expected}")), "{plans}: {faults}");
        }
    }
}
