use serde_json::{Value, json};
use tidegate_base::time::Millis;
use tidegate_config::JwtAlgorithm;

use super::super::test_issuer::{SigningKey, key_set};
use super::super::{ClaimRules, ClaimsError};
use super::*;

const NOW: u64 = 1_800_000_000;

fn at(seconds: u64) -> StoreTime {
    StoreTime::from_unix_ms((NOW + seconds) * 1000)
}

fn verifier(kept: &[&str]) -> JwtVerifier {
    let rules = ClaimRules {
        issuer: "i".into(),
        audiences: [Box::from("a")].into(),
        leeway: Millis::ZERO,
        consumer: "sub".into(),
        prefix: "".into(),
        plan: None,
        plans: Box::default(),
        required: Box::default(),
        kept: kept.iter().map(|name| Box::from(*name)).collect(),
    };
    JwtVerifier::new(vec![JwtAlgorithm::EdDsa], rules)
}

#[expect(clippy::needless_pass_by_value, reason = "a literal at each call")]
fn token(key: &SigningKey, name: &str, more: Value) -> String {
    let mut claims = json!({"iss": "i", "aud": "a", "sub": name, "exp": NOW + 60});
    claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    key.token(JwtAlgorithm::EdDsa, json!({}), &claims)
}

fn set(keys: &[&SigningKey]) -> KeySet {
    let keys: Vec<Value> = keys.iter().map(|key| key.jwk("k")).collect();
    KeySet::parse(&key_set(&keys), &[JwtAlgorithm::EdDsa]).unwrap()
}

#[test]
fn a_token_is_verified_once_while_it_is_valid() {
    let (key, verifier, cache) = (SigningKey::ed25519(), verifier(&[]), TokenCache::new());
    let (set, token) = (set(&[&key]), token(&key, "acme", json!({})));
    let verify = |seconds| cache.verify(&verifier, token.as_bytes(), &set, at(seconds));
    let first = verify(0).unwrap();
    assert!(Arc::ptr_eq(&first, &verify(59).unwrap()) && cache.len() == 1);
    assert_eq!(verify(60), Err(JwtError::Claims(ClaimsError::Expired)));
    let invented = format!("{}A", &token[..token.len() - 2]);
    assert!(cache.verify(&verifier, invented.as_bytes(), &set, at(0)).is_err());
    assert_eq!(cache.len(), 1, "only valid tokens are kept");
    let long = vec![b'a'; MAX_TOKEN + 1];
    let refused = cache.verify(&verifier, &long, &set, at(0));
    assert_eq!(refused, Err(JwtError::Token(CompactTokenError::TooLong)));
}

#[test]
fn a_dropped_key_drops_its_tokens_and_an_added_one_none() {
    let (old, new, verifier) = (SigningKey::ed25519(), SigningKey::ed25519(), verifier(&[]));
    let cache = TokenCache::new();
    let token = token(&old, "acme", json!({}));
    let verify = |set: &KeySet| cache.verify(&verifier, token.as_bytes(), set, at(0));
    let first = verify(&set(&[&old])).unwrap();
    assert!(Arc::ptr_eq(&first, &verify(&set(&[&new, &old])).unwrap()), "no new verification");
    assert_eq!(verify(&set(&[&new])), Err(JwtError::OtherSignature));
    assert!(verify(&set(&[&old])).is_ok());
}

#[test]
fn other_settings_verify_again() {
    let (key, cache) = (SigningKey::ed25519(), TokenCache::new());
    let (set, token) = (set(&[&key]), token(&key, "acme", json!({"tenant": "t"})));
    let claims = |verifier: &JwtVerifier| {
        let verified = cache.verify(verifier, token.as_bytes(), &set, at(0)).unwrap();
        verified.claims.claims.as_ref().and_then(|claims| claims.get("tenant").map(str::to_owned))
    };
    assert_eq!(claims(&verifier(&[])), None);
    assert_eq!(claims(&verifier(&["tenant"])).as_deref(), Some("t"));
}

#[test]
fn space_is_bounded_and_a_used_token_stays() {
    let (key, verifier) = (SigningKey::ed25519(), verifier(&["large"]));
    let (set, cache) = (set(&[&key]), TokenCache::with_capacity(4));
    let verify = |token: &str| cache.verify(&verifier, token.as_bytes(), &set, at(0)).unwrap();
    let busy = token(&key, "busy", json!({}));
    let first = verify(&busy);
    for index in 0..40 {
        verify(&token(&key, &format!("c{index}"), json!({})));
        assert!(Arc::ptr_eq(&first, &verify(&busy)), "{index}");
    }
    assert_eq!(cache.len(), 4);
    assert_eq!(cache.tokens.borrow().index.len(), 4);
    let large = token(&key, "large", json!({"large": "x".repeat(2_000)}));
    let once = verify(&large);
    assert!(!Arc::ptr_eq(&once, &verify(&large)), "too large to keep");
    assert!(Arc::ptr_eq(&first, &verify(&busy)));
}
