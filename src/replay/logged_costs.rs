//! [`LoggedCosts`]: the field `cost` of an access line.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, Visitor},
};
use serde_json::Value;

use crate::limit::MAX_UNITS;

/// What limits have charged for a request in the end, by their names; empty if the line does not
/// show it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LoggedCosts<'l>(Vec<(Cow<'l, str>, u64)>);

impl LoggedCosts<'_> {
    /// The units that the limit `name` has charged; of a repeated name, the last.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.0.iter().rev().find(|(limit, _)| limit == name).map(|(_, units)| *units)
    }

    /// True if `value` is a valid field `cost`.
    pub(super) fn is_valid(value: &Value) -> bool {
        let is_cost = |value: &Value| value.as_u64().is_some_and(|units| units <= MAX_UNITS);
        value.as_object().is_some_and(|costs| costs.values().all(is_cost))
    }
}

impl<'de: 'l, 'l> Deserialize<'de> for LoggedCosts<'l> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(CostsVisitor)
    }
}

/// A limit's name, borrowed from the line if it has no escapes.
#[derive(Deserialize)]
struct LimitName<'l>(#[serde(borrow)] Cow<'l, str>);

struct CostsVisitor;

impl<'l> Visitor<'l> for CostsVisitor {
    type Value = LoggedCosts<'l>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("costs by limit")
    }

    fn visit_map<M: MapAccess<'l>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut costs = LoggedCosts::default();
        while let Some((LimitName(limit), units)) = map.next_entry::<LimitName<'l>, u64>()? {
            if units > MAX_UNITS {
                let unexpected = de::Unexpected::Unsigned(units);
                return Err(de::Error::invalid_value(unexpected, &"at most 2^53 - 1"));
            }
            costs.0.push((limit, units));
        }
        Ok(costs)
    }
}
