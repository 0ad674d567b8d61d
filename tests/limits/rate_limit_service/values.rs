//! Limits of the configuration that apply by the values of entries.

use testkit::{
    backend::{MEMORY_AND_REDIS, on_each},
    gateway::Gateway,
    rate_limit_client::descriptor,
    yaml::fill,
};
use tidegate::clock::Clock;

use super::{NOW, connect, connect_first};

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

/// The white space that the values of headers are read without.
const SPACES: [&str; 6] = [" ", "\t", "\u{a0}", "\u{2003}", "\u{1f}", " \u{3000}\r\n"];

/// Spellings of `value` with white space around it.
fn spaced(value: &str) -> impl Iterator<Item = String> + use<'_> {
    let both = move |space: &str| [format!("{value}{space}"), format!("{space}{value}{space}")];
    SPACES.into_iter().flat_map(both)
}

#[test]
fn white_space_around_a_value_is_no_other_value() {
    let items = "
        {quota: blocked, match: {user: mallory, path: '*'}},
        {quota: unlimited, match: {user: ' probe ', path: '*'}},
        {limit: shared, match: {path: '/exports/*'}},
        all";
    on_each(&MEMORY_AND_REDIS, |backend| {
        let yaml = fill(RULES, [("items", items)]);
        let fleet = backend.start(&yaml, &Clock::manual(NOW));
        let mut client = connect_first(&fleet);
        let mut ask = |text: &str| client.ask("edge", vec![descriptor(text)]).statuses().remove(0);
        for mallory in spaced("mallory") {
            assert_eq!(ask(&format!("user={mallory},path=/")), "over", "{mallory:?}");
        }
        for probe in spaced("probe") {
            assert_eq!(ask(&format!("user={probe},path=/")), "none", "{probe:?}");
        }
        // Spellings of a caller share its counter.
        let admitted = spaced("a").filter(|a| ask(&format!("user={a},path=/")) != "over").count();
        assert_eq!(admitted, 5);
        let exports = spaced("/exports/1");
        let admitted = exports.filter(|path| ask(&format!("user=b,path={path}")) != "over").count();
        assert_eq!(admitted, 3, "the item of /exports/* applies to all of them");
        assert_eq!(ask("user=c d,path=/"), "ok 4");
        assert_eq!(ask("user=cd,path=/"), "ok 4", "white space inside is a part of a value");
    });
}

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
