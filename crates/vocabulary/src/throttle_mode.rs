//! [`ThrottleMode`]: when the gateway throttles.

use serde::{Deserialize, Serialize};

/// When the gateway throttles.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ThrottleMode {
    /// While too many users are active, by `max_active` and `resume_below`.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

impl ThrottleMode {
    /// The name in the configuration, in metrics and in the admin API.
    pub fn label(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        }
    }

    /// The mode with this [`Self::label`].
    pub fn from_label(label: &str) -> Option<Self> {
        [Self::Auto, Self::On, Self::Off].into_iter().find(|mode| mode.label() == label)
    }
}
