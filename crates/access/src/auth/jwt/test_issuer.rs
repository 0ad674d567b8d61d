//! An issuer of tokens, for the tests of this module.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair as RsaKeyPair, KeySize};
use aws_lc_rs::signature::{
    self, ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair,
    Ed25519KeyPair, KeyPair as _,
};
use aws_lc_rs::{hmac, rsa};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use tidegate_config::JwtAlgorithm;

/// A key that signs.
pub(super) enum SigningKey {
    Rsa(Box<rsa::KeyPair>),
    P256(EcdsaKeyPair),
    P384(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
    Secret(Vec<u8>),
}

pub(super) fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

impl SigningKey {
    pub(super) fn rsa() -> Self {
        Self::Rsa(Box::new(RsaKeyPair::generate(KeySize::Rsa2048).unwrap()))
    }

    pub(super) fn p256() -> Self {
        Self::P256(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap())
    }

    pub(super) fn p384() -> Self {
        Self::P384(EcdsaKeyPair::generate(&ECDSA_P384_SHA384_FIXED_SIGNING).unwrap())
    }

    pub(super) fn ed25519() -> Self {
        Self::Ed25519(Ed25519KeyPair::generate().unwrap())
    }

    /// The public key as a JWK.
    pub(super) fn jwk(&self, id: &str) -> Value {
        let point = |curve: &str, public: &[u8]| {
            let (x, y) = public[1..].split_at(public.len() / 2);
            json!({"kty": "EC", "crv": curve, "x": encode(x), "y": encode(y), "kid": id})
        };
        match self {
            Self::Rsa(pair) => {
                // The DER of a sequence: a modulus of 256 bytes after one zero, and the exponent
                // 65537.
                let modulus = &pair.public_key().as_ref()[9..9 + 256];
                json!({"kty": "RSA", "n": encode(modulus), "e": "AQAB", "kid": id})
            }
            Self::P256(pair) => point("P-256", pair.public_key().as_ref()),
            Self::P384(pair) => point("P-384", pair.public_key().as_ref()),
            Self::Ed25519(pair) => {
                let x = encode(pair.public_key().as_ref());
                json!({"kty": "OKP", "crv": "Ed25519", "x": x, "kid": id})
            }
            Self::Secret(secret) => json!({"kty": "oct", "k": encode(secret), "kid": id}),
        }
    }

    /// A token with these claims, signed by `algorithm`.
    pub(super) fn token(&self, algorithm: JwtAlgorithm, header: Value, claims: &Value) -> String {
        let mut full = json!({"alg": algorithm.name()});
        if let (Value::Object(full), Value::Object(header)) = (&mut full, header) {
            full.extend(header);
        }
        let signed = format!("{}.{}", encode(full.to_string()), encode(claims.to_string()));
        let signature = self.sign(algorithm, signed.as_bytes());
        format!("{signed}.{}", encode(signature))
    }

    pub(super) fn sign(&self, algorithm: JwtAlgorithm, signed: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match self {
            Self::Rsa(pair) => {
                let padding: &'static dyn signature::RsaEncoding = match algorithm {
                    JwtAlgorithm::Rs256 => &signature::RSA_PKCS1_SHA256,
                    JwtAlgorithm::Rs384 => &signature::RSA_PKCS1_SHA384,
                    JwtAlgorithm::Rs512 => &signature::RSA_PKCS1_SHA512,
                    JwtAlgorithm::Ps256 => &signature::RSA_PSS_SHA256,
                    JwtAlgorithm::Ps384 => &signature::RSA_PSS_SHA384,
                    _ => &signature::RSA_PSS_SHA512,
                };
                let mut out = vec![0; pair.public_modulus_len()];
                pair.sign(padding, &random, signed, &mut out).unwrap();
                out
            }
            Self::P256(pair) | Self::P384(pair) => {
                pair.sign(&random, signed).unwrap().as_ref().to_vec()
            }
            Self::Ed25519(pair) => pair.sign(signed).as_ref().to_vec(),
            Self::Secret(secret) => {
                let algorithm =
                    super::algorithm::hmac_parameters(algorithm).unwrap_or(hmac::HMAC_SHA256);
                hmac::sign(&hmac::Key::new(algorithm, secret), signed).as_ref().to_vec()
            }
        }
    }
}

/// A key set with these keys.
pub(super) fn key_set(keys: &[Value]) -> Vec<u8> {
    json!({"keys": keys}).to_string().into_bytes()
}
