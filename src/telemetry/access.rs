//! The access log: each worker formats its lines into a buffer of its own, and hands it over when it is
//! full or a second old.

use std::{cell::RefCell, io};

use super::{
    line::{AccessLine, LineFormatter},
    queue::{LogQueue, LogThread},
    sink::{Destination, FileSink, Sink},
};

/// The size of a worker's buffer, in bytes.
const BUFFER: usize = 64 * 1024;
/// A buffer with less room than this is full, so that the next line hardly ever makes it grow.
const MARGIN: usize = 4 * 1024;
/// The most bytes that may wait for the thread, over all workers.
const WAITING: usize = 16 * 1024 * 1024;
/// A buffer is handed over so many ms after a sweep first found a line in it; the sweep itself comes
/// up to 100 ms after the line.
const MAX_AGE: u64 = 900;

/// The access log. Clones are the same log.
#[derive(Clone, Debug)]
pub struct AccessLog {
    queue: LogQueue,
}

/// Keeps the access log's thread. When it is dropped, what waits is written; a sink that takes nothing
/// is given up after 2 s.
#[must_use = "the access log ends when this is dropped"]
pub struct AccessLogGuard {
    _thread: LogThread,
}

impl AccessLog {
    /// Opens the log and starts its thread. Drop every [`AccessWriter`] before the guard.
    pub fn open(destination: &Destination<'_>) -> io::Result<(Self, AccessLogGuard)> {
        Self::with_sink(Box::new(FileSink::open(destination)?), WAITING)
    }

    fn with_sink(sink: Box<dyn Sink>, limit: usize) -> io::Result<(Self, AccessLogGuard)> {
        let (queue, thread) = LogQueue::start("access", sink, limit, BUFFER)?;
        Ok((Self { queue }, AccessLogGuard { _thread: thread }))
    }

    /// A worker's own end.
    pub fn writer(&self) -> AccessWriter {
        AccessWriter { queue: self.queue.clone(), buffer: RefCell::default() }
    }

    /// Opens the file anew, after it was renamed. Lines that were handed over before are in the old one;
    /// where the new one cannot be opened, the old one stays and the process log has the error. Returns
    /// at once; a stream is left as it is.
    pub fn reopen(&self) {
        self.queue.reopen();
    }

    /// Lines that were lost: too many waited, or a write failed.
    pub fn dropped(&self) -> u64 {
        self.queue.dropped()
    }

    /// Writes that failed, such as on a full disk.
    pub fn write_errors(&self) -> u64 {
        self.queue.write_errors()
    }
}

/// One worker's end of the access log. What is left in it is handed over when it is dropped.
#[derive(Debug)]
pub struct AccessWriter {
    queue: LogQueue,
    buffer: RefCell<Buffer>,
}

#[derive(Debug, Default)]
struct Buffer {
    /// Whole lines. Allocated with the first one.
    bytes: Vec<u8>,
    lines: u64,
    /// When a sweep first found a line here, in ms of the worker's clock.
    since: Option<u64>,
    formatter: LineFormatter,
}

impl AccessWriter {
    /// Adds one line. Never waits; allocates only where the buffer was handed over and none is back.
    pub fn write(&self, line: &AccessLine<'_>) {
        let mut buffer = self.buffer.borrow_mut();
        let Buffer { bytes, lines, formatter, .. } = &mut *buffer;
        if bytes.capacity() == 0 {
            *bytes = self.queue.buffer();
        }
        formatter.append(line, bytes);
        *lines += 1;
        if bytes.len() > BUFFER - MARGIN {
            self.hand_over(&mut buffer);
        }
    }

    /// Hands over lines that are a second old, and has losses reported. To be called every 100 ms or so;
    /// `now_ms` is a time of the worker's own that never runs backwards.
    pub fn flush_if_older(&self, now_ms: u64) {
        let mut buffer = self.buffer.borrow_mut();
        if !buffer.bytes.is_empty() {
            let since = *buffer.since.get_or_insert(now_ms);
            if now_ms.saturating_sub(since) >= MAX_AGE {
                self.hand_over(&mut buffer);
            }
        }
        self.queue.report();
    }

    /// Hands over what there is.
    pub fn flush(&self) {
        let mut buffer = self.buffer.borrow_mut();
        if !buffer.bytes.is_empty() {
            self.hand_over(&mut buffer);
        }
    }

    fn hand_over(&self, buffer: &mut Buffer) {
        buffer.since = None;
        let lines = std::mem::take(&mut buffer.lines);
        if buffer.bytes.len() > BUFFER / 2 {
            self.queue.push(std::mem::take(&mut buffer.bytes), lines);
        } else {
            // Few lines: what waits is as large as they are, not as the buffer.
            self.queue.push(buffer.bytes.as_slice().into(), lines);
            buffer.bytes.clear();
        }
    }
}

impl Drop for AccessWriter {
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests;
