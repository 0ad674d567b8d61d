//! API keys of tests.

use tidegate::auth::KeyHash;

/// The hash of the key of the consumer `name`, as files of consumers have it.
pub fn hash(name: &str) -> String {
    KeyHash::of(format!("key of {name}").as_bytes()).to_string()
}

/// The header line with the key of the consumer `name`.
pub fn key(name: &str) -> String {
    format!("X-Api-Key: key of {name}\r\n")
}
