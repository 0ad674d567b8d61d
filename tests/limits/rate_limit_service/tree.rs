//! Files of envoyproxy/ratelimit: the examples of its documentation and the cases of its tests,
//! expressed again. What differs is in docs/src/rate-limit-service.md.

use std::fs;

use tempfile::TempDir;
use testkit::{
    backend::{MEMORY_AND_REDIS, on_each},
    gateway::Gateway,
    rate_limit_client::{Decided, RateLimitClient, descriptor, given_back, with_hits},
    wait::eventually,
    yaml::{fill, without_indentation},
};
use tidegate::{
    clock::Clock,
    rate_limit_service::messages::{MetadataKind, RateLimitUnit},
};

use super::{NOW, connect, connect_first, limited};

/// A configuration whose domain has a file, in a folder of its own.
struct FileDomain {
    folder: TempDir,
    domain: String,
}

impl FileDomain {
    fn new(text: &str) -> Self {
        let own = Self { folder: tempfile::tempdir().expect("a folder"), domain: domain_of(text) };
        own.write(text);
        own
    }

    fn write(&self, text: &str) {
        fs::write(self.folder.path().join("ratelimit.yaml"), without_indentation(text))
            .expect("a file");
    }

    fn rules(&self) -> String {
        fill(
            "
            rate_limit_service:
              address: 127.0.0.1:0
              domains: {'{domain}': {file: '{folder}/ratelimit.yaml'}}
            upstreams: {app: {respond: {}}}
            routes: [{name: all, upstream: app}]
            ",
            [("domain", self.domain.clone()), ("folder", self.folder.path().display().to_string())],
        )
    }
}

fn domain_of(text: &str) -> String {
    let line = text.lines().find_map(|line| line.trim().strip_prefix("domain: "));
    line.expect("a domain").to_owned()
}

/// A gateway in memory, and a client.
struct Asked {
    domain: FileDomain,
    gateway: Gateway,
    client: RateLimitClient,
}

impl Asked {
    fn start(text: &str) -> Self {
        let domain = FileDomain::new(text);
        let gateway = Gateway::start_at(&domain.rules(), Clock::manual(NOW));
        let client = connect(&gateway);
        Self { domain, gateway, client }
    }

    fn ask(&mut self, descriptors: &[&str]) -> Decided {
        let descriptors = descriptors.iter().map(|text| descriptor(text)).collect();
        self.client.ask(&self.domain.domain, descriptors)
    }

    fn one(&mut self, text: &str) -> String {
        self.ask(&[text]).statuses().remove(0)
    }
}

/// examples/ratelimit/config/example.yaml.
const EXAMPLE: &str = "
    domain: rl
    descriptors:
      - key: source_cluster
        value: proxy
        descriptors:
          - key: destination_cluster
            value: mock
            rate_limit: {unit: minute, requests_per_unit: 1}
      - key: foo
        rate_limit: {unit: minute, requests_per_unit: 2}
        descriptors:
          - key: bar
            rate_limit: {unit: minute, requests_per_unit: 3}
          - key: bar
            value: banned
            rate_limit: {unit: minute, requests_per_unit: 0}
          - key: baz
            rate_limit: {unit: second, requests_per_unit: 1}
          - key: bay
            rate_limit: {unlimited: true}
          - key: baz
            value: shady
            rate_limit: {unit: minute, requests_per_unit: 1}
            shadow_mode: true
      - key: qux
        rate_limit: {unlimited: true}
";

#[test]
fn the_example_of_the_reference() {
    on_each(&MEMORY_AND_REDIS, |backend| {
        let domain = FileDomain::new(EXAMPLE);
        let fleet = backend.start(&domain.rules(), &Clock::manual(NOW));
        let mut client = connect_first(&fleet);
        let mut one = |text: &str| client.ask("rl", vec![descriptor(text)]).statuses().remove(0);
        let mut all = |text: &str, count: usize| (0..count).map(|_| one(text)).collect::<Vec<_>>();
        assert_eq!(all("source_cluster=proxy,destination_cluster=mock", 2), ["ok 0", "over"]);
        assert_eq!(all("source_cluster=proxy,destination_cluster=other", 1), ["none"]);
        assert_eq!(all("source_cluster=proxy", 1), ["none"], "a part of the tree");
        assert_eq!(all("foo=a", 3), ["ok 1", "ok 0", "over"]);
        assert_eq!(all("foo=b", 1), ["ok 1"], "each value has a counter");
        assert_eq!(all("foo=a,bar=a", 4), ["ok 2", "ok 1", "ok 0", "over"]);
        assert_eq!(all("foo=a,bar=banned", 2), ["over", "over"]);
        assert_eq!(all("foo=a,bar= banned\u{a0}", 2), ["over", "over"], "white space at an end");
        assert_eq!(all(" foo=a", 1), ["none"], "names are compared as they are");
        assert_eq!(all("foo= a\t", 1), ["over"], "the same counter");
        assert_eq!(all("foo=a,baz=a", 2), ["ok 0", "over"]);
        assert_eq!(all("foo=a,baz=shady", 3), ["ok 0", "ok 0", "ok 0"], "never refused");
        assert_eq!(all("foo=a,bay=a", 3), ["none", "none", "none"]);
        assert_eq!(all("qux=a", 3), ["none", "none", "none"]);
        // More entries than levels, and another order.
        assert_eq!(all("foo=a,bar=a,baz=a", 1), ["none"]);
        assert_eq!(all("bar=a,foo=a", 1), ["none"]);
        assert_eq!(all("unknown=a", 1), ["none"]);
    });
}

#[test]
fn the_statuses_of_a_refused_call_show_what_the_others_have_left() {
    let mut asked = Asked::start(EXAMPLE);
    let refused = asked.ask(&["foo=a", "foo=a,bar=banned", "qux=a", "foo=a,bar=x"]);
    assert!(!refused.is_ok());
    assert_eq!(refused.statuses(), ["ok 2", "over", "none", "ok 3"], "nothing is charged");
    assert_eq!(refused.refused_by().as_deref(), Some("rl:foo.bar_banned"));
    let banned = refused.0.statuses[1].current_limit.clone().expect("a limit");
    assert_eq!((banned.requests_per_unit, banned.unit()), (0, RateLimitUnit::Minute));
    assert_eq!(asked.one("foo=a"), "ok 1");
}

/// Examples 2, 3 and 5 to 9 of the README.
#[test]
fn the_examples_of_the_readme() {
    let mut messaging = Asked::start(
        "
        domain: messaging
        descriptors:
          - key: message_type
            value: marketing
            descriptors:
              - key: to_number
                rate_limit: {unit: day, requests_per_unit: 5}
          - key: to_number
            rate_limit: {unit: day, requests_per_unit: 100}
        ",
    );
    let call = ["message_type=marketing,to_number=2061111111", "to_number=2061111111"];
    for left in (0..5).rev() {
        let expected = [format!("ok {left}"), format!("ok {}", 95 + left)];
        assert_eq!(messaging.ask(&call).statuses(), expected);
    }
    assert!(!messaging.ask(&call).is_ok());
    assert_eq!(messaging.one("to_number=2061111111"), "ok 94", "a refused call charges nothing");

    let mut edge = Asked::start(
        "
        domain: edge_proxy_per_ip
        descriptors:
          - key: remote_address
            rate_limit: {unit: second, requests_per_unit: 10}
          - key: remote_address
            value: 50.0.0.5
            rate_limit: {unit: second, requests_per_unit: 0}
        ",
    );
    assert_eq!(edge.one("remote_address=50.0.0.1"), "ok 9");
    assert_eq!(edge.one("remote_address=50.0.0.5"), "over");

    // Example 4: the level of the tree is the number of entries.
    let mut example4 = Asked::start(
        "
        domain: example4
        descriptors:
          - key: key
            value: value
            rate_limit: {requests_per_unit: 300, unit: second}
        ",
    );
    assert_eq!(example4.one("key=value,subkey=subvalue"), "none");
    assert_eq!(example4.one("key=value"), "ok 299");
    assert_eq!(example4.one("key=other"), "none");
}

/// test/config/wildcard.yaml.
#[test]
fn a_star_at_the_end_of_a_value_matches_its_beginnings() {
    let mut asked = Asked::start(
        "
        domain: test-domain
        descriptors:
          - {key: wild, value: foo*, rate_limit: {unit: minute, requests_per_unit: 20}}
          - {key: noWild, value: foo, rate_limit: {unit: minute, requests_per_unit: 20}}
          - {key: noVal, rate_limit: {unit: minute, requests_per_unit: 20}}
          - {key: midWild, value: bar*b, rate_limit: {unit: minute, requests_per_unit: 20}}
          - {key: nested, value: a, descriptors: [{key: wild, value: b*, rate_limit: {unit: minute, requests_per_unit: 9}}]}
        ",
    );
    assert_eq!(asked.one("wild=foo1"), "ok 19");
    assert_eq!(asked.one("wild=foo2"), "ok 19", "each value has a counter");
    assert_eq!(asked.one("wild=foo"), "ok 19");
    assert_eq!(asked.one("wild=bar"), "none");
    assert_eq!(asked.one("noWild=foo1"), "none");
    assert_eq!(asked.one("noVal=foo1"), "ok 19");
    assert_eq!(asked.one("midWild=barab"), "none");
    assert_eq!(asked.one("nested=a,wild=bcd"), "ok 8");
    assert_eq!(asked.one("nested=a,wild=foo"), "none", "the values of its own level");
}

/// A part of `test/config/share_threshold.yaml`.
#[test]
fn values_that_share_a_threshold_share_a_counter() {
    let mut asked = Asked::start(
        "
        domain: test-domain
        descriptors:
          - {key: files, value: files/*, share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 100}}
          - key: files
            value: top/*
            share_threshold: true
            descriptors:
              - {key: files, value: nested/*, share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 300}}
          - key: path
            value: path/*
            share_threshold: true
            descriptors:
              - key: file
                value: file/*
                share_threshold: false
                descriptors: [{key: type, rate_limit: {unit: minute, requests_per_unit: 120}}]
          - {key: file, value: test1, rate_limit: {unit: minute, requests_per_unit: 50}}
          - {key: file, value: test*, share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 100}}
        ",
    );
    assert_eq!(asked.one("files=files/a.pdf"), "ok 99");
    assert_eq!(asked.one("files=files/b.csv"), "ok 98");
    assert_eq!(asked.one("files=top/a,files=nested/a"), "ok 299");
    assert_eq!(asked.one("files=top/b,files=nested/b"), "ok 298");
    assert_eq!(asked.one("path=path/a,file=file/a,type=t"), "ok 119");
    assert_eq!(asked.one("path=path/b,file=file/a,type=t"), "ok 118");
    assert_eq!(asked.one("path=path/b,file=file/b,type=t"), "ok 119");
    assert_eq!(asked.one("file=test1"), "ok 49", "the exact value comes first");
    assert_eq!(asked.one("file=test2"), "ok 99");
    assert_eq!(asked.one("file=test3"), "ok 98");
}

/// integration-test/scripts/replaces.sh.
#[test]
fn a_limit_replaces_another_of_the_same_call() {
    let mut asked = Asked::start(
        "
        domain: rl
        descriptors:
          - key: category
            value: read
            rate_limit: {name: read, unit: minute, requests_per_unit: 2}
          - key: endpoint
            value: search
            rate_limit: {unit: minute, requests_per_unit: 5, replaces: [{name: read}]}
          - key: all
            rate_limit: {unlimited: true, replaces: [{name: read}]}
        ",
    );
    let both = ["category=read", "endpoint=search"];
    for left in (0..5).rev() {
        assert_eq!(asked.ask(&both).statuses(), ["none".to_owned(), format!("ok {left}")]);
    }
    assert!(!asked.ask(&both).is_ok());
    assert_eq!(asked.ask(&["category=read", "endpoint=other"]).statuses(), ["ok 1", "none"]);
    assert_eq!(asked.ask(&["all=x", "category=read"]).statuses(), ["none", "none"]);
    assert_eq!(asked.one("category=read"), "ok 0");
}

#[test]
fn the_value_of_a_credential_is_in_no_name() {
    let mut asked = Asked::start(
        "
        domain: rl
        descriptors:
          - {key: api_key, value: s3cret, rate_limit: {unit: minute, requests_per_unit: 1}}
          - {key: api_key, value: other, rate_limit: {unit: minute, requests_per_unit: 2}}
        ",
    );
    assert_eq!(asked.one("api_key=s3cret"), "ok 0");
    let refused = asked.ask(&["api_key=s3cret"]);
    assert_eq!(refused.refused_by().as_deref(), Some("rl:api_key_value"));
    assert_eq!(asked.one("api_key=other"), "ok 1", "a counter of its own");
}

/// examples/ratelimit/config/quota.yaml.
#[test]
fn a_quota_that_is_used_up_is_reported_and_refuses_nothing() {
    let mut asked = Asked::start(
        "
        domain: quota
        descriptors:
          - {key: service, value: service_1, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
          - {key: service, value: service_2, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 2}}
        ",
    );
    let both = ["service=service_1", "service=service_2"];
    let violations = |decided: &Decided| {
        assert!(decided.is_ok());
        let metadata = decided.0.dynamic_metadata.as_ref()?;
        match &metadata.fields["quotaModeViolations"].kind {
            Some(MetadataKind::List(list)) => Some(list.values.len()),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(violations(&asked.ask(&both)), None);
    assert_eq!(violations(&asked.ask(&both)), Some(1));
    assert_eq!(violations(&asked.ask(&both)), Some(2));
}

#[test]
fn late_hits_beyond_the_quota_are_charged_to_files() {
    let mut asked = Asked::start(EXAMPLE);
    let mut ask = |own| asked.client.ask("rl", vec![own]).statuses().remove(0);
    assert_eq!(ask(with_hits("foo=a", 7)), "over");
    assert_eq!(ask(with_hits("foo=a", 1)), "over", "the report has used the quota up");
    assert_eq!(ask(with_hits("foo=b", 1)), "ok 1");
}

#[test]
fn hits_and_own_limits_of_descriptors_apply_to_files() {
    let mut asked = Asked::start(EXAMPLE);
    let mut ask = |own| asked.client.ask("rl", vec![own]).statuses().remove(0);
    assert_eq!(ask(with_hits("foo=a", 2)), "ok 0");
    assert_eq!(ask(with_hits("foo=a", 0)), "over");
    assert_eq!(ask(given_back("foo=a", 1)), "ok 1");
    assert_eq!(ask(limited("foo=a", 7, RateLimitUnit::Minute)), "ok 6");
    assert_eq!(ask(limited("foo=a,bar=banned", 7, RateLimitUnit::Minute)), "ok 6");
    assert_eq!(ask(limited("qux=a", 7, RateLimitUnit::Minute)), "ok 6");
}

#[test]
fn the_admin_api_shows_limits_of_files_and_their_callers() {
    let mut asked = Asked::start(EXAMPLE);
    asked.one("foo=a,bar=b");
    let admin = asked.gateway.admin();
    let get = |path: &str| testkit::client::get(admin, path, "").json();
    let names: Vec<String> = get("/api/limits")["limits"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|limit| limit["name"].as_str().expect("a name").to_owned())
        .collect();
    assert!(names.contains(&"rl:foo.bar".to_owned()), "{names:?}");
    assert_eq!(get("/api/limits/rl:foo.bar?key=a&key=b")["remaining"], 2);
}

#[test]
fn a_changed_file_is_a_reload() {
    let mut asked = Asked::start(EXAMPLE);
    assert_eq!(asked.one("foo=a"), "ok 1");
    asked.domain.write(&EXAMPLE.replace("requests_per_unit: 2", "requests_per_unit: 5"));
    eventually("the file is read again", || {
        asked.client.ask("rl", vec![with_hits("foo=a", 0)]).statuses() == ["ok 4"]
    });
    // A faulty file changes nothing, and its faults name their lines.
    asked.domain.write(
        &EXAMPLE
            .replace("unit: minute, requests_per_unit: 3", "unit: fortnight, requests_per_unit: 5"),
    );
    let fault = asked.gateway.reload(&asked.domain.rules()).unwrap_err();
    assert!(
        fault.contains("ratelimit.yaml:13:28: `fortnight` times 1, expected second"),
        "{fault}"
    );
    assert_eq!(asked.one("foo=a,bar=a"), "ok 2");
}
