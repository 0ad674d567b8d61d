//! What the commands of one page run in: a directory with the page's files, and, once a command
//! needs it, a gateway with the page's configuration, a Redis and an upstream.
//!
//! The pages use fixed addresses. Each stands for one on a free port:
//!
//! | in the page | is |
//! |---|---|
//! | 127.0.0.1:8080, 127.0.0.1:9900, and the same ports of localhost | the gateway, its admin API |
//! | 127.0.0.1:9000, 127.0.0.1:9001, localhost:3000 | an upstream that answers with the head of the request |
//! | 127.0.0.1:6379 | a Redis |

use std::{
    fs,
    io::Write,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Stdio},
};

use tempfile::TempDir;
use testkit::{
    process::{Process, gateway_command},
    redis_server::RedisServer,
    upstream::Upstream,
};

use crate::root;

const BINARY: &str = env!("CARGO_BIN_EXE_tidegate");

/// The environment variable that `secret: env:TIDEGATE_SECRET` reads, and its value.
const SECRET: (&str, &str) = ("TIDEGATE_SECRET", "a secret of the documentation's tests");

/// The file name of a configuration for which the page gives none.
const FILE: &str = "api.yaml";

pub(crate) struct PageEnvironment {
    directory: TempDir,
    configuration: Option<String>,
    gateway: Option<Process>,
    redis: Option<RedisServer>,
    upstream: Option<Upstream>,
}

impl PageEnvironment {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        symlink(root().join("config"), directory.path().join("config")).expect("a link");
        Self { directory, configuration: None, gateway: None, redis: None, upstream: None }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Puts a file of the page in place.
    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).expect("a file");
    }

    /// The configuration of the commands that follow. A running gateway is stopped.
    pub(crate) fn configure(&mut self, text: String, name: Option<&str>) {
        self.write(name.unwrap_or(FILE), &text);
        self.configuration = Some(text);
        self.gateway = None;
    }

    /// Runs one command line in a shell. Returns what it prints, with the page's addresses.
    pub(crate) fn run(&mut self, line: &str) -> String {
        let mut line = line.to_owned();
        if line.contains("curl") || line.contains("tidegate health") {
            self.start_gateway();
            for (own, free) in self.addresses() {
                line = line.replace(own, &free);
            }
        }
        let directory = Path::new(BINARY).parent().expect("a directory");
        let output = Command::new("sh")
            .args(["-c", "PATH=\"$1:$PATH\"; eval \"$2\"", "sh"])
            .args([directory.to_str().expect("UTF-8"), &line])
            .env(SECRET.0, SECRET.1)
            .current_dir(self.path())
            .stdin(Stdio::null())
            .output()
            .expect("a shell");
        let mut text = String::from_utf8_lossy(&output.stdout).replace('\r', "");
        for (own, free) in self.addresses() {
            text = text.replace(&free, own);
        }
        text
    }

    /// The page's addresses of the gateway, and the real ones.
    fn addresses(&self) -> Vec<(&'static str, String)> {
        let gateway = self.gateway.iter();
        let gateway = gateway.flat_map(|gateway| {
            [("127.0.0.1:8080", gateway.address), ("127.0.0.1:9900", gateway.admin)]
        });
        let gateway = gateway.map(|(own, address)| (own, address.to_string()));
        let upstream = self.upstream.iter().map(|own| ("127.0.0.1:9000", own.address.to_string()));
        gateway.chain(upstream).collect()
    }

    fn start_gateway(&mut self) {
        if self.gateway.is_some() {
            return;
        }
        let mut yaml = self.configuration.clone().expect("a configuration before the first curl");
        for own in ["127.0.0.1:8080", "127.0.0.1:9900", "localhost:8080", "localhost:9900"] {
            yaml = yaml.replace(own, "127.0.0.1:0");
        }
        yaml = yaml.replace("localhost:3000", "127.0.0.1:9000");
        if yaml.contains("127.0.0.1:900") {
            let upstream = self.upstream.get_or_insert_with(mirror).address.to_string();
            yaml = yaml.replace("127.0.0.1:9000", &upstream).replace("127.0.0.1:9001", &upstream);
        }
        if yaml.contains("127.0.0.1:6379") {
            let redis = self.redis.get_or_insert_with(RedisServer::start);
            yaml = yaml.replace("127.0.0.1:6379", &redis.address());
        }
        for (key, section) in [
            ("listen:", "listen: [{address: \"127.0.0.1:0\"}]\n"),
            ("admin:", "admin: {address: \"127.0.0.1:0\"}\n"),
            ("access_log:", "access_log: off\n"),
            ("workers:", "workers: 2\n"),
        ] {
            if !yaml.lines().any(|line| line.starts_with(key)) {
                yaml.push_str(section);
            }
        }
        self.write("served.yaml", &yaml);
        let mut command = gateway_command(BINARY, self.path(), &["--config", "served.yaml"]);
        command.env(SECRET.0, SECRET.1);
        self.gateway = Some(Process::start(command));
    }
}

/// An upstream that answers with the head of the request that it received.
fn mirror() -> Upstream {
    Upstream::with_handler(|request, socket| {
        let text = String::from_utf8_lossy(request);
        let head = text.split("\r\n\r\n").next().unwrap_or_default().replace("\r\n", "\n");
        let length = head.len() + 1;
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\n\r\n{head}\n"
        );
        socket.write_all(answer.as_bytes()).is_ok()
    })
}
