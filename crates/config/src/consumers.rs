//! `consumers`: the customers that use the gateway's routes.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::consumers_file::{ConsumerRecord, KeyRecord};
#[cfg(test)]
use super::{
    end_time::LastYear,
    pattern::range_pattern,
    plain_text::{MAX_CONSUMER_NAME, consumer_name_pattern, printable_pattern},
};

/// The pattern of hashes of passwords: argon2 in the PHC string format, or bcrypt, at a bounded
/// cost. That memory must suffice for the lanes it cannot say.
#[cfg(test)]
fn password_pattern() -> String {
    let [memory, passes, lanes] =
        [(8, 262_144), (1, 32), (1, 16)].map(|(least, most)| range_pattern(least, most));
    let base64 = "[A-Za-z0-9+/]+";
    let argon2 = format!(
        "argon2(d|i|id)\\$(v=(16|19)\\$)?m=({memory}),t=({passes}),p=({lanes})\\${base64}\\${base64}"
    );
    format!("^\\$({argon2}|2[abxy]\\$(0[4-9]|1[0-4])\\$[./A-Za-z0-9]{{53}})$")
}

/// The consumers: in a file of their own, in this one, or in Redis.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ConsumersConfig {
    /// Path of a file with a list of consumers in YAML, or with a consumer in JSON in each line. When it changes, it is read again, and nothing
    /// else changes; a faulty file keeps the consumers that were read before. Default: none.
    pub file: Option<PathBuf>,
    /// Consumers, instead of a file.
    #[serde(default)]
    pub entries: Vec<ConsumerConfig>,
    /// Keep the consumers in the Redis of `store`, where the admin API changes them. A gateway
    /// looks each one up when it sends a request, and keeps what it found for 30 s.
    #[serde(default)]
    pub redis: bool,
}

/// A consumer.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ConsumerConfig {
    /// Name of the consumer in counters, logs and headers: 1 to 128 printable characters without
    /// white space at an end, unique among the consumers.
    #[cfg_attr(
        test,
        schemars(
            length(min = 1, max = MAX_CONSUMER_NAME),
            extend("pattern" = consumer_name_pattern()),
        )
    )]
    pub name: String,
    /// Name of its plan. Default: none, and limits have their own quotas.
    pub plan: Option<String>,
    /// First day of its months, 1 to 31, in limits with `window: month` that count by `consumer`;
    /// the month's last day where the month is shorter. Default: none, and the limit's `starts`
    /// applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(range(min = 1, max = 31)))]
    pub billing_day: Option<u8>,
    /// Its API keys; at most 64 in Redis.
    #[serde(default)]
    pub keys: Vec<ConsumerKeyConfig>,
    /// Hash of its password, for `basic`: argon2 as `argon2` prints it, or bcrypt as `htpasswd -B`
    /// does. Default: none.
    #[cfg_attr(test, schemars(extend("pattern" = password_pattern())))]
    pub password: Option<String>,
    /// Texts for your own tools, by name. The gateway does not use them.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Refuse its requests.
    #[serde(default)]
    pub disabled: bool,
}

impl ConsumerConfig {
    /// The record with these values.
    pub fn record(&self) -> ConsumerRecord<'_> {
        let keys = self.keys.iter().map(|key| KeyRecord {
            id: key.id.as_deref().map(Into::into),
            sha256: key.sha256.as_str().into(),
            expires: key.expires.as_deref().map(Into::into),
        });
        ConsumerRecord {
            name: self.name.as_str().into(),
            plan: self.plan.as_deref().map(Into::into),
            billing_day: self.billing_day.map(|day| day.to_string().into()),
            keys: keys.collect(),
            password: self.password.as_deref().map(Into::into),
            is_disabled: self.disabled,
        }
    }
}

/// An API key of a consumer. `tidegate key new` prints a key and its record.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ConsumerKeyConfig {
    /// Name of the key, for operators: at most 64 printable characters. Default: none.
    #[cfg_attr(test, schemars(length(max = 64), extend("pattern" = printable_pattern())))]
    pub id: Option<String>,
    /// SHA-256 of the key, in hexadecimal digits. The key itself is in no file.
    #[cfg_attr(test, schemars(regex(pattern = "^[0-9A-Fa-f]{64}$")))]
    pub sha256: String,
    /// When the key ceases to be valid, such as `2027-01-01T00:00:00Z` or `2027-01-01`. Default:
    /// never.
    #[cfg_attr(test, schemars(extend("pattern" = LastYear::OF_KEYS.pattern())))]
    pub expires: Option<String>,
}

/// The consumers that may use a route: each that has one of the plans or names.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct RouteConsumersConfig {
    /// Names of plans.
    pub plans: Vec<String>,
    /// Names of consumers.
    pub names: Vec<String>,
}
