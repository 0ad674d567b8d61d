//! Durations as values of arguments.

use std::time::Duration;

use serde::de::{
    DeserializeOwned,
    value::{Error, StrDeserializer},
};

use crate::config;

/// Parses a duration as in the configuration, except zero.
///
/// # Errors
///
/// What is expected instead.
pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    match read::<config::Duration>(text) {
        Ok(time) if !time.is_zero() => Ok(*time),
        _ => Err(format!("expected {}, above 0", config::Duration::SYNTAX)),
    }
}

fn read<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    T::deserialize(StrDeserializer::new(text))
}
