//! Tokens and key sets of any bytes are read without a panic, and a token that was made for a key
//! is verified by it alone in the spelling in which it was made.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::{
    auth::jwt::{ClaimRules, CompactToken, JwtVerifier, KeySet, TokenCache, max_age},
    clock::StoreTime,
    config::JwtAlgorithm,
    time::Millis,
};

/// A token of RFC 7515, A.1, and the secret that signs it. Its claims are not those that the
/// verifier needs.
const TOKEN: &[u8] = b"eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";

fuzz_target!(|input: (Vec<u8>, Vec<u8>, Vec<u8>, u64)| {
    let (token, keys, claims, now) = input;
    let _ = KeySet::parse(&keys, &JwtAlgorithm::ALL);
    let _ = max_age(&String::from_utf8_lossy(&keys));
    let rules = ClaimRules {
        issuer: "joe".into(),
        audiences: [Box::from("a")].into(),
        leeway: Millis::from_mins(10),
        consumer: "iss".into(),
        prefix: Box::default(),
        plan: Some("plan".into()),
        plans: [Box::from("gold")].into(),
        required: Box::default(),
        kept: [Box::from("exp")].into(),
    };
    let now = StoreTime::from_unix_ms(now);
    if let Ok(checked) = rules.check(&claims, now) {
        assert!(now < checked.expires && &*checked.consumer == "joe");
    }
    let verifier = JwtVerifier::new(JwtAlgorithm::ALL.to_vec(), rules);
    let secret = KeySet::of_secret(&[1; 32], &JwtAlgorithm::ALL);
    let cache = TokenCache::new();
    assert!(cache.verify(&verifier, &token, &secret, now).is_err(), "no token of this secret");
    if let Ok(read) = CompactToken::parse(&token) {
        assert!(token.starts_with(read.signed));
    }
    assert!(CompactToken::parse(TOKEN).is_ok());
});
