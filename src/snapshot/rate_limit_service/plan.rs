//! The charges of a call, before anything is charged.

use std::sync::Arc;

use smallvec::SmallVec;

use super::RateLimitDomain;
use crate::identity::{Consumer, DescriptorEntry, Subject, descriptor_key};
use crate::limit::{Algorithm, Key, Limit, LimitIdentity, MAX_UNITS, Quota};
use crate::rate_limit_service::UnitWindow;
use crate::rate_limit_service::messages::{
    RateLimitDescriptor, RateLimitOverride, RateLimitRequest, RateLimitUnit,
};
use crate::snapshot::policy::RequestedLimit;
use crate::snapshot::{ChargeContext, LimitPolicy, PlannedCharge, PlannedCharges, QuotaChoice};

/// The charges of a call.
#[derive(Clone, Debug, Default)]
pub struct PlannedCall {
    /// What applies to each descriptor, in their order.
    pub rules: SmallVec<[DescriptorRule; 4]>,
    /// The charges, peeks and refunds.
    pub hits: SmallVec<[PlannedHit; 4]>,
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
    /// The name of the consumer of a call: the value of the first entry with the configured name.
    pub fn consumer_of<'c>(&self, call: &'c RateLimitRequest) -> Option<&'c str> {
        let name = self.consumer.as_deref()?;
        let mut entries = call.descriptors.iter().flat_map(|descriptor| &descriptor.entries);
        entries.find(|entry| entry.key == name).map(|entry| entry.value.as_str())
    }

    /// Plans the charges of a call. `consumer` is the one that [`Self::consumer_of`] names.
    ///
    /// # Errors
    ///
    /// A descriptor's own limit is malformed.
    pub fn plan(
        &self,
        call: &RateLimitRequest,
        consumer: Option<Consumer<'_>>,
        context: ChargeContext<'_>,
    ) -> Result<PlannedCall, UnreadableCall> {
        let mut planned = PlannedCall::default();
        for (index, descriptor) in call.descriptors.iter().enumerate() {
            let entries: SmallVec<[DescriptorEntry<'_>; 4]> = descriptor
                .entries
                .iter()
                .map(|entry| DescriptorEntry { name: &entry.key, value: &entry.value })
                .collect();
            let hits = Hits::of(descriptor, call.hits_addend);
            let (charges, rule) = match &descriptor.limit {
                Some(own) => self.requested_charges(index, &entries, own, context)?,
                None => Subject::with_descriptor(&entries, consumer, |subject| {
                    self.configured_charges(&entries, subject, context)
                }),
            };
            planned.rules.push(rule);
            for mut charge in charges {
                charge.cost = hits.cost(charge.cost);
                planned.add(index, hits.act, charge);
            }
        }
        Ok(planned)
    }

    /// The charges of one hit to the configured limits.
    fn configured_charges(
        &self,
        entries: &[DescriptorEntry<'_>],
        subject: &Subject<'_>,
        context: ChargeContext<'_>,
    ) -> (PlannedCharges, DescriptorRule) {
        let mut charges = PlannedCharges::new();
        let mut rule = DescriptorRule::Limits;
        let indices = self.rules.iter().find(|rule| rule.applies_to(entries));
        for &index in indices.iter().flat_map(|rule| &rule.limits) {
            let policy: &LimitPolicy = &self.limits[index];
            let cost = policy.limit.cost;
            // A descriptor has no header and no body, so the only error is a plan or an override that blocks.
            if policy.add_with_cost(index, cost, subject, context, &mut charges).is_err() {
                rule = DescriptorRule::Blocked(Arc::clone(&policy.limit));
            }
        }
        (charges, rule)
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
        let window = window.and_then(|unit| UnitWindow { unit, count }.millis());
        let unreadable = UnreadableCall::Unit { descriptor: index, unit: own.unit, count };
        let window = window.ok_or(unreadable)?;
        let requested = &self.limits[self.requested].limit;
        let limit = Arc::new(Limit {
            // Windows of another length are counted in another record.
            identity: LimitIdentity::new(requested.name(), window),
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

/// The hits of a descriptor.
#[derive(Clone, Copy)]
struct Hits {
    act: HitAct,
    count: u64,
}

impl Hits {
    /// The hits of `descriptor` in a call with `addend` hits.
    fn of(descriptor: &RateLimitDescriptor, addend: u32) -> Self {
        let of_call = u64::from(addend.max(1));
        let count = descriptor.hits_addend.map_or(of_call, |own| own.value);
        let act = match (count, descriptor.is_negative_hits) {
            (0, _) => HitAct::Peek,
            (_, true) => HitAct::Refund,
            (_, false) => HitAct::Charge,
        };
        Self { act, count }
    }

    /// The cost of the hits, if one of them costs `one`.
    fn cost(self, one: u64) -> u64 {
        let count = if self.act == HitAct::Peek { 1 } else { self.count };
        one.saturating_mul(count).min(MAX_UNITS)
    }
}

impl PlannedCall {
    /// Adds a hit, or joins it with an earlier one of the same record.
    fn add(&mut self, descriptor: usize, act: HitAct, charge: PlannedCharge) {
        let is_same = |hit: &&mut PlannedHit| {
            let own = &hit.charge;
            (hit.act, own.limit_index, own.key) == (act, charge.limit_index, charge.key)
                && own.quota == charge.quota
        };
        if let Some(hit) = self.hits.iter_mut().find(is_same) {
            hit.descriptors.push(descriptor);
            if act != HitAct::Peek {
                hit.charge.cost = hit.charge.cost.saturating_add(charge.cost).min(MAX_UNITS);
            }
        } else {
            self.hits.push(PlannedHit {
                descriptors: SmallVec::from_iter([descriptor]),
                act,
                charge,
            });
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
