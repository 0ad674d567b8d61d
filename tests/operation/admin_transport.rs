//! The admin listener over TLS and on a unix socket.

use std::{
    fs,
    io::{Read, Write},
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    path::Path,
    sync::Arc,
};

use testkit::{
    client::Client,
    gateway::Gateway,
    tls::{Authority, connect},
    wait::eventually,
};
use tidegate::{clock::Clock, server::Server};

const RULES: &str = "upstreams: {hello: {respond: {body: hi}}}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
";

/// The response of the admin API on the unix socket at `path`.
fn ask_socket(path: &Path, target: &str) -> String {
    let mut socket = UnixStream::connect(path).expect("a connection");
    let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).expect("a request");
    let mut response = String::new();
    socket.read_to_string(&mut response).expect("a response");
    response
}

#[test]
fn the_admin_api_is_served_over_tls() {
    let directory = tempfile::tempdir().expect("a directory");
    let authority = Authority::new("tests");
    let entry = authority.issue(&["admin.test"]).write(directory.path(), "admin").entry();
    let admin = format!(
        "admin: {{address: '127.0.0.1:0', hosts: [admin.test], tls: {{certificates: [{{{entry}}}]}}}}\n"
    );
    let gateway = Gateway::start(&format!("{admin}{RULES}"));
    let client = Arc::new(authority.client(None, &["http/1.1"]));
    let mut first = connect(gateway.admin(), "admin.test", &client).expect("a handshake");
    let mut ask = |target: &str| {
        first.send(format!("GET {target} HTTP/1.1\r\nHost: admin.test\r\n\r\n")).read_response()
    };
    assert_eq!(ask("/healthz").status, 200);
    let metrics = ask("/metrics").text();
    assert!(metrics.contains("{listener=\"admin\",name=\"admin.test\"}"), "{metrics}");

    let mut clear = Client::connect(gateway.admin());
    let refused = clear.send("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").read_response();
    assert!(refused.status == 400 && refused.text().contains("https://"), "{}", refused.text());

    // A certificate that replaces the file is used for the next connection.
    let renewed = authority.issue(&["admin.test"]);
    renewed.write(directory.path(), "admin");
    gateway.reload(&format!("{admin}{RULES}")).expect("a reload");
    // Its session is not resumed.
    let client = Arc::new(authority.client(None, &["http/1.1"]));
    let second = connect(gateway.admin(), "admin.test", &client).expect("a handshake");
    assert_eq!(second.socket.conn.peer_certificates(), Some(&[renewed.der()][..]));
}

#[test]
fn the_admin_api_is_served_on_a_unix_socket() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("admin.sock");
    let file = directory.path().join("tidegate.yaml");
    let listen = "listen: [{address: '127.0.0.1:0'}]\naccess_log: off\n";
    let yaml = format!("{listen}admin: {{address: 'unix:{}'}}\n{RULES}", path.display());
    fs::write(&file, yaml).expect("a file");
    let start = || Server::builder(Clock::system()).start_file(&file);

    // A stale socket of an earlier gateway is replaced.
    drop(UnixListener::bind(&path).expect("a socket"));
    let gateway = start().expect("a gateway");
    let mode = fs::metadata(&path).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(ask_socket(&path, "/api/limits").starts_with("HTTP/1.1 200"));
    assert!(ask_socket(&path, "/api/config").contains(&format!("unix:{}", path.display())));
    eventually("idle connections make room", || {
        let idle: Vec<_> = (0..100).map(|_| UnixStream::connect(&path)).collect();
        idle.len() == 100 && ask_socket(&path, "/healthz").starts_with("HTTP/1.1 200")
    });

    let second = start().err().expect("a second gateway does not take it over").to_string();
    assert!(second.contains("admin.sock") && second.contains("in use"), "{second}");
    drop(gateway);
    assert!(!path.exists(), "the socket is removed");

    fs::write(&path, "kept").expect("a file");
    let error = start().err().expect("a file that is no socket stays").to_string();
    assert!(error.contains("not a socket"), "{error}");
    assert_eq!(fs::read_to_string(&path).expect("a file"), "kept");
}

#[test]
fn tls_on_a_unix_socket_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let entry = Authority::new("tests").issue(&["a.test"]).write(directory.path(), "a").entry();
    let file = directory.path().join("tidegate.yaml");
    let socket = directory.path().join("admin.sock");
    let admin = format!("address: 'unix:{}'", socket.display());
    let yaml = format!("admin: {{{admin}, tls: {{certificates: [{{{entry}}}]}}}}\n{RULES}");
    fs::write(&file, yaml).expect("a file");
    let fault =
        Server::builder(Clock::system()).start_file(&file).err().expect("a fault").to_string();
    assert!(fault.contains("`tls` on a unix socket"), "{fault}");
}
