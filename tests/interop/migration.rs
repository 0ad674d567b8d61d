//! The migration pages for nginx and HAProxy: both configurations of a page serve the same
//! requests, and its table shows the answers of each.

use std::{collections::BTreeMap, io::Write, net::SocketAddr, path::Path, thread, time::Duration};

use tempfile::TempDir;
use testkit::{
    client::{Client, Response},
    gateway::Gateway,
    port::free_port,
    upstream::{ResponseGate, Upstream},
    wait::{eventually, sleep, timed},
};

use crate::{
    page::Page,
    server::{Server, loopback},
};

/// The addresses in every page: the proxy's and its upstream's.
const PROXY: &str = "127.0.0.1:8080";
const UPSTREAM: &str = "127.0.0.1:9000";

/// The row that shows `Retry-After` of the responses before it.
const RETRY_AFTER: &str = "the `Retry-After` of their 429";

/// An upstream that holds the responses to `/files/` back until its gate is opened.
struct Origin {
    upstream: Upstream,
    gate: ResponseGate,
}

impl Origin {
    fn start() -> Self {
        let gate = ResponseGate::default();
        let own = gate.clone();
        let upstream = Upstream::with_handler(move |request, socket| {
            if request.starts_with(b"GET /files/") {
                own.wait();
            }
            socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").is_ok()
        });
        Self { upstream, gate }
    }
}

/// One of the two proxies, and its upstream.
struct Side {
    address: SocketAddr,
    origin: Origin,
    /// The configuration's files.
    _directory: Option<TempDir>,
    _peer: Option<Server>,
    gateway: Option<Gateway>,
}

impl Side {
    /// Another proxy, started by `start` with its configuration.
    fn peer(configuration: &str, start: impl Fn(&Path, &str, &[u16]) -> Server) -> Self {
        Self::peer_of(Origin::start(), configuration, start)
    }

    /// [`Self::peer`] before `upstream`.
    fn peer_before(
        upstream: Upstream,
        configuration: &str,
        start: impl Fn(&Path, &str, &[u16]) -> Server,
    ) -> Self {
        Self::peer_of(Origin { upstream, gate: ResponseGate::default() }, configuration, start)
    }

    fn peer_of(
        origin: Origin,
        configuration: &str,
        start: impl Fn(&Path, &str, &[u16]) -> Server,
    ) -> Self {
        let port = free_port();
        let address = loopback(port);
        let configuration = configuration
            .replace(PROXY, &address.to_string())
            .replace(UPSTREAM, &origin.upstream.address.to_string());
        let directory = tempfile::tempdir().expect("a directory");
        let server = start(directory.path(), &configuration, &[port]);
        Self { address, origin, _directory: Some(directory), _peer: Some(server), gateway: None }
    }

    fn tidegate(configuration: &str) -> Self {
        Self::tidegate_of(Origin::start(), configuration)
    }

    /// [`Self::tidegate`] before `upstream`.
    fn tidegate_before(upstream: Upstream, configuration: &str) -> Self {
        Self::tidegate_of(Origin { upstream, gate: ResponseGate::default() }, configuration)
    }

    fn tidegate_of(origin: Origin, configuration: &str) -> Self {
        let configuration = configuration
            .replace(PROXY, "127.0.0.1:0")
            .replace(UPSTREAM, &origin.upstream.address.to_string());
        let gateway = Gateway::start(&configuration);
        let address = gateway.address();
        Self { address, origin, _directory: None, _peer: None, gateway: Some(gateway) }
    }

    fn is_tidegate(&self) -> bool {
        self.gateway.is_some()
    }

    /// Sends a request over a connection of its own; its response is read later.
    fn send(&self, path: &str, fields: &str) -> Client {
        let mut client = Client::connect(self.address);
        client.send(format!("GET {path} HTTP/1.1\r\nHost: example.com\r\n{fields}\r\n"));
        client
    }

    /// The responses to `count` requests, one after the other.
    fn in_a_row(&self, count: usize, path: &str, fields: &str) -> Vec<Response> {
        let mut client = Client::connect(self.address);
        (0..count).map(|_| client.get(path, fields)).collect()
    }

    /// The responses to `count` requests that are sent before any of them is read.
    fn at_once(&self, count: usize, path: &str, fields: &str) -> Vec<Response> {
        let mut clients: Vec<Client> = (0..count).map(|_| self.send(path, fields)).collect();
        clients.iter_mut().map(Client::read_response).collect()
    }

    /// The responses to `held` requests that are in flight together, and to `more` that arrive
    /// meanwhile: refused, or kept until one of the others ends.
    fn in_flight(&self, held: usize, more: usize, fields: &str, is_refused: bool) -> Vec<Response> {
        let before = self.origin.upstream.request_count();
        let mut clients: Vec<Client> = Vec::new();
        for sent in 1..=held {
            clients.push(self.send("/files/a", fields));
            eventually("the upstream has the request", || {
                self.origin.upstream.request_count() == before + sent
            });
        }
        let mut others: Vec<Client> = (0..more).map(|_| self.send("/files/a", fields)).collect();
        let read =
            |clients: &mut Vec<Client>| clients.iter_mut().map(Client::read_response).collect();
        let mut responses: Vec<Response> = if is_refused { read(&mut others) } else { Vec::new() };
        self.origin.gate.open();
        clients.extend((!is_refused).then_some(others).into_iter().flatten());
        responses.append(&mut read(&mut clients));
        responses
    }
}

/// `5 x 200, 3 x 429`.
fn tally(responses: &[Response]) -> String {
    let mut counts = BTreeMap::new();
    for response in responses {
        *counts.entry(response.status).or_insert(0) += 1;
    }
    let counts = counts.iter().map(|(status, count)| format!("{count} x {status}"));
    counts.collect::<Vec<String>>().join(", ")
}

/// `Retry-After` of the last response, which is a refusal.
fn retry_after(responses: &[Response]) -> Option<u64> {
    let refused = responses.last().filter(|last| last.status == 429).expect("a refusal");
    refused.header("retry-after").map(|value| value.parse().expect("seconds"))
}

/// A row of the table.
fn row(what: &str, peer: impl Into<String>, own: impl Into<String>) -> [String; 3] {
    [what.to_owned(), peer.into(), own.into()]
}

/// A row whose cells are the tallies of both.
fn tallied(what: &str, sides: [&Side; 2], send: impl Fn(&Side) -> Vec<Response>) -> [String; 3] {
    let [peer, own] = sides.map(|side| tally(&send(side)));
    row(what, peer, own)
}

#[test]
fn nginx_and_tidegate_answer_as_the_page_says() {
    let page = Page::read("migrate/nginx.md");
    let nginx = Side::peer(&page.block("nginx"), Server::nginx);
    let own = Side::tidegate(&page.block("yaml"));
    let sides = [&nginx, &own];
    let [first, second] = sides.map(|side| side.in_a_row(8, "/login", ""));
    let mut rows = vec![row("8 for `/login`", tally(&first), tally(&second))];

    assert_eq!(retry_after(&first), None);
    assert!((1..=2).contains(&retry_after(&second).expect("a Retry-After")));
    rows.push(row(RETRY_AFTER, "none", "the seconds to the next token, at most 2"));

    let waiting = sides.map(|side| {
        let (responses, time) =
            timed(|| side.at_once(6, "/reports/a", "Authorization: Bearer a\r\n"));
        assert!(time >= Duration::from_millis(1900), "the last one waited: {time:?}");
        tally(&responses)
    });
    let [first, second] = waiting.map(|tally| format!("{tally}; the last 200 after 2 s"));
    rows.push(row("6 at once for `/reports/`, one token", first, second));
    rows.push(tallied("2 at once with another token", sides, |side| {
        side.at_once(2, "/reports/a", "Authorization: Bearer b\r\n")
    }));
    rows.push(tallied("6 at once without a token", sides, |side| {
        side.at_once(6, "/reports/a", "")
    }));
    rows.push(tallied("12 for `/files/` whose responses take long", sides, |side| {
        side.in_flight(10, 2, "", true)
    }));
    page.assert_rows(&rows);
}

/// Answers with JSON, and with the received path, host and address in header fields.
fn echo() -> Upstream {
    Upstream::with_handler(|request, socket| {
        let text = String::from_utf8_lossy(request);
        let field = |name: &str| {
            let mut lines = text.lines();
            let line = lines.find(|line| line.to_ascii_lowercase().starts_with(name));
            line.map_or("none", |line| line[name.len()..].trim()).to_owned()
        };
        let path = text.split(' ').nth(1).unwrap_or_default();
        let (host, address) = (field("host:"), field("x-real-ip:"));
        let body = format!("[{}0]", "10, ".repeat(512));
        let length = body.len();
        write!(
            socket,
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
             Seen-Path: {path}\r\nSeen-Host: {host}\r\nSeen-Address: {address}\r\n\r\n{body}"
        )
        .is_ok()
    })
}

/// The path that the server received, or else the status and the location of a redirect.
fn outcome(side: &Side, path: &str) -> String {
    let response = side.send(path, "").read_response();
    match (response.header("seen-path"), response.header("location")) {
        (Some(path), _) => format!("`{path}`"),
        (None, Some(location)) => {
            let rest = location.split_once("://").map_or(location, |(_, rest)| rest);
            let path = rest.split_once('/').map_or("", |(_, path)| path);
            format!("{} to `/{path}`", response.status)
        }
        (None, None) => response.status.to_string(),
    }
}

#[test]
fn nginx_and_tidegate_serve_locations_as_the_page_says() {
    let page = Page::read("migrate/nginx.md").section("Locations and proxy_pass");
    let nginx = Side::peer_before(echo(), &page.block("nginx"), Server::nginx);
    let own = Side::tidegate_before(echo(), &page.block("yaml"));
    let sides = [&nginx, &own];
    let paths = ["/api/items?x=1", "/api", "/apis", "/shop/a", "/images/a", "/old", "/moved/a?x=1"];
    let mut rows: Vec<[String; 3]> = Vec::new();
    for path in paths {
        let [first, second] = sides.map(|side| outcome(side, path));
        rows.push(row(&format!("`{path}`"), first, second));
    }
    let (forged, gzip) = ("X-Real-IP: 192.0.2.1\r\n", "Accept-Encoding: gzip\r\n");
    for (path, sent, what, name) in [
        ("/api/items", "", ": the server's `Host`", "seen-host"),
        ("/images/a", "", ": the server's `Host`", "seen-host"),
        ("/api/items", forged, " with `X-Real-IP: 192.0.2.1`: the server's", "seen-address"),
        ("/images/a", forged, " with `X-Real-IP: 192.0.2.1`: the server's", "seen-address"),
        (
            "/api/items",
            gzip,
            " with `Accept-Encoding: gzip`: `Content-Encoding`",
            "content-encoding",
        ),
    ] {
        let [first, second] = sides.map(|side| {
            let response = side.send(path, sent).read_response();
            let value = response.header(name).unwrap_or("none").to_owned();
            value.replace(&side.origin.upstream.address.to_string(), UPSTREAM)
        });
        rows.push(row(&format!("`{path}`{what}"), first, second));
    }
    let long = "Content-Length: 31457280\r\n";
    let [first, second] = sides.map(|side| side.send("/api/items", long).read_response().status);
    rows.push(row("`/api/items` with 30 MiB", first.to_string(), second.to_string()));
    page.assert_rows(&rows);
}

#[test]
fn haproxy_and_tidegate_answer_as_the_page_says() {
    let page = Page::read("migrate/haproxy.md");
    let [theirs, ours] = ["haproxy", "yaml"].map(|language| page.block(language));
    let haproxy = Side::peer(&theirs, Server::haproxy);
    let own = Side::tidegate(&ours);
    let sides = [&haproxy, &own];
    let [first, second] = sides.map(|side| side.in_a_row(105, "/", "Authorization: Bearer a\r\n"));
    let mut rows = vec![row("105 with one token", tally(&first), tally(&second))];

    let [first, second] = [first, second].map(|all| retry_after(&all).expect("a Retry-After"));
    assert_eq!(first, 10);
    assert!((1..=10).contains(&second));
    rows.push(row(RETRY_AFTER, "always 10", "the seconds until a request is admitted, at most 10"));

    rows.push(tallied("1 with another token", sides, |side| {
        side.in_a_row(1, "/", "Authorization: Bearer b\r\n")
    }));
    rows.push(tallied("105 without a token", sides, |side| side.in_a_row(105, "/", "")));

    rows.push(tallied("25 whose responses take long", sides, |side| {
        side.in_flight(20, 5, "Authorization: Bearer c\r\n", side.is_tidegate())
    }));

    // A shorter window, so that the test need not wait for 10 s.
    let shorten = |text: &str| text.replace("10s", "2s");
    let haproxy = Side::peer(&shorten(&theirs), Server::haproxy);
    let own = Side::tidegate(&shorten(&ours));
    let [first, second] = thread::scope(|scope| {
        let clients = [&haproxy, &own].map(|side| scope.spawn(|| admitted_of_a_busy_client(side)));
        clients.map(|client| client.join().expect("no panic"))
    });
    assert_eq!(first, 0, "HAProxy counts what it refuses");
    assert!(second >= 100, "a quota in a window: {second}");
    let what = "four times the quota without a pause";
    rows.push(row(what, "the quota once", "the quota in every window"));
    page.assert_rows(&rows);
}

/// The number of admitted requests of a client that spends its quota of 100 in 2 s and continues
/// with 200 requests a second for two windows.
fn admitted_of_a_busy_client(side: &Side) -> usize {
    let mut client = Client::connect(side.address);
    let mut is_admitted = || client.get("/", "Authorization: Bearer d\r\n").status == 200;
    assert!((0..100).all(|_| is_admitted()));
    let mut admitted = 0;
    for _ in 0..200 {
        sleep(Duration::from_millis(20));
        admitted += (0..4).filter(|_| is_admitted()).count();
    }
    admitted
}
