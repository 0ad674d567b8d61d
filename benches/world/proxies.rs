//! The proxies as child processes, each with its defaults in front of one server.

use std::{
    fmt, fs,
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;
use testkit::{
    port::free_address,
    process::{Process, gateway_command},
    wait::eventually,
};

/// The compared proxies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Tidegate,
    Nginx,
    Haproxy,
}

/// A running proxy.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    _running: Running,
    _directory: TempDir,
}

#[expect(dead_code, reason = "held for its drop")]
enum Running {
    Tidegate(Process),
    Other(Other),
}

struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the gateway with a configuration that has one listener, and an admin listener.
pub(crate) fn gateway(program: &Path, directory: &Path, yaml: &str) -> Process {
    fs::write(directory.join("t.yaml"), yaml).expect("a file");
    let program = program.to_str().expect("a path in UTF-8");
    Process::start(gateway_command(program, directory, &["serve", "--config", "t.yaml"]))
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Tidegate, Self::Nginx, Self::Haproxy];

    /// Starts it; `None` if it is not installed.
    pub(crate) fn start(self, program: &Path, target: SocketAddr) -> Option<Proxy> {
        let directory = tempfile::tempdir().expect("a directory");
        let root = directory.path();
        let listen = free_address();
        let (address, running) = match self {
            Self::Tidegate => {
                let process = gateway(program, root, &tidegate(target));
                (process.address, Running::Tidegate(process))
            }
            Self::Nginx => {
                let file = root.join("nginx.conf");
                fs::write(&file, nginx(root, listen, target)).expect("a file");
                let arguments = ["-p".as_ref(), root.as_os_str(), "-c".as_ref(), file.as_os_str()];
                (listen, spawn("/usr/sbin/nginx", &arguments)?)
            }
            Self::Haproxy => {
                let file = root.join("haproxy.cfg");
                fs::write(&file, haproxy(listen, target)).expect("a file");
                let arguments = ["-db".as_ref(), "-q".as_ref(), "-f".as_ref(), file.as_os_str()];
                (listen, spawn("/usr/sbin/haproxy", &arguments)?)
            }
        };
        eventually("the proxy accepts", || TcpStream::connect(address).is_ok());
        Some(Proxy { address, _running: running, _directory: directory })
    }
}

fn spawn(program: &str, arguments: &[&std::ffi::OsStr]) -> Option<Running> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().ok().map(|child| Running::Other(Other(child)))
}

fn tidegate(target: SocketAddr) -> String {
    format!(
        "listen: [{{address: 127.0.0.1:0}}]
admin: {{address: 127.0.0.1:0}}
access_log: off
workers: 1
upstreams: {{app: {{targets: ['http://{target}']}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: app, max_body: 16MiB}}]
"
    )
}

fn nginx(root: &Path, listen: SocketAddr, target: SocketAddr) -> String {
    let root = root.display();
    format!(
        "daemon off; master_process off; worker_processes 1; pid {root}/pid; error_log {root}/log crit;
events {{ worker_connections 2048; }}
http {{
  access_log off; client_max_body_size 16m;
  client_body_temp_path {root}/a; proxy_temp_path {root}/b; fastcgi_temp_path {root}/c;
  uwsgi_temp_path {root}/d; scgi_temp_path {root}/e;
  server {{
    listen {listen} backlog=4096;
    location / {{ proxy_pass http://{target}; proxy_request_buffering off; }}
  }}
}}
"
    )
}

/// With the timeouts of the examples in its manual: it has no defaults.
fn haproxy(listen: SocketAddr, target: SocketAddr) -> String {
    format!(
        "global
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 50s
  timeout server 50s
listen all
  bind {listen} backlog 4096
  server only {target}
"
    )
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tidegate => "Tidegate",
            Self::Nginx => "nginx",
            Self::Haproxy => "HAProxy",
        })
    }
}
