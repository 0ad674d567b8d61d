//! The process log and the access log, both as JSON lines; the access log has one line per request.
//!
//! # What it promises
//!
//! - No token, key or query is logged; of a token, only a keyed hash.
//! - A caller never waits for a disk, a pipe or a terminal: each log has its own thread and a bounded queue.
//!   Lines that do not fit are dropped and counted.
//!
//! | module | purpose |
//! |---|---|
//! | `access` | the access log: a buffer per worker |
//! | `line` | the format of an access line |
//! | `process` | the process log on stderr, for `tracing` and panics |
//! | `queue` | the bounded queue and the thread of a log |
//! | `sink` | files and streams that a log is written to |

mod access;
mod line;
mod process;
mod queue;
mod sink;

pub use self::{
    access::{AccessLog, AccessLogGuard, AccessWriter},
    line::{AccessLine, CutReason},
    process::{ProcessLogGuard, parse_filter, process_log_dropped, start_process_log},
    sink::Destination,
};
