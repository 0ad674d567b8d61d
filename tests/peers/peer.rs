//! The proxies, each with its own upstream.

use std::{
    fs,
    io::Write,
    net::{IpAddr, Shutdown, SocketAddr, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::json;
use tempfile::TempDir;
use testkit::{
    client::Client,
    gateway::Gateway,
    interpreters,
    port::free_address,
    wait::{TIMEOUT, eventually},
};

use crate::{
    recorder::Recorder,
    shown,
    streams::{Step, Stream},
};

/// A proxy that sends nothing for this long is waiting for input.
const QUIET: Duration = Duration::from_secs(2);

/// The bytes that the proxy at the other end of `socket` has not read, as Linux shows them.
fn unread_bytes(socket: &TcpStream) -> u64 {
    let hex = |address: SocketAddr| match address.ip() {
        IpAddr::V4(ip) => {
            format!("{:08X}:{:04X}", u32::from_ne_bytes(ip.octets()), address.port())
        }
        IpAddr::V6(_) => panic!("an IPv4 address"),
    };
    let own = hex(socket.local_addr().expect("an address"));
    let peer = hex(socket.peer_addr().expect("an address"));
    let table = fs::read_to_string("/proc/net/tcp").expect("Linux");
    let line = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    // The columns: number, local and remote address, state, and both queues.
    let line = line.into_iter().find(|line| line.get(1..3) == Some(&[&*peer, &*own]));
    let queue = line.as_ref().and_then(|line| line.get(4)?.split(':').nth(1));
    queue.map_or(0, |bytes| u64::from_str_radix(bytes, 16).expect("a hexadecimal number"))
}

/// Waits until the proxy sends something or closes.
fn await_response(socket: &TcpStream) {
    socket.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    let _ = socket.peek(&mut [0]);
    socket.set_read_timeout(Some(QUIET)).expect("a timeout");
}

/// A running proxy.
pub(crate) struct Peer {
    address: SocketAddr,
    recorder: Recorder,
    _running: Running,
}

#[expect(dead_code, reason = "held for its drop")]
enum Running {
    Tidegate(Box<Gateway>),
    Other(Process),
}

struct Process {
    child: Child,
    _directory: TempDir,
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Peer {
    pub(crate) fn tidegate() -> Self {
        let recorder = Recorder::start();
        let gateway = Gateway::start(&format!(
            "upstreams: {{origin: {{targets: ['http://{}'], retries: 0}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin, max_body: 1KiB}}]",
            recorder.address
        ));
        let address = gateway.address();
        Self { address, recorder, _running: Running::Tidegate(Box::new(gateway)) }
    }

    pub(crate) fn nginx() -> Self {
        let programs = ["nginx", "/usr/sbin/nginx"].map(Path::new);
        Self::start(&programs, |directory, port, upstream| {
            let config = format!(
                "daemon off; master_process off; worker_processes 1; pid {directory}/pid;
error_log {directory}/error.log crit;
events {{ worker_connections 512; }}
http {{
  access_log off;
  client_body_temp_path {directory}/a; proxy_temp_path {directory}/b; fastcgi_temp_path {directory}/c;
  uwsgi_temp_path {directory}/d; scgi_temp_path {directory}/e;
  client_max_body_size 1k;
  server {{
    listen 127.0.0.1:{port};
    proxy_http_version 1.1; proxy_request_buffering off;
    location / {{
      proxy_pass http://{upstream};
      proxy_set_header Connection \"\"; proxy_set_header Host $http_host;
    }}
    location /answers/switch {{
      proxy_pass http://{upstream};
      proxy_set_header Upgrade $http_upgrade;
      proxy_set_header Connection upgrade; proxy_set_header Host $http_host;
    }}
  }}
}}
"
            );
            (config, ["-p", directory, "-c"].map(str::to_owned).to_vec())
        })
    }

    pub(crate) fn haproxy() -> Self {
        let programs = ["haproxy", "/usr/sbin/haproxy"].map(Path::new);
        Self::start(&programs, |_, port, upstream| {
            let config = format!(
                "global
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 20s
  timeout server 20s
  timeout http-request 20s
frontend front
  bind 127.0.0.1:{port}
  default_backend back
backend back
  server origin {upstream}
"
            );
            (config, ["-db", "-q", "-f"].map(str::to_owned).to_vec())
        })
    }

    pub(crate) fn envoy() -> Self {
        Self::start(&[interpreters::envoy()], |_, port, upstream| {
            let address = |address: SocketAddr| {
                let (address, port) = (address.ip(), address.port());
                json!({"socket_address": {"address": address, "port_value": port}})
            };
            let manager = json!({
                "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                "stat_prefix": "tests",
                "http_protocol_options": {"enable_trailers": true},
                "upgrade_configs": [{"upgrade_type": "websocket"}],
                "http_filters": [{"name": "router", "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
                }}],
                "route_config": {"virtual_hosts": [{
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "origin"}}],
                }]},
            });
            let config = json!({"static_resources": {
                "listeners": [{
                    "name": "front",
                    "address": address(SocketAddr::from(([127, 0, 0, 1], port))),
                    "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
                }],
                "clusters": [{
                    "name": "origin",
                    "connect_timeout": "5s",
                    "load_assignment": {"cluster_name": "origin", "endpoints": [
                        {"lb_endpoints": [{"endpoint": {"address": address(upstream)}}]},
                    ]},
                    "typed_extension_protocol_options": {
                        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                            "explicit_http_config": {
                                "http_protocol_options": {"enable_trailers": true},
                            },
                        },
                    },
                }],
            }});
            let options = "--disable-hot-restart --concurrency 1 --log-level off --config-path";
            (config.to_string(), options.split(' ').map(str::to_owned).collect())
        })
    }

    pub(crate) fn caddy() -> Self {
        Self::start(&[&interpreters::caddy()], |_, port, upstream| {
            let config = json!({
                "admin": {"disabled": true},
                "logging": {"logs": {"default": {"level": "FATAL"}}},
                "apps": {"http": {"servers": {"front": {
                    "listen": [format!("127.0.0.1:{port}")],
                    "automatic_https": {"disable": true},
                    "routes": [{"handle": [{
                        "handler": "reverse_proxy",
                        "upstreams": [{"dial": upstream.to_string()}],
                    }]}],
                }}}},
            });
            (config.to_string(), ["run", "--config"].map(str::to_owned).to_vec())
        })
    }

    /// Starts the first of `commands` that is installed, with a configuration for a directory, a
    /// port and an upstream. The path of the configuration is the last argument.
    fn start(
        commands: &[&Path],
        configure: impl Fn(&str, u16, SocketAddr) -> (String, Vec<String>),
    ) -> Self {
        let recorder = Recorder::start();
        let directory = tempfile::tempdir().expect("a directory");
        let address = free_address();
        let root = directory.path().to_str().expect("a path in UTF-8").to_owned();
        let (config, arguments) = configure(&root, address.port(), recorder.address);
        let file = directory.path().join("config.json");
        fs::write(&file, config).expect("a file");
        let mut started = commands.iter().filter_map(|command| {
            let mut command = Command::new(command);
            let command = command.args(&arguments).arg(&file).stdin(Stdio::null());
            command.stdout(Stdio::null()).spawn().ok()
        });
        let child = started.next();
        let child = child.unwrap_or_else(|| panic!("please install {}", commands[0].display()));
        let peer = Self {
            address,
            recorder,
            _running: Running::Other(Process { child, _directory: directory }),
        };
        eventually("the proxy accepts", || TcpStream::connect(address).is_ok());
        peer
    }

    /// The outcome of `stream`: the statuses that the client reads, how the connection ends, and
    /// the complete requests that the upstream received.
    pub(crate) fn outcome(&self, stream: &Stream) -> String {
        self.recorder.take();
        let mut client = Client::connect(self.address);
        client.socket.set_read_timeout(Some(QUIET)).expect("a timeout");
        let mut parts = Vec::new();
        let mut heads = stream.heads.iter();
        for step in &stream.steps {
            match step {
                Step::Send(bytes) => {
                    // The proxy may not read a refused request to its end: writes may fail.
                    let _ = client.socket.write_all(bytes);
                }
                Step::AwaitRead => {
                    eventually("the proxy reads", || unread_bytes(&client.socket) == 0);
                }
                Step::AwaitResponse => await_response(&client.socket),
                Step::CloseWrite => {
                    let _ = client.socket.shutdown(Shutdown::Write);
                }
            }
        }
        loop {
            let to_head = heads.next().copied().unwrap_or_default();
            let Some(shown) = shown::read(&mut client, to_head) else { break };
            if shown.is_interim && to_head {
                heads = stream.heads.iter();
            }
            parts.push(shown.text);
        }
        let is_waiting = matches!(
            client.socket.peek(&mut [0]),
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
        );
        parts.push(if is_waiting { "waits" } else { "closed" }.to_owned());
        let shown = format!("{} | {}", parts.join(" "), self.recorder.take().join(" ; "));
        // Caddy's own, in every response.
        shown.replace(" via=\"1.1 Caddy\"", "").replace(" via=\"1.0 Caddy\"", "")
    }
}
