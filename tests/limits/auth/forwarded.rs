//! What reaches the upstream: who sends a request, and not its key.

use testkit::{
    client::Client, gateway::Gateway, http2_upstream::Http2Upstream, protocol::on_every_protocol,
    random::SplitMix64, upstream::Upstream,
};

use super::{rules, start};
use testkit::api_keys::key;

/// The lines of the last request's head, in lower case.
fn last_head(upstream: &Upstream) -> Vec<String> {
    let texts = upstream.request_texts();
    let text = texts.last().expect("a request").to_ascii_lowercase();
    text.lines().map(str::to_owned).collect()
}

fn consumer_lines(head: &[String]) -> Vec<&str> {
    let is_consumer = |line: &&str| line.contains("consumer");
    head.iter().map(String::as_str).filter(is_consumer).collect()
}

#[test]
fn the_upstream_reads_the_consumer_and_not_its_key() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let gateway = start(&upstream);
        for (path, headers, line) in [
            ("/gold?a=1", key("acme"), "get /gold?a=1 http/1.1"),
            ("/gold", "Authorization: Bearer key of acme\r\n".to_owned(), "get /gold http/1.1"),
            ("/gold?key=key+of+acme", String::new(), "get /gold http/1.1"),
            ("/gold?a=1&k%65y=key+of+acme&b", String::new(), "get /gold?a=1&b http/1.1"),
            ("/gold", "Cookie: a=1; key=key%20of%20acme; b=2\r\n".to_owned(), "cookie: a=1; b=2"),
        ] {
            assert_eq!(protocol.get(&gateway, path, &headers).status, 200, "{path} {headers}");
            let head = last_head(&upstream);
            assert!(head.contains(&line.to_owned()), "{path}: {head:?}");
            assert!(!head.iter().any(|line| line.contains("key")), "{head:?}");
            assert_eq!(consumer_lines(&head), ["x-consumer-name: acme", "x-consumer-plan: gold"]);
        }
        assert_eq!(protocol.get(&gateway, "/maybe", "").status, 200);
        assert_eq!(consumer_lines(&last_head(&upstream)), [""; 0]);
        // Another scheme is no key of the gateway.
        let basic = protocol.get(&gateway, "/maybe", "Authorization: Basic YTpi\r\n");
        assert_eq!(basic.status, 429, "the address has used its quota");
    });
}

#[test]
fn another_scheme_than_bearer_is_forwarded() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream);
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.get("/maybe", "Authorization: Basic YTpi\r\n").status, 200);
    assert!(last_head(&upstream).contains(&"authorization: basic ytpi".to_owned()));
}

#[test]
fn a_key_is_forwarded_if_its_method_says_so() {
    let upstream = Upstream::hello();
    let yaml =
        rules(&upstream, "off", "off").replace("{from:", "{forward_credentials: true, from:");
    let gateway = Gateway::start(&yaml);
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.get("/gold?key=x", &key("acme")).status, 200);
    let head = last_head(&upstream);
    assert!(head.contains(&"x-api-key: key of acme".to_owned()), "{head:?}");
    assert!(head[0].starts_with("get /gold?key=x "), "{head:?}");
    // An alias could carry another key.
    assert_eq!(client.get("/gold", &format!("{}X_Api_Key: other\r\n", key("acme"))).status, 200);
    assert!(!last_head(&upstream).iter().any(|line| line.contains("other")));
}

#[test]
fn an_http2_upstream_reads_the_same() {
    let upstream = Http2Upstream::hello();
    let plain = Upstream::hello();
    let yaml = rules(&plain, "off", "off").replace(
        &format!("{{targets: ['{}']}}", plain.target()),
        &format!("{{targets: ['{}'], protocol: http2}}", upstream.target()),
    );
    let gateway = Gateway::start(&yaml);
    let mut client = Client::connect(gateway.address());
    assert_eq!(client.get("/gold?key=key+of+acme&a=1", "X_Consumer_Name: root\r\n").status, 200);
    let text = upstream.request_texts().concat().to_ascii_lowercase();
    assert!(
        text.contains("x-consumer-name: acme") && text.contains("x-consumer-plan: gold"),
        "{text}"
    );
    assert!(
        !text.contains("key") && !text.contains("root") && text.contains("/gold?a=1"),
        "{text}"
    );
}

#[test]
fn variables_of_header_rules_name_the_consumer() {
    let upstream = Upstream::hello();
    let headers = "headers: {request: {set: {x-user: '{consumer}/{plan}'}}, response: {set: {x-plan: '{plan}'}}}";
    let yaml = rules(&upstream, "off", "off").replace("consumers: {names: [acme]}", headers);
    let gateway = Gateway::start(&yaml);
    let mut client = Client::connect(gateway.address());
    let response = client.get("/named", &key("acme"));
    assert_eq!((response.status, response.header("x-plan")), (200, Some("gold")));
    assert!(last_head(&upstream).contains(&"x-user: acme/gold".to_owned()));
}

/// A name of a field that some upstream may read as `X-Consumer-...`, and a list of fields of the
/// connection.
struct Spelled {
    name: String,
    listed: &'static str,
}

impl Spelled {
    fn random(random: &mut SplitMix64) -> Self {
        let mut pick = |words: &[&'static str]| words[random.below(words.len() as u64) as usize];
        let separators = ["-", "_", ".", "--", "-_", "~"];
        let name = [
            pick(&["X", "x"]),
            pick(&separators),
            pick(&["Consumer", "consumer", "CONSUMER", "cOnSuMeR"]),
            pick(&separators),
            pick(&["Name", "name", "PLAN", "Id", "Custom-Id", "username", "Groups"]),
        ]
        .concat();
        let listed = pick(&["", "Connection: x-consumer-name\r\n", "Connection: keep-alive\r\n"]);
        Self { name, listed }
    }
}

#[test]
fn no_spelling_of_a_client_s_field_reaches_the_upstream() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let gateway = start(&upstream);
        let mut random = SplitMix64(7);
        let mut client = protocol.connect(&gateway);
        for round in 0..200 {
            let Spelled { name, listed } = Spelled::random(&mut random);
            // HTTP/2 has lower-case names, and no `Connection`.
            let name = if protocol.is_http2() { name.to_ascii_lowercase() } else { name };
            let listed = if protocol.is_http2() { "" } else { listed };
            let path = ["/open", "/gold"][round % 2];
            let headers = format!("{name}: root\r\n{}{listed}{name}: root\r\n", key("acme"));
            let response = client.get(path, &headers);
            assert_eq!(response.status, 200, "{headers}: {}", response.head);
            let head = last_head(&upstream);
            assert!(!head.iter().any(|line| line.contains("root")), "{headers}: {head:?}");
            let expected: &[&str] = match path {
                "/gold" => &["x-consumer-name: acme", "x-consumer-plan: gold"],
                _ => &[],
            };
            assert_eq!(consumer_lines(&head), expected, "{headers}");
        }
    });
}

#[test]
fn no_spelling_reaches_the_upstream_in_a_trailer_or_an_upgrade() {
    let upstream = Upstream::hello();
    let gateway = start(&upstream);
    let mut random = SplitMix64(11);
    for round in 0..60 {
        let name = Spelled::random(&mut random).name;
        let mut client = Client::connect(gateway.address());
        let request = if round % 2 == 0 {
            format!(
                "POST /gold HTTP/1.1\r\nHost: a.test\r\n{}TE: trailers\r\nTrailer: {name}\r\n\
                 Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n{name}: root\r\nX-Checksum: 7\r\n\r\n",
                key("acme")
            )
        } else {
            format!(
                "GET /gold HTTP/1.1\r\nHost: a.test\r\n{}Connection: Upgrade, {name}\r\nUpgrade: websocket\r\n\
                 Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{name}: root\r\n\r\n",
                key("acme")
            )
        };
        assert_eq!(client.send(&request).read_response().status, 200, "{request}");
        let text = upstream.request_texts().pop().expect("a request").to_ascii_lowercase();
        assert!(!text.contains("root"), "{request}: {text}");
        assert!(round % 2 == 1 || text.contains("x-checksum: 7"), "other trailers pass: {text}");
        assert_eq!(text.matches("x-consumer-name: ").count(), 1, "{text}");
    }
}
