//! A file of envoyproxy/ratelimit and the limits made from it decide alike.

use std::fmt::Write as _;

use proptest::{collection::vec, prelude::*};

use super::envoy_ratelimit::NativeDomain;
use super::{ImportArgs, ImportedProgram, run};
use crate::cli::Exit;
use crate::config::{self, read_descriptors};
use crate::identity::KeySecret;
use crate::rate_limit_service::messages::{
    DescriptorEntryMessage, RateLimitDescriptor, RateLimitRequest,
};
use crate::snapshot::{ChargeContext, DescriptorRule, RateLimitDomain, SecretReading, Snapshot};

/// A node of a random tree, without its name.
#[derive(Clone, Debug)]
struct Node {
    value: &'static str,
    /// The value of `rate_limit`.
    rate: Option<&'static str>,
    shadow_mode: bool,
    share_threshold: bool,
    below: Vec<(bool, Node)>,
}

fn node() -> impl Strategy<Value = Node> {
    let value = prop::sample::select(vec!["", "", "v", "vw", "vx", "v*", "vw*", "*", "**", "${v}"]);
    let rates = vec![
        "{unlimited: true}",
        "{unit: minute, requests_per_unit: 0}",
        "{unit: minute, requests_per_unit: 1}",
        "{unit: hour, requests_per_unit: 2}",
    ];
    let rate = prop::option::weighted(0.6, prop::sample::select(rates));
    let leaf = (value, rate, any::<bool>(), any::<bool>()).prop_map(
        |(value, rate, shadow_mode, share_threshold)| Node {
            value,
            rate,
            shadow_mode,
            share_threshold,
            below: Vec::new(),
        },
    );
    leaf.prop_recursive(3, 24, 4, |inner| {
        (inner.clone(), vec((any::<bool>(), inner), 0..4)).prop_map(|(mut node, below)| {
            node.below = below;
            node
        })
    })
}

/// The name of an entry. One of the two looks like a variable.
fn key_of(depth: usize, is_second: bool) -> String {
    if is_second { format!("${{b}}{depth}") } else { format!("a{depth}") }
}

/// Writes the descriptors of a level. The names of a level are its own, so that no descriptor has
/// one twice.
fn write_level(nodes: &[(bool, Node)], depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    let mut seen = Vec::new();
    for (is_second, node) in nodes {
        let key = key_of(depth, *is_second);
        if seen.contains(&(key.clone(), node.value)) {
            continue;
        }
        seen.push((key.clone(), node.value));
        let (shadow, share) = (node.shadow_mode, node.share_threshold);
        let _ = writeln!(text, "{indent}- {{key: '{key}', value: '{}',", node.value);
        let _ = writeln!(text, "{indent}   shadow_mode: {shadow}, share_threshold: {share},");
        if let Some(rate) = node.rate {
            let _ = writeln!(text, "{indent}   rate_limit: {rate},");
        }
        let mut below = String::new();
        write_level(&node.below, depth + 1, &mut below);
        // Levels in flow style may have lines in any column.
        let below = below.replace("- {", "{");
        let _ = writeln!(text, "{indent}   descriptors: [{below}]}},");
    }
}

fn file_of(nodes: &[(bool, Node)]) -> String {
    let mut text = String::new();
    write_level(nodes, 0, &mut text);
    format!("domain: d\ndescriptors: [{}]\n", text.replace("- {", "{"))
}

/// Descriptors of one to four entries, one of each level from the first on.
fn descriptor() -> impl Strategy<Value = RateLimitDescriptor> {
    let entry =
        (any::<bool>(), prop::sample::select(vec!["v", "vw", "vx", "vwx", "o", "", "*o", "${v}"]));
    vec(entry, 1..5).prop_map(|entries| {
        let entry = |(depth, (is_second, value)): (usize, (bool, &str))| DescriptorEntryMessage {
            key: key_of(depth, is_second),
            value: value.to_owned(),
        };
        let entries = entries.into_iter().enumerate().map(entry).collect();
        RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }
    })
}

fn compiled(text: &str) -> Snapshot {
    let loaded = config::parse("t.yaml", text).unwrap_or_else(|faults| panic!("{faults}\n{text}"));
    Snapshot::compile(&loaded, SecretReading::Unread)
        .unwrap_or_else(|faults| panic!("{faults}\n{text}"))
}

/// What a domain does with descriptors: a line for each refused one, and for each record the
/// descriptors that it counts.
fn decisions(snapshot: &Snapshot, call: &RateLimitRequest) -> Vec<String> {
    let service = snapshot.rate_limit_service.as_ref().expect("the service");
    let domain: &RateLimitDomain = &service.domains["d"];
    let context = ChargeContext::new(KeySecret(1, 2), None);
    let consumers = vec![None; call.descriptors.len()];
    let planned = domain.plan(call, &consumers, context).expect("a plan");
    let blocked = planned.rules.iter().enumerate();
    let blocked = blocked.filter(|(_, rule)| matches!(rule, DescriptorRule::Blocked(_)));
    let mut lines: Vec<_> = blocked.map(|(index, _)| format!("{index}: blocked")).collect();
    lines.extend(planned.hits.iter().map(|hit| {
        let limit = &domain.limits[usize::from(hit.charge.limit_index)].limit;
        format!("{:?}: {:?}, enforced: {}", hit.descriptors, limit.quota, limit.enforce)
    }));
    lines.sort();
    lines
}

#[test]
fn imported_limits_decide_as_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("ratelimit.yaml");
    let nodes = vec((any::<bool>(), node()), 1..5);
    let service = "rate_limit_service: {address: '127.0.0.1:8081', domains: {d: {file: FILE}}}";
    let by_file = service.replace("FILE", &path.display().to_string());
    proptest!(|(nodes in nodes, descriptors in vec(descriptor(), 1..40))| {
        let text = file_of(&nodes);
        let file = read_descriptors("f.yaml", &text).unwrap_or_else(|faults| panic!("{faults}\n{text}"));
        let native = NativeDomain::of(&file);
        if native.is_empty() {
            return Ok(());
        }
        std::fs::write(&path, &text).expect("the file");
        let call = RateLimitRequest { domain: "d".into(), descriptors, hits_addend: 0 };
        let native = native.to_string();
        let expected = decisions(&compiled(&by_file), &call);
        prop_assert_eq!(decisions(&compiled(&native), &call), expected, "{}\n{}", text, native);
    });
}

#[test]
fn what_cannot_be_expressed_is_noted() {
    let text = "
domain: a-b
descriptors:
  - key: user
    value: ${HOME}
    rate_limit: {unit: day, requests_per_unit: 5, name: own, replaces: [{name: other}]}
  - key: token
    value: secret-1
    quota_mode: true
    rate_limit: {unit: month, requests_per_unit: 7}
  - key: user
    descriptors:
      - {key: user, rate_limit: {unit: second, requests_per_unit: 1}}
  - key: x
    value: v*
    rate_limit: {unlimited: true}
  - key: x
    value: vw*
    rate_limit: {unit: second, requests_per_unit: 0}
";
    let native = NativeDomain::of(&read_descriptors("f.yaml", text).unwrap());
    assert_eq!(
        native.notes,
        [
            "line 4: `replaces` is left out: both limits are charged",
            "line 7: `quota_mode` becomes `enforce: false`; violations are not reported",
            "line 17: the limit is left out: an earlier one has all of its descriptors",
            "line 13: the entry `user` twice in a descriptor is left out",
        ]
    );
    assert_eq!(
        native
            .to_string()
            .lines()
            .filter(|line| !line.starts_with('#'))
            .collect::<Vec<_>>()
            .join("\n"),
        r#"rate_limit_service:
  address: 127.0.0.1:8081
  domains:
    "a-b":
      late_hits: charge
      limits:
        - {limit: "own", match: {"user": "$${HOME}"}}
        - {limit: "token_value", match: {"token": "secret-1"}}
        - {quota: unlimited, match: {"x": "v*"}}

limits:
  "own": {algorithm: fixed_window, quota: 5, window: 1d, key: ["descriptor:user"]}
  "token_value": {algorithm: fixed_window, quota: 7, window: 30d, key: ["descriptor:token"], enforce: false}"#
    );
}

#[test]
fn every_text_of_the_file_is_a_text_of_the_configuration() {
    for text in [
        "*",
        "**",
        "\u{7f}",
        "\u{85}\u{202e}",
        "a\"b\\c'",
        "#: {}[]",
        "${X}",
        "$${X:-y}",
        "é日😀",
        "true",
        "007",
    ] {
        let value = serde_json::Value::from(text);
        let rate = "rate_limit: {unit: hour, requests_per_unit: 1}";
        let escaped = serde_json::Value::from(format!("{text}.")).to_string();
        let unicode = |json: String| {
            let escape = |c: char| {
                if c.is_ascii_graphic() || c == ' ' || u32::from(c) > 0xffff {
                    c.to_string()
                } else {
                    format!("\\u{:04x}", u32::from(c))
                }
            };
            json.chars().map(escape).collect::<String>()
        };
        let (value, other) = (unicode(value.to_string()), unicode(escaped));
        let file = format!(
            "domain: d\ndescriptors:\n- {{key: {value}, {rate}}}\n- {{key: a, value: {other}, {rate}}}\n\
             - {{key: {other}, value: a, rate_limit: {{unlimited: true}}}}\n"
        );
        let file = read_descriptors("f.yaml", &file).unwrap_or_else(|faults| panic!("{faults}"));
        let native = NativeDomain::of(&file).to_string();
        let limits = compiled(&native).limits;
        assert_eq!(limits.len(), 2, "{native}");
    }
}

#[test]
fn a_long_file_is_imported_soon() {
    let rate = "rate_limit: {unit: hour, requests_per_unit: 1}";
    let nodes = (0..20_000).map(|n| format!("- {{key: a, value: v{n}, {rate}}}\n"));
    let text = nodes.collect::<Vec<_>>().concat();
    let text = format!("domain: d\ndescriptors:\n- {{key: a, {rate}}}\n{text}");
    let file = read_descriptors("f.yaml", &text).unwrap();
    let native = NativeDomain::of(&file).to_string();
    // A line for each item and each limit, and what stands around them.
    assert_eq!(native.lines().count(), 2 * 20_001 + 9);
}

#[test]
fn a_file_is_printed_or_its_faults_are() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ratelimit.yaml");
    let import = || {
        let mut out = Vec::new();
        let program = ImportedProgram::EnvoyRatelimit { file: file.clone() };
        (run(&ImportArgs { program }, &mut out), String::from_utf8(out).unwrap())
    };
    assert_eq!(import(), (Exit::BadInput, String::new()));
    for faulty in [
        "domain: a b\ndescriptors: [{key: a, rate_limit: {unlimited: true}}]",
        "domain: d",
        "domain: d\ndescriptors: [{key: a}]",
        "domain: d\ndescriptors: 5",
    ] {
        std::fs::write(&file, faulty).unwrap();
        assert_eq!(import(), (Exit::BadInput, String::new()), "{faulty}");
    }
    let rate = "{unit: hour, requests_per_unit: 9}";
    std::fs::write(&file, format!("domain: d\ndescriptors: [{{key: a, rate_limit: {rate}}}]"))
        .unwrap();
    let (exit, printed) = import();
    assert_eq!(exit, Exit::Ok);
    let limits = compiled(&printed).limits;
    assert_eq!(limits.len(), 1);
    assert_eq!(limits[0].limit.quota.window.as_ms(), 3_600_000);
}
