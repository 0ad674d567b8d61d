//! Valid configurations, their defaults, locations and schema.

mod costs;
mod faults;
mod hostile;
mod meant;
mod quoting;
mod variables;

use std::collections::BTreeSet;
use std::path::Path;

use tidegate_scalar::ScalarValue as _;
use tidegate_vocabulary::OnFailure;

use super::AlgorithmConfig;
use super::*;

/// A small valid configuration that tests break.
const GOOD: &str = include_str!("tests/good.yaml");

/// Faults as `line:column: what, expected what`.
fn faults(text: &str) -> Vec<String> {
    let Err(error) = parse("t.yaml", text) else { return Vec::new() };
    let first_line = |fault: &Fault| fault.to_string().lines().next().unwrap_or("").to_owned();
    error.faults.iter().map(|f| first_line(f).replacen("t.yaml:", "", 1)).collect()
}

#[test]
fn every_shipped_configuration_is_valid() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config");
    let examples = std::fs::read_dir(root.join("examples")).unwrap();
    let mut files: Vec<_> = examples.map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() >= 4);
    files.push(root.join("tidegate.yaml"));
    for file in files {
        if let Err(faults) = load(&file, &|_| None) {
            panic!("{faults}");
        }
    }
}

#[test]
fn missing_keys_have_their_defaults() {
    let config = parse("t.yaml", GOOD).unwrap().config;
    assert_eq!(config.listen[0].address.to_string(), "127.0.0.1:8080");
    assert_eq!(config.workers, 0);
    assert_eq!(config.admin, None);
    assert_eq!(config.drain_timeout, Duration::from_secs(30));
    assert_eq!(config.access_log, AccessLogConfig::default());
    assert_eq!(config.access_log.to, LogDestination::Stderr);
    assert_eq!(config.store.memory.max_keys, 1_000_000);
    assert_eq!(config.store.redis, None);
    assert_eq!(config.client.trusted_proxies, []);
    let limit = &config.limits["a.b"];
    assert_eq!((limit.algorithm, limit.resolution()), (AlgorithmConfig::SlidingWindow, 5));
    assert_eq!((&limit.cost, limit.reserve), (&CostConfig::Fixed(1), Reserve::Off));
    assert_eq!((limit.enforce, limit.on_failure), (true, OnFailure::Local));
    let route = &config.routes[0];
    assert_eq!(
        (route.max_body, route.request_timeout),
        (Size(10 << 20), TimeoutConfig::from_secs(120))
    );
    assert!(route.throttle && route.matches.methods.is_empty() && route.matches.host.is_none());
}

#[test]
fn the_default_resolution_is_the_largest_up_to_six_that_divides_the_window() {
    for (window, resolution) in [("1m", 6), ("10s", 5), ("1s", 5), ("7ms", 1), ("9ms", 3)] {
        let text = GOOD.replace("window: 10s", &format!("window: {window}"));
        assert_eq!(parse("t", &text).unwrap().config.limits["a.b"].resolution(), resolution);
    }
}

#[test]
fn every_key_is_parsed_and_survives_a_round_trip() {
    let text = include_str!("tests/all_keys.yaml");
    let config = match parse("all_keys.yaml", text) {
        Ok(loaded) => loaded.config,
        Err(faults) => panic!("{faults}"),
    };
    assert_eq!(config.headers.standard, StandardHeaders::Off);
    assert_eq!(
        config.throttle.as_ref().map(|t| t.mode),
        Some(tidegate_vocabulary::ThrottleMode::On)
    );
    assert_eq!(config.limits["per-caller"].cost, CostConfig::Header("x-cost".to_owned()));
    assert_eq!(config.limits["per-caller"].reserve, Reserve::Fixed(50));
    assert_eq!(config.limits["all"].key, []);
    let targets = &config.upstreams["catalog"].targets;
    let shown: Vec<String> = targets.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["http://h:80", "http://[::1]:8443"]);
    let redis = config.store.redis.as_ref().unwrap();
    assert_eq!(redis.shards[0].primary.to_string(), "redis://***@127.0.0.1:6379");
    assert_eq!(redis.shards[0].primary.expose_secret(), "redis://me:secret@127.0.0.1:6379");

    // Parsing the serialized configuration yields the same, except for the password.
    let written = serde_json::to_string(&config).unwrap();
    assert!(!written.contains("me:secret"), "{written}");
    let again = parse("again", &written.replace("***", "me:secret")).unwrap().config;
    assert_eq!(again, config);
}

#[test]
fn all_keys_has_every_key() {
    fn missing<'s>(schema: &'s serde_json::Value, text: &str, keys: &mut BTreeSet<&'s str>) {
        if let Some(properties) = schema.get("properties").and_then(|all| all.as_object()) {
            let absent = properties.keys().filter(|key| !text.contains(&format!("{key}:")));
            keys.extend(absent.map(String::as_str));
        }
        let parts = schema.as_object().into_iter().flat_map(|map| map.values());
        for part in parts.chain(schema.as_array().into_iter().flatten()) {
            missing(part, text, keys);
        }
    }
    let schema = schema();
    let mut keys = BTreeSet::new();
    missing(schema, include_str!("tests/all_keys.yaml"), &mut keys);
    assert!(keys.is_empty(), "{keys:?}");
}

#[test]
fn a_limit_may_be_a_rate_and_a_route_needs_no_match() {
    let text =
        "upstreams: {a: {respond: {}}}\nlimits: {r: 100/1m}\nroutes: [{name: all, upstream: a}]\n";
    let short = parse("t.yaml", text).unwrap().config;
    let long = text.replace("r: 100/1m", "r: {quota: 100, window: 1m}");
    let long = long.replace("name: all,", "name: all, match: {},");
    assert_eq!(short, parse("t.yaml", &long).unwrap().config);
    assert_eq!(short.limits["r"].resolution(), 6);
    let expected = "a rate such as 100/1m, or a mapping with `quota` and `window`";
    for (rate, what) in [
        ("100/m", format!("`100/m`, expected `100/1m`: {expected}")),
        ("100", format!("`100`, expected {expected}")),
        ("0/1m", "`0/1m`, expected a quota from 1 to 9007199254740991 before the `/`".to_owned()),
        ("[1]", format!("a list, expected {expected}")),
        ("", format!("nothing, expected {expected}")),
    ] {
        let found = faults(&text.replace("100/1m", rate));
        assert!(found.len() == 1 && found[0].ends_with(&what), "{rate}: {found:?}");
    }
}

#[test]
fn empty_sections_count_as_absent() {
    let empty = "admin:\nclient:\nheaders:\nstore:\n  redis:\nhttp:\nlisten:\nthrottle: ~\n";
    let config = parse("t.yaml", &format!("{empty}{GOOD}")).unwrap().config;
    assert_eq!((config.admin, config.store.redis), (None, None));
    assert_eq!((config.client, config.headers), (Client::default(), Headers::default()));
    assert_eq!(config.http, Http::default());
}

#[test]
fn a_path_is_located_in_the_file() {
    let source = parse("t.yaml", GOOD).unwrap().source;
    let at = |fault: Fault| (fault.location.line, fault.location.column);
    let value = |path| at(source.fault(path, "", ""));
    let key = |path| at(source.fault_at_key(path, "", ""));
    assert_eq!((value("limits.a.b.quota"), key("limits.a.b.quota")), ((5, 12), (5, 5)));
    assert_eq!((value("limits.a.b"), key("limits.a.b")), ((4, 3), (4, 3)));
    assert_eq!(value("limits.a.b.resolution"), (4, 3));
    assert_eq!(value("limits.a.b.key[0]"), (7, 11));
    assert_eq!((value("routes[0]"), value("routes[0].match.path")), ((9, 5), (10, 19)));
    assert_eq!((value("routes[0].limits[0]"), value("routes[7].name")), ((12, 14), (8, 1)));
    assert_eq!((value(""), value("drain_timeout")), ((1, 1), (1, 1)));
}

#[test]
fn only_usable_redis_urls_are_accepted() {
    for good in
        ["redis://h", "redis://h:1/", "redis://:p%40@[::1]:6379/15", "rediss://u:p:q@1.2.3.4"]
    {
        assert!(RedisUrl::parse(good).is_some(), "{good}");
    }
    for bad in [
        "h:1",
        "http://h",
        "redis://",
        "redis://h:",
        "redis://h:99999",
        "redis://h/x",
        "redis://u:p/q@h",
        "redis://u:p#@h",
        "redis://u@v@h",
        "redis://h?db=1",
    ] {
        assert!(RedisUrl::parse(bad).is_none(), "{bad}");
    }
}

#[test]
fn byte_order_mark_and_carriage_returns_are_accepted() {
    let text = format!("\u{feff}{}", GOOD.replace('\n', "\r\n"));
    assert_eq!(parse("t.yaml", &text).unwrap().config.routes.len(), 1);
    let faulty = text.replace("quota: 5", "quota: x");
    assert_eq!(faults(&faulty)[0].split(": ").next(), Some("5:12"));
}

#[test]
fn units_are_displayed_as_written() {
    for text in ["250ms", "10s", "90s", "30m", "1h", "7d", "0ms"] {
        assert_eq!(Duration::parse(text).unwrap().to_string(), text);
    }
    for text in ["1B", "512B", "64KiB", "10MiB", "3GiB"] {
        assert_eq!(Size::parse(text).unwrap().to_string(), text);
    }
    assert_eq!(Cidr::parse("10.1.2.3/8").unwrap().to_string(), "10.0.0.0/8");
    assert_eq!(Cidr::parse("::1").unwrap().to_string(), "::1/128");
}

#[test]
fn the_schema_forbids_unknown_keys_and_names_the_required_ones() {
    let schema = schema();
    assert_eq!(schema["additionalProperties"], false);
    let limit = &schema["$defs"]["LimitConfig"];
    assert_eq!(limit["required"], serde_json::json!(["quota", "window"]));
    assert_eq!(limit["properties"]["key"]["default"], serde_json::json!(["client_ip"]));
    for (name, section) in schema["$defs"].as_object().unwrap() {
        if section.get("properties").is_some() {
            // A plan has the names of limits beside its key.
            if name != "PlanConfig" {
                assert_eq!(section["additionalProperties"], false, "{name}");
            }
            for (key, property) in section["properties"].as_object().unwrap() {
                let is_described =
                    property.get("description").is_some() || property.get("$ref").is_some();
                assert!(is_described, "{name}.{key} has no description");
            }
        }
    }
}
