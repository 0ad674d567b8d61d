//! Checks the texts of an override: in the body of a request, in Redis (both JSON) or from a file.

use std::fmt;

use serde::de::{Deserializer as _, MapAccess, Visitor};
use serde_json::{Map, Number, Value, json};
use tidegate_base::sensitive::holds_key_or_token;
use tidegate_charge::Key;
use tidegate_config::{
    MAX_CONSUMER_NAME, OverrideFault, OverrideField, OverrideFields, PlanQuota, is_consumer_name,
    is_printable, json_error,
};
use tidegate_limit::MAX_UNITS;

use super::record::{Override, OverrideTarget, parse_time, time_text};

/// The longest reason, in characters.
pub const MAX_REASON: usize = 200;
/// The longest name, in characters.
pub const MAX_NAME: usize = MAX_CONSUMER_NAME;
/// The largest number of values of a key in a request.
pub const MAX_KEY_VALUES: usize = 32;

const QUOTA: &str = "a quota such as 5000, or \"5000/1m\" with the limit's own window, \"unlimited\" or \"blocked\"";
const TARGET: &str = "exactly one of `consumer`, `plan` and a key";

/// An override as a request asks for it: its key is not hashed yet.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RequestedOverride {
    /// The override; its target stands for `key` if that is given.
    pub own: Override,
    /// The key in clear, instead of the override's target.
    pub key: Option<RequestedKey>,
}

/// The caller's key in clear, as `/api/limits/{name}` takes it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RequestedKey {
    /// One value for each part of the limit's key.
    pub values: Vec<String>,
    /// The client's address, for a caller whose identifying parts are empty.
    pub client_ip: Option<String>,
}

impl Override {
    /// Checks the texts of a record.
    ///
    /// # Errors
    ///
    /// All faulty values.
    pub fn of_fields(fields: &OverrideFields) -> Result<Self, Vec<OverrideFault>> {
        let mut faults = Vec::new();
        let target = target(fields).unwrap_or_else(|fault| {
            faults.push(fault);
            OverrideTarget::Key(Key(0))
        });
        let own = checked(fields, target, &mut faults);
        if faults.is_empty() { Ok(own) } else { Err(faults) }
    }

    /// Reads what [`Self::to_json`] writes.
    ///
    /// # Errors
    ///
    /// What is wrong, and what was expected.
    pub fn of_json(bytes: &[u8]) -> Result<Self, String> {
        let mut fields = OverrideFields::default();
        for (name, value) in members(bytes)? {
            let field = OverrideField::of_name(&name);
            let field = field.ok_or_else(|| format!("unknown key `{}`", quoted(&name)))?;
            add(&mut fields, field, &value)?;
        }
        Self::of_fields(&fields).map_err(|faults| describe(&faults))
    }

    /// The record in one line of JSON, which is also YAML.
    pub fn to_json(&self) -> String {
        let mut record = Map::new();
        let (kind, value) = self.target.parts();
        record.insert("limit".to_owned(), json!(self.limit));
        record.insert(kind.to_owned(), json!(value));
        record.insert("quota".to_owned(), quota_value(self.quota));
        if let Some(until) = self.until {
            record.insert("until".to_owned(), json!(time_text(until)));
        }
        for (name, text) in [("reason", &self.reason), ("by", &self.by)] {
            if !text.is_empty() {
                record.insert(name.to_owned(), json!(text));
            }
        }
        if let Some(at) = self.set_at {
            record.insert("set".to_owned(), json!(time_text(at)));
        }
        Value::Object(record).to_string()
    }
}

/// A quota as JSON: a number if it is one.
fn quota_value(quota: PlanQuota) -> Value {
    match quota {
        PlanQuota::Units(units) => json!(units),
        PlanQuota::Rate(_) | PlanQuota::Unlimited | PlanQuota::Blocked => json!(quota.to_string()),
    }
}

/// Parses the body of a request, such as `{"limit": "a", "consumer": "acme", "quota": 5000}`.
///
/// # Errors
///
/// What is wrong, and what was expected.
pub fn parse_request(body: &[u8]) -> Result<RequestedOverride, String> {
    let mut fields = OverrideFields::default();
    let (mut values, mut client_ip) = (None, None);
    for (name, value) in members(body)? {
        match (name.as_str(), OverrideField::of_name(&name)) {
            ("key" | "client_ip", _) if value.is_null() => {}
            ("key", _) => ensure_first(&name, values.replace(key_values(&value)?).as_ref())?,
            ("client_ip", _) => {
                let text =
                    value.as_str().ok_or("`client_ip` is not a text; expected an address")?;
                ensure_first(&name, client_ip.replace(text.to_owned()).as_ref())?;
            }
            (_, None | Some(OverrideField::By | OverrideField::Set)) => {
                return Err(format!(
                    "unknown key `{}`; expected `limit`, `consumer`, `plan`, `key`, `client_ip`, `hash`, `quota`, \
                     `until` or `reason`",
                    quoted(&name)
                ));
            }
            (_, Some(field)) => add(&mut fields, field, &value)?,
        }
    }
    let key = match (values, client_ip) {
        (None, None) => None,
        (values, client_ip) => {
            let others = [OverrideField::Consumer, OverrideField::Plan, OverrideField::Hash];
            if others.iter().any(|field| fields.get(*field).is_some()) {
                return Err(format!("`key` or `client_ip` with another target; expected {TARGET}"));
            }
            Some(RequestedKey { values: values.unwrap_or_default(), client_ip })
        }
    };
    let mut faults = Vec::new();
    let target = match &key {
        Some(_) => OverrideTarget::Key(Key(0)),
        None => target(&fields).map_err(|fault| describe(&[fault]))?,
    };
    let own = checked(&fields, target, &mut faults);
    if faults.is_empty() { Ok(RequestedOverride { own, key }) } else { Err(describe(&faults)) }
}

/// The values of `key`: a text, or a list of texts.
fn key_values(value: &Value) -> Result<Vec<String>, String> {
    let expected =
        "`key` is no text; expected a text, or a list with one for each part of the limit's key";
    match value {
        Value::String(text) => Ok(vec![text.clone()]),
        Value::Array(items) if items.len() <= MAX_KEY_VALUES => {
            let texts = items.iter().map(|item| item.as_str().map(str::to_owned));
            texts.collect::<Option<_>>().ok_or_else(|| expected.to_owned())
        }
        _ => Err(expected.to_owned()),
    }
}

fn add(fields: &mut OverrideFields, field: OverrideField, value: &Value) -> Result<(), String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if field == OverrideField::Quota => number_text(number),
        Value::Null => return Ok(()),
        _ if field == OverrideField::Quota => {
            return Err(format!("`quota` is not a number or a text; expected {QUOTA}"));
        }
        _ => return Err(format!("`{}` is not a text; expected a text", field.name())),
    };
    ensure_first(field.name(), fields.set(field, text).as_ref())
}

/// A number as a quota has it: `5e3` and `5000.0` are `5000`.
fn number_text(number: &Number) -> String {
    let whole = number.as_f64().filter(|value| value.fract() == 0.0);
    match whole.filter(|value| number.is_f64() && (1.0..=MAX_UNITS as f64).contains(value)) {
        Some(value) => (value as u64).to_string(),
        None => number.to_string(),
    }
}

fn ensure_first<T>(name: &str, before: Option<&T>) -> Result<(), String> {
    match before {
        None => Ok(()),
        Some(_) => Err(format!("duplicate key `{name}`")),
    }
}

/// The record with `target`; adds the faults of the other values.
fn checked(
    fields: &OverrideFields,
    target: OverrideTarget,
    faults: &mut Vec<OverrideFault>,
) -> Override {
    let limit = fields.get(OverrideField::Limit).unwrap_or_else(|| {
        faults.push(fault(None, "no `limit`", "the name of a limit"));
        ""
    });
    let quota = fields.get(OverrideField::Quota);
    let quota = quota.and_then(PlanQuota::of_override).unwrap_or_else(|| {
        faults.push(match quota {
            Some(text) => fault(OverrideField::Quota, format!("`{}`", quoted(text)), QUOTA),
            None => fault(None, "no `quota`", QUOTA),
        });
        PlanQuota::Blocked
    });
    let mut time = |field| {
        let text = fields.get(field)?;
        let time = parse_time(text);
        if time.is_none() {
            let expected = "a time such as 2026-12-01T00:00:00Z, or a date, before 2200";
            faults.push(fault(field, format!("`{}`", quoted(text)), expected));
        }
        time
    };
    let (until, set_at) = (time(OverrideField::Until), time(OverrideField::Set));
    let reason = fields.get(OverrideField::Reason).unwrap_or_default();
    let by = fields.get(OverrideField::By).unwrap_or_default();
    for (field, text, max) in [
        (OverrideField::Limit, limit, MAX_NAME),
        (OverrideField::Reason, reason, MAX_REASON),
        (OverrideField::By, by, MAX_NAME),
    ] {
        faults.extend(text_fault(field, text, max));
    }
    let (limit, reason, by) = (limit.into(), reason.into(), by.into());
    Override { limit, target, quota, until, reason, by, set_at }
}

fn target(fields: &OverrideFields) -> Result<OverrideTarget, OverrideFault> {
    let value = |field| fields.get(field).map(|text| (field, text));
    let [consumer, plan, hash] =
        [OverrideField::Consumer, OverrideField::Plan, OverrideField::Hash].map(value);
    match (consumer, plan, hash) {
        (Some((field, name)), None, None) | (None, Some((field, name)), None) => {
            if let Some(fault) = text_fault(field, name, MAX_NAME) {
                return Err(fault);
            }
            if name.is_empty() {
                return Err(fault(field, "an empty name", "a name"));
            }
            if !is_consumer_name(name) {
                return Err(fault(
                    field,
                    "a name with white space at an end",
                    "the name without it",
                ));
            }
            Ok(match field {
                OverrideField::Plan => OverrideTarget::Plan(name.into()),
                _ => OverrideTarget::Consumer(name.into()),
            })
        }
        (None, None, Some((field, text))) => {
            let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            let key = is_hex.then(|| u128::from_str_radix(text, 16).ok()).flatten();
            let expected = "the 32 hexadecimal digits that /api/limits and the access log show";
            key.map(|key| OverrideTarget::Key(Key(key)))
                .ok_or_else(|| fault(field, "a malformed `hash`", expected))
        }
        (None, None, None) => Err(fault(None, "no target", TARGET)),
        _ => Err(fault(None, "several targets", TARGET)),
    }
}

/// The fault of a text that is too long, or has characters that a log line would show in another
/// way.
fn text_fault(field: OverrideField, text: &str, max: usize) -> Option<OverrideFault> {
    if holds_key_or_token(text) {
        let what = format!("an API key or a token in `{}`", field.name());
        return Some(fault(
            field,
            what,
            "a text that may be shown: logs and the admin API show it",
        ));
    }
    let is_long = text.chars().count() > max;
    if !is_long && is_printable(text) {
        return None;
    }
    let what = if is_long { "too long a text" } else { "a control or invisible character" };
    let what = format!("{what} in `{}`", field.name());
    Some(fault(field, what, format!("at most {max} characters, in one line")))
}

fn fault(
    field: impl Into<Option<OverrideField>>,
    what: impl Into<String>,
    expected: impl Into<String>,
) -> OverrideFault {
    OverrideFault { field: field.into(), what: what.into(), expected: expected.into() }
}

/// The faults in one sentence.
fn describe(faults: &[OverrideFault]) -> String {
    let sentences = faults.iter().map(|fault| {
        let what = match fault.field {
            Some(field) if !fault.what.contains(field.name()) => {
                format!("`{}` is {}", field.name(), fault.what)
            }
            _ => fault.what.clone(),
        };
        format!("{what}; expected {}", fault.expected)
    });
    sentences.collect::<Vec<_>>().join(". ")
}

/// The beginning of a text, for a message.
fn quoted(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(40).collect()
}

/// Reads the members of a JSON object in their order, duplicates included.
struct RecordVisitor;

impl<'de> Visitor<'de> for RecordVisitor {
    type Value = Vec<(String, Value)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(members)
    }
}

/// The members of a JSON object.
fn members(bytes: &[u8]) -> Result<Vec<(String, Value)>, String> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let members = json.deserialize_map(RecordVisitor).and_then(|members| {
        json.end()?;
        Ok(members)
    });
    members.map_err(|error| json_error(&error))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_config::Rate;
    use tidegate_system::clock::StoreTime;

    use super::*;

    fn own(target: OverrideTarget, quota: PlanQuota) -> Override {
        let (limit, until) = ("each".into(), None);
        Override { limit, target, quota, until, reason: "".into(), by: "".into(), set_at: None }
    }

    #[test]
    fn a_request_names_one_target() {
        let consumer = OverrideTarget::Consumer("acme".into());
        for (body, target, key) in [
            (r#"{"limit":"each","consumer":"acme","quota":7}"#, consumer, None),
            (
                r#"{"limit":"each","plan":"gold","quota":7}"#,
                OverrideTarget::Plan("gold".into()),
                None,
            ),
            (
                r#"{"limit":"each","hash":"0000000000000000000000000000002a","quota":"7"}"#,
                OverrideTarget::Key(Key(42)),
                None,
            ),
            (
                r#"{"limit":"each","key":"a","quota":7e0,"consumer":null,"client_ip":null}"#,
                OverrideTarget::Key(Key(0)),
                Some(RequestedKey { values: vec!["a".into()], client_ip: None }),
            ),
            (
                r#"{"limit":"each","key":["a",""],"client_ip":"::1","quota":7}"#,
                OverrideTarget::Key(Key(0)),
                Some(RequestedKey {
                    values: vec!["a".into(), String::new()],
                    client_ip: Some("::1".into()),
                }),
            ),
            (
                r#"{"limit":"each","key":[],"quota":7}"#,
                OverrideTarget::Key(Key(0)),
                Some(RequestedKey { values: vec![], client_ip: None }),
            ),
        ] {
            let expected = RequestedOverride { own: own(target, PlanQuota::Units(7)), key };
            assert_eq!(parse_request(body.as_bytes()), Ok(expected), "{body}");
        }
    }

    #[test]
    fn faulty_requests_are_refused_with_what_was_expected() {
        let long = "x".repeat(201);
        for (rest, expected) in [
            (String::new(), "no target; expected exactly one of `consumer`, `plan` and a key"),
            (r#","consumer":"a","plan":"b""#.into(), "several targets; expected exactly one"),
            (r#","consumer":"a","key":"b""#.into(), "with another target; expected exactly one"),
            (r#","consumer":"a","consumer":"b""#.into(), "duplicate key `consumer`"),
            (r#","key":"a","key":"b""#.into(), "duplicate key `key`"),
            (r#","consumer":"""#.into(), "`consumer` is an empty name; expected a name"),
            (r#","consumer":"a\u0000b""#.into(), "a control or invisible character in `consumer`"),
            (r#","consumer":["a"]"#.into(), "`consumer` is not a text; expected a text"),
            (r#","consumer":7"#.into(), "`consumer` is not a text; expected a text"),
            (r#","consumer":"a\u200bb""#.into(), "a control or invisible character in `consumer`"),
            (r#","consumer":"tg_0123456789AB""#.into(), "an API key or a token in `consumer`"),
            (r#","consumer":"a","reason":"tg_0123456789AB""#.into(), "an API key or a token in"),
            (r#","plan":" a""#.into(), "a name with white space at an end"),
            (r#","key":7"#.into(), "`key` is no text"),
            (r#","key":["a",7]"#.into(), "`key` is no text"),
            (r#","hash":"12""#.into(), "a malformed `hash`"),
            (
                r#","consumer":"a","until":"soon""#.into(),
                "`until` is `soon`; expected a time such as",
            ),
            (
                format!(r#","consumer":"a","reason":"{long}""#),
                "too long a text in `reason`; expected at most 200",
            ),
            (r#","consumer":"a","by":"me""#.into(), "unknown key `by`; expected `limit`"),
            (r#","consumer":"a","for":"me""#.into(), "unknown key `for`; expected `limit`"),
        ] {
            let body = format!(r#"{{"limit":"each","quota":5{rest}}}"#);
            let error = parse_request(body.as_bytes()).unwrap_err();
            assert!(error.contains(expected), "{rest}: {error}");
        }
        for quota in [
            "0",
            "-1",
            "1.5",
            "9007199254740992",
            "9007199254740993.0",
            "\"007\"",
            "\"lots\"",
            "\"5/m\"",
            "\"\"",
            "true",
        ] {
            let body = format!(r#"{{"limit":"each","consumer":"a","quota":{quota}}}"#);
            let error = parse_request(body.as_bytes()).unwrap_err();
            assert!(error.contains("`quota`"), "{quota}: {error}");
        }
        for body in ["", "[]", "7", "{", "{}x", r#"{"consumer":"a","quota":5}"#] {
            assert!(parse_request(body.as_bytes()).is_err(), "{body}");
        }
    }

    fn any_override() -> impl Strategy<Value = Override> {
        let name = "[a-zA-Z0-9 ${}\"'#:\u{e9}\\\\-]{1,20}";
        let target = prop_oneof![
            any::<u128>().prop_map(|key| OverrideTarget::Key(Key(key))),
            // A name has no white space at an end.
            name.prop_map(|name| OverrideTarget::Consumer(format!("x{name}x").into())),
            name.prop_map(|name| OverrideTarget::Plan(format!("x{name}x").into())),
        ];
        let quota = prop_oneof![
            (1..=tidegate_limit::MAX_UNITS).prop_map(PlanQuota::Units),
            (1..1_000_u64, 1..1_000_u64).prop_map(|(quota, seconds)| {
                let length = tidegate_config::Duration::from_secs(seconds);
                let window = tidegate_config::WindowConfig::Length(length);
                PlanQuota::Rate(Rate { quota, window })
            }),
            Just(PlanQuota::Unlimited),
            Just(PlanQuota::Blocked),
        ];
        let time =
            || prop::option::of((0..7_258_118_400_000_u64).prop_map(StoreTime::from_unix_ms));
        (name, target, quota, time(), name, name, time()).prop_map(
            |(limit, target, quota, until, reason, by, set_at)| Override {
                limit: limit.into(),
                target,
                quota,
                until,
                reason: reason.into(),
                by: by.into(),
                set_at,
            },
        )
    }

    proptest! {
        #[test]
        fn every_record_is_read_as_it_was_written(own in any_override()) {
            let text = own.to_json();
            prop_assert_eq!(Override::of_json(text.as_bytes()), Ok(own.clone()));
            prop_assert!(text.len() < 4096);
            let file = super::super::file::text_of(&[&own], None);
            let read = super::super::file::parse_file("f.yaml", &file);
            let read = read.map_err(|faults| faults.to_string()).map(|content| content.set);
            let mut expected = super::super::OverrideSet::default();
            expected.insert(own);
            prop_assert_eq!(read, Ok(expected));
        }

        #[test]
        fn no_body_makes_the_parser_panic(body in "[{}\\[\\]\":,a-z0-9 ]{0,200}") {
            let _ = parse_request(body.as_bytes());
            let _ = Override::of_json(body.as_bytes());
            let _ = super::super::file::parse_file("f.yaml", &body);
        }
    }
}
