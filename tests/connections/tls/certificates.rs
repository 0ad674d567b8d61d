//! Certificate files that change: reloads, and the watched files, folders and links.

use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
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

use super::{Certificates, HELLO, get_host};

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
    let yaml = files.fill(HELLO).replace("tls: {", "tls: {strict_host: true, ");
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
    let yaml = files.fill(HELLO);
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
    let in_live = files.fill(
        "
        listen:
          - address: 127.0.0.1:0
            tls: {certificates: [{cert: '{files}/live/cert.pem', key: '{files}/live/key.pem'}]}
        upstreams: {hello: {respond: {body: hello}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
        ",
    );
    gateway.reload(&in_live).expect("no fault");
    assert_eq!(shown(&gateway, &config), first.der());
    let second = files.authority.issue(&["a.test"]);
    replace(&real.key, &second.key);
    replace(&real.cert, &second.cert);
    wait_until_shown(&second);
}

#[test]
fn a_file_that_is_back_is_reloaded_even_if_its_content_is_not_new() {
    let files = Certificates::new();
    let paths = files.issue("a", &["a.test"]);
    let gateway = Gateway::start(&files.fill(HELLO));
    let aside = files.path().join("aside");
    fs::rename(&paths.cert, &aside).expect("a file");
    gateway.write_configuration(&files.fill(
        "
        listen:
          - address: 127.0.0.1:0
            tls: {certificates: [{cert: '{files}/a.pem', key: '{files}/a.key'}]}
        upstreams: {hello: {respond: {body: hello, status: 202}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
        ",
    ));
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
    files.authority.issue(&["a.test"]).write(&folder, "a");
    let gateway = Gateway::start(&files.fill(
        "
        listen:
          - address: 127.0.0.1:0
            tls: {certificates: [{cert: '{files}/live/a.pem', key: '{files}/live/a.key'}]}
        upstreams: {hello: {respond: {body: hello}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
        ",
    ));
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
    let gateway = Gateway::start(&files.fill(
        "
        listen:
          - address: 127.0.0.1:0
            tls: {certificates: [{cert: '{files}/app/tls.pem', key: '{files}/app/tls.key'}]}
        upstreams: {hello: {respond: {body: hello}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
        ",
    ));
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
    files.issue("a", &["a.test"]);
    let yaml = files.fill(HELLO);
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
            files.issue("a", &["a.test"]);
            // The watcher may be reading the two files between their writes.
            eventually("a reload", || gateway.reload(&yaml).is_ok());
            eventually("requests continue", || sent.load(Ordering::Relaxed) > before + 4);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(get(gateway.admin(), "/healthz", "").status, 200);
}
