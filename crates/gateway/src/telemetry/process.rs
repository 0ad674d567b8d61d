//! The process log on stderr, written by a separate thread.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    io::{self, Write},
    panic::{self, PanicHookInfo},
    sync::OnceLock,
};

use parking_lot::Mutex;

use tracing::level_filters::STATIC_MAX_LEVEL;
use tracing_subscriber::{
    Layer, Registry,
    filter::{LevelFilter, ParseError, Targets},
    layer::SubscriberExt,
    reload,
    util::SubscriberInitExt,
};

use super::{
    queue::{LogQueue, LogThread},
    sink::{Destination, FileSink},
    style::{Colours, LogStyle},
};

/// Maximum size of the queue, in bytes.
const MAX_QUEUED_BYTES: usize = 4 * 1024 * 1024;

/// The queue of the log's thread; empty until [`start_process_log`], as in tests and short
/// commands.
static QUEUE: OnceLock<LogQueue> = OnceLock::new();

/// The filter of the running log; empty until [`start_process_log`].
static FILTER: OnceLock<LogFilter> = OnceLock::new();

/// A filter's text, and the function that replaces the filter.
struct LogFilter {
    text: Mutex<String>,
    replace: Box<ReplaceFilter>,
}

/// Replaces the filter. Returns false if the log has ended.
type ReplaceFilter = dyn Fn(Targets) -> bool + Send + Sync;

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

/// The levels of a filter.
pub const LOG_LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

fn is_level(text: &str) -> bool {
    LOG_LEVELS.iter().any(|level| level.eq_ignore_ascii_case(text))
}

/// Parses a filter of the process log, such as `info` or `tidegate=debug`.
///
/// Some libraries are limited unless the filter names them. The file watcher (`notify`) logs at
/// most at `info`: otherwise, if the log is in the watched folder, each line would cause another
/// one. The libraries for HTTP/2, TLS and DNS are silenced: they log every malformed frame, record
/// or datagram.
///
/// # Errors
///
/// If a part of `text` is neither a level nor `MODULE=LEVEL`.
pub fn parse_filter(text: &str) -> Result<Targets, FilterError> {
    // `Targets` would take a misspelled level for a module's name, and show only that module. A
    // filter of spans would show nothing.
    let mut parts = text.split(',');
    let is_module = |module: &str| {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':');
        !module.is_empty() && module.bytes().all(is_part)
    };
    let is_part = |part: &str| match part.split_once('=') {
        Some((module, level)) => is_module(module) && is_level(level),
        None => is_level(part),
    };
    if let Some(part) = parts.find(|part| !is_part(part)) {
        return Err(FilterError::NotALevel(part.to_owned()));
    }
    let mut filter: Targets = text.parse()?;
    let is_verbose = filter.default_level().is_some_and(|level| level > LevelFilter::INFO);
    if is_verbose && !text.contains("notify") {
        filter = filter.with_target("notify", LevelFilter::INFO);
    }
    for (library, module) in [
        ("h2", "h2"),
        ("rustls", "rustls"),
        ("hickory", "hickory_net"),
        ("hickory", "hickory_proto"),
        ("hickory", "hickory_resolver"),
    ] {
        if !text.contains(library) {
            filter = filter.with_target(module, LevelFilter::OFF);
        }
    }
    Ok(filter)
}

/// Owns the process log's thread. Dropping it writes the queued lines; a stderr that accepts
/// nothing for 2 s is abandoned.
#[must_use = "the process log ends when this is dropped"]
pub struct ProcessLogGuard {
    _thread: LogThread,
}

/// Starts the process log on stderr, at `info` if `filter` is invalid. Neither logging nor a panic
/// waits for stderr.
///
/// # Errors
///
/// If stderr cannot be duplicated or the thread cannot be started.
pub fn start_process_log(filter: &str, style: LogStyle) -> io::Result<ProcessLogGuard> {
    let (text, filter) = match parse_filter(filter) {
        Ok(parsed) => (filter, parsed),
        Err(_) => ("info", Targets::new().with_default(LevelFilter::INFO)),
    };
    let sink = FileSink::open(&Destination::Stderr)?;
    let (queue, thread) = LogQueue::start("process", Box::new(sink), MAX_QUEUED_BYTES, 0)?;
    // Tests start the log several times in one process: the first queue stays in use.
    let queue = QUEUE.get_or_init(|| queue);
    let missing = missing_level(&filter, STATIC_MAX_LEVEL);
    if let Some(replace) = subscribe(queue, filter, style) {
        let _ = FILTER.set(LogFilter { text: Mutex::new(text.to_owned()), replace });
    }
    warn_of(missing);
    panic::set_hook(Box::new(log_panic));
    Ok(ProcessLogGuard { _thread: thread })
}

/// Sends events to `queue`. Returns the function that replaces `filter`; `None` if there is a
/// subscriber already.
fn subscribe(
    queue: &'static LogQueue,
    filter: Targets,
    style: LogStyle,
) -> Option<Box<ReplaceFilter>> {
    let (filter, handle) = reload::Layer::<_, Registry>::new(filter);
    let lines = tracing_subscriber::fmt::layer()
        .log_internal_errors(false)
        .with_writer(move || QueueWriter(queue));
    let lines = match style {
        LogStyle::Json => lines.json().flatten_event(true).boxed(),
        LogStyle::Text { colours } => lines.with_ansi(colours == Colours::On).boxed(),
    };
    tracing_subscriber::registry().with(filter).with(lines).try_init().ok()?;
    Some(Box::new(move |filter| handle.reload(filter).is_ok()))
}

/// The filter of the process log; `None` if none was started.
pub fn process_log_filter() -> Option<String> {
    FILTER.get().map(|filter| filter.text.lock().clone())
}

/// Replaces the filter of the process log. Returns false if none was started or `text` is not a
/// filter.
pub fn set_process_log_filter(text: &str) -> bool {
    let (Some(running), Ok(filter)) = (FILTER.get(), parse_filter(text)) else { return false };
    // The lock spans both steps, so that the text always belongs to the filter in use.
    let mut current = running.text.lock();
    let missing = missing_level(&filter, STATIC_MAX_LEVEL);
    let is_replaced = (running.replace)(filter);
    if is_replaced {
        text.clone_into(&mut current);
    }
    drop(current);
    warn_of(missing);
    is_replaced
}

/// The most verbose level of a filter, if a program built up to `built` has no lines of it.
fn missing_level(filter: &Targets, built: LevelFilter) -> Option<LevelFilter> {
    let levels = filter.iter().map(|(_, level)| level).chain(filter.default_level());
    levels.max().filter(|level| *level > built)
}

fn warn_of(missing: Option<LevelFilter>) {
    if let Some(level) = missing {
        tracing::warn!(
            "this build has no lines of the level {level}, and shows those up to {STATIC_MAX_LEVEL}; expected a build \
             without --release"
        );
    }
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
    fn a_level_that_was_not_built_is_named() {
        for (text, missing) in [
            ("debug", None),
            ("info,tidegate_gateway=debug", None),
            ("trace", Some(LevelFilter::TRACE)),
            ("info,h2=trace", Some(LevelFilter::TRACE)),
        ] {
            let filter = parse_filter(text).unwrap();
            assert_eq!(missing_level(&filter, LevelFilter::DEBUG), missing, "{text}");
            assert_eq!(missing_level(&filter, LevelFilter::TRACE), None, "{text}");
        }
    }

    #[test]
    fn libraries_are_limited_unless_the_filter_names_them() {
        for (text, shown) in [
            ("trace", "trace,h2=off,notify=info,rustls=off"),
            ("notify=trace", "h2=off,notify=trace,rustls=off"),
            ("tidegate=debug", "h2=off,rustls=off,tidegate=debug"),
            ("info", "h2=off,info,rustls=off"),
            ("info,h2=debug", "h2=debug,info,rustls=off"),
            ("off", "h2=off,off,rustls=off"),
        ] {
            let filter = parse_filter(text).unwrap().to_string();
            let mut parts: Vec<_> = filter.split(',').collect();
            parts.retain(|part| !part.starts_with("hickory"));
            parts.sort_unstable();
            let mut expected: Vec<_> = shown.split(',').collect();
            expected.sort_unstable();
            assert_eq!(parts, expected);
            assert_eq!(filter.matches("hickory").count(), 3);
        }
        for text in ["tidegate=loud", "verbose", "warning", "info,loud", "tidegate[span]=debug", ""]
        {
            assert!(parse_filter(text).is_err(), "{text}");
        }
    }
}
