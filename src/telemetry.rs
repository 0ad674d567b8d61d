//! The process's own log, and the access log: one JSON line a request.
//!
//! No token, no key and no query ever reach either; of a token, a keyed hash does. Both are written by
//! threads of their own: nothing that logs waits for a disk, a pipe or a terminal.

mod access;
mod line;
mod process;
mod queue;
mod sink;

pub use self::{
    access::{AccessLog, AccessLogGuard, AccessWriter},
    line::{AccessLine, Cut},
    process::{ProcessLogGuard, filter, process_log_dropped, start},
    sink::Destination,
};
