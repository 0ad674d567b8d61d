//! The process's own log: JSON lines on stderr, from a thread of its own.

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

/// The most bytes that may wait for stderr.
const WAITING: usize = 4 * 1024 * 1024;

/// The way to the log's thread; none until [`start`], as in tests and in commands that end at once.
static QUEUE: OnceLock<LogQueue> = OnceLock::new();

/// Reads a filter of the process's own log, such as `info` or `tidegate=debug`.
///
/// The watcher of the configuration's folder is kept quiet unless it is named: a log that is written
/// into that folder would otherwise tell of each of its own lines.
pub fn filter(text: &str) -> Result<EnvFilter, ParseError> {
    let filter = EnvFilter::try_new(text)?;
    let loud = filter.max_level_hint().is_none_or(|level| level > LevelFilter::INFO);
    if text.contains("notify") || !loud {
        return Ok(filter);
    }
    Ok(filter.add_directive("notify=info".parse()?))
}

/// Keeps the process log's thread. When it is dropped, what waits is written; a stderr that takes
/// nothing is given up after 2 s.
#[must_use = "the process log ends when this is dropped"]
pub struct ProcessLogGuard {
    _thread: LogThread,
}

/// Starts the process's own log on stderr, at `info` where `filter` makes no sense. Nothing that logs
/// waits for stderr, nor does a thread that panics.
pub fn start(filter: &str) -> io::Result<ProcessLogGuard> {
    let filter = self::filter(filter).unwrap_or_else(|_| EnvFilter::new("info"));
    let sink = FileSink::open(&Destination::Stderr)?;
    let (queue, thread) = LogQueue::start("process", Box::new(sink), WAITING, 0)?;
    // A second start in one process, as tests do, keeps the first.
    let queue = QUEUE.get_or_init(|| queue);
    let _ = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_env_filter(filter)
        .log_internal_errors(false)
        .with_writer(|| LineWriter(queue))
        .try_init();
    panic::set_hook(Box::new(log_panic));
    Ok(ProcessLogGuard { _thread: thread })
}

/// Lines of the process's own log that were lost: stderr was slow, or a write failed.
pub fn process_log_dropped() -> u64 {
    QUEUE.get().map_or(0, LogQueue::dropped)
}

/// The subscriber writes each line with one call.
struct LineWriter(&'static LogQueue);

impl Write for LineWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line.into(), 1);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What the standard hook would write to stderr itself, and wait for it.
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
    fn the_watcher_does_not_tell_of_the_log_itself() {
        for (text, shown) in [
            ("trace", "notify=info,trace"),
            ("notify=trace", "notify=trace"),
            ("info", "info"),
            ("off", "off"),
        ] {
            assert_eq!(filter(text).unwrap().to_string(), shown);
        }
        assert!(filter("tidegate=loud").is_err());
    }
}
