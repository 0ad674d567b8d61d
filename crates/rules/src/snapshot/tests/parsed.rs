//! A small configuration and variables, as the tests of `tidegate-config` have them.

use std::ffi::OsString;

/// A small valid configuration that tests break.
pub(super) const GOOD: &str = include_str!("../../../../config/src/tests/good.yaml");

/// Variables that [`GOOD`] and other configurations refer to.
pub(super) fn env(name: &str) -> Option<OsString> {
    match name {
        "QUOTA" => Some("5".into()),
        "WINDOW" => Some("10s".into()),
        "NAME" => Some("hello".into()),
        "NO" => Some("false".into()),
        "WORD" => Some("hush-me-1".into()),
        "MINUTE" => Some("60s".into()),
        "PLACE" => Some("127.0.0.1:081".into()),
        "RATE" => Some("5/10s".into()),
        _ => None,
    }
}
