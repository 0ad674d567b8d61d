//! Targets that take long to connect to, beside others.

use std::{
    io,
    net::{SocketAddr, TcpStream},
    thread,
    time::Duration,
};

use testkit::{
    client::Client,
    gateway::Gateway,
    tls::{Authority, TlsUpstream},
    upstream::Upstream,
    wait::sleep,
    yaml::fill,
};

use super::GET;
use crate::connection::deadlines::start_unreachable;

/// A front of the server at `address` that passes nothing on for `delay`, so that handshakes take
/// that long.
fn delayed(address: SocketAddr, delay: Duration) -> Upstream {
    Upstream::on_connection(move |client| {
        sleep(delay);
        let mut server = TcpStream::connect(address).expect("a server");
        let (mut from, mut to) =
            (server.try_clone().expect("a socket"), client.try_clone().expect("a socket"));
        thread::spawn(move || io::copy(&mut from, &mut to));
        let _ = io::copy(client, &mut server);
    })
}

/// Every target needs 1.5 s, as distant servers with TLS do, and the configuration allows it.
#[test]
fn a_connect_may_take_its_whole_timeout_beside_other_targets() {
    let files = tempfile::tempdir().expect("a directory");
    let authority = Authority::new("ca");
    let ca = authority.write(files.path(), "ca.pem");
    let server = TlsUpstream::hello(authority.issue(&["app.test"]).server());
    let targets = [0, 1].map(|_| delayed(server.address, Duration::from_millis(1_500)));
    let gateway = Gateway::start(&fill(
        "
        upstreams:
          app:
            targets: ['https://{first}', 'https://{second}']
            tls: {ca: '{ca}', name: app.test}
            connect_timeout: 5s
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: app}]
        ",
        [
            ("first", targets[0].target().trim_start_matches("http://")),
            ("second", targets[1].target().trim_start_matches("http://")),
            ("ca", &ca.display().to_string()),
        ],
    ));
    let address = gateway.address();
    let asks: Vec<_> = (0..8)
        .map(|_| thread::spawn(move || Client::connect(address).send(GET).read_response().status))
        .collect();
    let statuses: Vec<u16> = asks.into_iter().map(|ask| ask.join().expect("a response")).collect();
    assert_eq!(statuses, [200; 8]);
    assert_eq!(gateway.metric("tidegate_upstream_ejections_total"), 0);
}

/// A target that accepts nothing is left after 1 s, although its own connect may take longer.
#[test]
fn another_target_joins_after_a_second() {
    let (unreachable, _sockets) = start_unreachable();
    let good = Upstream::hello();
    let gateway = Gateway::start(&fill(
        "
        workers: 1
        upstreams:
          app:
            targets: ['{bad}', '{good}']
            connect_timeout: 1m
            max_requests: 1
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: app}]
        ",
        [("bad", unreachable.as_str()), ("good", &good.target())],
    ));
    for _ in 0..20 {
        assert_eq!(Client::connect(gateway.address()).send(GET).read_response().status, 200);
    }
    assert_eq!(good.request_count(), 20);
    assert_eq!(gateway.metric("tidegate_upstream_retries_total"), 1, "only the first one waits");
}
