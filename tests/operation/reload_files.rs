use std::{
    fs,
    io::Write,
    net::SocketAddr,
    path::Path,
    process::{Command, Stdio},
};

use rustix::process::Signal;
use testkit::{client::get, process::Process, wait::eventually};

use crate::{
    reload::{fixed_response, post_reload},
    tidegate_command,
};

fn make_fifo(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status().expect("mkfifo");
    assert!(made.success());
}

/// Checks that a reload is refused because the file is a FIFO, and that the old rules stay.
fn assert_fifo_is_refused(admin: SocketAddr, address: SocketAddr) {
    let refused = post_reload(admin);
    assert_eq!(refused.status, 400);
    let fault = refused.json()["faults"][0].as_str().expect("text").to_owned();
    assert!(fault.contains(": the file is a FIFO, expected a regular file"), "{fault}");
    assert_eq!(get(admin, "/healthz", "").text(), "ok\n");
    assert_eq!(get(address, "/a", "").text(), "one");
}

#[test]
fn a_fifo_in_the_file_s_place_blocks_neither_admin_nor_signals() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("own.yaml");
    fs::write(&path, fixed_response("one")).expect("a file");
    let start = || Process::start(tidegate_command(directory.path(), &["--config", "own.yaml"]));
    let mut process = start();
    let fifo = directory.path().join("fifo");
    make_fifo(&fifo);
    fs::rename(&fifo, &path).expect("the FIFO in its place");
    // The watcher finds it by itself, and the file that replaces it.
    eventually("the change is refused", || process.log_line("is a FIFO, expected").is_some());
    assert_fifo_is_refused(process.admin, process.address);
    process.signal(Signal::HUP);
    let faults = || process.log().matches("is a FIFO, expected").count();
    eventually("the signal's reload is refused", || faults() >= 3);
    fs::write(directory.path().join("new"), fixed_response("two")).expect("a file");
    fs::rename(directory.path().join("new"), &path).expect("the new file in its place");
    eventually("the new rules", || get(process.address, "/a", "").text() == "two");
    assert!(!process.log().contains("panicked"), "{}", process.log());
    process.signal(Signal::TERM);
    assert_eq!(process.wait_exit().code(), Some(0));
}

#[test]
fn a_configuration_from_a_pipe_is_checked_and_served_but_not_reloaded() {
    let directory = tempfile::tempdir().expect("a directory");
    let command = |arguments: &[&str]| {
        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        writer.write_all(fixed_response("one").as_bytes()).expect("room in the pipe");
        let mut command = tidegate_command(directory.path(), arguments);
        command.stdin(Stdio::from(reader));
        command
    };
    let checked = command(&["check", "-c", "/dev/stdin"]).output().expect("it runs");
    let printed = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(printed.starts_with("/dev/stdin: ok (1 route"), "{printed}");

    let mut process = Process::start(command(&["serve", "-c", "/dev/stdin"]));
    eventually("the watch ends", || process.log_line("not a regular file").is_some());
    assert!(process.log_line("ERROR").is_none(), "{}", process.log());
    assert_fifo_is_refused(process.admin, process.address);
    process.signal(Signal::TERM);
    assert_eq!(process.wait_exit().code(), Some(0));
}
