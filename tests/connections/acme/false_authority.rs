//! [`FalseAuthority`]: an authority that checks no domain and issues what a test wants. Pebble
//! issues only good certificates, and Debian's makes no suggestions.

use std::{
    io::{Read, Write},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use rcgen::{
    CertificateParams, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm,
    date_time_ymd,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{
    port::{free_address, free_port},
    tls::{Authority, Day, TlsServerStream, TlsUpstream},
    yaml::fill,
};
use x509_parser::prelude::{FromDer, X509CertificationRequest};

use super::{A, ORDERED};

/// What it answers.
#[derive(Clone)]
pub(super) struct Answers {
    /// The names of its certificates.
    pub(super) names: Vec<&'static str>,
    /// The first and the last day of its certificates.
    pub(super) days: [Day; 2],
    /// What follows the certificate in its chain.
    pub(super) rest_of_chain: &'static str,
    /// The state of an order whose certificate is wanted.
    pub(super) order: &'static str,
    /// The status of its directory.
    pub(super) directory_status: &'static str,
    /// The status with which it answers orders.
    pub(super) order_status: &'static str,
    /// The field `Retry-After` of its responses; empty for none.
    pub(super) retry_after: &'static str,
    /// The window of suggested renewals, in RFC 3339.
    pub(super) window: [String; 2],
}

impl Default for Answers {
    /// A good authority's.
    fn default() -> Self {
        Self {
            names: vec![A],
            days: [(2020, 1, 1), (2090, 1, 1)],
            rest_of_chain: "",
            order: "valid",
            directory_status: "200 OK",
            order_status: "201 Created",
            retry_after: "",
            window: ["2080-01-01T00:00:00Z", "2081-01-01T00:00:00Z"].map(str::to_owned),
        }
    }
}

/// The authority.
pub(super) struct FalseAuthority {
    server: TlsUpstream,
    files: TempDir,
    state: Arc<State>,
}

struct State {
    url: String,
    issuer: Issuer<'static, KeyPair>,
    answers: Mutex<Answers>,
    /// The public key of the last request for a certificate.
    key: Mutex<Option<RequestedKey>>,
}

/// A public key of P-256, as a point.
#[derive(Clone)]
struct RequestedKey(Vec<u8>);

impl PublicKeyData for RequestedKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl FalseAuthority {
    pub(super) fn start(answers: Answers) -> Self {
        let files = tempfile::tempdir().expect("a directory");
        let authority = Authority::new("the directory's authority");
        authority.write(files.path(), "ca.pem");
        let identity = authority.issue(&["127.0.0.1"]);
        let address = free_address();
        let key = KeyPair::generate().expect("a key");
        let state = Arc::new(State {
            url: format!("https://{address}"),
            issuer: Issuer::new(CertificateParams::default(), key),
            answers: Mutex::new(answers),
            key: Mutex::default(),
        });
        let answering = Arc::clone(&state);
        let server = TlsUpstream::start_on(address, identity.server(), move |head, stream| {
            answering.answer(head, stream)
        });
        Self { server, files, state }
    }

    /// A configuration with a certificate of it for [`A`], which is stored in `storage`.
    pub(super) fn yaml(&self, storage: &TempDir) -> String {
        fill(
            ORDERED,
            [
                ("tls", free_port().to_string()),
                ("http", free_port().to_string()),
                ("domains", A.to_owned()),
                ("directory", format!("{}/dir", self.state.url)),
                ("ca", self.ca().display().to_string()),
                ("challenge", "http-01".to_owned()),
                ("storage", storage.path().display().to_string()),
            ],
        )
    }

    /// What it answers from now on.
    pub(super) fn answers(&self) -> MutexGuard<'_, Answers> {
        self.state.answers.lock().expect("no panic")
    }

    /// The heads of the requests so far.
    pub(super) fn requests(&self) -> Vec<String> {
        self.server.requests()
    }

    fn ca(&self) -> PathBuf {
        self.files.path().join("ca.pem")
    }
}

impl State {
    fn answer(&self, head: &str, stream: &mut TlsServerStream) -> bool {
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("content-length").then(|| value.parse().expect("a number"))
        });
        let mut body = vec![0; length.unwrap_or(0)];
        if stream.read_exact(&mut body).is_err() {
            return false;
        }
        let path = head.split(' ').nth(1).expect("a path");
        let answers = self.answers.lock().expect("no panic").clone();
        let (status, body) = self.respond(path, &body, &answers);
        let retry_after = match answers.retry_after {
            "" => String::new(),
            pause => format!("Retry-After: {pause}\r\n"),
        };
        let response = format!(
            "HTTP/1.1 {status}\r\nReplay-Nonce: bm9uY2U\r\nLocation: {}{path}/1\r\n\
             {retry_after}Content-Length: {}\r\n\r\n{}",
            self.url,
            body.len(),
            if head.starts_with("HEAD ") { "" } else { &body },
        );
        stream.write_all(response.as_bytes()).is_ok() && stream.flush().is_ok()
    }

    fn respond(&self, path: &str, body: &[u8], answers: &Answers) -> (&'static str, String) {
        let url = |path: &str| format!("{}{path}", self.url);
        let order = |status: &str, replaces: &Value| {
            let order = json!({
                "status": status, "authorizations": [], "finalize": url("/finalize"),
                "certificate": url("/certificate"), "replaces": replaces,
            });
            order.to_string()
        };
        match path {
            "/dir" if !answers.directory_status.starts_with('2') => {
                (answers.directory_status, "busy".to_owned())
            }
            "/dir" => {
                let directory = json!({
                    "newNonce": url("/nonce"), "newAccount": url("/account"),
                    "newOrder": url("/order"), "revokeCert": url("/revoke"),
                    "keyChange": url("/key"), "renewalInfo": url("/window"),
                });
                ("200 OK", directory.to_string())
            }
            "/order" if !answers.order_status.starts_with('2') => {
                let problem = json!({
                    "type": "urn:ietf:params:acme:error:rateLimited",
                    "detail": "too many orders, ".repeat(1000),
                });
                (answers.order_status, problem.to_string())
            }
            "/account" => ("201 Created", json!({"status": "valid"}).to_string()),
            "/order" => {
                *self.key.lock().expect("no panic") = None;
                (answers.order_status, order("ready", &payload(body)["replaces"]))
            }
            "/order/1" if self.key.lock().expect("no panic").is_none() => {
                ("200 OK", order("ready", &Value::Null))
            }
            "/order/1" => ("200 OK", order(answers.order, &Value::Null)),
            "/finalize" => {
                *self.key.lock().expect("no panic") = Some(requested_key(body));
                ("200 OK", order("processing", &Value::Null))
            }
            "/certificate" => ("200 OK", self.issue(answers)),
            _ if path.starts_with("/window/") => {
                let [start, end] = &answers.window;
                let window = json!({"suggestedWindow": {"start": start, "end": end}});
                ("200 OK", window.to_string())
            }
            _ => ("200 OK", String::new()),
        }
    }

    /// A certificate for the last requested key.
    fn issue(&self, answers: &Answers) -> String {
        let names: Vec<String> = answers.names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.use_authority_key_identifier_extension = true;
        let [from, until] = answers.days;
        params.not_before = date_time_ymd(from.0, from.1, from.2);
        params.not_after = date_time_ymd(until.0, until.1, until.2);
        let key = self.key.lock().expect("no panic").take().expect("a request");
        let issued = params.signed_by(&key, &self.issuer).expect("a certificate");
        issued.pem() + answers.rest_of_chain
    }
}

/// The content of a signed request; null if it has none.
fn payload(body: &[u8]) -> Value {
    let signed: Value = serde_json::from_slice(body).expect("JSON");
    serde_json::from_slice(&decoded(&signed["payload"])).unwrap_or_default()
}

/// The key in the body of a request to finalize an order.
fn requested_key(body: &[u8]) -> RequestedKey {
    let request = decoded(&payload(body)["csr"]);
    let (_, request) = X509CertificationRequest::from_der(&request).expect("a request");
    let key = request.certification_request_info.subject_pki.subject_public_key.data;
    RequestedKey(key.into_owned())
}

fn decoded(value: &Value) -> Vec<u8> {
    URL_SAFE_NO_PAD.decode(value.as_str().expect("a text")).expect("base64url")
}
