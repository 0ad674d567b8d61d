//! The gateway's binary as a child process, and its log on standard error.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::eventually;

/// A command that runs `binary` in `directory` without standard input. Cargo gives the binary's
/// path only to integration tests and benchmarks: `env!("CARGO_BIN_EXE_tidegate")`.
pub fn gateway_command(binary: &str, directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary);
    command.args(arguments).current_dir(directory).stdin(Stdio::null());
    command
}

/// `command` with a limit of `open_files` file descriptors, which it cannot raise.
pub fn with_open_files(command: &Command, open_files: u64) -> Command {
    limited(command, &format!("ulimit -n {open_files}"))
}

/// `command` that cannot write files of more than 4 KiB, as on a disk that is nearly full: writes
/// fail.
pub fn with_small_files(command: &Command) -> Command {
    // In units of 512 bytes. Without the trap the signal ends the process.
    limited(command, "trap '' XFSZ && ulimit -f 8")
}

/// `command` after the shell's `limit`.
fn limited(command: &Command, limit: &str) -> Command {
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("{limit} && exec \"$0\" \"$@\"")]);
    limited.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    if let Some(directory) = command.get_current_dir() {
        limited.current_dir(directory);
    }
    limited
}

/// The CPU time of the threads of our child process `id` so far.
pub fn cpu_time(id: u32) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{id}/task"));
    let nanoseconds = tasks.expect("our own child").flatten().filter_map(|task| {
        let times = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        times.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanoseconds.sum())
}

/// A gateway as a child process; killed when dropped.
pub struct Process {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    /// Collects the log until the process ends.
    reader: Option<JoinHandle<()>>,
    /// The only listener's address.
    pub address: SocketAddr,
    /// The admin listener's address.
    pub admin: SocketAddr,
    /// The processes that took its place, in their order.
    successors: Vec<Pid>,
}

impl Process {
    /// Starts it and waits until it serves. It must have one listener and an admin listener on
    /// 127.0.0.1.
    pub fn start(mut command: Command) -> Self {
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let stderr = child.stderr.take().expect("a pipe");
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let collector = lines.clone();
        let reader = thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                collector.lock().expect("no panic").push(line);
            }
        });
        // Replaced below.
        let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut process = Self {
            child,
            lines,
            reader: Some(reader),
            address: unknown,
            admin: unknown,
            successors: Vec::new(),
        };
        eventually("it serves", || process.log_line("\"serving\"").is_some());
        let serving = process.log_line("\"serving\"").expect("logged above");
        let mut addresses = serving.split("127.0.0.1:").skip(1).map(|rest| {
            let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
            SocketAddr::from(([127, 0, 0, 1], port.parse().expect("a port")))
        });
        // The order of the line's keys is not fixed.
        let (first, second) = (addresses.next(), addresses.next());
        let admin_first = serving.find("\"admin\"") < serving.find("\"listen\"");
        let (listen, admin) = if admin_first { (second, first) } else { (first, second) };
        process.address = listen.expect("a listener");
        process.admin = admin.expect("an admin listener");
        process
    }

    /// The first log line that contains `text`.
    pub fn log_line(&self, text: &str) -> Option<String> {
        let lines = self.lines.lock().expect("no panic");
        lines.iter().find(|line| line.contains(text)).cloned()
    }

    /// The whole log so far.
    pub fn log(&self) -> String {
        self.lines.lock().expect("no panic").join("\n")
    }

    /// Sends it a signal; after an upgrade, to its last successor.
    pub fn signal(&self, signal: Signal) {
        let own = Pid::from_child(&self.child);
        let serving = self.successors.last().copied().unwrap_or(own);
        kill_process(serving, signal).expect("a signal to a process of ours");
    }

    /// Lets a new process take its place, and waits until the new one serves.
    pub fn upgrade(&mut self) {
        let before = self.serving().len();
        self.signal(Signal::USR2);
        eventually("its successor serves", || self.serving().len() > before);
        self.successors.extend(self.serving().last());
        if self.successors.len() == 1 {
            eventually("it has ended", || self.child.try_wait().expect("our own child").is_some());
        }
    }

    /// The processes that have logged that they serve.
    fn serving(&self) -> Vec<Pid> {
        let log = self.log();
        let lines = log.lines().filter(|line| line.contains("\"serving\""));
        let pid = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            Pid::from_raw(i32::try_from(line["pid"].as_u64()?).ok()?)
        };
        lines.filter_map(pid).collect()
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its resident memory in bytes.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))
            .expect("our own child");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
        1024 * line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of KiB")
    }

    /// The CPU time of its threads so far.
    pub fn cpu_time(&self) -> Duration {
        cpu_time(self.child.id())
    }

    /// Waits until it has exited and its log is complete.
    pub fn wait_exit(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("it exits", || {
            status = self.child.try_wait().expect("our own child");
            status.is_some()
        });
        if let Some(reader) = self.reader.take() {
            reader.join().expect("no panic");
        }
        status.expect("it exited")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for successor in &self.successors {
            let _ = kill_process(*successor, Signal::KILL);
        }
    }
}
