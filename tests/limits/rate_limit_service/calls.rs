//! What is no call, and calls that are refused as such.

use prost::Message;
use testkit::{
    client::get,
    gateway::Gateway,
    http2_client::{self, Http2Client},
    rate_limit_client::{CallFailure, GRPC_FIELDS, RateLimitClient, descriptor},
};
use tidegate::{
    clock::Clock,
    grpc::{MAX_MESSAGE, frame_message},
    rate_limit_service::{
        MAX_DESCRIPTORS, SHOULD_RATE_LIMIT,
        messages::{
            RateLimitDescriptor, RateLimitOverride, RateLimitRequest, RateLimitResponse,
            ResponseCode,
        },
    },
};

use super::{NOW, RULES, connect};

fn start() -> Gateway {
    Gateway::start_at(RULES, Clock::manual(NOW))
}

fn failure(
    client: &mut RateLimitClient,
    domain: &str,
    descriptors: Vec<RateLimitDescriptor>,
) -> CallFailure {
    let call = RateLimitRequest { domain: domain.into(), descriptors, hits_addend: 0 };
    client.try_ask(&call).expect_err("a failure")
}

#[test]
fn a_call_without_a_domain_or_descriptors_is_an_error_as_in_the_reference() {
    let gateway = start();
    let mut client = connect(&gateway);
    let failed = failure(&mut client, "", vec![descriptor("user=a")]);
    let message = "rate limit domain must not be empty".to_owned();
    assert_eq!(failed, CallFailure { code: 2, message });
    let failed = failure(&mut client, "edge", vec![]);
    let message = "rate limit descriptor list must not be empty".to_owned();
    assert_eq!(failed, CallFailure { code: 2, message });
}

#[test]
fn a_call_for_an_unknown_domain_is_admitted() {
    let gateway = start();
    let mut client = connect(&gateway);
    let decided = client.ask("unknown", vec![descriptor("user=a"), descriptor("user=b")]);
    assert!(decided.is_ok());
    assert_eq!(decided.statuses(), ["none", "none"]);
}

#[test]
fn too_many_descriptors_and_windows_without_a_length_are_refused() {
    let gateway = start();
    let mut client = connect(&gateway);
    let many = |count| (0..count).map(|n| descriptor(&format!("user={n}"))).collect::<Vec<_>>();
    assert_eq!(client.ask("edge", many(MAX_DESCRIPTORS)).statuses(), vec!["ok 4"; MAX_DESCRIPTORS]);
    let failed = failure(&mut client, "edge", many(MAX_DESCRIPTORS + 1));
    assert_eq!((failed.code, &*failed.message), (3, "257 descriptors; expected at most 256"));
    for unit in [0, 8, -1] {
        let limit = RateLimitOverride { requests_per_unit: 1, unit, unit_multiplier: None };
        let own = RateLimitDescriptor { limit: Some(limit), ..descriptor("user=a") };
        let failed = failure(&mut client, "edge", vec![descriptor("user=b"), own]);
        assert_eq!(failed.code, 3);
        assert!(failed.message.starts_with("the limit of descriptor 1 has the unit"), "{failed:?}");
    }
}

#[test]
fn messages_that_cannot_be_read_are_refused() {
    let gateway = start();
    let mut client = connect(&gateway);
    let call = RateLimitRequest { domain: "edge".into(), ..RateLimitRequest::default() };
    let good = frame_message(&call.encode_to_vec());
    let mut compressed = good.clone();
    compressed[0] = 1;
    let longer = frame_message(&vec![0; MAX_MESSAGE + 1]);
    for (body, code) in [
        (&b""[..], 3),
        (&good[..good.len() - 1], 3),
        (&[&good[..], &good].concat(), 3),
        (&frame_message(b"\x0a\xff"), 3),
        (&frame_message(b"\x0a\x01\xff"), 3),
        (&compressed, 12),
        (&longer, 8),
    ] {
        let failed = client.unary(SHOULD_RATE_LIMIT, body).expect_err("a failure");
        assert_eq!(failed.code, code, "{failed:?}");
    }
    let failed = client.unary("/envoy.service.ratelimit.v3.RateLimitService/Other", &good);
    assert_eq!(failed.expect_err("a failure").code, 12);
    // The connection is as good as new.
    assert!(client.ask("edge", vec![descriptor("user=a")]).is_ok());
}

#[test]
fn other_requests_are_answered_as_http() {
    let gateway = start();
    let address = gateway.server.rate_limit_service.expect("the service");
    let response = get(address, "/", "");
    assert_eq!(response.status, 505);
    assert!(response.text().contains("use HTTP/2"), "{}", response.text());
    let mut client = Http2Client::connect(address);
    assert_eq!(client.get(SHOULD_RATE_LIMIT, "").status, 405);
    let json = "content-type: application/json\r\n";
    assert_eq!(client.ask("POST", SHOULD_RATE_LIMIT, json, b"{}").status, 415);
}

#[test]
fn a_message_that_does_not_arrive_ends_with_its_deadline() {
    let rules =
        format!("http: {{body_timeout: 1s}}\n{}", testkit::yaml::without_indentation(RULES));
    let gateway = Gateway::start_at(&rules, Clock::simulated(NOW));
    let address = gateway.server.rate_limit_service.expect("the service");
    let mut client = Http2Client::connect(address);
    let head = testkit::http2_client::request(
        "POST",
        SHOULD_RATE_LIMIT,
        testkit::rate_limit_client::GRPC_FIELDS,
    );
    let mut exchange = client.start(head, false).expect("a stream");
    exchange.send(&[0, 0, 0], false).expect("a part");
    let answer = gateway.assert_times_out(std::time::Duration::from_secs(1), || exchange.head());
    let answer = answer.expect("a head");
    assert_eq!(answer.headers()["grpc-status"], "4");
}

/// Envoy copies the bytes of header fields into entries.
#[test]
fn values_that_are_not_utf8_are_counted() {
    let gateway = start();
    let mut client = connect(&gateway);
    let call = |last: u8| {
        let descriptors = vec![descriptor("user=u?")];
        let call = RateLimitRequest { domain: "edge".into(), descriptors, hits_addend: 1 };
        let mut message = call.encode_to_vec();
        *message.iter_mut().find(|byte| **byte == b'?').expect("the value") = last;
        frame_message(&message)
    };
    let mut ask = |last| {
        let reply = client.unary(SHOULD_RATE_LIMIT, &call(last)).expect("a decision");
        RateLimitResponse::decode(&*reply).expect("a response").overall_code()
    };
    let codes: Vec<_> = (0xf0..=0xff).map(&mut ask).collect();
    let admitted = codes.iter().filter(|code| **code == ResponseCode::Ok).count();
    let plain = (0..16).filter(|_| ask(b'x') == ResponseCode::Ok).count();
    assert!(plain < 16, "the quota is smaller");
    assert_eq!(admitted, plain, "one counter for all of them");
}

#[test]
fn unfinished_messages_of_a_connection_are_bounded() {
    let gateway = start();
    let address = gateway.server.rate_limit_service.expect("the service");
    let mut client = Http2Client::connect(address);
    let head = || http2_client::request("POST", SHOULD_RATE_LIMIT, GRPC_FIELDS);
    let mut part = vec![0, 0, 16, 0, 0];
    part.resize(MAX_MESSAGE - 10, b'x');
    let mut open = Vec::new();
    let refused = (0..8).find_map(|_| {
        let mut exchange = client.start(head(), false).expect("a stream");
        match exchange.send(&part, false) {
            Ok(()) => open.push(exchange),
            Err(_) => return Some(exchange),
        }
        None
    });
    let mut refused = refused.or_else(|| open.pop()).expect("a refused stream");
    assert_eq!(refused.head().expect("a head").headers()["grpc-status"], "8");
    assert!((3..=5).contains(&open.len()), "{} messages fit", open.len());
    open.iter_mut().for_each(http2_client::Http2Exchange::reset);
    drop(open);
    let call = RateLimitRequest {
        domain: "edge".into(),
        descriptors: vec![descriptor("user=a")],
        hits_addend: 1,
    };
    let message = frame_message(&call.encode_to_vec());
    testkit::wait::eventually("there is room again", || {
        let mut exchange = client.start(head(), false).expect("a stream");
        exchange.send(&message, true).is_ok()
            && exchange.head().is_ok_and(|head| !head.headers().contains_key("grpc-status"))
    });
}

#[test]
fn resets_of_one_client_of_a_proxy_leave_its_connection_to_the_others() {
    let gateway = start();
    let address = gateway.server.rate_limit_service.expect("the service");
    let mut client = Http2Client::connect(address);
    for _ in 0..1_200 {
        let head = http2_client::request("POST", SHOULD_RATE_LIMIT, GRPC_FIELDS);
        client.start(head, false).expect("a stream").reset();
    }
    assert_eq!(client.get(SHOULD_RATE_LIMIT, "").status, 405);
}
