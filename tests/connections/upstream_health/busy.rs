//! Servers that take one connection at a time, with a short queue: the kernel drops what exceeds
//! the queue, and the client repeats it after 1 s.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener},
    thread,
    time::Duration,
};

use socket2::{Domain, Socket, Type};
use testkit::{
    client::{Client, Response},
    gateway::Gateway,
    port::free_address,
    wait::sleep,
    yaml::fill,
};

use super::GET;

/// A server that answers one connection after the other, and closes each.
fn one_at_a_time(backlog: i32) -> SocketAddr {
    let address: SocketAddr = free_address();
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.set_reuse_address(true).expect("an option");
    socket.bind(&address.into()).expect("a free port");
    socket.listen(backlog).expect("a listener");
    let listener: TcpListener = socket.into();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut bytes = [0; 4096];
            let _ = stream.read(&mut bytes);
            sleep(Duration::from_millis(5));
            let head = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
            let _ = stream.write_all(head.as_bytes());
        }
    });
    address
}

#[test]
fn a_burst_on_a_short_queue_is_served() {
    let gateway = Gateway::start(&fill(
        "
        upstreams: {app: {targets: ['{target}']}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: app}]
        ",
        [("target", format!("http://{}", one_at_a_time(2)))],
    ));
    let address = gateway.address();
    let asks: Vec<_> = (0..20)
        .map(|_| thread::spawn(move || Client::connect(address).send(GET).read_response()))
        .collect();
    let responses: Vec<Response> =
        asks.into_iter().map(|ask| ask.join().expect("a response")).collect();
    let mut client = Client::connect(address);
    assert_eq!(client.send(GET).read_response().status, 200, "the only target stays in service");
    let statuses: Vec<u16> = responses.iter().map(|response| response.status).collect();
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    assert_eq!(gateway.metric("tidegate_upstream_ejections_total"), 0);
}
