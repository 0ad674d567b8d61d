//! Chromium in the waiting room: the page shows the place, moves up, and becomes the service's own
//! page, without a script.

use std::{io::Write, time::Duration};

use testkit::{
    client::{Client, get},
    gateway::Gateway,
    upstream::Upstream,
    wait::{eventually, sleep},
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime, ms};

use crate::devtools::Browser;

const RULES: &str = "
client: {token: ['cookie:session']}
upstreams: {app: {targets: ['{target}']}}
throttle: {max_active: 10, resume_below: 9, memory: 1m, capacity: 1000, waiting_room: {}}
routes:
  - {name: all, match: {path: '/{*rest}'}, upstream: app}
  - {name: login, match: {path: /login}, upstream: app, throttle: false}
";

/// An upstream whose login gives out a session.
fn app() -> Upstream {
    Upstream::with_handler(|request, socket| {
        let is_login = request.starts_with(b"GET /login");
        let cookie = if is_login { "Set-Cookie: session=browser\r\n" } else { "" };
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n{cookie}Content-Length: 7\r\n\r\n"
        );
        socket.write_all(format!("{head}welcome").as_bytes()).is_ok()
    })
}

/// Two seconds pass, and the throttle ticks.
fn tick(gateway: &Gateway, clock: &Clock) {
    let now = clock.store_time() + ms(2_000);
    clock.set(now);
    let state = || get(gateway.admin(), "/api/throttle", "").json();
    eventually("a tick", || state()["updated_at_ms"] == now.as_unix_ms());
}

fn ask(gateway: &Gateway, session: &str) -> u16 {
    Client::connect(gateway.address()).get("/", &format!("Cookie: session={session}\r\n")).status
}

#[test]
fn a_browser_waits_moves_up_and_gets_in() {
    let upstream = app();
    let clock = Clock::manual(StoreTime::from_unix_ms(1_700_000_050_000));
    let gateway = Gateway::start_at(&fill(RULES, [("target", upstream.target())]), clock.clone());
    for user in 0..12 {
        assert_eq!(ask(&gateway, &format!("user-{user}")), 200);
    }
    (0..5).for_each(|_| tick(&gateway, &clock));
    assert_eq!(ask(&gateway, "gives-up"), 429);
    (0..2).for_each(|_| tick(&gateway, &clock));

    let mut browser = Browser::start();
    browser.open(&format!("http://{}/login", gateway.address()));
    browser.open(&format!("http://{}/", gateway.address()));
    let mut seen: Vec<String> = Vec::new();
    for _ in 0..300 {
        // A page that has arrived in part lacks the place.
        let is_whole = "document.readyState === 'complete'";
        let text = browser.eval(&format!("{is_whole} ? document.body.innerText : ''"));
        let text = text.as_str().unwrap_or_default();
        let place = text.split_once("You are number ").and_then(|(_, rest)| rest.split_once(' '));
        let now = place.map_or(text.to_owned(), |(place, _)| place.to_owned());
        if !now.is_empty() && seen.last() != Some(&now) {
            seen.push(now);
        }
        if text == "welcome" {
            break;
        }
        sleep(Duration::from_millis(400));
        tick(&gateway, &clock);
    }
    assert_eq!(seen, ["2", "1", "welcome"], "{}", get(gateway.admin(), "/api/throttle", "").text());
}
