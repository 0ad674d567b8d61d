//! The thread of a log, and its bounded queue.
//!
//! [`LogQueue::push`] queues whole lines and never blocks: lines that do not fit are dropped and
//! counted. Only the log's thread blocks on the sink.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tidegate_system::clock;

use super::sink::Sink;

/// Minimum interval between two reports of losses.
const REPORT_INTERVAL: Duration = Duration::from_mins(1);
/// Interval at which the thread checks whether a report of losses is due.
const REPORT_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// At exit, a sink that accepts no byte for this long is abandoned.
const STALL_TIMEOUT: Duration = Duration::from_secs(2);
/// At exit, a slow sink is abandoned after this multiple of [`STALL_TIMEOUT`].
const MAX_STALL_CHECKS: u32 = 5;
/// Maximum number of buffers that are kept for reuse.
const MAX_SPARE_BUFFERS: usize = 16;

enum Message {
    Lines { bytes: Vec<u8>, lines: u64 },
    Reopen,
    Close,
}

/// The sending end of a log's queue. Clones send to the same thread.
#[derive(Clone)]
pub(super) struct LogQueue {
    sender: Sender<Message>,
    state: Arc<QueueState>,
}

/// The state that the log's thread shares with the threads that queue lines.
struct QueueState {
    /// The log's name in reports.
    name: &'static str,
    /// Maximum size of the queue, in bytes.
    max_bytes: usize,
    /// Queued bytes and lines, including those being written.
    bytes: AtomicUsize,
    lines: AtomicU64,
    dropped: AtomicU64,
    write_errors: AtomicU64,
    unreported: AtomicBool,
    /// True if the guard has abandoned the thread.
    abandoned: AtomicBool,
    report: Mutex<LossReport>,
    /// Empty buffers for reuse, each of `spare_capacity` bytes.
    spare: Mutex<Vec<Vec<u8>>>,
    spare_capacity: usize,
}

/// The time and the totals of the last report of losses.
#[derive(Default)]
struct LossReport {
    at: Option<Instant>,
    dropped: u64,
    write_errors: u64,
    last_error: Option<io::ErrorKind>,
}

impl std::fmt::Debug for LogQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogQueue").field("name", &self.state.name).finish_non_exhaustive()
    }
}

impl LogQueue {
    /// Starts the thread. `max_bytes` is the maximum size of the queue, `spare_capacity` the
    /// capacity of each buffer kept for reuse, both in bytes. With a `spare_capacity` of 0 none are
    /// kept.
    pub(super) fn start(
        name: &'static str,
        sink: Box<dyn Sink>,
        max_bytes: usize,
        spare_capacity: usize,
    ) -> io::Result<(Self, LogThread)> {
        let state = Arc::new(QueueState {
            name,
            max_bytes,
            bytes: AtomicUsize::new(0),
            lines: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            write_errors: AtomicU64::new(0),
            unreported: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            report: Mutex::default(),
            spare: Mutex::default(),
            spare_capacity,
        });
        let (sender, receiver) = mpsc::channel();
        let (running, ended) = mpsc::channel();
        let writer = LogWriter { sink, receiver, state: state.clone(), is_torn: false };
        thread::Builder::new().name(format!("{name}-log")).spawn(move || {
            // The guard waits until this sender is dropped.
            let _running = running;
            writer.run();
        })?;
        let queue = Self { sender, state };
        let thread = LogThread { queue: queue.clone(), ended: Mutex::new(ended) };
        Ok((queue, thread))
    }

    /// Queues `lines` whole lines. Never blocks: drops and counts them if the queue is full.
    pub(super) fn push(&self, bytes: Vec<u8>, lines: u64) {
        let size = bytes.capacity();
        let queued = self.state.bytes.fetch_add(size, Ordering::Relaxed) + size;
        self.state.lines.fetch_add(lines, Ordering::Relaxed);
        if queued > self.state.max_bytes {
            return self.state.discard(size, lines);
        }
        if self.sender.send(Message::Lines { bytes, lines }).is_err() {
            self.state.discard(size, lines);
        }
    }

    /// An empty buffer, reused if possible.
    pub(super) fn buffer(&self) -> Vec<u8> {
        let spare = self.state.spare.try_lock().and_then(|mut spare| spare.pop());
        spare.unwrap_or_else(|| Vec::with_capacity(self.state.spare_capacity))
    }

    /// Reopens the sink after the queued lines are written. If that fails, the old one stays in
    /// use.
    pub(super) fn reopen(&self) {
        // Fails only after the thread has ended.
        let _ = self.sender.send(Message::Reopen);
    }

    /// Number of lines lost, because the queue was full or a write failed.
    pub(super) fn dropped(&self) -> u64 {
        self.state.dropped.load(Ordering::Relaxed)
    }

    /// Number of failed writes.
    pub(super) fn write_errors(&self) -> u64 {
        self.state.write_errors.load(Ordering::Relaxed)
    }

    /// Logs the losses since the last report, if a report is due. Without losses it costs one load.
    pub(super) fn report(&self) {
        self.state.report();
    }
}

impl QueueState {
    /// Removes lines from the queue and counts them as dropped.
    fn discard(&self, size: usize, lines: u64) {
        self.release(size, lines);
        self.count_dropped(lines);
    }

    fn release(&self, size: usize, lines: u64) {
        self.bytes.fetch_sub(size, Ordering::Relaxed);
        self.lines.fetch_sub(lines, Ordering::Relaxed);
    }

    fn count_dropped(&self, lines: u64) {
        self.dropped.fetch_add(lines, Ordering::SeqCst);
        self.unreported.store(true, Ordering::SeqCst);
    }

    fn count_write_error(&self, error: &io::Error) {
        self.write_errors.fetch_add(1, Ordering::SeqCst);
        self.report.lock().last_error = Some(error.kind());
        self.unreported.store(true, Ordering::SeqCst);
    }

    fn report(&self) {
        if !self.unreported.load(Ordering::Relaxed) {
            return;
        }
        // If another thread holds the lock, that thread reports.
        let Some(mut report) = self.report.try_lock() else { return };
        let Some((dropped, write_errors)) = report.take_losses(self, clock::instant()) else {
            return;
        };
        let error = report.last_error.take().map(|error| error.to_string());
        drop(report);
        let log = self.name;
        tracing::warn!(log, dropped, write_errors, error, "log lines were lost");
    }

    fn reuse(&self, mut buffer: Vec<u8>) {
        if buffer.capacity() == self.spare_capacity
            && let Some(mut spare) = self.spare.try_lock()
            && spare.len() < MAX_SPARE_BUFFERS
        {
            buffer.clear();
            spare.push(buffer);
        }
    }
}

impl LossReport {
    /// Dropped lines and failed writes since the last report, if a report is due.
    fn take_losses(&mut self, state: &QueueState, now: Instant) -> Option<(u64, u64)> {
        if self.at.is_some_and(|at| now.saturating_duration_since(at) < REPORT_INTERVAL) {
            return None;
        }
        // Cleared before the counts are read, so that later losses are in the next report.
        state.unreported.store(false, Ordering::SeqCst);
        let (dropped, write_errors) =
            (state.dropped.load(Ordering::SeqCst), state.write_errors.load(Ordering::SeqCst));
        let losses = (
            dropped - std::mem::replace(&mut self.dropped, dropped),
            write_errors - std::mem::replace(&mut self.write_errors, write_errors),
        );
        if losses == (0, 0) {
            return None;
        }
        self.at = Some(now);
        Some(losses)
    }
}

/// The state of a log's thread.
struct LogWriter {
    sink: Box<dyn Sink>,
    receiver: Receiver<Message>,
    state: Arc<QueueState>,
    /// True if the last write ended within a line.
    is_torn: bool,
}

impl LogWriter {
    fn run(mut self) {
        loop {
            match self.next() {
                Some(Message::Lines { bytes, lines }) => self.write(bytes, lines),
                Some(Message::Reopen) => self.reopen(),
                Some(Message::Close) | None => return,
            }
        }
    }

    /// Waits for the next message. Reports losses while the queue is empty, so that the report
    /// finds room.
    fn next(&self) -> Option<Message> {
        loop {
            match self.receiver.try_recv() {
                Ok(message) => return Some(message),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => self.state.report(),
            }
            if !self.state.unreported.load(Ordering::Acquire) {
                return self.receiver.recv().ok();
            }
            match self.receiver.recv_timeout(REPORT_CHECK_INTERVAL) {
                Ok(message) => return Some(message),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn write(&mut self, bytes: Vec<u8>, lines: u64) {
        let result = self.write_whole(&bytes);
        if self.state.abandoned.load(Ordering::Acquire) {
            // The guard has counted all queued lines.
            return;
        }
        self.state.release(bytes.capacity(), lines);
        if let Err((written, error)) = result {
            self.state.count_write_error(&error);
            self.state.count_dropped(lost_lines(&bytes[written..]));
        }
        self.state.reuse(bytes);
    }

    /// Writes all of `bytes`; an error comes with the number of bytes written before it.
    fn write_whole(&mut self, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
        // No other log on the same stream may write in between.
        let _stream = self.sink.lock();
        if self.is_torn {
            self.sink.write(b"\n").map_err(|error| (0, error))?;
            self.is_torn = false;
        }
        let mut written = 0;
        while written < bytes.len() {
            match self.sink.write(&bytes[written..]) {
                Ok(0) => return Err((written, io::ErrorKind::WriteZero.into())),
                Ok(count) => {
                    written += count;
                    self.is_torn = bytes[written - 1] != b'\n';
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.state.abandoned.load(Ordering::Acquire) {
                        return Err((written, error));
                    }
                    self.sink.wait();
                }
                Err(error) => return Err((written, error)),
            }
        }
        Ok(())
    }

    fn reopen(&mut self) {
        if self.is_torn {
            // Ends the torn line in the old file; the new one may be the same file.
            self.is_torn = self.sink.write(b"\n").is_err();
        }
        if let Err(error) = self.sink.reopen() {
            let log = self.state.name;
            tracing::error!(log, %error, "the log cannot be reopened; the old file stays in use");
        }
    }
}

/// Number of lines that end in `rest`, which was not written.
fn lost_lines(rest: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', rest).count() as u64
}

/// Owns a log's thread. Dropping it writes the queued lines, unless the sink stalls.
#[must_use = "the log ends when this is dropped"]
pub(super) struct LogThread {
    queue: LogQueue,
    /// In a mutex so that the guard is `Sync`; only `drop` uses it.
    ended: Mutex<Receiver<()>>,
}

impl Drop for LogThread {
    fn drop(&mut self) {
        let _ = self.queue.sender.send(Message::Close);
        let state = self.queue.state.clone();
        for _ in 0..MAX_STALL_CHECKS {
            let before = state.bytes.load(Ordering::Relaxed);
            // The thread sends nothing; the channel is disconnected when it ends.
            if self.ended.get_mut().recv_timeout(STALL_TIMEOUT) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            if state.bytes.load(Ordering::Relaxed) == before {
                break;
            }
        }
        state.abandoned.store(true, Ordering::Release);
        let lines = state.lines.load(Ordering::Relaxed);
        state.count_dropped(lines);
        let log = state.name;
        tracing::warn!(log, lines, "log abandoned at exit: its sink accepts nothing");
    }
}

#[cfg(test)]
pub(in crate::telemetry) mod tests;
