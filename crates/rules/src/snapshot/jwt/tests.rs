use std::os::unix::fs::PermissionsExt;

use tidegate_base::time::Millis;
use tidegate_config as config;
use tidegate_config::JwtAlgorithm;

use crate::snapshot::{SecretReading, Snapshot};

const JWT: &str = "issuer: https://id.test, audiences: [a], jwks: 'https://id.test/jwks'";

/// The first line of each fault, or of each note, of a configuration with this method.
fn messages(jwt: &str) -> Vec<String> {
    let text = format!(
        "auth: {{login: {{jwt: {{{jwt}}}}}}}\nplans: {{gold: {{}}}}\nlimits: {{one: {{quota: 5, window: 1m, key: \
         ['claim:tenant']}}}}\nupstreams: {{app: {{respond: {{}}}}}}\nroutes: [{{name: a, upstream: app, auth: \
         [login], limits: [one]}}]\n"
    );
    let first_line = |text: String| text.lines().next().unwrap_or_default().to_owned();
    let faults = |faults: &config::Faults| {
        faults.iter().map(|fault| first_line(fault.to_string())).collect::<Vec<_>>()
    };
    match config::parse("t.yaml", &text) {
        Err(error) => faults(&error.faults),
        Ok(loaded) => match Snapshot::compile(&loaded, SecretReading::Unread) {
            Ok(snapshot) => {
                snapshot.notes.iter().map(|note| first_line(note.to_string())).collect()
            }
            Err(error) => faults(&error),
        },
    }
}

fn compile(jwt: &str) -> Snapshot {
    let text = format!(
        "auth: {{login: {{jwt: {{{jwt}}}}}}}\nupstreams: {{app: {{respond: {{}}}}}}\nlimits: {{one: {{quota: 5, window: \
         1m, key: ['claim:tenant'], tiers: [{{match: {{part: 'claim:level', values: ['1']}}, quota: 9}}]}}}}\nroutes: \
         [{{name: a, upstream: app, auth: [login], headers: {{response: {{add: {{x: '{{claim.b.c}}'}}}}}}}}]\n"
    );
    Snapshot::compile(&config::parse("t.yaml", &text).unwrap(), SecretReading::Unread).unwrap()
}

#[test]
fn the_defaults_are_asymmetric() {
    let snapshot = compile(JWT);
    let method = snapshot.jwt_methods().next().unwrap();
    let expected = [JwtAlgorithm::Rs256, JwtAlgorithm::Es256, JwtAlgorithm::EdDsa];
    assert_eq!(method.verifier().algorithms(), expected);
    let rules = method.verifier().rules();
    assert_eq!(
        (&*rules.consumer, rules.leeway, &rules.plan),
        ("sub", Millis::from_secs(30), &None)
    );
    let precise = compile(&JWT.replace("[a]", "[a], leeway: 500ms"));
    let method = precise.jwt_methods().next().unwrap();
    assert_eq!(method.verifier().rules().leeway, Millis::from_ms(500));
    let kept: Vec<&str> = rules.kept.iter().map(|name| &**name).collect();
    assert_eq!(kept, ["b.c", "level", "tenant"], "what the configuration uses");
    assert!(method.keys().is_none(), "no server was asked");
}

#[test]
fn faulty_settings_are_refused() {
    assert_eq!(messages(JWT), [""; 0]);
    let mut wrong = Vec::new();
    for (from, to, expected) in [
        ("https://id.test,", "'',", "an empty issuer, expected the `iss` of its tokens"),
        ("[a]", "[]", "no audience, expected at least one"),
        ("[a]", "['']", "an empty audience"),
        (", jwks: 'https://id.test/jwks'", "", "no keys, expected `jwks` or `secret`"),
        ("jwks: '", "secret: 'env:S', jwks: '", "both `jwks` and `secret`, expected one of them"),
        ("'https://id.test/jwks'", "'ftp://x/'", "this value, expected an https:// URL"),
        ("'https://id.test/jwks'", "/nowhere/jwks.json", "/nowhere/jwks.json"),
        ("[a]", "[a], algorithms: []", "no algorithm, expected at least one"),
        ("[a]", "[a], algorithms: [none]", "`none`, expected"),
        ("[a]", "[a], algorithms: [HS256]", "`HS256` without `secret`"),
        ("[a]", "[a], algorithms: [RS256, RS256]", "duplicate `RS256`"),
        (
            "jwks: 'https://id.test/jwks'",
            "secret: 'env:S', algorithms: [RS256]",
            "`RS256` with `secret`",
        ),
        ("[a]", "[a], leeway: 11m", "`11m`, expected"),
        ("[a]", "[a], consumer: sub", "`sub`, expected `claim:sub`"),
        ("[a]", "[a], require: {scope: []}", "no value, expected at least one"),
        ("[a]", "[a], require: {scope: ['a b']}", "this scope, expected one word"),
        ("'https://id.test/jwks'", "'http://127.0.0.1:1/', tls_ca: x.pem", "`tls_ca` without TLS"),
        (
            "https://id.test, audiences: [a], jwks: 'https://id.test/jwks'",
            "http://id.test, audiences: [a], jwks: discover",
            "`http://id.test` with `jwks: discover`, expected an https:// URL",
        ),
    ] {
        assert!(JWT.contains(from), "{from}");
        let messages = messages(&JWT.replace(from, to));
        if !messages.iter().any(|text| text.starts_with("t.yaml:1:") && text.contains(expected)) {
            wrong.push(format!("{to}: {messages:?}"));
        }
    }
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn what_is_rarely_meant_is_noted() {
    let secret = messages("issuer: i, audiences: [a], secret: 'env:S'");
    assert!(secret[0].contains("every holder can issue"), "{secret:?}");
    let clear = messages(&JWT.replace("'https://id.test/jwks'", "'http://id.test/jwks'"));
    assert!(clear[0].contains("an http:// key set"), "{clear:?}");
    let local = messages(&JWT.replace("'https://id.test/jwks'", "'http://[::1]:9/jwks'"));
    assert_eq!(local, [""; 0]);
}

#[test]
fn a_key_file_is_read_with_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jwks.json");
    let jwt = |path: &std::path::Path| JWT.replace("https://id.test/jwks", path.to_str().unwrap());
    std::fs::write(&path, "{\"keys\": [{\"kty\": \"RSA\"}]}").unwrap();
    let faulty = messages(&jwt(&path));
    let expected = "none of the 1 keys of the key set can be used";
    assert!(faulty[0].contains("jwks.json: ") && faulty[0].contains(expected), "{faulty:?}");
    let key = "{\"keys\": [{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo\"}]}";
    std::fs::write(&path, key).unwrap();
    let snapshot = compile(&jwt(&path));
    let method = snapshot.jwt_methods().next().unwrap();
    assert!(method.keys().unwrap().load().is_some());
    assert!(snapshot.tls_files().iter().any(|file| file.path() == path), "it is watched");
}

#[test]
fn a_secret_has_at_least_32_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    let jwt = format!("issuer: i, audiences: [a], secret: 'file:{}'", path.display());
    for (length, is_usable) in [(31, false), (32, true)] {
        std::fs::write(&path, "x".repeat(length)).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        let text = format!(
            "auth: {{login: {{jwt: {{{jwt}}}}}}}\nupstreams: {{app: {{respond: {{}}}}}}\nroutes: [{{name: a, upstream: app}}]\n"
        );
        let loaded = config::parse("t.yaml", &text).unwrap();
        for secrets in [SecretReading::Required(&|_| None), SecretReading::Present(&|_| None)] {
            match Snapshot::compile(&loaded, secrets) {
                Ok(snapshot) => {
                    let method = snapshot.jwt_methods().next().unwrap();
                    assert!(is_usable && method.keys().is_some(), "{length}");
                }
                Err(faults) => {
                    let fault = faults.to_string();
                    assert!(!is_usable, "{fault}");
                    let is_located = fault.contains("t.yaml:1:");
                    assert!(is_located && fault.contains("32 random bytes"), "{fault}");
                }
            }
        }
    }
}

#[test]
fn a_missing_secret_is_a_fault_only_for_a_gateway() {
    let jwt = "issuer: i, audiences: [a], secret: 'env:NOWHERE'";
    let text = format!(
        "auth: {{login: {{jwt: {{{jwt}}}}}}}\nupstreams: {{app: {{respond: {{}}}}}}\nroutes: [{{name: a, upstream: app}}]\n"
    );
    let loaded = config::parse("t.yaml", &text).unwrap();
    for secrets in [SecretReading::Unread, SecretReading::Present(&|_| None)] {
        let snapshot = Snapshot::compile(&loaded, secrets).unwrap();
        assert!(snapshot.jwt_methods().next().unwrap().keys().is_none());
    }
    let faults =
        Snapshot::compile(&loaded, SecretReading::Required(&|_| None)).unwrap_err().to_string();
    assert!(faults.contains("t.yaml:1:") && faults.contains("NOWHERE"), "{faults}");
}
