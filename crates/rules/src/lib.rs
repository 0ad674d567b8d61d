//! What is decided before and after a request is charged: a configuration compiled into immutable
//! rules, the decision of a request, and the gateway's own responses.
//!
//! It has no sockets and charges nothing: the gateway, `explain` and `replay` decide with it alike.
//!
//! - [`snapshot`]: a configuration compiled into immutable rules, with all its faults and notes.
//! - [`live`]: the current rules, which a reload replaces.
//! - [`plan`]: a request's route, keys and costs, before anything is charged.
//! - [`error`](mod@error): every reason why a request is refused or fails.
//! - [`respond`]: rate-limit headers, problem documents and other responses of the gateway itself.
//!
//! ```
//! use tidegate_rules::snapshot::{SecretReading, Snapshot};
//!
//! let text = "
//! upstreams: {app: {targets: [http://127.0.0.1:9000]}}
//! limits: {per-caller: {quota: 100, window: 1m}}
//! routes: [{name: all, match: {path: '/{*rest}'}, upstream: app, limits: [per-caller]}]
//! ";
//! let loaded = tidegate_config::parse("api.yaml", text).unwrap();
//! let rules = Snapshot::compile(&loaded, SecretReading::Unread).unwrap();
//! assert_eq!((rules.routes.len(), rules.limits.len()), (1, 1));
//! ```

pub mod error;
pub mod live;
pub mod plan;
pub mod respond;
pub mod snapshot;
