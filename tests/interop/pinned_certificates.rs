//! OpenSSL's server as an upstream, with certificates that only a list can make acceptable: without
//! a subject alternative name, or of X.509 version 1.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use testkit::{client::get, gateway::Gateway, port::free_address, wait::eventually, yaml::fill};

use crate::tools::{client, path_of, run};

/// OpenSSL's server; killed when dropped.
struct OpensslServer {
    child: Child,
    address: SocketAddr,
}

impl OpensslServer {
    fn start(identity: &PinnedFiles, version: &str) -> Self {
        let address = free_address();
        let mut command = Command::new(path_of("openssl", "openssl"));
        command.args(["s_server", "-quiet", "-www", version, "-accept", &address.to_string()]);
        command.arg("-cert").arg(&identity.cert).arg("-key").arg(&identity.key);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("it starts");
        eventually("the server accepts", || std::net::TcpStream::connect(address).is_ok());
        Self { child, address }
    }
}

impl Drop for OpensslServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The files of a certificate and its key.
struct PinnedFiles {
    cert: PathBuf,
    key: PathBuf,
}

/// Makes certificates in a folder.
struct Maker<'f>(&'f Path);

impl Maker<'_> {
    fn openssl(&self, arguments: &str) {
        let mut command = client("openssl", "openssl");
        command.args(arguments.split_ascii_whitespace()).current_dir(self.0);
        run(&mut command).succeeded(arguments);
    }

    fn files(&self, name: &str) -> PinnedFiles {
        let file = |ending: &str| self.0.join(format!("{name}.{ending}"));
        PinnedFiles { cert: file("pem"), key: file("key") }
    }

    fn key(&self, name: &str, kind: &str) {
        let kind = match kind {
            "rsa" => "RSA -pkeyopt rsa_keygen_bits:2048",
            curve => &format!("EC -pkeyopt ec_paramgen_curve:{curve}"),
        };
        self.openssl(&format!("genpkey -algorithm {kind} -out {name}.key"));
    }

    /// A self-signed certificate of version 3 with a common name only.
    fn nameless(&self, name: &str, kind: &str, extensions: &str) -> PinnedFiles {
        self.key(name, kind);
        self.openssl(&format!(
            "req -x509 -days 30 -key {name}.key -subj /CN=app.test {extensions} -out {name}.pem"
        ));
        self.files(name)
    }

    /// A self-signed certificate of version 1, as `openssl x509 -req` makes it.
    fn version_1(&self, name: &str, kind: &str) -> PinnedFiles {
        self.key(name, kind);
        self.openssl(&format!("req -new -key {name}.key -subj /CN=app.test -out {name}.csr"));
        self.openssl(&format!(
            "x509 -req -days 30 -in {name}.csr -signkey {name}.key -out {name}.pem"
        ));
        self.files(name)
    }

    /// A certificate with a common name only, from the authority `issuer`.
    fn issued(&self, name: &str, issuer: &str) -> PinnedFiles {
        self.key(name, "P-256");
        self.openssl(&format!("req -new -key {name}.key -subj /CN=app.test -out {name}.csr"));
        std::fs::write(self.0.join("ext"), "basicConstraints=CA:FALSE\n").expect("a file");
        self.openssl(&format!(
            "x509 -req -days 30 -in {name}.csr -CA {issuer}.pem -CAkey {issuer}.key -CAcreateserial \
             -extfile ext -out {name}.pem"
        ));
        self.files(name)
    }
}

/// The status through a gateway that trusts `ca` at this server, and the reason if its target is
/// ejected.
fn ask(server: &OpensslServer, ca: &Path) -> (u16, String) {
    let gateway = Gateway::start(&fill(
        "
        upstreams:
          app:
            targets: ['https://{server}']
            retries: 0
            ejection: {failures: 1}
            tls: {ca: '{ca}'}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: app}]
        ",
        [("server", server.address.to_string()), ("ca", ca.display().to_string())],
    ));
    let status = get(gateway.address(), "/", "").status;
    let listed = get(gateway.admin(), "/api/upstreams", "").json();
    (status, listed["upstreams"][0]["targets"][0]["reason"].to_string())
}

#[test]
fn a_listed_certificate_needs_no_name_and_no_version_3() {
    let folder = tempfile::tempdir().expect("a folder");
    let maker = Maker(folder.path());
    let leaf = "-addext basicConstraints=critical,CA:FALSE";
    let identities = [
        maker.nameless("nameless", "rsa", ""),
        maker.nameless("leaf", "P-256", leaf),
        maker.version_1("old-rsa", "rsa"),
        maker.version_1("old-p256", "P-256"),
        maker.version_1("old-p384", "P-384"),
    ];
    for identity in &identities {
        for version in ["-tls1_2", "-tls1_3"] {
            let server = OpensslServer::start(identity, version);
            let (status, reason) = ask(&server, &identity.cert);
            assert_eq!(status, 200, "{} {version}: {reason}", identity.cert.display());
        }
    }
}

#[test]
fn a_certificate_that_is_not_listed_itself_is_refused_with_what_is_wrong() {
    let folder = tempfile::tempdir().expect("a folder");
    let maker = Maker(folder.path());
    let authority = maker.nameless("ca", "P-256", "");
    let nameless = maker.nameless("nameless", "P-256", "");
    let other_key = maker.nameless("other-key", "P-256", "");
    let old = maker.version_1("old", "P-256");
    let old_other_key = maker.version_1("old-other-key", "P-256");
    let issued = maker.issued("issued", "ca");
    for (served, listed, expected) in [
        (&other_key, &nameless, "is that of an authority (CA:TRUE)"),
        (&old_other_key, &old, "is X.509 version 1 or 2"),
        (&old, &authority, "is X.509 version 1 or 2"),
        (&issued, &authority, "has no subjectAltName"),
    ] {
        for version in ["-tls1_2", "-tls1_3"] {
            let server = OpensslServer::start(served, version);
            let (status, reason) = ask(&server, &listed.cert);
            assert_eq!(status, 502, "{}", served.cert.display());
            assert!(reason.contains(expected), "{}: {reason}", served.cert.display());
        }
    }
}
