use std::collections::BTreeMap;

use prost::Message;
use testkit::{
    client::{Client, Response},
    gateway::Gateway,
    protocol::{HTTP2, Protocol, on_protocols},
    yaml::fill,
};
use tidegate::{
    auth::KeyHash,
    ext_authz::{
        CHECK,
        messages::{
            CheckAddress, CheckAttributes, CheckHeaderOption, CheckPeer, CheckRequest,
            CheckResponse, CheckSocketAddress, CheckVerdict, CheckedHttpRequest, CheckedPart,
        },
    },
    grpc::{decode_message, frame_message},
};

/// The door for checks, and one that is like it but for its method.
const DOORS: &str = "
client: {trusted_proxies: [127.0.0.1/32]}
auth: {keys: {api_key: {}}}
consumers: {entries: [{name: acme, keys: [{sha256: {acme}}]}]}
limits:
  each: {quota: 2, window: 1h, key: [client_ip, host, method, path, 'query:k', 'header:x-team']}
  few: {quota: 1, window: 1h, key: [consumer]}
routes:
  - {name: writes, match: {path: {check}, methods: [PUT]}, limits: [each], decide: {}}
  - {name: reads, match: {path: {check}, methods: [GET]}, auth: [keys], limits: [few], decide: {refuse_status: 403}}
";

fn start() -> Gateway {
    let acme = KeyHash::of(b"key of acme").to_string();
    Gateway::for_every_protocol(&fill(DOORS, [("acme", &*acme), ("check", CHECK)]))
}

/// A check about a request of a client at this address.
fn check(method: &str, path: &str, client: &str, fields: &[(&str, &str)]) -> CheckRequest {
    let headers = fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let http = CheckedHttpRequest {
        method: method.to_owned(),
        path: path.to_owned(),
        host: "api.test".to_owned(),
        scheme: "https".to_owned(),
        headers: headers.collect::<BTreeMap<_, _>>(),
        header_map: None,
    };
    let socket_address = Some(CheckSocketAddress { address: client.to_owned() });
    let source = Some(CheckPeer { address: Some(CheckAddress { socket_address }) });
    let request = Some(CheckedPart { http: Some(http) });
    CheckRequest { attributes: Some(CheckAttributes { source, request }) }
}

const CALL: &str = "Content-Type: application/grpc\r\nTE: trailers\r\n";

fn call(protocol: Protocol, gateway: &Gateway, message: &[u8]) -> Response {
    protocol.connect(gateway).ask("POST", CHECK, CALL, frame_message(message))
}

/// The status for Envoy, and its fields: of an admission those for the client, of a refusal all.
fn answer(response: &Response) -> (i32, BTreeMap<String, String>, String) {
    assert_eq!(response.status, 200, "{}", response.head);
    assert_eq!(response.header("content-type"), Some("application/grpc"));
    let message = decode_message(&response.body).expect("one message");
    let response = CheckResponse::decode(message).expect("a response");
    let fields = |options: &[CheckHeaderOption]| {
        let headers = options.iter().filter_map(|option| option.header.clone());
        headers.map(|header| (header.key, header.value)).collect::<BTreeMap<_, _>>()
    };
    let code = response.status.expect("a status").code;
    match response.verdict.expect("a verdict") {
        CheckVerdict::Ok(admitted) => {
            assert_eq!(code, 0);
            let mut all = fields(&admitted.headers);
            all.extend(fields(&admitted.response_headers_to_add));
            (200, all, admitted.headers_to_remove.join(" "))
        }
        CheckVerdict::Denied(denied) => {
            assert_ne!(code, 0);
            (denied.status.expect("a status").code, fields(&denied.headers), denied.body)
        }
    }
}

#[test]
fn a_check_is_decided_as_the_request_in_it() {
    on_protocols(&HTTP2, |protocol| {
        let gateway = start();
        let ask = |check: &CheckRequest| answer(&call(protocol, &gateway, &check.encode_to_vec()));
        let fields = [("x-team", "a"), (":path", "/other"), ("x-forwarded-for", "192.0.2.9")];
        let base = check("PUT", "/items/7?k=1", "192.0.2.1", &fields);
        for left in ["1", "0"] {
            let (status, fields, removed) = ask(&base);
            assert_eq!((status, &*fields["x-ratelimit-remaining"]), (200, left), "{protocol:?}");
            assert_eq!(removed, "x-consumer-name x-consumer-plan");
        }
        let (status, fields, body) = ask(&base);
        assert_eq!((status, &*fields["x-ratelimit-remaining"]), (429, "0"));
        assert!(fields["retry-after"].parse::<u64>().is_ok_and(|seconds| seconds <= 4200));
        assert!(body.contains("\"violated-policies\":[\"each\"]"), "{body}");
        for other in [
            check("PUT", "/items/7?k=1", "192.0.2.2", &[("x-team", "a")]),
            check("PUT", "/items/7?k=2", "192.0.2.1", &[("x-team", "a")]),
            check("PUT", "/items/8?k=1", "192.0.2.1", &[("x-team", "a")]),
            check("PUT", "/items/7?k=1", "192.0.2.1", &[("x-team", "b")]),
        ] {
            assert_eq!(ask(&other).1["x-ratelimit-remaining"], "1");
        }
        // A spelling, and an address that the client has invented, are the same caller.
        let spelled = check(
            "PUT",
            "/x/..//%69tems/7?k=%31",
            "192.0.2.1",
            &[("x-team", "a"), ("x-forwarded-for", "192.0.2.77, 192.0.2.78")],
        );
        assert_eq!(ask(&spelled).0, 429);
        assert_eq!(ask(&check("DELETE", "/x", "192.0.2.1", &[])).0, 405);
        assert_eq!(ask(&check("PUT", "/../x", "192.0.2.1", &[])).0, 400);
        assert_eq!(ask(&check("get", "/x", "192.0.2.1", &[])).0, 400);
        assert_eq!(ask(&CheckRequest::default()).0, 400);
    });
}

#[test]
fn a_check_is_bounded_as_the_head_of_the_request_in_it() {
    let gateway = start();
    let ask = |path: &str, fields: &[(&str, &str)]| {
        let check = check("PUT", path, "192.0.2.1", fields).encode_to_vec();
        answer(&call(Protocol::Http2, &gateway, &check))
    };
    let (long, huge) = ("x".repeat(20_000), "x".repeat(70_000));
    assert_eq!(ask(&format!("/{long}"), &[]).0, 200);
    assert_eq!(ask("/x", &[("x-a", &long)]).0, 200);
    for (path, fields, status, reason) in [
        (&*format!("/{huge}"), &[][..], 414, "the request line is longer than 32768 bytes"),
        ("/x", &[("x-a", &*huge)], 431, "the head is larger than 32768 bytes"),
        ("/x", &[("x-a", &*long), ("x-b", &*long)], 431, "the head is larger than 32768 bytes"),
    ] {
        let (answered, _, body) = ask(path, fields);
        assert_eq!(answered, status, "{body}");
        assert!(body.contains(reason), "{body}");
    }
    let names: Vec<String> = (0..200).map(|number| format!("x-{number}")).collect();
    let fields: Vec<(&str, &str)> = names.iter().map(|name| (&**name, "1")).collect();
    assert_eq!(ask("/x", &fields[..90]).0, 200);
    let (status, _, body) = ask("/x", &fields);
    assert_eq!(status, 431, "{body}");
    assert!(body.contains("more than 100 header fields"), "{body}");
}

#[test]
fn a_check_authenticates_with_the_credentials_in_it() {
    let gateway = start();
    let ask = |fields: &[(&str, &str)]| {
        let check = check("GET", "/x", "192.0.2.1", fields).encode_to_vec();
        answer(&call(Protocol::Http2, &gateway, &check))
    };
    let key = ("x-api-key", "key of acme");
    let forged = ["x-consumer-name", "x_consumer_name", "x-consumer_plan", "x_other"];
    let (status, fields, removed) =
        ask(&[&[key][..], &forged.map(|name| (name, "admin"))].concat());
    assert_eq!((status, &*fields["x-consumer-name"]), (200, "acme"));
    assert_eq!(removed, "x-consumer-plan x-consumer_plan x_consumer_name");
    let (status, fields, _) = ask(&[key]);
    assert_eq!((status, &*fields["x-tidegate-status"]), (403, "429"));
    let (status, fields, _) = ask(&[]);
    assert_eq!((status, fields.contains_key("www-authenticate")), (401, true));
    assert_eq!(gateway.metric("tidegate_requests_total{route=\"reads\",status=\"4xx\"}"), 2);
}

#[test]
fn a_broken_call_is_an_error_of_the_call() {
    let gateway = start();
    let status = |response: &Response| {
        let status = response.header("grpc-status").map(str::to_owned);
        (response.status, status, response.header("grpc-message").unwrap_or_default().to_owned())
    };
    let (http, code, text) = status(&call(Protocol::Http2, &gateway, b"\xff\xff"));
    assert_eq!((http, code.as_deref()), (200, Some("3")), "{text}");
    assert!(text.starts_with("the message is no CheckRequest"), "{text}");
    let mut client = Protocol::Http2.connect(&gateway);
    let response = client.ask("POST", CHECK, CALL, "\0\0");
    assert_eq!(status(&response).1.as_deref(), Some("3"), "{}", response.head);
    let response = client.ask("POST", CHECK, CALL, vec![0, 0, 32, 0, 0]);
    assert_eq!(status(&response).1.as_deref(), Some("8"), "{}", response.head);
    // Over HTTP/1, or of another type, it describes no request: no route is for the question's own
    // method.
    let message = frame_message(&check("PUT", "/x", "192.0.2.1", &[]).encode_to_vec());
    let response = Protocol::Http1.connect(&gateway).ask("POST", CHECK, CALL, &message);
    assert_eq!(response.status, 400, "{}", response.head);
    let response = client.ask("POST", CHECK, "Content-Type: application/json\r\n", &message);
    assert_eq!(response.status, 405, "{}", response.head);
    // The connection goes on.
    assert_eq!(answer(&client.ask("POST", CHECK, CALL, &message)).0, 200);
}

#[test]
fn a_check_of_another_peer_is_not_read() {
    let gateway = start();
    let mut client = Client::connect_from([127, 0, 0, 9], gateway.address());
    let response = client.get(CHECK, CALL);
    assert_eq!(response.status, 403, "{}", response.head);
}

#[test]
fn a_message_that_does_not_arrive_ends_by_the_deadline() {
    let yaml = fill(DOORS, [("acme", &*KeyHash::of(b"").to_string()), ("check", CHECK)]);
    let yaml = yaml
        .replace("methods: [PUT]}", "methods: [PUT]}, request_timeout: 2s")
        .replace("methods: [GET]}", "methods: [GET]}, request_timeout: 2s");
    let gateway = Gateway::for_every_protocol(&yaml);
    let mut client = Protocol::Http2.connect(&gateway);
    client.start("POST", CHECK, CALL, true);
    let (response, _) = gateway.while_time_passes(|| client.read_response());
    assert_eq!(response.header("grpc-status"), Some("4"), "{}", response.head);
}
