//! [`ClaimRules`]: what the claims of a verified token must be, and what is kept of them.

use std::sync::Arc;

use tidegate_base::time::{Millis, StoreTime, UnixSeconds};
use tidegate_config::is_consumer_name;
use tidegate_identity::TokenClaims;

use super::json::{JsonObject, JsonValue};
use crate::auth::consumers::prefixed_name;

/// The end of the year 9999: a later expiry is a mistake, such as milliseconds.
const MAX_TIME: UnixSeconds = UnixSeconds::from_secs(253_402_300_799);

/// What the claims of a token must be.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct ClaimRules {
    /// The issuer.
    pub issuer: Box<str>,
    /// The audiences, one of which the token must name.
    pub audiences: Box<[Box<str>]>,
    /// The tolerated difference of clocks.
    pub leeway: Millis,
    /// The claim that names the consumer.
    pub consumer: Box<str>,
    /// The text before the consumer's name.
    pub prefix: Box<str>,
    /// The claim that names its plan.
    pub plan: Option<Box<str>>,
    /// The plans; another name is no plan.
    pub plans: Box<[Box<str>]>,
    /// The claims that must have values.
    pub required: Box<[RequiredClaim]>,
    /// The names of the claims that the configuration uses, without duplicates.
    pub kept: Box<[Box<str>]>,
}

/// A claim that must have values.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct RequiredClaim {
    /// Its name.
    pub name: Box<str>,
    /// The values, all of which it must have.
    pub values: Box<[Box<str>]>,
}

/// What is kept of a verified token.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CheckedClaims {
    /// The name of the consumer.
    pub consumer: Box<str>,
    /// The name of its plan.
    pub plan: Option<Box<str>>,
    /// The claims that the configuration uses; `None` if it uses none.
    pub claims: Option<Arc<TokenClaims>>,
    /// The index of a required claim that the token lacks.
    pub lacks: Option<usize>,
    /// When the token expires, with the leeway.
    pub expires: StoreTime,
}

/// Why claims are refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ClaimsError {
    /// They are no JSON object, or have a name twice.
    #[error("the claims are not a JSON object without duplicate names")]
    Json,
    /// The issuer is another one.
    #[error("another issuer")]
    Issuer,
    /// No audience is one of the configured ones.
    #[error("another audience")]
    Audience,
    /// A time is missing or out of range.
    #[error("`exp` is missing, or a time is no number of seconds before the year 10000")]
    Time,
    /// The token has expired.
    #[error("expired")]
    Expired,
    /// The token is not valid yet.
    #[error("not valid yet")]
    NotYetValid,
    /// The claim that names the consumer is missing, or cannot be a name.
    #[error("no consumer")]
    Consumer,
}

impl ClaimRules {
    /// Checks the claims of a token whose signature is verified.
    ///
    /// # Errors
    ///
    /// The token is not valid at `now`, or not for this gateway. A token that only lacks a required
    /// claim is no error.
    pub fn check(&self, payload: &[u8], now: StoreTime) -> Result<CheckedClaims, ClaimsError> {
        let claims = JsonObject::parse(payload).map_err(|_| ClaimsError::Json)?;
        if claims.text("iss") != Some(&*self.issuer) {
            return Err(ClaimsError::Issuer);
        }
        if !self.is_audience(&claims) {
            return Err(ClaimsError::Audience);
        }
        let expires = self.check_times(&claims, now)?;
        let consumer = claims.get(&self.consumer).filter(|value| value.is_name());
        let consumer = consumer.and_then(JsonValue::scalar);
        let consumer = consumer.map(|name| prefixed_name(&self.prefix, name));
        let consumer = consumer.filter(|name| is_consumer_name(name));
        Ok(CheckedClaims {
            consumer: consumer.ok_or(ClaimsError::Consumer)?.into(),
            plan: self.plan_of(&claims),
            claims: self.kept(&claims),
            lacks: self.required.iter().position(|required| !required.is_met_by(&claims)),
            expires,
        })
    }

    /// True if `aud`, a text or a list, names one of the audiences.
    fn is_audience(&self, claims: &JsonObject) -> bool {
        let mut named = claims.get("aud").into_iter().flat_map(JsonValue::texts);
        named.any(|name| self.audiences.iter().any(|own| **own == *name))
    }

    /// Checks `exp`, `nbf` and `iat`; returns the expiry with the leeway.
    fn check_times(&self, claims: &JsonObject, now: StoreTime) -> Result<StoreTime, ClaimsError> {
        let expires = time(claims, "exp")?.ok_or(ClaimsError::Time)?;
        let expires = expires.after(self.leeway);
        let latest = now.after(self.leeway);
        let begins = [time(claims, "nbf")?, time(claims, "iat")?].into_iter().flatten();
        if begins.into_iter().any(|begin| begin > latest) {
            return Err(ClaimsError::NotYetValid);
        }
        if now >= expires { Err(ClaimsError::Expired) } else { Ok(expires) }
    }

    fn plan_of(&self, claims: &JsonObject) -> Option<Box<str>> {
        let named = claims.text(self.plan.as_deref()?)?;
        self.plans.iter().find(|plan| ***plan == *named).cloned()
    }

    fn kept(&self, claims: &JsonObject) -> Option<Arc<TokenClaims>> {
        if self.kept.is_empty() {
            return None;
        }
        let kept = self.kept.iter().filter_map(|name| {
            let value = claim_text(claims.get(name)?)?;
            Some((name.clone(), value))
        });
        Some(Arc::new(kept.collect()))
    }
}

/// The time called `name`, which may have a fraction of a second (RFC 7519, 2).
fn time(claims: &JsonObject, name: &str) -> Result<Option<StoreTime>, ClaimsError> {
    if !claims.has(name) {
        return Ok(None);
    }
    let latest = MAX_TIME.as_secs();
    let ms = match claims.get(name) {
        Some(JsonValue::Unsigned(seconds)) if *seconds <= latest => seconds * 1000,
        Some(JsonValue::Float(seconds)) if (0.0..=latest as f64).contains(seconds) => {
            (seconds * 1000.0) as u64
        }
        _ => return Err(ClaimsError::Time),
    };
    Ok(Some(StoreTime::from_unix_ms(ms)))
}

/// A claim as one text: a text, number or boolean as it is, the ones of a list joined by commas.
/// `None` for an object.
fn claim_text(value: &JsonValue) -> Option<Box<str>> {
    match value {
        JsonValue::List(items) => {
            let texts: Vec<_> = items.iter().filter_map(JsonValue::scalar).collect();
            Some(texts.join(",").into())
        }
        value => value.scalar().map(Into::into),
    }
}

impl RequiredClaim {
    /// True for a claim whose text is a list of words: `scope` (RFC 8693, 4.2), and `scp` of some
    /// issuers.
    pub fn is_scope(&self) -> bool {
        matches!(&*self.name, "scope" | "scp")
    }

    fn is_met_by(&self, claims: &JsonObject) -> bool {
        let Some(value) = claims.get(&self.name) else { return false };
        self.values.iter().all(|wanted| self.is_in(value, wanted))
    }

    /// True if `value` is `wanted`, is a list that contains it, or has it among the words of a
    /// scope.
    fn is_in(&self, value: &JsonValue, wanted: &str) -> bool {
        match value {
            JsonValue::List(items) => {
                items.iter().filter_map(JsonValue::scalar).any(|item| item == wanted)
            }
            JsonValue::Text(text) if self.is_scope() => text.split(' ').any(|word| word == wanted),
            value => value.scalar().is_some_and(|text| text == wanted),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn rules() -> ClaimRules {
        let texts = |all: &[&str]| all.iter().map(|text| Box::from(*text)).collect();
        ClaimRules {
            issuer: "https://id.test".into(),
            audiences: texts(&["orders", "stock"]),
            leeway: Millis::from_secs(30),
            consumer: "sub".into(),
            prefix: "".into(),
            plan: Some("plan".into()),
            plans: texts(&["gold"]),
            required: [RequiredClaim { name: "scope".into(), values: texts(&["read"]) }].into(),
            kept: texts(&["tenant", "level", "groups", "deep"]),
        }
    }

    /// The claims of a valid token, of which `changes` replaces some; `null` removes a claim.
    fn check(changes: &str) -> Result<CheckedClaims, ClaimsError> {
        let mut claims = serde_json::json!({
            "iss": "https://id.test", "aud": "orders", "sub": "acme", "exp": NOW + 60, "scope": "write read",
        });
        let changes: serde_json::Map<_, _> = serde_json::from_str(changes).unwrap();
        claims.as_object_mut().unwrap().extend(changes);
        rules().check(claims.to_string().as_bytes(), StoreTime::from_unix_ms(NOW * 1000))
    }

    #[test]
    fn a_valid_token_names_its_consumer() {
        let checked = check("{}").unwrap();
        assert_eq!((&*checked.consumer, checked.plan, checked.lacks), ("acme", None, None));
        assert_eq!(checked.expires.as_unix_ms(), (NOW + 90) * 1000);
        let changes = r#"{"aud":["x","stock"],"plan":"gold","sub":7,"tenant":"t","level":3,"groups":["a",1],"deep":{}}"#;
        let checked = check(changes).unwrap();
        assert_eq!((&*checked.consumer, checked.plan.as_deref()), ("7", Some("gold")));
        let claims = checked.claims.unwrap();
        let kept = ["tenant", "level", "groups", "deep", "sub"].map(|name| claims.get(name));
        assert_eq!(kept, [Some("t"), Some("3"), Some("a,1"), None, None]);
        assert_eq!(check(r#"{"plan":"glod"}"#).unwrap().plan, None);
    }

    #[test]
    fn another_token_is_refused() {
        use ClaimsError::{Audience, Consumer, Expired, Issuer, Json, NotYetValid, Time};
        for (changes, error) in [
            (r#"{"iss":"https://id.test/"}"#, Issuer),
            (r#"{"iss":null}"#, Issuer),
            (r#"{"iss":["https://id.test"]}"#, Issuer),
            (r#"{"aud":"other"}"#, Audience),
            (r#"{"aud":[]}"#, Audience),
            (r#"{"aud":null}"#, Audience),
            (r#"{"aud":{"orders":1}}"#, Audience),
            (r#"{"exp":null}"#, Time),
            (r#"{"exp":"1900000000"}"#, Time),
            (r#"{"exp":-1}"#, Time),
            (r#"{"exp":253402300800}"#, Time),
            (r#"{"exp":18446744073709551615}"#, Time),
            (r#"{"exp":1e300}"#, Json),
            (r#"{"sub":18446744073709551616}"#, Json),
            (r#"{"nbf":-1}"#, Time),
            (r#"{"exp":1799999970}"#, Expired),
            (r#"{"exp":1799999969.9}"#, Expired),
            (r#"{"nbf":1800000031}"#, NotYetValid),
            (r#"{"iat":1800000031}"#, NotYetValid),
            (r#"{"sub":null}"#, Consumer),
            (r#"{"sub":""}"#, Consumer),
            (r#"{"sub":" a"}"#, Consumer),
            (r#"{"sub":"a\nb"}"#, Consumer),
            (r#"{"sub":["acme"]}"#, Consumer),
            (r#"{"sub":true}"#, Consumer),
            (r#"{"sub":1.5}"#, Consumer),
        ] {
            assert_eq!(check(changes).err(), Some(error), "{changes}");
        }
        for changes in [
            r#"{"exp":1799999971}"#,
            r#"{"exp":1799999970.5}"#,
            r#"{"nbf":1800000030,"iat":1.8e9}"#,
            r#"{"exp":253402300799}"#,
        ] {
            assert_eq!(check(changes).err(), None, "{changes}");
        }
        let twice = br#"{"iss":"https://id.test","iss":"https://id.test"}"#;
        assert_eq!(rules().check(twice, StoreTime::ZERO), Err(ClaimsError::Json));
    }

    #[test]
    fn words_are_split_only_in_scopes() {
        for (changes, lacks) in [
            (r#"{"scope":"read"}"#, None),
            (r#"{"scope":["write","read"]}"#, None),
            (r#"{"scope":"readx"}"#, Some(0)),
            (r#"{"scope":"a,read"}"#, Some(0)),
            (r#"{"scope":["write read"]}"#, Some(0)),
            (r#"{"scope":null}"#, Some(0)),
        ] {
            assert_eq!(check(changes).unwrap().lacks, lacks, "{changes}");
        }
        let role = RequiredClaim { name: "role".into(), values: [Box::from("admin")].into() };
        let is_met = |text: &str| role.is_met_by(&JsonObject::parse(text.as_bytes()).unwrap());
        assert!(is_met(r#"{"role":"admin"}"#) && is_met(r#"{"role":["x","admin"]}"#));
        assert!(!is_met(r#"{"role":"x admin"}"#) && !is_met(r#"{"role":{"admin":1}}"#));
    }

    proptest! {
        #[test]
        fn any_claims_are_read_without_a_panic(text in "\\{(\"(exp|nbf|iss|aud|sub)\":[-0-9e.\\[\\]\"a]{0,9},?){0,4}\\}") {
            let _ = rules().check(text.as_bytes(), StoreTime::ZERO);
        }
    }
}
