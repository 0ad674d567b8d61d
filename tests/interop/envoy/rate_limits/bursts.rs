use std::thread;

use rustix::process::Signal;
use serde_json::json;
use testkit::{client::get, port::free_port, upstream::Upstream, wait::eventually};

use super::{Edge, FILTER, Page, calls, start_process};
use crate::{edge::Files, nghttp2::h2load, server::loopback};

/// More than the 1,024 calls at a time that Envoy makes to a cluster without `circuit_breakers`.
const COUNT: u64 = 1_500;

#[test]
fn envoy_asks_about_each_request_of_a_burst() {
    let (page, application, files) = (Page::read(), Upstream::hello(), Files::new());
    let [port, admin] = [free_port(), free_port()];
    let process = start_process(&files, &page, port);
    let edge = Edge::start(&page, &application, port, |config| {
        config["admin"] = json!({"address": {"socket_address": {
            "address": "127.0.0.1", "port_value": admin,
        }}});
        config.pointer_mut(FILTER).expect("the filter")["timeout"] = json!("60s");
    });
    // The sum of statistics.
    let stat = |names: &str| {
        let target = format!("/stats?filter=^cluster.tidegate.upstream_rq_({names})$");
        let text = get(loopback(admin), &target, "Connection: close\r\n").text();
        let values = text.lines().filter_map(|line| line.rsplit_once(": ")?.1.parse::<u64>().ok());
        values.sum::<u64>()
    };
    let overflow = "active_overflow|pending_overflow";
    process.signal(Signal::STOP);
    let url = format!("http://{}/", edge.address);
    thread::scope(|scope| {
        let burst = scope.spawn(|| {
            let count = COUNT.to_string();
            h2load(&["-n", &count, "-c", "15", "-m", "100", "-H", "x-user: a"], &url)
        });
        let is_begun = || stat(&format!("active|pending_active|{overflow}")) == COUNT;
        eventually("each request is asked about, or is not to be", is_begun);
        process.signal(Signal::CONT);
        burst.join().expect("the burst's end");
    });
    assert_eq!(stat(overflow), 0, "Envoy has decided without asking");
    assert_eq!(calls(&process), COUNT);
}
