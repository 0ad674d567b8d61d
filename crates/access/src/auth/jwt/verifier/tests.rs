use proptest::prelude::*;
use serde_json::{Value, json};
use tidegate_base::time::Millis;

use super::super::test_issuer::{SigningKey, encode, key_set};
use super::*;

const NOW: u64 = 1_800_000_000;

fn now() -> StoreTime {
    StoreTime::from_unix_ms(NOW * 1000)
}

fn rules() -> ClaimRules {
    ClaimRules {
        issuer: "https://id.test".into(),
        audiences: [Box::from("orders")].into(),
        leeway: Millis::ZERO,
        consumer: "sub".into(),
        prefix: "".into(),
        plan: None,
        plans: Box::default(),
        required: Box::default(),
        kept: Box::default(),
    }
}

fn claims() -> Value {
    json!({"iss": "https://id.test", "aud": "orders", "sub": "acme", "exp": NOW + 60})
}

fn verifier(algorithms: &[JwtAlgorithm]) -> JwtVerifier {
    JwtVerifier::new(algorithms.to_vec(), rules())
}

fn set(keys: &[Value]) -> KeySet {
    KeySet::parse(&key_set(keys), &JwtAlgorithm::ALL).unwrap()
}

const RS256_KEY: &str = r#"{"keys":[{"kty":"RSA","e":"AQAB","n":"ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ"}]}"#;
const RS256_TOKEN: &str = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";
const ES256_KEY: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"#;
const ES256_TOKEN: &str = "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q";
const HS256_SECRET: &str =
    "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow";
const HS256_TOKEN: &str = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
const EDDSA_KEY: &str =
    r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
const EDDSA_TOKEN: &str = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc.hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg";

/// RFC 7515, A.1 to A.3, RFC 7519, 3.1 (the same as A.1) and RFC 8037, A.4. Their claims have
/// another form than this gateway needs, so a verified signature shows in the next error.
#[test]
fn signatures_of_the_rfcs_are_verified() {
    let all = verifier(&JwtAlgorithm::ALL);
    let public = |keys: &str| KeySet::parse(keys.as_bytes(), &JwtAlgorithm::ALL).unwrap();
    let secret = super::super::token::decode(HS256_SECRET.as_bytes()).unwrap();
    let secret = KeySet::of_secret(&secret, &[JwtAlgorithm::Hs256]);
    let issuer = JwtError::Claims(ClaimsError::Issuer);
    for (keys, token, expected) in [
        (public(RS256_KEY), RS256_TOKEN, issuer),
        (public(ES256_KEY), ES256_TOKEN, issuer),
        (secret, HS256_TOKEN, issuer),
        (public(EDDSA_KEY), EDDSA_TOKEN, JwtError::Claims(ClaimsError::Json)),
    ] {
        assert_eq!(all.verify(token.as_bytes(), &keys, now()), Err(expected), "{token}");
        let last = if token.ends_with('k') { "g" } else { "A" };
        let changed = format!("{}{last}", &token[..token.len() - 1]);
        let changed = all.verify(changed.as_bytes(), &keys, now());
        assert!(matches!(changed, Err(JwtError::OtherSignature | JwtError::Token(_))), "{token}");
    }
    // With the issuer of the example, its expiry decides: the year is 2011.
    let joe = ClaimRules {
        issuer: "joe".into(),
        consumer: "iss".into(),
        audiences: [Box::from("x")].into(),
        ..rules()
    };
    let joe = JwtVerifier::new(vec![JwtAlgorithm::Es256], joe);
    let verified = joe.verify(ES256_TOKEN.as_bytes(), &public(ES256_KEY), now());
    assert_eq!(verified, Err(JwtError::Claims(ClaimsError::Audience)));
}

/// RFC 7519, 6.1.
#[test]
fn a_token_without_a_signature_is_refused() {
    let unsigned = "eyJhbGciOiJub25lIn0.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.";
    let all = verifier(&JwtAlgorithm::ALL);
    let keys = set(&[SigningKey::p256().jwk("a")]);
    let refused = JwtError::Token(CompactTokenError::Algorithm);
    assert_eq!(all.verify(unsigned.as_bytes(), &keys, now()), Err(refused));
    let empty = format!("{}.{}.", encode(r#"{"alg":"ES256"}"#), encode(claims().to_string()));
    assert_eq!(all.verify(empty.as_bytes(), &keys, now()), Err(JwtError::OtherSignature));
}

#[test]
fn every_algorithm_verifies_with_its_own_type_of_key_alone() {
    let keys = [SigningKey::rsa(), SigningKey::p256(), SigningKey::p384(), SigningKey::ed25519()];
    let public = set(&[0, 1, 2, 3].map(|index| keys[index].jwk(&index.to_string())));
    let signer = |algorithm: JwtAlgorithm| match algorithm.key_type() {
        super::super::JwtKeyType::Rsa => Some("0"),
        super::super::JwtKeyType::P256 => Some("1"),
        super::super::JwtKeyType::P384 => Some("2"),
        super::super::JwtKeyType::Ed25519 => Some("3"),
        super::super::JwtKeyType::Secret => None,
    };
    for algorithm in JwtAlgorithm::ALL {
        let Some(id) = signer(algorithm) else { continue };
        let key = &keys[id.parse::<usize>().unwrap()];
        let own = verifier(&[algorithm]);
        for header in [json!({"kid": id}), json!({})] {
            let token = key.token(algorithm, header, &claims());
            let verified = own.verify(token.as_bytes(), &public, now()).unwrap();
            assert_eq!(&*verified.claims.consumer, "acme");
            let all_others: Vec<_> =
                JwtAlgorithm::ALL.into_iter().filter(|other| *other != algorithm).collect();
            let others = verifier(&all_others).verify(token.as_bytes(), &public, now());
            assert_eq!(others, Err(JwtError::Algorithm), "{algorithm:?} is not configured");
        }
        // The same signature under the name of each other algorithm.
        for other in JwtAlgorithm::ALL.into_iter().filter(|other| *other != algorithm) {
            let header = json!({"alg": other.name(), "kid": id});
            let token = key.token(algorithm, header, &claims());
            let all = verifier(&JwtAlgorithm::ALL);
            let refused = all.verify(token.as_bytes(), &public, now());
            assert_eq!(refused, Err(JwtError::Signature), "{algorithm:?} as {other:?}");
        }
    }
}

#[test]
fn a_public_key_is_no_secret() {
    let key = SigningKey::rsa();
    let jwk = key.jwk("a");
    let set = set(std::slice::from_ref(&jwk));
    let modulus = super::super::token::decode(jwk["n"].as_str().unwrap().as_bytes()).unwrap();
    let all = verifier(&JwtAlgorithm::ALL);
    for secret in [jwk.to_string().into_bytes(), modulus, jwk["n"].as_str().unwrap().into()] {
        for header in [json!({"kid": "a"}), json!({})] {
            let forged = SigningKey::Secret(secret.clone());
            let forged = forged.token(JwtAlgorithm::Hs256, header, &claims());
            let refused = all.verify(forged.as_bytes(), &set, now());
            assert!(matches!(refused, Err(JwtError::Signature | JwtError::OtherSignature)));
        }
    }
    // And a secret verifies no signature of a public key.
    let secret = KeySet::of_secret(&[7; 32], &JwtAlgorithm::ALL);
    let token = key.token(JwtAlgorithm::Rs256, json!({}), &claims());
    assert_eq!(all.verify(token.as_bytes(), &secret, now()), Err(JwtError::OtherSignature));
}

#[test]
fn keys_in_the_header_are_ignored() {
    let (own, forger) = (SigningKey::p256(), SigningKey::p256());
    let set = set(&[own.jwk("a")]);
    let one = verifier(&[JwtAlgorithm::Es256]);
    let verify = |token: &str| one.verify(token.as_bytes(), &set, now()).map(|_| ());
    for header in [
        json!({"jwk": forger.jwk("a"), "kid": "a"}),
        json!({"jku": "http://127.0.0.1:1/jwks", "kid": "a"}),
        json!({"x5u": "http://127.0.0.1:1/x", "x5c": [encode([1; 40])], "kid": "a"}),
    ] {
        let forged = forger.token(JwtAlgorithm::Es256, header.clone(), &claims());
        assert_eq!(verify(&forged), Err(JwtError::Signature), "{header}");
        let real = own.token(JwtAlgorithm::Es256, header, &claims());
        assert_eq!(verify(&real), Ok(()));
    }
    for id in ["../../../etc/passwd", "/dev/null", "' OR 1=1", "a\u{0}", "A"] {
        let token = forger.token(JwtAlgorithm::Es256, json!({"kid": id}), &claims());
        assert_eq!(verify(&token), Err(JwtError::UnknownKey), "{id}");
    }
}

#[test]
fn claims_that_are_named_twice_are_refused() {
    let key = SigningKey::ed25519();
    let set = set(&[key.jwk("a")]);
    let text = claims().to_string().replace("\"sub\"", "\"sub\":\"root\",\"sub\"");
    let signed = format!("{}.{}", encode(r#"{"alg":"EdDSA"}"#), encode(text));
    let signature = encode(key.sign(JwtAlgorithm::EdDsa, signed.as_bytes()));
    let token = format!("{signed}.{signature}");
    let refused = verifier(&[JwtAlgorithm::EdDsa]).verify(token.as_bytes(), &set, now());
    assert_eq!(refused, Err(JwtError::Claims(ClaimsError::Json)));
}

#[test]
fn settings_have_a_fingerprint() {
    let one = verifier(&[JwtAlgorithm::EdDsa]).fingerprint();
    assert_eq!(verifier(&[JwtAlgorithm::EdDsa]).fingerprint(), one);
    assert_ne!(verifier(&[JwtAlgorithm::Es256]).fingerprint(), one);
    let other = ClaimRules { kept: [Box::from("tenant")].into(), ..rules() };
    assert_ne!(JwtVerifier::new(vec![JwtAlgorithm::EdDsa], other).fingerprint(), one);
}

proptest! {
    #[test]
    fn a_changed_token_is_refused(at in any::<prop::sample::Index>(), other in "[A-Za-z0-9_.-]") {
        let key = SigningKey::ed25519();
        let set = set(&[key.jwk("a")]);
        let token = key.token(JwtAlgorithm::EdDsa, json!({"kid": "a"}), &claims());
        let at = at.index(token.len());
        let mut changed = token.clone();
        changed.replace_range(at..=at, &other);
        let verified = verifier(&[JwtAlgorithm::EdDsa]).verify(changed.as_bytes(), &set, now());
        prop_assert_eq!(verified.is_ok(), changed == token);
    }
}
