//! A gateway with a listener of each kind, its certificates, and the ways to reach it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use tempfile::TempDir;
use testkit::{
    gateway::Gateway,
    port::free_port,
    tls::{Authority, IdentityFiles},
    yaml::{fill, without_indentation},
};
use tidegate::clock::Clock;

/// The name of the listeners' first certificate, which also covers 127.0.0.1.
pub(crate) const NAME: &str = "a.test";

/// A name whose clients need a certificate from the authority.
pub(crate) const PARTNERS: &str = "partners.test";

/// Certificates of one authority, and other files of a test.
pub(crate) struct Files {
    pub(crate) authority: Authority,
    pub(crate) ca: PathBuf,
    directory: TempDir,
}

impl Files {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let authority = Authority::new("tests");
        let ca = authority.write(directory.path(), "ca.pem");
        Self { authority, ca, directory }
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The path of a file.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Issues a certificate for these names to files of this name.
    pub(crate) fn issue(&self, file: &str, names: &[&str]) -> IdentityFiles {
        self.authority.issue(names).write(self.directory(), file)
    }

    /// A file of `size` bytes, none of which is repeated at a power of two.
    pub(crate) fn body(&self, size: usize) -> (PathBuf, Vec<u8>) {
        let bytes: Vec<u8> = (0..size).map(|index| (index % 251) as u8).collect();
        let path = self.path("body");
        fs::write(&path, &bytes).expect("a file");
        (path, bytes)
    }
}

/// The listeners of an [`Edge`], in their order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Listener {
    Clear,
    Tls,
    Proxied,
    ProxiedTls,
    Redirect,
}

/// In the order of [`Listener`].
const LISTENERS: &str = "
listen:
  - {address: '127.0.0.1:0', http2: true}
  - address: 127.0.0.1:{port}
    tls: &tls
      certificates:
        - {cert: '{own}.pem', key: '{own}.key'}
        - {cert: '{partners}.pem', key: '{partners}.key', client_ca: '{ca}'}
  - {address: '127.0.0.1:0', http2: true, proxy_protocol: {from: [127.0.0.0/8]}}
  - {address: '127.0.0.1:0', tls: *tls, proxy_protocol: {from: [127.0.0.0/8]}}
  - {address: '127.0.0.1:0', http2: true, redirect_https: true}
";

/// A gateway with a listener of each kind.
pub(crate) struct Edge {
    pub(crate) gateway: Gateway,
    pub(crate) files: Files,
}

impl Edge {
    /// Starts a gateway with the section `listen` of [`LISTENERS`] and these others.
    pub(crate) fn start(sections: &str) -> Self {
        Self::start_at(sections, Clock::system())
    }

    pub(crate) fn start_at(sections: &str, clock: Clock) -> Self {
        let files = Files::new();
        let own = files.issue("own", &[NAME, "127.0.0.1"]);
        let partners = files.issue("partners", &[PARTNERS]);
        // A redirect names the configured port of the TLS listener.
        let port = free_port();
        let listeners = fill(
            LISTENERS,
            [
                ("port", port.to_string()),
                ("own", own.cert.with_extension("").display().to_string()),
                ("partners", partners.cert.with_extension("").display().to_string()),
                ("ca", files.ca.display().to_string()),
            ],
        );
        let yaml = listeners + &without_indentation(sections);
        let gateway = Gateway::start_at(&yaml, clock);
        Self { gateway, files }
    }

    /// The port of a listener.
    pub(crate) fn port(&self, listener: Listener) -> u16 {
        self.gateway.server.addresses[listener as usize].port()
    }

    /// A URL at a listener.
    pub(crate) fn url(&self, listener: Listener, host: &str, path: &str) -> String {
        let scheme = match listener {
            Listener::Tls | Listener::ProxiedTls => "https",
            _ => "http",
        };
        format!("{scheme}://{host}:{}{path}", self.port(listener))
    }
}

/// The `tls` of an upstream with this scheme, whose certificates have this name; nothing without
/// TLS.
pub(crate) fn upstream_tls(files: &Files, scheme: &str, name: &str) -> String {
    match scheme {
        "https" => format!("tls: {{ca: {}, name: {name}}}", files.ca.display()),
        _ => String::new(),
    }
}

/// A way for curl to reach an [`Edge`], with the versions that curl reports.
#[derive(Debug)]
pub(crate) struct Way {
    pub(crate) listener: Listener,
    pub(crate) arguments: &'static [&'static str],
    /// The HTTP version.
    pub(crate) http: &'static str,
    /// The TLS version; empty without TLS.
    pub(crate) tls: &'static str,
}

const fn way(
    listener: Listener,
    arguments: &'static [&'static str],
    http: &'static str,
    tls: &'static str,
) -> Way {
    Way { listener, arguments, http, tls }
}

/// Every protocol that a client can speak.
pub(crate) const WAYS: [Way; 10] = [
    way(Listener::Clear, &["--http1.1"], "1.1", ""),
    way(Listener::Clear, &["--http2-prior-knowledge"], "2", ""),
    way(Listener::Tls, &["--http1.1", "--tlsv1.2", "--tls-max", "1.2"], "1.1", "TLSv1.2"),
    way(Listener::Tls, &["--http1.1", "--tlsv1.3"], "1.1", "TLSv1.3"),
    way(Listener::Tls, &["--http2", "--tlsv1.2", "--tls-max", "1.2"], "2", "TLSv1.2"),
    way(Listener::Tls, &["--http2", "--tlsv1.3"], "2", "TLSv1.3"),
    way(Listener::Proxied, &["--haproxy-protocol", "--http1.1"], "1.1", ""),
    way(Listener::Proxied, &["--haproxy-protocol", "--http2-prior-knowledge"], "2", ""),
    way(Listener::ProxiedTls, &["--haproxy-protocol", "--http1.1"], "1.1", "TLSv1.3"),
    way(Listener::ProxiedTls, &["--haproxy-protocol", "--http2"], "2", "TLSv1.3"),
];
