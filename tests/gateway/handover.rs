//! Upgrades of the running program, sockets of a service manager, and what the service manager receives.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener},
    os::{
        fd::OwnedFd,
        unix::net::{UnixDatagram, UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use testkit::{
    client::{Client, get},
    port::free_address,
    tls::{self, Authority},
    upstream::Upstream,
    wait::{eventually, sleep},
};

use crate::tidegate_command;

/// A gateway, its log, and the socket on which it reports its states.
struct Service {
    directory: TempDir,
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    states: UnixDatagram,
    /// The process that serves.
    main: u32,
}

impl Service {
    fn directory() -> TempDir {
        let directory = tempfile::tempdir().expect("a directory");
        fs::create_dir(directory.path().join("config")).expect("a directory");
        directory
    }

    /// Starts `command` and waits until it has reported that it serves.
    fn start(directory: TempDir, mut command: Command, variables: &[(&str, &str)]) -> Self {
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

    fn config(&self) -> PathBuf {
        self.directory.path().join("config/tidegate.yaml")
    }

    fn log(&self) -> String {
        self.lines.lock().expect("no panic").join("\n")
    }

    /// The next state that is reported.
    fn state(&self) -> String {
        let mut bytes = [0; 1024];
        match self.states.recv(&mut bytes) {
            Ok(length) => String::from_utf8_lossy(&bytes[..length]).into_owned(),
            Err(error) => panic!("no state: {error}; {}", self.log()),
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.main.cast_signed()).expect("a process");
        kill_process(pid, signal).expect("a process of this test");
    }

    /// Replaces the process, and waits until the old one has ended.
    fn upgrade(&mut self) {
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

    fn wait_end(&mut self, process: u32) {
        eventually("the process ends", || {
            let _ = self.child.try_wait();
            !is_running(process)
        });
    }

    fn stop(&mut self) {
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

/// Whether the process exists and is no zombie.
fn is_running(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// A port that was free when it was probed.
fn write(directory: &Path, text: &str) {
    fs::write(directory.join("config/tidegate.yaml"), text).expect("a file");
}

const ROUTES: &str = "routes: [{name: all, upstream: app}]\n";

/// Sends requests until it is stopped; counts them, and keeps what went wrong.
#[derive(Clone, Default)]
struct Load {
    is_over: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    failures: Arc<Mutex<Vec<String>>>,
}

impl Load {
    /// Runs `request` repeatedly on a thread of its own. It returns what went wrong.
    fn spawn(
        &self,
        mut request: impl FnMut() -> Result<(), String> + Send + 'static,
    ) -> thread::JoinHandle<()> {
        let load = self.clone();
        thread::spawn(move || {
            while !load.is_over.load(SeqCst) {
                match request() {
                    Ok(()) => drop(load.answered.fetch_add(1, SeqCst)),
                    Err(error) => load.failures.lock().expect("no panic").push(error),
                }
                sleep(Duration::from_millis(2));
            }
        })
    }
}

fn ask<S: Read + Write>(client: &mut Client<S>, more: &str) -> Result<bool, String> {
    client.send(format!("GET /x HTTP/1.1\r\nHost: localhost\r\n{more}\r\n"));
    let response = client.try_read_response().ok_or("no response")?;
    if (response.status, &*response.text()) != (200, "hello") {
        return Err(format!("{} {}", response.status, response.text()));
    }
    Ok(response.header("connection").is_none_or(|value| value != "close"))
}

#[test]
fn upgrades_under_load_lose_no_request() {
    let upstream = Upstream::hello();
    let (plain, secure, admin) = (free_address(), free_address(), free_address());
    let directory = Service::directory();
    let authority = Authority::new("upgrades");
    let certificate = authority.issue(&["localhost"]).write(directory.path(), "server").entry();
    write(
        directory.path(),
        &format!(
            "listen: [{{address: '{plain}'}}, {{address: '{secure}', tls: {{certificates: [{{{certificate}}}]}}}}]
admin: {{address: '{admin}', hosts: [gateway.test]}}
workers: 2
access_log: off
upstreams: {{app: {{targets: ['{}']}}}}
{ROUTES}",
            upstream.target()
        ),
    );
    let command = tidegate_command(directory.path(), &[]);
    let mut service = Service::start(directory, command, &[]);
    let load = Load::default();
    let mut threads = Vec::new();
    let config = Arc::new(authority.client(None, &["http/1.1"]));
    for _ in 0..3 {
        threads.push(load.spawn(move || {
            let mut client = Client::try_connect(plain).map_err(|error| error.to_string())?;
            ask(&mut client, "Connection: close\r\n").map(drop)
        }));
        let mut kept: Option<Client> = None;
        threads.push(load.spawn(move || {
            let mut client = match kept.take() {
                Some(client) => client,
                None => Client::try_connect(plain).map_err(|error| error.to_string())?,
            };
            if ask(&mut client, "")? {
                kept = Some(client);
            }
            Ok(())
        }));
        let (config, mut kept) = (config.clone(), None);
        threads.push(load.spawn(move || {
            let mut client = match kept.take() {
                Some(client) => client,
                None => {
                    tls::connect(secure, "localhost", &config).map_err(|error| error.to_string())?
                }
            };
            if ask(&mut client, "")? {
                kept = Some(client);
            }
            Ok(())
        }));
    }
    for _ in 0..4 {
        let before = load.answered.load(SeqCst);
        service.upgrade();
        eventually("the new process answers", || load.answered.load(SeqCst) > before + 200);
        assert_eq!(get(admin, "/healthz", "").status, 200);
    }
    load.is_over.store(true, SeqCst);
    for thread in threads {
        thread.join().expect("no panic");
    }
    let failures = load.failures.lock().expect("no panic");
    assert!(
        failures.is_empty(),
        "{failures:?} of {}: {}",
        load.answered.load(SeqCst),
        service.log()
    );
    drop(failures);
    service.stop();
    assert!(Client::try_connect(plain).is_err(), "no process listens any more");
}

#[test]
fn requests_in_flight_end_in_the_old_process() {
    let gate = testkit::upstream::ResponseGate::default();
    let opened = gate.clone();
    let upstream = Upstream::with_handler(move |request, socket| {
        if request.starts_with(b"GET /slow") {
            opened.wait();
        }
        socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").is_ok()
    });
    let address = free_address();
    let directory = Service::directory();
    let more = format!(
        "listen: [{{address: '{address}'}}]\nupstreams: {{app: {{targets: ['{}']}}}}\ndrain_timeout: 20s\n{ROUTES}",
        upstream.target()
    );
    write(directory.path(), &more);
    let command = tidegate_command(directory.path(), &[]);
    let mut service = Service::start(directory, command, &[]);
    let mut slow = Client::connect(address);
    slow.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    eventually("it is forwarded", || upstream.request_count() == 1);
    service.signal(Signal::USR2);
    assert!(service.state().starts_with("RELOADING=1"));
    let state = service.state();
    let old = service.main;
    let id = state.strip_prefix("MAINPID=").and_then(|rest| rest.split('\n').next());
    service.main = id.expect("an id").parse().expect("a number");
    assert_eq!(get(address, "/", "").status, 200);
    assert!(is_running(old), "the old process waits for its request");
    gate.open();
    assert_eq!(slow.read_response().text(), "hello");
    service.wait_end(old);
    service.stop();
}

#[test]
fn a_process_that_does_not_start_changes_nothing() {
    let (address, next) = (free_address(), free_address());
    let directory = Service::directory();
    let admin = directory.path().join("admin.sock");
    let yaml = |address: SocketAddr| {
        format!(
            "listen: [{{address: '{address}'}}]\nadmin: {{address: 'unix:{}'}}
upstreams: {{app: {{respond: {{body: hello}}}}}}\n{ROUTES}",
            admin.display()
        )
    };
    write(directory.path(), &yaml(address));
    let command = tidegate_command(directory.path(), &[]);
    let mut service = Service::start(directory, command, &[]);
    let healthy = || {
        let mut socket = UnixStream::connect(&admin).expect("the admin socket");
        let request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        socket.write_all(request).expect("a connection");
        let mut response = String::new();
        socket.read_to_string(&mut response).expect("a response");
        response.starts_with("HTTP/1.1 200")
    };
    assert!(healthy());

    write(service.directory.path(), "nonsense: 1\n");
    service.signal(Signal::USR2);
    assert!(service.state().starts_with("RELOADING=1"));
    assert_eq!(service.state(), "READY=1\nSTATUS=serving; an upgrade has failed\n");
    for line in ["unknown key `nonsense`", "the new process does not serve"] {
        eventually(line, || service.log().contains(line));
    }
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = taken.local_addr().expect("an address");
    for times in 1..=5 {
        write(service.directory.path(), &yaml(taken));
        service.signal(Signal::USR2);
        assert!(service.state().starts_with("RELOADING=1"));
        assert_eq!(service.state(), "READY=1\nSTATUS=serving; an upgrade has failed\n");
        let line = format!("tidegate: cannot listen on {taken}: Address already in use");
        let count = || service.log().lines().filter(|own| own.starts_with(&line)).count();
        eventually("the fault is written, in a line of its own", || count() == times);
    }
    assert_eq!(get(address, "/", "").text(), "hello");
    assert!(healthy(), "its socket is still there");

    // The addresses are those of the new configuration.
    write(service.directory.path(), &yaml(next));
    service.upgrade();
    assert_eq!(get(next, "/", "").text(), "hello");
    assert!(Client::try_connect(address).is_err(), "no longer listened on");
    eventually("it is logged", || service.log().contains("no longer listened on"));
    assert!(healthy(), "the file belongs to the new process");
    service.stop();
    assert!(!admin.exists(), "the last process removes the file");
}

/// A command whose sockets 3 and 4 are these, as a service manager starts it.
fn activated(directory: &Path, sockets: [OwnedFd; 2]) -> Command {
    let [first, second] = sockets;
    let script = "exec 3<&0 4<&1 </dev/null >/dev/null; LISTEN_FDS=2 LISTEN_PID=$$ exec \"$0\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_tidegate")]).current_dir(directory);
    command.stdin(first).stdout(second);
    command
}

#[test]
fn sockets_of_a_service_manager_are_served() {
    let directory = Service::directory();
    let path = directory.path().join("admin.sock");
    let clients = TcpListener::bind("127.0.0.1:0").expect("a port");
    let admin = UnixListener::bind(&path).expect("a socket");
    let address = clients.local_addr().expect("an address");
    let yaml = |address: SocketAddr| {
        format!(
            "listen: [{{address: '{address}'}}]\nadmin: {{address: 'unix:{}'}}\nworkers: 3
upstreams: {{app: {{respond: {{body: hello}}}}}}\n{ROUTES}",
            path.display()
        )
    };
    write(directory.path(), &yaml(address));
    // A client that came before the gateway is answered by it.
    let mut early = Client::connect(address);
    early.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let sockets =
        || [OwnedFd::from(clients.try_clone().unwrap()), admin.try_clone().unwrap().into()];
    let command = activated(directory.path(), sockets());
    let mut service = Service::start(directory, command, &[]);
    assert_eq!(early.read_response().text(), "hello");
    for _ in 0..20 {
        assert_eq!(get(address, "/", "").text(), "hello");
    }
    service.upgrade();
    assert_eq!(get(address, "/", "").text(), "hello");
    service.stop();
    assert!(path.exists(), "the file is the service manager's");

    // A socket without a listener is a fault, not silence.
    fs::write(service.config(), yaml(free_address())).expect("a file");
    let mut command = activated(service.directory.path(), sockets());
    let output = command.stderr(Stdio::piped()).output().expect("the binary starts");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    let expected =
        format!("cannot listen on {address}: the service manager passed a socket for it");
    assert!(message.contains(&expected), "{message}");
}

#[test]
fn the_service_manager_is_told_of_reloads_and_that_it_lives() {
    let directory = Service::directory();
    let address = free_address();
    let yaml = format!(
        "listen: [{{address: '{address}'}}]\nupstreams: {{app: {{respond: {{body: hello}}}}}}\n{ROUTES}"
    );
    write(directory.path(), &yaml);
    let command = tidegate_command(directory.path(), &[]);
    let mut service = Service::start(directory, command, &[("WATCHDOG_USEC", "400000")]);
    for _ in 0..3 {
        assert_eq!(service.state(), "WATCHDOG=1\n");
    }
    service.signal(Signal::HUP);
    let states: Vec<String> = std::iter::repeat_with(|| service.state())
        .filter(|state| state != "WATCHDOG=1\n")
        .take(2)
        .collect();
    assert!(states[0].starts_with("RELOADING=1\nMONOTONIC_USEC="), "{states:?}");
    assert!(states[1].starts_with("READY=1\n"), "{states:?}");
    service.signal(Signal::TERM);
    while !service.state().starts_with("STOPPING=1\n") {}
    service.wait_end(service.main);
}
