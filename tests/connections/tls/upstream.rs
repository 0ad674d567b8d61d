//! TLS and Unix sockets towards upstreams: both certificates, connections that are reused,
//! truncated responses.

use std::{
    io::{Read, Write},
    os::unix::net::UnixListener,
    path::PathBuf,
    thread,
};

use testkit::{
    client::{Client, get},
    gateway::Gateway,
    protocol::on_every_protocol,
    tls::{Authority, Identity, TlsUpstream, close_notify},
    yaml::fill,
};

use super::Certificates;

/// The status through a gateway whose upstream has these keys.
fn status(upstream: &str) -> u16 {
    let gateway = Gateway::start(&fill(
        "
        upstreams: {origin: { {upstream} }}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        [("upstream", upstream)],
    ));
    get(gateway.address(), "/a", "").status
}

/// The authority's certificate in a file.
fn ca(files: &Certificates) -> PathBuf {
    files.authority.write(files.path(), "ca.pem")
}

#[test]
fn an_upstream_s_certificate_is_checked() {
    let files = Certificates::new();
    let ca = ca(&files).display().to_string();
    let strangers = Authority::new("strangers").write(files.path(), "strangers.pem");
    let strangers = strangers.display().to_string();
    let named = TlsUpstream::hello(files.authority.issue(&["app.test", "127.0.0.1"]).server());
    let other = TlsUpstream::hello(files.authority.issue(&["other.test"]).server());
    let expired = files.authority.issue_for(&["127.0.0.1"], (2000, 1, 1), (2001, 1, 1));
    let expired = TlsUpstream::hello(expired.server());
    let target = |upstream: &TlsUpstream| format!("targets: ['https://{}']", upstream.address);
    for (upstream, expected) in [
        (format!("{}, tls: {{ca: {ca}}}", target(&named)), 200),
        (format!("{}, tls: {{ca: {ca}, name: app.test}}", target(&named)), 200),
        (format!("{}, tls: {{ca: {ca}, name: wrong.test}}", target(&named)), 502),
        (format!("{}, tls: {{ca: {strangers}}}", target(&named)), 502),
        (target(&named), 502),
        (format!("{}, tls: {{ca: {ca}}}", target(&other)), 502),
        (format!("{}, tls: {{ca: {ca}, name: other.test}}", target(&other)), 200),
        (format!("{}, tls: {{ca: {ca}}}", target(&expired)), 502),
        (format!("targets: ['http://{}']", named.address), 502),
    ] {
        assert_eq!(status(&upstream), expected, "{upstream}");
    }
    assert_eq!(
        (named.requests().len(), other.requests().len()),
        (2, 1),
        "refused before a request"
    );
    let request = &named.requests()[0];
    assert!(request.starts_with("GET /a HTTP/1.1\r\n"), "{request}");
}

#[test]
fn the_name_of_a_server_follows_the_host_of_each_request() {
    let files = Certificates::new();
    let ca = ca(&files);
    files.issue("a", &["a.test"]);
    files.issue("b", &["b.test"]);
    // A server as strict as Apache: 421 if the name in the handshake is not that of the request.
    let server = Gateway::start(&files.fill(
        "
        workers: 1
        listen:
          - address: 127.0.0.1:0
            tls:
              strict_host: true
              certificates:
                - {cert: '{files}/a.pem', key: '{files}/a.key'}
                - {cert: '{files}/b.pem', key: '{files}/b.key'}
        upstreams: {hello: {respond: {body: hello}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
        ",
    ));
    let start = |keys: &str| {
        Gateway::for_every_protocol(&fill(
            "
            workers: 1
            upstreams:
              origin: {targets: ['https://{server}'], retries: 0, tls: {ca: '{ca}', name: host}, {keys}}
            routes:
              - {name: all, match: {path: '/{*rest}'}, upstream: origin}
              - {name: fixed, match: {path: /fixed}, upstream: origin, host: b.test}
              - {name: own, match: {path: /own}, upstream: origin, host: upstream}
            ",
            [
                ("server", server.address().to_string()),
                ("ca", ca.display().to_string()),
                ("keys", keys.to_owned()),
            ],
        ))
    };
    for keys in ["protocol: http1", "protocol: http2", "protocol: auto"] {
        let gateway = start(keys);
        on_every_protocol(|protocol| {
            let status = |host: &str, path: &str| {
                protocol.get(&gateway, path, format!("Host: {host}\r\n")).status
            };
            for _ in 0..3 {
                for host in ["a.test", "b.test", "A.test:8443", "a.test"] {
                    assert_eq!(status(host, "/a"), 200, "{keys} {host}");
                }
                assert_eq!(status("other.test", "/fixed"), 200, "{keys}");
                // Names for which the server has no certificate do not eject it.
                for _ in 0..4 {
                    assert_eq!(status("other.test", "/a"), 502, "{keys}");
                }
            }
            assert_eq!(status("a.test", "/own"), 502, "the certificate has no name of an address");
        });
    }
}

#[test]
fn a_self_signed_certificate_is_accepted_where_it_is_listed() {
    let files = Certificates::new();
    let listed = |name: &str, identity: &Identity| {
        identity.write(files.path(), name).cert.display().to_string()
    };
    let own = Authority::self_signed(&["127.0.0.1", "app.test"], (2099, 1, 1));
    let old = Authority::self_signed(&["127.0.0.1"], (2001, 1, 1));
    // Without a subject alternative name.
    let nameless = Authority::self_signed(&[], (2099, 1, 1));
    let expired = Authority::self_signed(&[], (2001, 1, 1));
    let (nameless_file, expired_file) =
        (listed("nameless", &nameless), listed("expired", &expired));
    // Its subject is the same, and the listed certificate follows it in the chain.
    let other = Authority::self_signed(&[], (2099, 1, 1));
    let chained = Identity { cert: other.cert + &nameless.cert, key: other.key };
    let [nameless, expired, chained] =
        [nameless, expired, chained].map(|identity| TlsUpstream::hello(identity.server()));
    let (own_file, old_file) = (listed("own", &own), listed("old", &old));
    let (own, old) = (TlsUpstream::hello(own.server()), TlsUpstream::hello(old.server()));
    for (upstream, tls, expected) in [
        (&own, format!("ca: {own_file}"), 200),
        (&own, format!("ca: {own_file}, name: app.test"), 200),
        (&own, format!("ca: {own_file}, name: other.test"), 502),
        (&own, format!("ca: {old_file}"), 502),
        (&own, format!("ca: {}", ca(&files).display()), 502),
        (&old, format!("ca: {old_file}"), 502),
        (&nameless, format!("ca: {nameless_file}"), 200),
        (&nameless, format!("ca: {nameless_file}, name: other.test"), 200),
        (&nameless, format!("ca: {own_file}"), 502),
        (&expired, format!("ca: {expired_file}"), 502),
        (&chained, format!("ca: {nameless_file}"), 502),
    ] {
        let target = format!("targets: ['https://{}'], tls: {{{tls}}}", upstream.address);
        assert_eq!(status(&target), expected, "{target}");
    }
}

#[test]
fn an_upstream_gets_the_gateway_s_certificate() {
    let files = Certificates::new();
    let ca = ca(&files).display().to_string();
    let server = files.authority.issue(&["127.0.0.1"]);
    let upstream = TlsUpstream::hello(files.authority.server_with_client_auth(&server));
    let target = format!("targets: ['https://{}']", upstream.address);
    // A client's certificate needs no name of a host.
    let own = files.authority.issue(&[]).write(files.path(), "own").entry();
    let strange = Authority::new("strangers").issue(&[]).write(files.path(), "strange").entry();
    assert_eq!(status(&format!("{target}, tls: {{ca: {ca}, {own}}}")), 200);
    assert_eq!(status(&format!("{target}, tls: {{ca: {ca}}}")), 502);
    assert_eq!(status(&format!("{target}, tls: {{ca: {ca}, {strange}}}")), 502);
    assert_eq!(upstream.requests().len(), 1);
}

#[test]
fn connections_over_tls_are_reused_also_after_a_reload() {
    let files = Certificates::new();
    let ca = ca(&files);
    let upstream = TlsUpstream::hello(files.authority.issue(&["127.0.0.1"]).server());
    let yaml = fill(
        "
        workers: 1
        upstreams: {origin: {targets: ['https://{upstream}'], tls: {ca: '{ca}'}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        [("upstream", upstream.address.to_string()), ("ca", ca.display().to_string())],
    );
    let gateway = Gateway::start(&yaml);
    for _ in 0..3 {
        assert_eq!(get(gateway.address(), "/a", "").text(), "hello");
    }
    gateway.reload(&yaml).expect("no fault");
    assert_eq!(get(gateway.address(), "/a", "").text(), "hello");
    assert_eq!(upstream.connections(), 1);
    // Other authorities: a connection that was checked by the old ones is not used.
    std::fs::write(&ca, files.authority.pem.clone() + &Authority::new("new").pem).expect("a file");
    gateway.reload(&yaml).expect("no fault");
    assert_eq!(get(gateway.address(), "/a", "").text(), "hello");
    assert_eq!(upstream.connections(), 2);
}

#[test]
fn a_truncated_response_is_not_passed_as_whole() {
    let files = Certificates::new();
    let ca = ca(&files);
    let identity = files.authority.issue(&["127.0.0.1"]);
    let upstream = TlsUpstream::start(identity.server(), |head, stream| {
        let framing = match () {
            () if head.contains("/length") => "Content-Length: 10\r\n",
            () if head.contains("/chunked") => "Transfer-Encoding: chunked\r\n",
            () => "",
        };
        let body = if head.contains("/chunked") { "4\r\nhalf\r\n" } else { "half" };
        let _ = write!(stream, "HTTP/1.1 200 OK\r\n{framing}\r\n{body}");
        let _ = stream.flush();
        if head.contains("/whole") {
            close_notify(stream);
        }
        false
    });
    let gateway = Gateway::start(&fill(
        "
        upstreams: {origin: {targets: ['https://{upstream}'], tls: {ca: '{ca}'}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        [("upstream", upstream.address.to_string()), ("ca", ca.display().to_string())],
    ));
    let response = |path: &str| {
        let mut client = Client::connect(gateway.address());
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")).try_read_response()
    };
    let whole = response("/whole").expect("the end of the session delimits the body");
    assert_eq!((whole.status, whole.text()), (200, "half".to_owned()));
    for path in ["/close", "/length", "/chunked"] {
        assert!(response(path).is_none(), "{path}: a response without its end");
    }
    gateway.wait_for_metric(
        "tidegate_upstream_failures_total{upstream=\"origin\",kind=\"broken\"}",
        3,
    );
    // The end of the connection says nothing to an HTTP/1.0 client: it is reset.
    let mut client = Client::connect(gateway.address());
    client.send("GET /close HTTP/1.0\r\n\r\n");
    assert!(client.read_to_end().is_err(), "a reset");
}

#[test]
fn requests_are_forwarded_to_a_unix_socket() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("app.sock");
    let gateway = Gateway::start(&fill(
        "
        upstreams: {origin: {targets: ['unix:{path}']}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        [("path", path.display())],
    ));
    assert_eq!(get(gateway.address(), "/a", "").status, 502, "nothing listens");
    let listener = UnixListener::bind(&path).expect("a socket");
    let served = thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("a connection");
        let mut requests = Vec::new();
        for _ in 0..3 {
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && socket.read(&mut byte).expect("a request") == 1 {
                head.push(byte[0]);
            }
            requests.push(String::from_utf8(head).expect("ASCII"));
            socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").expect("a client");
        }
        requests
    });
    // One worker's pool, so that one connection serves all.
    let mut client = Client::connect(gateway.address());
    for _ in 0..3 {
        assert_eq!(client.get("/a?b", "").text(), "hi");
    }
    for request in served.join().expect("no panic") {
        assert!(request.starts_with("GET /a?b HTTP/1.1\r\n"), "{request}");
        assert!(request.to_ascii_lowercase().contains("\r\nhost: gateway.test\r\n"), "{request}");
    }
}
