//! The access log: each worker formats its lines into its own buffer, which is queued for the log's
//! thread when it is full or a second old; on a terminal, after each line.

use std::{cell::RefCell, io, sync::Arc};

use tidegate_base::time::{CoarseTime, Millis};

use super::{
    line::{AccessLayout, AccessLine, LineFormatter},
    queue::{LogQueue, LogThread},
    sink::{Destination, FileSink, LinePace, Sink},
};

/// Size of a worker's buffer, in bytes.
const BUFFER_SIZE: usize = 64 * 1024;
/// A buffer with less free space than this, in bytes, is queued, so that a line rarely makes it
/// grow.
const BUFFER_MARGIN: usize = 4 * 1024;
/// Maximum size of the queue, in bytes, over all workers.
const MAX_QUEUED_BYTES: usize = 16 * 1024 * 1024;
/// Age at which a buffer is queued, since [`AccessWriter::flush_if_older`] first found a line in
/// it. That call comes up to 100 ms after the line was written: together about a second.
const MAX_AGE: Millis = Millis::from_ms(900);

/// The access log. Clones share one log.
#[derive(Clone, Debug)]
pub struct AccessLog {
    queue: LogQueue,
    layout: Arc<AccessLayout>,
    pace: LinePace,
}

/// Owns the access log's thread. Dropping it writes the queued lines; a sink that accepts nothing
/// for 2 s is abandoned.
#[must_use = "the access log ends when this is dropped"]
pub struct AccessLogGuard {
    _thread: LogThread,
}

impl AccessLog {
    /// Opens the log and starts its thread. Drop every [`AccessWriter`] before the guard.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened or the thread cannot be started.
    pub fn open(
        destination: &Destination<'_>,
        layout: AccessLayout,
    ) -> io::Result<(Self, AccessLogGuard)> {
        Self::with_sink(Box::new(FileSink::open(destination)?), layout, MAX_QUEUED_BYTES)
    }

    fn with_sink(
        sink: Box<dyn Sink>,
        layout: AccessLayout,
        max_bytes: usize,
    ) -> io::Result<(Self, AccessLogGuard)> {
        let pace = sink.pace();
        let (queue, thread) = LogQueue::start("access", sink, max_bytes, BUFFER_SIZE)?;
        Ok((Self { queue, layout: Arc::new(layout), pace }, AccessLogGuard { _thread: thread }))
    }

    /// A new writer for one worker.
    pub fn writer(&self) -> AccessWriter {
        let formatter = LineFormatter::new(Arc::clone(&self.layout));
        AccessWriter {
            queue: self.queue.clone(),
            layout: Arc::clone(&self.layout),
            pace: self.pace,
            buffer: RefCell::new(LineBuffer {
                bytes: Vec::new(),
                lines: 0,
                since: None,
                formatter,
            }),
        }
    }

    /// Reopens the file by its path, for example after it was renamed. Lines queued before go to
    /// the old file. If the file cannot be opened, the old one stays in use and the error is
    /// logged. Returns immediately; does nothing for a stream.
    pub fn reopen(&self) {
        self.queue.reopen();
    }

    /// Number of lines lost, because the queue was full or a write failed.
    pub fn dropped(&self) -> u64 {
        self.queue.dropped()
    }

    /// Number of failed writes, for example on a full disk.
    pub fn write_errors(&self) -> u64 {
        self.queue.write_errors()
    }
}

/// One worker's writer to the access log. Dropping it queues the remaining lines.
#[derive(Debug)]
pub struct AccessWriter {
    queue: LogQueue,
    layout: Arc<AccessLayout>,
    pace: LinePace,
    buffer: RefCell<LineBuffer>,
}

#[derive(Debug)]
struct LineBuffer {
    /// Whole lines. Allocated with the first one.
    bytes: Vec<u8>,
    lines: u64,
    /// When [`AccessWriter::flush_if_older`] first found a line here.
    since: Option<CoarseTime>,
    formatter: LineFormatter,
}

impl AccessWriter {
    /// The format and the fields of lines.
    pub fn layout(&self) -> &AccessLayout {
        &self.layout
    }

    /// Adds a line. Never blocks. Allocates only if the line is long, or if the last buffer was
    /// queued and the queue has no buffer for reuse.
    pub fn write(&self, line: &AccessLine<'_>) {
        let mut buffer = self.buffer.borrow_mut();
        let LineBuffer { bytes, lines, formatter, .. } = &mut *buffer;
        if bytes.capacity() == 0 {
            *bytes = self.queue.buffer();
        }
        formatter.append(line, bytes);
        *lines += 1;
        if bytes.len() > BUFFER_SIZE - BUFFER_MARGIN || self.pace == LinePace::AtOnce {
            self.enqueue(&mut buffer);
        }
    }

    /// Queues lines that are a second old, and reports losses. Call it about every 100 ms.
    pub fn flush_if_older(&self, now: CoarseTime) {
        let mut buffer = self.buffer.borrow_mut();
        if !buffer.bytes.is_empty() {
            let since = *buffer.since.get_or_insert(now);
            if now.since(since) >= MAX_AGE {
                self.enqueue(&mut buffer);
            }
        }
        self.queue.report();
    }

    /// Queues all lines.
    pub fn flush(&self) {
        let mut buffer = self.buffer.borrow_mut();
        if !buffer.bytes.is_empty() {
            self.enqueue(&mut buffer);
        }
    }

    fn enqueue(&self, buffer: &mut LineBuffer) {
        buffer.since = None;
        let lines = std::mem::take(&mut buffer.lines);
        if buffer.bytes.len() > BUFFER_SIZE / 2 {
            self.queue.push(std::mem::take(&mut buffer.bytes), lines);
        } else {
            // Few lines: a copy takes less of the queue than the buffer.
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
