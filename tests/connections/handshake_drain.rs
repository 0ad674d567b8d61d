use std::{io::Write, net::TcpStream, sync::Arc, thread};

use rustls::{ClientConnection, StreamOwned, pki_types::ServerName};
use testkit::{client::Client, gateway::Gateway, tls::Authority};

/// The request over a handshake of which a part had arrived when the gateway was stopped.
#[test]
fn a_handshake_that_has_begun_is_finished_and_its_request_answered() {
    let directory = tempfile::tempdir().expect("a directory");
    let authority = Authority::new("tests");
    let entry = authority.issue(&["gateway.test"]).write(directory.path(), "a").entry();
    let gateway = Arc::new(Gateway::start(&format!(
        "listen: [{{address: '127.0.0.1:0', tls: {{certificates: [{{{entry}}}]}}}}]
upstreams: {{hello: {{respond: {{body: hello}}}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: hello}}]"
    )));
    let name = ServerName::try_from("gateway.test").expect("a name");
    let config = Arc::new(authority.client(None, &["http/1.1"]));
    let mut session = ClientConnection::new(config, name).expect("a session");
    let mut hello = Vec::new();
    session.write_tls(&mut hello).expect("a hello");
    let connect = || TcpStream::connect(gateway.address()).expect("a connection");
    let (mut begun, silent) = (connect(), connect());
    begun.write_all(&hello[..20]).expect("sent");
    gateway.wait_for_metric("tidegate_connections", 2);
    let stopping = thread::spawn({
        let gateway = Arc::clone(&gateway);
        move || gateway.stop()
    });
    // The worker closes idle connections now.
    assert!(Client::over(silent).is_closed());
    begun.write_all(&hello[20..]).expect("sent");
    while session.is_handshaking() {
        session.complete_io(&mut begun).expect("a handshake");
    }
    let mut client = Client::over(StreamOwned::new(session, begun));
    let response = client.get("/", "");
    assert_eq!((response.status, response.header("connection")), (200, Some("close")));
    stopping.join().expect("it stops");
}
