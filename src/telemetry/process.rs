//! The process log on stderr, written by a separate thread.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    io::{self, Write},
    panic::{self, PanicHookInfo},
    sync::OnceLock,
};

use parking_lot::Mutex;

use tracing_subscriber::{
    EnvFilter,
    filter::{LevelFilter, ParseError},
};

use super::{
    queue::{LogQueue, LogThread},
    sink::{Destination, FileSink},
    style::{Colours, LogStyle},
};

/// Maximum size of the queue, in bytes.
const MAX_QUEUED_BYTES: usize = 4 * 1024 * 1024;

/// The queue of the log's thread; empty until [`start_process_log`], as in tests and short commands.
static QUEUE: OnceLock<LogQueue> = OnceLock::new();

/// The filter of the running log; empty until [`start_process_log`].
static FILTER: OnceLock<LogFilter> = OnceLock::new();

/// A filter's text, and the function that replaces the filter.
struct LogFilter {
    text: Mutex<String>,
    replace: Box<ReplaceFilter>,
}

/// Replaces the filter. Returns false if the log has ended.
type ReplaceFilter = dyn Fn(EnvFilter) -> bool + Send + Sync;

/// Why a text is not a filter.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// A part of the text has no valid level.
    #[error("`{0}` is not a level")]
    NotALevel(String),
    /// The text is malformed.
    #[error("{0}")]
    Malformed(#[from] ParseError),
}

fn is_level(text: &str) -> bool {
    let levels = ["off", "error", "warn", "info", "debug", "trace"];
    levels.iter().any(|level| level.eq_ignore_ascii_case(text))
}

/// Parses a filter of the process log, such as `info` or `tidegate=debug`.
///
/// Some libraries are limited unless the filter names them. The file watcher (`notify`) logs at most at `info`:
/// otherwise, if the log is in the watched folder, each line would cause another one. The libraries for HTTP/2, TLS
/// and DNS are silenced: they log every malformed frame, record or datagram.
///
/// # Errors
///
/// If `text` is not a filter of `tracing_subscriber`, or a part of it has no valid level.
pub fn parse_filter(text: &str) -> Result<EnvFilter, FilterError> {
    // `EnvFilter` would take a misspelled level for a module's name, and show only that module.
    let mut parts = text.split(',').map(str::trim);
    if let Some(part) = parts.find(|part| !part.contains(['=', '[']) && !is_level(part)) {
        return Err(FilterError::NotALevel(part.to_owned()));
    }
    let mut filter = EnvFilter::try_new(text)?;
    let is_verbose = filter.max_level_hint().is_none_or(|level| level > LevelFilter::INFO);
    for (library, limit) in [
        ("notify", "notify=info"),
        ("h2", "h2=off"),
        ("rustls", "rustls=off"),
        ("hickory", "hickory_net=off"),
        ("hickory", "hickory_proto=off"),
        ("hickory", "hickory_resolver=off"),
    ] {
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
pub fn start_process_log(filter: &str, style: LogStyle) -> io::Result<ProcessLogGuard> {
    let (text, filter) = match parse_filter(filter) {
        Ok(parsed) => (filter, parsed),
        Err(_) => ("info", EnvFilter::new("info")),
    };
    let sink = FileSink::open(&Destination::Stderr)?;
    let (queue, thread) = LogQueue::start("process", Box::new(sink), MAX_QUEUED_BYTES, 0)?;
    // Tests start the log several times in one process: the first queue stays in use.
    let queue = QUEUE.get_or_init(|| queue);
    if let Some(replace) = subscribe(queue, filter, style) {
        let _ = FILTER.set(LogFilter { text: Mutex::new(text.to_owned()), replace });
    }
    panic::set_hook(Box::new(log_panic));
    Ok(ProcessLogGuard { _thread: thread })
}

/// Sends events to `queue`. Returns the function that replaces `filter`; `None` if there is a subscriber already.
fn subscribe(
    queue: &'static LogQueue,
    filter: EnvFilter,
    style: LogStyle,
) -> Option<Box<ReplaceFilter>> {
    let events = tracing_subscriber::fmt()
        .log_internal_errors(false)
        .with_writer(move || QueueWriter(queue));
    match style {
        LogStyle::Json => {
            let events = events.json().flatten_event(true);
            let events = events.with_env_filter(filter).with_filter_reloading();
            let handle = events.reload_handle();
            events.try_init().ok()?;
            Some(Box::new(move |filter| handle.reload(filter).is_ok()))
        }
        LogStyle::Text { colours } => {
            let events = events.with_ansi(colours == Colours::On);
            let events = events.with_env_filter(filter).with_filter_reloading();
            let handle = events.reload_handle();
            events.try_init().ok()?;
            Some(Box::new(move |filter| handle.reload(filter).is_ok()))
        }
    }
}

/// The filter of the process log; `None` if none was started.
pub fn process_log_filter() -> Option<String> {
    FILTER.get().map(|filter| filter.text.lock().clone())
}

/// Replaces the filter of the process log. Returns false if none was started or `text` is not a filter.
pub fn set_process_log_filter(text: &str) -> bool {
    let (Some(running), Ok(filter)) = (FILTER.get(), parse_filter(text)) else { return false };
    // The lock spans both steps, so that the text always belongs to the filter in use.
    let mut current = running.text.lock();
    let is_replaced = (running.replace)(filter);
    if is_replaced {
        text.clone_into(&mut current);
    }
    drop(current);
    is_replaced
}

/// Number of lines of the process log lost, because stderr was slow or a write failed.
pub fn process_log_dropped() -> u64 {
    QUEUE.get().map_or(0, LogQueue::dropped)
}

/// Queues each written text as one line, because the subscriber writes each line with one call.
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
            let filter = parse_filter(text).unwrap().to_string();
            let others = filter.split(',').filter(|part| !part.starts_with("hickory"));
            assert_eq!(others.collect::<Vec<_>>().join(","), shown);
            assert_eq!(filter.matches("hickory").count(), 3);
        }
        for text in ["tidegate=loud", "verbose", "warning", "info,loud", ""] {
            assert!(parse_filter(text).is_err(), "{text}");
        }
    }
}
