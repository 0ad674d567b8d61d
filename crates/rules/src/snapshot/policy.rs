//! A compiled limit with its key, cost, tiers, refunds and candidate.

use std::{borrow::Cow, sync::Arc};

use http::HeaderName;
use ipnet::IpNet;
use smallvec::SmallVec;
use tidegate_base::status::StatusSet;
use tidegate_charge::{Key, Limit};
use tidegate_http1::Fields;
use tidegate_identity::{AmbiguousValue, Consumer, KeyPart, KeyPlan, KeySecret, Subject};
use tidegate_usage::RequestMembers;

use super::{
    charge_error::{ChargePlanError, parse_decimal},
    overrides::{AppliedOverride, OverridesAt},
    quota::QuotaShape,
    settled_cost::SettledCost,
};

/// A limit with its key, cost, tiers, refunds and candidate.
#[derive(Debug)]
pub struct LimitPolicy {
    /// The limit, with its own quota.
    pub limit: Arc<Limit>,
    /// The key by which it counts.
    pub key: KeyPlan,
    /// The cost of a request.
    pub cost: Cost,
    /// Other quotas for some callers; the first matching tier applies.
    pub tiers: Vec<Tier>,
    /// The quotas of plans, which precede tiers.
    pub plans: Vec<PlanTier>,
    /// Makes the quotas of overrides, which precede plans.
    pub shape: QuotaShape,
    /// The responses that refund the charge.
    pub refunds: Refunds,
    /// The same limit with another quota, counted separately and never enforced.
    pub candidate: Option<Arc<LimitPolicy>>,
}

/// The responses that refund the charge of their request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refunds {
    /// `refund`: a response with one of these statuses.
    On(StatusSet),
    /// `charge_on`: a response with any other status.
    Except(StatusSet),
}

impl Refunds {
    /// True if a response with `status` refunds the charge.
    pub fn include(self, status: u16) -> bool {
        match self {
            Self::On(statuses) => statuses.contains(status),
            Self::Except(charged) => !charged.contains(status),
        }
    }

    /// True if no response refunds a charge.
    pub fn are_none(self) -> bool {
        matches!(self, Self::On(statuses) if statuses.is_empty())
    }
}

/// The cost of a request, in units of the quota.
#[derive(Clone, Debug)]
pub enum Cost {
    /// A fixed cost.
    Fixed(u64),
    /// The value of a request header; 1 without the header.
    Header {
        /// The header.
        name: HeaderName,
        /// Maximum value; a higher one is an error.
        max: u64,
    },
    /// 1 on admission, corrected to the value of a response header.
    Response {
        /// The header.
        name: HeaderName,
        /// Maximum charge; higher values are lowered to it.
        max: u64,
    },
    /// An estimate, settled when the response ends.
    Settled(Arc<SettledCost>),
}

impl Cost {
    /// True if it is settled when a response ends.
    pub fn is_settled(&self) -> bool {
        matches!(self, Self::Settled(_))
    }
}

/// Another quota for some callers, or no limit. It shares the limit's window and counters.
#[derive(Debug)]
pub struct Tier {
    /// The callers that it applies to.
    pub matches: TierMatch,
    /// The limit with the tier's quota. `None`: it does not apply to these callers.
    pub limit: Option<Arc<Limit>>,
}

/// The quota of a plan's consumers. It shares the limit's window and counters.
#[derive(Debug)]
pub struct PlanTier {
    /// The plan's name.
    pub plan: Box<str>,
    /// What applies to its consumers.
    pub limit: PlanLimit,
}

/// What applies to the consumers of a plan, or to the target of an override.
#[derive(Clone, Debug)]
pub enum PlanLimit {
    /// The limit with another quota.
    Quota(Arc<Limit>),
    /// The limit does not apply.
    Unlimited,
    /// The limit admits none of their requests.
    Blocked,
}

/// The quota of a limit that applies to a caller.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum QuotaChoice {
    /// The limit's own.
    #[default]
    Own,
    /// That of the tier with this index.
    Tier(u16),
    /// That of the plan with this index.
    Plan(u16),
    /// That of an override.
    Override(Arc<AppliedOverride>),
    /// That of the call itself: a descriptor of the rate limit service may have a quota of its own.
    Requested(Arc<RequestedLimit>),
}

/// A limit that a descriptor has of its own.
#[derive(Clone, Debug)]
pub struct RequestedLimit(pub Arc<Limit>);

/// Two are equal if they count in the same records under the same quota.
impl PartialEq for RequestedLimit {
    fn eq(&self, other: &Self) -> bool {
        (&self.0.identity, self.0.quota) == (&other.0.identity, other.0.quota)
    }
}

impl Eq for RequestedLimit {}

/// The callers that a tier applies to.
#[derive(Debug)]
pub enum TierMatch {
    /// Callers whose value of this part is one of these.
    Part(KeyPart, Vec<Box<[u8]>>),
    /// Callers with a verified address in one of these networks.
    Networks(Vec<IpNet>),
}

/// A charge of one request to one limit of its route.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PlannedCharge {
    /// The limit's index in its route.
    pub limit_index: u16,
    /// The key to charge.
    pub key: Key,
    /// The cost, in units of the quota.
    pub cost: u64,
    /// The quota that applies.
    pub quota: QuotaChoice,
    /// The first day of the consumer's months.
    pub billing_day: Option<u8>,
}

/// The planned charges of one request, in the order of the route's limits: one per limit, or one
/// per access token for a limit by token.
pub type PlannedCharges = SmallVec<[PlannedCharge; 2]>;

/// What the planned charges of a request depend on, besides the request.
#[derive(Clone, Copy)]
pub struct ChargeContext<'c> {
    /// The secret of the hashes that limits count by.
    pub secret: KeySecret,
    /// The overrides; `None` if there are none.
    pub overrides: Option<&'c OverridesAt>,
    /// The callers that are charged.
    pub callers: ChargedCallers,
}

impl<'c> ChargeContext<'c> {
    /// The context of a request, which charges the callers that it may.
    pub fn new(secret: KeySecret, overrides: Option<&'c OverridesAt>) -> Self {
        Self { secret, overrides, callers: ChargedCallers::Admissible }
    }
}

/// The callers that are charged.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum ChargedCallers {
    /// Those to which the limit applies and whom it does not block.
    #[default]
    Admissible,
    /// All: what has happened is charged, or given back, whatever a plan or an override says now.
    /// Without another quota, the limit's own applies.
    All,
}

impl LimitPolicy {
    /// Appends the charges of `subject` by this limit to `charges`: one per key, none for a caller
    /// in an unlimited tier. A request with several tokens has several keys. `limit_index` is the
    /// limit's index in its route.
    ///
    /// # Errors
    ///
    /// The cost header is invalid, or a part of the key is ambiguous.
    #[inline]
    pub fn add_charges(
        &self,
        limit_index: usize,
        subject: &Subject<'_>,
        context: ChargeContext<'_>,
        charges: &mut PlannedCharges,
    ) -> Result<(), ChargePlanError> {
        let cost = self.cost.request_cost(subject.headers, subject.body)?;
        self.add_with_cost(limit_index, cost, subject, context, charges)
    }

    /// Like [`LimitPolicy::add_charges`], but ignores the cost in the request's header: for reading
    /// the state without a charge.
    ///
    /// # Errors
    ///
    /// A part of the key is ambiguous.
    pub fn add_status_charges(
        &self,
        limit_index: usize,
        subject: &Subject<'_>,
        context: ChargeContext<'_>,
        charges: &mut PlannedCharges,
    ) -> Result<(), AmbiguousValue> {
        let added = self.add_with_cost(limit_index, self.limit.cost, subject, context, charges);
        match added {
            Err(ChargePlanError::Ambiguous(error)) => Err(error),
            // There is no state to report for a caller that the limit blocks.
            Ok(())
            | Err(
                ChargePlanError::Cost { .. }
                | ChargePlanError::Estimate(_)
                | ChargePlanError::PlanBlocked
                | ChargePlanError::OverrideBlocked,
            ) => Ok(()),
        }
    }

    pub(super) fn add_with_cost(
        &self,
        limit_index: usize,
        cost: u64,
        subject: &Subject<'_>,
        context: ChargeContext<'_>,
        charges: &mut PlannedCharges,
    ) -> Result<(), ChargePlanError> {
        let limit_index = u16::try_from(limit_index).unwrap_or(u16::MAX);
        for subject in &*self.key.subjects(subject)? {
            let key = Key(self.key.key(subject, context.secret)?);
            // Two token sources may carry the same token.
            if charges.iter().any(|other| other.limit_index == limit_index && other.key == key) {
                continue;
            }
            let billing_day = subject.consumer.and_then(|consumer| consumer.billing_day);
            let Some(quota) = self.quota_of(key, subject, context)? else { continue };
            charges.push(PlannedCharge { limit_index, key, cost, quota, billing_day });
        }
        Ok(())
    }

    /// The quota that applies to `subject`, whose key is `key`; `None` if the limit does not apply.
    ///
    /// # Errors
    ///
    /// The limit blocks the caller, or a part that a tier compares is ambiguous.
    #[inline]
    pub(super) fn quota_of(
        &self,
        key: Key,
        subject: &Subject<'_>,
        context: ChargeContext<'_>,
    ) -> Result<Option<QuotaChoice>, ChargePlanError> {
        let quota = self.choice(key, subject, context.overrides)?;
        match self.limit_kind(&quota) {
            _ if context.callers == ChargedCallers::All => Ok(Some(quota)),
            LimitKind::Quota => Ok(Some(quota)),
            LimitKind::Blocked if self.limit.enforce => Err(match quota {
                QuotaChoice::Override(_) => ChargePlanError::OverrideBlocked,
                _ => ChargePlanError::PlanBlocked,
            }),
            LimitKind::Unlimited | LimitKind::Blocked => Ok(None),
        }
    }

    /// What `choice` makes of the limit.
    #[inline]
    pub fn limit_kind(&self, choice: &QuotaChoice) -> LimitKind {
        match choice {
            QuotaChoice::Tier(tier) if self.is_unlimited(*tier) => LimitKind::Unlimited,
            QuotaChoice::Own | QuotaChoice::Tier(_) | QuotaChoice::Requested(_) => LimitKind::Quota,
            QuotaChoice::Plan(plan) => self.plans[usize::from(*plan)].limit.kind(),
            QuotaChoice::Override(applied) => applied.limit.kind(),
        }
    }

    /// The limit with the quota of `choice`; with its own if `choice` has none.
    pub fn limit_with<'a>(&'a self, choice: &'a QuotaChoice) -> &'a Arc<Limit> {
        let other = match choice {
            QuotaChoice::Own => None,
            QuotaChoice::Tier(tier) => {
                self.tiers.get(usize::from(*tier)).and_then(|tier| tier.limit.as_ref())
            }
            QuotaChoice::Plan(plan) => match self.plans.get(usize::from(*plan)) {
                Some(PlanTier { limit: PlanLimit::Quota(limit), .. }) => Some(limit),
                _ => None,
            },
            QuotaChoice::Override(applied) => match &applied.limit {
                PlanLimit::Quota(limit) => Some(limit),
                PlanLimit::Unlimited | PlanLimit::Blocked => None,
            },
            QuotaChoice::Requested(requested) => Some(&requested.0),
        };
        other.unwrap_or(&self.limit)
    }

    /// The limit of a planned charge, with the caller's quota and months.
    pub fn limit_of<'a>(&'a self, planned: &'a PlannedCharge) -> &'a Arc<Limit> {
        self.limit_with(&planned.quota).for_billing_day(planned.billing_day)
    }

    /// True for the candidate of another limit.
    pub fn is_candidate(&self) -> bool {
        // Only the names of candidates have this character.
        self.limit.name().contains('~')
    }

    /// The limit's name; for a candidate, that of its limit.
    pub fn base_name(&self) -> &str {
        let name = self.limit.name();
        name.split_once('~').map_or(name, |(base, _)| base)
    }

    /// True if the limit does not apply to callers in the tier with index `tier`.
    pub fn is_unlimited(&self, tier: u16) -> bool {
        self.tiers.get(usize::from(tier)).is_some_and(|tier| tier.limit.is_none())
    }

    /// The quota that applies to `subject`, whose key is `key`: that of an override, its plan's,
    /// its tier's, or the limit's own.
    #[inline]
    fn choice(
        &self,
        key: Key,
        subject: &Subject<'_>,
        overrides: Option<&OverridesAt>,
    ) -> Result<QuotaChoice, AmbiguousValue> {
        if let Some(overrides) = overrides
            && let Some(applied) = overrides.find(self, key, subject.consumer)
        {
            return Ok(QuotaChoice::Override(applied));
        }
        if self.tiers.is_empty() && self.plans.is_empty() {
            return Ok(QuotaChoice::Own);
        }
        self.configured_choice(subject)
    }

    /// The quota of the plan of `consumer`, if its plan has one for the limit.
    pub fn plan_choice(&self, consumer: Option<Consumer<'_>>) -> Option<QuotaChoice> {
        let plan = consumer?.plan?;
        let index = self.plans.iter().position(|tier| *tier.plan == *plan)?;
        u16::try_from(index).ok().map(QuotaChoice::Plan)
    }

    /// The quota that the configuration gives `subject`.
    ///
    /// # Errors
    ///
    /// A part that a tier compares is ambiguous.
    fn configured_choice(&self, subject: &Subject<'_>) -> Result<QuotaChoice, AmbiguousValue> {
        if let Some(choice) = self.plan_choice(subject.consumer) {
            return Ok(choice);
        }
        for (index, tier) in self.tiers.iter().enumerate() {
            if tier.matches.includes(subject)? {
                return Ok(u16::try_from(index).map_or(QuotaChoice::Own, QuotaChoice::Tier));
            }
        }
        Ok(QuotaChoice::Own)
    }
}

/// A [`PlanLimit`] without its limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LimitKind {
    /// A quota applies.
    Quota,
    /// The limit does not apply.
    Unlimited,
    /// The limit admits no request.
    Blocked,
}

impl PlanLimit {
    fn kind(&self) -> LimitKind {
        match self {
            Self::Quota(_) => LimitKind::Quota,
            Self::Unlimited => LimitKind::Unlimited,
            Self::Blocked => LimitKind::Blocked,
        }
    }
}

impl TierMatch {
    fn includes(&self, subject: &Subject<'_>) -> Result<bool, AmbiguousValue> {
        match self {
            Self::Networks(networks) => {
                let client = subject.client;
                let contains_client = |network: &IpNet| network.contains(&client.ip);
                Ok(client.is_verified() && networks.iter().any(contains_client))
            }
            Self::Part(part, values) => {
                let value: Cow<'_, [u8]> = part.value(subject)?;
                Ok(values.iter().any(|wanted| constant_time_eq(wanted, &value)))
            }
        }
    }
}

/// True if both are equal. The time does not depend on the position of a difference, because values
/// may be secrets.
fn constant_time_eq(one: &[u8], other: &[u8]) -> bool {
    let differences = one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b));
    one.len() == other.len() && differences == 0
}

impl Cost {
    /// The cost to charge on admission of a request with these headers.
    fn request_cost(
        &self,
        headers: &Fields,
        body: Option<&RequestMembers>,
    ) -> Result<u64, ChargePlanError> {
        let (name, max) = match self {
            Self::Fixed(cost) => return Ok(*cost),
            Self::Response { .. } => return Ok(1),
            Self::Settled(settled) => return settled.estimate(headers, body),
            Self::Header { name, max } => (name, *max),
        };
        let mut values = headers.get_all(name);
        let Some(value) = values.next() else { return Ok(1) };
        if values.next().is_some() {
            return Err(AmbiguousValue::Repeated(format!("header {name}")).into());
        }
        let cost = parse_decimal(value);
        let valid = cost.filter(|cost| (1..=max).contains(cost));
        valid.ok_or_else(|| ChargePlanError::Cost { name: name.clone(), max })
    }

    /// True if it depends on the request or its response.
    pub fn is_variable(&self) -> bool {
        !matches!(self, Self::Fixed(_))
    }

    /// The cost of a logged request that was charged `units`; `None` if the cost is fixed.
    pub fn logged(&self, units: u64) -> Option<u64> {
        match self {
            Self::Fixed(_) => None,
            Self::Header { max, .. } | Self::Response { max, .. } => Some(units.min(*max)),
            Self::Settled(settled) => Some(units.min(settled.max)),
        }
    }

    /// The cost that is settled when the response ends; `None` for other costs.
    pub fn settled(&self) -> Option<&Arc<SettledCost>> {
        match self {
            Self::Settled(settled) => Some(settled),
            _ => None,
        }
    }

    /// The cost in the response's header; `None` without a valid value.
    pub fn response_cost(&self, headers: &Fields) -> Option<u64> {
        let Self::Response { name, max } = self else { return None };
        let mut values = headers.get_all(name);
        let value = values.next().filter(|_| values.next().is_none())?;
        let cost = parse_decimal(value)?;
        Some(cost.min(*max))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers(values: &[&str]) -> Fields {
        values.iter().map(|value| ("x-cost", value)).collect()
    }

    fn header() -> Cost {
        Cost::Header { name: HeaderName::from_static("x-cost"), max: 50 }
    }

    #[test]
    fn the_cost_header_must_be_a_whole_number_within_its_bound() {
        for (values, cost) in [
            (&[][..], 1),
            (&["1"], 1),
            (&["50"], 50),
            (&[" 7 "], 7),
            (&["007"], 7),
            (&["7\u{a0}"], 7),
        ] {
            assert_eq!(header().request_cost(&headers(values), None), Ok(cost), "{values:?}");
        }
        for values in [
            &["0"][..],
            &["51"],
            &["-1"],
            &["+1"],
            &["1.0"],
            &["1e1"],
            &[""],
            &["x"],
            &["1 2"],
            &["99999999999999999999999999"],
            &["1", "1"],
        ] {
            assert!(header().request_cost(&headers(values), None).is_err(), "{values:?}");
        }
    }

    #[test]
    fn the_response_header_corrects_the_cost() {
        let cost = Cost::Response { name: HeaderName::from_static("x-cost"), max: 50 };
        assert_eq!(
            cost.request_cost(&headers(&["9"]), None),
            Ok(1),
            "the client's header is ignored"
        );
        for (values, expected) in [
            (&["0"][..], Some(0)),
            (&["9"], Some(9)),
            (&["51"], Some(50)),
            (&[], None),
            (&["99999999999999999999999999"], Some(50)),
            (&["x"], None),
            (&["1", "2"], None),
        ] {
            assert_eq!(cost.response_cost(&headers(values)), expected, "{values:?}");
        }
        assert_eq!(header().response_cost(&headers(&["9"])), None);
    }

    proptest! {
        #[test]
        fn every_number_is_parsed(number: u64) {
            prop_assert_eq!(parse_decimal(number.to_string().as_bytes()), Some(number));
        }

        #[test]
        fn constant_time_eq_is_equality(one: Vec<u8>, other: Vec<u8>) {
            prop_assert_eq!(constant_time_eq(&one, &other), one == other);
            prop_assert!(constant_time_eq(&one, &one));
        }
    }
}
