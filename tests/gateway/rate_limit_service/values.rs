//! Limits of the configuration that apply by the values of entries.

use testkit::{gateway::Gateway, rate_limit_client::descriptor, yaml::fill};
use tidegate::clock::Clock;

use super::{NOW, connect};

const RULES: &str = "
    rate_limit_service:
      address: 127.0.0.1:0
      domains: {edge: {limits: [{items}]}}
    limits:
      all: {quota: 5, window: 1m, algorithm: fixed_window, key: ['descriptor:user', 'descriptor:path']}
      shared: {quota: 3, window: 1m, algorithm: fixed_window, key: ['descriptor:user']}
      alone: {quota: 2, window: 1m, algorithm: fixed_window, key: []}
    upstreams: {app: {respond: {}}}
    routes: [{name: all, upstream: app}]
";

#[test]
fn the_first_item_with_the_values_of_a_descriptor_decides() {
    let items = "
        {quota: unlimited, match: {user: probe, path: '*'}},
        {quota: blocked, match: {user: bad, path: '*'}},
        {limit: shared, match: {path: '/exports/*'}},
        {limit: shared, match: {path: /reports}},
        all,
        {limit: alone, match: {tenant: 'a*'}}";
    let gateway = Gateway::start_at(&fill(RULES, [("items", items)]), Clock::manual(NOW));
    let mut client = connect(&gateway);
    let mut ask = |text: &str| client.ask("edge", vec![descriptor(text)]).statuses().remove(0);

    assert_eq!(ask("user=probe,path=/exports/1"), "none");
    assert_eq!(ask("user=bad,path=/exports/1"), "over");
    assert_eq!(ask("user=good,path=/"), "ok 4");
    assert_eq!(ask("user=good,path=/exports"), "ok 4", "no prefix of the item");
    // One limit of two items counts for both.
    assert_eq!(ask("user=good,path=/exports/1"), "ok 2");
    assert_eq!(ask("user=good,path=/exports/2"), "ok 1");
    assert_eq!(ask("path=/reports,user=good"), "ok 0");
    assert_eq!(ask("user=good,path=/exports/3"), "over");
    // The limit has no key, and the item names the entry.
    assert_eq!(ask("tenant=a1"), "ok 1");
    assert_eq!(ask("tenant=a2"), "ok 0");
    assert_eq!(ask("tenant=a3"), "over");
    assert_eq!(ask("tenant=b"), "none");
    assert_eq!(ask("tenant=a1,user=good"), "none", "another entry more");
}
