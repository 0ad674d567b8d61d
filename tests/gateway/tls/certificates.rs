use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use rustls::{ClientConfig, pki_types::CertificateDer};
use testkit::{
    client::get,
    gateway::Gateway,
    tls::{Identity, connect, trusting_client},
    wait::eventually,
};
use tidegate::{
    cli,
    clock::{Clock, StoreTime},
};

use super::{Certificates, RULES, configuration, get_host, listener, start};

/// What `check` prints for the configuration, and its exit code.
fn check(files: &Certificates, yaml: &str) -> (u8, String) {
    let path = files.path().join("api.yaml");
    fs::write(&path, yaml).expect("a file");
    let mut out = Vec::new();
    let arguments = ["tidegate", "check", "-c", path.to_str().expect("UTF-8")];
    let exit = cli::run(arguments, &mut out).code();
    (exit, String::from_utf8(out).expect("UTF-8"))
}

/// A configuration whose certificates begin at line 5, one a line: `cert` in column 12.
fn with_certificates(entries: &[String]) -> String {
    let entries: Vec<String> = entries.iter().map(|entry| format!("        - {entry}\n")).collect();
    let entries = entries.concat();
    format!("listen:\n  - address: 127.0.0.1:0\n    tls:\n      certificates:\n{entries}{RULES}")
}

#[test]
fn check_names_the_file_the_line_and_what_is_wrong() {
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
        let yaml = with_certificates(std::slice::from_ref(&entry));
        let (exit, printed) = check(&files, &yaml);
        let line = yaml.lines().nth(4).expect("the entry");
        let column = line.find(&format!("{key}: ")).expect("the key") + key.len() + 3;
        let place = format!("api.yaml:5:{column}: ");
        assert_eq!(exit, 1, "{printed}");
        assert!(printed.contains(&place), "{key}, {place}: {printed}");
        assert!(printed.contains(expected), "{expected}: {printed}");
        assert_eq!(printed.matches("api.yaml:").count(), 1, "one fault: {printed}");
    }
    let both = [entry("good.pem", "good.key"), entry("twice.pem", "twice.key")];
    let (exit, printed) = check(&files, &with_certificates(&both));
    assert_eq!(exit, 1, "{printed}");
    let expected =
        "the name `a.test` is also in the certificate of `listen[0].tls.certificates[0]`";
    assert!(printed.contains("api.yaml:6:") && printed.contains(expected), "{printed}");
    let (exit, printed) = check(&files, &format!("listen: [{}]{RULES}", listener(&[], "")));
    assert!(exit == 1 && printed.contains("no certificate, expected at least one"), "{printed}");
}

#[test]
fn check_reports_files_of_upstreams() {
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
        let yaml = format!(
            "upstreams: {{origin: {{{upstream}}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin}}]
"
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
        files.authority.issue_for(names, from, until).write(files.path(), file).entry()
    };
    let entries = [
        issue("expired", &["expired.test", "second.test"], (2000, 1, 1), (2001, 1, 1)),
        issue("later", &["later.test"], (2090, 1, 1), (2091, 1, 1)),
        issue("valid", &["*.valid.test"], (2000, 1, 1), (2091, 1, 1)),
    ];
    let braced = entries.clone().map(|entry| format!("{{{entry}}}"));
    let (exit, printed) = check(&files, &with_certificates(&braced));
    assert_eq!(exit, 0, "{printed}");
    assert!(
        printed.contains("api.yaml:5:18: the certificate of `expired.test` has expired"),
        "{printed}"
    );
    assert!(printed.contains("api.yaml:6:18: the certificate of `later.test` is not yet valid"));
    assert_eq!(printed.matches("note: ").count(), 2, "{printed}");

    // They are served all the same.
    let gateway = start(&entries, "");
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
    let paths = files.authority.issue(&["a.test"]).write(files.path(), "a");
    let yaml = with_certificates(&[format!("{{{}}}", paths.entry())]);
    for (mode, count) in [(0o600, 0), (0o640, 0), (0o644, 1), (0o606, 1)] {
        fs::set_permissions(&paths.key, fs::Permissions::from_mode(mode)).expect("its owner");
        let (exit, printed) = check(&files, &yaml);
        let note = "a.key` has a private key, and every user of this machine can read it";
        assert_eq!((exit, printed.matches(note).count()), (0, count), "{mode:o}: {printed}");
    }
}

#[test]
fn notes_on_certificates_go_by_the_gateway_s_clock() {
    let files = Certificates::new();
    let identity = files.authority.issue_for(&["a.test"], (2023, 1, 1), (2024, 1, 1));
    let entry = identity.write(files.path(), "a").entry();
    // 2023-11-14.
    let clock = Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000));
    let gateway = Gateway::start_at(&configuration(&[listener(&[entry], "")]), clock);
    let snapshot = gateway.server.shared.live.snapshot();
    let problem = |days: u64| {
        let now = 1_700_000_000 + days * 24 * 60 * 60;
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

/// The certificate that a new connection is shown.
fn shown(gateway: &Gateway, config: &Arc<ClientConfig>) -> CertificateDer<'static> {
    let client = connect(gateway.address(), "a.test", config).expect("a handshake");
    client.socket.conn.peer_certificates().expect("a certificate")[0].clone()
}

/// Puts a file in place of another, as tools do that renew certificates.
fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).expect("a file");
    fs::rename(new, path).expect("a file in its place");
}

#[test]
fn a_reload_reads_certificates_again_and_keeps_the_old_ones_on_a_fault() {
    let files = Certificates::new();
    let old = files.authority.issue(&["a.test"]);
    let paths = old.write(files.path(), "a");
    let yaml = configuration(&[listener(&[paths.entry()], "")]);
    let gateway = Gateway::start(&yaml);
    let config = Arc::new(trusting_client(&["http/1.1"]));
    let mut kept = connect(gateway.address(), "a.test", &config).expect("a handshake");
    assert_eq!(get_host(&mut kept, "a.test"), 200);

    let new = files.authority.issue(&["a.test", "b.test"]);
    fs::write(&paths.cert, &new.cert).expect("a file");
    let faults = gateway.reload(&yaml).expect_err("the key is the old one");
    assert!(faults.contains("is not the key of the certificate"), "{faults}");
    assert_eq!(shown(&gateway, &config), old.der());
    fs::write(&paths.key, &new.key).expect("a file");
    gateway.reload(&yaml).expect("no fault");
    assert_eq!(shown(&gateway, &config), new.der());
    assert_eq!(get_host(&mut kept, "a.test"), 200, "the connection is kept");
    assert_eq!(get_host(&mut kept, "b.test"), 421, "it was opened with the old certificate");
}

#[test]
fn a_changed_certificate_is_reloaded() {
    let files = Certificates::new();
    let old = files.authority.issue(&["a.test"]);
    let paths = old.write(files.path(), "a");
    let yaml = configuration(&[listener(&[paths.entry()], "")]);
    let gateway = Gateway::start(&yaml);
    let config = Arc::new(trusting_client(&[]));
    let wait_until_shown = |identity: &Identity| {
        let expected = identity.der();
        eventually("the new certificate", || shown(&gateway, &config) == expected);
    };
    for _ in 0..2 {
        let new = files.authority.issue(&["a.test"]);
        replace(&paths.key, &new.key);
        replace(&paths.cert, &new.cert);
        wait_until_shown(&new);
    }
    // A broken one is a fault, once; the next is used.
    let faults = || gateway.metric("tidegate_reloads_total{outcome=\"faulty\"}");
    let before = faults();
    fs::write(&paths.cert, "broken").expect("a file");
    gateway.wait_for_metric("tidegate_reloads_total{outcome=\"faulty\"}", before + 1);
    replace(&files.path().join("unrelated"), "x");
    let new = files.authority.issue(&["a.test"]);
    replace(&paths.key, &new.key);
    replace(&paths.cert, &new.cert);
    wait_until_shown(&new);

    // A folder that another reload brought is watched, and links of certbot's kind are followed.
    let (live, archive) = (files.path().join("live"), files.path().join("archive"));
    fs::create_dir(&live).expect("a folder");
    fs::create_dir(&archive).expect("a folder");
    let first = files.authority.issue(&["a.test"]);
    let real = first.write(&archive, "a1");
    let (cert, key) = (live.join("cert.pem"), live.join("key.pem"));
    symlink(&real.cert, &cert).expect("a link");
    symlink(&real.key, &key).expect("a link");
    let entry = format!("cert: {}, key: {}", cert.display(), key.display());
    gateway.reload(&configuration(&[listener(&[entry], "")])).expect("no fault");
    assert_eq!(shown(&gateway, &config), first.der());
    let second = files.authority.issue(&["a.test"]);
    replace(&real.key, &second.key);
    replace(&real.cert, &second.cert);
    wait_until_shown(&second);
}

#[test]
fn a_file_that_is_back_is_reloaded_even_if_its_content_is_not_new() {
    let files = Certificates::new();
    let paths = files.authority.issue(&["a.test"]).write(files.path(), "a");
    let yaml = configuration(&[listener(&[paths.entry()], "")]);
    let gateway = Gateway::start(&yaml);
    let aside = files.path().join("aside");
    fs::rename(&paths.cert, &aside).expect("a file");
    gateway.write_configuration(&yaml.replace("body: hello", "body: hello, status: 202"));
    gateway.wait_for_metric("tidegate_reloads_total{outcome=\"faulty\"}", 1);
    fs::rename(&aside, &paths.cert).expect("a file");
    let config = files.client();
    eventually("the configuration is used", || {
        let mut client = connect(gateway.address(), "a.test", &config).expect("a handshake");
        get_host(&mut client, "a.test") == 202
    });
}

#[test]
fn a_folder_that_is_replaced_is_watched() {
    let files = Certificates::new();
    let (folder, old) = (files.path().join("live"), files.path().join("old"));
    fs::create_dir(&folder).expect("a folder");
    let paths = files.authority.issue(&["a.test"]).write(&folder, "a");
    let gateway = Gateway::start(&configuration(&[listener(&[paths.entry()], "")]));
    let config = Arc::new(trusting_client(&[]));
    fs::rename(&folder, &old).expect("a folder");
    fs::create_dir(&folder).expect("a folder");
    for _ in 0..2 {
        let new = files.authority.issue(&["a.test"]);
        new.write(&folder, "a");
        let expected = new.der();
        eventually("the new certificate", || shown(&gateway, &config) == expected);
    }
}

/// Replaces the link at `path`, which may be missing, as `ln -sfn` does.
fn relink(target: &Path, path: &Path) {
    let new = path.with_extension("new");
    symlink(target, &new).expect("a link");
    fs::rename(&new, path).expect("the new link in its place");
}

#[test]
fn links_on_the_way_to_a_certificate_are_watched() {
    let files = Certificates::new();
    let root = files.path();
    let generation = |name: &str| {
        fs::create_dir_all(root.join(name)).expect("a folder");
        let identity = files.authority.issue(&["a.test"]);
        identity.write(&root.join(name), "tls");
        identity
    };
    let first = generation("real/g1");
    // `app` leads to `stage/live`, that to `real/cur`, and that to a generation.
    fs::create_dir_all(root.join("stage")).expect("a folder");
    let (app, live, cur) = (root.join("app"), root.join("stage/live"), root.join("real/cur"));
    relink(Path::new("g1"), &cur);
    relink(Path::new("../real/cur"), &live);
    relink(&live, &app);
    let entry = format!("cert: {0}/tls.pem, key: {0}/tls.key", app.display());
    let gateway = Gateway::start(&configuration(&[listener(&[entry], "")]));
    let config = Arc::new(trusting_client(&[]));
    assert_eq!(shown(&gateway, &config), first.der());
    let wait_until_shown = |what: &str, identity: &Identity| {
        let expected = identity.der();
        eventually(what, || shown(&gateway, &config) == expected);
    };

    let (second, third) = (generation("real/g2"), generation("real/g3"));
    relink(Path::new("g2"), &cur);
    wait_until_shown("the last link is relative and is replaced", &second);
    relink(&root.join("real/g3"), &live);
    wait_until_shown("the link in the middle is replaced by an absolute one", &third);
    fs::remove_file(&live).expect("a link");
    let fourth = generation("real/g4");
    relink(Path::new("../real/missing"), &live);
    relink(Path::new("g4"), &root.join("real/missing"));
    wait_until_shown("a link that led nowhere has a target", &fourth);
    let fifth = generation("elsewhere/g5");
    fs::remove_file(&app).expect("a link");
    relink(&root.join("elsewhere/g5"), &app);
    wait_until_shown("the first link was missing for a moment", &fifth);
    let sixth = files.authority.issue(&["a.test"]);
    replace(&root.join("elsewhere/g5/tls.key"), &sixth.key);
    replace(&root.join("elsewhere/g5/tls.pem"), &sixth.cert);
    wait_until_shown("the file behind the new links is replaced", &sixth);
}

#[test]
fn fifty_reloads_with_new_certificates_lose_no_request() {
    let files = Certificates::new();
    let paths = files.authority.issue(&["a.test"]).write(files.path(), "a");
    let yaml = configuration(&[listener(&[paths.entry()], "")]);
    let gateway = Gateway::start(&yaml);
    let config = files.client();
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for number in 0..4 {
            let (gateway, config, stop, sent) = (&gateway, &config, &stop, &sent);
            scope.spawn(move || {
                let open = || connect(gateway.address(), "a.test", config).expect("a handshake");
                let mut client = open();
                while !stop.load(Ordering::Relaxed) {
                    if number % 2 == 0 {
                        client = open();
                    }
                    assert_eq!(get_host(&mut client, "a.test"), 200);
                    sent.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..50 {
            let before = sent.load(Ordering::Relaxed);
            files.authority.issue(&["a.test"]).write(files.path(), "a");
            // The watcher may be reading the two files between their writes.
            eventually("a reload", || gateway.reload(&yaml).is_ok());
            eventually("requests continue", || sent.load(Ordering::Relaxed) > before + 4);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(get(gateway.admin(), "/healthz", "").status, 200);
}
