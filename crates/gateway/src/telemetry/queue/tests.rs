use std::collections::VecDeque;

use parking_lot::{Condvar, Mutex};

use super::{super::sink::LinePace, *};

/// The outcome of a sink's next write.
enum Step {
    Take(usize),
    Fail(io::ErrorKind),
}

#[derive(Default)]
struct Script {
    steps: VecDeque<Step>,
    written: Vec<u8>,
    writes: usize,
    reopened: usize,
    is_blocked: bool,
}

/// A sink that follows a script, and then accepts everything.
#[derive(Clone, Default)]
pub(in crate::telemetry) struct FakeSink(Arc<(Mutex<Script>, Condvar)>);

impl FakeSink {
    fn with(steps: impl IntoIterator<Item = Step>) -> Self {
        let sink = Self::default();
        sink.0.0.lock().steps.extend(steps);
        sink
    }

    pub(in crate::telemetry) fn block(&self, is_blocked: bool) {
        self.0.0.lock().is_blocked = is_blocked;
        self.0.1.notify_all();
    }

    pub(in crate::telemetry) fn text(&self) -> String {
        String::from_utf8(self.0.0.lock().written.clone()).unwrap()
    }

    pub(in crate::telemetry) fn writes(&self) -> usize {
        self.0.0.lock().writes
    }
}

/// A [`FakeSink`] that is a terminal.
pub(in crate::telemetry) struct FakeTerminal(pub(in crate::telemetry) FakeSink);

impl Sink for FakeTerminal {
    fn pace(&self) -> LinePace {
        LinePace::AtOnce
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }
}

impl Sink for FakeSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut script = self.0.0.lock();
        self.0.1.wait_while(&mut script, |script| script.is_blocked);
        script.writes += 1;
        let count = match script.steps.pop_front() {
            Some(Step::Take(count)) => count.min(bytes.len()),
            Some(Step::Fail(kind)) => return Err(kind.into()),
            None => bytes.len(),
        };
        script.written.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn reopen(&mut self) -> io::Result<()> {
        let mut script = self.0.0.lock();
        script.reopened += 1;
        script.written.extend_from_slice(b"[reopened]");
        Ok(())
    }
}

fn start(sink: &FakeSink, max_bytes: usize) -> (LogQueue, LogThread) {
    LogQueue::start("test", Box::new(sink.clone()), max_bytes, 1024).unwrap()
}

fn push(queue: &LogQueue, text: &str) {
    queue.push(text.into(), text.matches('\n').count() as u64);
}

#[test]
fn dropping_the_guard_writes_all_queued_lines() {
    let sink = FakeSink::default();
    let (queue, thread) = start(&sink, 1_000_000);
    let all: Vec<String> = (0..1_000).map(|number| format!("line {number}\n")).collect();
    for line in &all {
        push(&queue, line);
    }
    drop(thread);
    assert_eq!((sink.text(), queue.dropped()), (all.concat(), 0));
    assert_eq!(queue.state.bytes.load(Ordering::Relaxed), 0);
    push(&queue, "late\n");
    assert_eq!(queue.dropped(), 1, "a line after the end is dropped and counted");
}

#[test]
fn the_queue_is_bounded_in_bytes_and_never_blocks_a_caller() {
    let sink = FakeSink::default();
    sink.block(true);
    let (queue, thread) = start(&sink, 1_000);
    let line = "x".repeat(99) + "\n";
    for _ in 0..10_000 {
        push(&queue, &line);
        assert!(queue.state.bytes.load(Ordering::Relaxed) <= 1_000);
    }
    assert_eq!(queue.dropped(), 10_000 - 10);
    sink.block(false);
    drop(thread);
    assert_eq!(sink.text(), line.repeat(10));
}

#[test]
fn failed_writes_are_counted_and_the_log_continues() {
    use Step::{Fail, Take};
    let sink = FakeSink::with([
        Fail(io::ErrorKind::StorageFull),
        Take(2),
        Fail(io::ErrorKind::Interrupted),
        Take(1),
        Take(5),
        Fail(io::ErrorKind::BrokenPipe),
        Take(0),
    ]);
    let (queue, thread) = start(&sink, 1_000);
    push(&queue, "lost\nlost\n");
    push(&queue, "one\ntwo\nlost\n");
    // The line feed that ends the torn line cannot be written either.
    push(&queue, "lost\n");
    push(&queue, "last\n");
    drop(thread);
    assert_eq!(sink.text(), "one\ntwo\nlast\n");
    assert_eq!((queue.write_errors(), queue.dropped()), (3, 4));
}

#[test]
fn a_torn_line_does_not_affect_other_lines() {
    let sink = FakeSink::with([Step::Take(6), Step::Fail(io::ErrorKind::StorageFull)]);
    let (queue, thread) = start(&sink, 1_000);
    push(&queue, "one\ntwo\nthree\n");
    push(&queue, "four\n");
    drop(thread);
    assert_eq!(sink.text(), "one\ntw\nfour\n");
    assert_eq!((queue.write_errors(), queue.dropped()), (1, 2));
}

#[test]
fn a_sink_that_would_block_is_waited_for() {
    let sink = FakeSink::with([Step::Take(2), Step::Fail(io::ErrorKind::WouldBlock)]);
    let (queue, thread) = start(&sink, 1_000);
    push(&queue, "one\ntwo\n");
    drop(thread);
    assert_eq!((sink.text(), queue.write_errors()), ("one\ntwo\n".to_owned(), 0));
}

#[test]
fn lines_before_a_reopen_are_in_the_old_file() {
    let sink = FakeSink::with([Step::Take(2), Step::Fail(io::ErrorKind::StorageFull)]);
    let (queue, thread) = start(&sink, 1_000);
    push(&queue, "torn\n");
    queue.reopen();
    push(&queue, "new\n");
    drop(thread);
    assert_eq!(sink.text(), "to\n[reopened]new\n");
    assert_eq!(sink.0.0.lock().reopened, 1);
}

#[test]
fn a_blocked_sink_is_abandoned_and_its_queue_is_counted() {
    let sink = FakeSink::default();
    sink.block(true);
    let (queue, thread) = start(&sink, 1_000);
    push(&queue, "one\ntwo\n");
    push(&queue, "three\n");
    let start = clock::instant();
    drop(thread);
    let took = clock::instant().saturating_duration_since(start);
    assert!((STALL_TIMEOUT..3 * STALL_TIMEOUT).contains(&took), "{took:?}");
    assert_eq!(queue.dropped(), 3);
    sink.block(false);
}

#[test]
fn all_losses_are_reported_at_most_once_a_minute() {
    let sink = FakeSink::default();
    let (queue, thread) = start(&sink, 1_000);
    drop(thread);
    let (state, start) = (&queue.state, clock::instant());
    let mut report = LossReport::default();
    assert_eq!(report.take_losses(state, start), None);
    state.count_dropped(5);
    assert_eq!(report.take_losses(state, start), Some((5, 0)));
    state.count_dropped(2);
    state.count_write_error(&io::ErrorKind::BrokenPipe.into());
    assert_eq!(report.take_losses(state, start + REPORT_INTERVAL / 2), None);
    assert!(state.unreported.load(Ordering::Relaxed));
    assert_eq!(report.take_losses(state, start + REPORT_INTERVAL), Some((2, 1)));
    assert_eq!(report.take_losses(state, start + 3 * REPORT_INTERVAL), None);
}

#[test]
fn a_few_buffers_are_reused() {
    let sink = FakeSink::default();
    let (queue, thread) = start(&sink, 1_000_000);
    for _ in 0..100 {
        let mut buffer = queue.buffer();
        buffer.extend_from_slice(b"line\n");
        queue.push(buffer, 1);
    }
    queue.push(Vec::with_capacity(5_000), 0);
    drop(thread);
    let spare = queue.state.spare.lock();
    assert!((1..=MAX_SPARE_BUFFERS).contains(&spare.len()), "{}", spare.len());
    assert!(spare.iter().all(|buffer| buffer.is_empty() && buffer.capacity() == 1024));
}
