//! Caddy in front: each version of HTTP between it and the gateway, in clear and over TLS.

use testkit::port::free_port;

use crate::{
    chain::{Application, Front},
    edge::{Edge, Files, Listener, NAME},
    server::Server,
    websocket::HTTP1_CLIENT,
};

/// Caddy's ways to the gateway: the listener, `versions` of its transport, and our `Via`.
const WAYS: [(Listener, &str, &str); 4] = [
    (Listener::Clear, "1.1", "1.1"),
    (Listener::Clear, "h2c 2", "2"),
    (Listener::Tls, "1.1", "1.1"),
    (Listener::Tls, "2", "2"),
];

/// Caddy before a gateway before an application.
struct Chain {
    files: Files,
    edge: Edge,
    /// For each of [`WAYS`]: the ports in clear and with TLS.
    ports: [[u16; 2]; 4],
    _caddy: Server,
}

impl Chain {
    fn start(application: &Application) -> Self {
        let edge = Edge::start(&application.sections(""));
        let files = Files::new();
        let own = files.issue("caddy", &[NAME]);
        let ports = WAYS.map(|_| [free_port(), free_port()]);
        let (cert, key) = (own.cert.display(), own.key.display());
        let mut sites = String::new();
        for ((listener, versions, _), [clear, tls]) in WAYS.into_iter().zip(ports) {
            let port = edge.port(listener);
            let ca = edge.files.ca.display();
            let (scheme, trust) = if matches!(listener, Listener::Tls) {
                ("https", format!("tls_trust_pool file {ca}\n    tls_server_name {NAME}"))
            } else {
                ("http", String::new())
            };
            let proxy = format!(
                "reverse_proxy {scheme}://127.0.0.1:{port} {{
  transport http {{
    versions {versions}
    {trust}
  }}
}}"
            );
            let site = format!(
                "http://{NAME}:{clear}, http://127.0.0.1:{clear} {{
{proxy}
}}
https://{NAME}:{tls} {{
tls {cert} {key}
{proxy}
}}
"
            );
            sites.push_str(&site);
        }
        let caddy = Server::caddy(files.directory(), &sites, ports.as_flattened());
        Self { files, edge, ports, _caddy: caddy }
    }

    fn fronts(&self) -> impl Iterator<Item = Front<'_>> {
        WAYS.iter().zip(self.ports).map(|((listener, versions, _), [clear, tls])| Front {
            clear,
            tls,
            ca: &self.files.ca,
            case: format!("Caddy in front, {listener:?}, {versions}"),
        })
    }
}

#[test]
fn caddy_in_front_passes_bodies_and_trailers() {
    let application = Application::start();
    let chain = Chain::start(&application);
    for (front, (_, _, version)) in chain.fronts().zip(WAYS) {
        front.assert_bodies_pass(&chain.files, |_| {
            let received = application.echo.requests().pop().expect("a request");
            let received = String::from_utf8_lossy(&received[..received.len().min(2000)]);
            let via = format!("\r\nvia: {version} tidegate-");
            assert!(received.to_lowercase().contains(&via), "{}: {received}", front.case);
        });
        // Caddy does not forward the trailers of a request.
        front.assert_response_trailers_pass();
    }
}

#[test]
fn caddy_in_front_passes_websocket() {
    let application = Application::start();
    let chain = Chain::start(&application);
    // Over HTTP/2, Caddy neither accepts an extended CONNECT nor sends one.
    for (front, _) in chain.fronts().zip(WAYS).filter(|(_, (_, _, version))| *version == "1.1") {
        front.assert_websocket_passes(HTTP1_CLIENT);
    }
    chain.edge.gateway.wait_for_metric("tidegate_tunnels ", 0);
}

#[test]
fn caddy_in_front_passes_grpc() {
    let application = Application::start();
    let chain = Chain::start(&application);
    for (front, _) in chain.fronts().zip(WAYS).filter(|(_, (_, _, version))| *version == "2") {
        front.assert_grpc_passes();
    }
}
