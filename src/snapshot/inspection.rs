//! [`Inspection`]: the members of a request's JSON body that a route reads before it charges limits.

use std::sync::Arc;

use super::policy::{Cost, LimitPolicy, TierMatch};
use super::section::Section;
use crate::{
    identity::{KeyPart, KeyPlan},
    usage::{JsonPath, PathSet},
};

/// Which members of a request's body a route reads.
#[derive(Debug)]
pub struct Inspection {
    /// Their paths.
    pub paths: Arc<PathSet>,
    /// The groups, as bits of `paths`, of which a request with a longer body than `max` must have a member in its
    /// first bytes.
    pub required: Vec<u32>,
    /// Bytes that are read ahead.
    pub max: usize,
}

impl Inspection {
    /// The inspection that the limits of a route and the key of its target need; `None` if they read no body. Reports
    /// a fault if they read too many members.
    pub(super) fn compile(
        section: &Section<'_>,
        limits: &[Arc<LimitPolicy>],
        hash_key: Option<&KeyPlan>,
        max: u64,
    ) -> Option<Box<Self>> {
        let mut groups: Vec<Vec<JsonPath>> = Vec::new();
        for policy in limits {
            groups.extend(policy.key.0.iter().filter_map(member).map(|path| vec![path]));
            groups.extend(policy.tiers.iter().filter_map(|tier| match &tier.matches {
                TierMatch::Part(part, _) => member(part).map(|path| vec![path]),
                TierMatch::Networks(_) => None,
            }));
            if let Cost::Settled(settled) = &policy.cost {
                groups.push(settled.estimate_paths().to_vec());
            }
        }
        let parts = hash_key.iter().flat_map(|key| &key.0);
        groups.extend(parts.filter_map(member).map(|path| vec![path]));
        groups.retain(|group| !group.is_empty());
        if groups.is_empty() {
            return None;
        }
        let mut paths: Vec<JsonPath> = groups.iter().flatten().cloned().collect();
        paths.sort();
        paths.dedup();
        let bit =
            |path: &JsonPath| paths.binary_search(path).map_or(0, |index| 1u32 << index.min(31));
        let required =
            groups.iter().map(|group| group.iter().fold(0, |mask, path| mask | bit(path)));
        let required = required.collect();
        let count = paths.len();
        let Some(paths) = PathSet::new(paths) else {
            let what = format!("limits that read {count} members of a request's body");
            section.at("limits").fault(what, "at most 32 in a route");
            return None;
        };
        let max = usize::try_from(max).unwrap_or(usize::MAX);
        Some(Box::new(Self { paths: Arc::new(paths), required, max }))
    }
}

fn member(part: &KeyPart) -> Option<JsonPath> {
    match part {
        KeyPart::Json(path) => Some(path.clone()),
        _ => None,
    }
}
