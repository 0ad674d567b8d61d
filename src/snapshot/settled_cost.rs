//! [`SettledCost`]: a cost whose estimate is charged before a request, and settled when its response ends.

use std::{collections::BTreeMap, sync::Arc};

use http::HeaderName;

use super::{
    charge_error::{ChargePlanError, parse_decimal},
    parts::header,
    section::Section,
};
use crate::{
    config::{ActualConfig, EstimateConfig, MissingConfig, SettledCostConfig},
    http1::Fields,
    identity::AmbiguousValue,
    limit::MAX_UNITS,
    usage::{
        CostFormula, CostTerm, Factor, JsonPath, MemberValue, PathSet, Preset, RequestMembers,
        TermAbsence,
    },
};

/// A cost that is settled when the response ends.
#[derive(Debug)]
pub struct SettledCost {
    /// What is charged before.
    pub estimate: CostEstimate,
    /// What is charged in the end.
    pub actual: ActualCost,
    /// What is charged in the end if the response does not report it; `None`: the estimate.
    pub missing: Option<u64>,
    /// Maximum of both.
    pub max: u64,
}

/// What is charged before a request.
#[derive(Debug, Eq, PartialEq)]
pub enum CostEstimate {
    /// A fixed number of units.
    Units(u64),
    /// The value of a request header; 1 without it.
    Header(HeaderName),
    /// The largest of these members of the request's body; 1 without any.
    Json(Vec<JsonPath>),
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
                let Some(value) = values.next() else { return Ok(1) };
                if values.next().is_some() {
                    return Err(AmbiguousValue::Repeated(format!("header {name}")).into());
                }
                let invalid = || ChargePlanError::Cost { name: name.clone(), max: self.max };
                let units = parse_decimal(value).filter(|units| (1..=self.max).contains(units));
                return units.ok_or_else(invalid);
            }
            CostEstimate::Json(paths) => {
                let Some(body) = body else { return Ok(1) };
                let mut most = 1;
                for path in paths {
                    match body.get(path) {
                        MemberValue::Missing => {}
                        MemberValue::Number(number, _) => most = most.max(number.ceil()),
                        _ => return Err(ChargePlanError::Estimate(path.to_string())),
                    }
                }
                most
            }
        };
        Ok(units.clamp(1, self.max))
    }

    /// The final cost of a response that reports `actual`, after `estimate` was charged.
    pub fn settled(&self, actual: Option<u64>, estimate: u64) -> u64 {
        actual.or(self.missing).map_or(estimate, |units| units.min(self.max))
    }

    /// The cost in the response's header; `None` if it is not in a header, or not there.
    pub fn header_cost(&self, headers: &Fields) -> Option<u64> {
        let ActualCost::Header(name) = &self.actual else { return None };
        let mut values = headers.get_all(name);
        let value = values.next().filter(|_| values.next().is_none())?;
        parse_decimal(value)
    }

    /// The members of the request's body that the estimate reads.
    pub fn estimate_paths(&self) -> &[JsonPath] {
        match &self.estimate {
            CostEstimate::Json(paths) => paths,
            _ => &[],
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
        None | Some(MissingConfig::Estimate) => None,
        Some(MissingConfig::Units(units)) => Some(units),
    };
    let estimate = estimate(section, configured, max);
    SettledCost { estimate, actual: actual(section, configured), missing, max }
}

fn estimate(section: &Section<'_>, configured: &SettledCostConfig, max: u64) -> CostEstimate {
    let at = section.at("estimate");
    match (&configured.estimate, configured.preset) {
        (None, None) => CostEstimate::Units(1),
        (None, Some(preset)) => CostEstimate::Json(preset.estimate()),
        (Some(EstimateConfig::Units(units)), _) => {
            let expected = format!("at most {max}: no request would be admitted");
            at.ensure(*units <= max, &format!("`{units}`"), &expected);
            CostEstimate::Units(*units)
        }
        (Some(EstimateConfig::Header(name)), _) => {
            header(&at, name).map_or(CostEstimate::Units(1), CostEstimate::Header)
        }
        (Some(EstimateConfig::Json(path)), _) => CostEstimate::Json(vec![path.clone()]),
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
