//! Overrides: quotas that an operator sets at run time, by the admin API or in a file.

/// The file, edited by hand, with faults, and read by the commands.
mod file;
/// Two gateways on one Redis.
mod redis;

use serde_json::{Value, json};
use testkit::{
    client::{Client, Response},
    gateway::Gateway,
    redis_server::RedisServer,
    wait::eventually,
    yaml::fill,
};
use tidegate::clock::ms;
use tidegate::{
    auth::KeyHash,
    clock::{Clock, StoreTime},
};

/// Limits by consumer, by header and for all; `gold` is the plan of `acme`, and `bread` has none.
const RULES: &str = "
{place}
auth: {keys: {api_key: {}, max_failures: off}}
consumers:
  entries:
    - {name: acme, plan: gold, keys: [{sha256: {acme}}]}
    - {name: bread, keys: [{sha256: {bread}}]}
plans: {gold: {each: 20}, other: {each: 40}}
upstreams: {hello: {respond: {body: hello}}}
limits:
  each: {quota: 5, window: 1h, key: [consumer], tiers: [{match: {part: 'header:x-tier', values: [big]}, quota: 10}]}
  caller: {quota: 3, window: 1h, key: ['header:x-caller']}
  address: {quota: 3, window: 1h, key: [client_ip]}
  trial: {quota: 1, window: 1h, key: [consumer], enforce: false}
  parallel: {algorithm: concurrency, quota: 2, window: 10s, key: [consumer]}
routes:
  - {name: own, match: {path: /own}, upstream: hello, auth: [keys], limits: [each, trial]}
  - {name: open, match: {path: /open}, upstream: hello, limits: [caller]}
  - {name: status, match: {path: /status}, status: [each], auth: [keys]}
  - {name: work, match: {path: /work}, upstream: hello, auth: [keys], limits: [parallel]}
";

const ACME: &str = "X-Api-Key: key of acme\r\n";
const BREAD: &str = "X-Api-Key: key of bread\r\n";
const START: u64 = 1_800_000_000_000;

fn rules(place: &str) -> String {
    let hash = |name: &str| KeyHash::of(format!("key of {name}").as_bytes()).to_string();
    fill(RULES, [("place", place.to_owned()), ("acme", hash("acme")), ("bread", hash("bread"))])
}

/// A gateway with the overrides in a file of its own.
struct WithFile {
    gateway: Gateway,
    clock: Clock,
    directory: tempfile::TempDir,
}

impl WithFile {
    fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let clock = Clock::manual(StoreTime::from_unix_ms(START));
        let gateway = start_at(&directory, &clock);
        Self { gateway, clock, directory }
    }

    /// The file's path.
    fn path(&self) -> std::path::PathBuf {
        self.directory.path().join("overrides.yaml")
    }

    /// The same gateway, started again.
    fn restarted(self) -> Self {
        let Self { gateway, clock, directory } = self;
        drop(gateway);
        let gateway = start_at(&directory, &clock);
        Self { gateway, clock, directory }
    }
}

fn start_at(directory: &tempfile::TempDir, clock: &Clock) -> Gateway {
    let place = format!("overrides: {{file: '{}/overrides.yaml'}}", directory.path().display());
    Gateway::start_at(&rules(&place), clock.clone())
}

fn ask(gateway: &Gateway, line: &str, body: &str) -> Response {
    let length = body.len();
    let head =
        format!("{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}");
    Client::connect(gateway.admin()).send(head).read_response()
}

/// Sets an override and returns its description.
fn set(gateway: &Gateway, body: &Value) -> Value {
    let response = ask(gateway, "PUT /api/overrides", &body.to_string());
    assert_eq!(response.status, 200, "{body}: {}", response.text());
    response.json()
}

fn lift(gateway: &Gateway, set: &Value) {
    let id = set["id"].as_str().expect("an id");
    let response = ask(gateway, &format!("DELETE /api/overrides/{id}"), "");
    assert_eq!(response.status, 204, "{}", response.text());
}

fn list(gateway: &Gateway) -> Value {
    ask(gateway, "GET /api/overrides", "").json()
}

fn request(gateway: &Gateway, path: &str, headers: &str) -> Response {
    Client::connect(gateway.address()).get(path, headers)
}

/// The quota that a response of `/own` reports, and the units that are used.
fn quota(gateway: &Gateway, headers: &str) -> (u64, u64) {
    let response = request(gateway, "/own", headers);
    (response.number("x-ratelimit-limit"), response.number("x-ratelimit-used"))
}

#[test]
fn an_override_changes_the_quota_and_keeps_the_count() {
    let own = WithFile::start();
    let gateway = &own.gateway;
    for used in 1..=5 {
        assert_eq!(quota(gateway, BREAD), (5, used));
    }
    assert_eq!(request(gateway, "/own", BREAD).status, 429);
    let described = set(
        gateway,
        &json!({"limit": "each", "consumer": "bread", "quota": 8, "reason": "launch"}),
    );
    assert_eq!(described["in_force"], true);
    assert_eq!((&described["by"], &described["reason"]), (&"admin".into(), &"launch".into()));
    let admitted = request(gateway, "/own", BREAD);
    assert_eq!((admitted.status, admitted.number("x-ratelimit-used")), (200, 6));
    assert_eq!(
        (admitted.number("x-ratelimit-limit"), admitted.number("x-ratelimit-remaining")),
        (8, 2)
    );
    assert_eq!(quota(gateway, ACME), (20, 1), "another consumer keeps its quota");
    // A second one takes the place of the first.
    let again = set(gateway, &json!({"limit": "each", "consumer": "bread", "quota": "7/1h"}));
    assert_eq!(again["id"], described["id"]);
    assert_eq!(list(gateway)["total"], 1);
    assert_eq!(quota(gateway, BREAD), (7, 7));
    let refused = request(gateway, "/own", BREAD);
    assert_eq!((refused.status, refused.number("x-ratelimit-limit")), (429, 7));
    assert!(refused.number("retry-after") >= 1);
    // Lowered below what is used: truthful, and nothing is admitted.
    set(gateway, &json!({"limit": "each", "consumer": "bread", "quota": 2}));
    let refused = request(gateway, "/own", BREAD);
    assert_eq!((refused.status, refused.number("x-ratelimit-limit")), (429, 2));
    assert_eq!(refused.number("x-ratelimit-remaining"), 0);
    lift(gateway, &again);
    assert_eq!(quota(gateway, BREAD).0, 5);
    assert_eq!(list(gateway), json!({"overrides": [], "total": 0, "next": null, "place": "file"}));
}

#[test]
fn unlimited_and_blocked_replace_the_limit() {
    let own = WithFile::start();
    let gateway = &own.gateway;
    set(gateway, &json!({"limit": "each", "consumer": "bread", "quota": "unlimited"}));
    for _ in 0..12 {
        let response = request(gateway, "/own", BREAD);
        assert_eq!(response.status, 200);
        assert!(response.header("x-ratelimit-limit").is_none(), "{}", response.head);
    }
    let own_one = set(gateway, &json!({"limit": "each", "consumer": "bread", "quota": "blocked"}));
    let blocked = request(gateway, "/own", BREAD);
    assert_eq!(blocked.status, 403, "{}", blocked.text());
    assert_eq!(blocked.json()["detail"], "an operator has blocked this caller");
    assert!(blocked.header("x-request-id").is_some(), "{}", blocked.head);
    assert_eq!(gateway.metric("tidegate_access_denied_total{route=\"own\"}"), 1);
    let seen = ask(gateway, "GET /api/limits/each?key=bread", "").json();
    assert_eq!((&seen["blocked"], &seen["override"]["quota"]), (&true.into(), &"blocked".into()));
    lift(gateway, &own_one);
    assert_eq!(quota(gateway, BREAD), (5, 1), "unlimited requests were not counted");
    // A dry run blocks none.
    set(gateway, &json!({"limit": "trial", "consumer": "bread", "quota": "blocked"}));
    assert_eq!(request(gateway, "/own", BREAD).status, 200);
}

#[test]
fn a_key_precedes_its_consumer_and_its_plan() {
    let own = WithFile::start();
    let gateway = &own.gateway;
    let tier = format!("{BREAD}X-Tier: big\r\n");
    assert_eq!(quota(gateway, BREAD).0, 5, "the limit's own");
    assert_eq!(quota(gateway, &tier).0, 10, "the tier");
    assert_eq!(quota(gateway, &format!("{ACME}X-Tier: big\r\n")).0, 20, "the plan");
    let by_plan = set(gateway, &json!({"limit": "each", "plan": "gold", "quota": 30}));
    assert_eq!(quota(gateway, ACME).0, 30);
    assert_eq!(quota(gateway, &tier).0, 10, "of another plan");
    let by_consumer = set(gateway, &json!({"limit": "each", "consumer": "acme", "quota": 50}));
    assert_eq!(quota(gateway, ACME).0, 50);
    let by_key = set(gateway, &json!({"limit": "each", "key": "acme", "quota": 60}));
    assert_eq!(quota(gateway, ACME).0, 60);
    let seen = ask(gateway, "GET /api/limits/each?key=acme", "").json();
    assert_eq!((&seen["limit"], &seen["override"]["id"]), (&60.into(), &by_key["id"]));
    assert_eq!(seen["override"]["hash"], seen["hash"]);
    for (lifted, next) in [(by_key, 50), (by_consumer, 30), (by_plan, 20)] {
        lift(gateway, &lifted);
        assert_eq!(quota(gateway, ACME).0, next);
    }
    set(gateway, &json!({"limit": "each", "consumer": "bread", "quota": 9}));
    assert_eq!(quota(gateway, &tier).0, 9, "an override precedes a tier");
}

#[test]
fn a_route_without_auth_is_overridden_by_key() {
    let own = WithFile::start();
    let gateway = &own.gateway;
    let limit = |caller: &str| {
        request(gateway, "/open", &format!("X-Caller: {caller}\r\n")).number("x-ratelimit-limit")
    };
    let body = json!({"limit": "caller", "key": ["a secret"], "quota": 7});
    let described = set(gateway, &body);
    assert_eq!((limit("a secret"), limit("b")), (7, 3));
    let hash = ask(gateway, "GET /api/limits/caller?key=a+secret", "").json();
    assert_eq!(hash["hash"], described["hash"]);
    set(gateway, &json!({"limit": "caller", "hash": hash["hash"], "quota": 9}));
    assert_eq!(limit("a secret"), 9);
    // The value is in no file, list or answer: it may be a token.
    let file = std::fs::read_to_string(own.path()).expect("a file");
    assert!(!file.contains("a secret") && file.contains(hash["hash"].as_str().unwrap()), "{file}");
    assert!(!list(gateway).to_string().contains("a secret"));
    // The file keeps the secret of the hash, so the override outlives the process.
    let own = own.restarted();
    let limit =
        request(&own.gateway, "/open", "X-Caller: a secret\r\n").number("x-ratelimit-limit");
    assert_eq!(limit, 9);
    // Callers without the header are counted by their address.
    let body = json!({"limit": "caller", "key": "", "client_ip": "127.0.0.1", "quota": 11});
    set(&own.gateway, &body);
    assert_eq!(request(&own.gateway, "/open", "").number("x-ratelimit-limit"), 11);
}

#[test]
fn an_override_without_a_known_target_says_so() {
    let own = WithFile::start();
    for (target, name, note) in [
        ("consumer", "acme", None),
        ("consumer", "acne", Some("no consumer in the list is called `acne`")),
        ("plan", "gold", None),
        ("plan", "golden", Some("has no plan `golden`")),
        ("hash", &"0".repeat(32), None),
    ] {
        let described = set(&own.gateway, &json!({"limit": "each", target: name, "quota": 9}));
        let notes = described["notes"].as_array().expect("notes");
        assert_eq!(notes.len(), usize::from(note.is_some()), "{name}: {notes:?}");
        let has = |note: &str| notes[0].as_str().is_some_and(|own| own.contains(note));
        assert!(note.is_none_or(has), "{name}: {notes:?}");
    }
    let listed = list(&own.gateway);
    let noted = listed["overrides"].as_array().expect("a list").iter();
    assert_eq!(noted.filter(|own| own["notes"] != json!([])).count(), 2, "{listed}");
}

#[test]
fn a_consumer_that_redis_lacks_is_noted() {
    let redis = RedisServer::start();
    let gateway = Gateway::start(&fill(
        "
        store: {redis: {shards: [{primary: '{redis}'}]}}
        consumers: {redis: true}
        upstreams: {hello: {respond: {body: hello}}}
        limits: {each: {quota: 5, window: 1h, key: [consumer]}}
        routes: [{name: all, upstream: hello, limits: [each]}]
        ",
        [("redis", redis.url())],
    ));
    let body = json!({"limit": "each", "consumer": "acme", "quota": 9});
    let notes = set(&gateway, &body)["notes"].clone();
    assert!(notes[0].as_str().is_some_and(|note| note.contains("is called `acme`")), "{notes}");
    let record = json!({"name": "acme"}).to_string();
    let length = record.len();
    let head = format!(
        "POST /api/consumers HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
    );
    let created = Client::connect(gateway.admin()).send(head + &record).read_response();
    assert_eq!(created.status, 201, "{}", created.text());
    assert_eq!(set(&gateway, &body)["notes"], json!([]));
}

#[test]
fn an_ended_override_disappears_by_itself() {
    let own = WithFile::start();
    let gateway = &own.gateway;
    let until = humantime::format_rfc3339(
        std::time::UNIX_EPOCH + std::time::Duration::from_millis(START + 60_000),
    );
    let body =
        json!({"limit": "each", "consumer": "bread", "quota": 9, "until": until.to_string()});
    let described = set(gateway, &body);
    assert_eq!(described["until_ms"], START + 60_000);
    let text = described["until"].as_str().expect("a time");
    assert_eq!(
        humantime::parse_rfc3339(text).ok(),
        humantime::parse_rfc3339(&until.to_string()).ok()
    );
    assert_eq!(quota(gateway, BREAD).0, 9);
    own.clock.set(StoreTime::from_unix_ms(START + 59_999));
    assert_eq!(quota(gateway, BREAD).0, 9);
    assert_eq!(gateway.metric("tidegate_overrides "), 1);
    own.clock.set(StoreTime::from_unix_ms(START + 60_000));
    assert_eq!(quota(gateway, BREAD), (5, 3), "the count stays");
    assert_eq!(gateway.metric("tidegate_overrides "), 0);
    assert_eq!(list(gateway)["overrides"][0]["in_force"], false);
    // The next change removes it.
    set(gateway, &json!({"limit": "each", "consumer": "acme", "quota": 9}));
    assert_eq!(list(gateway)["total"], 1);
}

#[test]
fn the_status_route_and_the_state_show_it() {
    let own = WithFile::start();
    let gateway = &own.gateway;
    let status = || request(gateway, "/status", BREAD).json()["resources"]["each"].clone();
    assert_eq!(status()["limit"], 5);
    assert!(status().get("override").is_none());
    set(gateway, &json!({"limit": "each", "consumer": "bread", "quota": 9, "reason": "private"}));
    assert_eq!((&status()["limit"], &status()["override"]), (&9.into(), &json!({"until": null})));
    let body = json!({"limit": "each", "consumer": "bread", "quota": 9, "until": "2100-01-01"});
    set(gateway, &body);
    assert_eq!(status()["override"], json!({"until": 4_102_444_800_u64}));
    assert!(!request(gateway, "/status", BREAD).text().contains("private"));
    let state = ask(gateway, "GET /api/state", "").json();
    assert_eq!(state["overrides"]["total"], 1);
    assert_eq!(
        (&state["overrides"]["place"], &state["overrides"]["version"]),
        (&"file".into(), &3.into())
    );
}

#[test]
fn a_reload_keeps_overrides_and_reports_the_ones_that_no_longer_fit() {
    let own = WithFile::start();
    let gateway = &own.gateway;
    set(gateway, &json!({"limit": "each", "consumer": "bread", "quota": 8}));
    set(gateway, &json!({"limit": "caller", "key": "a", "quota": "9/1h"}));
    assert_eq!(quota(gateway, BREAD), (8, 1));
    let place = format!("overrides: {{file: '{}'}}", own.path().display());
    let reload = |from: &str, to: &str| gateway.reload(&rules(&place).replace(from, to));
    reload("caller: {quota: 3, window: 1h", "caller: {quota: 3, window: 2h").expect("a reload");
    assert_eq!(quota(gateway, BREAD), (8, 2), "the same override and count");
    let caller = || request(gateway, "/open", "X-Caller: a\r\n").number("x-ratelimit-limit");
    assert_eq!(caller(), 3, "9/1h is no quota of this window");
    let all = list(gateway);
    let faults: Vec<&str> = all["overrides"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|own| own["fault"].as_str())
        .collect();
    assert_eq!(faults.len(), 1, "{all}");
    assert!(faults[0].contains("`9/1h`, though the window of `caller` is 2h"), "{faults:?}");
    // A renumbered limit keeps its override.
    reload("limits:\n", "limits:\n  a-new-one: {quota: 1, window: 1h, key: []}\n")
        .expect("a reload");
    assert_eq!(quota(gateway, BREAD), (8, 3));
    assert_eq!(caller(), 9);
    let moved = rules("overrides: {file: /elsewhere.yaml}");
    let refused = gateway.reload(&moved).expect_err("a key that cannot change");
    assert!(refused.contains("`overrides` cannot change on reload"), "{refused}");
}

#[test]
fn a_lease_of_permits_follows_the_override() {
    let own = WithFile::start();
    set(&own.gateway, &json!({"limit": "parallel", "consumer": "bread", "quota": 1}));
    let seen = ask(&own.gateway, "GET /api/limits/parallel?key=bread", "").json();
    assert_eq!((&seen["limit"], &seen["used"]), (&1.into(), &0.into()));
    for _ in 0..3 {
        // The permit of the last request is released after its response.
        eventually("a permit", || request(&own.gateway, "/work", BREAD).status == 200);
    }
}

#[test]
fn faulty_requests_change_nothing() {
    let own = WithFile::start();
    let gateway = &own.gateway;
    for (body, status, expected) in [
        (json!({"limit": "eac", "consumer": "a", "quota": 5}), 404, "/api/limits lists"),
        (
            json!({"limit": "each", "consumer": "a", "quota": "5/1m"}),
            400,
            "though the window of `each` is 1h",
        ),
        (
            json!({"limit": "each", "consumer": "a", "quota": 5, "until": "2001-01-01"}),
            400,
            "`until` has passed",
        ),
        (
            json!({"limit": "each", "key": ["a", "b"], "quota": 5}),
            400,
            "`key` has 2 values; expected 1",
        ),
        (
            json!({"limit": "address", "client_ip": "192.0.2.1", "quota": 5}),
            400,
            "`key` has no value; expected the caller's address",
        ),
        (
            json!({"limit": "caller", "key": "", "quota": 5}),
            400,
            "expected `client_ip` in addition",
        ),
        (json!({"limit": "each", "consumer": "a"}), 400, "no `quota`"),
        (json!({"limit": "each", "quota": 5}), 400, "no target"),
        (json!([]), 400, "expected an object"),
    ] {
        let response = ask(gateway, "PUT /api/overrides", &body.to_string());
        assert_eq!(response.status, status, "{body}: {}", response.text());
        assert!(response.text().contains(expected), "{body}: {}", response.text());
    }
    for (line, status) in [
        ("GET /api/overrides?count=0", 400),
        ("GET /api/overrides?from=1", 400),
        ("DELETE /api/overrides/1", 400),
        ("DELETE /api/overrides/00000000000000000000000000000000", 404),
    ] {
        assert_eq!(ask(gateway, line, "").status, status, "{line}");
    }
    assert_eq!(list(gateway)["total"], 0);
    assert!(!own.path().exists());
    let nowhere = Gateway::start(&rules(""));
    let body = json!({"limit": "each", "consumer": "a", "quota": 5}).to_string();
    let refused = ask(&nowhere, "PUT /api/overrides", &body);
    assert_eq!(refused.status, 409);
    assert!(refused.text().contains("`overrides.file`"), "{}", refused.text());
    assert_eq!(list(&nowhere)["place"], "none");
}

#[test]
fn the_list_has_pages() {
    let own = WithFile::start();
    let gateway = &own.gateway;
    for number in 0..7 {
        set(gateway, &json!({"limit": "each", "consumer": format!("c{number}"), "quota": 5}));
    }
    let (mut seen, mut query) = (Vec::new(), "count=3".to_owned());
    loop {
        let page = ask(gateway, &format!("GET /api/overrides?{query}"), "").json();
        assert_eq!(page["total"], 7);
        let overrides = page["overrides"].as_array().expect("a list");
        assert!(overrides.len() <= 3);
        seen.extend(overrides.iter().map(|own| own["consumer"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        query = format!("count=3&after={next}");
    }
    seen.sort_unstable();
    assert_eq!(seen, ["c0", "c1", "c2", "c3", "c4", "c5", "c6"]);
}

#[test]
fn a_client_that_obeys_the_headers_is_admitted_across_changes() {
    let own = WithFile::start();
    let (gateway, clock) = (&own.gateway, &own.clock);
    let mut quotas = [3, 8, 1, 6].iter().cycle();
    let mut refused_after_wait = 0;
    for _ in 0..40 {
        let response = request(gateway, "/own", BREAD);
        match response.status {
            200 => {
                let remaining = response.number("x-ratelimit-remaining");
                if remaining == 0 {
                    set(
                        gateway,
                        &json!({"limit": "each", "consumer": "bread", "quota": quotas.next()}),
                    );
                }
            }
            429 => {
                // The answer is truthful: after the wait that it asks for, a request is admitted.
                let wait = response.number("retry-after");
                let now = clock.store_time().after(ms(wait * 1_000));
                clock.set(now);
                let next = request(gateway, "/own", BREAD);
                refused_after_wait += u32::from(next.status != 200);
            }
            status => panic!("{status}"),
        }
    }
    assert_eq!(refused_after_wait, 0);
}
