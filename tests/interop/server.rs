//! Servers of other projects as child processes.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
};

use serde_json::Value;
use testkit::{interpreters, wait::eventually};

use crate::tools::{path_of, script};

/// A server; killed when dropped.
pub(crate) struct Server {
    child: Child,
}

impl Server {
    /// Starts a command and waits until it accepts at each of these ports.
    fn start(command: &mut Command, ports: &[u16]) -> Self {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null());
        let server = Self { child: command.spawn().expect("it starts") };
        for port in ports {
            let address = loopback(*port);
            eventually("the server accepts", || TcpStream::connect(address).is_ok());
        }
        server
    }

    /// Starts nginx with the directives of `http`, in a directory for its files.
    pub(crate) fn nginx(directory: &Path, http: &str, ports: &[u16]) -> Self {
        let root = directory.display();
        let config = format!(
            "daemon off; master_process off; worker_processes 1; pid {root}/pid;
error_log {root}/error.log warn;
events {{ worker_connections 512; }}
http {{
  access_log off;
  client_body_temp_path {root}/a; proxy_temp_path {root}/b; fastcgi_temp_path {root}/c;
  uwsgi_temp_path {root}/d; scgi_temp_path {root}/e;
{http}
}}
"
        );
        let file = directory.join("nginx.conf");
        fs::write(&file, config).expect("a file");
        let mut command = Command::new(path_of("nginx", "nginx"));
        Self::start(command.arg("-p").arg(directory).arg("-c").arg(file), ports)
    }

    /// Starts HAProxy with these sections after `global` and `defaults`.
    pub(crate) fn haproxy(directory: &Path, sections: &str, ports: &[u16]) -> Self {
        let config = format!(
            "global
  nbthread 1
defaults
  timeout connect 5s
  timeout client 20s
  timeout server 20s
{sections}
"
        );
        let file = directory.join("haproxy.cfg");
        fs::write(&file, config).expect("a file");
        let mut command = Command::new(path_of("haproxy", "haproxy"));
        Self::start(command.args(["-db", "-q", "-f"]).arg(file), ports)
    }

    /// Starts Envoy with a configuration, which is written to `directory`.
    pub(crate) fn envoy(directory: &Path, config: &Value, ports: &[u16]) -> Self {
        let file = directory.join("envoy.json");
        fs::write(&file, config.to_string()).expect("a file");
        let mut command = Command::new(interpreters::envoy());
        // Not its warnings: one concerns every configuration without an overload manager.
        command.args(["--disable-hot-restart", "--concurrency", "1", "--log-level", "error"]);
        Self::start(command.arg("--config-path").arg(file), ports)
    }

    /// Starts Caddy with these sites of a Caddyfile, in a directory for its files.
    pub(crate) fn caddy(directory: &Path, sites: &str, ports: &[u16]) -> Self {
        Self::caddy_program(&interpreters::caddy(), directory, sites, ports)
    }

    /// Starts an old Caddy in the same way.
    pub(crate) fn old_caddy(directory: &Path, sites: &str, ports: &[u16]) -> Self {
        Self::caddy_program(&interpreters::old_caddy(), directory, sites, ports)
    }

    fn caddy_program(program: &Path, directory: &Path, sites: &str, ports: &[u16]) -> Self {
        let root = directory.display();
        let config = format!(
            "{{
  admin off
  auto_https off
  persist_config off
  skip_install_trust
  storage file_system {root}/caddy
  default_bind 127.0.0.1
  log {{
    level ERROR
  }}
  servers {{
    protocols h1 h2 h2c
  }}
}}
{sites}
"
        );
        let file = directory.join("Caddyfile");
        fs::write(&file, config).expect("a file");
        let mut command = Command::new(program);
        command.env("HOME", directory).args(["run", "--adapter", "caddyfile", "--config"]);
        Self::start(command.arg(file), ports)
    }

    /// Starts Prometheus with a configuration in `directory`, where it also keeps its data.
    pub(crate) fn prometheus(directory: &Path, config: &str, port: u16) -> Self {
        let mut command = Command::new(path_of("prometheus", "prometheus"));
        command.current_dir(directory).arg(format!("--config.file={config}"));
        command.args([
            "--storage.tsdb.path=data",
            "--log.level=warn",
            "--enable-feature=exemplar-storage",
        ]);
        command.arg(format!("--web.listen-address={}", loopback(port)));
        Self::start(&mut command, &[port])
    }

    /// Starts one of the `scripts`, which prints its port and ends with its input.
    pub(crate) fn script(name: &str, arguments: &[&Path]) -> (Self, SocketAddr) {
        let mut command = script(name);
        let command = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut server = Self { child: command.spawn().expect("it starts") };
        let mut line = String::new();
        let output = server.child.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut line).expect("text");
        let port = line.trim().parse().unwrap_or_else(|_| panic!("{name}: no port"));
        (server, loopback(port))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port of the loopback interface.
pub(crate) fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}
