//! Envoy as the upstream: each HTTP version between the gateway and Envoy, with and without TLS.

use serde_json::json;
use testkit::port::free_port;

use super::{HTTP1, HTTP2, cluster, configuration, listener, route};
use crate::{
    chain::{Application, Front, PATHS},
    edge::{Edge, Files, Listener, upstream_tls},
    server::Server,
    websocket::{HTTP1_CLIENT, HTTP2_CLIENT},
};

/// The name of Envoy's certificate.
const SERVER: &str = "server.test";

/// The gateway's `protocol`, the scheme of its target, and the protocol that Envoy then sees.
const WAYS: [(&str, &str, &str); 6] = [
    ("http1", "http", "HTTP/1.1"),
    ("http2", "http", "HTTP/2"),
    ("auto", "http", "HTTP/1.1"),
    ("http1", "https", "HTTP/1.1"),
    ("http2", "https", "HTTP/2"),
    ("auto", "https", "HTTP/2"),
];

/// Envoy in front of an application.
pub(super) struct Envoy {
    application: Application,
    files: Files,
    clear: u16,
    tls: u16,
    _server: Server,
}

impl Envoy {
    pub(super) fn start() -> Self {
        let application = Application::start();
        let files = Files::new();
        let own = files.issue("envoy", &[SERVER]);
        let [clear, tls] = [free_port(), free_port()];
        let [chat_path, grpc_path] = PATHS;
        let routes =
            json!([route(chat_path, "chat"), route(grpc_path, "grpc"), route("/", "echo")]);
        let trailers = json!({"enable_trailers": true});
        let config = configuration(
            &[listener(clear, None, &routes), listener(tls, Some(&own), &routes)],
            &[
                cluster("echo", application.echo.address.port(), (HTTP1, trailers)),
                cluster("chat", application.chat.port(), (HTTP1, json!({}))),
                cluster("grpc", application.grpc.port(), (HTTP2, json!({}))),
            ],
        );
        let server = Server::envoy(files.directory(), &config, &[clear, tls]);
        Self { application, files, clear, tls, _server: server }
    }

    /// A gateway in front of it.
    fn edge(&self, protocol: &str, scheme: &str) -> Edge {
        Edge::start(&self.sections(protocol, scheme))
    }

    /// The `upstreams` and `routes` of a gateway in front of it.
    pub(super) fn sections(&self, protocol: &str, scheme: &str) -> String {
        let port = if scheme == "https" { self.tls } else { self.clear };
        format!(
            "upstreams:
  envoy:
    targets: ['{scheme}://127.0.0.1:{port}']
    protocol: {protocol}
    {}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: envoy, max_body: 8MiB}}]
",
            upstream_tls(&self.files, scheme, SERVER)
        )
    }

    /// Calls `check` for each of [`WAYS`] with a gateway, and the protocol that Envoy sees.
    fn on_each_way(&self, mut check: impl FnMut(&Edge, Front<'_>, &str)) {
        for (protocol, scheme, seen) in WAYS {
            let edge = self.edge(protocol, scheme);
            let front = Front {
                clear: edge.port(Listener::Clear),
                tls: edge.port(Listener::Tls),
                ca: &edge.files.ca,
                case: format!("Envoy behind, {protocol}, {scheme}"),
            };
            check(&edge, front, seen);
        }
    }
}

#[test]
fn envoy_behind_receives_bodies_and_trailers() {
    let envoy = Envoy::start();
    envoy.on_each_way(|edge, front, seen| {
        front.assert_bodies_pass(&edge.files, |head| {
            let expected = format!("\r\nx-envoy-protocol: {seen}\r\n");
            assert!(head.contains(&expected), "{}: {head}", front.case);
        });
        front.assert_trailers_pass(&envoy.application.echo);
    });
}

#[test]
fn envoy_behind_receives_websocket() {
    let envoy = Envoy::start();
    envoy.on_each_way(|edge, front, _| {
        for client in [HTTP1_CLIENT, HTTP2_CLIENT] {
            front.assert_websocket_passes(client);
        }
        edge.gateway.wait_for_metric("tidegate_tunnels ", 0);
    });
}

#[test]
fn envoy_behind_receives_grpc() {
    Envoy::start().on_each_way(|_, front, seen| {
        if seen == "HTTP/2" {
            front.assert_grpc_passes();
        }
    });
}
