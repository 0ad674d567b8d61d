//! The process log: JSON lines on stderr, written by a separate thread.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    io::{self, Write},
    panic::{self, PanicHookInfo},
    sync::OnceLock,
};

use tracing_subscriber::{
    EnvFilter,
    filter::{LevelFilter, ParseError},
};

use super::{
    queue::{LogQueue, LogThread},
    sink::{Destination, FileSink},
};

/// Maximum size of the queue, in bytes.
const MAX_QUEUED_BYTES: usize = 4 * 1024 * 1024;

/// The queue of the log's thread; empty until [`start_process_log`], as in tests and short commands.
static QUEUE: OnceLock<LogQueue> = OnceLock::new();

/// Parses a filter of the process log, such as `info` or `tidegate=debug`.
///
/// Some libraries are limited unless the filter names them. The file watcher (`notify`) logs at most at `info`:
/// if the log is written into the watched folder, each line would otherwise cause another one. Those of
/// HTTP/2 and TLS log nothing: they write a line for each frame or record of a client that is wrong.
///
/// # Errors
///
/// If `text` is not a filter of `tracing_subscriber`.
pub fn parse_filter(text: &str) -> Result<EnvFilter, ParseError> {
    let mut filter = EnvFilter::try_new(text)?;
    let is_verbose = filter.max_level_hint().is_none_or(|level| level > LevelFilter::INFO);
    for (library, limit) in [("notify", "notify=info"), ("h2", "h2=off"), ("rustls", "rustls=off")]
    {
        let is_limited = is_verbose || library != "notify";
        if is_limited && !text.contains(library) {
            filter = filter.add_directive(limit.parse()?);
        }
    }
    Ok(filter)
}

/// Owns the process log's thread. Dropping it writes the queued lines; a stderr that accepts nothing for 2 s
/// is abandoned.
#[must_use = "the process log ends when this is dropped"]
pub struct ProcessLogGuard {
    _thread: LogThread,
}

/// Starts the process log on stderr, at `info` if `filter` is invalid. Neither logging nor a panic waits for
/// stderr.
///
/// # Errors
///
/// If stderr cannot be duplicated or the thread cannot be started.
pub fn start_process_log(filter: &str) -> io::Result<ProcessLogGuard> {
    let filter = parse_filter(filter).unwrap_or_else(|_| EnvFilter::new("info"));
    let sink = FileSink::open(&Destination::Stderr)?;
    let (queue, thread) = LogQueue::start("process", Box::new(sink), MAX_QUEUED_BYTES, 0)?;
    // Tests start the log several times in one process: the first queue stays in use.
    let queue = QUEUE.get_or_init(|| queue);
    let _ = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_env_filter(filter)
        .log_internal_errors(false)
        .with_writer(|| QueueWriter(queue))
        .try_init();
    panic::set_hook(Box::new(log_panic));
    Ok(ProcessLogGuard { _thread: thread })
}

/// Number of lines of the process log lost, because stderr was slow or a write failed.
pub fn process_log_dropped() -> u64 {
    QUEUE.get().map_or(0, LogQueue::dropped)
}

/// Queues each line; the subscriber writes a line with one call.
struct QueueWriter(&'static LogQueue);

impl Write for QueueWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line.into(), 1);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Logs a panic. The standard hook would block on stderr.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let message = panic.payload_as_str().unwrap_or("no message");
    let location = panic.location().map(ToString::to_string);
    let thread = std::thread::current();
    let backtrace = Backtrace::capture();
    let is_captured = backtrace.status() == BacktraceStatus::Captured;
    let backtrace = is_captured.then(|| backtrace.to_string());
    let thread = thread.name();
    tracing::error!(panic = message, location, thread, backtrace, "a thread panicked");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_limited_unless_the_filter_names_them() {
        for (text, shown) in [
            ("trace", "rustls=off,notify=info,h2=off,trace"),
            ("notify=trace", "rustls=off,notify=trace,h2=off"),
            ("info", "rustls=off,h2=off,info"),
            ("info,h2=debug", "rustls=off,notify=info,h2=debug,info"),
            ("off", "rustls=off,h2=off,off"),
        ] {
            assert_eq!(parse_filter(text).unwrap().to_string(), shown);
        }
        assert!(parse_filter("tidegate=loud").is_err());
    }
}
