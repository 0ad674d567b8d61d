//! The bodies of requests, which exist for their schemas alone: handlers parse them themselves, with
//! faults in our words.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use crate::{
    config::{self, LastYear, PlanQuota, consumer_name_pattern, printable_pattern},
    limit::MAX_UNITS,
    overrides::{MAX_KEY_VALUES, MAX_NAME, MAX_REASON},
    telemetry::LOG_LEVELS,
};

/// The pattern of the hash of a key.
pub(super) const HASH: &str = "^[0-9A-Fa-f]{32}$";

/// The schema of an IP address.
pub(super) fn address_schema() -> Value {
    let address = |format: &str| json!({ "type": "string", "format": format });
    json!({ "anyOf": [address("ipv4"), address("ipv6")] })
}

/// A consumer, whose schema the configuration has: its types derive one only in tests of their own.
pub(super) fn consumer(generator: &mut SchemaGenerator) -> Schema {
    for name in ["ConsumerConfig", "ConsumerKeyConfig"] {
        let definition = config::schema()["$defs"][name].to_string();
        let definition = definition.replace("#/$defs/", "#/components/schemas/");
        let definition = serde_json::from_str(&definition).expect("JSON");
        generator.definitions_mut().insert(name.to_owned(), definition);
    }
    Schema::new_ref("#/components/schemas/ConsumerConfig".to_owned())
}

/// The body of a request for a key.
#[expect(dead_code, reason = "only its schema is used")]
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct NewKey {
    /// Name of the key, for operators: at most 64 printable characters.
    #[schemars(length(max = 64), extend("pattern" = printable_pattern()))]
    id: Option<String>,
    /// SHA-256 of a key that exists. Without it, a key is made.
    #[schemars(regex(pattern = "^[0-9A-Fa-f]{64}$"))]
    sha256: Option<String>,
    /// When it ceases to be valid, such as `2027-01-01T00:00:00Z` or `2027-01-01`.
    #[schemars(extend("pattern" = LastYear::OF_KEYS.pattern()))]
    expires: Option<String>,
}

/// The body of `PUT /api/overrides`: a limit, one target, and a quota.
#[expect(dead_code, reason = "only its schema is used")]
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields, extend("oneOf" = targets()))]
pub(super) struct NewOverride {
    /// The name of a limit.
    #[schemars(length(max = MAX_NAME), extend("pattern" = printable_pattern()))]
    limit: String,
    /// A consumer as the target.
    #[schemars(length(min = 1, max = MAX_NAME), extend("pattern" = consumer_name_pattern()))]
    consumer: Option<String>,
    /// All consumers of a plan as the target.
    #[schemars(length(min = 1, max = MAX_NAME), extend("pattern" = consumer_name_pattern()))]
    plan: Option<String>,
    /// A caller as the target, by the values of the limit's key: a text, or one for each part of
    /// the key.
    #[schemars(default, schema_with = "key_schema")]
    key: Option<Value>,
    /// The client's address, if all values of `key` that identify a caller are empty.
    #[schemars(default, schema_with = "optional_address")]
    client_ip: Option<String>,
    /// A caller as the target, by the hash of its key.
    #[schemars(extend("pattern" = HASH))]
    hash: Option<String>,
    /// A number, or a number with the limit's own window such as `5000/1m`, `unlimited` or
    /// `blocked`.
    #[schemars(schema_with = "quota_schema")]
    quota: Value,
    /// When it ends, such as `2026-12-01T00:00:00Z`, or a date; without it, it has no end.
    #[schemars(extend("pattern" = LastYear::OF_OVERRIDES.pattern()))]
    until: Option<String>,
    /// Why, for the log and the list.
    #[schemars(length(max = MAX_REASON), extend("pattern" = printable_pattern()))]
    reason: Option<String>,
}

/// The targets, each without the others; null is the same as no value.
fn targets() -> Value {
    let targets = ["consumer", "plan", "hash", "key"].map(|target| {
        let mut other = Map::new();
        for name in ["consumer", "plan", "hash", "key", "client_ip"] {
            if name != target && !(target == "key" && name == "client_ip") {
                other.insert(name.to_owned(), json!({ "type": "null" }));
            }
        }
        other.insert(target.to_owned(), json!({ "type": ["string", "array"] }));
        json!({ "required": [target], "properties": other })
    });
    targets.to_vec().into()
}

fn key_schema(_: &mut SchemaGenerator) -> Schema {
    let text = json!({ "type": "string" });
    let list = json!({ "type": "array", "items": text, "maxItems": MAX_KEY_VALUES });
    json_schema!({ "oneOf": [text, list, { "type": "null" }] })
}

fn optional_address(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "anyOf": [address_schema(), { "type": "null" }] })
}

fn quota_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "oneOf": [
            { "type": "integer", "minimum": 1, "maximum": MAX_UNITS },
            { "type": "string", "pattern": PlanQuota::override_pattern() },
        ]
    })
}

/// The body of `PUT /api/throttle`: at least one of its members.
#[expect(dead_code, reason = "only its schema is used")]
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields, extend("minProperties" = 1))]
pub(super) struct ModeBody {
    /// `auto` by the number of active users, `on` always, `off` never.
    #[schemars(default, with = "String", extend("enum" = ["auto", "on", "off"]))]
    mode: Option<&'static str>,
    /// `open`, or `closed`: users get places in the waiting room, and none of them is admitted.
    #[schemars(default, with = "String", extend("enum" = ["open", "closed"]))]
    waiting_room: Option<&'static str>,
}

/// The body of `PUT /api/log_level`.
#[expect(dead_code, reason = "only its schema is used")]
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct NewLogLevel {
    /// A level, or levels of modules such as `info,tidegate_store=debug`.
    #[schemars(extend("pattern" = filter_pattern()))]
    level: String,
}

/// The pattern of filters. Levels may have capital letters.
fn filter_pattern() -> String {
    let any_case = |level: &str| {
        let letters = level.chars().map(|char| format!("[{}{char}]", char.to_ascii_uppercase()));
        letters.collect::<Vec<_>>().concat()
    };
    let level = LOG_LEVELS.map(any_case).join("|");
    let part = format!("([A-Za-z0-9_:]+=)?({level})");
    format!("^{part}(,{part})*$")
}
