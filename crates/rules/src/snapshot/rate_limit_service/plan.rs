//! The charges of a call, before anything is charged.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_charge::{Key, Limit, LimitIdentity};
use tidegate_envoy::rate_limit_service::messages::{
    RateLimitDescriptor, RateLimitOverride, RateLimitRequest, RateLimitUnit,
};
use tidegate_envoy::rate_limit_service::{Permits, UnitWindow};
use tidegate_identity::{
    DescriptorEntry, OwnedConsumer, Subject, descriptor_key, descriptor_values_key,
};
use tidegate_limit::{Algorithm, MAX_UNITS, Quota};

use super::hits::{Counting, Hits};
use super::named::RuleEffect;
use super::tree::{FoundRate, NodeLimit};
use super::{DescriptorRules, RateLimitDomain};
use crate::snapshot::policy::RequestedLimit;
use crate::snapshot::{
    ChargeContext, ChargedCallers, LimitPolicy, PlannedCharge, PlannedCharges, QuotaChoice,
};

type DescriptorEntries<'r> = SmallVec<[DescriptorEntry<'r>; 4]>;
type FoundRates<'t> = SmallVec<[Option<FoundRate<'t>>; 4]>;

/// The charges of a call.
#[derive(Clone, Debug, Default)]
pub struct PlannedCall {
    /// What applies to each descriptor, in their order.
    pub rules: SmallVec<[DescriptorRule; 4]>,
    /// The charges, peeks and refunds.
    pub hits: SmallVec<[PlannedHit; 4]>,
    /// What its charges do where they do not fit.
    pub on_refusal: OnRefusal,
}

/// What applies to a descriptor.
#[derive(Clone, Debug)]
pub enum DescriptorRule {
    /// No limit, or those of [`PlannedCall::hits`] that have its index.
    Limits,
    /// A limit that admits it never.
    Blocked(Arc<Limit>),
}

/// A charge to a limit, a peek at it or a refund.
#[derive(Clone, Debug)]
pub struct PlannedHit {
    /// The indices of its descriptors: two with equal entries are charged together.
    pub descriptors: SmallVec<[usize; 1]>,
    /// What to do.
    pub act: HitAct,
    /// The limit, the key and the cost. Of a peek, the cost of one hit.
    pub charge: PlannedCharge,
    /// When the permits were taken that a refund gives back, if the descriptor says it.
    pub taken: Permits,
}

/// What a hit does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HitAct {
    /// It is charged.
    Charge,
    /// It reads what is left, without a charge.
    Peek,
    /// It gives units back.
    Refund,
}

/// What the charges of a call do where they do not fit.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum OnRefusal {
    /// None is made: a refused request has used nothing.
    #[default]
    Nothing,
    /// All are made, if need be beyond the quota: several hits report what has happened. Only a
    /// permit is not taken, because a request holds it.
    Overdraw,
}

/// Why a call has no plan.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum UnreadableCall {
    /// A descriptor's own limit has no window.
    #[error(
        "the limit of descriptor {descriptor} has the unit {unit} times {count}; expected a unit from 1 (second) to 7 (week), and at most 366 days"
    )]
    Unit {
        /// Its index.
        descriptor: usize,
        /// The unit.
        unit: i32,
        /// The multiplier.
        count: u32,
    },
}

impl RateLimitDomain {
    /// The name of each descriptor's consumer: the value of its own entry with the configured name.
    /// A descriptor without one has that of the others, if they agree.
    pub fn consumers_of<'c>(&self, call: &'c RateLimitRequest) -> SmallVec<[Option<&'c str>; 4]> {
        let Some(name) = self.consumer.as_deref() else {
            return SmallVec::from_elem(None, call.descriptors.len());
        };
        let of_descriptor = |descriptor: &'c RateLimitDescriptor| {
            let entry = descriptor.entries.iter().find(|entry| entry.key == name)?;
            Some(DescriptorEntry::new(&entry.key, &entry.value).value)
        };
        let mut names: SmallVec<[Option<&str>; 4]> =
            call.descriptors.iter().map(of_descriptor).collect();
        let agreed = agreed_name(&names);
        names.iter_mut().for_each(|name| *name = name.or(agreed));
        names
    }

    /// Plans the charges of a call. `consumers` has the consumer of each descriptor, as
    /// [`Self::consumers_of`] names them.
    ///
    /// # Errors
    ///
    /// A descriptor's own limit is malformed.
    pub fn plan(
        &self,
        call: &RateLimitRequest,
        consumers: &[Option<OwnedConsumer>],
        context: ChargeContext<'_>,
    ) -> Result<PlannedCall, UnreadableCall> {
        let mut planned = PlannedCall::default();
        let all: SmallVec<[DescriptorEntries<'_>; 4]> =
            call.descriptors.iter().map(entries_of).collect();
        let found = self.found_rates(call, &all);
        for (index, (descriptor, entries)) in call.descriptors.iter().zip(&all).enumerate() {
            let hits = Hits::of(descriptor, call.hits_addend);
            let counting = self.counting(hits);
            let (charges, rule) = match (&descriptor.limit, &self.rules) {
                (Some(own), _) => self.requested_charges(index, entries, own, context)?,
                (None, DescriptorRules::Named(rules)) => {
                    let consumer = consumers.get(index).and_then(Option::as_ref);
                    let consumer = consumer.map(OwnedConsumer::view);
                    let counted = |limits: &[usize]| {
                        Subject::with_descriptor(entries, consumer, |subject| {
                            self.named_charges(limits, subject, counting, context)
                        })
                    };
                    effect_charges(rules.find(entries), counted)
                }
                (None, DescriptorRules::Tree(_)) => {
                    self.found_charges(index, &found, counting, context)
                }
            };
            planned.rules.push(rule);
            if hits.are_several() && !self.take_only_permits(&charges) {
                planned.on_refusal = self.late_hits;
            }
            let taken = match hits.act {
                HitAct::Refund => taken_of(entries),
                HitAct::Charge | HitAct::Peek => Permits::None,
            };
            for mut charge in charges {
                charge.cost = hits.cost(charge.cost);
                planned.add(
                    index,
                    PlannedHit { act: hits.act, charge, taken, descriptors: SmallVec::new() },
                );
            }
        }
        Ok(planned)
    }

    /// True if there are charges, and each takes permits.
    fn take_only_permits(&self, charges: &[PlannedCharge]) -> bool {
        let takes_permits = |charge: &PlannedCharge| {
            let policy = &self.limits[usize::from(charge.limit_index)];
            policy.limit.algorithm().holds_permit()
        };
        !charges.is_empty() && charges.iter().all(takes_permits)
    }

    /// What the hits count, whatever a plan or an override says of their caller now.
    fn counting(&self, hits: Hits) -> Counting {
        match hits.act {
            HitAct::Refund => Counting::All,
            HitAct::Charge if hits.are_several() && self.late_hits == OnRefusal::Overdraw => {
                Counting::Blocked
            }
            HitAct::Charge | HitAct::Peek => Counting::Admissible,
        }
    }

    /// The charges of one hit to limits of the configuration, by their indices.
    fn named_charges(
        &self,
        limits: &[usize],
        subject: &Subject<'_>,
        counting: Counting,
        context: ChargeContext<'_>,
    ) -> (PlannedCharges, DescriptorRule) {
        let mut charges = PlannedCharges::new();
        let mut rule = DescriptorRule::Limits;
        for &index in limits {
            let policy: &LimitPolicy = &self.limits[index];
            let cost = policy.limit.cost;
            // A descriptor has no header and no body, so the only error is a plan or an override
            // that blocks.
            let added = policy.add_with_cost(index, cost, subject, context, &mut charges);
            if added.is_err() && counting != Counting::All {
                rule = DescriptorRule::Blocked(Arc::clone(&policy.limit));
            }
            if counting.includes(added.is_err()) {
                let context = ChargeContext { callers: ChargedCallers::All, ..context };
                let _ = policy.add_with_cost(index, cost, subject, context, &mut charges);
            }
        }
        (charges, rule)
    }

    /// The limit that the tree has for each descriptor; empty without a tree.
    fn found_rates<'t>(
        &'t self,
        call: &RateLimitRequest,
        all: &[DescriptorEntries<'t>],
    ) -> FoundRates<'t> {
        let DescriptorRules::Tree(tree) = &self.rules else { return FoundRates::new() };
        let each = call.descriptors.iter().zip(all);
        // The limit of a descriptor itself replaces that of the tree.
        each.map(|(own, entries)| if own.limit.is_some() { None } else { tree.find(entries) })
            .collect()
    }

    /// The charge of one hit to the limit that the tree has for the descriptor with this index.
    fn found_charges(
        &self,
        index: usize,
        found: &[Option<FoundRate<'_>>],
        counting: Counting,
        context: ChargeContext<'_>,
    ) -> (PlannedCharges, DescriptorRule) {
        let none = (PlannedCharges::new(), DescriptorRule::Limits);
        let Some(FoundRate { rate, values }) = found.get(index).and_then(Option::as_ref) else {
            return none;
        };
        let replaces = |other: &FoundRate<'_>| other.rate.replaces.contains(&rate.name);
        if !rate.name.is_empty() && found.iter().flatten().any(replaces) {
            return none;
        }
        let limit = match &rate.limit {
            NodeLimit::Unlimited => return none,
            NodeLimit::Blocked(limit) => {
                return (PlannedCharges::new(), DescriptorRule::Blocked(Arc::clone(limit)));
            }
            NodeLimit::Counted(limit) => *limit,
        };
        let policy: &LimitPolicy = &self.limits[limit];
        let key = Key(descriptor_values_key(values.iter().copied(), context.secret));
        let of_all = ChargeContext { callers: ChargedCallers::All, ..context };
        let (chosen, any) = Subject::with_descriptor(&[], None, |subject| {
            (policy.quota_of(key, subject, context), policy.quota_of(key, subject, of_all))
        });
        let is_blocked = chosen.is_err();
        let any = any.ok().flatten().filter(|_| counting.includes(is_blocked));
        let charge = |quota| PlannedCharge {
            limit_index: u16::try_from(limit).unwrap_or(u16::MAX),
            key,
            cost: policy.limit.cost,
            quota,
            billing_day: None,
        };
        let rule = if is_blocked && counting != Counting::All {
            DescriptorRule::Blocked(Arc::clone(&policy.limit))
        } else {
            DescriptorRule::Limits
        };
        let quota = any.or_else(|| chosen.ok().flatten());
        (quota.into_iter().map(charge).collect(), rule)
    }

    /// The charge of one hit to the limit that a descriptor has of its own.
    fn requested_charges(
        &self,
        index: usize,
        entries: &[DescriptorEntry<'_>],
        own: &RateLimitOverride,
        context: ChargeContext<'_>,
    ) -> Result<(PlannedCharges, DescriptorRule), UnreadableCall> {
        let count = own.unit_multiplier.map_or(1, |own| own.value);
        let window = RateLimitUnit::try_from(own.unit).ok();
        let window = window.and_then(|unit| UnitWindow { unit, count }.length());
        let unreadable = UnreadableCall::Unit { descriptor: index, unit: own.unit, count };
        let window = window.ok_or(unreadable)?;
        let requested = &self.limits[self.requested].limit;
        let limit = Arc::new(Limit {
            // Windows of another length are counted in another record.
            identity: LimitIdentity::new(requested.name(), window.as_ms()),
            quota: Quota::new(own.requests_per_unit.into(), window, Algorithm::FixedWindow),
            ..Limit::clone(requested)
        });
        if own.requests_per_unit == 0 {
            return Ok((PlannedCharges::new(), DescriptorRule::Blocked(limit)));
        }
        let charge = PlannedCharge {
            limit_index: u16::try_from(self.requested).unwrap_or(u16::MAX),
            key: Key(descriptor_key(entries, context.secret)),
            cost: 1,
            quota: QuotaChoice::Requested(Arc::new(RequestedLimit(limit))),
            billing_day: None,
        };
        Ok((PlannedCharges::from_iter([charge]), DescriptorRule::Limits))
    }
}

/// The name that all descriptors with a name have; `None` if they have different ones, or none has
/// any.
pub fn agreed_name<'c>(names: &[Option<&'c str>]) -> Option<&'c str> {
    let mut named = names.iter().flatten();
    let first = *named.next()?;
    named.all(|name| *name == first).then_some(first)
}

fn entries_of(descriptor: &RateLimitDescriptor) -> DescriptorEntries<'_> {
    let entries = descriptor.entries.iter();
    entries.map(|entry| DescriptorEntry::new(&entry.key, &entry.value)).collect()
}

/// The charges by a rule; `counted` makes those of one hit to its limits.
fn effect_charges(
    effect: Option<&RuleEffect>,
    counted: impl FnOnce(&[usize]) -> (PlannedCharges, DescriptorRule),
) -> (PlannedCharges, DescriptorRule) {
    match effect {
        None | Some(RuleEffect::Unlimited) => (PlannedCharges::new(), DescriptorRule::Limits),
        Some(RuleEffect::Blocked(limit)) => {
            (PlannedCharges::new(), DescriptorRule::Blocked(Arc::clone(limit)))
        }
        Some(RuleEffect::Counted(limits)) => counted(limits),
    }
}

/// When the permits were taken that a descriptor gives back.
fn taken_of(entries: &[DescriptorEntry<'_>]) -> Permits {
    let found = entries.iter().map(|entry| Permits::of_value(entry.value));
    found.into_iter().find(|found| *found != Permits::None).unwrap_or(Permits::None)
}

impl PlannedCall {
    /// Adds a hit, or joins it with an earlier one of the same record.
    fn add(&mut self, descriptor: usize, mut new: PlannedHit) {
        let is_same = |hit: &&mut PlannedHit| {
            let (own, charge) = (&hit.charge, &new.charge);
            (hit.act, hit.taken, own.limit_index, own.key)
                == (new.act, new.taken, charge.limit_index, charge.key)
                && own.quota == charge.quota
        };
        if let Some(hit) = self.hits.iter_mut().find(is_same) {
            hit.descriptors.push(descriptor);
            if new.act != HitAct::Peek {
                hit.charge.cost = hit.charge.cost.saturating_add(new.charge.cost).min(MAX_UNITS);
            }
        } else {
            new.descriptors.push(descriptor);
            self.hits.push(new);
        }
    }

    /// The limit that admits a descriptor never, if one does.
    pub fn blocked_by(&self) -> Option<&Arc<Limit>> {
        self.rules.iter().find_map(|rule| match rule {
            DescriptorRule::Blocked(limit) => Some(limit),
            DescriptorRule::Limits => None,
        })
    }
}
