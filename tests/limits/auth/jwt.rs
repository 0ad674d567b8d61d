//! Signed tokens. PyJWT makes them, so that this program does not read its own.

/// What follows from claims: limits, tiers, header fields, refusals.
mod claims;
/// The memory that key sets hold.
mod key_memory;
/// The server of the keys: rotation, and every way to fail.
mod key_server;
/// Tokens of other programs.
mod other_programs;
/// Which tokens are accepted.
mod tokens;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::TcpStream;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use testkit::upstream::{ResponseGate, Upstream};
use testkit::{interpreters::python, yaml::fill};
use tidegate::clock::StoreTime;

/// The time of the tests, in seconds since the epoch.
const NOW: u64 = 1_800_000_000;
const START: StoreTime = StoreTime::from_unix_ms(NOW * 1000);

/// Makes keys and tokens of the specification in standard input.
const ISSUER: &str = r#"
import base64, hashlib, hmac, json, sys
import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

def make(kind):
    if kind[:2] in ("RS", "PS"):
        return rsa.generate_private_key(65537, 2048), RSAAlgorithm
    if kind == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate(), OKPAlgorithm
    return ec.generate_private_key(ec.SECP256R1() if kind == "ES256" else ec.SECP384R1()), ECAlgorithm

def encoded(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

spec = json.load(sys.stdin)
keys, public = {}, {}
for name, kind in spec["keys"].items():
    if kind.startswith("HS"):
        keys[name] = (kind, name)
        continue
    key, algorithm = make(kind)
    jwk = algorithm.to_jwk(key.public_key(), as_dict=True)
    keys[name], public[name] = (kind, key), {**jwk, "kid": name}

tokens = []
for token in spec["tokens"]:
    kind, key = keys[token["key"]]
    header, claims = {"kid": token["key"], **token.get("header", {})}, token["claims"]
    if "secret_of" in token or "raw" in token:
        # What PyJWT refuses to make.
        text = token.get("raw") or json.dumps(claims)
        header = {"alg": kind, **header}
        signed = encoded(json.dumps(header).encode()) + "." + encoded(text.encode())
        if "secret_of" in token:
            other = keys[token["secret_of"]][1].public_key()
            pem = other.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
            secret = pem if token.get("as") == "pem" else json.dumps(public[token["secret_of"]]).encode()
            signature = hmac.new(secret, signed.encode(), hashlib.sha256).digest()
        else:
            algorithm = jwt.get_algorithm_by_name(kind)
            signature = algorithm.sign(signed.encode(), key)
        tokens.append(signed + "." + encoded(signature))
    elif token.get("unsigned"):
        tokens.append(jwt.encode(claims, None, algorithm="none", headers=header))
    else:
        tokens.append(jwt.encode(claims, key, algorithm=kind, headers=header))
json.dump({"keys": public, "tokens": tokens}, sys.stdout)
"#;

/// The keys of an issuer as JWKs by name, and its tokens in their order.
struct Issued {
    keys: BTreeMap<String, Value>,
    tokens: Vec<String>,
}

impl Issued {
    /// Makes keys, each a name and its algorithm, and a token for each specification: `key`,
    /// `claims` and `header`.
    fn new(keys: &[(&str, &str)], tokens: &[Value]) -> Self {
        let keys: BTreeMap<_, _> = keys.iter().copied().collect();
        let specification = json!({"keys": keys, "tokens": tokens}).to_string();
        let mut process = python()
            .args(["-c", ISSUER])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python starts");
        let mut input = process.stdin.take().expect("an input");
        input.write_all(specification.as_bytes()).expect("it is read");
        drop(input);
        let output = process.wait_with_output().expect("it ends");
        let mut made: Value = serde_json::from_slice(&output.stdout).expect("JSON of the issuer");
        let keys = made["keys"].take().as_object().expect("keys").clone().into_iter().collect();
        let tokens = serde_json::from_value(made["tokens"].take()).expect("tokens");
        Self { keys, tokens }
    }

    /// A key set with these keys.
    fn set(&self, names: &[&str]) -> String {
        let keys: Vec<&Value> = names.iter().map(|name| &self.keys[*name]).collect();
        json!({"keys": keys}).to_string()
    }

    /// A header with the token of this index.
    fn bearer(&self, index: usize) -> String {
        bearer(&self.tokens[index])
    }
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

/// The claims of a valid token of `subject`, with changes.
#[expect(clippy::needless_pass_by_value, reason = "a literal at each call")]
fn claims(subject: &str, changes: Value) -> Value {
    let mut claims =
        json!({"iss": "https://id.test", "aud": "orders", "sub": subject, "exp": NOW + 3_600});
    let changes = changes.as_object().expect("an object").clone();
    claims.as_object_mut().expect("an object").extend(changes);
    claims
}

/// A token of `subject`, signed with `key`.
fn token(key: &str, subject: &str, changes: Value) -> Value {
    json!({"key": key, "claims": claims(subject, changes)})
}

/// How the server of keys answers.
#[derive(Clone)]
enum KeyAnswer {
    /// With this key set.
    Set(String),
    /// With these bytes.
    Raw(String),
    /// It closes the connection.
    Close,
    /// It does not answer before the gate opens.
    Hang(ResponseGate),
}

/// A server of keys.
struct KeyHost {
    server: Upstream,
    answer: Arc<Mutex<KeyAnswer>>,
}

impl KeyHost {
    fn new(answer: KeyAnswer) -> Self {
        let answer = Arc::new(Mutex::new(answer));
        let current = Arc::clone(&answer);
        let server = Upstream::with_handler(move |_, socket| {
            let answer = current.lock().expect("no panic").clone();
            match answer {
                KeyAnswer::Set(set) => write(socket, &json_response(&set)),
                KeyAnswer::Raw(bytes) => write(socket, &bytes),
                KeyAnswer::Close => false,
                KeyAnswer::Hang(gate) => {
                    gate.wait();
                    false
                }
            }
        });
        Self { server, answer }
    }

    fn answer(&self, answer: KeyAnswer) {
        *self.answer.lock().expect("no panic") = answer;
    }

    fn url(&self) -> String {
        format!("{}/jwks", self.server.target())
    }
}

fn write(socket: &mut TcpStream, bytes: &str) -> bool {
    socket.write_all(bytes.as_bytes()).is_ok()
}

fn json_response(body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

const RULES: &str = "
auth:
  login:
    jwt: {issuer: 'https://id.test', audiences: [orders, stock], jwks: '{jwks}', leeway: 0s{more}}
    max_failures: off
consumers: {entries: [{name: off, disabled: true}, {name: acme, plan: gold}]}
plans: {free: {each: 3}, gold: {each: 5}}
upstreams: {app: {targets: ['{target}']}}
limits: {each: {quota: 2, window: 1h, key: [consumer]}}
routes: [{name: all, upstream: app, auth: [login], limits: [each]}]
";

/// [`RULES`] with keys at `jwks`, and `more` settings of the method.
fn rules(jwks: &str, upstream: &Upstream, more: &str) -> String {
    fill(RULES, [("jwks", jwks), ("target", &upstream.target()), ("more", more)])
}
