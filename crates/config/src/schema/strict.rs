//! Constraints that the schema for editors adds to the types: ranges of durations and sizes as
//! patterns, names of entries, non-empty lists, and keys that exclude each other. `check` refuses
//! the same values, and values that contradict each other, which a schema cannot compare.

use serde_json::{Map, Value, json};

use crate::pattern::{RATE_WINDOWS, amounts_pattern, range_pattern};
use crate::units::{DURATION_UNITS, SIZE_UNITS, amount};

/// Names of limits and upstreams.
const NAME: &str = "^[A-Za-z0-9_.-]{1,64}$";
/// A port, at least 1.
const PORT: &str =
    "0*([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])";
/// An IPv4 address.
const IPV4: &str = "(([0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])\\.){3}([0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])";
/// An IPv6 address, roughly.
const IPV6: &str = "[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*";
/// A server's name.
const SERVER: &str = "[A-Za-z0-9_.-]+";
/// The name of a header field.
const TOKEN: &str = "^[!#$%&'*+.0-9A-Z^_`a-z|~-]+$";
/// A literal character of a path pattern, or a doubled brace.
const PATH_TEXT: &str = "([!$%&'()*+,.0-9:=@A-Z_a-z~\"|^`\\[\\]-]|\\{\\{|\\}\\})";

/// Lists that need at least one item: a definition, and its key.
const NOT_EMPTY: [(&str, &str); 18] = [
    ("LimitConfig", "charge_on"),
    ("ApiKeyConfig", "from"),
    ("JwtConfig", "audiences"),
    ("JwtConfig", "algorithms"),
    ("AccessLogConfig", "fields"),
    ("ListenerTls", "certificates"),
    ("Tls", "certificates"),
    ("ProxyProtocol", "from"),
    ("Sentinel", "nodes"),
    ("TierMatchConfig", "values"),
    ("HealthCheck", "status"),
    ("RouteConfig", "status"),
    ("RouteConfig", "allow"),
    ("Cors", "origins"),
    ("Cors", "methods"),
    ("Compress", "encodings"),
    ("Compress", "types"),
    ("Redis", "shards"),
];

/// Lists whose items must be unique.
const UNIQUE: [(&str, &str); 9] = [
    ("ApiKeyConfig", "from"),
    ("JwtConfig", "algorithms"),
    ("RouteConfig", "auth"),
    ("AccessLogConfig", "fields"),
    ("LimitConfig", "key"),
    ("RouteConfig", "limits"),
    ("RouteConfig", "status"),
    ("RouteMatch", "methods"),
    ("Compress", "encodings"),
];

/// Definitions that need exactly one of the listed keys.
const ONE_OF: [(&str, &[&str]); 6] = [
    ("AuthMethodConfig", &["api_key", "basic", "certificate", "forward", "jwt"]),
    ("JwtConfig", &["jwks", "secret"]),
    ("UpstreamConfig", &["targets", "respond"]),
    ("RouteConfig", &["upstream", "redirect", "respond", "status", "decide"]),
    ("ErrorBodyConfig", &["file", "body"]),
    ("Redis", &["shards", "cluster", "sentinel"]),
];

/// Mappings whose keys are names of header fields.
const HEADER_NAMES: [(&str, &str); 5] = [
    ("HeaderRulesConfig", "set"),
    ("HeaderRulesConfig", "add"),
    ("HeaderRulesConfig", "replace"),
    ("RouteMatch", "headers"),
    ("Traces", "headers"),
];

/// Adds the constraints to the schema of the configuration.
pub(super) fn tighten(schema: &mut Value) {
    let definitions = schema["$defs"].clone();
    tighten_amounts(schema, &definitions);
    for name in ["auth", "limits", "plans", "upstreams"] {
        schema["properties"][name]["propertyNames"] = json!({"pattern": NAME});
    }
    let rate = format!(
        "^0*({})/({})$",
        range_pattern(1, u32::MAX.into()),
        amounts_pattern(RATE_WINDOWS, &DURATION_UNITS)
    );
    schema["properties"]["limits"]["additionalProperties"]["anyOf"][1]["pattern"] = rate.into();
    schema["properties"]["routes"]["minItems"] = 1.into();
    let definitions = &mut schema["$defs"];
    for (definition, key) in NOT_EMPTY {
        definitions[definition]["properties"][key]["minItems"] = 1.into();
    }
    for (definition, key) in UNIQUE {
        definitions[definition]["properties"][key]["uniqueItems"] = true.into();
    }
    for (definition, key) in HEADER_NAMES {
        definitions[definition]["properties"][key]["propertyNames"] = json!({"pattern": TOKEN});
    }
    for (definition, keys) in ONE_OF {
        let set: Vec<Value> = keys.iter().map(|key| is_set(key)).collect();
        definitions[definition]["allOf"] = json!([{"oneOf": set}]);
    }
    let both = json!({"allOf": [is_set("path"), is_set("path_prefix")]});
    definitions["RouteMatch"]["not"] = both;
    definitions["RouteMatch"]["properties"]["query"]["propertyNames"] = json!({"minLength": 1});
    definitions["HeaderRulesConfig"]["properties"]["remove"]["items"]["pattern"] = TOKEN.into();
    definitions["LimitConfig"]["allOf"] = json!([
        only_with("max_wait", "algorithm", "leaky_bucket"),
        only_with("max_queue", "algorithm", "leaky_bucket"),
    ]);
    let with_hash =
        json!({"not": {"properties": {"balance": {"const": "hash"}}, "required": ["balance"]}});
    let hash = json!({"anyOf": [with_hash, is_set("hash_key")]});
    for rule in [only_with("hash_key", "balance", "hash"), hash] {
        definitions["UpstreamConfig"]["allOf"]
            .as_array_mut()
            .into_iter()
            .for_each(|all| all.push(rule.clone()));
    }
    let combined = json!({"properties": {"format": {"const": "combined"}}, "required": ["format"]});
    definitions["AccessLogConfig"]["not"] = json!({"allOf": [combined, is_set("fields")]});
    tighten_texts(definitions);
}

/// Replaces the patterns of values of one form.
fn tighten_texts(definitions: &mut Value) {
    let address = format!("({IPV4}|\\[{IPV6}\\])");
    let listen = format!("^({address}|localhost|):(0+|{PORT})$");
    for (definition, pattern) in [
        ("ListenAddress", listen),
        ("Address", format!("^{address}:(0+|{PORT})$")),
        (
            "Cidr",
            format!(
                "^({IPV4}(/0*([0-9]|[12][0-9]|3[0-2]))?|{IPV6}(/0*([0-9]|[1-9][0-9]|1[01][0-9]|12[0-8]))?)$"
            ),
        ),
        (
            "TargetUrl",
            format!(
                "^(https?://({SERVER}|\\[{IPV6}\\])(:{PORT})?/?|unix:/.*|srvs?://[A-Za-z0-9_-]*\\.{SERVER}/?)$"
            ),
        ),
    ] {
        definitions[definition]["pattern"] = pattern.into();
    }
    let some = "[^\\s]";
    for (definition, key, pattern) in [
        ("RouteMatch", "host", host_pattern()),
        ("RouteMatch", "path", path_pattern("\\{\\*[^{}*]+\\}")),
        ("RouteMatch", "path_prefix", prefix_pattern()),
        ("RouteConfig", "strip_prefix", "^(/[^/?#{}\\s]+)+/?$|^/$".to_owned()),
        ("RedirectConfig", "to", redirect_pattern().to_owned()),
        ("HealthCheck", "path", "^/".to_owned()),
        ("ErrorBodyConfig", "content_type", some.to_owned()),
        ("FixedResponseConfig", "content_type", some.to_owned()),
        ("HealthCheck", "host", "^[^\\s/?#@]+$".to_owned()),
        ("RouteConfig", "rewrite", "^/[^\\s?#<>\\\\`]*$".to_owned()),
        ("Traces", "service_name", some.to_owned()),
        ("JwtConfig", "issuer", "^.+$".to_owned()),
        ("Sentinel", "master", NAME.to_owned()),
    ] {
        definitions[definition]["properties"][key]["pattern"] = pattern.into();
    }
    for key in ["headers", "expose"] {
        let names = &mut definitions["Cors"]["properties"][key]["items"]["pattern"];
        *names = TOKEN.into();
    }
    let printable = "^[^\\u0000-\\u001f\\u007f]*$";
    for key in ["set", "add"] {
        let values =
            &mut definitions["HeaderRulesConfig"]["properties"][key]["additionalProperties"];
        values["pattern"] = printable.into();
    }
    for key in ["pattern", "with"] {
        definitions["HeaderReplacementConfig"]["properties"][key]["pattern"] = printable.into();
    }
    definitions["Compress"]["properties"]["types"]["items"]["pattern"] =
        "^[^\\s/;,*]+/([^\\s/;,*]+|\\*)$".into();
    for (definition, key, statuses) in [
        ("RedirectConfig", "status", &[301, 302, 303, 307, 308][..]),
        ("DecideConfig", "refuse_status", &[403, 429]),
    ] {
        let status = &mut definitions[definition]["properties"][key];
        let kept = ["default", "description"].map(|key| (key.to_owned(), status[key].clone()));
        *status = json!({"type": "integer", "enum": statuses});
        status.as_object_mut().into_iter().for_each(|status| status.extend(kept.clone()));
    }
}

fn host_pattern() -> String {
    format!("^(\\*|(\\*\\.)?[A-Za-z0-9_-]+(\\.[A-Za-z0-9_-]+)*\\.?|\\[{IPV6}\\])$")
}

/// Non-empty segments, each with at most one parameter; the last one may be empty or end in `rest`.
fn path_pattern(rest: &str) -> String {
    let segment = segment_pattern();
    format!("^(/{segment})*(/|/{PATH_TEXT}*{rest})?$")
}

fn prefix_pattern() -> String {
    format!("^(/|(/{})+)$", segment_pattern())
}

fn segment_pattern() -> String {
    let name = "\\{[^{}*]+\\}";
    format!("({PATH_TEXT}+({name}{PATH_TEXT}*)?|{name}{PATH_TEXT}*)")
}

fn redirect_pattern() -> &'static str {
    "^((https?|\\{scheme\\})://[^/?#\\s<>\"\\\\`][^\\s<>\"\\\\`]*|/|/[^/\\s<>\"\\\\`][^\\s<>\"\\\\`]*|\\{path\\}[^\\s<>\"\\\\`]*)$"
}

/// A schema that requires `key` to have a value.
fn is_set(key: &str) -> Value {
    json!({
        "required": [key],
        "properties": {key: {"not": {"anyOf": [{"type": "null"}, {"type": "array", "maxItems": 0}]}}},
    })
}

/// Allows `key` only if `other` is `value` or a reference.
fn only_with(key: &str, other: &str, value: &str) -> Value {
    let allowed = json!({
        "required": [other],
        "properties": {other: {"anyOf": [{"const": value}, {"pattern": "\\$\\{"}]}},
    });
    json!({"anyOf": [{"not": is_set(key)}, allowed]})
}

/// Replaces the patterns of durations and sizes with patterns of their ranges.
fn tighten_amounts(node: &mut Value, definitions: &Value) {
    match node {
        Value::Object(keywords) => {
            if ["x-minimum", "x-maximum"].iter().any(|key| keywords.contains_key(*key)) {
                replace_range(keywords, definitions);
            }
            keywords.values_mut().for_each(|value| tighten_amounts(value, definitions));
        }
        Value::Array(values) => {
            for value in values {
                tighten_amounts(value, definitions);
            }
        }
        _ => {}
    }
}

/// Replaces a range with its pattern. A reference to a definition becomes a copy of it.
fn replace_range(keywords: &mut Map<String, Value>, definitions: &Value) {
    let optional = keywords.get("anyOf").and_then(|choices| choices.get(0)).cloned();
    let reference = keywords.get("$ref").or_else(|| optional.as_ref()?.get("$ref"));
    let name = reference.and_then(|reference| reference.as_str()?.rsplit('/').next());
    let base = name.map(|name| definitions[name].clone());
    let bound = |key: &str| {
        let own = keywords.get(key).or_else(|| base.as_ref()?.get(key));
        own.and_then(|own| amount(own.as_str()?))
    };
    let (minimum, maximum) = (bound("x-minimum").unwrap_or(0), bound("x-maximum"));
    let text = base.as_ref().map_or_else(|| keywords.get("pattern"), |base| base.get("pattern"));
    let Some(text) = text.and_then(Value::as_str) else { return };
    let units = if text.contains("KiB") { &SIZE_UNITS[..] } else { &DURATION_UNITS[..] };
    let words = match text {
        text if text.contains("off") => "off|",
        text if text.contains("month") => "hour|day|week|month|",
        _ => "",
    };
    let maximum = maximum.unwrap_or(u64::MAX);
    let pattern = format!("^({words}{})$", amounts_pattern((minimum, maximum), units));
    let schema = json!({"type": "string", "pattern": pattern});
    if optional.is_some() {
        keywords.insert("anyOf".to_owned(), json!([schema, {"type": "null"}]));
    } else {
        keywords.remove("$ref");
        keywords.insert("type".to_owned(), "string".into());
        keywords.insert("pattern".to_owned(), pattern.into());
    }
}
