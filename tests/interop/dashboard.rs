//! The dashboard in Chromium: its figures match the metrics, its switch works, and it loads nothing
//! from another host.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use testkit::{
    client::Client, gateway::Gateway, redis_server::RedisServer, upstream::Upstream, yaml::fill,
};

use crate::devtools::Browser;

const RULES: &str = "
upstreams: {app: {targets: ['{target}', 'http://127.0.0.1:1']}}
limits:
  few: {quota: 5, window: 1h, key: [token]}
  trial: {quota: 1, window: 1h, key: [token], enforce: false}
throttle: {max_active: 1000, capacity: 1000}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: app, limits: [few, trial]}]
";

/// Sends `count` requests with `token`.
fn load(address: SocketAddr, token: &str, count: usize) {
    let mut client = Client::connect(address);
    for _ in 0..count {
        client.get("/", &format!("Authorization: {token}\r\n"));
    }
}

/// A figure of the page as a number.
fn figure(browser: &mut Browser, id: &str) -> u64 {
    let text = browser.text(id);
    text.replace(',', "").parse().unwrap_or_else(|_| panic!("{id}: {text}"))
}

/// Waits until the page shows `expected` in the element.
fn wait_for_figure(browser: &mut Browser, id: &str, expected: u64) {
    browser.wait_for(&format!(
        "document.getElementById('{id}').textContent.replaceAll(',', '') === '{expected}'"
    ));
}

/// Asserts that the page requested nothing elsewhere, and that nothing was refused or failed.
fn assert_is_clean(browser: &mut Browser, admin: SocketAddr) {
    let seen = browser.seen();
    let requests = seen["requests"].as_array().expect("requests");
    assert!(requests.len() >= 5, "{requests:?}");
    let own = format!("http://{admin}/");
    for url in requests {
        assert!(url.as_str().is_some_and(|url| url.starts_with(&own)), "{url} leaves {own}");
    }
    assert_eq!(seen["violations"], serde_json::json!([]));
    assert_eq!(seen["errors"], serde_json::json!([]));
}

#[test]
fn figures_move_under_load_and_are_those_of_the_metrics() {
    let upstream = Upstream::with_response("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let gateway = Gateway::start(&fill(RULES, [("target", upstream.target())]));
    let mut browser = Browser::start();
    browser.open(&format!("http://{}/", gateway.admin()));
    wait_for_figure(&mut browser, "total", 0);

    load(gateway.address(), "a", 30);
    load(gateway.address(), "b", 12);
    gateway.wait_for_metric("tidegate_requests_total{", 42);
    wait_for_figure(&mut browser, "total", 42);
    let refused = gateway
        .metric("tidegate_limit_decisions_total{route=\"all\",limit=\"few\",decision=\"refused\"");
    assert_eq!(refused, 32);
    assert_eq!(figure(&mut browser, "refused-total"), refused);
    assert_eq!(
        figure(&mut browser, "accepted"),
        gateway.metric("tidegate_accepted_connections_total")
    );
    browser.wait_for("document.getElementById('p50').textContent.endsWith('s')");
    browser
        .wait_for("document.querySelectorAll('polyline')[0].getAttribute('points').includes(' ')");
    // The tick of the load showed a few per second.
    let tops =
        browser.eval("[...document.querySelectorAll('.plot .top')].map((own) => own.textContent)");
    assert!(tops.as_array().is_some_and(|tops| tops.iter().all(|top| top != "")), "{tops}");

    let row = |table: &str, at: usize| {
        format!(
            "[...document.querySelectorAll('#{table} tbody tr')[{at}].cells].map((cell) => cell.textContent)"
        )
    };
    let limit = browser.eval(&row("limits", 0));
    assert_eq!((&limit[0], &limit[2], &limit[3]), (&"few".into(), &"32".into(), &"10".into()));
    let trial = browser.eval(&row("limits", 1));
    assert_eq!((&trial[0], &trial[4]), (&"trial".into(), &"40".into()), "{trial}");
    let callers = [browser.eval(&row("callers", 0)), browser.eval(&row("callers", 1))];
    assert_eq!(callers.each_ref().map(|own| own[2].as_str()), [Some("25"), Some("7")]);
    let target = browser.eval(&row("targets", 0));
    assert_eq!((&target[1], &target[2]), (&"app".into(), &"up".into()));
    let store = browser.eval("document.getElementById('store').textContent");
    let expected = "Decided requests42Charged requests10";
    assert!(store.as_str().is_some_and(|text| text.contains(expected)), "{store}");
    assert_eq!(gateway.metric("tidegate_store_charged_requests_total"), 10);
    assert_is_clean(&mut browser, gateway.admin());

    gateway.reload("routes: []").expect_err("faults");
    browser.wait_for("document.getElementById('faults').textContent.includes('no route')");
    let generation =
        gateway.reload(&fill(RULES, [("target", upstream.target())])).expect("a reload");
    browser.wait_for(&format!(
        "document.getElementById('configuration').textContent.includes('Generation{generation}Reloads')"
    ));
    browser.wait_for("document.getElementById('faults').hidden");
}

/// Asserts that the page shows the metric within a tick. Other clients keep counting meanwhile.
fn assert_follows(browser: &mut Browser, gateway: &Gateway, shown: &str, metric: &str) {
    let before = gateway.metric(metric);
    browser.wait_for(&format!("Number({shown}.replaceAll(',', '')) >= {before}"));
    let text = browser.eval(shown);
    let figure: u64 = text.as_str().expect("text").replace(',', "").parse().expect("a number");
    let after = gateway.metric(metric);
    assert!((before..=after).contains(&figure), "{metric}: {before} <= {figure} <= {after}");
}

#[test]
fn a_lost_redis_is_shown_under_load_until_it_is_back() {
    let upstream = Upstream::with_response("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let mut redis = RedisServer::start();
    let gateway = Gateway::start(&fill(
        "
        store: {redis: {shards: [{primary: '{redis}'}]}}
        upstreams: {app: {targets: ['{target}', 'http://127.0.0.1:1']}}
        limits: {many: {quota: 1000000, window: 1h, key: [token]}}
        throttle: {max_active: 1000, capacity: 1000}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: app, limits: [many]}]
        ",
        [("redis", redis.url()), ("target", upstream.target())],
    ));
    let throttle = gateway.server.shared.throttle.clone().expect("a throttle");
    load(gateway.address(), "active", 4);
    throttle.set_mode(tidegate::throttle::mode::ThrottleMode::On);
    let mut browser = Browser::start();
    browser.open(&format!("http://{}/", gateway.admin()));
    let (address, ends) = (gateway.address(), AtomicBool::new(false));
    let breaker = "document.querySelector('#servers tbody tr').cells[1].textContent";
    let calls = "document.querySelector('#servers tbody tr').cells[3].textContent";
    let total = "document.getElementById('total').textContent";
    let server = format!("tidegate_store_shard_calls_total{{shard=\"{}\"}}", redis.address());
    thread::scope(|scope| {
        let loads = ["active", "new"].map(|token| {
            let ends = &ends;
            scope.spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    load(address, token, 20);
                }
            })
        });
        for is_up in [true, false, true] {
            if is_up {
                redis.restart();
            } else {
                redis.kill();
            }
            let state = if is_up { "closed" } else { "open" };
            browser.wait_for(&format!("{breaker}.includes('{state}')"));
            assert_follows(&mut browser, &gateway, total, "tidegate_requests_total{");
            assert_follows(&mut browser, &gateway, calls, &server);
            let denied = gateway.metric("tidegate_throttle_decisions_total{decision=\"unknown\"");
            assert!(denied > 0 && browser.text("throttle-state").contains("new users are refused"));
        }
        ends.store(true, Ordering::Relaxed);
        for load in loads {
            load.join().expect("no panic");
        }
    });
    assert_is_clean(&mut browser, gateway.admin());
}

#[test]
fn the_switch_sets_the_throttles_mode() {
    let upstream = Upstream::with_response("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let gateway = Gateway::start(&fill(RULES, [("target", upstream.target())]));
    let throttle = gateway.server.shared.throttle.clone().expect("a throttle");
    let mut browser = Browser::start();
    browser.open(&format!("http://{}/", gateway.admin()));
    let pressed = "document.querySelector('[data-mode][aria-pressed=true]')?.dataset.mode";
    browser.wait_for(&format!("{pressed} === 'auto'"));
    for mode in ["on", "off", "auto"] {
        browser.eval(&format!("document.querySelector('[data-mode={mode}]').click()"));
        browser.wait_for(&format!("{pressed} === '{mode}'"));
        assert_eq!(throttle.status().mode.label(), mode);
        if mode == "on" {
            load(gateway.address(), "unknown", 1);
            browser.wait_for(
                "document.getElementById('throttle-text').textContent.includes('1 refused')",
            );
            assert!(browser.text("throttle-state").contains("new users are refused"));
        }
    }
    // The page also shows another operator's setting.
    throttle.set_mode(tidegate::throttle::mode::ThrottleMode::Off);
    browser.wait_for(&format!("{pressed} === 'off'"));
    assert_is_clean(&mut browser, gateway.admin());
}

#[test]
fn the_token_is_asked_for_once_and_kept_in_the_tab() {
    let token = tempfile::NamedTempFile::new().expect("a file");
    fs::write(token.path(), "0123456789abcdef\n").expect("a file");
    let upstream = Upstream::with_response("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let token = token.path().display();
    let gateway = Gateway::start(&fill(
        "
        admin: {address: '127.0.0.1:0', token: 'file:{token}'}
        upstreams: {app: {targets: ['{target}', 'http://127.0.0.1:1']}}
        limits: {few: {quota: 5, window: 1h, key: [token]}}
        throttle: {max_active: 1000, capacity: 1000}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: app, limits: [few]}]
        ",
        [("token", token.to_string()), ("target", upstream.target())],
    ));
    let mut browser = Browser::start();
    let url = format!("http://{}/", gateway.admin());
    browser.open(&url);
    let asks = "!document.getElementById('login').hidden && document.getElementById('main').hidden";
    browser.wait_for(asks);
    let enter = |text: &str| {
        format!(
            "document.getElementById('token').value = '{text}', document.querySelector('#login button').click()"
        )
    };
    browser.eval(&enter("0123456789abcdeX"));
    browser.wait_for("document.getElementById('login-error').textContent.includes('wrong')");
    // No header can carry it.
    browser.eval(&enter("0123456789abcdé→"));
    browser
        .wait_for("document.getElementById('login-error').textContent.includes('visible ASCII')");
    assert_eq!(browser.text("connection"), "Token needed");
    browser.eval(&enter("0123456789abcdef"));
    browser.wait_for("!document.getElementById('main').hidden");
    wait_for_figure(&mut browser, "total", 0);
    browser.eval("document.querySelector('[data-mode=on]').click()");
    browser.wait_for("document.querySelector('[data-mode=on]').ariaPressed === 'true'");

    browser.open(&url);
    browser.wait_for("!document.getElementById('main').hidden");
    assert_eq!(browser.eval("localStorage.length + document.cookie.length"), 0);
}

#[test]
fn the_form_sets_and_lifts_an_override_with_the_token() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    fs::write(path("token"), "0123456789abcdef\n").expect("a file");
    let gateway = Gateway::start(&fill(
        "
        admin: {address: '127.0.0.1:0', token: 'file:{token}'}
        overrides: {file: '{file}'}
        upstreams: {hello: {respond: {body: hello}}}
        limits: {few: {quota: 5, window: 1h, key: [consumer]}, caller: {quota: 3, window: 1h, key: [token]}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello, limits: [few, caller]}]
        ",
        [("token", path("token")), ("file", path("overrides.yaml"))],
    ));
    let mut browser = Browser::start();
    browser.open(&format!("http://{}/", gateway.admin()));
    browser.wait_for("!document.getElementById('login').hidden");
    browser.eval("document.getElementById('token').value = '0123456789abcdef', document.querySelector('#login button').click()");
    browser.wait_for("document.getElementById('override-limits').children.length === 2");
    assert!(browser.text("override-place").contains("overrides.file"));
    let fill_in = |values: &[(&str, &str)]| {
        let set = values.iter().map(|(id, value)| {
            format!("document.getElementById('override-{id}').value = '{value}'; ")
        });
        format!(
            "{}document.querySelector('#override-form button').click()",
            set.collect::<String>()
        )
    };
    let row = |cell: usize| {
        format!("document.querySelector('#overrides tbody tr')?.cells[{cell}].textContent")
    };
    // A refused one is explained, and the form keeps its values.
    let values = [("limit", "few"), ("target", "acme"), ("quota", "lots"), ("reason", "launch")];
    browser.eval(&fill_in(&values));
    browser.wait_for(
        "document.getElementById('override-error').textContent.includes('expected a quota')",
    );
    assert_eq!(browser.eval("document.getElementById('override-target').value"), "acme");
    browser.eval(&fill_in(&[("quota", "5000"), ("until", "2099-12-01T10:00:00Z")]));
    browser.wait_for(&format!("{} === '5000'", row(2)));
    assert_eq!(browser.text("override-error"), "");
    assert_eq!(browser.eval(&row(1)), "consumer acme");
    assert_eq!(browser.eval(&row(4)), "launch");
    assert_eq!(browser.eval(&row(5)), "in force");
    // A key is shown by its hash alone.
    browser.eval(&fill_in(&[
        ("limit", "caller"),
        ("kind", "key"),
        ("target", "secret-7"),
        ("quota", "unlimited"),
    ]));
    browser.wait_for("document.querySelectorAll('#overrides tbody tr').length === 2");
    assert!(!browser.text("overrides").contains("secret-7"));
    let ends = browser.eval(
        "[...document.querySelectorAll('#overrides tbody tr')].map((row) => row.cells[3].textContent)",
    );
    let ends = ends.as_array().expect("cells");
    assert_eq!(ends.iter().filter(|end| **end == "no end").count(), 1, "{ends:?}");
    for (width, colours) in [(1280, "light"), (1280, "dark"), (375, "light"), (375, "dark")] {
        browser.view(width, 800, colours);
        assert_eq!(browser.eval(LOW_CONTRAST), serde_json::json!([]), "{width} {colours}");
        let page = browser.eval("document.documentElement.scrollWidth");
        assert_eq!(page, width, "the page does not scroll sideways");
    }
    for left in [1, 0] {
        browser.eval("document.querySelector('#overrides tbody button').click()");
        browser.wait_for(&format!(
            "document.querySelectorAll('#overrides tbody tr').length === {left}"
        ));
    }
    let seen = browser.seen();
    assert_eq!(seen["violations"], serde_json::json!([]));
}

#[test]
fn requests_that_found_no_place_are_shown_by_priority() {
    let target = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = target.local_addr().expect("an address");
    let gateway = Gateway::start(&fill(
        "
        upstreams: {app: {targets: ['http://{target}'], max_requests: 1, max_pending: 1}}
        routes:
          - {name: all, match: {path: '/{*rest}'}, upstream: app}
          - {name: late, match: {path: /late}, upstream: app, priority: 9}
        ",
        [("target", address.to_string())],
    ));
    let ask = |path: &str| {
        let mut client = Client::connect(gateway.address());
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        client
    };
    // The target accepts and does not respond: one request is in flight, one waits, and two find no
    // place.
    let in_flight = ask("/");
    let _accepted = target.accept().expect("a connection");
    let waiting = ask("/");
    gateway.wait_for_metric("tidegate_upstream_pending", 1);
    for path in ["/", "/late"] {
        assert_eq!(ask(path).read_response().status, 503, "{path}");
    }
    let mut browser = Browser::start();
    browser.open(&format!("http://{}/", gateway.admin()));
    let cells =
        "[...document.querySelectorAll('#upstreams tbody td')].map((cell) => cell.textContent)";
    browser.wait_for(&format!("{cells}.join() === 'app,1,2,1 of priority 5, 1 of priority 9,0,0'"));
    for (width, colours) in [(1280, "light"), (375, "dark")] {
        browser.view(width, 800, colours);
        assert_eq!(browser.eval(LOW_CONTRAST), serde_json::json!([]), "{width} {colours}");
        assert_eq!(browser.eval("document.documentElement.scrollWidth"), width);
    }
    drop((in_flight, waiting));
}

#[test]
fn costs_that_are_known_at_the_end_are_shown() {
    let upstream = Upstream::with_response(
        "HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n{\"usage\":{\"total_tokens\":70}}\n",
    );
    let gateway = Gateway::start(&fill(
        "
        upstreams: {app: {targets: ['{target}']}}
        limits:
          calls: {quota: 5, window: 1h, key: []}
          tokens: {quota: 1000, window: 1h, key: [], cost: {estimate: 50, actual: 'json:usage.total_tokens'}}
        routes: [{name: all, match: {path: '/{*rest}'}, upstream: app, limits: [calls, tokens]}]
        ",
        [("target", upstream.target())],
    ));
    let mut browser = Browser::start();
    browser.open(&format!("http://{}/", gateway.admin()));
    load(gateway.address(), "a", 3);
    let cells = "[...document.querySelectorAll('#costs tbody td')].map((cell) => cell.textContent)";
    browser.wait_for(&format!(
        "((own) => own[0] === 'tokens' && own.slice(2).join() === '150,210,60,0')({cells})"
    ));
    assert_eq!(browser.eval("document.getElementById('costs-card').hidden"), false);
    for (width, colours) in [(1280, "light"), (375, "dark")] {
        browser.view(width, 800, colours);
        assert_eq!(browser.eval(LOW_CONTRAST), serde_json::json!([]), "{width} {colours}");
        assert_eq!(browser.eval("document.documentElement.scrollWidth"), width);
    }
}

/// The texts whose contrast with their background is less than WCAG 2.2 demands at level AA.
const LOW_CONTRAST: &str = "(() => {
    const parse = (text) => text.match(/[\\d.]+/g).map(Number)
    const channel = (c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4)
    const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b)
    const background = (element) => {
        const color = parse(getComputedStyle(element).backgroundColor)
        return color[3] === 0 ? background(element.parentElement) : color
    }
    const faults = []
    for (const element of document.querySelectorAll('body *')) {
        const isShown = element.checkVisibility() && element.tagName !== 'svg'
        const hasText = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())
        if (!isShown || !hasText) continue
        const [a, b] = [parse(getComputedStyle(element).color), background(element)].map(luminance)
        const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)
        if (contrast < 4.5) faults.push(`${element.tagName} ${element.textContent.slice(0, 40)}: ${contrast.toFixed(2)}`)
    }
    return faults
})()";

#[test]
fn the_page_fits_a_phone_and_is_legible_in_light_and_dark() {
    let upstream = Upstream::with_response("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let gateway = Gateway::start(&fill(RULES, [("target", upstream.target())]));
    load(gateway.address(), "a", 20);
    gateway.reload("routes: []").expect_err("faults");
    let mut browser = Browser::start();
    browser.open(&format!("http://{}/", gateway.admin()));
    wait_for_figure(&mut browser, "total", 20);
    for (width, colours) in [(1280, "light"), (1280, "dark"), (375, "light"), (375, "dark")] {
        browser.view(width, 800, colours);
        for mode in ["on", "off", "auto"] {
            browser.eval(&format!("document.querySelector('[data-mode={mode}]').click()"));
            browser.wait_for(&format!(
                "document.querySelector('[data-mode={mode}]').ariaPressed === 'true'"
            ));
            let faults = browser.eval(LOW_CONTRAST);
            assert_eq!(faults, serde_json::json!([]), "{width} {colours} {mode}");
        }
        let page = browser.eval("document.documentElement.scrollWidth");
        assert_eq!(page, width, "the page does not scroll sideways");
        let dark =
            browser.eval("getComputedStyle(document.body).backgroundColor === 'rgb(14, 20, 27)'");
        assert_eq!(dark, colours == "dark");
    }
    browser.eval("document.body.append(Object.assign(document.createElement('p'), {id: 'faint', textContent: 'x'}))");
    browser.eval("document.getElementById('faint').style.color = 'rgb(60, 70, 80)'");
    assert_eq!(
        browser.eval(LOW_CONTRAST).as_array().map(Vec::len),
        Some(1),
        "the check finds faint text"
    );
}
