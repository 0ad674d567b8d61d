use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::test_issuer::{SigningKey, encode, key_set};
use super::*;

const ALL: [JwtAlgorithm; 12] = JwtAlgorithm::ALL;

fn parse(keys: &[Value]) -> Result<KeySet, KeySetError> {
    KeySet::parse(&key_set(keys), &ALL)
}

#[expect(clippy::needless_pass_by_value, reason = "a literal at each call")]
fn with(mut key: Value, changes: Value) -> Value {
    let changes = changes.as_object().unwrap().clone();
    key.as_object_mut().unwrap().extend(changes);
    key
}

#[test]
fn keys_that_cannot_verify_are_left_out() {
    let key = SigningKey::p256();
    let jwk = key.jwk("a");
    for (changes, is_usable) in [
        (json!({}), true),
        (json!({"use": "sig"}), true),
        (json!({"use": "enc"}), false),
        (json!({"use": 1}), false),
        (json!({"key_ops": ["verify"]}), true),
        (json!({"key_ops": ["sign"]}), false),
        (json!({"alg": "ES256"}), true),
        (json!({"alg": "ES384"}), false),
        (json!({"alg": "HS256"}), false),
        (json!({"alg": "none"}), false),
        (json!({"kty": "RSA"}), false),
        (json!({"kty": "oct", "k": encode([0; 32])}), false),
        (json!({"crv": "P-384"}), false),
        (json!({"crv": "secp256k1"}), false),
        // No point of the curve.
        (json!({"x": encode([1; 32])}), false),
        (json!({"x": encode([1; 31])}), false),
        (json!({"x": "="}), false),
        (json!({"x": null}), false),
    ] {
        let set = parse(&[with(jwk.clone(), changes.clone())]);
        assert_eq!(set.is_ok(), is_usable, "{changes}: {:?}", set.err());
    }
    let secret = SigningKey::Secret(vec![7; 32]).jwk("s");
    let set = parse(&[secret, json!(1), json!({}), jwk]).unwrap();
    assert_eq!(set.len(), 1, "a faulty key does not hide the others");
}

#[test]
fn the_size_of_rsa_keys_is_bounded() {
    let key = |bytes: usize, e: &[u8]| {
        let mut modulus = vec![0xff; bytes];
        modulus[0] = 0x80;
        json!({"kty": "RSA", "n": encode(&modulus), "e": encode(e)})
    };
    let exponent = [1, 0, 1];
    assert!(parse(&[key(256, &exponent)]).is_ok() && parse(&[key(1024, &exponent)]).is_ok());
    let padded = json!({"kty": "RSA", "n": encode([&[0][..], &[0xff; 256]].concat()), "e": "AQAB"});
    assert!(parse(&[padded]).is_ok(), "zeros at the start");
    for faulty in [
        key(128, &exponent),
        key(255, &exponent),
        key(1025, &exponent),
        key(256, &[1]),
        key(256, &[1, 0, 0]),
        key(256, &[]),
        key(256, &[1; 9]),
    ] {
        assert!(parse(std::slice::from_ref(&faulty)).is_err(), "{faulty:.60}");
    }
}

#[test]
fn a_set_is_bounded_and_has_a_usable_key() {
    let jwk = SigningKey::ed25519().jwk("a");
    assert_eq!(parse(&[]).unwrap_err(), KeySetError::NoUsable(0));
    assert_eq!(parse(&vec![jwk.clone(); 101]).unwrap_err(), KeySetError::TooMany(101));
    assert_eq!(parse(&vec![jwk.clone(); 100]).unwrap().len(), 100);
    let error = |text: &[u8]| KeySet::parse(text, &ALL).unwrap_err();
    assert_eq!(error(&vec![b' '; MAX_KEY_SET + 1]), KeySetError::TooLong(MAX_KEY_SET + 1));
    assert_eq!(error(b"[]"), KeySetError::Json(JsonError::NotAnObject));
    assert_eq!(error(b"{}"), KeySetError::NoKeys);
    assert_eq!(error(b"{\"keys\": {}}"), KeySetError::NoKeys);
    assert!(matches!(error(b"<html>"), KeySetError::Json(JsonError::Malformed { .. })));
    assert!(matches!(error(b"{\"keys\":[],\"keys\":[]}"), KeySetError::Json(_)));
    let other = KeySet::parse(&key_set(&[jwk]), &[JwtAlgorithm::Rs256]);
    assert_eq!(other.unwrap_err(), KeySetError::NoUsable(1), "not for this algorithm");
}

#[test]
fn a_key_is_chosen_by_name_and_type() {
    let keys: Vec<SigningKey> = (0..6).map(|_| SigningKey::ed25519()).collect();
    let signature = |index: usize| keys[index].sign(JwtAlgorithm::EdDsa, b"x");
    let named: Vec<Value> = (0..6).map(|index| keys[index].jwk(&format!("k{index}"))).collect();
    let set = parse(&named).unwrap();
    let verify = |set: &KeySet, id: Option<&str>, index: usize| {
        set.verify(id, JwtAlgorithm::EdDsa, b"x", &signature(index)).is_some()
    };
    assert!(verify(&set, Some("k5"), 5) && !verify(&set, Some("k4"), 5));
    assert!(set.lacks(Some("k6")) && !set.lacks(Some("k5")) && !set.lacks(None));
    let found: Vec<bool> = (0..6).map(|index| verify(&set, None, index)).collect();
    assert_eq!(found, [true, true, true, true, false, false], "at most four are tried");
    assert!(set.verify(Some("k5"), JwtAlgorithm::Es256, b"x", &signature(5)).is_none());
    // Keys without a name may be the one that a token names.
    let unnamed = with(named[0].clone(), json!({"kid": null}));
    let set = parse(&[unnamed, named[1].clone()]).unwrap();
    assert!(!set.lacks(Some("other")) && verify(&set, Some("other"), 0));
    assert!(!verify(&set, Some("k1"), 0), "the named one alone");
}

#[test]
fn a_restricted_key_is_another_key() {
    let jwk = SigningKey::rsa().jwk("a");
    let fingerprint = |jwk: Value| parse(&[jwk]).unwrap().keys[0].fingerprint;
    let own = fingerprint(jwk.clone());
    assert_eq!(fingerprint(with(jwk.clone(), json!({"kid": "b"}))), own, "renamed");
    assert_ne!(fingerprint(with(jwk.clone(), json!({"alg": "PS256"}))), own);
    assert_ne!(fingerprint(SigningKey::rsa().jwk("a")), own);
    assert!(parse(&[jwk]).unwrap().has(own));
}

proptest! {
    #[test]
    fn any_set_is_read_without_a_panic(bytes: Vec<u8>, members in prop::collection::vec(("(kty|crv|x|y|n|e|use|alg)", "[A-Za-z0-9_-]{0,50}|RSA|EC|OKP|P-256|Ed25519"), 0..6)) {
        let _ = KeySet::parse(&bytes, &ALL);
        let key: serde_json::Map<String, Value> = members.into_iter().map(|(name, value)| (name, value.into())).collect();
        let _ = parse(&[Value::Object(key)]);
    }
}
