//! A gateway as a process, with the configuration of an example.

use std::{fs, net::SocketAddr, path::Path, process::Command};

use tempfile::TempDir;
use testkit::{
    client::Client,
    process::{Process, gateway_command},
    yaml::fill,
};

/// What the examples have, and what a test replaces it by.
const LISTENER: &str = "127.0.0.1:8080";
const TARGET: &str = "127.0.0.1:9000";

/// A running gateway.
pub(crate) struct Recipe {
    gateway: Process,
    _directory: TempDir,
}

impl Recipe {
    /// Starts a gateway with `config/examples/NAME.yaml`, in front of the server at `target`.
    pub(crate) fn start(name: &str, target: SocketAddr) -> Self {
        Self::start_changed(name, target, |text| text)
    }

    /// Starts it with a changed configuration.
    pub(crate) fn start_changed(
        name: &str,
        target: SocketAddr,
        change: impl FnOnce(String) -> String,
    ) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let path = root.join(format!("config/examples/{name}.yaml"));
        let text = fs::read_to_string(&path).expect("the example");
        let text = replaced(&text, LISTENER, "127.0.0.1:0");
        let text = change(replaced(&text, TARGET, &target.to_string()));
        let admin = fill("admin: {address: '{address}'}\n", [("address", "127.0.0.1:0")]);
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join("tidegate.yaml"), text + &admin).expect("a file");
        let arguments = ["serve", "--config", "tidegate.yaml"];
        let mut command: Command =
            gateway_command(env!("CARGO_BIN_EXE_tidegate"), directory.path(), &arguments);
        // The operator's keys of the model APIs.
        command.env("OPENAI_API_KEY", VENDOR_KEY).env("ANTHROPIC_API_KEY", VENDOR_KEY);
        Self { gateway: Process::start(command), _directory: directory }
    }

    /// The address of its listener.
    pub(crate) fn address(&self) -> SocketAddr {
        self.gateway.address
    }

    /// The URL of its listener, without a path.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// How many requests a limit has refused.
    pub(crate) fn refused_by(&self, limit: &str) -> u64 {
        let mut admin = Client::connect(self.gateway.admin);
        admin.send("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let response = admin.read_response();
        assert_eq!(response.status, 200, "{}", response.text());
        let metrics = response.text();
        let of_limit = format!("limit=\"{limit}\"");
        let refused = metrics.lines().filter(|line| {
            line.starts_with("tidegate_limit_decisions_total{")
                && line.contains(&of_limit)
                && line.contains("decision=\"refused\"")
        });
        refused.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }
}

/// The operator's key of a model API.
pub(crate) const VENDOR_KEY: &str = "the-operators-key";

/// `text` with `new` for `old`, which must occur.
pub(crate) fn replaced(text: &str, old: &str, new: &str) -> String {
    assert!(text.contains(old), "no {old} in:\n{text}");
    text.replace(old, new)
}
