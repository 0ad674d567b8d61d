//! A log's own thread, and the bounded queue that leads to it.
//!
//! A caller hands whole lines over and never blocks: what does not fit is dropped and counted. Only the
//! thread blocks on the sink, however long that takes.

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

use super::sink::Sink;
use crate::clock;

/// The shortest time between two reports of losses.
const REPORT_EVERY: Duration = Duration::from_mins(1);
/// While losses are unreported, the thread checks this often whether a report is due.
const REPORT_RETRY: Duration = Duration::from_secs(1);
/// At the exit, a sink that accepts no byte for this long is given up.
const BLOCKED: Duration = Duration::from_secs(2);
/// At the exit, a sink that is merely slow is given up after this many times [`BLOCKED`].
const PATIENCE: u32 = 5;
/// The most emptied buffers that are kept for reuse.
const SPARE: usize = 16;

enum Message {
    Lines { bytes: Vec<u8>, lines: u64 },
    Reopen,
    Close,
}

/// The sending end of a log's queue. Clones send to the same thread.
#[derive(Clone)]
pub(super) struct LogQueue {
    sender: Sender<Message>,
    state: Arc<State>,
}

/// Shared by the thread and its callers.
struct State {
    /// The log's name in reports.
    name: &'static str,
    /// The most bytes that may wait.
    limit: usize,
    /// Bytes and lines that wait, with those being written.
    bytes: AtomicUsize,
    lines: AtomicU64,
    dropped: AtomicU64,
    write_errors: AtomicU64,
    /// Whether there are losses that are in no report yet.
    unreported: AtomicBool,
    /// Whether the guard has given the thread up.
    abandoned: AtomicBool,
    report: Mutex<Report>,
    /// Emptied buffers, all of this capacity at the most.
    spare: Mutex<Vec<Vec<u8>>>,
    spare_capacity: usize,
}

/// What the last report said, and when.
#[derive(Default)]
struct Report {
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
    /// Starts the thread. `limit` bounds the bytes that wait, `spare_capacity` the buffers kept for
    /// reuse; 0 keeps none.
    pub(super) fn start(
        name: &'static str,
        sink: Box<dyn Sink>,
        limit: usize,
        spare_capacity: usize,
    ) -> io::Result<(Self, LogThread)> {
        let state = Arc::new(State {
            name,
            limit,
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
        let writer = Writer { sink, receiver, state: state.clone(), is_torn: false };
        thread::Builder::new().name(format!("{name}-log")).spawn(move || {
            // Its end is what the guard waits for.
            let _running = running;
            writer.run();
        })?;
        let queue = Self { sender, state };
        let thread = LogThread { queue: queue.clone(), ended: Mutex::new(ended) };
        Ok((queue, thread))
    }

    /// Hands `lines` whole lines over. Never blocks: drops and counts them where the queue is full.
    pub(super) fn push(&self, bytes: Vec<u8>, lines: u64) {
        let size = bytes.capacity();
        let waiting = self.state.bytes.fetch_add(size, Ordering::Relaxed) + size;
        self.state.lines.fetch_add(lines, Ordering::Relaxed);
        if waiting > self.state.limit {
            return self.state.discard(size, lines);
        }
        if self.sender.send(Message::Lines { bytes, lines }).is_err() {
            self.state.discard(size, lines);
        }
    }

    /// An empty buffer, one that was used before if there is any.
    pub(super) fn buffer(&self) -> Vec<u8> {
        let spare = self.state.spare.try_lock().and_then(|mut spare| spare.pop());
        spare.unwrap_or_else(|| Vec::with_capacity(self.state.spare_capacity))
    }

    /// Has the sink opened anew once what waits is written. The old one stays where that fails.
    pub(super) fn reopen(&self) {
        // Without a thread there is nothing to open.
        let _ = self.sender.send(Message::Reopen);
    }

    /// Lines that were lost: too many waited, or a write failed.
    pub(super) fn dropped(&self) -> u64 {
        self.state.dropped.load(Ordering::Relaxed)
    }

    /// Writes that failed.
    pub(super) fn write_errors(&self) -> u64 {
        self.state.write_errors.load(Ordering::Relaxed)
    }

    /// Logs the losses since the last report, if there are any and it is time. One load where there are
    /// none.
    pub(super) fn report(&self) {
        self.state.report();
    }
}

impl State {
    /// Takes lines out of the queue and counts them as dropped.
    fn discard(&self, size: usize, lines: u64) {
        self.leave(size, lines);
        self.count_dropped(lines);
    }

    fn leave(&self, size: usize, lines: u64) {
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
        // Where another thread holds it, that one reports.
        let Some(mut report) = self.report.try_lock() else { return };
        let Some((dropped, write_errors)) = report.losses(self, clock::instant()) else { return };
        let error = report.last_error.take().map(|error| error.to_string());
        drop(report);
        let log = self.name;
        tracing::warn!(log, dropped, write_errors, error, "log lines were lost");
    }

    fn reuse(&self, mut buffer: Vec<u8>) {
        if buffer.capacity() == self.spare_capacity
            && let Some(mut spare) = self.spare.try_lock()
            && spare.len() < SPARE
        {
            buffer.clear();
            spare.push(buffer);
        }
    }
}

impl Report {
    /// Lines dropped and writes failed since the last report, if it is time for one.
    fn losses(&mut self, state: &State, now: Instant) -> Option<(u64, u64)> {
        if self.at.is_some_and(|at| now.saturating_duration_since(at) < REPORT_EVERY) {
            return None;
        }
        // Before the counts are read: what is lost from here on is in the next report.
        state.unreported.store(false, Ordering::SeqCst);
        let (dropped, write_errors) =
            (state.dropped.load(Ordering::SeqCst), state.write_errors.load(Ordering::SeqCst));
        let news = (
            dropped - std::mem::replace(&mut self.dropped, dropped),
            write_errors - std::mem::replace(&mut self.write_errors, write_errors),
        );
        if news == (0, 0) {
            return None;
        }
        self.at = Some(now);
        Some(news)
    }
}

/// The thread's own state.
struct Writer {
    sink: Box<dyn Sink>,
    receiver: Receiver<Message>,
    state: Arc<State>,
    /// Whether the last write broke off inside a line.
    is_torn: bool,
}

impl Writer {
    fn run(mut self) {
        loop {
            match self.next() {
                Some(Message::Lines { bytes, lines }) => self.write(bytes, lines),
                Some(Message::Reopen) => self.reopen(),
                Some(Message::Close) | None => return,
            }
        }
    }

    /// Waits for the next message; reports losses when the queue is empty, so that the report fits.
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
            match self.receiver.recv_timeout(REPORT_RETRY) {
                Ok(message) => return Some(message),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn write(&mut self, bytes: Vec<u8>, lines: u64) {
        let result = self.write_whole(&bytes);
        if self.state.abandoned.load(Ordering::Acquire) {
            // The guard counted all that waited when it gave up.
            return;
        }
        self.state.leave(bytes.capacity(), lines);
        if let Err((written, error)) = result {
            self.state.count_write_error(&error);
            self.state.count_dropped(lost_lines(&bytes[written..]));
        }
        self.state.reuse(bytes);
    }

    /// Writes all of `bytes`; on an error, says how much was written before it.
    fn write_whole(&mut self, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
        // So that another log on the same stream does not write in between.
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
            // The torn line is the old file's; the new one may be the same file.
            self.is_torn = self.sink.write(b"\n").is_err();
        }
        if let Err(error) = self.sink.reopen() {
            let log = self.state.name;
            tracing::error!(log, %error, "the log cannot be reopened; the old file stays");
        }
    }
}

/// Lines that end in what was not written.
fn lost_lines(rest: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', rest).count() as u64
}

/// Keeps a log's thread. When it is dropped, what waits is written first, as far as the sink takes it.
#[must_use = "the log ends when this is dropped"]
pub(super) struct LogThread {
    queue: LogQueue,
    /// In a mutex so that the guard is `Sync`; only its drop takes it.
    ended: Mutex<Receiver<()>>,
}

impl Drop for LogThread {
    fn drop(&mut self) {
        let _ = self.queue.sender.send(Message::Close);
        let state = self.queue.state.clone();
        for _ in 0..PATIENCE {
            let before = state.bytes.load(Ordering::Relaxed);
            // The thread sends nothing: the channel ends with it.
            if self.ended.get_mut().recv_timeout(BLOCKED) != Err(RecvTimeoutError::Timeout) {
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
        tracing::warn!(log, lines, "the log was given up at the exit: its sink takes nothing");
    }
}

#[cfg(test)]
pub(in crate::telemetry) mod tests;
