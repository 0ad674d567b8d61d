//! How one request is decided by one limit, with empty counters.

use std::io::{self, Write};

use serde::Serialize;

use crate::charge::{Charge, Key, Limit, Outcome};
use crate::clock::StoreTime;
use crate::error::GatewayError;
use crate::identity::{DescriptorEntry, KeySecret, KeyValues, OwnedConsumer, Subject};
use crate::plan;
use crate::rate_limit_service::messages::RateLimitRequest;
use crate::respond::LimitReport;
use crate::snapshot::{
    LimitPolicy, PlannedCall, PlannedCharge, PlannedHit, QuotaChoice, RateLimitDomain, Refunds,
    Route,
};
use crate::store::memory::MemoryStore;
use crate::time::Millis;

/// The decision of one limit.
#[derive(Serialize)]
pub(super) struct LimitExplanation {
    name: String,
    algorithm: &'static str,
    quota: u64,
    /// Absent for windows of a calendar.
    #[serde(skip_serializing_if = "Option::is_none")]
    window_ms: Option<u64>,
    /// The windows of a calendar, such as `month from day 15 in Europe/Berlin`.
    #[serde(skip_serializing_if = "Option::is_none")]
    calendar: Option<String>,
    cost: u64,
    /// Number of the caller's tier, from 1.
    tier: Option<u16>,
    /// The plan whose quota applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<String>,
    /// False if the limit is not enforced.
    enforced: bool,
    /// The parts of the key; empty if all requests are counted together.
    key: Vec<KeyPartValue>,
    /// The client's address, if it is counted because all parts that identify a caller are empty.
    fallback: Option<String>,
    /// The statuses whose requests are charged, if `charge_on` lists them.
    #[serde(skip_serializing_if = "Option::is_none")]
    charge_on: Option<String>,
    /// When the caller would be blocked.
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<String>,
    admitted: bool,
    remaining: u64,
}

#[derive(Serialize)]
struct KeyPartValue {
    part: String,
    value: String,
}

/// A charge of this request to one limit.
pub(super) struct LimitCharge<'s> {
    pub(super) charge: Charge<'s>,
    tier: Option<u16>,
    plan: Option<&'s str>,
    refunds: Refunds,
    values: KeyValues,
    outcome: Outcome,
}

impl<'s> LimitCharge<'s> {
    /// A charge that is not made yet.
    fn new(
        policy: &'s LimitPolicy,
        planned: &PlannedCharge,
        charge: Charge<'s>,
        values: KeyValues,
    ) -> Self {
        let (tier, plan) = match &planned.quota {
            QuotaChoice::Own | QuotaChoice::Override(_) | QuotaChoice::Requested(_) => (None, None),
            QuotaChoice::Tier(index) => (Some(*index), None),
            QuotaChoice::Plan(index) => {
                (None, policy.plans.get(usize::from(*index)).map(|tier| &*tier.plan))
            }
        };
        let (refunds, outcome) = (policy.refunds, Outcome::NotCharged);
        Self { charge, tier, plan, refunds, values, outcome }
    }

    pub(super) fn report(&self) -> LimitReport<'_> {
        LimitReport { limit: self.charge.limit, cost: self.charge.cost, outcome: &self.outcome }
    }
}

/// The planned `charges`, with the values of their keys.
pub(super) fn limit_charges<'s>(
    route: &'s Route,
    subject: &Subject<'_>,
    charges: &'s [PlannedCharge],
    secret: KeySecret,
) -> Result<Vec<LimitCharge<'s>>, GatewayError> {
    let mut limits = Vec::new();
    for planned in charges {
        let Some(charge) = plan::charge_for(route, planned) else { continue };
        let key = &route.limits[usize::from(planned.limit_index)].key;
        for subject in &*key.subjects(subject).map_err(GatewayError::Ambiguous)? {
            let hashed = key.key(subject, secret).map_err(GatewayError::Ambiguous)?;
            if Key(hashed) == planned.key {
                let values = key.display_values(subject).map_err(GatewayError::Ambiguous)?;
                let policy = &route.limits[usize::from(planned.limit_index)];
                limits.push(LimitCharge::new(policy, planned, charge, values));
                break;
            }
        }
    }
    Ok(limits)
}

/// The planned charges of a call to the rate limit service, in their order, with the values of
/// their keys.
pub(super) fn call_charges<'s>(
    domain: &'s RateLimitDomain,
    call: &RateLimitRequest,
    consumers: &[Option<OwnedConsumer>],
    planned: &'s PlannedCall,
) -> Vec<LimitCharge<'s>> {
    let charge_of = |hit: &'s PlannedHit| {
        let policy = &*domain.limits[usize::from(hit.charge.limit_index)];
        let charge = Charge {
            limit: policy.limit_of(&hit.charge),
            key: hit.charge.key,
            cost: hit.charge.cost,
        };
        let index = hit.descriptors.first().copied().unwrap_or_default();
        let first = call.descriptors.get(index);
        let consumer = consumers.get(index).and_then(Option::as_ref).map(OwnedConsumer::view);
        let entries = first.iter().flat_map(|descriptor| &descriptor.entries);
        let entries: Vec<DescriptorEntry<'_>> =
            entries.map(|entry| DescriptorEntry::new(&entry.key, &entry.value)).collect();
        // A descriptor has no value that can be read in more than one way.
        let values = Subject::with_descriptor(&entries, consumer, |subject| {
            policy.key.display_values(subject).unwrap_or_default()
        });
        LimitCharge::new(policy, &hit.charge, charge, values)
    };
    planned.hits.iter().map(charge_of).collect()
}

/// Charges the limits with empty counters; true if all admit.
pub(super) fn charge(limits: &mut [LimitCharge<'_>], now: StoreTime) -> bool {
    let charges: Vec<Charge<'_>> = limits.iter().map(|limit| limit.charge).collect();
    let verdict = MemoryStore::new(charges.len()).charge(&charges, now);
    for (limit, outcome) in limits.iter_mut().zip(verdict.outcomes) {
        limit.outcome = outcome;
    }
    verdict.admitted
}

/// When `block` begins, and its length.
fn describe_block(block: &Limit) -> String {
    let text = |length: Millis| humantime::format_duration(length.as_duration());
    format!(
        "blocked for {} after {} refusals within {}",
        text(block.algorithm().block_duration()),
        block.quota.limit,
        text(block.quota.window)
    )
}

impl LimitExplanation {
    pub(super) fn new(charged: LimitCharge<'_>) -> Self {
        let LimitCharge {
            charge: Charge { limit, cost, .. },
            tier,
            plan,
            refunds,
            values,
            outcome,
        } = charged;
        let parts = values.parts.into_iter();
        let calendar = limit.algorithm().calendar();
        Self {
            name: limit.name().to_string(),
            algorithm: limit.algorithm().tag(),
            quota: limit.quota.limit,
            window_ms: calendar.is_none().then_some(limit.quota.window.as_ms()),
            calendar: calendar.map(|calendar| calendar.to_string()),
            cost,
            tier: tier.map(|index| index + 1),
            plan: plan.map(str::to_owned),
            enforced: limit.enforce,
            key: parts.map(|value| KeyPartValue { part: value.part, value: value.value }).collect(),
            fallback: values.fallback.map(|address| address.to_string()),
            charge_on: match refunds {
                Refunds::On(_) => None,
                Refunds::Except(statuses) => Some(statuses.to_string()),
            },
            block: limit.block.as_deref().map(describe_block),
            admitted: outcome.admitted().is_some(),
            remaining: outcome.decided().map_or(0, |decided| decided.decision.remaining),
        }
    }

    pub(super) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { name, algorithm, quota, cost, .. } = self;
        let length = Millis::from_ms(self.window_ms.unwrap_or(0)).as_duration();
        let length = || humantime::format_duration(length).to_string();
        let window = self.calendar.clone().unwrap_or_else(length);
        writeln!(out, "limit      {name}: {algorithm}, {quota} in {window}, cost {cost}")?;
        let key = self.key.iter().map(|key| match &*key.value {
            "" => format!("{} (none)", key.part),
            value => format!("{} {value}", key.part),
        });
        let key = key.collect::<Vec<_>>().join(", ");
        match (&self.fallback, self.key.is_empty()) {
            (Some(address), _) => {
                writeln!(
                    out,
                    "           key: {key}; no caller in it, so the client's address {address} is counted"
                )
            }
            (None, true) => {
                writeln!(out, "           key: none, all requests are counted together")
            }
            (None, false) => writeln!(out, "           key: {key}"),
        }?;
        if let Some(tier) = self.tier {
            writeln!(out, "           tier {tier}, with its own quota")?;
        }
        if let Some(plan) = &self.plan {
            writeln!(out, "           plan {plan}, with its own quota")?;
        }
        if let Some(statuses) = &self.charge_on {
            writeln!(out, "           charged only if the response has status {statuses}")?;
        }
        if let Some(block) = &self.block {
            writeln!(out, "           {block}")?;
        }
        let verdict = match (self.admitted, self.enforced) {
            (true, _) => "admits",
            (false, true) => "refuses",
            (false, false) => "would refuse, but is not enforced",
        };
        writeln!(out, "           {verdict}, {} left", self.remaining)
    }
}
