//! Faults and notes of `acme`.

use testkit::yaml::fill;
use tidegate::{
    config,
    snapshot::{SecretReading, Snapshot},
};

const VALID: &str = "
listen:
  - address: 127.0.0.1:0
    tls:
      acme: {domains: [a.test], directory: 'https://127.0.0.1/dir', directory_ca: '{ca}', storage: '{storage}'}
upstreams: {hello: {respond: {body: hello}}}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
";

#[test]
fn what_no_authority_could_issue_is_a_fault() {
    let folder = tempfile::tempdir().expect("a directory");
    let ca = testkit::tls::Authority::new("tests").write(folder.path(), "ca.pem");
    let storage = folder.path().join("acme");
    let valid = fill(VALID, [("ca", ca.display()), ("storage", storage.display())]);
    let messages = |yaml: &str| match config::parse("t.yaml", yaml) {
        Err(error) => error.to_string(),
        Ok(loaded) => match Snapshot::compile(&loaded, SecretReading::Unread) {
            Err(faults) => faults.to_string(),
            Ok(snapshot) => {
                snapshot.notes.iter().map(ToString::to_string).collect::<Vec<_>>().join(
                    "
",
                )
            }
        },
    };
    assert_eq!(messages(&valid), "");
    assert!(!storage.exists(), "a check makes no folder");
    let (file, own) = (ca.display().to_string(), format!("storage: '{}'", storage.display()));
    for (from, to, expected) in [
        ("[a.test]", "['*.a.test']", "`*.a.test`, expected a DNS name without a wildcard"),
        ("[a.test]", "[127.0.0.1]", "`127.0.0.1`, expected a DNS name"),
        ("acme:", "acme: # ", "no certificate, expected at least one certificate, or `acme`"),
        ("[a.test]", "[]", "no domain, expected at least one"),
        ("{domains", "{challenge: http-01, domains", "`http-01` without a listener in clear"),
        ("{domains", "{challenge: dns-01, domains", "tls-alpn-01"),
        ("{domains", "{email: 'a,b@c', domains", "expected one address"),
        ("https:", "http:", "expected an https:// URL"),
        ("storage: '", &format!("storage: '{file}"), "cannot write"),
        ("directory_ca: '", "directory_ca: '/nowhere", "does not exist"),
        ("{domains", "{client_ca: /nowhere/ca.pem, domains", "/nowhere/ca.pem"),
        (
            &own,
            "storage: redis",
            "`storage: redis` without `store.redis`, expected a section `redis`",
        ),
        (&own, "storage: ''", "expected `redis`, or the path of a folder"),
        (
            "{domains",
            "{storage_key: 'env:KEY', domains",
            "`storage_key` with a folder, in which nothing is encrypted",
        ),
        ("{domains", "{storage_key: secret, domains", "expected env:NAME or file:PATH"),
        (
            "acme: {",
            "certificates: [{cert: a, key: b}]\n      acme: {",
            "both `certificates` and `acme`",
        ),
        (
            "{domains",
            "{eab: {key_id: a, hmac_key: secret}, domains",
            "expected env:NAME or file:PATH",
        ),
    ] {
        let found = messages(&valid.replace(from, to));
        assert!(found.contains(expected), "{to}: {found}");
    }
    let shared = valid.replace(&own, "storage: redis");
    let shared =
        format!("{shared}store: {{redis: {{shards: [{{primary: 'redis://127.0.0.1'}}]}}}}");
    let found = messages(&shared);
    assert!(!found.contains("acme"), "{found}");
    let plain = valid.replace("{domains", "{challenge: http-01, domains");
    let plain = plain.replace("listen:\n", "listen:\n  - address: 127.0.0.1:81\n");
    assert_eq!(messages(&plain), "");
}
