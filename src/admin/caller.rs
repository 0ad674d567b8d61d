//! The caller that a query or an override names, by the values of a limit's key or by its hash.

use std::net::IpAddr;

use super::parameters::parse_number;
use crate::{
    charge::Key,
    identity::{KeyInput, KeyInputError, KeyPart, KeySecret},
    snapshot::{LimitPolicy, QuotaChoice, Snapshot},
};

/// The caller whose counter is shown or reset.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct CallerQuery {
    pub(super) key: Key,
    /// That of the tier in the query, or the limit's own.
    pub(super) quota: QuotaChoice,
    /// The name of the caller's consumer, if the query has it.
    pub(super) consumer: Option<String>,
}

/// The caller in `parameters`, or the detail of the error.
pub(super) fn parse_caller(
    parameters: &[(String, String)],
    policy: &LimitPolicy,
    snapshot: &Snapshot,
    secret: KeySecret,
) -> Result<CallerQuery, String> {
    let (mut values, mut hash, mut client_ip, mut tier) = (Vec::new(), None, None, None);
    let mut consumer = None;
    for (name, value) in parameters {
        let before = match name.as_str() {
            "key" => {
                values.push(value.as_str());
                None
            }
            "hash" => hash.replace(value.as_str()),
            "client_ip" => client_ip.replace(value.as_str()),
            "tier" => tier.replace(value.as_str()),
            "consumer" => consumer.replace(value.as_str()),
            _ => {
                let what =
                    "unknown parameter; expected `key`, `hash`, `client_ip`, `consumer` or `tier`";
                return Err(what.to_owned());
            }
        };
        if before.is_some() {
            return Err(format!("`{name}` is given more than once; expected it once"));
        }
    }
    let key = match hash {
        Some(_) if !values.is_empty() || client_ip.is_some() => {
            return Err(
                "`hash` together with `key` or `client_ip`; expected `hash` alone".to_owned()
            );
        }
        Some(hash) => {
            Key(parse_hash(hash).ok_or("`hash` is malformed; expected 32 hexadecimal digits")?)
        }
        None if values.is_empty() && client_ip.is_some() && !policy.key.0.is_empty() => {
            let keys = "key=&".repeat(policy.key.0.len());
            return Err(format!(
                "`client_ip` without `key`; expected also an empty `key` for each part of the limit's key: \
                 {keys}client_ip=192.0.2.1"
            ));
        }
        None if client_ip.is_some() && policy.key.0.is_empty() => {
            let what =
                "`client_ip` is given, but this limit counts all callers together; expected none";
            return Err(what.to_owned());
        }
        None => caller_key(&values, client_ip, policy, snapshot, secret)?,
    };
    let tier = tier.map(|tier| parse_tier(tier, policy)).transpose()?;
    let quota = tier.map_or(QuotaChoice::Own, QuotaChoice::Tier);
    // A key by consumer names it.
    let part = policy.key.0.iter().position(|part| *part == KeyPart::Consumer);
    let named = consumer.or_else(|| values.get(part?).copied()).filter(|name| !name.is_empty());
    Ok(CallerQuery { key, quota, consumer: named.map(str::to_owned) })
}

/// The key of the caller with these values under the limit of `policy`, or the detail of the error.
pub(super) fn caller_key(
    values: &[&str],
    client_ip: Option<&str>,
    policy: &LimitPolicy,
    snapshot: &Snapshot,
    secret: KeySecret,
) -> Result<Key, String> {
    if client_ip.is_some_and(|text| text.parse::<IpAddr>().is_err()) {
        return Err("`client_ip` is not an address; expected one such as 192.0.2.1".to_owned());
    }
    let identity = &snapshot.identity;
    let input = KeyInput {
        values,
        client_ip,
        token_sources: &identity.token,
        ipv6_prefix: identity.ipv6_prefix,
    };
    let key = policy.key.key_of_input(&input, secret);
    key.map(Key).map_err(|error| describe_input_error(error, policy, values.len()))
}

/// Parses a key's hash, written as in Redis.
fn parse_hash(text: &str) -> Option<u128> {
    let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u128::from_str_radix(text, 16).ok())?
}

fn parse_tier(text: &str, policy: &LimitPolicy) -> Result<u16, String> {
    let tier = parse_number(text).filter(|tier| *tier < policy.tiers.len());
    let tier = tier.and_then(|tier| u16::try_from(tier).ok());
    if tier.is_some_and(|tier| policy.is_unlimited(tier)) {
        return Err("callers of this `tier` are not limited; expected another `tier`".to_owned());
    }
    tier.ok_or_else(|| match policy.tiers.len() {
        0 => "`tier` is given, but the limit has no tiers; expected no `tier`".to_owned(),
        count => format!("the limit has no such `tier`; expected 0 to {}", count - 1),
    })
}

/// The detail for values that identify no caller. `count` is the number of `key` parameters.
fn describe_input_error(error: KeyInputError, policy: &LimitPolicy, count: usize) -> String {
    let parts: Vec<String> = policy.key.0.iter().map(ToString::to_string).collect();
    match error {
        KeyInputError::Count if parts.is_empty() => {
            format!(
                "`key` has {count} values; expected none: this limit counts all callers together"
            )
        }
        KeyInputError::Count if parts == ["client_ip"] && count == 0 => {
            "`key` has no value; expected the caller's address: the limit's key is `client_ip`".into()
        }
        KeyInputError::Count => format!(
            "`key` has {count} values; expected {}, in this order: {}",
            parts.len(),
            parts.join(", ")
        ),
        KeyInputError::Address => {
            "a `key` or `client_ip` is not an address; expected one such as 192.0.2.1".into()
        }
        KeyInputError::Credentials => {
            "malformed credentials; expected the token as in the request's header".into()
        }
        KeyInputError::Empty => {
            "each `key` that identifies a caller is empty, and such callers are counted by their address; expected \
                         `client_ip` in addition, or another `key`"
                .to_owned()
        }
    }
}
