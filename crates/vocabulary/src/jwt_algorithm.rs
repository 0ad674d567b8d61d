//! [`JwtAlgorithm`]: the algorithms of signatures, and the type of key that each needs.

use serde::{Deserialize, Serialize};

/// The algorithm of a token's signature (RFC 7518, 3.1 and RFC 8037).
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "UPPERCASE")]
pub enum JwtAlgorithm {
    /// RSA, PKCS #1 1.5 padding, SHA-256.
    Rs256,
    /// RSA, PKCS #1 1.5 padding, SHA-384.
    Rs384,
    /// RSA, PKCS #1 1.5 padding, SHA-512.
    Rs512,
    /// RSA, PSS padding, SHA-256.
    Ps256,
    /// RSA, PSS padding, SHA-384.
    Ps384,
    /// RSA, PSS padding, SHA-512.
    Ps512,
    /// ECDSA on P-256, SHA-256.
    Es256,
    /// ECDSA on P-384, SHA-384.
    Es384,
    /// Ed25519.
    #[serde(rename = "EdDSA")]
    EdDsa,
    /// HMAC, SHA-256.
    Hs256,
    /// HMAC, SHA-384.
    Hs384,
    /// HMAC, SHA-512.
    Hs512,
}

/// The type of a key. A key of one type verifies no signature of another one, whatever a token's
/// header says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum JwtKeyType {
    /// RSA.
    Rsa,
    /// A point on P-256.
    P256,
    /// A point on P-384.
    P384,
    /// Ed25519.
    Ed25519,
    /// A secret.
    Secret,
}

impl JwtAlgorithm {
    /// All algorithms.
    pub const ALL: [Self; 12] = [
        Self::Rs256,
        Self::Rs384,
        Self::Rs512,
        Self::Ps256,
        Self::Ps384,
        Self::Ps512,
        Self::Es256,
        Self::Es384,
        Self::EdDsa,
        Self::Hs256,
        Self::Hs384,
        Self::Hs512,
    ];

    /// The name in tokens, key sets and the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Rs384 => "RS384",
            Self::Rs512 => "RS512",
            Self::Ps256 => "PS256",
            Self::Ps384 => "PS384",
            Self::Ps512 => "PS512",
            Self::Es256 => "ES256",
            Self::Es384 => "ES384",
            Self::EdDsa => "EdDSA",
            Self::Hs256 => "HS256",
            Self::Hs384 => "HS384",
            Self::Hs512 => "HS512",
        }
    }

    /// The algorithm of this name, by its exact case (RFC 7515, 4.1.1). `Ed25519` is the name of
    /// `EdDSA` since RFC 9864.
    pub fn of_name(name: &str) -> Option<Self> {
        let name = if name == "Ed25519" { "EdDSA" } else { name };
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// The type of key that it needs.
    pub fn key_type(self) -> JwtKeyType {
        match self {
            Self::Rs256 | Self::Rs384 | Self::Rs512 | Self::Ps256 | Self::Ps384 | Self::Ps512 => {
                JwtKeyType::Rsa
            }
            Self::Es256 => JwtKeyType::P256,
            Self::Es384 => JwtKeyType::P384,
            Self::EdDsa => JwtKeyType::Ed25519,
            Self::Hs256 | Self::Hs384 | Self::Hs512 => JwtKeyType::Secret,
        }
    }
}
