//! [`SettledCost`]: a cost whose estimate is charged before a request, and settled when its
//! response ends.

use std::{collections::BTreeMap, sync::Arc};

use http::HeaderName;
use tidegate_config::{
    ActualConfig, EstimateConfig, FailedConfig, MissingConfig, SettledCostConfig,
};
use tidegate_http1::Fields;
use tidegate_identity::AmbiguousValue;
use tidegate_limit::MAX_UNITS;
use tidegate_usage::{
    CostFormula, CostTerm, Factor, JsonPath, MemberValue, PathSet, Preset, RequestMembers,
    TermAbsence,
};

use super::{
    charge_error::{ChargePlanError, parse_decimal},
    parts::header,
    section::Section,
};

/// A cost that is settled when the response ends.
#[derive(Debug)]
pub struct SettledCost {
    /// What is charged before.
    pub estimate: CostEstimate,
    /// What is charged before a request that lacks the header or the members of `estimate`.
    pub missing_estimate: u64,
    /// What is charged in the end.
    pub actual: ActualCost,
    /// What is charged in the end if the response does not report it.
    pub missing: UnreportedCost,
    /// What is charged in the end if the response is an error that does not report it.
    pub failed: UnreportedCost,
    /// Maximum of both.
    pub max: u64,
}

/// What is charged before a request.
#[derive(Debug, Eq, PartialEq)]
pub enum CostEstimate {
    /// A fixed number of units.
    Units(u64),
    /// The value of a request header.
    Header(HeaderName),
    /// Members of the request's body.
    Json(MemberEstimate),
}

/// What members of a request's body say about its cost: the largest bound, as often as the largest
/// number of choices.
#[derive(Debug, Default, Eq, PartialEq)]
pub struct MemberEstimate {
    /// Each bounds the units of one choice.
    pub bounds: Vec<JsonPath>,
    /// Each is a number of choices that the response has, or that are made for it; 1 without one.
    pub choices: Vec<JsonPath>,
}

impl MemberEstimate {
    /// The estimate for a request with this body, without a maximum. `missing`: the bound of a
    /// choice without a member.
    fn units(&self, body: Option<&RequestMembers>, missing: u64) -> Result<u64, ChargePlanError> {
        let Some(body) = body else { return Ok(missing) };
        let bound = largest(&self.bounds, body)?.unwrap_or(missing);
        Ok(bound.saturating_mul(largest(&self.choices, body)?.unwrap_or(1)))
    }
}

/// The largest of the members at `paths`, at least 1; `None` without any.
fn largest(paths: &[JsonPath], body: &RequestMembers) -> Result<Option<u64>, ChargePlanError> {
    let mut most = None;
    for path in paths {
        match body.get(path) {
            MemberValue::Missing => {}
            MemberValue::Number(number, _) => most = most.max(Some(number.ceil().max(1))),
            _ => return Err(ChargePlanError::Estimate(path.to_string())),
        }
    }
    Ok(most)
}

/// What a response costs that does not report it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum UnreportedCost {
    /// The estimate.
    Estimate,
    /// A fixed number of units.
    Units(u64),
}

impl UnreportedCost {
    /// The fixed number of units.
    pub fn units(self) -> Option<u64> {
        match self {
            Self::Estimate => None,
            Self::Units(units) => Some(units),
        }
    }
}

/// The response whose end settles a cost.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ResponseOutcome {
    /// It has no error status, or the client left before its head.
    Completed,
    /// The upstream's or the gateway's error: a status from 400.
    Failed,
}

impl ResponseOutcome {
    /// The outcome that a response with this status has.
    pub fn of(status: u16) -> Self {
        if status >= 400 { Self::Failed } else { Self::Completed }
    }
}

/// What a response costs.
#[derive(Debug)]
pub enum ActualCost {
    /// The value of a header of the response, which is known before its body.
    Header(HeaderName),
    /// Numbers of its JSON body.
    Json(Arc<PathSet>, CostFormula),
    /// The bytes of its body.
    Bytes,
    /// The milliseconds from the request's head to the last byte.
    DurationMs,
}

impl SettledCost {
    /// The estimate for a request.
    ///
    /// # Errors
    /// The header or the member that has it is no number, or is ambiguous.
    pub fn estimate(
        &self,
        headers: &Fields,
        body: Option<&RequestMembers>,
    ) -> Result<u64, ChargePlanError> {
        let units = match &self.estimate {
            CostEstimate::Units(units) => *units,
            CostEstimate::Header(name) => {
                let mut values = headers.get_all(name);
                let Some(value) = values.next() else { return Ok(self.missing_estimate) };
                if values.next().is_some() {
                    return Err(AmbiguousValue::Repeated(format!("header {name}")).into());
                }
                let invalid = || ChargePlanError::Cost { name: name.clone(), max: self.max };
                let units = parse_decimal(value).filter(|units| (1..=self.max).contains(units));
                return units.ok_or_else(invalid);
            }
            CostEstimate::Json(members) => members.units(body, self.missing_estimate)?,
        };
        Ok(units.clamp(1, self.max))
    }

    /// The final cost of a response that reports `actual`, after `estimate` was charged.
    pub fn settled(&self, actual: Option<u64>, outcome: ResponseOutcome, estimate: u64) -> u64 {
        let unreported = match outcome {
            ResponseOutcome::Completed => self.missing,
            ResponseOutcome::Failed => self.failed,
        };
        actual.or(unreported.units()).map_or(estimate, |units| units.min(self.max))
    }

    /// The cost in the response's header; `None` if it is not in a header, or not there.
    pub fn header_cost(&self, headers: &Fields) -> Option<u64> {
        let ActualCost::Header(name) = &self.actual else { return None };
        let mut values = headers.get_all(name);
        let value = values.next().filter(|_| values.next().is_none())?;
        parse_decimal(value)
    }

    /// The members of the request's body that the estimate reads, if it reads any.
    pub fn estimated_members(&self) -> Option<&MemberEstimate> {
        match &self.estimate {
            CostEstimate::Json(members) => Some(members),
            CostEstimate::Units(_) | CostEstimate::Header(_) => None,
        }
    }
}

/// Compiles the cost of a limit. Reports faults.
pub(super) fn compile(section: &Section<'_>, configured: &SettledCostConfig) -> SettledCost {
    let max = configured.max.unwrap_or(MAX_UNITS);
    let expected = format!("a whole number from 1 to {MAX_UNITS}");
    section.at("max").ensure((1..=MAX_UNITS).contains(&max), &format!("`{max}`"), &expected);
    let max = max.clamp(1, MAX_UNITS);
    let missing = match configured.missing {
        None | Some(MissingConfig::Estimate) => UnreportedCost::Estimate,
        Some(MissingConfig::Units(units)) => UnreportedCost::Units(units),
    };
    let failed = match configured.failed {
        None => UnreportedCost::Units(0),
        Some(FailedConfig::Units(units)) => UnreportedCost::Units(units),
        Some(FailedConfig::Missing) => missing,
    };
    let estimate = estimate(section, configured, max);
    let missing_estimate = missing_estimate(section, configured, &estimate, max);
    SettledCost {
        estimate,
        missing_estimate,
        actual: actual(section, configured),
        missing,
        failed,
        max,
    }
}

fn missing_estimate(
    section: &Section<'_>,
    configured: &SettledCostConfig,
    estimate: &CostEstimate,
    max: u64,
) -> u64 {
    let Some(units) = configured.missing_estimate else { return 1 };
    let at = section.at("missing_estimate");
    if matches!(estimate, CostEstimate::Units(_)) {
        let expected =
            "an `estimate` that a request can lack: json:PATH, header:NAME, or a `preset`";
        at.fault("`missing_estimate` beside an estimate that is a number", expected);
    }
    let expected = format!("a whole number from 1 to {max}");
    at.ensure((1..=max).contains(&units), &format!("`{units}`"), &expected);
    units.clamp(1, max)
}

fn estimate(section: &Section<'_>, configured: &SettledCostConfig, max: u64) -> CostEstimate {
    let at = section.at("estimate");
    match (&configured.estimate, configured.preset) {
        (None, None) => CostEstimate::Units(1),
        (None, Some(preset)) => CostEstimate::Json(MemberEstimate {
            bounds: preset.estimate(),
            choices: preset.choices(),
        }),
        (Some(EstimateConfig::Units(units)), _) => {
            let expected = format!("at most {max}: no request would be admitted");
            at.ensure(*units <= max, &format!("`{units}`"), &expected);
            CostEstimate::Units(*units)
        }
        (Some(EstimateConfig::Header(name)), _) => {
            header(&at, name).map_or(CostEstimate::Units(1), CostEstimate::Header)
        }
        (Some(EstimateConfig::Json(path)), preset) => CostEstimate::Json(MemberEstimate {
            bounds: vec![path.clone()],
            choices: preset.map(Preset::choices).unwrap_or_default(),
        }),
    }
}

fn actual(section: &Section<'_>, configured: &SettledCostConfig) -> ActualCost {
    let SettledCostConfig { actual, weights, preset, .. } = configured;
    match (actual, weights, preset) {
        (Some(_), Some(_), _) => {
            section.at("weights").fault("`weights` beside `actual`", "one of them");
        }
        (Some(_), None, Some(_)) => {
            section.at("preset").fault("`preset` beside `actual`", "one of them");
        }
        (None, weights, Some(preset)) => return of_preset(section, *preset, weights.as_ref()),
        (None, Some(weights), None) => return weighted(section, weights),
        (None, None, None) => {
            let expected = "`actual`, `weights` or `preset`: where the response reports its cost";
            section.fault("a cost that is never settled", expected);
        }
        (Some(ActualConfig::Bytes), None, None) => return ActualCost::Bytes,
        (Some(ActualConfig::DurationMs), None, None) => return ActualCost::DurationMs,
        (Some(ActualConfig::Header(name)), None, None) => {
            if let Some(name) = header(&section.at("actual"), name) {
                return ActualCost::Header(name);
            }
        }
        (Some(ActualConfig::Json(path)), None, None) => {
            if let Some(paths) = PathSet::new(vec![path.clone()]) {
                return ActualCost::Json(Arc::new(paths), CostFormula::single());
            }
        }
    }
    ActualCost::Bytes
}

/// A weighted sum of members.
fn weighted(section: &Section<'_>, weights: &BTreeMap<String, f64>) -> ActualCost {
    let section = section.at("weights");
    let (mut paths, mut terms) = (Vec::new(), Vec::new());
    for (name, number) in weights {
        let at = section.entry(name);
        let path = match name.strip_prefix("json:").unwrap_or(name).parse::<JsonPath>() {
            Ok(path) => path,
            Err(error) => {
                at.fault(format!("`{name}` ({error})"), "a path such as usage.prompt_tokens");
                continue;
            }
        };
        if let Some(factor) = factor(&at, *number) {
            let absence = TermAbsence::Nothing;
            terms.push(CostTerm { alternatives: vec![paths.len()], factor, absence });
            paths.push(path);
        }
    }
    section.ensure(!weights.is_empty(), "no weight", "at least one path with its factor");
    let Some(paths) = PathSet::new(paths) else {
        section.fault(format!("{} paths", weights.len()), "at most 32");
        return ActualCost::Bytes;
    };
    ActualCost::Json(Arc::new(paths), CostFormula { sums: vec![terms] })
}

fn of_preset(
    section: &Section<'_>,
    preset: Preset,
    weights: Option<&BTreeMap<String, f64>>,
) -> ActualCost {
    let section = section.at("weights");
    let factors = weights.map(|weights| {
        for name in weights.keys().filter(|name| !matches!(name.as_str(), "input" | "output")) {
            section.entry(name).fault(format!("`{name}` with `preset`"), "`input` or `output`");
        }
        let named = |name: &str| match weights.get(name) {
            None => Factor::ONE,
            Some(number) => factor(&section.entry(name), *number).unwrap_or(Factor::ONE),
        };
        (named("input"), named("output"))
    });
    match preset.formula(factors) {
        (Some(paths), formula) => ActualCost::Json(Arc::new(paths), formula),
        (None, _) => ActualCost::Bytes,
    }
}

fn factor(at: &Section<'_>, number: f64) -> Option<Factor> {
    let factor = Factor::new(number);
    at.ensure(factor.is_some(), &format!("`{number}`"), "a factor from 0 to 1000000000");
    factor
}
