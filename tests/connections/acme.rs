//! Certificates from an authority that speaks ACME: Pebble, which is strict, rejects good nonces,
//! and checks each domain through the gateway's own listeners.

/// Authorities that do wrong.
mod authorities;
/// Faults and notes of the configuration.
mod check;
/// An authority that a test speaks for.
mod false_authority;
/// The admin API and the commands.
mod operators;
/// The time of renewals.
mod renewal;
/// Several gateways with one Redis.
mod shared;
/// Redis fails, or has damaged values.
mod shared_faults;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use rustls::{ClientConfig, pki_types::CertificateDer};
use serde_json::Value;
use tempfile::TempDir;
use testkit::{
    client::{Client, Response, get},
    gateway::Gateway,
    pebble::{CheckedPorts, Pebble},
    port::{free_address, free_port},
    tls::{connect, trusting_client},
    wait::eventually,
    yaml::fill,
};

const A: &str = "a.test";
const B: &str = "b.test";

const ISSUED: &str = "tidegate_acme_orders_total{outcome=\"issued\"}";
const FAILED: &str = "tidegate_acme_orders_total{outcome=\"failed\"}";

/// A listener with TLS and one in clear, which redirects to it. Both are on ports that Pebble
/// knows.
const ORDERED: &str = "
listen:
  - address: 127.0.0.1:{tls}
    tls:
      acme:
        domains: [{domains}]
        directory: {directory}
        directory_ca: {ca}
        challenge: {challenge}
        storage: {storage}
  - {address: '127.0.0.1:{http}', redirect_https: 443}
upstreams: {hello: {respond: {body: hello}}}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
";

/// Pebble, and where a gateway keeps its certificates.
struct Setting {
    pebble: Pebble,
    ports: CheckedPorts,
    storage: TempDir,
    client: Arc<ClientConfig>,
}

impl Setting {
    fn new() -> Self {
        Self::with_accounts(Vec::new())
    }

    fn with_accounts(accounts: Vec<(&'static str, &'static str)>) -> Self {
        Self::with_pebble(|ports| Pebble::with_accounts(ports, &[A, B], accounts))
    }

    fn with_pebble(start: impl FnOnce(CheckedPorts) -> Pebble) -> Self {
        let ports = CheckedPorts { http: free_port(), tls: free_port() };
        Self {
            pebble: start(ports),
            ports,
            storage: tempfile::tempdir().expect("a directory"),
            client: Arc::new(trusting_client(&["http/1.1"])),
        }
    }

    /// [`ORDERED`] with these domains and this challenge.
    fn yaml(&self, domains: &str, challenge: &str) -> String {
        fill(
            ORDERED,
            [
                ("tls", self.ports.tls.to_string()),
                ("http", self.ports.http.to_string()),
                ("domains", domains.to_owned()),
                ("directory", self.pebble.url()),
                ("ca", self.pebble.ca().display().to_string()),
                ("challenge", challenge.to_owned()),
                ("storage", self.storage.path().display().to_string()),
            ],
        )
    }

    /// A gateway with a certificate for [`A`].
    fn issued(&self) -> Gateway {
        let gateway = Gateway::start(&self.yaml(A, "tls-alpn-01"));
        gateway.wait_for_metric(ISSUED, 1);
        gateway
    }

    /// The certificate that a new connection is shown.
    fn shown(&self, gateway: &Gateway) -> CertificateDer<'static> {
        let client = connect(gateway.address(), A, &self.client).expect("a handshake");
        client.socket.conn.peer_certificates().expect("a certificate")[0].clone()
    }

    /// The stored certificates and accounts.
    fn files(&self, ending: &str) -> Vec<std::path::PathBuf> {
        let entries = fs::read_dir(self.storage.path()).expect("a folder").flatten();
        let files = entries.map(|entry| entry.path());
        files.filter(|file| file.to_string_lossy().ends_with(ending)).collect()
    }
}

/// The DNS names and the issuer of a certificate.
fn names_and_issuer(certificate: &CertificateDer<'_>) -> (Vec<String>, String) {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).expect("a certificate");
    let names = parsed.subject_alternative_name().expect("an extension").expect("names");
    let names = names.value.general_names.iter().map(ToString::to_string);
    let names = names.map(|name| name.replace("DNSName(", "").replace(')', ""));
    let mut names: Vec<String> = names.collect();
    names.sort();
    (names, parsed.issuer().to_string())
}

fn post(gateway: &Gateway, path: &str) -> Response {
    let mut client = Client::connect(gateway.admin());
    client.send(format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"));
    client.read_response()
}

/// The state of the only certificate.
fn state(gateway: &Gateway) -> Value {
    get(gateway.admin(), "/api/acme", "").json()["certificates"][0].take()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("a file").permissions().mode() & 0o777
}

#[test]
fn a_certificate_is_ordered_by_tls_alpn_01() {
    let setting = Setting::new();
    let yaml = setting.yaml("B.test, a.test", "tls-alpn-01");
    let gateway = Gateway::start(&yaml);
    gateway.wait_for_metric(ISSUED, 1);
    let (names, issuer) = names_and_issuer(&setting.shown(&gateway));
    assert_eq!(names, [A, B]);
    assert!(issuer.contains("Pebble Intermediate CA"), "{issuer}");
    assert_eq!(gateway.metric(FAILED), 0);
    // The protocol of the challenge is for orders alone.
    let config = Arc::new(trusting_client(&["acme-tls/1"]));
    assert!(connect(gateway.address(), A, &config).is_err());
    for file in setting.files(".pem").iter().chain(&setting.files(".json")) {
        assert_eq!(mode(file), 0o600, "{}", file.display());
    }
    let expiry = gateway.metric("tidegate_acme_certificate_expiry_seconds{name=\"a.test\"");
    let state = state(&gateway);
    assert_eq!(state["expires_at"].as_u64(), Some(expiry), "{state}");
    assert!(state["renewal_at"].as_u64() < Some(expiry) && state["last_error"].is_null());
}

#[test]
fn a_certificate_is_ordered_by_http_01() {
    let setting = Setting::new();
    let gateway = Gateway::start(&setting.yaml("a.test, b.test", "http-01"));
    gateway.wait_for_metric(ISSUED, 1);
    let (names, _) = names_and_issuer(&setting.shown(&gateway));
    assert_eq!(names, [A, B]);
    // Other paths belong to routes, and here to the redirect.
    let plain = gateway.server.addresses[1];
    let response = get(plain, "/.well-known/acme-challenge/other", "");
    assert_eq!(response.status, 308, "{}", response.head);
}

#[test]
fn until_the_first_order_is_complete_clients_get_a_placeholder() {
    let setting = Setting::new();
    setting.pebble.dns.set_addresses(A, &["127.0.0.9"]);
    let gateway = Gateway::start(&setting.yaml(A, "tls-alpn-01"));
    gateway.wait_for_metric(FAILED, 1);
    let (names, issuer) = names_and_issuer(&setting.shown(&gateway));
    assert_eq!(names, [A]);
    assert!(issuer.contains("until the first ACME order is complete"), "{issuer}");
    assert_eq!(gateway.metric("tidegate_certificate_expiry_seconds"), 0, "it is no certificate");
    let ready = get(gateway.admin(), "/readyz", "").json();
    assert_eq!(ready["awaited_certificates"][0], A, "{ready}");
    let error = state(&gateway)["last_error"].to_string();
    assert!(error.contains("the authority's check of a.test failed"), "{error}");
    // Once the name is right, an operator need not wait for the next attempt.
    setting.pebble.dns.set_addresses(A, &["127.0.0.1"]);
    assert_eq!(post(&gateway, "/api/acme/renew?domain=a.test").status, 202);
    gateway.wait_for_metric(ISSUED, 1);
    assert!(names_and_issuer(&setting.shown(&gateway)).1.contains("Pebble"));
}

#[test]
fn a_stored_certificate_is_used_after_a_restart() {
    let mut setting = Setting::new();
    let gateway = setting.issued();
    let first = setting.shown(&gateway);
    drop(gateway);
    setting.pebble.stop();
    let gateway = Gateway::start(&setting.yaml(A, "tls-alpn-01"));
    assert_eq!(setting.shown(&gateway), first, "at once");
    assert_eq!(gateway.metric("tidegate_acme_orders_total"), 0);
    assert!(gateway.metric("tidegate_acme_certificate_expiry_seconds") > 0);
}

#[test]
fn a_renewal_fails_no_handshake() {
    let setting = Setting::new();
    let gateway = setting.issued();
    let first = setting.shown(&gateway);
    let (is_over, done) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let clients: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Acquire) {
                        let client = connect(gateway.address(), A, &setting.client);
                        let mut client = client.expect("a handshake");
                        client.send("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
                        assert_eq!(client.read_response().status, 200);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for round in 2..5 {
            assert_eq!(post(&gateway, "/api/acme/renew").json()["renewed"], 1);
            gateway.wait_for_metric(ISSUED, round);
        }
        is_over.store(true, Ordering::Release);
        for client in clients {
            client.join().expect("no failure");
        }
    });
    assert!(done.load(Ordering::Relaxed) > 50, "{done:?}");
    assert_ne!(setting.shown(&gateway), first);
    assert_eq!(gateway.metric("tidegate_connections_failed_total"), 0);
    assert_eq!(setting.files(".pem").len(), 1, "it is replaced");
}

#[test]
fn a_failed_renewal_keeps_the_certificate() {
    let mut setting = Setting::new();
    let gateway = setting.issued();
    let first = setting.shown(&gateway);
    setting.pebble.stop();
    post(&gateway, "/api/acme/renew");
    gateway.wait_for_metric(FAILED, 1);
    assert_eq!(setting.shown(&gateway), first);
    let failed = state(&gateway);
    assert!(failed["last_error"].to_string().contains("/dir cannot be used: "), "{failed}");
    assert_eq!(failed["failures"], 1);
    assert!(failed["retry_at"].as_u64() > Some(gateway.clock.store_time().as_unix_ms() / 1000));
    // The authority has lost the account: the next order makes another one.
    setting.pebble.restart();
    eventually("a new account", || {
        post(&gateway, "/api/acme/renew");
        gateway.metric(ISSUED) > 1
    });
    assert_ne!(setting.shown(&gateway), first);
    assert!(state(&gateway)["last_error"].is_null());
}

#[test]
fn changed_domains_are_ordered_and_the_old_certificate_serves_until_then() {
    let setting = Setting::new();
    let gateway = setting.issued();
    let first = setting.shown(&gateway);
    setting.pebble.dns.set_addresses(B, &["127.0.0.9"]);
    gateway.reload(&setting.yaml("a.test, b.test", "tls-alpn-01")).expect("no fault");
    gateway.wait_for_metric(FAILED, 1);
    assert_eq!(setting.shown(&gateway), first, "it has one of the names");
    setting.pebble.dns.set_addresses(B, &["127.0.0.1"]);
    post(&gateway, "/api/acme/renew");
    gateway.wait_for_metric(ISSUED, 2);
    let second = setting.shown(&gateway);
    assert_eq!(names_and_issuer(&second).0, [A, B]);
    // A reload without a change orders nothing, and shows the same certificate.
    let yaml = setting.yaml("a.test, b.test", "tls-alpn-01");
    gateway.reload(&yaml.replace("body: hello", "body: other")).expect("no fault");
    assert_eq!(setting.shown(&gateway), second);
    assert_eq!(gateway.metric(ISSUED), 2);
}

#[test]
fn a_directory_of_another_authority_is_refused() {
    let setting = Setting::new();
    let other = testkit::tls::Authority::new("another");
    let ca = other.write(setting.storage.path(), "other-ca.txt");
    let yaml = setting.yaml(A, "tls-alpn-01");
    let own = setting.pebble.ca().display().to_string();
    let gateway = Gateway::start(&yaml.replace(&own, &ca.display().to_string()));
    gateway.wait_for_metric(FAILED, 1);
    let error = state(&gateway)["last_error"].to_string();
    for part in [setting.pebble.url().as_str(), "cannot be used", "UnknownIssuer"] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn an_external_account_is_bound() {
    const KEY: &str = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W";
    let setting = Setting::with_accounts(vec![("kid-1", KEY)]);
    let file = setting.storage.path().join("hmac");
    let yaml = setting.yaml(A, "tls-alpn-01");
    let gateway = Gateway::start(&yaml);
    gateway.wait_for_metric(FAILED, 1);
    let error = state(&gateway)["last_error"].to_string();
    assert!(error.contains("no account at ") && error.contains("xternalAccount"), "{error}");
    let eab = format!("        eab: {{key_id: kid-1, hmac_key: 'file:{}'}}\n", file.display());
    let bound = yaml.replace("        challenge:", &format!("{eab}        challenge:"));
    for (key, outcome) in [(KEY.replace("zWN", "zWM"), FAILED), (KEY.to_owned(), ISSUED)] {
        fs::write(&file, &key).expect("a file");
        let before = gateway.metric(outcome);
        gateway.reload(&bound).expect("no fault");
        gateway.wait_for_metric(outcome, before + 1);
        assert!(!state(&gateway).to_string().contains(&key[4..]));
    }
    fs::write(&file, "no base64url at all!").expect("a file");
    let fault = gateway.reload(&bound).expect_err("a fault");
    assert!(fault.contains("is not base64url") && !fault.contains("at all"), "{fault}");
}

#[test]
fn an_order_waits_for_a_storage_that_can_keep_it() {
    let setting = Setting::new();
    let file = setting.storage.path().join("file");
    fs::write(&file, "").expect("a file");
    let yaml = setting.yaml(A, "tls-alpn-01");
    let own = format!("storage: {}", setting.storage.path().display());
    let gateway = Gateway::start(&yaml.replace(&own, &format!("storage: {}", file.display())));
    gateway.wait_for_metric(FAILED, 1);
    let error = state(&gateway)["last_error"].to_string();
    assert!(error.contains("cannot write"), "{error}");
    assert!(setting.files(".json").is_empty(), "the authority was not asked");
}

/// An address on which nothing listens, as a directory.
fn nowhere() -> String {
    format!("https://{}/dir", free_address())
}
