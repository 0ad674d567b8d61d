//! The identity of a request: the client's address behind trusted proxies, access tokens, and the
//! keys that limits count by. Pure and stateless.
//!
//! Two spellings of a value that an upstream reads alike give one key: values are hashed in a
//! canonical form. A value that upstreams could read in different ways is rejected
//! ([`AmbiguousValue`]). Keys are hashed under a secret, so they do not disclose the values.
//!
//! It verifies nothing: whether a key or a token is genuine is decided in `tidegate-access`.
//!
//! | file | content |
//! |---|---|
//! | `client` | [`TrustedProxies`]: the client's address from `X-Forwarded-For` |
//! | `token`, `credentials` | [`token()`]: the access token; the credentials of `Authorization` |
//! | `extract` | the single value of a header, cookie or query parameter |
//! | `canonical` | the canonical form of each kind of value |
//! | `signed` | signed tokens: only the canonical spelling is accepted |
//! | `key` | [`KeyPlan`], [`Subject`]: a request's key, as a keyed hash of its parts |
//! | `key_input` | [`KeyInput`]: the key of values that an operator enters |
//! | `condition` | the values that route conditions test |
//! | `api_key` | [`ApiKeySource`]: where a client sends an API key; [`RemovedCredentials`] |
//! | `consumer`, `claims` | [`Consumer`]: who sends a request; [`TokenClaims`]: the claims of its token |
//! | `descriptor`, `descriptor_key` | [`DescriptorEntry`], and the keys of descriptors in calls to the rate limit service |
//! | `caller` | [`Caller`]: the hash that identifies a caller to the throttle |
//! | `syntax` | how key parts, and the places of keys and tokens, are written in a file |
//! | `values` | [`KeyValues`]: a key's parts for display, with secrets masked |
//!
//! ```
//! use tidegate_http1::Fields;
//! use tidegate_identity::{CredentialSource, TrustedProxies, token};
//!
//! let fields: Fields =
//!     [("Authorization", "bearer  abc"), ("X-Forwarded-For", "6.6.6.6, 198.51.100.1")]
//!         .into_iter()
//!         .collect();
//! let sources = [CredentialSource::Header(http::header::AUTHORIZATION)];
//! let token = token(&sources, &fields)?.expect("a token");
//! assert_eq!(&*token.value, b"abc");
//!
//! // The rightmost address that is not a trusted proxy is the client.
//! let proxies = TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap()]);
//! let client = proxies.client("10.0.0.1".parse().unwrap(), &fields);
//! assert_eq!(client.ip.to_string(), "198.51.100.1");
//! # Ok::<(), tidegate_identity::AmbiguousValue>(())
//! ```

mod api_key;
mod caller;
mod canonical;
mod claims;
pub mod client;
mod condition;
mod consumer;
mod credentials;
mod descriptor;
mod descriptor_key;
mod extract;
pub mod key;
mod key_input;
mod signed;
mod syntax;
pub mod token;
mod values;

pub use api_key::{
    ApiKeySource, PasswordRemoval, RemovedCredentials, after_scheme, has_token_form,
};
pub use caller::{Caller, address_key, caller_key, token_hash};
pub use canonical::{trim, trim_text};
pub use claims::TokenClaims;
pub use client::{AddressSource, ClientAddress, TrustedProxies};
pub use condition::{caller_bucket, header_value, is_forwarding_field};
pub use consumer::{Consumer, OwnedConsumer};
pub use descriptor::DescriptorEntry;
pub use descriptor_key::{descriptor_key, descriptor_values_key};
pub use extract::AmbiguousValue;
pub use extract::QueryPairs;
pub use extract::single_header;
pub use key::{KeyPart, KeyPlan, SplitHash, Subject, TokenHash};
pub use key_input::{KeyInput, KeyInputError};
pub use token::{CredentialSource, token};
pub use values::{KeyValues, PartValue};

pub use tidegate_system::secret::KeySecret;
