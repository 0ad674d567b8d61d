//! What a signed token costs: to verify it, and to find it among the ones that were verified.
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use aws_lc_rs::{
    rand::SystemRandom,
    rsa::KeySize,
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
        RSA_PKCS1_SHA256, RsaKeyPair,
    },
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use tidegate::{
    auth::jwt::{ClaimRules, JwtVerifier, KeySet, TokenCache},
    clock::{self, StoreTime},
    config::JwtAlgorithm,
    time::Millis,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUNDS: u32 = 20_000;
const NOW: StoreTime = StoreTime::from_unix_ms(1_800_000_000_000);

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The part of a token that is signed: about 700 bytes, as identity providers issue them.
fn signed(algorithm: &str) -> String {
    let header = format!("{{\"alg\":\"{algorithm}\",\"kid\":\"2026-11\",\"typ\":\"JWT\"}}");
    let claims = format!(
        "{{\"iss\":\"https://id.example.com\",\"aud\":[\"orders\",\"stock\"],\"sub\":\"0190c1f2-7c1e-7b7e\",\"exp\":1800003600,\
         \"iat\":1800000000,\"scope\":\"orders:read orders:write profile email\",\"tenant\":\"acme\",\"more\":\"{}\"}}",
        "x".repeat(250)
    );
    format!("{}.{}", encode(header), encode(claims))
}

struct Case {
    algorithm: JwtAlgorithm,
    jwk: String,
    token: String,
}

fn cases() -> [Case; 3] {
    let random = SystemRandom::new();
    let rsa = RsaKeyPair::generate(KeySize::Rsa2048).expect("a key");
    let text = signed("RS256");
    let mut signature = vec![0; rsa.public_modulus_len()];
    rsa.sign(&RSA_PKCS1_SHA256, &random, text.as_bytes(), &mut signature).expect("a signature");
    // The DER of a sequence: a modulus of 256 bytes after one zero, and the exponent 65537.
    let modulus = encode(&rsa.public_key().as_ref()[9..9 + 256]);
    let rs256 = Case {
        algorithm: JwtAlgorithm::Rs256,
        jwk: format!("{{\"kty\":\"RSA\",\"kid\":\"2026-11\",\"n\":\"{modulus}\",\"e\":\"AQAB\"}}"),
        token: format!("{text}.{}", encode(signature)),
    };
    let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("a key");
    let text = signed("ES256");
    let signature = pair.sign(&random, text.as_bytes()).expect("a signature");
    let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
    let (x, y) = (encode(x), encode(y));
    let es256 = Case {
        algorithm: JwtAlgorithm::Es256,
        jwk: format!(
            "{{\"kty\":\"EC\",\"crv\":\"P-256\",\"kid\":\"2026-11\",\"x\":\"{x}\",\"y\":\"{y}\"}}"
        ),
        token: format!("{text}.{}", encode(signature)),
    };
    let pair = Ed25519KeyPair::generate().expect("a key");
    let text = signed("EdDSA");
    let x = encode(pair.public_key());
    let eddsa = Case {
        algorithm: JwtAlgorithm::EdDsa,
        jwk: format!("{{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"kid\":\"2026-11\",\"x\":\"{x}\"}}"),
        token: format!("{text}.{}", encode(pair.sign(text.as_bytes()))),
    };
    [rs256, es256, eddsa]
}

fn main() {
    for Case { algorithm, jwk, token } in cases() {
        let rules = ClaimRules {
            issuer: "https://id.example.com".into(),
            audiences: [Box::from("orders")].into(),
            leeway: Millis::from_secs(30),
            consumer: "sub".into(),
            prefix: Box::default(),
            plan: None,
            plans: Box::default(),
            required: Box::default(),
            kept: [Box::from("tenant")].into(),
        };
        let verifier = JwtVerifier::new(vec![algorithm], rules);
        let keys = KeySet::parse(format!("{{\"keys\":[{jwk}]}}").as_bytes(), &[algorithm]);
        let keys = keys.expect("a key set");
        let time = |run: &dyn Fn()| {
            let start = clock::instant();
            (0..ROUNDS).for_each(|_| run());
            start.elapsed() / ROUNDS
        };
        let verified = time(&|| {
            verifier.verify(token.as_bytes(), &keys, NOW).expect("a valid token");
        });
        let cache = TokenCache::new();
        let found = time(&|| {
            cache.verify(&verifier, token.as_bytes(), &keys, NOW).expect("a valid token");
        });
        let (name, length) = (algorithm.name(), token.len());
        println!("{name}, {length} bytes: verified in {verified:.2?}, found in {found:.2?}");
    }
}
