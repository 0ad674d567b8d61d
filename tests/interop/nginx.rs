//! nginx as the upstream: its HTTP versions, TLS, bodies, kept connections, and the PROXY protocol.

use std::{collections::BTreeSet, fs};

use testkit::port::free_port;

use crate::{
    curl::{Answer, curl},
    edge::{Edge, Files, Listener, NAME, WAYS, upstream_tls},
    server::Server,
};

/// The name of nginx's certificate.
const SERVER: &str = "server.test";

/// nginx with a listener of each kind. It stores what is PUT and serves it again.
struct Nginx {
    files: Files,
    /// HTTP/1.1, HTTP/2, TLS, TLS with HTTP/2, PROXY protocol.
    ports: [u16; 5],
    _server: Server,
}

impl Nginx {
    fn start() -> Self {
        let files = Files::new();
        let own = files.issue("server", &[SERVER]);
        let ports = [(); 5].map(|()| free_port());
        let [clear, clear_http2, tls, tls_http2, proxied] = ports;
        let root = files.directory().display();
        let http = format!(
            "  client_max_body_size 8m;
  ssl_certificate {}; ssl_certificate_key {};
  server {{
    listen 127.0.0.1:{clear};
    listen 127.0.0.1:{clear_http2} http2;
    listen 127.0.0.1:{tls} ssl;
    listen 127.0.0.1:{tls_http2} ssl http2;
    listen 127.0.0.1:{proxied} proxy_protocol;
    root {root}/stored; dav_methods PUT; create_full_put_path on;
    add_header X-Protocol $server_protocol always;
    add_header X-Connection $connection always;
    add_header X-Proxied $proxy_protocol_addr always;
    add_header X-Forwarded-To-It $http_x_forwarded_for always;
  }}",
            own.cert.display(),
            own.key.display()
        );
        // An HTTP server closes a connection without a request and does not log it.
        let server = Server::nginx(files.directory(), &http, &ports);
        Self { files, ports, _server: server }
    }

    /// A gateway with one worker before these targets.
    fn edge(&self, target: &str, more: &str) -> Edge {
        Edge::start(&format!(
            "workers: 1
upstreams:
  nginx:
    targets: ['{target}']
    {}
{more}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: nginx, max_body: 8MiB}}]
",
            upstream_tls(&self.files, target.split(':').next().unwrap_or_default(), SERVER)
        ))
    }
}

#[test]
fn nginx_stores_and_serves_bodies_of_1_mib_over_every_protocol() {
    let nginx = Nginx::start();
    let [clear, clear_http2, tls, tls_http2, _] = nginx.ports;
    let (file, bytes) = nginx.files.body(1 << 20);
    let upload = ["--upload-file", file.to_str().expect("a path")];
    for (target, protocol, expected) in [
        (format!("http://127.0.0.1:{clear}"), "http1", "HTTP/1.1"),
        (format!("http://127.0.0.1:{clear_http2}"), "http2", "HTTP/2.0"),
        (format!("https://127.0.0.1:{tls}"), "http1", "HTTP/1.1"),
        (format!("https://127.0.0.1:{tls}"), "auto", "HTTP/1.1"),
        (format!("https://127.0.0.1:{tls_http2}"), "auto", "HTTP/2.0"),
        (format!("https://127.0.0.1:{tls_http2}"), "http2", "HTTP/2.0"),
    ] {
        let edge = nginx.edge(&target, &format!("    protocol: {protocol}"));
        for (index, way) in WAYS.iter().take(6).enumerate() {
            let path = format!("/{protocol}-{index}");
            let url = edge.url(way.listener, NAME, &path);
            let request = |more: &[&str]| -> Answer {
                curl(&edge.files.ca, &[way.arguments, more].concat(), &url)
            };
            let stored = request(&upload);
            assert!(matches!(stored.status, 201 | 204), "{target}: {}", stored.log);
            assert_eq!(stored.field("x-protocol"), expected, "{target}");
            let file = nginx.files.path("stored").join(&path[1..]);
            assert!(fs::read(file).expect("the stored body") == bytes, "{target}, {way:?}");
            let served = request(&[]);
            assert_eq!((served.status, &*served.version), (200, way.http), "{}", served.log);
            assert!(served.body == bytes, "{target}, {way:?}: {} bytes", served.body.len());
            let part = request(&["--range", "1000-1999"]);
            assert_eq!(part.status, 206, "{}", part.log);
            assert!(part.body == bytes[1000..2000], "{target}, {way:?}");
        }
    }
}

#[test]
fn nginx_s_connections_are_kept_for_further_requests() {
    let nginx = Nginx::start();
    let [clear, clear_http2, tls, tls_http2, _] = nginx.ports;
    for (target, protocol) in [
        (format!("http://127.0.0.1:{clear}"), "http1"),
        (format!("http://127.0.0.1:{clear_http2}"), "http2"),
        (format!("https://127.0.0.1:{tls}"), "http1"),
        (format!("https://127.0.0.1:{tls_http2}"), "auto"),
    ] {
        let edge = nginx.edge(&target, &format!("    protocol: {protocol}"));
        let connections: BTreeSet<String> = (0..8)
            .map(|number| {
                let url = edge.url(Listener::Clear, NAME, &format!("/none/{number}"));
                let answer = curl(&edge.files.ca, &["--http1.1"], &url);
                assert_eq!(answer.status, 404, "{}", answer.log);
                answer.field("x-connection").to_owned()
            })
            .collect();
        assert_eq!(connections.len(), 1, "{target}: {connections:?}");
    }
}

#[test]
fn nginx_reads_the_client_in_both_versions_of_the_proxy_protocol() {
    let nginx = Nginx::start();
    let target = format!("http://127.0.0.1:{}", nginx.ports[4]);
    for version in ["v1", "v2"] {
        let edge = nginx.edge(&target, &format!("    send_proxy: {version}"));
        let clients = ["127.0.0.5", "127.0.0.6"];
        for (client, way) in
            clients.iter().flat_map(|one| WAYS[..6].iter().map(move |way| (one, way)))
        {
            let arguments = [way.arguments, &["--interface", client]].concat();
            let answer = curl(&edge.files.ca, &arguments, &edge.url(way.listener, NAME, "/none"));
            assert_eq!(answer.status, 404, "{version}, {way:?}: {}", answer.log);
            assert_eq!(answer.field("x-proxied"), *client, "{version}, {way:?}");
            assert_eq!(answer.field("x-forwarded-to-it"), *client, "{version}, {way:?}");
        }
    }
}
