//! The PROXY protocol: headers of load balancers, and headers to upstreams.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{Arc, Mutex},
    time::Duration,
};

use testkit::{
    client::Client,
    gateway::Gateway,
    tls::{Authority, handshake},
    upstream::Upstream,
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime};

const V2_SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// Every test's own peer sends a header.
const FROM_LOOPBACK: &str = "
listen: [{address: '127.0.0.1:0', proxy_protocol: {from: [127.0.0.0/8]}}]
upstreams: {origin: {targets: [{target}]}}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
";

fn start(yaml: &str, upstream: &Upstream) -> Gateway {
    Gateway::start(&fill(yaml, [("target", upstream.target())]))
}

/// A header of version 2 with this command, family and content.
fn v2(command: u8, family: u8, content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u16).to_be_bytes();
    [V2_SIGNATURE, &[0x20 | command, family], &length, content].concat()
}

/// A header of version 2 from 192.0.2.7:5007, with these fields behind the addresses.
fn v2_ipv4(fields: &[u8]) -> Vec<u8> {
    let addresses = [192, 0, 2, 7, 192, 0, 2, 1, 0x13, 0x8f, 0x01, 0xbb];
    v2(1, 0x11, &[&addresses[..], fields].concat())
}

/// The client's address that the upstream received last.
fn forwarded_for(upstream: &Upstream) -> String {
    let request = upstream.request_texts().pop().expect("a request").to_ascii_lowercase();
    let line = request.lines().find_map(|line| line.strip_prefix("x-forwarded-for: "));
    line.expect("the header").to_owned()
}

#[test]
fn the_client_is_the_address_in_the_header() {
    let upstream = Upstream::hello();
    let gateway = start(FROM_LOOPBACK, &upstream);
    let ipv6 = [&[0x20, 1, 0xd, 0xb8][..], &[0; 11], &[7], &[0; 15], &[1], &[0, 9, 0, 80]].concat();
    for (header, client) in [
        (b"PROXY TCP4 192.0.2.5 192.0.2.1 5005 443\r\n".to_vec(), "192.0.2.5"),
        (b"PROXY TCP6 2001:db8::5 2001:db8::1 5005 443\r\n".to_vec(), "2001:db8::5"),
        (b"PROXY TCP6 ::ffff:192.0.2.6 ::ffff:192.0.2.1 5005 443\r\n".to_vec(), "192.0.2.6"),
        (b"PROXY UNKNOWN\r\n".to_vec(), "127.0.0.1"),
        (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n".to_vec(), "127.0.0.1"),
        (v2_ipv4(b""), "192.0.2.7"),
        // An authority, and 1 KiB that no one knows.
        (v2_ipv4(&[&[2, 0, 4][..], b"name", &[0xe0, 4, 0], &[9; 1024]].concat()), "192.0.2.7"),
        (v2(1, 0x21, &ipv6), "2001:db8::7"),
        (v2(1, 0x31, &[b'/'; 216]), "127.0.0.1"),
        (v2(0, 0, b""), "127.0.0.1"),
        (v2(0, 0x11, &[9; 12]), "127.0.0.1"),
    ] {
        let mut client_socket = Client::connect(gateway.address());
        // In one piece with the request, and in single bytes.
        client_socket.send([&header[..], b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n"].concat());
        assert_eq!(client_socket.read_response().status, 200, "{header:?}");
        assert_eq!(forwarded_for(&upstream), client, "{header:?}");
        assert_eq!(client_socket.get("/b", "").status, 200, "one header for all requests");
        let mut slow = Client::connect(gateway.address());
        for byte in &header {
            slow.send([*byte]);
        }
        assert_eq!(slow.get("/c", "").status, 200, "{header:?}");
        assert_eq!(forwarded_for(&upstream), client, "{header:?}");
    }
}

#[test]
fn limits_count_by_the_address_in_the_header() {
    let gateway = Gateway::start(
        "
        listen: [{address: '127.0.0.1:0', proxy_protocol: {from: [127.0.0.0/8]}}]
        upstreams: {hello: {respond: {body: hello}}}
        limits: {one: {quota: 1, window: 1h}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello, limits: [one]}]
        ",
    );
    let status = |client: &str| {
        let mut connection = Client::connect(gateway.address());
        connection.send(format!("PROXY TCP4 {client} 192.0.2.1 5005 443\r\n"));
        connection.get("/a", "X-Forwarded-For: 198.51.100.1\r\n").status
    };
    assert_eq!([status("192.0.2.5"), status("192.0.2.6")], [200, 200]);
    assert_eq!([status("192.0.2.5"), status("192.0.2.6")], [429, 429]);
}

#[test]
fn malformed_headers_close_the_connection() {
    let upstream = Upstream::hello();
    let gateway = start(FROM_LOOPBACK, &upstream);
    let long = [&b"PROXY TCP4 "[..], &[b'1'; 300], b"\r\n"].concat();
    let mut other_version = v2_ipv4(b"");
    other_version[12] = 0x31;
    let headers: [&[u8]; 9] = [
        b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n",
        b"PROXY TCP4 192.0.2.5 192.0.2.1 5005\r\n",
        b"PROXY TCP4 192.0.2.5 192.0.2.1 5005 443\n",
        b"PROXY TCP4 2001:db8::5 192.0.2.1 5005 443\r\n",
        b"PROXY TCP4 192.0.2.5 192.0.2.1 99999 443\r\n",
        b"proxy TCP4 192.0.2.5 192.0.2.1 5005 443\r\n",
        &long,
        &other_version,
        // Longer than any header that a load balancer sends.
        &v2_ipv4(&[7; 4000]),
    ];
    for header in headers {
        let mut client = Client::connect(gateway.address());
        client.send(header);
        let _ = client.socket.write_all(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(client.is_closed_or_reset(), "{header:?}");
    }
    assert_eq!(upstream.request_count(), 0);
    gateway.wait_for_metric(
        "tidegate_connections_failed_total{reason=\"proxy_protocol\"}",
        headers.len() as u64,
    );
    // A check by a load balancer that only connects.
    drop(TcpStream::connect(gateway.address()).expect("a connection"));
    gateway.wait_for_metric("tidegate_connections_failed_total{reason=\"closed\"}", 1);
}

#[test]
fn only_listed_peers_send_a_header() {
    let upstream = Upstream::hello();
    let gateway = start(
        "
        listen: [{address: '127.0.0.1:0', proxy_protocol: {from: [192.0.2.0/24]}}]
        upstreams: {origin: {targets: [{target}]}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        &upstream,
    );
    let mut client = Client::connect(gateway.address());
    client.send("PROXY TCP4 192.0.2.5 192.0.2.1 5005 443\r\nGET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.read_response().status, 400, "no request begins so");
    let refused = Client::connect(gateway.address()).send(v2_ipv4(b"")).read_response();
    assert_eq!(refused.status, 400);
    assert_eq!(upstream.request_count(), 0);
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.get("/a", "").status, 200);
    assert_eq!(forwarded_for(&upstream), "127.0.0.1");
}

#[test]
fn a_peer_on_a_listener_for_both_families_is_listed_by_its_ipv4_address() {
    let upstream = Upstream::hello();
    let gateway = start(
        "
        listen: [{address: '[::]:0', proxy_protocol: {from: [127.0.0.0/8]}}]
        upstreams: {origin: {targets: [{target}]}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        &upstream,
    );
    let address = SocketAddr::from(([127, 0, 0, 1], gateway.address().port()));
    let mut client = Client::connect(address);
    client.send(v2_ipv4(b""));
    assert_eq!(client.get("/a", "").status, 200);
    assert_eq!(forwarded_for(&upstream), "192.0.2.7");
}

#[test]
fn a_header_precedes_tls() {
    let upstream = Upstream::hello();
    let directory = tempfile::tempdir().expect("a directory");
    let authority = Authority::new("tests");
    authority.issue(&["gateway.test"]).write(directory.path(), "a");
    let files = directory.path().display().to_string();
    let gateway = Gateway::start(&fill(
        "
        listen:
          - address: 127.0.0.1:0
            proxy_protocol: {from: [127.0.0.0/8]}
            tls: {certificates: [{cert: '{files}/a.pem', key: '{files}/a.key'}]}
        upstreams: {origin: {targets: [{target}]}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        [("files", files), ("target", upstream.target())],
    ));
    let config = Arc::new(authority.client(None, &["http/1.1"]));
    for header in [&b"PROXY TCP4 192.0.2.7 192.0.2.1 5005 443\r\n"[..], &v2_ipv4(b"")] {
        let mut socket = TcpStream::connect(gateway.address()).expect("a connection");
        socket.write_all(header).expect("a gateway");
        let mut client = handshake(socket, "gateway.test", &config).expect("a handshake");
        assert_eq!(client.get("/a", "").status, 200);
        assert_eq!(forwarded_for(&upstream), "192.0.2.7");
    }
    let socket = TcpStream::connect(gateway.address()).expect("a connection");
    assert!(handshake(socket, "gateway.test", &config).is_err(), "the header is missing");
    gateway.wait_for_metric("tidegate_connections_failed_total{reason=\"proxy_protocol\"}", 1);
}

#[test]
fn a_header_precedes_http2_in_clear() {
    let upstream = Upstream::hello();
    let gateway = start(
        "
        listen: [{address: '127.0.0.1:0', proxy_protocol: {from: [127.0.0.0/8]}, http2: true}]
        upstreams: {origin: {targets: [{target}]}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        &upstream,
    );
    let mut client = Client::connect(gateway.address());
    client.send(v2_ipv4(b""));
    client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    assert_eq!(client.read_exact(4).expect("a frame")[3], 4, "SETTINGS");
    let mut client = Client::connect(gateway.address());
    client.send(v2_ipv4(b""));
    assert_eq!(client.get("/a", "").status, 200, "HTTP/1 on the same listener");
}

#[test]
fn connections_with_half_a_header_are_closed_at_the_deadline() {
    let upstream = Upstream::hello();
    let yaml = fill(
        "
        http: {head_timeout: 1s}
        listen: [{address: '127.0.0.1:0', proxy_protocol: {from: [127.0.0.0/8]}}]
        upstreams: {origin: {targets: [{target}]}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        [("target", upstream.target())],
    );
    let gateway =
        Gateway::start_at(&yaml, Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000)));
    let whole = v2_ipv4(b"");
    for sent in [&b""[..], b"PROXY TCP4 192.0", &whole[..10], &whole[..20]] {
        let mut client = Client::connect(gateway.address());
        client.send(sent);
        let closed = gateway.assert_times_out(Duration::from_secs(1), || client.read_to_end());
        assert!(matches!(&closed, Ok(bytes) if bytes.is_empty()), "{closed:?}");
    }
    gateway.wait_for_metric("tidegate_connections_failed_total{reason=\"timeout\"}", 4);
}

#[test]
fn connections_are_bounded_by_the_address_in_the_header() {
    let upstream = Upstream::hello();
    let gateway = start(
        "
        http: {max_connections_per_client: 2}
        listen: [{address: '127.0.0.1:0', proxy_protocol: {from: [127.0.0.0/8]}}]
        upstreams: {origin: {targets: [{target}]}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        &upstream,
    );
    let connect = |client: &str| {
        let mut connection = Client::connect(gateway.address());
        connection.send(format!("PROXY TCP4 {client} 192.0.2.1 5005 443\r\n"));
        connection
    };
    let mut open = Vec::new();
    for client in ["192.0.2.5", "192.0.2.6", "192.0.2.5", "192.0.2.6", "192.0.2.7"] {
        let mut connection = connect(client);
        assert_eq!(connection.get("/a", "").status, 200, "{client}");
        open.push(connection);
    }
    for client in ["192.0.2.5", "192.0.2.6"] {
        assert!(connect(client).is_closed_or_reset(), "{client}");
    }
    gateway.wait_for_metric("tidegate_connections_refused_total", 2);
    drop(open.remove(0));
    gateway.wait_for_metric("tidegate_connections ", 4);
    assert_eq!(connect("192.0.2.5").get("/a", "").status, 200, "one has closed");
    // Connections of the load balancer itself are not bounded.
    let mut checks = Vec::new();
    for _ in 0..4 {
        let mut check = Client::connect(gateway.address());
        check.send("PROXY UNKNOWN\r\n");
        assert_eq!(check.get("/a", "").status, 200);
        checks.push(check);
    }
}

#[test]
fn connections_are_bounded_before_the_handshake() {
    let certificate = Authority::new("tests").issue(&["a.test"]);
    let directory = tempfile::tempdir().expect("a directory");
    certificate.write(directory.path(), "a");
    let gateway = Gateway::start(&fill(
        "
        http: {max_connections_per_client: 2}
        listen:
          - address: 127.0.0.1:0
            proxy_protocol: {from: [127.0.0.0/8]}
            tls: {certificates: [{cert: '{files}/a.pem', key: '{files}/a.key'}]}
        upstreams: {hello: {respond: {body: hello}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
        ",
        [("files", directory.path().display())],
    ));
    // None of them begins its handshake.
    let mut open: Vec<Client> = (0..3).map(|_| Client::connect(gateway.address())).collect();
    for connection in &mut open {
        connection.send("PROXY TCP4 192.0.2.5 192.0.2.1 5005 443\r\n");
    }
    gateway.wait_for_metric("tidegate_connections_refused_total", 1);
    gateway.wait_for_metric("tidegate_connections ", 2);
}

/// The first bytes of each connection to an upstream.
type Headers = Arc<Mutex<Vec<Vec<u8>>>>;

/// An upstream that reads a PROXY protocol header of `length` bytes, or a line, and answers one
/// request after the other.
fn behind_proxy_protocol(length: Option<usize>) -> (Upstream, Headers) {
    let headers = Headers::default();
    let recorded = headers.clone();
    let upstream = Upstream::on_connection(move |socket| {
        let mut header = Vec::new();
        let mut byte = [0];
        while length.map_or(!header.ends_with(b"\n"), |length| header.len() < length) {
            match socket.read(&mut byte) {
                Ok(1) => header.push(byte[0]),
                _ => return,
            }
        }
        recorded.lock().expect("no panic").push(header);
        let mut head = Vec::new();
        while let Ok(1) = socket.read(&mut byte) {
            head.push(byte[0]);
            if head.ends_with(b"\r\n\r\n") {
                assert!(head.starts_with(b"GET /"), "{head:?}");
                head.clear();
                let response = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
                if socket.write_all(response).is_err() {
                    return;
                }
            }
        }
    });
    (upstream, headers)
}

#[test]
fn an_upstream_gets_the_client_s_address_and_each_client_its_connection() {
    for (version, length) in [("v1", None), ("v2", Some(28))] {
        let (upstream, headers) = behind_proxy_protocol(length);
        let gateway = Gateway::start(&fill(
            "
            listen: [{address: '127.0.0.1:0', proxy_protocol: {from: [127.0.0.0/8]}}]
            upstreams: {origin: {targets: [{target}], send_proxy: {version}}}
            routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
            ",
            [("target", upstream.target()), ("version", version.to_owned())],
        ));
        let mut proxied = Client::connect(gateway.address());
        proxied.send(v2_ipv4(b""));
        for _ in 0..3 {
            assert_eq!(proxied.get("/a", "").text(), "hi");
        }
        let mut direct = Client::connect(gateway.address());
        direct.send("PROXY UNKNOWN\r\n");
        assert_eq!(direct.get("/a", "").text(), "hi");
        let headers = headers.lock().expect("no panic").clone();
        assert_eq!(headers.len(), 4, "a connection for each request");
        assert_eq!(upstream.connections(), 4);
        let port = direct.socket.local_addr().expect("an address").port();
        if version == "v1" {
            let expected = "PROXY TCP4 192.0.2.7 192.0.2.1 5007 443\r\n";
            assert_eq!(String::from_utf8_lossy(&headers[0]), expected);
            let own =
                format!("PROXY TCP4 127.0.0.1 127.0.0.1 {port} {}\r\n", gateway.address().port());
            assert_eq!(String::from_utf8_lossy(&headers[3]), own);
        } else {
            assert_eq!(headers[0], v2_ipv4(b""));
            assert_eq!(headers[3][16..20], [127, 0, 0, 1]);
            assert_eq!(headers[3][24..26], port.to_be_bytes());
        }
    }
}

#[test]
fn a_header_to_an_upstream_has_one_family() {
    let (upstream, headers) = behind_proxy_protocol(None);
    let gateway = start(
        "
        listen:
          - {address: '[::]:0'}
          - {address: '[::1]:0', proxy_protocol: {from: ['::1']}}
        upstreams: {origin: {targets: [{target}], send_proxy: v1}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: origin}]
        ",
        &upstream,
    );
    let [any, ipv6] = [0, 1].map(|index| gateway.server.addresses[index].port());
    let mut client = Client::connect(SocketAddr::from(([127, 0, 0, 1], any)));
    let port = client.socket.local_addr().expect("an address").port();
    assert_eq!(client.get("/a", "").text(), "hi");
    let mut client = Client::connect(SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], ipv6)));
    client.send("PROXY TCP6 ::ffff:192.0.2.5 2001:db8::1 5005 443\r\n");
    assert_eq!(client.get("/a", "").text(), "hi");
    let headers = headers.lock().expect("no panic").clone();
    let texts: Vec<_> = headers.iter().map(|header| String::from_utf8_lossy(header)).collect();
    assert_eq!(texts[0], format!("PROXY TCP4 127.0.0.1 127.0.0.1 {port} {any}\r\n"));
    assert_eq!(texts[1], "PROXY TCP4 192.0.2.5 0.0.0.0 5005 443\r\n");
}
