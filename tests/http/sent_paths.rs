//! `path` of a route: the upstream gets the path as it was sent, or in normal form, or the client a
//! 400.

use proptest::prelude::*;
use testkit::{
    commands::{configuration, explained, run},
    gateway::Gateway,
    http2_upstream::Http2Upstream,
    protocol::{Protocol, on_every_protocol},
    upstream::Upstream,
    yaml::fill,
};
use tidegate::{
    plan::forwarded_path,
    route::normalize::{Slashes, normalize},
};

/// A store of objects: `public` as it was sent, `private` for no client of these tests.
const OBJECTS: &str = "
    workers: 1
    upstreams:
      one: {targets: ['{http1}']}
      two: {targets: ['{http2}'], protocol: http2}
    routes:
      - {name: public, match: {path: '/public/{*key}'}, upstream: one, path: as_sent}
      - {name: private, match: {path: '/public/private/{*key}'}, upstream: one, deny: [0.0.0.0/0]}
      - {name: public-2, match: {host: b.test, path: '/public/{*key}'}, upstream: two, path: as_sent}
      - {name: private-2, match: {host: b.test, path: '/public/private/{*key}'}, upstream: two, deny: [0.0.0.0/0]}
      - {name: tenants, match: {path: '/tenants/{id}/{*key}'}, upstream: one, path: as_sent}
      - {name: stripped, match: {path_prefix: /v1}, upstream: one, path: as_sent, strip_prefix: /v1}
      - {name: plain, match: {path: '/plain/{*key}'}, upstream: one}
      - {name: strict, match: {path: '/strict/{*key}'}, upstream: one, path: strict}
    ";

struct Objects {
    one: Upstream,
    two: Http2Upstream,
    gateway: Gateway,
}

impl Objects {
    fn start() -> Self {
        let (one, two) = (Upstream::hello(), Http2Upstream::hello());
        let yaml = fill(OBJECTS, [("http1", one.target()), ("http2", two.target())]);
        Self { gateway: Gateway::for_every_protocol(&yaml), one, two }
    }

    /// The status, and the path and query that the server of `host` got.
    fn get(&self, protocol: Protocol, host: &str, target: &str) -> (u16, Option<String>) {
        let count = || self.one.request_count() + self.two.request_count();
        let before = count();
        let status = protocol.get(&self.gateway, target, format!("Host: {host}\r\n")).status;
        if count() == before {
            return (status, None);
        }
        let texts =
            if host == "b.test" { self.two.request_texts() } else { self.one.request_texts() };
        let text = texts.last().expect("a request").clone();
        let target = text.split_whitespace().nth(1).expect("a target");
        let path = target.find("b.test").map_or(target, |at| &target[at + "b.test".len()..]);
        (status, Some(path.to_owned()))
    }
}

#[test]
fn a_path_is_forwarded_as_it_was_sent() {
    let objects = Objects::start();
    on_every_protocol(|protocol| {
        for target in [
            "/public/a/b",
            "/public//a///b/",
            "/public/a/./b",
            "/public/a/../b",
            "/public/%7Euser/%c3%a9?X-Amz-Signature=%2f%7e",
            "/public/a%2fb%2F%5C.txt",
            "/public/a%2Fb//c",
            "/public/%40{x}|^\"",
            "/public/a;v=1//b",
        ] {
            for host in ["a.test", "b.test"] {
                let got = objects.get(protocol, host, target);
                assert_eq!(got, (200, Some(target.to_owned())), "{host}{target}");
            }
        }
        for (target, forwarded) in
            [("/v1//a/./b/../c", "//a/./b/../c"), ("/%76%31/a//%7e", "/a//%7e"), ("/v1", "/")]
        {
            let got = objects.get(protocol, "a.test", target);
            assert_eq!(got, (200, Some(forwarded.to_owned())), "{target}");
        }
    });
}

#[test]
fn a_path_that_a_server_could_read_as_another_routes_is_refused() {
    let objects = Objects::start();
    on_every_protocol(|protocol| {
        for host in ["a.test", "b.test"] {
            for target in [
                // Read as sent, or with some of it resolved, these are in `private`.
                "/public/private/../a",
                "/public//private/../a",
                "/public/./private/x/../../a",
                "/public/private%2Fa",
                "/public/private%5Ca",
                // Read as sent, these are not in `public`.
                "/x/../public/a",
                "//public/a",
                "/./public/a",
                "/public%2Fx/../../public/a",
                // Seen only by a server that decodes before it resolves.
                "/public/a/%2e%2e/b",
                "/public/a/.%2E/b",
                "/public/%2e/b",
            ] {
                assert_eq!(objects.get(protocol, host, target), (400, None), "{host}{target}");
            }
            // In normal form, these are in `private`, or in no route.
            for (target, status) in [
                ("/public/a/../private/b", 403),
                ("/public//private//b", 403),
                ("/public/a/../../x", 404),
                ("/public/../..", 400),
            ] {
                assert_eq!(objects.get(protocol, host, target), (status, None), "{host}{target}");
            }
        }
        for target in ["/tenants/a/../b/x", "/tenants//a/x", "/tenants/a%2Fb/x", "/v1/../v1/a"] {
            assert_eq!(objects.get(protocol, "a.test", target), (400, None), "{target}");
        }
        if !protocol.is_http2() {
            // Its own client cannot send it over HTTP/2.
            assert_eq!(objects.get(protocol, "a.test", "/public/a`b"), (400, None));
        }
        let refused = protocol.get(&objects.gateway, "/public/private/../a", "");
        assert!(refused.text().contains("forwards the path as it was sent"), "{}", refused.text());
    });
}

#[test]
fn other_routes_get_the_normal_form_or_refuse_others() {
    let objects = Objects::start();
    on_every_protocol(|protocol| {
        let get = |target| objects.get(protocol, "a.test", target);
        assert_eq!(get("/plain/x/..//%7e"), (200, Some("/plain/~".to_owned())));
        assert_eq!(get("/strict/a%2Fb"), (200, Some("/strict/a%2Fb".to_owned())));
        for target in ["/strict/x/../a", "/strict//a", "/strict/./a", "/strict/%7e", "/strict/%2f"]
        {
            assert_eq!(get(target), (400, None), "{target}");
        }
        let refused = protocol.get(&objects.gateway, "/strict//a", "");
        assert!(refused.text().contains("only paths in normal form"), "{}", refused.text());
    });
}

#[test]
fn explain_and_replay_decide_alike() {
    let (http1, http2) = ("http://a.test", "http://b.test:1");
    let (config, directory) = configuration(&fill(OBJECTS, [("http1", http1), ("http2", http2)]));
    let sent = explained(&config, "GET", "/public/a/../b", &[]);
    assert_eq!(
        (&sent["path"], &sent["sent_path"], &sent["forwarded"]),
        (&"/public/b".into(), &"/public/a/../b".into(), &"/public/a/../b".into())
    );
    let text = run(&["explain", "-c", &config, "/plain/a/../b"]);
    let shown = "request    GET /plain/b for host `localhost` from 127.0.0.1\n           its path was sent as /plain/a/../b\n";
    assert!(text.contains(shown), "{text}");
    let refused = explained(&config, "GET", "/public/private/../a", &[]);
    assert_eq!((&refused["route"], &refused["status"]), (&"public".into(), &400.into()));
    let log = directory.path().join("access.log");
    let line = |target: &str| {
        format!(
            "127.0.0.1 - - [28/Nov/2026:10:00:00 +0000] \"GET {target} HTTP/1.1\" 200 1 \"-\" \"-\"\n"
        )
    };
    let lines = ["/public/a/../b", "/public/private/../a", "/strict//a"].map(line).concat();
    std::fs::write(&log, lines).expect("a writable directory");
    let decisions =
        run(&["replay", "--config", &config, "--decisions", log.to_str().expect("UTF-8")]);
    assert!(decisions.lines().next().is_some_and(|line| line.contains("public")), "{decisions}");
    assert_eq!(decisions.matches("400").count(), 2, "{decisions}");
}

#[test]
fn the_forwarded_path_normalizes_to_what_was_matched() {
    let (http1, http2) = ("http://a.test", "http://b.test:1");
    let (config, _directory) = configuration(&fill(OBJECTS, [("http1", http1), ("http2", http2)]));
    let settings = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) };
    let first = prop_oneof![Just("/public/"), Just("/v1/"), Just("/")];
    let below = "(/|\\.|\\.\\.|%2e|%2F|a|;b|private|public|v1){0,10}";
    proptest!(settings, |(first in first, below in below)| {
        let target = format!("{first}{below}");
        let explained = explained(&config, "GET", &target, &[]);
        let Some(forwarded) = explained["forwarded"].as_str() else { return Ok(()) };
        let matched = explained["path"].as_str().expect("a path");
        let prefix = (explained["route"] == "stripped").then_some("/v1");
        let matched = forwarded_path(matched, prefix);
        prop_assert_eq!(&*normalize(forwarded, Slashes::Merge).expect("a valid path"), matched);
    });
}
