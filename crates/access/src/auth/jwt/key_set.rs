//! [`KeySet`]: the keys that verify tokens, from a JWK Set (RFC 7517).

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac;
use aws_lc_rs::signature::{ParsedPublicKey, RsaPublicKeyComponents};
use tidegate_config::JwtAlgorithm;

use super::algorithm::{JwtKeyType, curve_parameters, hmac_parameters, rsa_parameters};
use super::json::{JsonError, JsonObject, JsonValue};
use super::token::decode;

/// Maximum length of a key set, in bytes.
pub const MAX_KEY_SET: usize = 256 * 1024;
/// Maximum number of keys in a set.
const MAX_KEYS: usize = 100;
/// Maximum number of keys that are tried for one token.
const MAX_TRIES: usize = 4;
/// The fewest and the most bits of an RSA key.
const RSA_BITS: (usize, usize) = (2048, 8192);
/// Maximum length of the public exponent of an RSA key, in bytes.
const MAX_EXPONENT: usize = 8;
/// Minimum length of a secret, in bytes (RFC 7518, 3.2).
pub const MIN_SECRET: usize = 32;

/// Keys that verify tokens. Immutable: a later set replaces it.
pub struct KeySet {
    keys: Box<[VerificationKey]>,
}

/// A key, parsed for each algorithm that it may verify.
pub(super) struct VerificationKey {
    id: Option<Box<str>>,
    pub(super) fingerprint: KeyFingerprint,
    verifiers: Box<[SignatureVerifier]>,
}

/// A key for one algorithm.
pub(super) struct SignatureVerifier {
    algorithm: JwtAlgorithm,
    key: ParsedKey,
}

enum ParsedKey {
    Public(ParsedPublicKey),
    Secret(Box<hmac::Key>),
}

/// The start of the SHA-256 of a key and its algorithms: names the key in the cache of verified
/// tokens.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct KeyFingerprint(u128);

/// Why a text is no usable key set.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum KeySetError {
    /// It is too long.
    #[error("the key set has {0} bytes, more than {MAX_KEY_SET}")]
    TooLong(usize),
    /// It is no JSON object.
    #[error("the key set cannot be read: {0}")]
    Json(#[from] JsonError),
    /// It has no list of keys.
    #[error("the key set has no list `keys`")]
    NoKeys,
    /// It has too many keys.
    #[error("the key set has {0} keys, more than {MAX_KEYS}")]
    TooMany(usize),
    /// It has no key that can verify a signature.
    #[error("none of the {0} keys of the key set can be used with the configured algorithms")]
    NoUsable(usize),
}

/// The public part of a key, in the form that its algorithms need.
enum KeyMaterial {
    Rsa { modulus: Vec<u8>, exponent: Vec<u8> },
    Curve(Vec<u8>),
}

impl KeySet {
    /// Reads a JWK Set for signatures by `algorithms`. As RFC 7517, section 5 asks for, keys that
    /// cannot be used are left out: those of other types, sizes or algorithms, for encryption
    /// (`use`), or not for verification (`key_ops`).
    ///
    /// # Errors
    ///
    /// It is no JWK Set, is too large, or has no key that can be used.
    pub fn parse(text: &[u8], algorithms: &[JwtAlgorithm]) -> Result<Self, KeySetError> {
        if text.len() > MAX_KEY_SET {
            return Err(KeySetError::TooLong(text.len()));
        }
        let set = JsonObject::parse(text)?;
        let Some(JsonValue::List(listed)) = set.get("keys") else {
            return Err(KeySetError::NoKeys);
        };
        if listed.len() > MAX_KEYS {
            return Err(KeySetError::TooMany(listed.len()));
        }
        let keys = listed.iter().filter_map(|key| match key {
            JsonValue::Object(key) => VerificationKey::read(key, algorithms),
            _ => None,
        });
        let keys: Box<[_]> = keys.collect();
        if keys.is_empty() { Err(KeySetError::NoUsable(listed.len())) } else { Ok(Self { keys }) }
    }

    /// The set with one secret, of at least [`MIN_SECRET`] bytes. The name of the key in tokens is
    /// ignored.
    pub fn of_secret(secret: &[u8], algorithms: &[JwtAlgorithm]) -> Self {
        let verifiers = algorithms.iter().filter_map(|algorithm| {
            let key =
                ParsedKey::Secret(Box::new(hmac::Key::new(hmac_parameters(*algorithm)?, secret)));
            Some(SignatureVerifier { algorithm: *algorithm, key })
        });
        let fingerprint = KeyFingerprint::of(b"secret", [secret]);
        let key = VerificationKey { id: None, fingerprint, verifiers: verifiers.collect() };
        Self { keys: [key].into() }
    }

    /// The number of usable keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// True without keys.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// True if the set has this key.
    pub fn has(&self, fingerprint: KeyFingerprint) -> bool {
        self.keys.iter().any(|key| key.fingerprint == fingerprint)
    }

    /// True if a token that names the key `id` can only be verified by another set than this one.
    pub(super) fn lacks(&self, id: Option<&str>) -> bool {
        id.is_some_and(|id| {
            self.keys.iter().all(|key| key.id.as_deref().is_some_and(|own| own != id))
        })
    }

    /// True if a key is called `id`.
    pub(super) fn has_id(&self, id: Option<&str>) -> bool {
        id.is_some() && self.keys.iter().any(|key| key.id.as_deref() == id)
    }

    /// The key that verifies `signature` of `signed`. Tries the keys called `id`; if there are
    /// none, the ones without a name; for a token without a name, all: each of the type that
    /// `algorithm` needs, and at most four.
    pub(super) fn verify(
        &self,
        id: Option<&str>,
        algorithm: JwtAlgorithm,
        signed: &[u8],
        signature: &[u8],
    ) -> Option<&VerificationKey> {
        let has_id = self.has_id(id);
        let is_candidate = |key: &&VerificationKey| match id {
            None => true,
            Some(_) if has_id => key.id.as_deref() == id,
            Some(_) => key.id.is_none(),
        };
        let candidates = self.keys.iter().filter(is_candidate);
        let candidates = candidates.filter_map(|key| Some((key, key.verifier(algorithm)?)));
        let mut candidates = candidates.take(MAX_TRIES);
        let (key, _) = candidates.find(|(_, verifier)| verifier.accepts(signed, signature))?;
        Some(key)
    }
}

/// The number of keys alone: a secret may be among them.
impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeySet").field("keys", &self.len()).finish_non_exhaustive()
    }
}

impl VerificationKey {
    /// Reads a key; `None` if it cannot verify signatures by any of `algorithms`.
    fn read(key: &JsonObject, algorithms: &[JwtAlgorithm]) -> Option<Self> {
        if !may_verify(key) {
            return None;
        }
        let own = match key.get("alg") {
            None => None,
            Some(name) => Some(JwtAlgorithm::of_name(name.as_text()?)?),
        };
        let KeyOfType { key_type, material } = read_material(key)?;
        let usable = algorithms.iter().copied().filter(|algorithm| {
            algorithm.key_type() == key_type && own.is_none_or(|own| own == *algorithm)
        });
        let verifiers: Box<[_]> = usable
            .filter_map(|algorithm| {
                Some(SignatureVerifier { algorithm, key: material.parse(algorithm)? })
            })
            .collect();
        if verifiers.is_empty() {
            return None;
        }
        // With the algorithm: a key that is restricted to another one is another key.
        let restricted = own.map_or("", JwtAlgorithm::name);
        let fingerprint = match &material {
            KeyMaterial::Rsa { modulus, exponent } => {
                KeyFingerprint::of(restricted.as_bytes(), [modulus, exponent])
            }
            KeyMaterial::Curve(point) => KeyFingerprint::of(restricted.as_bytes(), [point]),
        };
        Some(Self { id: key.text("kid").map(Into::into), fingerprint, verifiers })
    }

    fn verifier(&self, algorithm: JwtAlgorithm) -> Option<&SignatureVerifier> {
        self.verifiers.iter().find(|verifier| verifier.algorithm == algorithm)
    }
}

/// True unless the key is meant for another use than to verify signatures.
fn may_verify(key: &JsonObject) -> bool {
    let is_for_signatures = key.get("use").is_none_or(|usage| usage.as_text() == Some("sig"));
    let operations = key.get("key_ops");
    is_for_signatures && operations.is_none_or(|all| all.texts().any(|one| one == "verify"))
}

struct KeyOfType {
    key_type: JwtKeyType,
    material: KeyMaterial,
}

/// The public part of a key; `None` if its type is not supported or a member is wrong. Secrets
/// (`oct`) in a public set are no keys.
fn read_material(key: &JsonObject) -> Option<KeyOfType> {
    let bytes = |name: &str| decode(key.text(name)?.as_bytes()).ok();
    let (key_type, material) = match (key.text("kty")?, key.text("crv")) {
        ("RSA", _) => {
            let (modulus, exponent) = (number(&bytes("n")?), number(&bytes("e")?));
            let bits = modulus.len() * 8 - modulus.first()?.leading_zeros() as usize;
            let is_sound = (RSA_BITS.0..=RSA_BITS.1).contains(&bits)
                && exponent.len() <= MAX_EXPONENT
                && is_odd_and_large(&exponent);
            is_sound.then_some((JwtKeyType::Rsa, KeyMaterial::Rsa { modulus, exponent }))?
        }
        ("EC", Some("P-256")) => {
            (JwtKeyType::P256, KeyMaterial::Curve(point(&bytes("x")?, &bytes("y")?, 32)?))
        }
        ("EC", Some("P-384")) => {
            (JwtKeyType::P384, KeyMaterial::Curve(point(&bytes("x")?, &bytes("y")?, 48)?))
        }
        ("OKP", Some("Ed25519")) => {
            let public = bytes("x").filter(|bytes| bytes.len() == 32)?;
            (JwtKeyType::Ed25519, KeyMaterial::Curve(public))
        }
        _ => return None,
    };
    Some(KeyOfType { key_type, material })
}

/// A big-endian number without zeros at its start, which some issuers add.
fn number(bytes: &[u8]) -> Vec<u8> {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    bytes[zeros..].to_vec()
}

/// True if a number is odd and at least 3.
fn is_odd_and_large(number: &[u8]) -> bool {
    number.last().is_some_and(|last| last % 2 == 1) && *number != [1]
}

/// An uncompressed point (SEC 1, 2.3.3).
fn point(x: &[u8], y: &[u8], length: usize) -> Option<Vec<u8>> {
    (x.len() == length && y.len() == length).then(|| [&[4], x, y].concat())
}

impl KeyMaterial {
    fn parse(&self, algorithm: JwtAlgorithm) -> Option<ParsedKey> {
        let parsed = match self {
            Self::Rsa { modulus, exponent } => {
                let components = RsaPublicKeyComponents { n: modulus, e: exponent };
                components.to_parsed_public_key(rsa_parameters(algorithm)?).ok()
            }
            // A point that is not on the curve is refused.
            Self::Curve(point) => ParsedPublicKey::new(curve_parameters(algorithm)?, point).ok(),
        };
        parsed.map(ParsedKey::Public)
    }
}

impl SignatureVerifier {
    fn accepts(&self, signed: &[u8], signature: &[u8]) -> bool {
        match &self.key {
            ParsedKey::Public(key) => key.verify_sig(signed, signature).is_ok(),
            // Compares in constant time, and the whole tag.
            ParsedKey::Secret(key) => hmac::verify(key, signed, signature).is_ok(),
        }
    }
}

impl KeyFingerprint {
    fn of<const N: usize>(algorithm: &[u8], parts: [&[u8]; N]) -> Self {
        let mut text = Vec::new();
        for part in [algorithm].iter().chain(&parts) {
            text.extend_from_slice(&(part.len() as u64).to_le_bytes());
            text.extend_from_slice(part);
        }
        let hash = digest(&SHA256, &text);
        let mut start = [0; 16];
        start.copy_from_slice(&hash.as_ref()[..16]);
        Self(u128::from_le_bytes(start))
    }
}

#[cfg(test)]
mod tests;
