//! The algorithms of signatures, as the library that verifies them has them.

use aws_lc_rs::hmac;
use aws_lc_rs::signature::{self, RsaParameters, VerificationAlgorithm};
use tidegate_vocabulary::JwtAlgorithm;
pub use tidegate_vocabulary::JwtKeyType;

/// The parameters of an algorithm with RSA; `None` for another type of key.
pub(super) fn rsa_parameters(algorithm: JwtAlgorithm) -> Option<&'static RsaParameters> {
    Some(match algorithm {
        JwtAlgorithm::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
        JwtAlgorithm::Rs384 => &signature::RSA_PKCS1_2048_8192_SHA384,
        JwtAlgorithm::Rs512 => &signature::RSA_PKCS1_2048_8192_SHA512,
        JwtAlgorithm::Ps256 => &signature::RSA_PSS_2048_8192_SHA256,
        JwtAlgorithm::Ps384 => &signature::RSA_PSS_2048_8192_SHA384,
        JwtAlgorithm::Ps512 => &signature::RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}

/// The parameters of an algorithm with a key on a curve; `None` for another type of key.
pub(super) fn curve_parameters(
    algorithm: JwtAlgorithm,
) -> Option<&'static dyn VerificationAlgorithm> {
    Some(match algorithm {
        JwtAlgorithm::Es256 => &signature::ECDSA_P256_SHA256_FIXED,
        JwtAlgorithm::Es384 => &signature::ECDSA_P384_SHA384_FIXED,
        JwtAlgorithm::EdDsa => &signature::ED25519,
        _ => return None,
    })
}

/// The parameters of an algorithm with a secret; `None` for another type of key.
pub(super) fn hmac_parameters(algorithm: JwtAlgorithm) -> Option<hmac::Algorithm> {
    Some(match algorithm {
        JwtAlgorithm::Hs256 => hmac::HMAC_SHA256,
        JwtAlgorithm::Hs384 => hmac::HMAC_SHA384,
        JwtAlgorithm::Hs512 => hmac::HMAC_SHA512,
        _ => return None,
    })
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
                rsa_parameters(algorithm).is_some(),
                curve_parameters(algorithm).is_some(),
                hmac_parameters(algorithm).is_some(),
            ];
            assert_eq!(is_known.iter().filter(|known| **known).count(), 1, "{algorithm:?}");
        }
        for name in ["none", "None", "rs256", "HS256 ", "", "ES512", "RS1", "EDDSA", "ES256K"] {
            assert_eq!(JwtAlgorithm::of_name(name), None, "{name}");
        }
    }
}
