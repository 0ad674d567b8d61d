//! What `tidegate explain` shows of routes: conditions, shares, changes, targets and refusals.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use testkit::{upstream::Upstream, yaml::fill};

use super::{configuration, explained};
use testkit::commands::run;

#[test]
fn conditions_and_changes_of_a_route_are_explained() {
    let (config, _directory) = configuration(
        "
        upstreams: {origin: {targets: ['http://a.test:81']}}
        routes:
          - {name: plain, match: {path: '/items/{id}'}, upstream: origin}
          - {name: canary, match: {path: '/items/{id}', weight: 5}, upstream: origin}
          - name: v2
            match: {path: '/items/{id}', headers: {x-version: '2', x-old: false}, query: {debug: true}}
            upstream: origin
            host: internal.test
            rewrite: '/v2/{path.id}'
            headers:
              request: {set: {x-user: '{client_ip}'}, remove: [cookie]}
              response:
                add: {x-id: '{request_id}'}
                remove: [server]
                replace:
                  content-location: {pattern: '^http://a', with: 'https://b'}
                  x-key: {pattern: old, with: new}
          - {name: beta, match: {path: /beta, weight: 10}, upstream: origin}
          - {name: old, match: {path: '/old/{*rest}'}, redirect: {to: '/items/{path.rest}?{query}', status: 301}}
          - {name: fixed, match: {path: /fixed}, respond: {status: 503, body: later}}
        ",
    );
    let plain = explained(&config, "GET", "/items/7", &[]);
    assert_eq!((&plain["route"], &plain["forwarded"]), (&"plain".into(), &"/items/7".into()));
    let share = json!([{"route": "canary", "callers": 5}]);
    assert_eq!(plain["changes"]["shares"], share);
    let v2 = explained(&config, "GET", "/items/7?debug", &["X-Version: 2"]);
    assert_eq!((&v2["route"], &v2["forwarded"]), (&"v2".into(), &"/v2/7?debug".into()));
    assert_eq!(
        v2["changes"],
        json!({
            "conditions": ["no header x-old", "header x-version: 2", "query debug"],
            "shares": [],
            "request": {
                "written": ["x-user: 127.0.0.1", "host: internal.test"],
                "removed": ["cookie"],
            },
            "response": {
                "written": ["x-id: {request_id}"],
                "removed": ["server"],
                "replaced": ["content-location: ^http://a -> https://b", "x-key: *** -> ***"],
            },
        })
    );
    let text = run(&["explain", "-c", &config, "-H", "X-Version: 2", "/items/7?debug=1"]);
    for line in [
        "route      v2\n           matched by no header x-old, header x-version: 2, query debug\n",
        "changes    request x-user: 127.0.0.1\n",
        "changes    request without cookie\n",
        "changes    response without server\n",
        "changes    response content-location: ^http://a -> https://b\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let text = run(&["explain", "-c", &config, "/items/7"]);
    assert!(
        text.contains("route      plain\n           5 % of callers get route canary instead\n")
    );
    let beta = explained(&config, "GET", "/beta", &[]);
    assert_eq!((&beta["route"], &beta["status"]), (&Value::Null, &404.into()));
    assert_eq!(beta["changes"]["shares"], json!([{"route": "beta", "callers": 10}]));
    let old = explained(&config, "GET", "/old/7?a=1", &[]);
    assert_eq!(
        (&old["status"], &old["headers"]["location"]),
        (&301.into(), &"/items/7?a=1".into())
    );
    assert_eq!(explained(&config, "GET", "/fixed", &[])["status"], 503);
    let ambiguous = explained(&config, "GET", "/items/7", &["X-Version: 2", "X-Version: 3"]);
    assert_eq!((&ambiguous["status"], &ambiguous["route"]), (&400.into(), &Value::Null));
}

#[test]
fn the_target_of_a_key_is_shown_with_its_reason() {
    let (config, _directory) = configuration(
        "
        upstreams:
          app:
            targets: ['http://10.0.0.1:80', 'http://10.0.0.2:80', {url: 'http://10.0.0.3:80', weight: 0}]
            balance: hash
            hash_key: ['header:x-user']
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: app}]
        ",
    );
    let target = |user: usize| {
        let user = format!("x-user: {user}");
        let explanation = explained(&config, "GET", "/a", &[&user]);
        assert!(!explanation["target_reason"].as_str().unwrap().is_empty(), "{explanation}");
        explanation["target"].as_str().unwrap().to_owned()
    };
    assert!((0..20).all(|user| target(user) == target(user)));
    let targets: BTreeSet<String> = (0..40).map(target).collect();
    assert_eq!(targets.into_iter().collect::<Vec<_>>(), ["10.0.0.1:80", "10.0.0.2:80"]);
    let text = run(&["explain", "-c", &config, "/a", "-H", "x-user: 7"]);
    assert!(text.contains("\ntarget     10.0.0."), "{text}");
}

#[test]
fn what_a_refused_request_has_found_is_explained() {
    let upstream = Upstream::hello();
    let (config, _directory) = configuration(&fill(
        "
        upstreams: {origin: {targets: ['{target}']}}
        limits:
          free:
            quota: 9
            window: 10h
            key: [client_ip]
            tiers: [{match: {part: client_ip, values: [0.0.0.0/0]}, quota: unlimited}]
        routes:
          - {name: small, match: {path: /small}, upstream: origin, limits: [free], max_body: 10B}
          - {name: canary, match: {path: /items, weight: 5}, upstream: origin}
          - name: items
            match: {path: /items}
            upstream: origin
            cors: {origins: ['*']}
            deny: [127.0.0.1/32]
        ",
        [("target", upstream.target())],
    ));
    let small = explained(&config, "POST", "/small", &["Content-Length: 11"]);
    assert_eq!((&small["status"], &small["decision"]), (&json!(413), &json!("not_checked")));
    // Refused before its limits are looked at.
    assert_eq!((&small["unlimited"], &small["limits"]), (&json!([]), &json!([])));
    let denied = explained(&config, "GET", "/items", &[]);
    assert_eq!((&denied["status"], &denied["decision"]), (&json!(403), &json!("denied")));
    assert_eq!(denied["changes"]["shares"], json!([{"route": "canary", "callers": 5}]));
    let headers = ["Origin: http://web.test", "Access-Control-Request-Method: GET"];
    let preflight = explained(&config, "OPTIONS", "/items", &headers);
    assert_eq!((&preflight["status"], &preflight["decision"]), (&json!(403), &json!("denied")));
    assert_eq!(preflight["changes"]["shares"], json!([]));
}
