//! Envoy in front: each HTTP version between Envoy and the gateway, with and without TLS.

use serde_json::json;
use testkit::port::free_port;

use super::{HTTP1, HTTP2, behind::Envoy, cluster, configuration, listener, route};
use crate::{
    chain::{Application, Front},
    curl::curl,
    edge::{Edge, Files, Listener, NAME},
    nghttp2::{assert_all_succeeded, h2load},
    server::Server,
    tools::{run, script},
    websocket::{HTTP1_CLIENT, HTTP2_CLIENT},
};

/// Envoy's ways to the gateway.
const WAYS: [(&str, Listener, &str); 4] = [
    ("HTTP/1.1", Listener::Clear, HTTP1),
    ("HTTP/1.1 over TLS", Listener::Tls, HTTP1),
    ("HTTP/2", Listener::Clear, HTTP2),
    ("HTTP/2 over TLS", Listener::Tls, HTTP2),
];

/// Envoy in front of a gateway in front of an application.
struct Chain {
    files: Files,
    edge: Edge,
    /// For each of [`WAYS`]: the ports in clear and with TLS.
    ports: [[u16; 2]; 4],
    _envoy: Server,
}

impl Chain {
    fn start(sections: &str) -> Self {
        let edge = Edge::start(sections);
        let files = Files::new();
        let own = files.issue("envoy", &[NAME]);
        let ports = WAYS.map(|_| [free_port(), free_port()]);
        let (mut listeners, mut clusters) = (Vec::new(), Vec::new());
        for ((name, kind, version), [clear, tls]) in WAYS.into_iter().zip(ports) {
            let routes = json!([route("/", name)]);
            listeners.push(listener(clear, None, &routes));
            listeners.push(listener(tls, Some(&own), &routes));
            let options = match version {
                HTTP1 => json!({"enable_trailers": true}),
                // As docs/src/http2.md says.
                _ => json!({"max_concurrent_streams": 100}),
            };
            let mut cluster = cluster(name, edge.port(kind), (version, options));
            if matches!(kind, Listener::Tls) {
                cluster["transport_socket"] = json!({"name": "tls", "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
                    "sni": NAME,
                    "common_tls_context": {"validation_context": {
                        "trusted_ca": {"filename": edge.files.ca},
                    }},
                }});
            }
            clusters.push(cluster);
        }
        let config = configuration(&listeners, &clusters);
        let envoy = Server::envoy(files.directory(), &config, ports.as_flattened());
        Self { files, edge, ports, _envoy: envoy }
    }

    fn fronts(&self) -> impl Iterator<Item = Front<'_>> {
        WAYS.iter().zip(self.ports).map(|((name, ..), [clear, tls])| Front {
            clear,
            tls,
            ca: &self.files.ca,
            case: format!("Envoy in front, {name}"),
        })
    }
}

#[test]
fn envoy_in_front_passes_bodies_and_trailers() {
    let application = Application::start();
    let chain = Chain::start(&application.sections(""));
    for (front, (_, _, version)) in chain.fronts().zip(WAYS) {
        let via = if version == HTTP2 { "\r\nvia: 2 " } else { "\r\nvia: 1.1 " };
        front.assert_bodies_pass(&chain.files, |_| {
            let received = application.echo.requests().pop().expect("a request");
            let received = String::from_utf8_lossy(&received[..received.len().min(2000)]);
            assert!(received.to_lowercase().contains(via), "{}: {received}", front.case);
        });
        front.assert_trailers_pass(&application.echo);
    }
}

#[test]
fn envoy_in_front_passes_websocket() {
    let application = Application::start();
    let chain = Chain::start(&application.sections(""));
    for (front, (_, _, version)) in chain.fronts().zip(WAYS) {
        front.assert_websocket_passes(HTTP1_CLIENT);
        // Towards HTTP/1.1, Envoy sends no key if its client sent none, but the server needs one.
        if version == HTTP2 {
            front.assert_websocket_passes(HTTP2_CLIENT);
        }
    }
    chain.edge.gateway.wait_for_metric("tidegate_tunnels ", 0);
}

/// Envoy resets the stream of a WebSocket right after the close frame.
#[test]
fn close_frames_pass_between_two_envoys() {
    let behind = Envoy::start();
    let chain = Chain::start(&behind.sections("http2", "http"));
    for (front, (_, _, version)) in chain.fronts().zip(WAYS) {
        if version == HTTP2 {
            let mut command = script("../envoy/websocket_closes.py");
            command.args([&front.clear.to_string(), NAME, "60"]);
            let codes = run(&mut command).succeeded(&front.case).out;
            assert_eq!(codes.trim(), "1000: 30, 4002: 30", "{}", front.case);
        }
    }
    chain.edge.gateway.wait_for_metric("tidegate_tunnels ", 0);
}

#[test]
fn envoy_in_front_passes_grpc() {
    let application = Application::start();
    let chain = Chain::start(&application.sections(""));
    for (front, _) in chain.fronts().zip(WAYS).filter(|(_, (_, _, version))| *version == HTTP2) {
        front.assert_grpc_passes();
    }
}

#[test]
fn envoy_in_front_names_the_client_to_limits() {
    let application = Application::start();
    let sections = application.sections(", limits: [few]");
    let chain = Chain::start(&format!(
        "client: {{trusted_proxies: [127.0.0.1]}}
limits: {{few: {{quota: 4, window: 1h, key: [client_ip]}}}}
{sections}"
    ));
    for client in ["127.0.0.5", "127.0.0.6"] {
        let get = |front: &Front<'_>| {
            let url = format!("http://{NAME}:{}/echo", front.clear);
            curl(&chain.files.ca, &["--interface", client], &url)
        };
        for (front, remaining) in chain.fronts().zip(["3", "2", "1", "0"]) {
            let answer = get(&front);
            assert_eq!(answer.field("x-ratelimit-remaining"), remaining, "{}", answer.log);
            let request = application.echo.request_texts().pop().expect("a request");
            let sent = format!("x-forwarded-for: {client}, 127.0.0.1\r\n");
            assert!(request.to_lowercase().contains(&sent), "{request}");
        }
        assert!(chain.fronts().all(|front| get(&front).status == 429), "{client}");
    }
}

#[test]
fn envoy_in_front_opens_no_more_streams_than_the_gateway_allows() {
    const COUNT: u32 = 1_600;
    let application = Application::start();
    let chain = Chain::start(&application.sections(""));
    for front in chain.fronts().skip(2) {
        let count = COUNT.to_string();
        let arguments = ["-n", &count, "-c", "1", "-m", "160"];
        let output = h2load(&arguments, &format!("http://127.0.0.1:{}/echo", front.clear));
        assert_all_succeeded(&output, COUNT);
    }
}
