//! Callers with another quota.

use std::sync::Arc;

use super::check::Check;
use super::limits::other_quota;
use super::policy::{Tier, Whose};
use super::routes::part;
use crate::config::{self, KeyPart};
use crate::limit::Limit;

/// The tiers of the limit at `path`, which counts by `limit`. A faulty one is noted and left out.
pub(super) fn compile(
    check: &mut Check<'_>,
    path: &str,
    written: &config::Limit,
    limit: &Limit,
) -> Vec<Tier> {
    let tiers = written.tiers.iter().enumerate().filter_map(|(index, tier)| {
        let at = format!("{path}.tiers[{index}]");
        let quota = other_quota(check, path, &format!("{at}.quota"), written, tier.quota);
        let whose = whose(check, &format!("{at}.match"), &tier.matches);
        let quota = quota?;
        let affords = limit.cost <= quota.limit;
        let expected = format!("at least the cost, {}: no request would pass", limit.cost);
        check.ensure(affords, &format!("{at}.quota"), &format!("`{}`", tier.quota), &expected);
        Some(Tier { whose: whose?, limit: Arc::new(Limit { quota, ..limit.clone() }) })
    });
    tiers.collect()
}

fn whose(check: &mut Check<'_>, path: &str, written: &config::TierMatch) -> Option<Whose> {
    let values = format!("{path}.values");
    check.ensure(!written.values.is_empty(), &values, "no value", "at least one");
    if written.part == KeyPart::ClientIp {
        let networks = written.values.iter().enumerate().filter_map(|(index, value)| {
            let network = config::network(value);
            let expected = "a network such as 10.0.0.0/8, ::1/128 or a single address";
            check.ensure(network.is_some(), &format!("{values}[{index}]"), value, expected);
            network
        });
        return Some(Whose::Networks(networks.collect()));
    }
    let part = part(check, &format!("{path}.part"), &written.part)?;
    for (index, value) in written.values.iter().enumerate() {
        let expected = "a value: an empty one is whoever leaves it out";
        check.ensure(!value.is_empty(), &format!("{values}[{index}]"), "no text", expected);
    }
    let wanted = written.values.iter().map(|value| value.as_bytes().into());
    Some(Whose::Part(part, wanted.collect()))
}
