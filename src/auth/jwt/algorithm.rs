//! The algorithms of signatures, and the type of key that each needs.

use aws_lc_rs::hmac;
use aws_lc_rs::signature::{self, RsaParameters, VerificationAlgorithm};

use crate::config::JwtAlgorithm;

/// The type of a key. A key of one type verifies no signature of another one, whatever a token's header says.
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

    /// The algorithm of this name, by its exact case (RFC 7515, 4.1.1). `Ed25519` is the name of `EdDSA` since RFC 9864.
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

    /// Its parameters for RSA; `None` for another type of key.
    pub(super) fn rsa(self) -> Option<&'static RsaParameters> {
        Some(match self {
            Self::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
            Self::Rs384 => &signature::RSA_PKCS1_2048_8192_SHA384,
            Self::Rs512 => &signature::RSA_PKCS1_2048_8192_SHA512,
            Self::Ps256 => &signature::RSA_PSS_2048_8192_SHA256,
            Self::Ps384 => &signature::RSA_PSS_2048_8192_SHA384,
            Self::Ps512 => &signature::RSA_PSS_2048_8192_SHA512,
            _ => return None,
        })
    }

    /// Its parameters for a key on a curve; `None` for another type of key.
    pub(super) fn curve(self) -> Option<&'static dyn VerificationAlgorithm> {
        Some(match self {
            Self::Es256 => &signature::ECDSA_P256_SHA256_FIXED,
            Self::Es384 => &signature::ECDSA_P384_SHA384_FIXED,
            Self::EdDsa => &signature::ED25519,
            _ => return None,
        })
    }

    /// Its parameters for a secret; `None` for another type of key.
    pub(super) fn hmac(self) -> Option<hmac::Algorithm> {
        Some(match self {
            Self::Hs256 => hmac::HMAC_SHA256,
            Self::Hs384 => hmac::HMAC_SHA384,
            Self::Hs512 => hmac::HMAC_SHA512,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_exact() {
        for algorithm in JwtAlgorithm::ALL {
            assert_eq!(JwtAlgorithm::of_name(algorithm.name()), Some(algorithm));
            let configured = serde_json::to_value(algorithm).unwrap();
            assert_eq!(configured, algorithm.name(), "as in the configuration");
            let is_known = [
                algorithm.rsa().is_some(),
                algorithm.curve().is_some(),
                algorithm.hmac().is_some(),
            ];
            assert_eq!(is_known.iter().filter(|known| **known).count(), 1, "{algorithm:?}");
        }
        for name in ["none", "None", "rs256", "HS256 ", "", "ES512", "RS1", "EDDSA", "ES256K"] {
            assert_eq!(JwtAlgorithm::of_name(name), None, "{name}");
        }
    }
}
