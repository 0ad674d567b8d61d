//! Signed tokens (JWT, RFC 7519), by the practices of RFC 8725. Pure, except for the cell of
//! current keys: keys and time are parameters.
//!
//! | file | content |
//! |---|---|
//! | `algorithm` | the algorithms, and the type of key that each needs |
//! | `json` | [`JsonObject`]: JSON without duplicate names |
//! | `token` | [`CompactToken`]: the parts of a token, before it is verified |
//! | `key_set` | [`KeySet`]: the keys of a JWK Set, or a secret |
//! | `claims` | [`ClaimRules`]: what the claims must be, and what is kept of them |
//! | `verifier` | [`JwtVerifier`]: verifies a token |
//! | `cache` | [`TokenCache`]: the verified tokens of a worker |
//! | `refresh` | [`RefreshSchedule`]: when a key set is fetched |
//! | `live` | [`LiveKeySet`]: the current keys of a method |
//! | `method` | [`JwtMethod`]: the method `jwt` of a configuration |
//! | `test_issuer` | signs tokens, for tests |
//!
//! The algorithm is one of the configuration's that fits the type of the key; the token's header
//! only chooses among them. Nothing in a header leads to a key: `jwk`, `jku`, `x5c` and `x5u` are
//! ignored.

mod algorithm;
mod cache;
mod claims;
mod json;
mod key_set;
mod live;
mod method;
mod refresh;
#[cfg(test)]
mod test_issuer;
mod token;
mod verifier;

pub use algorithm::JwtKeyType;
pub use cache::TokenCache;
pub use claims::{CheckedClaims, ClaimRules, ClaimsError, RequiredClaim};
pub use json::{JsonError, JsonObject, JsonValue};
pub use key_set::{KeyFingerprint, KeySet, KeySetError, MAX_KEY_SET, MIN_SECRET};
pub use live::{LiveKeySet, Refetch};
pub(super) use method::JwtRefusal;
pub use method::{JwtMethod, KeyLocation, KeyServer, MissingClaims};
pub use refresh::{MIN_INTERVAL, RefreshSchedule, max_age};
pub use token::{CompactToken, CompactTokenError, JwtHeader, MAX_TOKEN};
pub use verifier::{JwtError, JwtVerifier, VerifiedToken};
