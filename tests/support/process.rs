//! The real binary as a child process, and what it says on standard error.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::eventually;

/// A command of the binary, to be run in `folder`.
pub(crate) fn tidegate(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(arguments).current_dir(folder).stdin(Stdio::null());
    command
}

/// A gateway that runs as a process of its own; gone when the test is over.
pub(crate) struct Process {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    /// Reads what it says, until it has ended.
    reader: Option<JoinHandle<()>>,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Process {
    /// Starts it and waits until it serves, on one listener and with an admin listener.
    pub(crate) fn start(folder: &Path, arguments: &[&str]) -> Self {
        let mut child = tidegate(folder, arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let stderr = child.stderr.take().expect("a pipe");
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let kept = lines.clone();
        let reader = thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                kept.lock().expect("no test panics with it").push(line);
            }
        });
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut process =
            Self { child, lines, reader: Some(reader), address: nowhere, admin: nowhere };
        eventually("it serves", || process.has_said("\"serving\"").is_some());
        let said = process.has_said("\"serving\"").expect("it said so");
        let mut addresses = said.split("127.0.0.1:").skip(1).map(|rest| {
            let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
            SocketAddr::from(([127, 0, 0, 1], port.parse().expect("a port")))
        });
        // The keys of a line are in the order in which they were given, or in that of their names.
        let (first, second) = (addresses.next(), addresses.next());
        let admin_first = said.find("\"admin\"") < said.find("\"listen\"");
        let (listen, admin) = if admin_first { (second, first) } else { (first, second) };
        process.address = listen.expect("a listener");
        process.admin = admin.expect("an admin listener");
        process
    }

    /// The first line that has `text` in it.
    pub(crate) fn has_said(&self, text: &str) -> Option<String> {
        let lines = self.lines.lock().expect("no test panics with it");
        lines.iter().find(|line| line.contains(text)).cloned()
    }

    /// Everything it has said.
    pub(crate) fn said(&self) -> String {
        self.lines.lock().expect("no test panics with it").join("\n")
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a signal to our own child");
    }

    /// How much memory it has resident, in bytes.
    pub(crate) fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))
            .expect("our own child");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
        1024 * line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of KiB")
    }

    /// Waits until it has ended, and everything it said is here.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("it ends", || {
            status = self.child.try_wait().expect("our own child");
            status.is_some()
        });
        if let Some(reader) = self.reader.take() {
            reader.join().expect("it only reads");
        }
        status.expect("it ended")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Already gone is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
