//! Priorities of plans and routes: compiled, and notes on those without effect.

use ahash::RandomState;
use hashbrown::HashMap;
use tidegate_base::priority::Priority;
use tidegate_config::{self as config, Config, PRIORITY_KEY};
use tidegate_throttle::waiting_room::HeadStart;

use super::section::Section;
use super::{Route, Snapshot};

/// The priorities of plans, by the plan's name.
pub type PlanPriorities = HashMap<Box<str>, Priority, RandomState>;

impl Snapshot {
    /// How important the requests of a consumer with this plan are on `route`.
    pub fn priority(&self, route: &Route, plan: Option<&str>) -> Priority {
        let of_plan = || self.plan_priorities.get(plan?).copied();
        route.priority.or_else(of_plan).unwrap_or_default()
    }
}

impl Snapshot {
    /// The head start of a consumer with this plan in the waiting room: the steps from the default
    /// to its priority. The priority of a route does not count: a caller chooses its route, and is
    /// active on all of them afterwards.
    pub fn head_start(&self, plan: Option<&str>) -> HeadStart {
        let priority = plan.and_then(|plan| self.plan_priorities.get(plan)).copied();
        let steps =
            Priority::default().number().saturating_sub(priority.unwrap_or_default().number());
        HeadStart(steps.into())
    }
}

/// The head start of the most important plan in the waiting room.
pub(super) fn longest_head_start(config: &Config) -> HeadStart {
    let steps = |plan: &config::PlanConfig| {
        Some(Priority::default().number().saturating_sub(Priority::new(plan.priority?)?.number()))
    };
    HeadStart(config.plans.values().filter_map(steps).max().unwrap_or(0).into())
}

/// The plans with a priority of their own.
pub(super) fn of_plans(config: &Config) -> PlanPriorities {
    let of_plan = |(name, plan): (&String, &config::PlanConfig)| {
        let priority = plan.priority.and_then(Priority::new)?;
        Some((name.as_str().into(), priority))
    };
    config.plans.iter().filter_map(of_plan).collect()
}

/// Reports a limit with the name of the plans' key, and notes priorities that change nothing.
pub(super) fn check(root: &Section<'_>, config: &Config) {
    if config.limits.contains_key(PRIORITY_KEY) && !config.plans.is_empty() {
        let what = "`priority` is a key of plans, so no plan can name this limit";
        root.at("limits").entry(PRIORITY_KEY).fault_at_key(what, "another name");
    }
    note_routes(root, config);
    note_plans(root, config);
}

fn note_routes(root: &Section<'_>, config: &Config) {
    for (index, route) in config.routes.iter().enumerate() {
        if route.priority.is_none() {
            continue;
        }
        let upstream = route.upstream.as_ref().and_then(|name| config.upstreams.get(name));
        if !upstream.is_some_and(has_queue) {
            let section = root.at("routes").index(index).at("priority");
            section.note("no request of this route waits for an upstream", EXPECTED);
        }
    }
}

fn note_plans(root: &Section<'_>, config: &Config) {
    let is_used = config.upstreams.values().any(has_queue)
        || config.throttle.as_ref().is_some_and(|throttle| throttle.waiting_room.is_some());
    if is_used {
        return;
    }
    for (name, plan) in &config.plans {
        if plan.priority.is_some() {
            let section = root.at("plans").entry(name).at(PRIORITY_KEY);
            section.note("no request waits for an upstream", EXPECTED);
        }
    }
}

const EXPECTED: &str = "an upstream with `max_pending`, and `max_requests`, `max_connections` or `adaptive_concurrency`";

/// True if requests may wait for the upstream.
fn has_queue(upstream: &config::UpstreamConfig) -> bool {
    upstream.max_pending > 0
}

#[cfg(test)]
mod tests {
    use tidegate_config as config;

    use crate::snapshot::{SecretReading, Snapshot};

    /// The notes of a configuration with these parts, or its faults.
    fn notes(upstream: &str, route: &str, plans: &str) -> Result<String, String> {
        let text = format!(
            "upstreams: {{app: {{targets: ['http://127.0.0.1:9000'], {upstream}}}}}
limits: {{one: 30/1m}}
plans: {plans}
routes: [{{name: a, upstream: app, limits: [one], {route}}}]
"
        );
        let loaded = config::parse("t.yaml", &text).map_err(|error| error.to_string())?;
        let snapshot = Snapshot::compile(&loaded, SecretReading::Unread)
            .map_err(|faults| faults.to_string())?;
        let notes = snapshot.notes.iter().map(ToString::to_string);
        Ok(notes.filter(|note| note.contains("waits for")).collect::<Vec<_>>().join("\n"))
    }

    #[test]
    fn priorities_without_a_queue_are_noted() {
        let queue = "max_requests: 10, max_pending: 5";
        let plans = "{gold: {priority: 0, one: 9}}";
        assert_eq!(notes(queue, "priority: 9", plans).unwrap(), "");
        assert_eq!(notes("max_requests: 10", "", "{gold: {one: 9}}").unwrap(), "");
        let noted = notes("max_requests: 10", "priority: 9", plans).unwrap();
        assert!(
            noted.contains("4:") && noted.contains("no request of this route waits"),
            "{noted}"
        );
        assert!(noted.contains("3:") && noted.contains("no request waits for an"), "{noted}");
    }

    #[test]
    fn faulty_priorities_are_refused() {
        for (route, plans, expected) in [
            ("priority: 10", "{}", "`10`, expected a whole number from 0 to 9"),
            ("priority: high", "{}", "`high`, expected a whole number from 0 to 9"),
            ("", "{gold: {priority: 10}}", "3:26: `10`, expected a whole number from 0 to 9"),
            ("", "{gold: {priority: 9/1m}}", "expected a whole number from 0 to 9"),
            ("", "{gold: {priorty: 1}}", "unknown limit `priorty`"),
        ] {
            let faults = notes("max_pending: 1, max_requests: 1", route, plans).unwrap_err();
            assert!(faults.contains(expected), "{faults}");
        }
    }
}
