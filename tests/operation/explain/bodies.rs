//! What `tidegate explain` shows of requests whose limits read the body.

use serde_json::Value;
use testkit::{
    client::{Client, Response},
    commands::{configuration, run},
    gateway::Gateway,
};

const RULES: &str = "
upstreams: {hello: {respond: {body: hello}}}
limits: {model: {quota: 1000, window: 10h, key: ['json:model']}}
routes:
  - {name: chat, match: {path: /chat}, upstream: hello, limits: [model], max_body: 2KiB, max_inspect: 1KiB}
";

fn send(gateway: &Gateway, lines: &str, body: &str) -> Response {
    let mut client = Client::connect(gateway.address());
    client.send(format!("POST /chat HTTP/1.1\r\nHost: api.test\r\n{lines}\r\n{body}"));
    client.read_response()
}

#[test]
fn a_body_is_decided_as_the_gateway_decides_it() {
    let (config, _directory) = configuration(RULES);
    let gateway = Gateway::start(RULES);
    let (long, late) = ("x".repeat(2_048), "x".repeat(1_024));
    let mut statuses = Vec::new();
    for (header, body) in [
        ("X-A: 1", r#"{"model":"a"}"#.to_owned()),
        ("Content-Type: application/json", r#"{"model":"a"}"#.to_owned()),
        ("Content-Type: text/plain", r#"{"model":"a"}"#.to_owned()),
        ("Content-Encoding: gzip", r#"{"model":"a"}"#.to_owned()),
        ("X-A: 1", r#"{"model":"a""#.to_owned()),
        ("X-A: 1", format!(r#"{{"model":"a","text":"{long}"}}"#)),
        ("X-A: 1", format!(r#"{{"text":"{late}","model":"a"}}"#)),
        ("X-A: 1", format!(r#"{{"model":"a","text":"{late}"}}"#)),
        ("X-A: 1", format!(r#"{{"model":"a","text":"{late}","model":"b"}}"#)),
        ("X-A: 1", format!(r#"{{"model":"a","text":"{late}","mode\l":"b"}}"#)),
        ("X-A: 1", format!(r#"{{"model":"a","text":"{late}"}} x"#)),
        ("X-A: 1", String::new()),
        ("Content-Type: text/plain", String::new()),
    ] {
        let arguments =
            ["explain", "-c", &config, "--json", "-X", "POST", "-H", header, "--body", &body];
        let explained: Value =
            serde_json::from_str(&run(&[&arguments[..], &["/chat"]].concat())).expect("JSON");
        let length = body.len();
        let sent = send(&gateway, &format!("{header}\r\nContent-Length: {length}\r\n"), &body);
        assert_eq!(explained["status"], sent.status, "{header} {body} {explained}");
        if sent.status >= 400 {
            assert_eq!(explained["reason"], sent.json()["detail"], "{header} {body}");
        }
        statuses.push(sent.status);
    }
    assert_eq!(statuses, [200, 200, 400, 415, 400, 413, 413, 200, 400, 400, 400, 200, 200]);
}

#[test]
fn an_empty_body_in_chunks_is_like_one_with_a_length() {
    let gateway = Gateway::start(RULES);
    let chunked = "Transfer-Encoding: chunked\r\n";
    assert_eq!(send(&gateway, "Content-Length: 0\r\n", "").status, 200);
    assert_eq!(send(&gateway, chunked, "0\r\n\r\n").status, 200);
    assert_eq!(send(&gateway, chunked, "1\r\n{\r\n0\r\n\r\n").status, 400);
}
