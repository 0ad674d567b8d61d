//! Logins that belong to a connection: no other client may get the connection.

use std::io::{Read, Write};

use testkit::{
    client::get, gateway::Gateway, protocol::on_every_protocol, upstream::Upstream, yaml::fill,
};

/// A server that takes every request on a connection for the one who has logged in on it.
fn server(scheme: &'static str) -> Upstream {
    Upstream::on_connection(move |socket| {
        let (mut is_known, mut bytes) = (false, Vec::new());
        loop {
            let mut piece = [0; 4096];
            let Ok(count @ 1..) = socket.read(&mut piece) else { return };
            bytes.extend_from_slice(&piece[..count]);
            if !bytes.ends_with(b"\r\n\r\n") {
                continue;
            }
            let head = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
            is_known |= head.contains(&format!("authorization: {} ", scheme.to_ascii_lowercase()));
            let challenge = format!("WWW-Authenticate: Basic realm=\"a\", {scheme}\r\n");
            let (status, challenge) = if is_known { (200, "") } else { (401, &*challenge) };
            let response = format!("HTTP/1.1 {status} X\r\n{challenge}Content-Length: 0\r\n\r\n");
            if socket.write_all(response.as_bytes()).is_err() {
                return;
            }
            bytes.clear();
        }
    })
}

#[test]
fn a_login_of_a_connection_is_not_shared() {
    for scheme in ["NTLM", "Negotiate", "negotiate", "Nego2", "Kerberos", "CredSSP"] {
        let server = server(scheme);
        let gateway = Gateway::for_every_protocol(&fill(
            "
            workers: 1
            upstreams: {app: {targets: ['{target}']}}
            routes: [{name: all, match: {path: '/{*rest}'}, upstream: app}]
            ",
            [("target", server.target())],
        ));
        on_every_protocol(|protocol| {
            let login = format!("Authorization: {scheme} YIIg\r\n");
            assert_eq!(protocol.get(&gateway, "/", &login).status, 200);
            for _ in 0..3 {
                assert_eq!(protocol.get(&gateway, "/", "").status, 401, "{scheme} of another");
            }
        });
    }
}

/// The server says that a login lasts, whatever its scheme.
#[test]
fn a_connection_with_a_login_that_lasts_is_not_shared() {
    let server = Upstream::with_response(
        "HTTP/1.1 200 X\r\nPersistent-Auth: true\r\nContent-Length: 0\r\n\r\n",
    );
    let gateway = Gateway::start(&fill(
        "
        workers: 1
        upstreams: {app: {targets: ['{target}']}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: app}]
        ",
        [("target", server.target())],
    ));
    for requests in 1..4 {
        assert_eq!(get(gateway.address(), "/", "").status, 200);
        assert_eq!(server.connections(), requests);
    }
}

#[test]
fn other_logins_keep_their_connection() {
    let server = Upstream::with_response(
        "HTTP/1.1 401 X\r\nWWW-Authenticate: Basic realm=\"NTLM\"\r\nContent-Length: 0\r\n\r\n",
    );
    let gateway = Gateway::for_every_protocol(&fill(
        "
        workers: 1
        upstreams: {app: {targets: ['{target}']}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: app}]
        ",
        [("target", server.target())],
    ));
    on_every_protocol(|protocol| {
        let login = "Authorization: Basic bnRsbTph\r\n";
        assert_eq!(protocol.get(&gateway, "/", login).status, 401);
    });
    assert_eq!(server.connections(), 1);
}

/// A rule may write the login, and a client may send it as one of several.
#[test]
fn every_way_to_send_such_a_login_is_found() {
    let server = server("NTLM");
    let gateway = Gateway::start(&fill(
        "
        workers: 1
        client: {token: []}
        upstreams: {app: {targets: ['{target}']}}
        routes:
          - name: all
            match: {path: '/{*rest}'}
            upstream: app
            headers: {request: {set: {authorization: '{header.x-login}'}}}
          - {name: plain, match: {path: /plain}, upstream: app}
        ",
        [("target", server.target())],
    ));
    for (path, login) in [
        ("/a", "X-Login: NTLM YIIg\r\n"),
        ("/plain", "Authorization: Basic YTpi\r\nAuthorization: NTLM YIIg\r\n"),
    ] {
        assert_eq!(get(gateway.address(), path, login).status, 200, "{login}");
        assert_eq!(get(gateway.address(), "/plain", "").status, 401, "after {login}");
    }
}

/// The connection to a service that decides is no different.
#[test]
fn a_login_at_a_service_is_not_shared() {
    let (service, upstream) = (server("Negotiate"), Upstream::hello());
    let gateway = Gateway::start(&fill(
        "
        workers: 1
        auth: {sso: {forward: {to: '{service}/', request_headers: [authorization, cookie]}}}
        upstreams: {app: {targets: ['{target}']}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: app, auth: [sso]}]
        ",
        [("target", upstream.target()), ("service", service.target())],
    ));
    let login = "Authorization: Negotiate YIIg\r\n";
    assert_eq!(get(gateway.address(), "/", login).status, 200);
    for _ in 0..3 {
        assert_eq!(get(gateway.address(), "/", "Cookie: a=b\r\n").status, 401);
    }
}
