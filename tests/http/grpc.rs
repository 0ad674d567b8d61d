//! gRPC with peers of another make: grpcio's client and server, with HTTP/2 in clear on both sides.
//! The scripts are in `tests/grpc`.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};
use testkit::{
    client::{Response, get},
    gateway::Gateway,
    http2_client::Http2Client,
    interpreters,
    tls::Authority,
    upstream::Upstream,
    yaml::fill,
};

use testkit::log_lines::read_lines;

/// A command that runs a script of `tests/grpc`.
fn script(name: &str) -> Command {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/grpc");
    let mut command = interpreters::python();
    command.arg(name).current_dir(directory);
    command
}

/// A gRPC server. It ends when its standard input does.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start() -> Self {
        Self::start_with(&[])
    }

    /// With the files of a certificate and its key it serves over TLS.
    fn start_with(files: &[&Path]) -> Self {
        let mut command = script("server.py");
        command.args(files);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a server");
        let mut line = String::new();
        let output = child.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut line).expect("the server's port");
        let port: u16 = line.trim().parse().expect("a port");
        Self { child, address: ([127, 0, 0, 1], port).into() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A gateway for HTTP/2 in clear before `server`.
fn start(yaml: &str, server: &Server) -> Gateway {
    Gateway::start(&fill(yaml, [("server", server.address)]))
}

/// What grpcio's client sees of the calls of one case.
fn call(gateway: &Gateway, case: &str) -> Value {
    call_with(gateway, case, &[])
}

/// As [`call`]; with the authorities' file and the name of a certificate over TLS.
fn call_with(gateway: &Gateway, case: &str, tls: &[&str]) -> Value {
    let mut command = script("client.py");
    command.arg(gateway.address().to_string()).arg(case).args(tls);
    let output = command.output().expect("a client");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{case}: {errors}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Runs a case through a gateway without limits.
fn run(case: &str) -> Value {
    let server = Server::start();
    let gateway = start(
        "
        listen: [{address: '127.0.0.1:0', http2: true}]
        upstreams: {grpc: {targets: ['http://{server}'], protocol: http2}}
        routes:
          - name: test
            match: {path: '/tidegate.Test/{method}', methods: [POST]}
            upstream: grpc
        ",
        &server,
    );
    call(&gateway, case)
}

#[test]
fn grpc_unary_calls_keep_metadata_and_trailers() {
    let seen = run("unary");
    let expected = |reply: &str, received: &str| {
        let trailing = json!({
            "x-trailing": "last", "x-binary-bin": "\u{0}\u{ff}", "x-received": received,
        });
        (json!([reply]), json!("OK"), trailing)
    };
    for (name, expected) in
        [("small", expected("hello", "by the client")), ("empty", expected("", ""))]
    {
        let call = &seen[name];
        assert_eq!(
            (&call["replies"], &call["code"], &call["initial"]["x-initial"]),
            (&expected.0, &expected.1, &json!("first")),
            "{call}"
        );
        assert_eq!(call["trailing"], expected.2, "{call}");
    }
    assert_eq!(seen["large_is_equal"], true);
}

#[test]
fn grpc_streams_work_in_each_direction() {
    let seen = run("streams");
    let numbers: Vec<String> = (0..100).map(|number: u32| number.to_string()).collect();
    for (name, replies) in [
        ("count", json!(numbers)),
        ("none", json!([])),
        ("join", json!([numbers.join(",")])),
        ("join_none", json!([""])),
    ] {
        let call = &seen[name];
        assert_eq!((&call["code"], &call["replies"]), (&json!("OK"), &replies), "{name}");
    }
}

#[test]
fn grpc_messages_of_both_directions_are_forwarded_as_they_arrive() {
    let seen = run("chat");
    let replies: Vec<String> = (0..50).map(|number| format!("re: {number}")).collect();
    assert_eq!((&seen["code"], &seen["replies"]), (&json!("OK"), &json!(replies)));
}

#[test]
fn grpc_works_over_tls_on_both_sides() {
    let directory = tempfile::tempdir().expect("a directory");
    let authority = Authority::new("grpc");
    let roots = authority.write(directory.path(), "roots.pem");
    authority.issue(&["gateway.test"]).write(directory.path(), "gateway");
    let its = authority.issue(&["server.test"]).write(directory.path(), "server");
    let server = Server::start_with(&[&its.cert, &its.key]);
    let gateway = Gateway::start(&fill(
        "
        listen:
          - address: 127.0.0.1:0
            tls: {certificates: [{cert: '{files}/gateway.pem', key: '{files}/gateway.key'}]}
        upstreams:
          grpc:
            targets: ['https://{server}']
            protocol: auto
            tls: {ca: '{files}/roots.pem', name: server.test}
        routes:
          - name: test
            match: {path: '/tidegate.Test/{method}', methods: [POST]}
            upstream: grpc
        ",
        [("files", directory.path().display().to_string()), ("server", server.address.to_string())],
    ));
    let tls = [roots.to_str().expect("a path"), "gateway.test"];
    let replies: Vec<String> = (0..50).map(|number| format!("re: {number}")).collect();
    let seen = call_with(&gateway, "chat", &tls);
    assert_eq!((&seen["code"], &seen["replies"]), (&json!("OK"), &json!(replies)));
    let seen = call_with(&gateway, "unary", &tls);
    assert_eq!((&seen["small"]["code"], &seen["large_is_equal"]), (&json!("OK"), &json!(true)));
    let seen = call_with(&gateway, "cancel", &tls);
    assert_eq!(seen["server"], json!([1, 1, -1]));
}

#[test]
fn grpc_failures_of_the_server_are_forwarded() {
    let seen = run("failures");
    for (name, code, details, replies) in [
        ("trailers_only", "FAILED_PRECONDITION", "not ready: 100% \u{e9}", json!([])),
        ("late", "DATA_LOSS", "lost", json!(["one"])),
        ("unknown_method", "UNIMPLEMENTED", "Method not found!", json!([])),
    ] {
        let call = &seen[name];
        assert_eq!((&call["code"], &call["details"]), (&json!(code), &json!(details)), "{name}");
        assert_eq!(call["replies"], replies, "{name}");
    }
    let metadata = &seen["trailers_only"]["trailing"];
    assert_eq!(metadata["x-reason"], "test");
    assert!(metadata["content-length"].is_null(), "{metadata}");
}

#[test]
fn grpc_deadlines_reach_the_server() {
    let seen = run("deadline");
    assert_eq!(seen["code"], "DEADLINE_EXCEEDED");
    let server: Vec<i64> =
        seen["server"].as_array().expect("numbers").iter().filter_map(Value::as_i64).collect();
    assert_eq!(server[..2], [1, 1], "begun, ended");
    assert!((0..=2000).contains(&server[2]), "{server:?}: the deadline is not the client's");
}

#[test]
fn grpc_cancellations_reach_the_server() {
    let seen = run("cancel");
    assert_eq!(seen["code"], "CANCELLED");
    assert_eq!(seen["server"], json!([1, 1, -1]));
}

#[test]
fn grpc_streams_that_the_gateway_cuts_off_do_not_succeed() {
    let server = Server::start();
    let gateway = start(
        "
        listen: [{address: '127.0.0.1:0', http2: true}]
        upstreams: {grpc: {targets: ['http://{server}'], protocol: http2}}
        routes:
          - name: stall
            match: {path: /tidegate.Test/Stall}
            upstream: grpc
            response_idle_timeout: 300ms
          - name: test
            match: {path: '/tidegate.Test/{method}', methods: [POST]}
            upstream: grpc
        ",
        &server,
    );
    let seen = call(&gateway, "cut_off");
    assert_eq!(
        (&seen["stalled"]["code"], &seen["stalled"]["replies"]),
        (&json!("CANCELLED"), &json!(["one"]))
    );
    assert_eq!((&seen["crashed"]["code"], &seen["replies"]), (&json!("INTERNAL"), &json!(1)));
}

#[test]
fn grpc_refusals_of_limits_are_resource_exhausted_with_metadata() {
    let server = Server::start();
    let gateway = start(
        "
        listen: [{address: '127.0.0.1:0', http2: true}]
        upstreams: {grpc: {targets: ['http://{server}'], protocol: http2}}
        limits: {per-caller: {quota: 2, window: 1h, key: [client_ip]}}
        routes:
          - name: test
            match: {path: '/tidegate.Test/{method}', methods: [POST]}
            upstream: grpc
            limits: [per-caller]
        ",
        &server,
    );
    let seen = call(&gateway, "calls");
    for (index, remaining) in ["1", "0"].iter().enumerate() {
        assert_eq!(seen[index]["code"], "OK", "{seen}");
        assert_eq!(&seen[index]["initial"]["x-ratelimit-remaining"], remaining, "{seen}");
    }
    let refused = &seen[2];
    assert_eq!((&refused["code"], &refused["replies"]), (&json!("RESOURCE_EXHAUSTED"), &json!([])));
    let metadata = &refused["trailing"];
    for (name, value) in [
        ("x-ratelimit-limit", "2"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-resource", "per-caller"),
    ] {
        assert_eq!(metadata[name], value, "{refused}");
    }
    let wait: u64 = metadata["retry-after"].as_str().and_then(|text| text.parse().ok()).unwrap();
    assert!(wait > 0, "{refused}");
    assert_eq!(refused["details"], format!("per-caller exceeded; retry in {wait} s"));
    assert!(metadata["x-request-id"].is_string(), "{refused}");
    assert!(metadata["content-length"].is_null(), "{refused}");
    gateway.wait_for_metric("tidegate_requests_total{route=\"test\",status=\"4xx\"}", 1);
    gateway.wait_for_metric("tidegate_requests_by_protocol_total{protocol=\"HTTP/2\"}", 3);
}

#[test]
fn grpc_failures_of_the_gateway_have_a_grpc_status() {
    let server = Server::start();
    let gateway = start(
        "
        listen: [{address: '127.0.0.1:0', http2: true}]
        upstreams:
          grpc: {targets: ['http://{server}'], protocol: http2}
          lost: {targets: ['http://127.0.0.1:1'], protocol: http2}
        routes:
          - {name: lost, match: {path: '/tidegate.Lost/{method}'}, upstream: lost}
          - {name: slow, match: {path: /tidegate.Test/Hang}, upstream: grpc, request_timeout: 300ms}
          - {name: small, match: {path: /tidegate.Test/Unary}, upstream: grpc, max_body: 1KiB}
        ",
        &server,
    );
    let seen = call(&gateway, "gateway_failures");
    for (name, code, details) in [
        ("lost", "UNAVAILABLE", "the upstream cannot be reached"),
        ("slow", "DEADLINE_EXCEEDED", "the upstream did not answer within request_timeout: 300ms"),
        ("large", "RESOURCE_EXHAUSTED", "the request's body is longer than 1024 bytes"),
        ("nowhere", "UNIMPLEMENTED", "no route matches this host and path"),
    ] {
        let call = &seen[name];
        assert_eq!(call["code"], code, "{name}: {call}");
        let text = call["details"].as_str().expect("a text");
        assert!(text.starts_with(details), "{name}: {text}");
    }
}

fn post(gateway: &Gateway, path: &str, content_type: &str) -> Response {
    let content_type = format!("Content-Type: {content_type}\r\n");
    Http2Client::connect(gateway.address()).ask("POST", path, &content_type, b"")
}

#[test]
fn grpc_refusals_are_logged_with_their_http_status() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("access.log");
    let gateway = Gateway::start(&fill(
        "
        listen: [{address: '127.0.0.1:0', http2: true}]
        access_log: '{file}'
        workers: 1
        upstreams: {origin: {targets: [{target}]}}
        limits: {none-left: {quota: 1, window: 1h, key: [client_ip]}}
        routes: [{name: all, match: {path: '/a/{rest}'}, upstream: origin, limits: [none-left]}]
        ",
        [("file", file.display().to_string()), ("target", Upstream::hello().target())],
    ));
    assert_eq!(post(&gateway, "/a/B", "application/json").status, 200);
    let refused = post(&gateway, "/a/B", "application/grpc+proto");
    assert_eq!((refused.status, refused.text().as_str()), (200, ""));
    for (name, value) in
        [("content-type", "application/grpc"), ("grpc-status", "8"), ("x-ratelimit-remaining", "0")]
    {
        assert_eq!(refused.header(name), Some(value), "{name}");
    }
    assert!(refused.header("grpc-message").is_some_and(|text| text.starts_with("none-left ")));
    assert!(refused.number("retry-after") > 0);
    let web = post(&gateway, "/a/B", "application/grpc-web+proto");
    assert_eq!(
        (web.status, web.header("grpc-status")),
        (429, None),
        "gRPC-Web reads HTTP's status"
    );
    let http1 = get(gateway.address(), "/a/B", "Content-Type: application/grpc\r\n");
    assert_eq!((http1.status, http1.header("grpc-status")), (429, None), "gRPC needs HTTP/2");
    let lines = read_lines(&file, 4);
    let logged: Vec<_> = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"))
        .map(|line| (line["status"].clone(), line["limit"].clone(), line["protocol"].clone()))
        .collect();
    let expected =
        |status: u16, limit: &str, protocol: &str| (json!(status), json!(limit), json!(protocol));
    assert_eq!(
        logged,
        [
            expected(200, "admitted", "HTTP/2"),
            expected(429, "refused", "HTTP/2"),
            expected(429, "refused", "HTTP/2"),
            expected(429, "refused", "HTTP/1.1"),
        ]
    );
}
