//! Upgrades of the running program, sockets of a service manager, and what the service manager
//! receives.

/// The process under test.
mod service;

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener},
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use rustix::process::Signal;
use testkit::{
    client::{Client, get},
    port::free_address,
    tls::{self, Authority},
    upstream::Upstream,
    wait::{eventually, sleep},
    yaml::fill,
};

use self::service::{Service, is_running};
use crate::tidegate_command;

/// Writes the configuration that the binary reads by default.
fn write(directory: &Path, text: &str) {
    fs::write(directory.join("config/tidegate.yaml"), text).expect("a file");
}

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
    authority.issue(&["localhost"]).write(directory.path(), "server");
    let yaml = fill(
        "
        listen:
          - {address: '{plain}'}
          - address: '{secure}'
            tls: {certificates: [{cert: '{files}/server.pem', key: '{files}/server.key'}]}
        admin: {address: '{admin}', hosts: [gateway.test]}
        workers: 2
        access_log: off
        upstreams: {app: {targets: ['{target}']}}
        routes: [{name: all, upstream: app}]
        ",
        [
            ("plain", plain.to_string()),
            ("secure", secure.to_string()),
            ("admin", admin.to_string()),
            ("files", directory.path().display().to_string()),
            ("target", upstream.target()),
        ],
    );
    write(directory.path(), &yaml);
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
fn a_process_that_is_told_to_stop_serves_for_the_drain_delay() {
    let upstream = Upstream::hello();
    let (plain, admin) = (free_address(), free_address());
    let yaml = fill(
        "
        listen: [{address: '{plain}'}]
        admin: {address: '{admin}', hosts: [gateway.test]}
        drain_delay: 60s
        access_log: off
        upstreams: {app: {targets: ['{target}']}}
        routes: [{name: all, upstream: app}]
        ",
        [("plain", plain.to_string()), ("admin", admin.to_string()), ("target", upstream.target())],
    );
    let directory = Service::directory();
    write(directory.path(), &yaml);
    let command = tidegate_command(directory.path(), &[]);
    let mut service = Service::start(directory, command, &[]);
    assert_eq!(get(admin, "/readyz", "").status, 200);
    service.signal(Signal::TERM);
    assert!(service.state().starts_with("STOPPING=1\n"));
    eventually("it is not ready", || get(admin, "/readyz", "").status == 503);
    for _ in 0..3 {
        assert_eq!(get(plain, "/x", "").text(), "hello", "a new connection");
    }
    service.signal(Signal::TERM);
    let main = service.main;
    service.wait_end(main);
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
    let yaml = fill(
        "
        listen: [{address: '{address}'}]
        drain_timeout: 20s
        upstreams: {app: {targets: ['{target}']}}
        routes: [{name: all, upstream: app}]
        ",
        [("address", address.to_string()), ("target", upstream.target())],
    );
    write(directory.path(), &yaml);
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
fn an_upgrade_that_fails_leaves_the_old_process_serving() {
    let (address, next) = (free_address(), free_address());
    let directory = Service::directory();
    let admin = directory.path().join("admin.sock");
    let yaml = |address: SocketAddr| {
        fill(
            "
            listen: [{address: '{address}'}]
            admin: {address: 'unix:{admin}'}
            upstreams: {app: {respond: {body: hello}}}
            routes: [{name: all, upstream: app}]
            ",
            [("address", address.to_string()), ("admin", admin.display().to_string())],
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
    assert!(healthy(), "its socket is kept");

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
        fill(
            "
            listen: [{address: '{address}'}]
            admin: {address: 'unix:{admin}'}
            workers: 3
            upstreams: {app: {respond: {body: hello}}}
            routes: [{name: all, upstream: app}]
            ",
            [("address", address.to_string()), ("admin", path.display().to_string())],
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
fn the_service_manager_receives_reloads_and_watchdog_states() {
    let directory = Service::directory();
    let address = free_address();
    let yaml = fill(
        "
        listen: [{address: '{address}'}]
        upstreams: {app: {respond: {body: hello}}}
        routes: [{name: all, upstream: app}]
        ",
        [("address", address)],
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
    let main = service.main;
    service.wait_end(main);
}
