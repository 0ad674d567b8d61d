//! Log destinations: unread pipes, rotated files, a FIFO without a reader, a full disk.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    process::{Child, Stdio},
    thread,
    time::Duration,
};

use rustix::{
    fs::{CWD, Mode, OFlags, mkfifoat},
    process::{Pid, Signal, kill_process},
};
use tempfile::TempDir;
use testkit::log_lines::read_lines;
use testkit::{
    client::{Client, get},
    gateway::Gateway,
    port::free_address,
    process::Process,
    wait::{eventually, sleep, timed},
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime};

use crate::tidegate_command;

const LOG_TO_STDERR: &str = "
listen: [{address: '{listen}'}]
admin: {address: '{admin}', hosts: [gateway.test]}
workers: 2
drain_timeout: 1s
access_log: stderr
upstreams: {hello: {respond: {body: hello}}}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
";

const NO_ACCESS_LOG: &str = "
listen: [{address: '{listen}'}]
admin: {address: '{admin}', hosts: [gateway.test]}
workers: 2
drain_timeout: 1s
access_log: off
upstreams: {hello: {respond: {body: hello}}}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
";

/// On ports that the system chooses.
const LOG_TO: &str = "
listen: [{address: '127.0.0.1:0'}]
admin: {address: '127.0.0.1:0', hosts: [gateway.test]}
workers: 2
drain_timeout: 1s
access_log: '{destination}'
upstreams: {hello: {respond: {body: hello}}}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
";

/// Writes the configuration that the binary reads by default.
fn write_config(directory: &TempDir, yaml: &str) {
    fs::create_dir_all(directory.path().join("config")).expect("a directory");
    fs::write(directory.path().join("config/tidegate.yaml"), yaml).expect("a file");
}

/// The writing end of a full pipe.
fn full_pipe() -> (io::PipeReader, io::PipeWriter) {
    let (reader, mut writer) = io::pipe().expect("a pipe");
    rustix::io::ioctl_fionbio(&writer, true).expect("a pipe of our own");
    while writer.write(&[b'\n'; 4096]).is_ok() {}
    while writer.write(b"\n").is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).expect("a pipe of our own");
    (reader, writer)
}

fn start_blocked(directory: &TempDir, stderr: io::PipeWriter) -> Child {
    let mut command = tidegate_command(directory.path(), &[]);
    command.stdout(Stdio::null()).stderr(stderr).spawn().expect("the binary starts")
}

/// Kills the child when the test ends, even by a panic.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until connections to each of the addresses are accepted, which begins one by one.
fn wait_until_serving(addresses: &[SocketAddr]) {
    for address in addresses {
        eventually("it serves", || TcpStream::connect(address).is_ok());
    }
}

fn assert_exits_cleanly(child: &mut KillOnDrop) {
    let mut status = None;
    eventually("the process exits", || {
        status = child.0.try_wait().expect("our own child");
        status.is_some()
    });
    assert_eq!(status.and_then(|status| status.code()), Some(0));
}

#[test]
fn unread_stderr_blocks_neither_requests_nor_exit() {
    let directory = tempfile::tempdir().expect("a directory");
    let (listen, admin) = (free_address(), free_address());
    // The access log uses the same queue.
    write_config(&directory, &fill(LOG_TO_STDERR, [("listen", listen), ("admin", admin)]));
    let (reader, writer) = full_pipe();
    let mut child = KillOnDrop(start_blocked(&directory, writer));
    wait_until_serving(&[listen, admin]);
    let mut client = Client::connect(listen);
    for _ in 0..2_000 {
        assert_eq!(client.get("/a", "").status, 200);
    }
    kill_process(Pid::from_child(&child.0), Signal::USR1).expect("a signal to our own child");
    // A reload writes to the process log on the control thread.
    for _ in 0..50 {
        let mut client = Client::connect(admin);
        client.send("POST /api/reload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(client.read_response().status, 200);
    }
    kill_process(Pid::from_child(&child.0), Signal::TERM).expect("a signal to our own child");
    // In real time, because it is a separate process: it gives up an unread log after 2 s.
    let ((), took) = timed(|| assert_exits_cleanly(&mut child));
    assert!(took < Duration::from_secs(12), "{took:?}");
    drop(reader);
}

#[test]
fn stderr_that_is_read_again_receives_the_queued_lines() {
    let directory = tempfile::tempdir().expect("a directory");
    let (listen, admin) = (free_address(), free_address());
    write_config(&directory, &fill(LOG_TO_STDERR, [("listen", listen), ("admin", admin)]));
    let (reader, writer) = full_pipe();
    let mut child = KillOnDrop(start_blocked(&directory, writer));
    wait_until_serving(&[listen, admin]);
    assert_eq!(get(listen, "/a", "").status, 200);
    let reading = thread::spawn(move || {
        let lines = BufReader::new(reader).lines().map_while(Result::ok);
        lines.filter(|line| !line.is_empty()).collect::<Vec<_>>()
    });
    sleep(Duration::from_millis(50));
    kill_process(Pid::from_child(&child.0), Signal::TERM).expect("a signal to our own child");
    assert_exits_cleanly(&mut child);
    let lines = reading.join().expect("it only reads");
    for line in &lines {
        serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|_| panic!("torn: {line}"));
    }
    for text in ["\"serving\"", "\"path\":\"/a\"", "\"stopped\""] {
        assert!(lines.iter().any(|line| line.contains(text)), "{text} in {lines:?}");
    }
}

#[test]
fn sigusr1_reopens_the_log_without_losing_a_line() {
    let directory = tempfile::tempdir().expect("a directory");
    let (log, old) = (directory.path().join("access.log"), directory.path().join("access.log.1"));
    write_config(&directory, &fill(LOG_TO, [("destination", log.display())]));
    let process = Process::start(tidegate_command(directory.path(), &[]));
    let ask = |path: &str| assert_eq!(get(process.address, path, "").status, 200);
    ask("/first");
    read_lines(&log, 1);
    fs::rename(&log, &old).expect("our own file");
    ask("/second");
    read_lines(&old, 2);
    process.signal(Signal::USR1);
    eventually("the log is created again", || log.exists());
    ask("/third");
    assert!(read_lines(&log, 1).contains("/third"));
    assert_eq!(read_lines(&old, 2).lines().count(), 2);
    // A reload reopens the log as well.
    fs::rename(&log, directory.path().join("access.log.2")).expect("our own file");
    process.signal(Signal::HUP);
    eventually("the log is created again", || log.exists());
    ask("/fourth");
    assert!(read_lines(&log, 1).contains("/fourth"));
}

#[test]
fn a_log_that_cannot_be_reopened_stays_open() {
    let directory = tempfile::tempdir().expect("a directory");
    let logs = directory.path().join("logs");
    let (log, moved) = (logs.join("access.log"), directory.path().join("moved"));
    fs::create_dir(&logs).expect("a directory");
    write_config(&directory, &fill(LOG_TO, [("destination", log.display())]));
    let process = Process::start(tidegate_command(directory.path(), &[]));
    fs::rename(&logs, &moved).expect("our own directory");
    process.signal(Signal::USR1);
    eventually("it is logged", || process.log_line("cannot be reopened").is_some());
    assert_eq!(get(process.address, "/kept", "").status, 200);
    assert!(read_lines(&moved.join("access.log"), 1).contains("/kept"));
}

#[test]
fn sigusr1_without_a_log_file_is_ignored() {
    for destination in ["off", "stderr", "stdout"] {
        let directory = tempfile::tempdir().expect("a directory");
        write_config(&directory, &fill(LOG_TO, [("destination", destination)]));
        let mut process = Process::start(tidegate_command(directory.path(), &[]));
        process.signal(Signal::USR1);
        sleep(Duration::from_millis(100));
        assert_eq!(get(process.address, "/", "").status, 200, "{destination}");
        process.signal(Signal::TERM);
        assert_eq!(process.wait_exit().code(), Some(0), "{destination}");
    }
}

#[test]
fn dropped_log_lines_are_counted_and_logged() {
    let directory = tempfile::tempdir().expect("a directory");
    let (listen, admin) = (free_address(), free_address());
    let yaml = fill(NO_ACCESS_LOG, [("listen", listen), ("admin", admin)]);
    write_config(&directory, &yaml);
    let (reader, writer) = full_pipe();
    let mut child = KillOnDrop(start_blocked(&directory, writer));
    wait_until_serving(&[listen, admin]);
    // Each reload logs its faults, which quote these keys: about 50 KB.
    let padding = "x".repeat(900);
    let faulty: Vec<_> = (0..60).map(|number| format!("{padding}{number}: 1\n")).collect();
    write_config(&directory, &(yaml + &faulty.concat()));
    let dropped = || {
        let text = get(admin, "/metrics", "Connection: close\r\n").text();
        let name = "tidegate_process_log_dropped_total ";
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|count| count.parse::<u64>().ok()).expect("the metric")
    };
    let mut reloads = 0;
    while dropped() == 0 {
        // Eighty of them fill the queue.
        assert!(reloads < 400, "no line is dropped");
        reloads += 1;
        let mut client = Client::connect(admin);
        client.send("POST /api/reload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
        client.read_response();
    }
    let dropped = dropped();
    let mut lines = BufReader::new(reader).lines().map_while(Result::ok);
    let report = lines.find(|line| line.contains("log lines were lost")).expect("it is logged");
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!((&report["log"], report["dropped"].as_u64()), (&"process".into(), Some(dropped)));
    let reading = thread::spawn(move || lines.count());
    kill_process(Pid::from_child(&child.0), Signal::TERM).expect("a signal to our own child");
    assert_exits_cleanly(&mut child);
    reading.join().expect("it only reads");
}

fn make_fifo(path: &Path) {
    mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR).expect("a FIFO");
}

#[test]
fn a_fifo_without_a_reader_blocks_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let (fifo, (listen, admin)) = (directory.path().join("fifo"), (free_address(), free_address()));
    make_fifo(&fifo);
    let yaml = fill(
        "
        listen: [{address: '{listen}'}]
        admin: {address: '{admin}', hosts: [gateway.test]}
        workers: 2
        drain_timeout: 1s
        access_log: '{fifo}'
        upstreams: {hello: {respond: {body: hello}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
        ",
        [
            ("listen", listen.to_string()),
            ("admin", admin.to_string()),
            ("fifo", fifo.display().to_string()),
        ],
    );
    write_config(&directory, &yaml);
    let mut child = KillOnDrop(
        tidegate_command(directory.path(), &[])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary starts"),
    );
    wait_until_serving(&[listen, admin]);
    // More than a pipe holds.
    let mut client = Client::connect(listen);
    for _ in 0..1_000 {
        assert_eq!(client.get("/a", "").status, 200);
    }
    // In real time, because it is a separate process: it writes lines when they are a second old.
    sleep(Duration::from_millis(1_200));
    let late =
        File::options().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(&fifo);
    let mut text = String::new();
    let mut late = late.expect("our own FIFO");
    eventually("a late reader gets every line", || {
        let mut buffer = [0; 4_096];
        while let Ok(count @ 1..) = late.read(&mut buffer) {
            text.push_str(std::str::from_utf8(&buffer[..count]).expect("text"));
        }
        text.lines().count() == 1_000 && text.ends_with('\n')
    });
    for line in text.lines() {
        serde_json::from_str::<serde_json::Value>(line).expect("JSON");
    }
    // The pipe is full and unread: the exit waits for a bounded time.
    for _ in 0..1_000 {
        assert_eq!(client.get("/a", "").status, 200);
    }
    kill_process(Pid::from_child(&child.0), Signal::TERM).expect("a signal to our own child");
    let ((), took) = timed(|| assert_exits_cleanly(&mut child));
    assert!(took < Duration::from_secs(8), "{took:?}");
}

#[test]
fn failed_log_writes_are_counted_and_block_nothing() {
    let gateway = Gateway::start(
        "
        access_log: /dev/full
        upstreams: {hello: {respond: {body: hello}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
        ",
    );
    for _ in 0..3 {
        assert_eq!(get(gateway.address(), "/a", "").status, 200);
        let failed = gateway.metric("tidegate_access_log_write_errors_total");
        eventually("a write has failed", || {
            gateway.metric("tidegate_access_log_write_errors_total") > failed
        });
    }
    gateway.wait_for_metric("tidegate_access_log_dropped_total", 3);
    assert_eq!(gateway.metric("tidegate_process_log_dropped_total"), 0);
}

#[test]
fn access_lines_are_written_within_about_a_second() {
    let directory = tempfile::tempdir().expect("a directory");
    let log = directory.path().join("access.log");
    let yaml = fill(
        "
        access_log: '{log}'
        upstreams: {hello: {respond: {body: hello}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
        ",
        [("log", log.display())],
    );
    let gateway =
        Gateway::start_at(&yaml, Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000)));
    assert_eq!(get(gateway.address(), "/a", "").status, 200);
    for _ in 0..11 {
        gateway.clock.advance(Duration::from_millis(100));
    }
    read_lines(&log, 1);
    // Lines that are still queued are written at the stop.
    assert_eq!(get(gateway.address(), "/b", "").status, 200);
    drop(gateway);
    assert_eq!(fs::read_to_string(&log).expect("a log").lines().count(), 2);
}
