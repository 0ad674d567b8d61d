//! Proxies of other projects that ask the gateway before they forward requests, each with the
//! configurations of its page.

/// Requests by which a client would deceive a proxy.
mod attacks;
mod caddy;
mod envoy;
mod haproxy;
mod nginx;
mod traefik;
/// Two proxies share a limit.
mod two_proxies;

use std::{net::SocketAddr, path::Path, thread, time::Duration};

use tempfile::TempDir;
use testkit::{
    client::{Client, Response},
    gateway::Gateway,
    port::free_port,
    upstream::Upstream,
    wait::timed,
};

use crate::{
    page::Page,
    server::{Server, loopback},
};

/// The addresses in every page: the proxy's, the application's, and Tidegate's.
const PROXY: &str = "127.0.0.1:8080";
const APPLICATION: &str = "127.0.0.1:9000";
const TIDEGATE: &str = "127.0.0.1:8081";

/// The quota in every page.
const QUOTA: usize = 100;

/// A client's address: not that of the proxies.
const CLIENT: [u8; 4] = [127, 0, 0, 5];

/// What starts a proxy with a configuration, in a directory for its files, on a port.
type Start = fn(&Path, &str, &[u16]) -> Server;

/// A proxy that asks a gateway before it forwards requests to an application.
struct Asker {
    address: SocketAddr,
    application: Upstream,
    gateway: Option<Gateway>,
    _directory: TempDir,
    _server: Server,
}

impl Asker {
    /// Starts a page's gateway, and the proxy with `configuration`.
    fn start(page: &Page, configuration: &str, start: Start) -> Self {
        let gateway = Gateway::start(&page.block("yaml").replace(TIDEGATE, "127.0.0.1:0"));
        let (address, gateway) = (gateway.address(), Some(gateway));
        Self { gateway, ..Self::start_before(address, configuration, start) }
    }

    /// Starts the proxy before the gateway at this address.
    fn start_before(gateway: SocketAddr, configuration: &str, start: Start) -> Self {
        let (port, application) = (free_port(), Upstream::hello());
        let port_of = |address: &str| address.rsplit(':').next().unwrap_or_default().to_owned();
        let mut configuration = configuration.to_owned();
        // Caddy's sites have no address of a listener: they would match no other host.
        configuration = configuration.replace("http://:8080", &format!("http://:{port}"));
        let own =
            [(PROXY, loopback(port)), (APPLICATION, application.address), (TIDEGATE, gateway)];
        for (named, own) in own {
            let value = |port: &str| format!("port_value: {port}");
            let (named_port, own_port) = (port_of(named), own.port().to_string());
            configuration = configuration
                .replace(named, &own.to_string())
                .replace(&value(&named_port), &value(&own_port));
        }
        let directory = tempfile::tempdir().expect("a directory");
        let server = start(directory.path(), &configuration, &[port]);
        let address = loopback(port);
        Self { address, application, gateway: None, _directory: directory, _server: server }
    }

    fn connect(&self) -> Client {
        Client::connect_from(CLIENT, self.address)
    }

    fn get(&self, path: &str, fields: &str) -> Response {
        self.connect().get(path, fields)
    }

    /// The responses to `count` requests of one client, sent in parallel over 20 connections.
    fn in_parallel(&self, count: usize) -> Vec<Response> {
        self.in_parallel_with("", count)
    }

    /// The same with these header fields.
    fn in_parallel_with(&self, fields: &str, count: usize) -> Vec<Response> {
        thread::scope(|scope| {
            let clients: Vec<_> = (0..20)
                .map(|_| {
                    scope.spawn(|| {
                        let mut client = self.connect();
                        (0..count / 20).map(|_| client.get("/items/7", fields)).collect::<Vec<_>>()
                    })
                })
                .collect();
            clients.into_iter().flat_map(|client| client.join().expect("no panic")).collect()
        })
    }

    /// Asserts that parallel requests admit exactly the quota, and that refusals reach the client
    /// with true headers.
    fn assert_admits_the_quota(&self) {
        let responses = self.in_parallel(2 * QUOTA);
        let (admitted, refused): (Vec<&Response>, Vec<&Response>) =
            responses.iter().partition(|response| response.status == 200);
        assert_eq!((admitted.len(), refused.len()), (QUOTA, QUOTA), "{}", tally(&responses));
        assert_eq!(self.application.request_count(), QUOTA);
        for refused in refused {
            assert_eq!(refused.status, 429, "{}", refused.head);
            // The window's first unit is free up to a hundredth of it after its end.
            assert!((1..=61).contains(&refused.number("retry-after")), "{}", refused.head);
            assert_eq!(refused.number("x-ratelimit-limit"), QUOTA as u64);
            assert_eq!(refused.number("x-ratelimit-remaining"), 0);
            assert!(refused.number("x-ratelimit-reset") > 1_700_000_000);
        }
        // Another client has a quota of its own.
        let other = Client::connect_from([127, 0, 0, 6], self.address).get("/items/7", "");
        assert_eq!(other.status, 200, "{}", other.head);
    }

    /// Asserts that the rate-limit headers of admissions reach the client.
    fn assert_shows_what_is_left(&self) {
        for left in [QUOTA - 1, QUOTA - 2] {
            let response = self.get("/items/7", "");
            assert_eq!(response.status, 200, "{}", response.head);
            assert_eq!(response.number("x-ratelimit-remaining"), left as u64, "{}", response.head);
            assert_eq!(response.number("x-ratelimit-limit"), QUOTA as u64);
        }
    }

    /// Asserts that the application learns from the gateway alone who sends a request.
    fn assert_names_the_consumer(&self) {
        let consumer = || {
            let request = self.application.request_texts().pop().expect("a request");
            let lines = request.lines().map(str::to_ascii_lowercase);
            let lines =
                lines.filter_map(|line| line.strip_prefix("x-consumer-").map(str::to_owned));
            let mut all: Vec<String> = lines.collect();
            all.sort();
            all.join(", ")
        };
        let forged = "X-Consumer-Name: admin\r\nX-Consumer-Plan: all\r\n";
        assert_eq!(self.get("/items/7", forged).status, 200);
        assert_eq!(consumer(), "");
        let key = format!("{forged}X-Api-Key: example-key\r\n");
        assert_eq!(self.get("/items/7", &key).status, 200);
        assert_eq!(consumer(), "name: acme, plan: gold");
        let refused = self.get("/items/7", "X-Api-Key: wrong\r\n");
        assert_eq!(refused.status, 401, "{}", refused.head);
    }

    /// Asserts that the bodies of admitted requests reach the application, and that a question with
    /// the head of such a request does not wait for a body.
    fn assert_forwards_bodies(&self) {
        let mut client = self.connect();
        for size in [5, 100_000] {
            let body = "x".repeat(size);
            let head =
                format!("POST /items HTTP/1.1\r\nHost: a.test\r\nContent-Length: {size}\r\n");
            let (response, time) =
                timed(|| client.send(format!("{head}\r\n{body}")).read_response());
            assert_eq!(response.status, 200, "{}", response.head);
            assert!(time < Duration::from_secs(5), "{time:?}");
            let received = self.application.request_texts().pop().expect("a request");
            assert!(received.starts_with("POST /items "), "{received}");
            assert!(received.ends_with(&body), "{size}: {} bytes", received.len());
        }
    }

    /// The status that clients get once the gateway has gone.
    fn status_without_gateway(&mut self) -> u16 {
        assert_eq!(self.get("/items/7", "").status, 200);
        self.gateway = None;
        self.get("/items/7", "").status
    }
}

/// The number of responses by status.
fn tally(responses: &[Response]) -> String {
    let mut counts = std::collections::BTreeMap::new();
    for response in responses {
        *counts.entry(response.status).or_insert(0) += 1;
    }
    format!("{counts:?}")
}
