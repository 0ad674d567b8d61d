//! A gateway that a service manager runs: this test.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::net::UnixDatagram,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use testkit::wait::eventually;

/// A gateway, its log, and the socket on which it reports its states.
pub(super) struct Service {
    pub(super) directory: TempDir,
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    states: UnixDatagram,
    /// The process that serves.
    pub(super) main: u32,
}

impl Service {
    pub(super) fn directory() -> TempDir {
        let directory = tempfile::tempdir().expect("a directory");
        fs::create_dir(directory.path().join("config")).expect("a directory");
        directory
    }

    /// Starts `command` and waits until it has reported that it serves.
    pub(super) fn start(
        directory: TempDir,
        mut command: Command,
        variables: &[(&str, &str)],
    ) -> Self {
        let path = directory.path().join("notify");
        let states = UnixDatagram::bind(&path).expect("a socket");
        states.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
        command.env("NOTIFY_SOCKET", &path).envs(variables.iter().copied());
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the binary starts");
        let stderr = child.stderr.take().expect("a pipe");
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let collected = lines.clone();
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                collected.lock().expect("no panic").push(line);
            }
        });
        let main = child.id();
        let service = Self { directory, child, lines, states, main };
        let ready = service.state();
        assert!(ready.starts_with("READY=1\n"), "{ready}: {}", service.log());
        service
    }

    pub(super) fn config(&self) -> PathBuf {
        self.directory.path().join("config/tidegate.yaml")
    }

    pub(super) fn log(&self) -> String {
        self.lines.lock().expect("no panic").join("\n")
    }

    /// The next state that is reported.
    pub(super) fn state(&self) -> String {
        let mut bytes = [0; 1024];
        match self.states.recv(&mut bytes) {
            Ok(length) => String::from_utf8_lossy(&bytes[..length]).into_owned(),
            Err(error) => panic!("no state: {error}; {}", self.log()),
        }
    }

    pub(super) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.main.cast_signed()).expect("a process");
        kill_process(pid, signal).expect("a process of this test");
    }

    /// Replaces the process, and waits until the old one has ended.
    pub(super) fn upgrade(&mut self) {
        self.signal(Signal::USR2);
        assert!(self.state().starts_with("RELOADING=1\nMONOTONIC_USEC="));
        let state = self.state();
        let id = state.strip_prefix("MAINPID=").and_then(|rest| rest.split_once('\n'));
        let (id, rest) = id.unwrap_or_else(|| panic!("{state}: {}", self.log()));
        assert!(rest.starts_with("READY=1\n"), "{rest}");
        let old = std::mem::replace(&mut self.main, id.parse().expect("an id"));
        assert_ne!(old, self.main);
        self.wait_end(old);
    }

    pub(super) fn wait_end(&mut self, process: u32) {
        eventually("the process ends", || {
            let _ = self.child.try_wait();
            !is_running(process)
        });
    }

    pub(super) fn stop(&mut self) {
        self.signal(Signal::TERM);
        assert!(self.state().starts_with("STOPPING=1\n"));
        self.wait_end(self.main);
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        for id in [self.main, self.child.id()] {
            if let Some(pid) = Pid::from_raw(id.cast_signed()).filter(|_| is_running(id)) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        let _ = self.child.wait();
    }
}

/// True if the process exists and is no zombie.
pub(super) fn is_running(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}
