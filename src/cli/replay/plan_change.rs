//! `tidegate replay --plan`: another quota of a plan.

use std::fmt;
use std::path::Path;

use super::super::{Exit, load, print_error, usage_error};
use crate::config::{Config, EnvLookup, PlanQuota, suggest};
use crate::snapshot::Snapshot;

/// Another quota of a plan.
#[derive(Clone, Debug)]
pub(super) struct PlanChange {
    plan: String,
    limit: String,
    quota: PlanQuota,
    text: String,
}

impl PlanChange {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let expected = "NAME=LIMIT:QUOTA, such as gold=per-consumer:2000";
        let (plan, rest) = text.split_once('=').ok_or(expected)?;
        let (limit, quota) = rest.rsplit_once(':').ok_or(expected)?;
        let quota = PlanQuota::parse(quota).map_err(|expected| format!("expected {expected}"))?;
        let (plan, limit, text) = (plan.to_owned(), limit.to_owned(), text.to_owned());
        Ok(Self { plan, limit, quota, text })
    }
}

impl fmt::Display for PlanChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--plan {}", self.text)
    }
}

/// Loads a configuration with other quotas of its plans, or prints its faults.
pub(super) fn load_changed(
    path: &Path,
    env: EnvLookup<'_>,
    changes: &[PlanChange],
) -> Result<(Config, Snapshot), Exit> {
    let (config, _) = load(path, env)?;
    for PlanChange { plan, limit, text, .. } in changes {
        for (kind, name, names) in [
            ("plan", plan, config.plans.keys().collect::<Vec<_>>()),
            ("limit", limit, config.limits.keys().collect()),
        ] {
            if !names.contains(&name) {
                let names = names.into_iter().map(String::as_str);
                let expected = suggest(name, names.clone()).map_or_else(
                    || format!("one of {}", names.collect::<Vec<_>>().join(", ")),
                    |closest| format!("`{closest}`"),
                );
                let what = format!("--plan {text}: unknown {kind} `{name}`, expected {expected}");
                return Err(usage_error("replay", what));
            }
        }
    }
    let loaded = Snapshot::load_changed(path, env, |plans| {
        for PlanChange { plan, limit, quota, .. } in changes {
            plans.entry(plan.clone()).or_default().quotas.insert(limit.clone(), *quota);
        }
    });
    let loaded = loaded.map(|(loaded, snapshot)| (loaded.config, snapshot));
    loaded.map_err(|error| {
        print_error(&error);
        Exit::from_load_error(&error)
    })
}
