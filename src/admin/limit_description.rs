//! The limits as `/api/limits` shows them: how each counts, and what it has decided.

use std::{collections::BTreeMap, fmt::Display};

use serde::Serialize;

use crate::{
    charge::{Limit, OnFailure},
    metrics::Metrics,
    snapshot::{ActualCost, Cost, CostEstimate, LimitPolicy, Refunds, Tier, TierMatch},
    status::StatusSet,
};

/// A limit: how it counts, and what it has decided.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct LimitDescription {
    name: Box<str>,
    algorithm: &'static str,
    /// Units of cost per window; for a concurrency limit, requests in flight.
    quota: u64,
    /// The length of the window; null: windows of a calendar.
    window_ms: Option<u64>,
    /// The windows of a calendar, such as `month from day 15 in Europe/Berlin`; null: windows of a
    /// fixed length.
    calendar: Option<String>,
    /// The number of sub-windows.
    resolution: u32,
    strict: bool,
    /// The parts of a request that identify a counter; empty: one counter for all requests.
    key: Vec<String>,
    cost: CostDescription,
    tiers: Vec<TierDescription>,
    /// True if the limit refuses; otherwise it only counts.
    enforce: bool,
    candidate: Option<CandidateDescription>,
    /// The statuses of responses that are not charged, each alone or as a range such as `200-399`.
    refund: Vec<String>,
    /// The only statuses of responses that are charged; null: all but those in `refund`.
    charge_on: Option<Vec<String>>,
    /// When callers are blocked; null: never.
    block: Option<BlockDescription>,
    /// What happens while Redis does not reply.
    #[cfg_attr(test, schemars(extend("enum" = ["local", "open", "closed"])))]
    on_failure: &'static str,
    decisions: Decisions,
    /// Null: no cost of the limit is settled when a response ends.
    settled: Option<SettledUnits>,
}

/// When a caller that the limit refuses is blocked.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct BlockDescription {
    /// The number of refusals after which the caller is blocked.
    after: u64,
    /// The time within which they are counted, in ms.
    within_ms: u64,
    /// The length of the block, in ms.
    for_ms: u64,
}

/// The cost of a request.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
enum CostDescription {
    Fixed(u64),
    /// The value of a request header.
    Header {
        header: String,
        max_cost: u64,
    },
    /// The value of a response header.
    Response {
        response: String,
        max_cost: u64,
    },
    /// An estimate, settled when the response ends.
    Settled {
        /// What is charged before: a number of units, or where the request has it.
        estimate: String,
        /// What is charged before a request that lacks the estimate.
        missing_estimate: u64,
        /// What is charged in the end: where the response has it.
        actual: String,
        /// What is charged in the end if the response does not report its cost; null: the estimate.
        missing: Option<u64>,
        /// The same of an error; null: the estimate.
        failed: Option<u64>,
        /// Maximum of both.
        max: u64,
    },
}

/// Another quota for some callers. The values that identify them are left out, because they may be
/// secrets.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct TierDescription {
    /// The part of a request that is compared.
    part: String,
    /// The number of values.
    values: usize,
    /// Null if these callers are not limited.
    quota: Option<u64>,
}

/// A second quota that is only counted.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct CandidateDescription {
    quota: u64,
    decisions: Decisions,
}

/// Decisions since the start, over all routes.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Decisions {
    pub(super) admitted: u64,
    pub(super) refused: u64,
    /// No reply from the store.
    pub(super) unknown: u64,
    /// Admitted because the limit is not enforced.
    pub(super) would_refuse: u64,
}

/// Costs that are settled when responses end, in units of the quota: sums since the start, over all
/// routes.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct SettledUnits {
    /// Estimates that were charged before requests.
    pub(super) reserved: u64,
    /// Final costs.
    pub(super) settled: u64,
    /// The part of final costs that exceeds their estimates.
    pub(super) overspent: u64,
    /// Responses whose content coding could not be decoded to read their cost.
    pub(super) unreadable: u64,
}

/// The description of a limit.
pub(super) fn describe_limit(policy: &LimitPolicy, metrics: &Metrics) -> LimitDescription {
    let limit = &policy.limit;
    let (quota, key) = (&limit.quota, &policy.key.0);
    let calendar = quota.algorithm.calendar();
    let (refund, charge_on) = match policy.refunds {
        Refunds::On(statuses) => (list_statuses(statuses), None),
        Refunds::Except(statuses) => (Vec::new(), Some(list_statuses(statuses))),
    };
    let candidate = policy.candidate.as_ref().map(|candidate| CandidateDescription {
        quota: candidate.limit.quota.limit,
        decisions: sum_decisions(candidate.limit.name(), metrics),
    });
    LimitDescription {
        name: limit.name().into(),
        algorithm: limit.algorithm().tag(),
        quota: quota.limit,
        window_ms: calendar.is_none().then_some(quota.window.as_ms()),
        calendar: calendar.map(|calendar| calendar.to_string()),
        resolution: quota.algorithm.resolution(),
        strict: quota.algorithm.is_strict(),
        key: key.iter().map(ToString::to_string).collect(),
        cost: describe_cost(&policy.cost),
        tiers: policy.tiers.iter().map(describe_tier).collect(),
        enforce: limit.enforce,
        candidate,
        refund,
        charge_on,
        block: limit.block.as_deref().map(describe_block),
        on_failure: match limit.on_failure {
            OnFailure::Local => "local",
            OnFailure::Open => "open",
            OnFailure::Closed => "closed",
        },
        decisions: sum_decisions(limit.name(), metrics),
        settled: policy
            .cost
            .is_settled()
            .then(|| sum_settled(limit.name(), &metrics.settlements())),
    }
}

fn describe_block(block: &Limit) -> BlockDescription {
    BlockDescription {
        after: block.quota.limit,
        within_ms: block.quota.window.as_ms(),
        for_ms: block.algorithm().block_duration().as_ms(),
    }
}

/// Statuses, as a configuration writes them.
fn list_statuses(statuses: StatusSet) -> Vec<String> {
    statuses.ranges().into_iter().map(|range| StatusSet::of([range]).to_string()).collect()
}

fn describe_cost(cost: &Cost) -> CostDescription {
    match cost {
        Cost::Fixed(cost) => CostDescription::Fixed(*cost),
        Cost::Header { name, max } => {
            CostDescription::Header { header: name.as_str().to_owned(), max_cost: *max }
        }
        Cost::Response { name, max } => {
            CostDescription::Response { response: name.as_str().to_owned(), max_cost: *max }
        }
        Cost::Settled(settled) => CostDescription::Settled {
            estimate: describe_estimate(&settled.estimate),
            actual: describe_actual(&settled.actual),
            missing_estimate: settled.missing_estimate,
            missing: settled.missing.units(),
            failed: settled.failed.units(),
            max: settled.max,
        },
    }
}

fn describe_estimate(estimate: &CostEstimate) -> String {
    match estimate {
        CostEstimate::Units(units) => units.to_string(),
        CostEstimate::Header(name) => format!("header:{name}"),
        CostEstimate::Json(members) if members.choices.is_empty() => {
            describe_paths(&members.bounds)
        }
        CostEstimate::Json(members) => {
            let (bounds, choices) = (&members.bounds, &members.choices);
            format!("{} times {}", describe_paths(bounds), describe_paths(choices))
        }
    }
}

fn describe_paths(paths: &[impl Display]) -> String {
    let paths: Vec<_> = paths.iter().map(|path| format!("json:{path}")).collect();
    paths.join(", ")
}

fn describe_actual(actual: &ActualCost) -> String {
    match actual {
        ActualCost::Header(name) => format!("header:{name}"),
        ActualCost::Bytes => "bytes".to_owned(),
        ActualCost::DurationMs => "duration_ms".to_owned(),
        ActualCost::Json(paths, _) => describe_paths(paths.paths()),
    }
}

fn describe_tier(tier: &Tier) -> TierDescription {
    let (part, values) = match &tier.matches {
        TierMatch::Part(part, values) => (part.to_string(), values.len()),
        TierMatch::Networks(networks) => ("client_ip".to_owned(), networks.len()),
    };
    let quota = tier.limit.as_ref().map(|limit| limit.quota.limit);
    TierDescription { part, values, quota }
}

/// The decisions of the limit called `name`, over all routes.
fn sum_decisions(name: &str, metrics: &Metrics) -> Decisions {
    let all = metrics.decisions();
    let own = all.iter().filter(|((_, limit), _)| **limit == *name).map(|(_, counts)| counts);
    let [admitted, refused, unknown, would_refuse] = own.fold([0; 4], |mut sum, counts| {
        sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        sum
    });
    Decisions { admitted, refused, unknown, would_refuse }
}

/// The settled costs of the limit called `name`, over all routes: a sum of `all`, those by route
/// and limit.
pub(super) fn sum_settled(
    name: &str,
    all: &BTreeMap<(Box<str>, Box<str>), [u64; 4]>,
) -> SettledUnits {
    let own = all.iter().filter(|((_, limit), _)| **limit == *name).map(|(_, sums)| sums);
    let [reserved, settled, overspent, unreadable] = own.fold([0; 4], |mut sum, sums| {
        sum.iter_mut().zip(sums).for_each(|(sum, units)| *sum += units);
        sum
    });
    SettledUnits { reserved, settled, overspent, unreadable }
}
