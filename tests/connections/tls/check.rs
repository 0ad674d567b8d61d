//! What `check` and the metrics report of certificate files.

use std::{fs, os::unix::fs::PermissionsExt, process::Command, sync::Arc};

use testkit::{
    gateway::Gateway,
    tls::{connect, trusting_client},
    yaml::fill,
};
use tidegate::{
    cli,
    clock::{Clock, StoreTime},
    time::UnixSeconds,
};

use super::{Certificates, HELLO, get_host};

/// What `check` prints for the configuration, and its exit code.
fn check(files: &Certificates, yaml: &str) -> (u8, String) {
    let path = files.path().join("api.yaml");
    fs::write(&path, yaml).expect("a file");
    let mut out = Vec::new();
    let arguments = ["tidegate", "check", "-c", path.to_str().expect("UTF-8")];
    let exit = cli::run(arguments, &mut out).code();
    (exit, String::from_utf8(out).expect("UTF-8"))
}

/// A certificate's entry is in line 5.
const ONE_ENTRY: &str = "
listen:
  - address: 127.0.0.1:0
    tls:
      certificates:
        - {entry}
upstreams: {hello: {respond: {body: hello}}}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
";

#[test]
fn check_names_the_file_the_line_and_the_fault() {
    let files = Certificates::new();
    let folder = files.path();
    let path = |name: &str| folder.join(name).display().to_string();
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).expect("a file");
    let good = files.authority.issue(&["a.test", "*.a.test"]);
    good.write(folder, "good");
    files.authority.issue(&["b.test", "a.test"]).write(folder, "twice");
    files.authority.issue(&[]).write(folder, "nameless");
    write("empty.pem", "");
    write("damaged.pem", &good.cert.replace("MII", "M!!"));
    write("malformed.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    write(
        "encrypted.key",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
    );
    write(
        "old.key",
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nAAAA\n-----END RSA PRIVATE KEY-----\n",
    );
    write("long.pem", &" ".repeat((1 << 20) + 1));
    let fifo = folder.join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
    let entry = |cert: &str, key: &str| format!("{{cert: {}, key: {}}}", path(cert), path(key));
    let with_ca = |ca: &str| {
        entry("good.pem", "good.key").replace('}', &format!(", client_ca: {}}}", path(ca)))
    };
    for (entry, key, expected) in [
        (entry("none.pem", "good.key"), "cert", "none.pem`: the file does not exist"),
        (entry("good.pem", "none.key"), "key", "none.key`: the file does not exist"),
        (entry("good.pem", "fifo"), "key", "the file is a FIFO, expected a regular file"),
        (entry("good.pem", ""), "key", "the file is a directory, expected a regular file"),
        (entry("empty.pem", "good.key"), "cert", "no certificate (BEGIN CERTIFICATE)"),
        (entry("twice.key", "good.key"), "cert", "no certificate (BEGIN CERTIFICATE)"),
        (entry("damaged.pem", "good.key"), "cert", "damaged.pem`: "),
        (entry("malformed.pem", "good.key"), "cert", "the certificate is malformed"),
        (entry("long.pem", "good.key"), "cert", "longer than 1 MiB"),
        (entry("good.pem", "good.pem"), "key", "no private key (BEGIN PRIVATE KEY)"),
        (entry("good.key", "good.key"), "cert", "no certificate (BEGIN CERTIFICATE)"),
        (entry("good.pem", "encrypted.key"), "key", "the private key is encrypted"),
        (entry("good.pem", "old.key"), "key", "expected a private key without a passphrase"),
        (entry("good.pem", "twice.key"), "key", "is not the key of the certificate in"),
        (entry("nameless.pem", "nameless.key"), "cert", "names no host"),
        (with_ca("none.pem"), "client_ca", "none.pem`: the file does not exist"),
        (with_ca("empty.pem"), "client_ca", "no certificate"),
    ] {
        let yaml = fill(ONE_ENTRY, [("entry", &entry)]);
        let (exit, printed) = check(&files, &yaml);
        let line = yaml.lines().nth(4).expect("the entry");
        let column = line.find(&format!("{key}: ")).expect("the key") + key.len() + 3;
        let place = format!("api.yaml:5:{column}: ");
        assert_eq!(exit, 1, "{printed}");
        assert!(printed.contains(&place), "{key}, {place}: {printed}");
        assert!(printed.contains(expected), "{expected}: {printed}");
        assert_eq!(printed.matches("api.yaml:").count(), 1, "one fault: {printed}");
    }
    let two_entries = files.fill(
        "
        listen:
          - address: 127.0.0.1:0
            tls:
              certificates:
                - {cert: '{files}/good.pem', key: '{files}/good.key'}
                - {cert: '{files}/twice.pem', key: '{files}/twice.key'}
        upstreams: {hello: {respond: {body: hello}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
        ",
    );
    let (exit, printed) = check(&files, &two_entries);
    assert_eq!(exit, 1, "{printed}");
    let expected =
        "the name `a.test` is also in the certificate of `listen[0].tls.certificates[0]`";
    assert!(printed.contains("api.yaml:6:") && printed.contains(expected), "{printed}");
    let no_entry = "
listen: [{address: '127.0.0.1:0', tls: {certificates: []}}]
upstreams: {hello: {respond: {body: hello}}}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
";
    let (exit, printed) = check(&files, no_entry);
    assert!(exit == 1 && printed.contains("no certificate, expected at least one"), "{printed}");
}

#[test]
fn check_reports_faults_in_the_files_of_upstreams() {
    let files = Certificates::new();
    let ca = files.authority.write(files.path(), "ca.pem").display().to_string();
    let own = files.authority.issue(&[]).write(files.path(), "own");
    let other = files.authority.issue(&[]).write(files.path(), "other");
    let (cert, key) = (own.cert.display().to_string(), own.key.display().to_string());
    let other = other.key.display().to_string();
    let target = "targets: ['https://a.test']";
    for (upstream, expected) in [
        (format!("{target}, tls: {{ca: {ca}}}"), ""),
        (format!("{target}, tls: {{ca: {ca}, cert: {cert}, key: {key}}}"), ""),
        (format!("{target}, tls: {{ca: {key}}}"), "no certificate (BEGIN CERTIFICATE)"),
        (format!("{target}, tls: {{ca: /no/such.pem}}"), "`/no/such.pem`: the file does not exist"),
        (format!("{target}, tls: {{cert: {cert}, key: {other}}}"), "is not the key of the cert"),
        (format!("{target}, tls: {{cert: {cert}}}"), "`cert` without `key`"),
        (format!("{target}, tls: {{key: {key}}}"), "`key` without `cert`"),
        (format!("{target}, tls: {{ca: {ca}, name: 'a b'}}"), "a DNS name or an address"),
        ("targets: ['http://a.test'], tls: {name: a.test}".to_owned(), "`tls` without an https"),
        (format!("targets: ['unix:/{}']", "a".repeat(107)), "a path of at most 107 bytes"),
        ("targets: ['http://a.test', 'https://b.test']".to_owned(), "with and without https"),
        (
            "targets: ['http://a.test'], send_proxy: v2, protocol: http2".to_owned(),
            "`send_proxy` with HTTP/2",
        ),
    ] {
        let yaml = fill(
            "
            upstreams: {origin: { {upstream} }}
            routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
            ",
            [("upstream", &upstream)],
        );
        let (exit, printed) = check(&files, &yaml);
        assert_eq!(exit, u8::from(!expected.is_empty()), "{upstream}: {printed}");
        assert!(printed.contains(expected), "{upstream}: {printed}");
        assert!(expected.is_empty() || printed.contains("api.yaml:1:"), "{printed}");
    }
}

#[test]
fn certificates_that_expire_are_noted_and_counted() {
    let files = Certificates::new();
    let issue = |file, names: &[&str], from, until| {
        files.authority.issue_for(names, from, until).write(files.path(), file);
    };
    issue("expired", &["expired.test", "second.test"], (2000, 1, 1), (2001, 1, 1));
    issue("later", &["later.test"], (2090, 1, 1), (2091, 1, 1));
    issue("valid", &["*.valid.test"], (2000, 1, 1), (2091, 1, 1));
    let yaml = files.fill(
        "
        listen:
          - address: 127.0.0.1:0
            tls:
              certificates:
                - {cert: '{files}/expired.pem', key: '{files}/expired.key'}
                - {cert: '{files}/later.pem', key: '{files}/later.key'}
                - {cert: '{files}/valid.pem', key: '{files}/valid.key'}
        upstreams: {hello: {respond: {body: hello}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
        ",
    );
    let (exit, printed) = check(&files, &yaml);
    assert_eq!(exit, 0, "{printed}");
    assert!(
        printed.contains("api.yaml:5:18: the certificate of `expired.test` has expired"),
        "{printed}"
    );
    assert!(printed.contains("api.yaml:6:18: the certificate of `later.test` is not yet valid"));
    assert_eq!(printed.matches("note: ").count(), 2, "{printed}");

    // They are served all the same.
    let gateway = Gateway::start(&yaml);
    let config = Arc::new(trusting_client(&[]));
    let mut client = connect(gateway.address(), "expired.test", &config).expect("a handshake");
    assert_eq!(get_host(&mut client, "second.test"), 200);
    let metric = |name: &str| {
        let labels = format!("{{listener=\"127.0.0.1:0\",name=\"{name}\"}}");
        gateway.metric(&format!("tidegate_certificate_expiry_seconds{labels}"))
    };
    assert_eq!(metric("expired.test"), 978_307_200);
    assert_eq!(metric("later.test"), 3_818_448_000);
    assert_eq!(metric("*.valid.test"), 3_818_448_000);
}

#[test]
fn a_private_key_that_everyone_can_read_is_noted() {
    let files = Certificates::new();
    let paths = files.issue("a", &["a.test"]);
    let yaml = files.fill(HELLO);
    for (mode, count) in [(0o600, 0), (0o640, 0), (0o644, 1), (0o606, 1)] {
        fs::set_permissions(&paths.key, fs::Permissions::from_mode(mode)).expect("its owner");
        let (exit, printed) = check(&files, &yaml);
        let note = "a.key` has a private key, and every user of this machine can read it";
        assert_eq!((exit, printed.matches(note).count()), (0, count), "{mode:o}: {printed}");
    }
}

#[test]
fn a_certificate_is_noted_from_two_weeks_before_it_expires() {
    let files = Certificates::new();
    let identity = files.authority.issue_for(&["a.test"], (2023, 1, 1), (2024, 1, 1));
    identity.write(files.path(), "a");
    // 2023-11-14.
    let clock = Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000));
    let gateway = Gateway::start_at(&files.fill(HELLO), clock);
    let snapshot = gateway.server.shared.live.snapshot();
    let problem = |days: u64| {
        let now = UnixSeconds::from_secs(1_700_000_000 + days * 24 * 60 * 60);
        let certificate = snapshot.certificates().next().expect("a certificate");
        certificate.validity.problem(now).map(|problem| problem.to_string())
    };
    assert_eq!(problem(0), None);
    assert_eq!(problem(33), None);
    assert_eq!(problem(34).as_deref(), Some("expires in 13 days"));
    assert_eq!(problem(46).as_deref(), Some("expires in 1 day"));
    assert_eq!(problem(47).as_deref(), Some("expires within a day"));
    assert_eq!(problem(48).as_deref(), Some("has expired"));
}
