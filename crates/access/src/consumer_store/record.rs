//! The record of a consumer as JSON, in Redis and in the admin API: the same values as in a file.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_config::{ConsumerConfig, ConsumerKeyConfig, RecordFault, RecordPart, json_error};

use super::redis::MAX_RECORD;
use crate::auth::{ConsumerTable, KeyHash};

/// Maximum number of keys of a consumer.
pub const MAX_KEYS: usize = 64;

/// What a request for a consumer says about one kind of its credentials.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CredentialChange {
    /// The request does not name them: a consumer that exists keeps its own.
    Keep,
    /// The request names them, if only as an empty list or null.
    Replace,
}

/// The record of a consumer as a request has it.
///
/// A request that changes the plan alone must not lock the customer out.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestedConsumer {
    /// The record.
    pub consumer: ConsumerConfig,
    /// Whether `keys` replaces the consumer's keys.
    pub keys: CredentialChange,
    /// Whether `password` replaces the consumer's password.
    pub password: CredentialChange,
}

impl RequestedConsumer {
    /// The record that replaces `before`, or a new one if there was none.
    pub(super) fn merged(&self, before: Option<&ConsumerConfig>) -> ConsumerConfig {
        let mut merged = self.consumer.clone();
        if let Some(before) = before {
            if self.keys == CredentialChange::Keep {
                merged.keys.clone_from(&before.keys);
            }
            if self.password == CredentialChange::Keep {
                merged.password.clone_from(&before.password);
            }
        }
        merged
    }
}

/// Reads the body of a request for a consumer. Hashes are in lower case then.
///
/// # Errors
///
/// What is wrong, and what was expected.
pub fn parse_requested(body: &[u8]) -> Result<RequestedConsumer, String> {
    let consumer = parse_consumer(body)?;
    // The body has just been read as an object.
    let members: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(body).unwrap_or_default();
    let change = |name: &str| {
        if members.contains_key(name) { CredentialChange::Replace } else { CredentialChange::Keep }
    };
    Ok(RequestedConsumer { consumer, keys: change("keys"), password: change("password") })
}

/// Reads the record of a consumer. Hashes are in lower case then.
///
/// # Errors
///
/// What is wrong, and what was expected.
pub fn parse_consumer(body: &[u8]) -> Result<ConsumerConfig, String> {
    // A list would be taken for the values in their order.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err("the body is no record of a consumer: expected an object".to_owned());
    }
    let mut consumer: ConsumerConfig = serde_json::from_slice(body)
        .map_err(|error| format!("the body is no record of a consumer: {}", json_error(&error)))?;
    for key in &mut consumer.keys {
        key.sha256.make_ascii_lowercase();
    }
    check(&consumer)?;
    Ok(consumer)
}

/// A key that is to be added.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RequestedConsumerKey {
    /// Its name.
    pub id: Option<String>,
    /// Its SHA-256, in lower case. `None`: the key is still to be made.
    pub sha256: Option<String>,
    /// When it ceases to be valid.
    pub expires: Option<String>,
}

/// Reads a key from a request, such as `{"id": "2026-12"}`. An empty body asks for a key without a
/// name.
///
/// # Errors
///
/// What is wrong, and what was expected.
pub fn parse_key(body: &[u8]) -> Result<RequestedConsumerKey, String> {
    let expected = "expected `id`, `expires` and `sha256`, each a text and each optional";
    if body.is_empty() {
        return Ok(RequestedConsumerKey::default());
    }
    let fields: BTreeMap<String, Option<String>> =
        serde_json::from_slice(body).map_err(|error| {
            format!("the body is no description of a key: {}; {expected}", json_error(&error))
        })?;
    let mut key = RequestedConsumerKey::default();
    for (name, value) in fields {
        match name.as_str() {
            "id" => key.id = value,
            "sha256" => key.sha256 = value.map(|hash| hash.to_ascii_lowercase()),
            "expires" => key.expires = value,
            _ => return Err(format!("unknown key `{}`; {expected}", name.escape_debug())),
        }
    }
    Ok(key)
}

/// Checks the values of a record.
///
/// # Errors
///
/// What is wrong, and what was expected.
pub(super) fn check(consumer: &ConsumerConfig) -> Result<(), String> {
    if consumer.keys.len() > MAX_KEYS {
        return Err(format!("{} keys; expected at most {MAX_KEYS}", consumer.keys.len()));
    }
    let mut hashes = BTreeSet::new();
    for (index, key) in consumer.keys.iter().enumerate() {
        if !hashes.insert(key.sha256.to_ascii_lowercase()) {
            return Err(format!(
                "`keys[{index}].sha256` is that of another key; expected each key once"
            ));
        }
    }
    let length = text_of(consumer).len();
    if length > MAX_RECORD {
        return Err(format!("the record has {length} bytes; expected at most {MAX_RECORD}"));
    }
    match ConsumerTable::of_record(&consumer.record(), "") {
        Ok(_) => Ok(()),
        Err(faults) => Err(faults.iter().map(describe).collect::<Vec<_>>().join("; ")),
    }
}

fn describe(RecordFault { part, what, expected }: &RecordFault) -> String {
    let place = match part {
        RecordPart::Name => "name".to_owned(),
        RecordPart::Plan => "plan".to_owned(),
        RecordPart::BillingDay => "billing_day".to_owned(),
        RecordPart::Password => "password".to_owned(),
        RecordPart::KeyId(index) => format!("keys[{index}].id"),
        RecordPart::KeyHash(index) => format!("keys[{index}].sha256"),
        RecordPart::KeyExpiry(index) => format!("keys[{index}].expires"),
    };
    format!("`{place}` is wrong: {what}, expected {expected}")
}

/// Reads the record of the consumer called `name` from Redis. `None` if it is malformed, or another
/// one's.
pub(super) fn read_consumer(name: &str, text: &[u8]) -> Option<ConsumerConfig> {
    if text.len() > MAX_RECORD {
        return None;
    }
    parse_consumer(text).ok().filter(|consumer| consumer.name == name)
}

/// The record in one line.
pub(super) fn text_of(consumer: &ConsumerConfig) -> String {
    // Its values are texts, so this cannot fail; an empty text would be no record.
    serde_json::to_string(consumer).unwrap_or_default()
}

/// The hash of a key in a checked record.
pub(super) fn hash_of(key: &ConsumerKeyConfig) -> Option<KeyHash> {
    KeyHash::from_hex(&key.sha256)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hash(key: &str) -> String {
        KeyHash::of(key.as_bytes()).to_string()
    }

    #[test]
    fn a_record_has_the_values_of_a_file() {
        let upper = hash("a").to_uppercase();
        let body = format!(
            r#"{{"name": "acme", "plan": "gold", "keys": [{{"id": "one", "sha256": "{upper}", "expires": "2027-01-01"}}],
                "labels": {{"team": "shop"}}, "disabled": true}}"#
        );
        let own = parse_consumer(body.as_bytes()).unwrap();
        assert_eq!((own.name.as_str(), own.disabled, own.labels.len()), ("acme", true, 1));
        assert_eq!(own.keys[0].sha256, hash("a"));
        let text = text_of(&own);
        assert_eq!(read_consumer("acme", text.as_bytes()), Some(own));
        assert_eq!(read_consumer("other", text.as_bytes()), None, "a record under another name");
        let long = format!("{text}{}", " ".repeat(MAX_RECORD));
        assert_eq!(read_consumer("acme", long.as_bytes()), None);
    }

    #[test]
    fn credentials_that_a_request_does_not_name_are_kept() {
        let before = format!(
            r#"{{"name": "a", "plan": "free", "keys": [{{"sha256": "{}"}}], "password": "$2y$04$ZTWSX.0UDtfHZJGRcCTlB.dkC9j.jI8zkjfa/2ndeFU.GgjBofqQG"}}"#,
            hash("a")
        );
        let before = parse_consumer(before.as_bytes()).unwrap();
        for (body, keys, has_password) in [
            (r#"{"name": "a", "plan": "gold"}"#, 1, true),
            (r#"{"name": "a", "plan": "gold", "keys": []}"#, 0, true),
            (r#"{"name": "a", "plan": "gold", "password": null}"#, 1, false),
        ] {
            let requested = parse_requested(body.as_bytes()).unwrap();
            let merged = requested.merged(Some(&before));
            assert_eq!(merged.plan.as_deref(), Some("gold"), "{body}");
            assert_eq!(
                (merged.keys.len(), merged.password.is_some()),
                (keys, has_password),
                "{body}"
            );
            assert_eq!(requested.merged(None), requested.consumer, "{body}");
        }
    }

    #[test]
    fn faulty_records_are_named() {
        let key = |id: &str| format!(r#"{{"id": "{id}", "sha256": "{}"}}"#, hash(id));
        let keys: Vec<String> = (0..65).map(|number| key(&number.to_string())).collect();
        let keyed = |keys: &str| format!(r#"{{"name": "a", "keys": [{keys}]}}"#);
        for (body, error) in [
            (String::new(), "the body is no record of a consumer"),
            ("[]".to_owned(), "the body is no record of a consumer"),
            ("{}".to_owned(), "the body is no record of a consumer: no `name`"),
            (
                r#"{"name": "a", "nam": 1}"#.to_owned(),
                "the body is no record of a consumer: unknown key `nam`",
            ),
            (
                r#"{"name": "a", "name": "b"}"#.to_owned(),
                "the body is no record of a consumer: duplicate key `name`",
            ),
            (
                r#"{"name": " a"}"#.to_owned(),
                "`name` is wrong: this name of a consumer, expected 1 to 128 printable",
            ),
            (r#"{"name": "a", "password": "hush"}"#.to_owned(), "`password` is wrong"),
            (
                keyed(r#"{"sha256": "0b"}"#),
                "`keys[0].sha256` is wrong: this value, expected the SHA-256",
            ),
            (keyed(&format!("{0}, {0}", key("a"))), "`keys[1].sha256` is that of another key"),
            (
                keyed(&key("a").replace('}', r#", "expires": "soon"}"#)),
                "`keys[0].expires` is wrong: `soon`",
            ),
            (keyed(&keys.join(",")), "65 keys; expected at most 64"),
            (
                format!(r#"{{"name": "a", "labels": {{"a": "{}"}}}}"#, "x".repeat(MAX_RECORD)),
                "the record has 16",
            ),
        ] {
            let found = parse_consumer(body.as_bytes()).unwrap_err();
            assert!(found.starts_with(error), "{body:.80}: {found}");
        }
        assert!(parse_consumer(keyed(&keys[..64].join(",")).as_bytes()).is_ok());
    }

    #[test]
    fn a_key_is_read_from_a_request() {
        assert_eq!(parse_key(b""), Ok(RequestedConsumerKey::default()));
        let upper = hash("a").to_uppercase();
        let own = parse_key(format!(r#"{{"id": "b", "sha256": "{upper}"}}"#).as_bytes()).unwrap();
        assert_eq!(
            (own.id.as_deref(), own.sha256, own.expires),
            (Some("b"), Some(hash("a")), None)
        );
        for (body, error) in [
            (r#"{"key": "secret"}"#, "unknown key `key`; expected `id`"),
            (r#"{"id": 1}"#, "the body is no description of a key: `1`, expected a text"),
            ("[]", "the body is no description of a key"),
        ] {
            let found = parse_key(body.as_bytes()).unwrap_err();
            assert!(found.starts_with(error), "{body}: {found}");
        }
    }

    proptest! {
        #[test]
        fn any_text_in_redis_is_read_without_a_panic(text in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(read_consumer("acme", &text), None);
        }

        #[test]
        fn a_record_is_read_as_it_was_written(
            name in "[^\\p{C}\\p{Z}]{1,40}",
            plan in prop::option::of("\\PC{0,20}"),
            billing_day in prop::option::of(1_u8..=31),
            labels in prop::collection::btree_map("\\PC{0,8}", "\\PC{0,8}", 0..4),
            disabled: bool,
        ) {
            let keys = vec![ConsumerKeyConfig { id: None, sha256: hash(&name), expires: None }];
            let own = ConsumerConfig { name: name.clone(), plan, billing_day, keys, password: None, labels, disabled };
            prop_assert_eq!(check(&own), Ok(()));
            prop_assert_eq!(read_consumer(&name, text_of(&own).as_bytes()), Some(own));
        }
    }
}
