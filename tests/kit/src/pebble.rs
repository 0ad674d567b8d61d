//! Pebble, an authority that speaks ACME and is as strict as it may be:
//! <https://github.com/letsencrypt/pebble>.

use std::{
    fmt::Write,
    fs,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;

use crate::{
    dns_server::DnsServer,
    port::free_address,
    tls::{Authority, Identity},
    wait::eventually,
};

/// The share of good nonces that it rejects, in percent. A client repeats such a request.
const REJECTED_NONCES: &str = "15";

/// Where it reaches the gateway.
#[derive(Clone, Copy)]
pub struct CheckedPorts {
    /// The port of `http-01`.
    pub http: u16,
    /// The port of `tls-alpn-01`.
    pub tls: u16,
}

/// A running Pebble. Each start forgets all accounts and has new issuers. Killed when dropped.
pub struct Pebble {
    child: Child,
    directory: TempDir,
    /// Where it listens.
    pub address: SocketAddr,
    /// Its own certificate.
    pub identity: Identity,
    ports: CheckedPorts,
    /// The names of domains, which it resolves: with 127.0.0.1 unless a test changes them.
    pub dns: DnsServer,
    options: PebbleOptions,
}

/// How it differs from a lenient authority.
struct PebbleOptions {
    /// External accounts: a key's identifier and the key in base64url. Without one, none is
    /// required.
    accounts: Vec<(&'static str, &'static str)>,
    /// The share of good nonces that it rejects, in percent.
    rejected_nonces: &'static str,
}

impl Pebble {
    /// Starts one that checks `domains` at these ports.
    pub fn start(ports: CheckedPorts, domains: &[&str]) -> Self {
        Self::with_accounts(ports, domains, Vec::new())
    }

    /// [`Self::start`]; a client needs one of these external accounts, if there is one.
    pub fn with_accounts(
        ports: CheckedPorts,
        domains: &[&str],
        accounts: Vec<(&'static str, &'static str)>,
    ) -> Self {
        let rejected_nonces = REJECTED_NONCES;
        Self::with_options(ports, domains, PebbleOptions { accounts, rejected_nonces })
    }

    /// [`Self::start`]; it accepts all good nonces, so that no order is repeated, and a test can
    /// count them.
    pub fn with_all_nonces(ports: CheckedPorts, domains: &[&str]) -> Self {
        let options = PebbleOptions { accounts: Vec::new(), rejected_nonces: "0" };
        Self::with_options(ports, domains, options)
    }

    fn with_options(ports: CheckedPorts, domains: &[&str], options: PebbleOptions) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let authority = Authority::new("the directory's authority");
        authority.write(directory.path(), "ca.pem");
        let identity = authority.issue(&["localhost", "127.0.0.1"]);
        identity.write(directory.path(), "own");
        let dns = DnsServer::start();
        for domain in domains {
            dns.set_addresses(domain, &["127.0.0.1"]);
        }
        let address = free_address();
        let child = spawn(directory.path(), address, ports, &dns, &options);
        Self { child, directory, address, identity, ports, dns, options }
    }

    /// The URL of its directory.
    pub fn url(&self) -> String {
        format!("https://{}/dir", self.address)
    }

    /// The authority of its own certificate.
    pub fn ca(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// The number of orders since it was started.
    pub fn orders(&self) -> usize {
        let log = fs::read_to_string(self.directory.path().join("pebble.log")).expect("a file");
        log.matches("Added order").count()
    }

    /// Ends it.
    pub fn stop(&mut self) {
        // Fails if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Ends it and starts it again: it has forgotten all accounts.
    pub fn restart(&mut self) {
        self.stop();
        let path = self.directory.path();
        self.child = spawn(path, self.address, self.ports, &self.dns, &self.options);
    }
}

impl Drop for Pebble {
    fn drop(&mut self) {
        self.stop();
    }
}

fn spawn(
    path: &Path,
    address: SocketAddr,
    ports: CheckedPorts,
    dns: &DnsServer,
    PebbleOptions { accounts, rejected_nonces }: &PebbleOptions,
) -> Child {
    let management = free_address();
    let mut keys = String::new();
    for (id, key) in accounts {
        let comma = if keys.is_empty() { "" } else { "," };
        write!(keys, "{comma}\"{id}\": \"{key}\"").expect("a string");
    }
    let (own, http, tls) = (path.join("own"), ports.http, ports.tls);
    let (own, is_required) = (own.display(), !accounts.is_empty());
    let config = format!(
        r#"{{"pebble": {{
            "listenAddress": "{address}", "managementListenAddress": "{management}",
            "certificate": "{own}.pem", "privateKey": "{own}.key",
            "httpPort": {http}, "tlsPort": {tls}, "ocspResponderURL": "",
            "externalAccountBindingRequired": {is_required}, "externalAccountMACKeys": {{{keys}}}
        }}}}"#
    );
    let file = path.join("pebble.json");
    fs::write(&file, config).expect("a file");
    let log = fs::File::create(path.join("pebble.log")).expect("a file");
    let child = Command::new("pebble")
        .arg("-config")
        .arg(&file)
        .args(["-strict", "-dnsserver", &dns.address.to_string()])
        .env("PEBBLE_VA_NOSLEEP", "1")
        .env("PEBBLE_WFE_NONCEREJECT", rejected_nonces)
        // Each order checks each domain.
        .env("PEBBLE_AUTHZREUSE", "0")
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a file"))
        .stderr(log)
        .spawn()
        .expect("pebble runs; `scripts/test --install` installs it");
    eventually("pebble listens", || TcpStream::connect(address).is_ok());
    child
}
