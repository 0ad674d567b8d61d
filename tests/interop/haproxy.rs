//! HAProxy as a TCP load balancer in front: it passes the client's address with the PROXY protocol.

use testkit::{port::free_port, upstream::Upstream};

use crate::{
    curl::curl,
    edge::{Edge, Listener, NAME, WAYS},
    server::Server,
};

#[test]
fn haproxy_tells_the_client_to_limits_and_upstreams_in_both_versions() {
    let upstream = Upstream::hello();
    let edge = Edge::start(&format!(
        "limits: {{few: {{quota: 12, window: 1h, key: [client_ip]}}}}
upstreams: {{origin: {{targets: ['{}']}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin, limits: [few]}}]
",
        upstream.target()
    ));
    let ports = [(); 4].map(|()| free_port());
    let [clear, tls] = [Listener::Proxied, Listener::ProxiedTls].map(|kind| edge.port(kind));
    let listen = |port: u16, target: u16, option: &str| {
        format!(
            "listen on-{port}
  mode tcp
  bind 127.0.0.1:{port}
  server tidegate 127.0.0.1:{target} {option}
"
        )
    };
    let sections = [
        listen(ports[0], clear, "send-proxy"),
        listen(ports[1], clear, "send-proxy-v2"),
        listen(ports[2], tls, "send-proxy"),
        listen(ports[3], tls, "send-proxy-v2"),
    ]
    .concat();
    let _haproxy = Server::haproxy(edge.files.directory(), &sections, &ports);
    let clear_ways = || WAYS.iter().filter(|way| matches!(way.listener, Listener::Clear));
    let tls_ways = || WAYS.iter().filter(|way| matches!(way.listener, Listener::Tls));
    for client in ["127.0.0.5", "127.0.0.6"] {
        let get = |port: u16, way: &crate::edge::Way| {
            let scheme = if way.tls.is_empty() { "http" } else { "https" };
            let arguments = [way.arguments, &["--interface", client]].concat();
            curl(&edge.files.ca, &arguments, &format!("{scheme}://{NAME}:{port}/a"))
        };
        let paths = ports[..2].iter().flat_map(|port| clear_ways().map(move |way| (*port, way)));
        let paths =
            paths.chain(ports[2..].iter().flat_map(|port| tls_ways().map(move |way| (*port, way))));
        let mut remaining = 12;
        for (port, way) in paths {
            let answer = get(port, way);
            assert_eq!((answer.status, &*answer.version), (200, way.http), "{}", answer.log);
            remaining -= 1;
            assert_eq!(answer.field("x-ratelimit-remaining"), remaining.to_string(), "{way:?}");
            let request = upstream.request_texts().pop().expect("a request").to_lowercase();
            assert!(request.contains(&format!("x-forwarded-for: {client}\r\n")), "{request}");
        }
        assert_eq!(remaining, 0);
        assert_eq!(get(ports[0], &WAYS[0]).status, 429, "{client}");
    }
}
