use testkit::{
    client::{Client, get},
    gateway::Gateway,
    upstream::Upstream,
};

fn proxy(upstream: &Upstream) -> Gateway {
    Gateway::start(&format!(
        "upstreams: {{origin: {{targets: [{}]}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin}}]",
        upstream.target()
    ))
}

#[test]
fn requests_and_responses_are_forwarded() {
    let upstream = Upstream::hello();
    let gateway = proxy(&upstream);
    let response = get(gateway.address(), "/items/5?page=2", "X-Own: kept\r\n");
    assert_eq!((response.status, response.text()), (200, "hello".to_owned()));
    let received = &upstream.request_texts()[0];
    assert!(received.starts_with("GET /items/5?page=2 HTTP/1.1\r\n"), "{received}");
    for line in ["Host: gateway.test", "X-Own: kept", "x-forwarded-for: 127.0.0.1"] {
        assert!(received.contains(line), "{line} in {received}");
    }
}

#[test]
fn bodies_are_streamed_and_connections_kept() {
    let upstream = Upstream::hello();
    let gateway = proxy(&upstream);
    let mut client = Client::connect(gateway.address());
    for _ in 0..3 {
        client.send("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n12345");
        assert_eq!(client.read_response().status, 200);
        client.send("POST /b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
        assert_eq!(client.read_response().status, 200);
    }
    let received = upstream.request_texts();
    assert!(received[0].ends_with("\r\n\r\n12345"));
    assert!(received[1].ends_with("3\r\nabc\r\n0\r\n\r\n"));
    assert_eq!(received.len(), 6);
}
