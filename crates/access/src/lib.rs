//! Who sends a request: keys, passwords, certificates, signed tokens, and the records of consumers
//! behind them.
//!
//! It verifies credentials and holds what operators know of consumers. It does not decide what a
//! consumer may do: plans and limits are rules of the configuration.
//!
//! - [`auth`]: the methods of authentication, and the table of consumers.
//! - [`consumer_store`]: consumers that several gateways share in Redis.
//! - [`key_sets`]: the keys of issuers of signed tokens, which are fetched in the background.
//! - [`overrides`]: quotas that operators set at run time, in Redis or in a file.
//!
//! ```
//! use tidegate_access::auth::{ApiKey, check_form};
//!
//! let key = ApiKey::generate().expect("random numbers");
//! assert!(check_form(key.as_str()).is_ok());
//! assert!(check_form(&key.as_str().replace('_', "-")).is_err());
//! ```

pub mod auth;
pub mod consumer_store;
pub mod key_sets;
pub mod overrides;
