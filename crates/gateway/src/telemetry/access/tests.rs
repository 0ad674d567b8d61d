use std::{path::Path, time::Duration};

use tidegate_base::time::StoreTime;

use super::{
    super::queue::tests::{FakeSink, FakeTerminal},
    *,
};

fn line(path: &str) -> AccessLine<'_> {
    AccessLine {
        time: StoreTime::from_unix_ms(1_700_000_000_123),
        client: [192, 0, 2, 1].into(),
        method: b"GET",
        host: b"a",
        path: path.as_bytes(),
        protocol: "HTTP/1.1",
        status: 200,
        route: "items",
        limit: "admitted",
        refused_by: "",
        token: None,
        consumer: "",
        bytes: 5,
        received: None,
        cost: &[],
        duration: Duration::from_micros(1500),
        delay: Duration::ZERO,
        upstream: "",
        upstream_time: None,
        attempts: 0,
        priority: None,
        cut: None,
        complete: true,
        request_id: b"id",
        referer: b"",
        user_agent: b"",
        trace_id: None,
    }
}

fn open(sink: &FakeSink, max_bytes: usize) -> (AccessLog, AccessLogGuard) {
    AccessLog::with_sink(Box::new(sink.clone()), AccessLayout::default(), max_bytes).unwrap()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn dropping_the_guard_writes_all_lines() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    let (log, guard) = AccessLog::open(&Destination::File(&path), AccessLayout::default()).unwrap();
    let writers = [log.writer(), log.writer()];
    for number in 0..2_000 {
        writers[number % 2].write(&line(&format!("/{number}")));
    }
    drop(writers);
    drop(guard);
    let text = read(&path);
    let mut paths: Vec<u32> = text
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|line| line["path"].as_str().unwrap()[1..].parse().unwrap())
        .collect();
    paths.sort_unstable();
    assert_eq!(paths, (0..2_000).collect::<Vec<_>>());
    assert_eq!((log.dropped(), log.write_errors()), (0, 0));
}

#[test]
fn a_full_buffer_is_one_write() {
    let sink = FakeSink::default();
    let (log, guard) = open(&sink, MAX_QUEUED_BYTES);
    let writer = log.writer();
    let length = line("/").json().len() + 1;
    let lines = 10 * (BUFFER_SIZE / length);
    for _ in 0..lines {
        writer.write(&line("/"));
    }
    drop((writer, guard));
    assert_eq!(sink.text().len(), lines * length);
    assert!((10..=12).contains(&sink.writes()), "{} writes", sink.writes());
}

#[test]
fn a_terminal_gets_each_line_at_once() {
    let sink = FakeSink::default();
    let terminal = Box::new(FakeTerminal(sink.clone()));
    let (log, guard) =
        AccessLog::with_sink(terminal, AccessLayout::default(), MAX_QUEUED_BYTES).unwrap();
    let writer = log.writer();
    for _ in 0..3 {
        writer.write(&line("/"));
        assert!(writer.buffer.borrow().bytes.is_empty(), "no flush is waited for");
    }
    drop((writer, guard));
    assert_eq!(sink.text().lines().count(), 3);
}

#[test]
fn a_buffer_is_queued_when_it_is_a_second_old() {
    let sink = FakeSink::default();
    let (log, guard) = open(&sink, MAX_QUEUED_BYTES);
    let writer = log.writer();
    let is_queued = || writer.buffer.borrow().bytes.is_empty();
    writer.flush_if_older(CoarseTime::from_ms(0));
    writer.write(&line("/1"));
    writer.flush_if_older(CoarseTime::from_ms(50_000));
    writer.write(&line("/2"));
    let began = CoarseTime::from_ms(50_000);
    writer.flush_if_older(began + MAX_AGE - Millis::MILLISECOND);
    assert!(!is_queued());
    writer.flush_if_older(began + MAX_AGE);
    assert!(is_queued());
    writer.write(&line("/3"));
    writer.flush_if_older(CoarseTime::from_ms(60_000));
    assert!(!is_queued(), "the age counts from this buffer's first line");
    writer.flush();
    drop((writer, guard));
    assert_eq!(sink.text().lines().count(), 3);
    assert_eq!(sink.writes(), 2);
}

#[test]
fn a_blocked_sink_loses_lines_with_bounded_memory_and_without_blocking() {
    let sink = FakeSink::default();
    sink.block(true);
    let (log, guard) = open(&sink, 4 * BUFFER_SIZE);
    let writer = log.writer();
    let lines = 20 * BUFFER_SIZE / line("/").json().len();
    for _ in 0..lines {
        writer.write(&line("/"));
    }
    let dropped = log.dropped();
    assert!(dropped > 0);
    sink.block(false);
    drop((writer, guard));
    // The queue may still be full when the writer is dropped.
    let written = sink.text().lines().count() as u64;
    assert_eq!(written + log.dropped(), lines as u64);
    assert!(sink.text().len() <= 5 * BUFFER_SIZE);
}

#[test]
fn a_few_old_lines_occupy_only_their_size_in_the_queue() {
    let sink = FakeSink::default();
    sink.block(true);
    let (log, guard) = open(&sink, 2 * BUFFER_SIZE);
    let writer = log.writer();
    for _ in 0..100 {
        writer.write(&line("/"));
        writer.flush();
    }
    assert_eq!(log.dropped(), 0);
    sink.block(false);
    drop((writer, guard));
    assert_eq!(sink.text().lines().count(), 100);
}

#[test]
fn a_line_longer_than_the_buffer_is_not_split() {
    let sink = FakeSink::default();
    let (log, guard) = open(&sink, MAX_QUEUED_BYTES);
    let writer = log.writer();
    let long = "/\u{1}".repeat(BUFFER_SIZE);
    for path in ["/", &long, "/"] {
        writer.write(&line(path));
    }
    drop((writer, guard));
    let text = sink.text();
    let paths: Vec<String> = text
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|line| line["path"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(paths, ["/", &long, "/"]);
}

#[test]
fn a_reopen_switches_files_and_keeps_the_old_one_if_it_fails() {
    let folder = tempfile::tempdir().unwrap();
    let logs = folder.path().join("logs");
    std::fs::create_dir(&logs).unwrap();
    let (path, old) = (logs.join("access.log"), logs.join("old"));
    let (log, guard) = AccessLog::open(&Destination::File(&path), AccessLayout::default()).unwrap();
    let writer = log.writer();
    let write = |path: &str| {
        writer.write(&line(path));
        writer.flush();
    };
    write("/1");
    std::fs::rename(&path, &old).unwrap();
    write("/2");
    log.reopen();
    write("/3");
    // Wait until the thread has reopened it.
    while !path.exists() || read(&path).is_empty() {
        std::thread::yield_now();
    }
    let moved = folder.path().join("moved");
    std::fs::rename(&logs, &moved).unwrap();
    log.reopen();
    write("/4");
    drop(writer);
    drop(guard);
    let count = |name: &str| read(&moved.join(name)).lines().count();
    assert_eq!((count("old"), count("access.log")), (2, 2));
    assert_eq!(log.dropped(), 0);
}
