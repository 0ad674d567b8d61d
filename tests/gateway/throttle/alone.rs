use std::io::Write;

use super::{Crowd, MINUTE, check_refusal, tokens};
use crate::{client::Client, upstream::Upstream, wait::eventually};

const SETTINGS: &str = "max_active: 20, resume_below: 18, capacity: 1000";

#[test]
fn those_who_are_in_stay_in_and_newcomers_wait() {
    let crowd = Crowd::start(1, None, SETTINGS);
    crowd.fill("user", 25);
    crowd.ask_all(tokens("user", 25), 200);
    let before = crowd.upstream.count();
    let refused = crowd.ask(0, "newcomer", "/a");
    check_refusal(&refused, 20, crowd.clock.now());
    check_refusal(&crowd.ask(0, "", "/a"), 20, crowd.clock.now());
    assert_eq!(crowd.upstream.count(), before, "nothing of it reached the upstream");
    assert_eq!(crowd.ask(0, "newcomer", "/health").status, 200, "a route that opted out");
    assert_eq!(crowd.ask(0, "newcomer", "/a").status, 429, "which makes nobody known");
}

#[test]
fn a_dozen_users_are_no_crowd() {
    let crowd = Crowd::start(1, None, SETTINGS);
    crowd.ask_all(tokens("user", 20), 200);
    for _ in 0..10 {
        crowd.tick();
    }
    assert_eq!(crowd.state(0)["throttling"], false, "20 are not more than 20");
    assert_eq!(crowd.ask(0, "newcomer", "/a").status, 200);
}

#[test]
fn an_idle_token_is_forgotten_and_a_busy_one_never() {
    let crowd = Crowd::start(1, None, "max_active: 20, memory: 30m, capacity: 1000, mode: 'on'");
    crowd.gateways[0].put_mode("off");
    crowd.ask_all(["busy", "idle", "late"].map(str::to_owned).into_iter(), 200);
    crowd.gateways[0].put_mode("on");
    for minute in 1..=40 {
        crowd.pass(MINUTE);
        if minute % 5 == 0 {
            assert_eq!(crowd.ask(0, "busy", "/a").status, 200, "minute {minute}");
        }
        if minute == 29 {
            assert_eq!(crowd.ask(0, "late", "/a").status, 200, "it is known for 30 minutes");
        }
    }
    assert_eq!(crowd.ask(0, "idle", "/a").status, 429);
    assert_eq!(crowd.ask(0, "late", "/a").status, 200);
    crowd.pass(31 * MINUTE);
    for token in ["busy", "late"] {
        assert_eq!(crowd.ask(0, token, "/a").status, 429, "{token} has been idle");
    }
}

#[test]
fn a_token_is_known_to_the_end_of_its_memory() {
    let crowd = Crowd::start(1, None, "max_active: 20, memory: 5m, capacity: 1000");
    for (idle, status) in [(5 * MINUTE - 1, 200), (5 * MINUTE, 200), (6 * MINUTE + 3_000, 429)] {
        crowd.gateways[0].put_mode("off");
        crowd.pass(20 * MINUTE);
        assert_eq!(crowd.ask(0, "user", "/a").status, 200);
        crowd.gateways[0].put_mode("on");
        crowd.pass(idle);
        assert_eq!(crowd.ask(0, "user", "/a").status, status, "idle for {idle} ms");
    }
}

#[test]
fn made_up_tokens_beside_a_good_one_make_nobody_active() {
    let crowd = Crowd::start(1, None, SETTINGS);
    let mut client = Client::connect(crowd.gateways[0].address());
    let mut ask = |headers: String| client.get("/a", &headers).status;
    for index in 0..300 {
        assert_eq!(ask(format!("Authorization: good\r\nCookie: session=up{index}\r\n")), 200);
        assert_eq!(ask(format!("Authorization: up{index}\r\nCookie: session=good\r\n")), 200);
    }
    for _ in 0..5 {
        crowd.tick();
    }
    // Two good ones, and what came with each before anybody knew it.
    let active = crowd.state(0)["active"].as_u64().expect("a number");
    assert!(active <= 5, "{active} active");
    assert_eq!(crowd.state(0)["throttling"], false);
    crowd.gateways[0].put_mode("on");
    assert_eq!(ask("Cookie: session=up299\r\n".into()), 429, "it is nobody's");
    assert_eq!(ask("Authorization: good\r\nCookie: session=other\r\n".into()), 200);
}

#[test]
fn made_up_tokens_move_nothing_and_pass_nowhere() {
    let crowd = Crowd::start(1, None, SETTINGS);
    crowd.ask_all(tokens("user", 10), 200);
    crowd.tick();
    let before = crowd.state(0);
    crowd.ask_all(tokens("bad", 500), 401);
    crowd.ask_all(tokens("poor", 500), 403);
    for _ in 0..5 {
        crowd.tick();
    }
    assert_eq!(crowd.state(0)["active"], before["active"]);
    assert_eq!(crowd.state(0)["throttling"], false);
    assert_eq!(crowd.gateways[0].metric("tidegate_throttle_remembered_total"), 10);
    crowd.fill("user", 30);
    let asked = crowd.upstream.count();
    crowd.ask_all(tokens("bad", 100), 429);
    crowd.ask_all(tokens("poor", 100), 429);
    assert_eq!(crowd.upstream.count(), asked);
}

#[test]
fn a_token_that_was_turned_away_is_not_let_in_by_what_was_known() {
    let crowd = Crowd::start(1, None, "max_active: 1, capacity: 1000");
    // A token that the upstream takes at first: as if it had been revoked in between.
    assert_eq!(crowd.ask(0, "revoked", "/a").status, 200);
    assert_eq!(crowd.ask(0, "revoked", "/bad-").status, 401);
    crowd.fill("user", 5);
    assert_eq!(crowd.ask(0, "revoked", "/a").status, 429, "though it was seen");
    let rejected = "tidegate_throttle_decisions_total{decision=\"rejected\"";
    assert_eq!(crowd.gateways[0].metric(rejected), 1);
    assert_eq!(
        crowd.gateways[0].metric("tidegate_throttle_decisions_total{decision=\"unknown\""),
        0
    );
    // 403 is about what was asked for, not about who asks: an active user is not put out for it.
    assert_eq!(crowd.ask(0, "user-1", "/poor-").status, 403);
    assert_eq!(crowd.ask(0, "user-1", "/a").status, 200);
}

#[test]
fn the_refused_return_one_by_one_and_each_is_told_the_same_again() {
    let crowd = Crowd::start(1, None, SETTINGS);
    crowd.fill("user", 25);
    let mut resets: Vec<u64> = Vec::new();
    for token in tokens("newcomer", 200) {
        let first = crowd.ask(0, &token, "/a").number("X-RateLimit-Reset");
        crowd.tick();
        let second = crowd.ask(0, &token, "/a").number("X-RateLimit-Reset");
        assert!(second >= first, "a reset moved back: {first}, then {second}");
        resets.push(first);
    }
    resets.sort_unstable();
    resets.dedup();
    assert!(resets.len() > 50, "200 newcomers come back at {} times", resets.len());
}

#[test]
fn the_house_opens_again_when_enough_have_left() {
    let crowd =
        Crowd::start(1, None, "max_active: 20, resume_below: 18, memory: 2m, capacity: 1000");
    crowd.fill("user", 25);
    let told = crowd.ask(0, "newcomer", "/a").number("X-RateLimit-Reset");
    let mut opened = None;
    for _ in 0..400 {
        crowd.tick();
        if crowd.state(0)["throttling"] == false {
            opened = Some(crowd.clock.now() / 1000);
            break;
        }
    }
    let opened = opened.expect("it opens again");
    assert!(told + 400 > opened, "told {told}, opened {opened}");
    assert_eq!(crowd.ask(0, "newcomer", "/a").status, 200);
}

#[test]
fn known_tokens_still_have_their_limits() {
    let crowd = Crowd::start(1, None, SETTINGS);
    crowd.fill("user", 25);
    let reply = crowd.ask(0, "user-3", "/a");
    assert_eq!(reply.header("X-RateLimit-Resource"), Some("each"));
    assert_eq!(reply.number("X-RateLimit-Used"), 2);
    assert_eq!(crowd.ask(0, "newcomer", "/a").status, 429);
    crowd.gateways[0].put_mode("off");
    assert_eq!(crowd.ask(0, "newcomer", "/a").number("X-RateLimit-Used"), 1, "no charge before");
}

#[test]
fn who_is_answered_for_an_hour_is_active_all_that_time() {
    let mut crowd = Crowd::start(1, None, "max_active: 20, capacity: 1000, mode: 'off'");
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let ended = std::sync::Mutex::new(ended);
    let slow = Upstream::with(move |_, socket| {
        let began = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab").is_ok();
        let _ = ended.lock().expect("no test panics with it").recv();
        began && socket.write_all(b"cd").is_ok()
    });
    let yaml = crowd.yaml.replace(&crowd.upstream.target(), &slow.target());
    crowd.gateways[0].reload(&yaml).expect("it reloads");
    let mut client = Client::connect(crowd.gateways[0].address());
    client.send("GET /a HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer listener\r\n\r\n");
    eventually("it is answered", || slow.count() == 1);
    crowd.until("known", |state| state["active"] == 1);
    crowd.pass(60 * MINUTE);
    end.send(()).expect("it waits");
    assert_eq!(client.reply().text(), "abcd");
    crowd.upstream = super::api();
    let yaml = yaml.replace(&slow.target(), &crowd.upstream.target());
    crowd.gateways[0].reload(&yaml).expect("it reloads");
    crowd.gateways[0].put_mode("on");
    assert_eq!(crowd.ask(0, "listener", "/a").status, 200);
    assert_eq!(crowd.ask(0, "newcomer", "/a").status, 429);
}

#[test]
fn one_refused_token_is_not_held_against_its_user_for_long() {
    let crowd = Crowd::start(1, None, SETTINGS);
    crowd.fill("user", 25);
    assert_eq!(crowd.ask(0, "user-1", "/bad-").status, 401);
    assert_eq!(crowd.ask(0, "user-1", "/a").status, 429, "it may have been revoked");
    crowd.pass(2 * MINUTE);
    assert_eq!(crowd.ask(0, "user-1", "/a").status, 200, "it has not been forgotten");
}

#[test]
fn a_token_sent_twice_is_nobodys() {
    let crowd = Crowd::start(1, None, SETTINGS);
    let twice = "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n";
    let reply = crate::client::get(crowd.gateways[0].address(), "/a", twice);
    assert_eq!(reply.status, 400, "{}", reply.head);
    assert_eq!(crowd.upstream.count(), 0);
}
