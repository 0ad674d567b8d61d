//! Tokens of other programs than PyJWT: Node's jose, and Go's golang-jwt.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use testkit::{client::Client, gateway::Gateway, interpreters::node, upstream::Upstream};
use tidegate::clock::Clock;

use super::{KeyAnswer, KeyHost, START, bearer, claims, rules};

/// Prints a key set and a token, as one JSON object. The argument has the claims.
const JOSE: &str = r#"
const jose = require("jose");
(async () => {
  const {publicKey, privateKey} = await jose.generateKeyPair("RS256");
  const token = await new jose.SignJWT(JSON.parse(process.argv[1]))
    .setProtectedHeader({alg: "RS256", kid: "node"}).sign(privateKey);
  const key = {...await jose.exportJWK(publicKey), kid: "node"};
  console.log(JSON.stringify({token, key}));
})();
"#;

/// The key and the token that a program prints.
fn issued(command: &mut Command, claims: &Value) -> (Value, String) {
    let output = command.arg(claims.to_string()).output().expect("it starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    let printed: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{errors}"));
    (printed["key"].clone(), printed["token"].as_str().expect("a token").to_owned())
}

fn golang() -> Command {
    let program =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/limits/auth/jwt/golang/main.go");
    let mut command = Command::new("go");
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go");
    command.env("GO111MODULE", "off").env("GOPATH", "/usr/share/gocode").env("GOCACHE", cache);
    command.arg("run").arg(program);
    command
}

#[test]
fn tokens_of_node_and_of_go_name_their_consumer() {
    let mut with_jose = node();
    with_jose.args(["-e", JOSE]);
    for (name, mut command) in [("by node", with_jose), ("by go", golang())] {
        let (key, token) = issued(&mut command, &claims(name, json!({})));
        let host = KeyHost::new(KeyAnswer::Set(json!({"keys": [key]}).to_string()));
        let upstream = Upstream::hello();
        let yaml = rules(&host.url(), &upstream, ", algorithms: [RS256, ES256]");
        let gateway = Gateway::start_at(&yaml, Clock::manual(START));
        let mut client = Client::connect(gateway.address());
        let response = client.get("/", &bearer(&token));
        assert_eq!(response.status, 200, "{name}: {}", response.head);
        let head = upstream.request_texts().pop().expect("a request").to_ascii_lowercase();
        assert!(head.contains(&format!("x-consumer-name: {name}\r\n")), "{head}");
        // Another signature of the same length.
        let (signed, signature) = token.rsplit_once('.').expect("a signature");
        let forged = format!("{signed}.{}", signature.chars().rev().collect::<String>());
        assert_eq!(client.get("/", &bearer(&forged)).status, 401, "{name}");
    }
}
