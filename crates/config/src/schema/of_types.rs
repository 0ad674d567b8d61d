//! The schemas of types whose values have more than one form; the others derive them.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use tidegate_base::priority::Priority;
use tidegate_limit::MAX_UNITS;
use tidegate_scalar::ScalarValue as _;

use crate::{
    access_log::{AccessLogConfig, AccessLogEntry, LogDestination},
    cost::{
        ESTIMATE_SYNTAX, EstimateConfig, FAILED_SYNTAX, FailedConfig, MISSING_SYNTAX,
        MissingConfig, SettledCostConfig,
    },
    limits::{COST_SYNTAX, CostConfig, LimitConfig, RESERVE_RANGE, RESERVE_SYNTAX, Reserve},
    plans::{self, PRIORITY_KEY, PlanConfig, PlanQuota},
    rate::{LimitEntry, Rate},
    rate_limit_service::{DomainLimitConfig, DomainLimitMap, LIMIT_SYNTAX},
    redirect::{self, RedirectHttps},
    route_actions::{MATCH_SYNTAX, MatchValue},
    target::{TargetUrl, WeightedTargetConfig},
    tiers::{self, QUOTA_SYNTAX, TierQuota},
    units::{MAXIMUM_SYNTAX, Maximum},
    window::{START_SYNTAX, WEEKDAYS, WindowStart},
};

/// A rate whose window is a length, not a unit of the calendar.
const ROLLING_RATE: &str = "^[0-9]+/[0-9]+(ms|s|m|h|d)$";

/// Implements `JsonSchema` for a type by a schema, which may use the generator.
macro_rules! impl_schema {
    ($type:ident, $generator:pat => $schema:tt) => {
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema($generator: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    };
}

impl_schema!(RedirectHttps, _ => {
    "description": redirect::SYNTAX,
    "oneOf": [
        {"type": "boolean"},
        {"type": "integer", "minimum": 1, "maximum": u16::MAX},
    ],
});

impl_schema!(MatchValue, _ => {
    "description": MATCH_SYNTAX,
    "oneOf": [{"type": "boolean"}, {"type": "string"}],
});

impl_schema!(PlanConfig, generator => {
    "description": "The quotas of one plan, by limit.",
    "type": "object",
    "properties": {
        PRIORITY_KEY: {
            "description": "How important requests of the plan's consumers are while an upstream with `max_requests`, \
                `max_connections` or `adaptive_concurrency` is full: from `0`, the most important, to `9`. A route's own `priority` wins. \
                Users of a plan with `0` to `4` get a head start in the waiting room.",
            "type": "integer",
            "minimum": 0,
            "maximum": Priority::LOWEST.number(),
            "default": Priority::default().number(),
        },
    },
    "additionalProperties": generator.subschema_for::<PlanQuota>(),
});

impl_schema!(PlanQuota, _ => {
    "description": plans::SYNTAX,
    "examples": [1000],
    "oneOf": [
        {"type": "integer", "minimum": 0, "maximum": MAX_UNITS},
        {"type": "string", "enum": [plans::UNLIMITED]},
        {"type": "string", "pattern": Rate::PATTERN},
    ],
});

impl_schema!(Maximum, _ => {
    "description": MAXIMUM_SYNTAX,
    "oneOf": [
        {"type": "string", "enum": ["off"]},
        {"type": "integer", "minimum": 1, "maximum": u32::MAX},
    ],
});

impl_schema!(EstimateConfig, _ => {
    "description": ESTIMATE_SYNTAX,
    "oneOf": [
        {"type": "integer", "minimum": 1, "maximum": MAX_UNITS},
        {"type": "string", "pattern": "^(json:(\\*\\.)?[^\\s\"*+()=<>,|&\\[\\]]+|header:[!#-'*+.0-9A-Z^-z|~-]+)$"},
    ],
});

impl_schema!(MissingConfig, _ => {
    "description": MISSING_SYNTAX,
    "oneOf": [
        {"type": "integer", "minimum": 0, "maximum": MAX_UNITS},
        {"type": "string", "enum": ["estimate"]},
    ],
});

impl_schema!(FailedConfig, _ => {
    "description": FAILED_SYNTAX,
    "oneOf": [
        {"type": "integer", "minimum": 0, "maximum": MAX_UNITS},
        {"type": "string", "enum": ["missing"]},
    ],
});

impl_schema!(WindowStart, _ => {
    "description": START_SYNTAX,
    "oneOf": [
        {"type": "integer", "minimum": 1, "maximum": 31},
        {"type": "string", "enum": WEEKDAYS.map(|(name, _)| name)},
    ],
});

impl_schema!(CostConfig, generator => {
    "description": COST_SYNTAX,
    "anyOf": [
        {"type": "integer", "minimum": 1, "maximum": MAX_UNITS},
        {"type": "string", "pattern": "^(header|response):[!#-'*+.0-9A-Z^-z|~-]+$"},
        generator.subschema_for::<SettledCostConfig>(),
    ],
});

impl_schema!(Reserve, _ => {
    "description": RESERVE_SYNTAX,
    "oneOf": [
        {"type": "string", "enum": ["off", "auto"]},
        {"type": "integer", "minimum": RESERVE_RANGE.start(), "maximum": RESERVE_RANGE.end()},
    ],
});

impl_schema!(WeightedTargetConfig, generator => {
    "description": format!("{}; or {{url: URL, weight: NUMBER}}", TargetUrl::EXPECTED),
    "examples": [TargetUrl::EXAMPLE],
    "oneOf": [
        generator.subschema_for::<TargetUrl>(),
        {
            "type": "object",
            "properties": {
                "url": generator.subschema_for::<TargetUrl>(),
                "weight": {"type": "integer", "minimum": 0, "maximum": 1000},
            },
            "required": ["url"],
            "additionalProperties": false,
        },
    ],
});

impl_schema!(DomainLimitConfig, generator => {
    "description": LIMIT_SYNTAX,
    "anyOf": [{"type": "string"}, generator.subschema_for::<DomainLimitMap>()],
});

impl_schema!(TierQuota, _ => {
    "description": QUOTA_SYNTAX,
    "examples": [1000],
    "oneOf": [
        {"type": "integer", "minimum": 1, "maximum": MAX_UNITS},
        {"type": "string", "enum": [tiers::UNLIMITED]},
    ],
});

/// The schema of a mapping that may also be written as text.
fn mapping_or_text<T: JsonSchema>(
    generator: &mut SchemaGenerator,
    pattern: &str,
    description: &str,
) -> Schema {
    json_schema!({
        "anyOf": [
            generator.subschema_for::<T>(),
            {"type": "string", "pattern": pattern, "description": description},
        ],
    })
}

impl JsonSchema for AccessLogEntry {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "AccessLogEntry".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let (pattern, description) = (LogDestination::PATTERN, LogDestination::EXPECTED);
        mapping_or_text::<AccessLogConfig>(generator, pattern, description)
    }
}

impl JsonSchema for LimitEntry {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "LimitEntry".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        mapping_or_text::<LimitConfig>(generator, ROLLING_RATE, Rate::EXPECTED)
    }
}
