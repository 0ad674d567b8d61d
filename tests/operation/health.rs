//! `tidegate health` against running gateways.

use std::{fs, net::TcpListener, path::Path, process::Output};

use testkit::{process::Process, tls::Authority};

use crate::tidegate_command;

const RULES: &str = "listen: [{address: '127.0.0.1:0'}]
access_log: off
upstreams: {hello: {respond: {body: hi}}}
routes: [{name: all, upstream: hello}]
";

/// The exit code and the output: standard output after a success, or else standard error.
fn health(folder: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let arguments = [&["health"], arguments].concat();
    let Output { status, stdout, stderr } =
        tidegate_command(folder, &arguments).output().expect("the binary starts");
    let (printed, other) = if status.success() { (stdout, stderr) } else { (stderr, stdout) };
    let text = |bytes| String::from_utf8(bytes).expect("text");
    assert_eq!(text(other), "", "{arguments:?}");
    let printed = text(printed);
    assert_eq!(printed.lines().count(), 1, "{printed}");
    (status.code(), printed.trim_end().to_owned())
}

fn write(folder: &Path, name: &str, admin: &str) {
    fs::write(folder.join(name), format!("{admin}{RULES}")).expect("a file");
}

/// Writes a configuration with the gateway's admin port.
fn write_with_port(folder: &Path, name: &str, admin: &str, process: &Process) {
    write(folder, name, &admin.replace(":0", &format!(":{}", process.admin.port())));
}

/// A gateway on the file `start.yaml` with `admin`, whose port is 0.
fn start(folder: &Path, admin: &str) -> Process {
    write(folder, "start.yaml", admin);
    Process::start(tidegate_command(folder, &["serve", "start.yaml"]))
}

#[test]
fn a_running_gateway_is_ready_and_a_stopped_one_is_not() {
    let directory = tempfile::tempdir().expect("a directory");
    let folder = directory.path();
    let token = "admin: {address: '127.0.0.1:0', token: 'file:token'}\n";
    fs::write(folder.join("token"), "0123456789abcdef").expect("a file");
    let mut process = start(folder, token);
    write_with_port(folder, "a.yaml", token, &process);
    let url = format!("http://{}/readyz", process.admin);
    let ready = (Some(0), format!("ready: {url}"));
    for arguments in
        [&["a.yaml"][..], &["--config", "a.yaml"], &["--url", &format!("http://{}", process.admin)]]
    {
        assert_eq!(health(folder, arguments), ready);
    }
    // The gateway refuses a faulty change and runs on.
    let faulty = fs::read_to_string(folder.join("a.yaml")).expect("a file") + "limits: {a: 5}\n";
    fs::write(folder.join("faulty.yaml"), faulty).expect("a file");
    assert_eq!(health(folder, &["faulty.yaml"]), ready);

    let (code, wrong) = health(folder, &["--url", &format!("http://{}/nothing", process.admin)]);
    assert_eq!(code, Some(1));
    assert!(wrong.contains("/nothing: 401, expected 200 of the admin API: "), "{wrong}");

    process.signal(rustix::process::Signal::TERM);
    process.wait_exit();
    let (code, refused) = health(folder, &["a.yaml"]);
    assert_eq!(code, Some(1));
    let expected = format!("tidegate: not ready: {url}: Connection refused");
    assert!(refused.starts_with(&expected), "{refused}");
    assert!(refused.ends_with("(is the gateway running?)"), "{refused}");
}

#[test]
fn a_gateway_that_does_not_respond_is_not_ready_after_the_timeout() {
    let directory = tempfile::tempdir().expect("a directory");
    // Connections are established by the system and never accepted.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", silent.local_addr().expect("an address"));
    let (code, printed) = health(directory.path(), &["--url", &url, "--timeout", "100ms"]);
    assert_eq!(code, Some(1));
    assert_eq!(printed, format!("tidegate: not ready: {url}/readyz: no response within 100ms"));
}

#[test]
fn the_admin_api_is_asked_over_tls() {
    let directory = tempfile::tempdir().expect("a directory");
    let folder = directory.path();
    let authority = Authority::new("tests");
    let entry = authority.issue(&["*.admin.test", "127.0.0.1"]).write(folder, "admin").entry();
    let ca = authority.write(folder, "ca");
    let admin =
        format!("admin: {{address: '127.0.0.1:0', tls: {{certificates: [{{{entry}}}]}}}}\n");
    let process = start(folder, &admin);
    write_with_port(folder, "a.yaml", &admin, &process);
    let url = format!("https://{}", process.admin);
    let ready = (Some(0), format!("ready: {url}/readyz"));
    // The configuration's own certificate is trusted; that of a URL is not, without its authority.
    assert_eq!(health(folder, &["a.yaml"]), ready);
    let ca = ca.to_str().expect("text");
    assert_eq!(health(folder, &["--url", &url, "--ca", ca]), ready);

    let other = Authority::new("others");
    let others = other.write(folder, "others");
    let others = others.to_str().expect("text");
    for arguments in [&["--url", &url, "--ca", others][..], &["a.yaml", "--ca", others]] {
        let (code, printed) = health(folder, arguments);
        assert_eq!(code, Some(1));
        assert!(printed.contains("invalid peer certificate: UnknownIssuer"), "{printed}");
    }
    let clear = url.replace("https", "http");
    let (code, printed) = health(folder, &["--url", &clear]);
    assert_eq!(code, Some(1));
    assert!(printed.contains("400, expected 200") && printed.contains("https://"), "{printed}");
}

#[test]
fn an_admin_api_that_asks_for_a_certificate_gets_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let folder = directory.path();
    let authority = Authority::new("tests");
    let issued = authority.issue(&["admin.test"]).write(folder, "admin");
    let ca = authority.write(folder, "ca");
    let entry = format!("{}, client_ca: '{}'", issued.entry(), ca.display());
    let admin =
        format!("admin: {{address: '127.0.0.1:0', tls: {{certificates: [{{{entry}}}]}}}}\n");
    let process = start(folder, &admin);
    write_with_port(folder, "a.yaml", &admin, &process);
    let (code, printed) = health(folder, &["a.yaml"]);
    assert_eq!(code, Some(0), "{printed}");
}

#[test]
fn the_admin_api_is_asked_on_a_unix_socket() {
    let directory = tempfile::tempdir().expect("a directory");
    let folder = directory.path();
    let socket = format!("unix:{}", folder.join("admin.sock").display());
    write(folder, "a.yaml", &format!("admin: {{address: '{socket}'}}\n"));
    let none = health(folder, &["a.yaml"]);
    assert_eq!(none.0, Some(1));
    assert!(none.1.contains("No such file or directory"), "{}", none.1);
    let gateway = tidegate::server::Server::builder(tidegate::clock::Clock::system())
        .start_file(&folder.join("a.yaml"));
    let gateway = gateway.unwrap_or_else(|error| panic!("{error}"));
    let ready = (Some(0), format!("ready: {socket}"));
    assert_eq!(health(folder, &["a.yaml"]), ready);
    assert_eq!(health(folder, &["--url", &socket]), ready);
    gateway.stop();
    assert_eq!(health(folder, &["a.yaml"]).0, Some(1));
}

#[test]
fn without_an_admin_address_it_says_so() {
    let directory = tempfile::tempdir().expect("a directory");
    let folder = directory.path();
    write(folder, "a.yaml", "");
    let (code, printed) = health(folder, &["a.yaml"]);
    assert_eq!(code, Some(1));
    assert!(printed.starts_with("tidegate: a.yaml has no `admin.address`"), "{printed}");
    let (code, printed) = health(folder, &["absent.yaml"]);
    assert_eq!(code, Some(1));
    assert!(printed.contains("absent.yaml: the file does not exist"), "{printed}");
}
