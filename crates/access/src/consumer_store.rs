//! Consumers that are kept in Redis: looked up when a request needs them, and changed by the admin
//! API.
//!
//! There may be ten million of them, so a gateway has no list. One task on the control thread reads
//! records for all workers; what it read is known for 30 s, and an unknown key or name for 5 s.
//! While Redis fails, a consumer may be used for ten minutes after it was read. A consumer that was
//! found is a [`ConsumerTable`](crate::auth::ConsumerTable) of one record, so that the rules are
//! the same as for a file.
//!
//! | file | content |
//! |---|---|
//! | `record` | the record of a consumer, as JSON |
//! | `names` | the keys of records in Redis |
//! | `redis` | reads and replaces records in Redis |
//! | `cache` | what was looked up a short time ago |
//! | `query` | what is looked up |
//! | `lookup` | [`ConsumerStore`]: looks consumers up for requests |
//! | `reader` | the task that reads records |
//! | `change` | changes for the admin API |
//!
//! ```
//! use tidegate_access::consumer_store::parse_consumer;
//!
//! let own = parse_consumer(br#"{"name": "acme", "plan": "gold"}"#).unwrap();
//! assert_eq!(own.plan.as_deref(), Some("gold"));
//! assert!(parse_consumer(br#"{"name": "acme", "plam": "gold"}"#).is_err());
//! ```

mod cache;
mod change;
mod lookup;
mod names;
mod query;
mod reader;
mod record;
mod redis;

pub use self::{
    cache::{FOUND_TIME, OUTAGE_TIME, UNKNOWN_TIME},
    change::{ChangeError, ChangeOutcome, PutConsumer},
    lookup::{ConsumerLookup, ConsumerStore, LookupOutcome, PendingLookup},
    query::LookupFailed,
    record::{
        CredentialChange, MAX_KEYS, RequestedConsumer, RequestedConsumerKey, parse_consumer,
        parse_key, parse_requested,
    },
    redis::MAX_RECORD,
};
