use std::io::Write;

use testkit::{
    client::get,
    protocol::{Protocol, on_every_protocol},
    upstream::Upstream,
    wait::eventually,
};

use super::{MINUTE, ThrottleFleet, assert_throttled_response, operator::put_mode, tokens};

const SETTINGS: &str = "max_active: 20, resume_below: 18, capacity: 1000";

#[test]
fn active_users_are_admitted_and_new_users_refused() {
    let fleet = ThrottleFleet::in_memory(SETTINGS);
    fleet.fill("user", 25);
    fleet.ask_all(tokens("user", 25), 200);
    let before = fleet.upstream.request_count();
    let refused = fleet.ask(0, "newcomer", "/a");
    assert_throttled_response(&refused, 20, fleet.clock.store_time().as_unix_ms());
    assert_throttled_response(&fleet.ask(0, "", "/a"), 20, fleet.clock.store_time().as_unix_ms());
    assert_eq!(fleet.upstream.request_count(), before, "the upstream receives no denied request");
    assert_eq!(fleet.ask(0, "newcomer", "/health").status, 200, "a route that opted out");
    assert_eq!(fleet.ask(0, "newcomer", "/a").status, 429, "a denied request records no activity");
}

#[test]
fn few_users_are_never_throttled() {
    let fleet = ThrottleFleet::in_memory(SETTINGS);
    fleet.ask_all(tokens("user", 20), 200);
    for _ in 0..10 {
        fleet.tick();
    }
    assert_eq!(fleet.state(0)["throttling"], false, "20 users are not above the threshold");
    assert_eq!(fleet.ask(0, "newcomer", "/a").status, 200);
}

#[test]
fn idle_tokens_expire_and_busy_ones_do_not() {
    let fleet = ThrottleFleet::in_memory("max_active: 20, memory: 30m, capacity: 1000, mode: 'on'");
    put_mode(&fleet.gateways[0], "off");
    fleet.ask_all(["busy", "idle", "late"].map(str::to_owned).into_iter(), 200);
    put_mode(&fleet.gateways[0], "on");
    for minute in 1..=40 {
        fleet.advance(MINUTE);
        if minute % 5 == 0 {
            assert_eq!(fleet.ask(0, "busy", "/a").status, 200, "minute {minute}");
        }
        if minute == 29 {
            assert_eq!(fleet.ask(0, "late", "/a").status, 200, "it is known for 30 minutes");
        }
    }
    assert_eq!(fleet.ask(0, "idle", "/a").status, 429);
    assert_eq!(fleet.ask(0, "late", "/a").status, 200);
    fleet.advance(31 * MINUTE);
    for token in ["busy", "late"] {
        assert_eq!(fleet.ask(0, token, "/a").status, 429, "{token} has been idle");
    }
}

#[test]
fn a_token_is_active_until_the_end_of_its_memory() {
    let fleet = ThrottleFleet::in_memory("max_active: 20, memory: 5m, capacity: 1000");
    for (idle, status) in [(5 * MINUTE - 1, 200), (5 * MINUTE, 200), (6 * MINUTE + 3_000, 429)] {
        put_mode(&fleet.gateways[0], "off");
        fleet.advance(20 * MINUTE);
        assert_eq!(fleet.ask(0, "user", "/a").status, 200);
        put_mode(&fleet.gateways[0], "on");
        fleet.advance(idle);
        assert_eq!(fleet.ask(0, "user", "/a").status, status, "idle for {idle} ms");
    }
}

#[test]
fn invalid_tokens_beside_a_valid_one_record_no_activity() {
    let fleet = ThrottleFleet::in_memory(SETTINGS);
    let mut client = fleet.next_protocol().connect(&fleet.gateways[0]);
    let mut ask = |headers: String| client.get("/a", &headers).status;
    for index in 0..300 {
        assert_eq!(ask(format!("Authorization: good\r\nCookie: session=up{index}\r\n")), 200);
        assert_eq!(ask(format!("Authorization: up{index}\r\nCookie: session=good\r\n")), 200);
    }
    for _ in 0..5 {
        fleet.tick();
    }
    // Two valid tokens, and the invalid ones sent with each before it was known.
    let active = fleet.state(0)["active"].as_u64().expect("a number");
    assert!(active <= 5, "{active} active");
    assert_eq!(fleet.state(0)["throttling"], false);
    put_mode(&fleet.gateways[0], "on");
    assert_eq!(ask("Cookie: session=up299\r\n".into()), 429, "only ever sent beside a valid token");
    assert_eq!(ask("Authorization: good\r\nCookie: session=other\r\n".into()), 200);
}

#[test]
fn invalid_tokens_neither_count_nor_pass() {
    let fleet = ThrottleFleet::in_memory(SETTINGS);
    fleet.ask_all(tokens("user", 10), 200);
    fleet.tick();
    let before = fleet.state(0);
    fleet.ask_all(tokens("bad", 500), 401);
    fleet.ask_all(tokens("poor", 500), 403);
    for _ in 0..5 {
        fleet.tick();
    }
    assert_eq!(fleet.state(0)["active"], before["active"]);
    assert_eq!(fleet.state(0)["throttling"], false);
    assert_eq!(fleet.gateways[0].metric("tidegate_throttle_recorded_total"), 10);
    fleet.fill("user", 30);
    let asked = fleet.upstream.request_count();
    fleet.ask_all(tokens("bad", 100), 429);
    fleet.ask_all(tokens("poor", 100), 429);
    assert_eq!(fleet.upstream.request_count(), asked);
}

#[test]
fn a_denied_token_is_not_admitted_by_earlier_activity() {
    let fleet = ThrottleFleet::in_memory("max_active: 1, capacity: 1000");
    // A token that the upstream accepts at first, as if it were revoked later.
    assert_eq!(fleet.ask(0, "revoked", "/a").status, 200);
    assert_eq!(fleet.ask(0, "revoked", "/bad-").status, 401);
    fleet.fill("user", 5);
    assert_eq!(fleet.ask(0, "revoked", "/a").status, 429, "despite its earlier activity");
    let rejected = "tidegate_throttle_decisions_total{decision=\"rejected\"";
    assert_eq!(fleet.gateways[0].metric(rejected), 1);
    assert_eq!(
        fleet.gateways[0].metric("tidegate_throttle_decisions_total{decision=\"unknown\""),
        0
    );
    // 403 concerns the resource, not the caller: an active user stays active.
    assert_eq!(fleet.ask(0, "user-1", "/poor-").status, 403);
    assert_eq!(fleet.ask(0, "user-1", "/a").status, 200);
}

#[test]
fn denied_users_retry_and_get_the_same_response() {
    let fleet = ThrottleFleet::in_memory(SETTINGS);
    fleet.fill("user", 25);
    let mut resets: Vec<u64> = Vec::new();
    for token in tokens("newcomer", 200) {
        let first = fleet.ask(0, &token, "/a").number("X-RateLimit-Reset");
        fleet.tick();
        let second = fleet.ask(0, &token, "/a").number("X-RateLimit-Reset");
        assert!(second >= first, "a reset moved back: {first}, then {second}");
        resets.push(first);
    }
    resets.sort_unstable();
    resets.dedup();
    assert!(resets.len() > 50, "200 denied users would retry at {} different times", resets.len());
}

#[test]
fn admission_reopens_below_the_resume_threshold() {
    let fleet =
        ThrottleFleet::in_memory("max_active: 20, resume_below: 18, memory: 2m, capacity: 1000");
    fleet.fill("user", 25);
    let retry_at = fleet.ask(0, "newcomer", "/a").number("X-RateLimit-Reset");
    let mut reopened_at = None;
    for _ in 0..400 {
        fleet.tick();
        if fleet.state(0)["throttling"] == false {
            reopened_at = Some(fleet.clock.store_time().as_unix_ms() / 1000);
            break;
        }
    }
    let reopened_at = reopened_at.expect("admission reopens");
    assert!(retry_at + 400 > reopened_at, "retry_at {retry_at}, reopened_at {reopened_at}");
    assert_eq!(fleet.ask(0, "newcomer", "/a").status, 200);
}

#[test]
fn active_users_are_still_rate_limited() {
    let fleet = ThrottleFleet::in_memory(SETTINGS);
    fleet.fill("user", 25);
    let response = fleet.ask(0, "user-3", "/a");
    assert_eq!(response.header("X-RateLimit-Resource"), Some("each"));
    assert_eq!(response.number("X-RateLimit-Used"), 2);
    assert_eq!(fleet.ask(0, "newcomer", "/a").status, 429);
    put_mode(&fleet.gateways[0], "off");
    assert_eq!(
        fleet.ask(0, "newcomer", "/a").number("X-RateLimit-Used"),
        1,
        "a denied request charges no limit"
    );
}

#[test]
fn a_response_that_lasts_an_hour_keeps_its_user_active() {
    let mut fleet = ThrottleFleet::in_memory("max_active: 20, capacity: 1000, mode: 'off'");
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let ended = std::sync::Mutex::new(ended);
    let slow = Upstream::with_handler(move |_, socket| {
        let began = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab").is_ok();
        let _ = ended.lock().expect("not poisoned").recv();
        began && socket.write_all(b"cd").is_ok()
    });
    let yaml = fleet.yaml.replace(&fleet.upstream.target(), &slow.target());
    fleet.gateways[0].reload(&yaml).expect("it reloads");
    let mut client = Protocol::Http2Tls.connect(&fleet.gateways[0]);
    client.start("GET", "/a", "Authorization: Bearer listener\r\n", false);
    eventually("the request is at the upstream", || slow.request_count() == 1);
    fleet.tick_until("known", |state| state["active"] == 1);
    fleet.advance(60 * MINUTE);
    end.send(()).expect("the upstream waits");
    assert_eq!(client.read_response().text(), "abcd");
    fleet.upstream = super::api();
    let yaml = yaml.replace(&slow.target(), &fleet.upstream.target());
    fleet.gateways[0].reload(&yaml).expect("it reloads");
    put_mode(&fleet.gateways[0], "on");
    assert_eq!(fleet.ask(0, "listener", "/a").status, 200);
    assert_eq!(fleet.ask(0, "newcomer", "/a").status, 429);
}

#[test]
fn a_rejected_token_denies_its_user_only_briefly() {
    let fleet = ThrottleFleet::in_memory(SETTINGS);
    fleet.fill("user", 25);
    assert_eq!(fleet.ask(0, "user-1", "/bad-").status, 401);
    assert_eq!(fleet.ask(0, "user-1", "/a").status, 429, "it may have been revoked");
    fleet.advance(2 * MINUTE);
    assert_eq!(fleet.ask(0, "user-1", "/a").status, 200, "its activity is kept");
}

#[test]
fn a_token_sent_twice_is_ambiguous() {
    let fleet = ThrottleFleet::in_memory(SETTINGS);
    let twice = "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n";
    on_every_protocol(|protocol| {
        let response = protocol.get(&fleet.gateways[0], "/a", twice);
        assert_eq!(response.status, 400, "{}", response.head);
    });
    assert_eq!(fleet.upstream.request_count(), 0);
}

#[test]
fn refused_callers_have_the_hash_of_limits_by_token() {
    let fleet = ThrottleFleet::in_memory("max_active: 20, capacity: 1000");
    fleet.fill("user", 25);
    for (token, requests) in [("newcomer", 4), ("", 2)] {
        for _ in 0..requests {
            assert_eq!(fleet.ask(0, token, "/a").status, 429);
        }
    }
    let read = |path: &str| get(fleet.gateways[0].admin(), path, "").json();
    let state = read("/api/state");
    let callers: Vec<_> = state["refused_callers"].as_array().expect("callers").iter().collect();
    assert_eq!(callers.len(), 2, "{callers:?}");
    for (caller, query, refused) in
        [(callers[0], "key=newcomer", 4), (callers[1], "key=&client_ip=127.0.0.1", 2)]
    {
        assert_eq!(
            (&caller["limit"], &caller["refused"]),
            (&"active-users".into(), &refused.into())
        );
        assert_eq!(caller["hash"], read(&format!("/api/limits/each?{query}"))["hash"]);
    }
}

#[test]
fn spellings_of_one_token_are_not_several_users() {
    let fleet = ThrottleFleet::in_memory(SETTINGS);
    let token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
    assert_eq!(fleet.ask(0, token, "/free").status, 200);
    for at in 0..40 {
        let spelled = format!("{}~{}", &token[..token.len() - at], &token[token.len() - at..]);
        assert_eq!(fleet.ask(0, &spelled, "/free").status, 400, "{spelled}");
    }
    fleet.tick();
    assert_eq!(fleet.state(0)["active"], 1);
}

#[test]
fn the_throttle_comes_before_the_maximum_of_the_body() {
    let fleet = ThrottleFleet::in_memory(SETTINGS);
    fleet.fill("user", 25);
    let ask = |token: &str| {
        let headers = format!("Authorization: Bearer {token}\r\nContent-Length: 11\r\n");
        get(fleet.gateways[0].address(), "/small", &headers)
    };
    assert_throttled_response(&ask("newcomer"), 20, fleet.clock.store_time().as_unix_ms());
    let known =
        || fleet.gateways[0].metric("tidegate_throttle_decisions_total{decision=\"known\"}");
    let before = known();
    assert_eq!(ask("user-0").status, 413);
    assert_eq!(known(), before + 1, "the throttle has admitted the caller");
}

#[test]
fn a_caller_is_counted_even_if_the_key_of_a_limit_is_ambiguous() {
    let fleet = ThrottleFleet::in_memory(SETTINGS);
    let twice = "Authorization: Bearer a\r\nX-Team: a\r\nX-Team: b\r\n";
    on_every_protocol(|protocol| {
        let before = fleet.state(0)["requests_with_token"].as_u64();
        assert_eq!(protocol.get(&fleet.gateways[0], "/small", twice).status, 400);
        let after = fleet.state(0)["requests_with_token"].as_u64();
        assert_eq!(after, before.map(|before| before + 1));
    });
}
