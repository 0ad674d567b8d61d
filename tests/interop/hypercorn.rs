//! Hypercorn as the upstream: HTTP/1.1 and HTTP/2 at one port, by prior knowledge or by the
//! handshake.

use testkit::yaml::fill;

use crate::{
    curl::curl,
    edge::{Edge, Files, NAME, WAYS, upstream_tls},
    server::Server,
};

/// The name of its certificate.
const SERVER: &str = "server.test";

#[test]
fn hypercorn_echoes_bodies_of_1_mib_over_every_protocol() {
    let files = Files::new();
    let own = files.issue("server", &[SERVER]);
    let (body, bytes) = files.body(1 << 20);
    let body = format!("@{}", body.display());
    for (scheme, arguments) in [("http", vec![]), ("https", vec![&*own.cert, &*own.key])] {
        let (_server, address) = Server::script("application.py", &arguments);
        for (protocol, version) in [
            ("http1", "1.1"),
            ("http2", "2"),
            ("auto", if scheme == "https" { "2" } else { "1.1" }),
        ] {
            let edge = Edge::start(&fill(
                "
                upstreams:
                  app:
                    targets: ['{scheme}://{address}']
                    protocol: {protocol}
                    {tls}
                routes: [{name: all, match: {path: '/{*rest}'}, upstream: app}]
                ",
                [
                    ("scheme", scheme),
                    ("address", &address.to_string()),
                    ("protocol", protocol),
                    ("tls", &upstream_tls(&files, scheme, SERVER)),
                ],
            ));
            for way in &WAYS[..6] {
                let url = edge.url(way.listener, NAME, "/a");
                for data in ["", &body] {
                    let arguments = [way.arguments, &["--data-binary", data]].concat();
                    let answer = curl(&edge.files.ca, &arguments, &url);
                    let case = format!("{scheme}, {protocol}, {way:?}: {}", answer.log);
                    assert_eq!((answer.status, &*answer.version), (200, way.http), "{case}");
                    assert_eq!(answer.field("x-http-version"), version, "{case}");
                    let expected = if data.is_empty() { &[][..] } else { &bytes };
                    assert!(answer.body == expected, "{case}: {} bytes", answer.body.len());
                }
            }
        }
    }
}
