//! OpenSSL's client: the results of handshakes, and refusals.

use std::{io::Write, process::Stdio};

use crate::{
    edge::{Edge, Listener, NAME, PARTNERS},
    tools::{Output, client, run_with},
};

/// The gateway closes the connection after the response, which ends the client.
const REQUEST: &str = "GET /a HTTP/1.0\r\nHost: a.test\r\n\r\n";

/// The end of the answer's head, and its body.
const BODY: &str = "\r\n\r\nhello";

const RULES: &str = "
upstreams: {hello: {respond: {body: hello}}}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
";

/// Connects, and sends a request if `input` has one.
fn s_client(edge: &Edge, arguments: &[&str], input: &str) -> Output {
    let mut command = client("openssl", "openssl");
    let address = format!("127.0.0.1:{}", edge.port(Listener::Tls));
    command.args(["s_client", "-connect", &address, "-CAfile"]).arg(&edge.files.ca);
    run_with(command.args(["-verify_return_error", "-ign_eof"]).args(arguments), input)
}

#[test]
fn openssl_verifies_the_chain_and_the_name() {
    let edge = Edge::start(RULES);
    for version in ["-tls1_2", "-tls1_3"] {
        let arguments = ["-servername", NAME, "-verify_hostname", NAME, version];
        let output = s_client(&edge, &arguments, REQUEST).succeeded(version);
        assert!(output.out.contains("Verify return code: 0 (ok)"), "{}", output.out);
        assert!(output.out.contains(BODY), "{}", output.out);
    }
    let other = s_client(&edge, &["-servername", NAME, "-verify_hostname", "b.test"], REQUEST);
    assert_ne!(other.code, Some(0));
    assert!(other.text().contains("hostname mismatch"), "{}", other.text());
}

#[test]
fn openssl_gets_the_first_common_protocol() {
    let edge = Edge::start(RULES);
    for (offered, chosen) in [
        ("h2,http/1.1", "ALPN protocol: h2"),
        ("http/1.1,h2", "ALPN protocol: h2"),
        ("http/1.1", "ALPN protocol: http/1.1"),
        ("spdy/3,http/1.1", "ALPN protocol: http/1.1"),
    ] {
        let output = s_client(&edge, &["-servername", NAME, "-alpn", offered], REQUEST);
        assert!(output.out.contains(chosen), "{offered}: {}", output.text());
    }
    let output = s_client(&edge, &["-servername", NAME], REQUEST).succeeded("no ALPN");
    assert!(output.out.contains("No ALPN negotiated") && output.out.contains(BODY));
    let refused = s_client(&edge, &["-servername", NAME, "-alpn", "spdy/3"], REQUEST);
    assert!(refused.text().contains("no application protocol"), "{}", refused.text());
}

#[test]
fn openssl_gets_the_certificate_of_its_name() {
    let edge = Edge::start(RULES);
    let pem = |name: &str| {
        let pem = std::fs::read_to_string(edge.files.path(name)).expect("a certificate");
        pem.replace("\r\n", "\n")
    };
    let (own, partners) = (pem("own.pem"), pem("partners.pem"));
    for (name, expected) in
        [(NAME, &own), ("A.TEST", &own), ("unknown.test", &own), (PARTNERS, &partners)]
    {
        let output = s_client(&edge, &["-servername", name], REQUEST);
        assert!(output.out.contains(expected.trim_end()), "{name}: {}", output.text());
    }
    let output = s_client(&edge, &["-noservername"], REQUEST);
    assert!(output.out.contains(own.trim_end()), "{}", output.text());
}

#[test]
fn openssl_resumes_sessions_except_with_client_certificates() {
    let edge = Edge::start(RULES);
    let partner = edge.files.issue("partner", &["partner"]);
    let [cert, key] = [&partner.cert, &partner.key].map(|path| path.to_str().expect("a path"));
    for version in ["-tls1_2", "-tls1_3"] {
        let file = edge.files.path(version);
        let session = file.to_str().expect("a path");
        let with = |arguments: &[&str]| {
            s_client(&edge, &[&[version], arguments].concat(), REQUEST).succeeded(version).out
        };
        let first = with(&["-servername", NAME, "-sess_out", session]);
        assert!(first.contains("New, TLSv1"), "{first}");
        for _ in 0..4 {
            // Any worker resumes the session.
            let again = with(&["-servername", NAME, "-sess_in", session]);
            assert!(again.contains("Reused, TLSv1") && again.contains(BODY), "{again}");
        }
        let file = edge.files.path(&format!("partners{version}"));
        let session = file.to_str().expect("a path");
        let identity = ["-servername", PARTNERS, "-cert", cert, "-key", key];
        let first = with(&[&identity[..], &["-sess_out", session]].concat());
        assert!(first.contains("New, TLSv1"), "{first}");
        let resumed = if file.exists() {
            with(&[&identity[..], &["-sess_in", session]].concat())
        } else {
            // No session was given to it. It reconnects five times by itself.
            with(&[&identity[..], &["-reconnect"]].concat())
        };
        assert!(resumed.contains("New, TLSv1") && !resumed.contains("Reused,"), "{resumed}");
    }
}

#[test]
fn openssl_is_refused_with_old_versions() {
    let edge = Edge::start(RULES);
    for version in ["-tls1", "-tls1_1"] {
        // Makes the client itself allow it.
        let arguments = ["-servername", NAME, version, "-cipher", "ALL:@SECLEVEL=0"];
        let refused = s_client(&edge, &arguments, REQUEST);
        assert_ne!(refused.code, Some(0), "{version}");
        assert!(refused.text().contains("SSL alert number"), "{}", refused.text());
    }
    edge.gateway.wait_for_metric("tidegate_connections_failed_total{reason=\"tls\"}", 2);
}

#[test]
fn openssl_is_refused_a_renegotiation_at_once() {
    // Nothing else is sent that would take the alert along.
    let edge = Edge::start(&format!("http: {{head_timeout: off, idle_timeout: off}}{RULES}"));
    let mut command = client("openssl", "openssl");
    let address = format!("127.0.0.1:{}", edge.port(Listener::Tls));
    command.args(["s_client", "-connect", &address, "-tls1_2", "-servername", NAME]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    // It stays open: the end of its input would end the client.
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(b"R\n").expect("it reads");
    let output = child.wait_with_output().expect("our own child");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("no renegotiation"), "{errors}");
}
