//! The process log and the access log: readable lines on a terminal, elsewhere JSON. The access log
//! has one line per request.
//!
//! # Guarantees
//!
//! - No token, key or query is logged; a keyed hash stands for a token.
//! - Logging never waits for a disk, a pipe or a terminal: each log has its own thread and a
//!   bounded queue. Lines that do not fit are dropped and counted.
//!
//! | file | content |
//! |---|---|
//! | `access` | the access log: a buffer per worker |
//! | `line` | an access line, and its formats |
//! | `process` | the process log on stderr, for `tracing` and panics |
//! | `queue` | the bounded queue and the thread of a log |
//! | `sink` | the files and streams of logs |
//! | `style` | log lines for people or for programs |

mod access;
mod line;
mod process;
mod queue;
mod sink;
mod style;

pub use self::{
    access::{AccessLog, AccessLogGuard, AccessWriter},
    line::{AccessField, AccessFormat, AccessLayout, AccessLine, CutReason, LimitCost},
    process::{
        LOG_LEVELS, ProcessLogGuard, parse_filter, process_log_dropped, process_log_filter,
        set_process_log_filter, start_process_log,
    },
    sink::Destination,
    style::{Colours, LogStyle},
};
