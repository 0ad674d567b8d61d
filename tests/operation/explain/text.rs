//! What `tidegate explain` shows: keys without secrets, sources, targets, and what a listener
//! decides.

use serde_json::{Value, json};
use testkit::{tls::Authority, upstream::Upstream, yaml::fill};
use tidegate::cli;

use super::{configuration, explained};
use testkit::api_keys::hash;
use testkit::commands::run;

#[test]
fn text_output_shows_keys_and_no_secrets() {
    let upstream = Upstream::hello();
    let (config, _directory) = configuration(&fill(
        "
        client: {trusted_proxies: [127.0.0.1/32], token: [header:authorization]}
        upstreams: {origin: {targets: ['{target}']}}
        limits:
          token: {quota: 9, window: 10h, key: [token], cost: 2}
          team: {quota: 5, window: 10h, key: ['header:x-team', 'query:k', 'path:id']}
        routes:
          - name: items
            match: {host: api.test, path: '/v1/items/{id}'}
            upstream: origin
            limits: [token, team]
            strip_prefix: /v1
        ",
        [("target", upstream.target())],
    ));
    let text = run(&[
        "explain",
        "-c",
        &config,
        "-H",
        "Authorization: Bearer topsecret",
        "-H",
        "X-Forwarded-For: 192.0.2.7",
        "http://api.test/v1/items/7?k=payments",
    ]);
    let wanted = "request    GET /v1/items/7 for host `api.test` from 192.0.2.7
route      items
limit      token: sliding_window, 9 in 10h, cost 2
           key: token *** (9 bytes)
           admits, 7 left
limit      team: sliding_window, 5 in 10h, cost 1
           key: header:x-team (none), query:k payments, path:id 7
           admits, 4 left
decision   admitted (for a caller with unused quotas)
";
    assert!(text.starts_with(wanted), "{text}");
    let last = format!("forwarded  GET /items/7?k=payments to origin: {}\n", upstream.target());
    assert!(text.ends_with(&last), "{text}");
    assert!(!text.contains("topsecret"));
    assert_eq!(upstream.request_count(), 0, "`explain` connects to nothing");
}

#[test]
fn explanation_names_the_source_of_the_client_address() {
    let (config, _directory) = configuration(
        "
        client: {trusted_proxies: [127.0.0.1/32]}
        upstreams: {hello: {respond: {status: 203, body: hello}}}
        limits:
          token:
            quota: 9
            window: 10h
            key: [token]
            tiers: [{match: {part: client_ip, values: [0.0.0.0/0]}, quota: 99}]
        routes: [{name: hello, match: {path: /hello}, upstream: hello, limits: [token]}]
        ",
    );
    for (headers, client, source, quota) in [
        (&[][..], "127.0.0.1", "unverified", 9),
        (&["X-Forwarded-For: \u{fe}"], "127.0.0.1", "unverified", 9),
        (&["X-Forwarded-For: \u{fe}, 192.0.2.7"], "192.0.2.7", "forwarded", 99),
    ] {
        let explanation = explained(&config, "GET", "http://api.test/hello", headers);
        assert_eq!(
            (&explanation["client"], &explanation["client_source"]),
            (&client.into(), &source.into())
        );
        assert_eq!(explanation["limits"][0]["quota"], quota, "{explanation}");
    }
    let text = run(&["explain", "-c", &config, "http://api.test/hello"]);
    assert!(text.contains("from 127.0.0.1\n           a trusted proxy that names no"), "{text}");
    let text = run(&["explain", "-c", &config, "--client", "192.0.2.1", "http://api.test/hello"]);
    assert!(!text.contains("trusted proxy"), "{text}");
}

#[test]
fn explanation_names_a_limit_that_does_not_count_the_caller() {
    let (config, _directory) = configuration(
        "
        client: {trusted_proxies: [127.0.0.1/32]}
        upstreams: {hello: {respond: {status: 203, body: hello}}}
        limits:
          token:
            quota: 9
            window: 10h
            key: [token]
            tiers: [{match: {part: client_ip, values: [192.0.2.7]}, quota: unlimited}]
        routes: [{name: hello, match: {path: /hello}, upstream: hello, limits: [token]}]
        ",
    );
    let forwarded = ["X-Forwarded-For: 192.0.2.7"];
    let explanation = explained(&config, "GET", "http://api.test/hello", &forwarded);
    let name = explanation["unlimited"][0].as_str().expect("a name");
    assert!(
        explanation["limits"].as_array().expect("a list").iter().all(|own| own["name"] != name)
    );
    let text = run(&["explain", "-c", &config, "-H", forwarded[0], "http://api.test/hello"]);
    let line = format!("limit      {name}: not counted, the caller is in an unlimited tier\n");
    assert!(text.contains(&line), "{text}");
}

#[test]
fn invalid_urls_are_reported() {
    let (config, _directory) = configuration(
        "
        upstreams: {hello: {respond: {body: hello}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
        ",
    );
    for url in
        ["", "items", "ftp://a/x", "http://", "http:///x", "http://user:pw@a/x", "http:/\u{e9}"]
    {
        let mut out = Vec::new();
        let exit = cli::run(["tidegate", "explain", "-c", &config, url], &mut out);
        assert_eq!((exit, out.is_empty()), (cli::Exit::BadInput, true), "{url}");
    }
}

#[test]
fn targets_are_shown_with_their_scheme_and_protocol() {
    let (config, _directory) = configuration(
        "
        upstreams:
          clear: {targets: ['http://a.test:81'], protocol: http2}
          auto: {targets: ['http://a.test'], protocol: auto}
          socket: {targets: ['unix:/run/app.sock']}
          tls: {targets: ['https://a.test', 'https://[::1]:8443'], protocol: auto}
        routes:
          - {name: clear, match: {path: /clear}, upstream: clear}
          - {name: auto, match: {path: /auto}, upstream: auto}
          - {name: socket, match: {path: /socket}, upstream: socket}
          - {name: tls, match: {path: /tls}, upstream: tls}
        ",
    );
    for (name, protocol, end) in [
        ("clear", "http2", "clear over HTTP/2: http://a.test:81"),
        ("auto", "http1", "auto: http://a.test:80"),
        ("socket", "http1", "socket: unix:/run/app.sock"),
        (
            "tls",
            "auto",
            "tls over HTTP/2, if the server chooses it: https://a.test:443, https://[::1]:8443",
        ),
    ] {
        let url = format!("/{name}");
        let text = run(&["explain", "-c", &config, &url]);
        assert!(text.contains(&format!("forwarded  GET /{name} to {end}\n")), "{text}");
        let explanation = explained(&config, "GET", &url, &[]);
        assert_eq!(explanation["upstream_protocol"], protocol, "{explanation}");
    }
}

#[test]
fn what_a_listener_decides_is_shown() {
    let files = tempfile::tempdir().expect("a directory");
    let certificate = Authority::new("tests").issue(&["a.test"]).write(files.path(), "a");
    let (config, _directory) = configuration(&fill(
        "
        listen:
          - {address: '127.0.0.1:81', redirect_https: true}
          - {address: '127.0.0.1:8443', tls: {strict_host: true, certificates: [{{certificate}}]}}
        upstreams: {hello: {respond: {body: hello}}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
        ",
        [("certificate", certificate.entry())],
    ));
    let redirected = explained(&config, "GET", "http://a.test:81/x?y", &[]);
    assert_eq!(
        (&redirected["status"], &redirected["headers"]["location"], &redirected["route"]),
        (&json!(308), &json!("https://a.test:8443/x?y"), &Value::Null)
    );
    for (url, status) in [
        ("https://a.test:8443/x", 200),
        ("https://b.test:8443/x", 421),
        // No listener of this process: as through another proxy.
        ("https://b.test/x", 200),
        ("http://a.test:8443/x", 200),
        ("/x", 200),
    ] {
        assert_eq!(explained(&config, "GET", url, &[])["status"], status, "{url}");
    }
}

#[test]
fn refusals_of_grpc_are_shown_with_their_metadata() {
    let (config, _directory) = configuration(
        "
        upstreams: {hello: {respond: {}}}
        routes: [{name: one, match: {path: /one}, upstream: hello}]
        ",
    );
    let headers = ["Content-Type: application/grpc"];
    let explanation = explained(&config, "POST", "/tidegate.Test/Missing", &headers);
    assert_eq!(explanation["status"], 404, "as in the access log");
    let headers = &explanation["headers"];
    assert_eq!(
        (&headers["grpc-status"], &headers["grpc-message"]),
        (&"12".into(), &explanation["reason"])
    );
}

#[test]
fn the_waiting_room_is_named_with_what_it_does() {
    let (config, _directory) = configuration(&fill(
        "
        client: {token: [cookie:session]}
        upstreams: {app: {targets: ['http://127.0.0.1:9000']}}
        auth: {keys: {api_key: {}}}
        plans: {gold: {priority: 3}}
        consumers: {entries: [{name: ann, plan: gold, keys: [{sha256: {hash}}]}]}
        throttle: {max_active: 1000, waiting_room: {}}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: app}
          - {name: login, match: {path: /login}, upstream: app, throttle: false}
          - {name: small, match: {path: /small}, upstream: app, max_body: 1B}
          - {name: known, match: {path: /known}, upstream: app, auth: [keys]}
        ",
        [("hash", hash("ann"))],
    ));
    let waits = "room       a user that is not active gets a ticket and waits; its place is not known here\n";
    let no_token =
        "room       the request has no token: it gets no ticket, and is refused while throttling\n";
    let early = "room       a user that is not active gets a ticket and waits, with a head start of 120 s; its place is not known here\n";
    let session = &["-H", "Cookie: session=a"][..];
    let waiting = |head_start: u64| json!({"turn": "waits", "head_start": head_start});
    let refused = json!({"turn": "no_token"});
    for (path, headers, expected) in [
        ("/a", session, Some((waiting(0), waits))),
        (
            "/small",
            &["-H", "Cookie: session=a", "-H", "Content-Length: 5"],
            Some((waiting(0), waits)),
        ),
        ("/a", &[], Some((refused.clone(), no_token))),
        // A session that the gateway does not verify is no consumer.
        ("/known", session, Some((refused, no_token))),
        ("/known", &["-H", "X-Api-Key: key of ann"], Some((waiting(120), early))),
        ("/login", session, None),
    ] {
        let text = run(&[&["explain", "-c", &config, path], headers].concat());
        let line = text.lines().find(|line| line.starts_with("room"));
        let named = expected.as_ref().map(|(_, line)| line.trim_end());
        assert_eq!(line, named, "{path} {headers:?}: {text}");
        let values: Vec<_> = headers.iter().copied().filter(|word| *word != "-H").collect();
        let explanation = explained(&config, "GET", path, &values);
        assert_eq!(explanation["waiting_room"], json!(expected.map(|(turn, _)| turn)), "{path}");
    }
}
