//! Connects to Redis and calls the scripts that charge limits there: one script call per request,
//! and a typed failure if Redis gives no decision. The caller handles the failure.
//!
//! In this crate, `::redis` is the client library.
//!
//! Terms:
//!
//! - A **server** is a running Redis process. A **node** (`RedisNode`) is this process's record of
//!   one server: its address, its health and the number of open breakers.
//! - A **shard** is a set of keys that one script call can reach together: one of the configured
//!   `shards`, a slot of a Cluster, or all keys if there is one server. [`ShardId`] names it.
//! - A **connection** is one TCP connection to a server, shared by pipelined commands.
//!
//! [`RedisBackend`] is shared by the process: it owns the nodes, and makes the calls that no
//! request waits for. [`RedisClient`] belongs to one worker: it has a connection and a circuit
//! breaker for each node. [`Connector`] opens further connections, for the throttle's bulk
//! transfers.
//!
//! Promises: a request waits at most for the response timeout, and not at all while the breaker is
//! open. A call that may have been executed is never repeated. No URL, password or argument is
//! logged.
//!
//! It does not decide: the scripts do, as [`tidegate_limit`] would. It keeps no counter, and what
//! happens to a request without an answer is the caller's policy.
//!
//! | file | content |
//! |---|---|
//! | `options`, `context` | servers, credentials and timeouts; the state that all parts share |
//! | `backend`, `client` | the process's part and a worker's part |
//! | `shard_id`, `cluster`, `sentinel`, `sentinel_watch` | find the server that holds a key |
//! | `node`, `health`, `probe`, `background` | find out if a server can be used |
//! | `connect`, `breaker` | open and replace connections |
//! | `script`, `script_texts`, `script_call`, `call`, `late_reply`, `failure` | commands, replies, late replies, errors |
//! | `presence`, `presence_keys`, `heartbeat` | find out which gateways are alive |
//!
//! ```
//! use tidegate_redis::{Script, ScriptRef};
//!
//! let script = Script::new("return redis.call('PING')");
//! let command = script.command(ScriptRef::Hash);
//! assert_eq!(command.args_iter().count(), 2, "EVALSHA and the hash");
//! ```

mod backend;
mod background;
mod breaker;
mod call;
mod client;
mod cluster;
mod connect;
mod context;
mod failure;
mod health;
mod heartbeat;
mod late_reply;
mod node;
mod options;
mod presence;
mod presence_keys;
mod probe;
mod script;
mod script_call;
pub mod script_texts;
mod sentinel;
mod sentinel_watch;
mod shard_id;

use self::failure::error_code;
pub use self::health::LONGEST_PROBE_INTERVAL;
pub use self::node::NodeConnection;
pub use self::{
    backend::{Connector, RedisBackend, ShardStatus},
    client::RedisClient,
    failure::RedisFailure,
    late_reply::{CallError, LATE_REPLY_TIMEOUT, LateReply},
    options::{Credentials, RedisOptions, RedisSetupError, ShardUrls, Topology},
    presence::{Presence, Reporter},
    script_call::{Script, ScriptRef},
    shard_id::ShardId,
};
