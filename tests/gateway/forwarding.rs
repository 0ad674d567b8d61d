use testkit::{gateway::Gateway, protocol::on_every_protocol, upstream::Upstream};

fn proxy(upstream: &Upstream) -> Gateway {
    Gateway::for_every_protocol(&format!(
        "upstreams: {{origin: {{targets: [{}]}}}}
routes: [{{name: all, match: {{path: '/{{*rest}}'}}, upstream: origin}}]",
        upstream.target()
    ))
}

#[test]
fn requests_and_responses_are_forwarded() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let gateway = proxy(&upstream);
        let response = protocol.get(&gateway, "/items/5?page=2", "X-Own: kept\r\n");
        assert_eq!((response.status, response.text()), (200, "hello".to_owned()));
        let received = upstream.request_texts()[0].to_ascii_lowercase();
        assert!(received.starts_with("get /items/5?page=2 http/1.1\r\n"), "{received}");
        for line in ["host: gateway.test", "x-own: kept", "x-forwarded-for: 127.0.0.1"] {
            assert!(received.contains(line), "{line} in {received}");
        }
    });
}

#[test]
fn bodies_are_streamed_and_connections_kept() {
    on_every_protocol(|protocol| {
        let upstream = Upstream::hello();
        let gateway = proxy(&upstream);
        let mut client = protocol.connect(&gateway);
        for _ in 0..3 {
            assert_eq!(client.ask("POST", "/a", "", "12345").status, 200);
            client.start("POST", "/b", "", true).send("abc", true);
            assert_eq!(client.read_response().status, 200);
        }
        let received = upstream.request_texts();
        assert!(received[0].ends_with("\r\n\r\n12345"));
        assert!(received[1].ends_with("3\r\nabc\r\n0\r\n\r\n"));
        assert_eq!(received.len(), 6);
        assert_eq!(upstream.connections(), 1);
    });
}
