//! Overrides: quotas that an operator sets at run time for one consumer, key or plan under one
//! limit.
//!
//! They are kept in Redis, where all gateways read them, or in a file. This module has the records,
//! their texts and both places; what applies to a request is decided with the rules, because it
//! depends on the limits.
//!
//! | file | content |
//! |---|---|
//! | `record` | [`Override`]: one override, and its id |
//! | `fields` | checks the texts of an override, in JSON or from a file |
//! | `set` | [`OverrideSet`]: all of them, in bounded number |
//! | `change` | [`OverrideChange`]: a change, and why it may fail |
//! | `store` | [`OverrideStore`]: where they are kept; reads and changes them |
//! | `file` | the file |
//! | `listed` | the list of the admin API, for `explain` |
//! | `redis` | the hash in Redis |
//!
//! ```
//! use tidegate_access::overrides::Override;
//! use tidegate_limit::ms;
//!
//! let text = r#"{"limit": "per-consumer", "consumer": "acme", "quota": 5000, "until": "2026-12-01"}"#;
//! let read = Override::of_json(text.as_bytes()).unwrap();
//! assert_eq!(read.to_string(), "per-consumer, consumer acme: 5000 until 2026-12-01T00:00:00Z");
//! assert!(read.is_in_force(read.until.unwrap() - ms(1)) && !read.is_in_force(read.until.unwrap()));
//! ```

mod change;
mod fields;
mod file;
mod listed;
mod record;
mod redis;
mod set;
mod store;

pub use self::{
    change::{Changed, OverrideChange, OverrideError},
    fields::{
        MAX_KEY_VALUES, MAX_NAME, MAX_REASON, RequestedKey, RequestedOverride, parse_request,
    },
    file::{OverridesContent, parse_file, read_file},
    listed::{parse_list, read_file_or_list},
    record::{Override, OverrideId, OverrideTarget, time_text},
    set::{MAX_OVERRIDES, OverrideSet},
    store::{OverrideStore, StoreCounts},
};
