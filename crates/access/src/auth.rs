//! Who sends a request: the ways to authenticate, and the consumers. Pure and stateless: time,
//! records and credentials are parameters.
//!
//! | file | content |
//! |---|---|
//! | `key` | [`ApiKey`]: the form of API keys, their checksum and their hash |
//! | `consumers` | [`ConsumerTable`]: finds a consumer by the hash of a key, or by its name |
//! | `kind` | [`AuthMethod`]: a way to authenticate |
//! | `bearer` | which methods read a value after `Authorization: Bearer` |
//! | `password` | [`BasicCredentials`], and the hashes of passwords |
//! | `forward` | [`ForwardAuth`]: a service that decides |
//! | `proof_cache` | [`ProofCache`]: credentials that were verified a short time ago |
//! | `jwt` | signed tokens |
//! | `method` | [`RouteAuth`]: reads the credentials of a request, and verifies them |
//! | `refusal` | [`Unauthenticated`]: the refusal, and its challenges |
//!
//! A request is authenticated in two steps, between which a caller may check that its client does
//! not guess: the credentials are read ([`RouteAuth::presented`]), and verified
//! ([`RouteAuth::verify`]).
//!
//! ```
//! use tidegate_access::auth::{ApiKey, ConsumerTableBuilder, check_form};
//! use tidegate_system::clock::StoreTime;
//! use tidegate_config::{ConsumerRecord, KeyRecord, RecordSink};
//!
//! let key = ApiKey::generate()?;
//! assert!(check_form(key.as_str()).is_ok());
//!
//! let hash = key.hash().to_string().into();
//! let record = KeyRecord { sha256: hash, ..KeyRecord::default() };
//! let keys = [record].into_iter().collect();
//! let acme = ConsumerRecord { name: "acme".into(), keys, ..ConsumerRecord::default() };
//! let mut builder = ConsumerTableBuilder::new(&[]);
//! assert!(builder.add(&acme, 1).is_empty());
//! let found = builder.build();
//! let found = found.key(&key.hash(), StoreTime::ZERO).expect("a key");
//! assert_eq!(found.consumer.name, "acme");
//! # Ok::<(), getrandom::Error>(())
//! ```

mod bearer;
mod consumers;
mod forward;
pub mod jwt;
mod key;
mod kind;
mod method;
mod password;
mod proof_cache;
mod refusal;

pub use consumers::{
    ConsumerTable, ConsumerTableBuilder, FoundConsumer, FoundKey, KeyValidity, prefixed_name,
};
pub use forward::{ForwardAuth, ServiceFailure, may_prove};
pub use key::{ApiKey, KeyFormError, KeyHash, check_form};
pub use kind::{AuthKind, AuthMethod, KeyForwarding};
pub use method::{
    AllowedConsumers, AuthContext, AuthCredentials, AuthError, ConsumerQuery, PasswordProof,
    PresentedCredentials, RouteAuth, TokenProof, Verification, WithoutCredentials, certified,
};
pub use password::{BasicCredentials, check_password_hash, hash_password, is_password_of};
pub use proof_cache::{ProofCache, ProofDigest};
pub use refusal::{AuthRefusal, Unauthenticated};
pub use tidegate_config::is_consumer_name;
