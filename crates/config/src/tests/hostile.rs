//! Hostile input: aliases, nesting, size, and text that is not YAML.

use std::fmt::Write;

use proptest::prelude::*;

use super::super::*;
use super::{GOOD, faults};

#[test]
fn only_a_single_plain_document_is_accepted() {
    let cases = [
        (
            "a: b: c",
            "1:5: not YAML (mapping values are not allowed in this context), expected a YAML document",
        ),
        ("a: 1\n---\nb: 1", "2:1: a second document, expected one document in a file"),
        (
            "a: *b",
            "1:4: not YAML (while parsing node, found unknown anchor), expected a YAML document",
        ),
        ("a: &b [*b]", "1:8: an alias inside its own anchor, expected a value"),
        ("[a]: 1", "1:1: a list or mapping as a key, expected a plain key"),
        ("? {a: 1}\n: 1", "1:3: a list or mapping as a key, expected a plain key"),
        ("workers: !!int 1", "1:16: a tag (`!`), expected a value without one"),
        (
            "5",
            "1:1: `5`, expected a mapping with the keys listen, workers, admin, drain_delay, drain_timeout, \
          access_log, traces, http, client, headers, store, upstreams, limits, auth, consumers, plans, overrides, rate_limit_service, throttle, routes",
        ),
    ];
    for (text, expected) in cases {
        assert!(faults(text).contains(&expected.to_owned()), "{text}: {:#?}", faults(text));
    }
}

#[test]
fn text_that_another_parser_reads_differently_is_refused() {
    // Parsers read it as an octal number, as text, or as a decimal number.
    let found = faults(&GOOD.replace("quota: 5", "quota: 007"));
    let expected = "5:12: `007`, expected a whole number from 1 to 9007199254740991, without the leading zero: YAML 1.1 \
                    reads it as octal";
    assert_eq!(found, [expected]);
    // An entry without a space after its colon; YAML 1.2 allows it.
    let found = faults(&GOOD.replace("{path: /x}", "{path: /x, host:}"));
    assert!(found[0].starts_with("10:") && found[0].contains("not YAML 1.1 ("), "{found:?}");
    // `~` is a value, not an empty section.
    let found = faults(&format!("http: ~\n{GOOD}"));
    assert!(found[0].starts_with("1:1: `~`, expected a mapping"), "{found:?}");
    for (written, read) in [("+5", 5), ("5 # five", 5)] {
        let text = GOOD.replace("quota: 5", &format!("quota: {written}"));
        assert_eq!(parse("t.yaml", &text).unwrap().config.limits["a.b"].quota, read);
    }
}

#[test]
fn an_alias_has_the_value_of_its_anchor() {
    let text = GOOD.replace("window: 10s", "window: &w 10s") + "drain_timeout: *w\n";
    assert_eq!(parse("t.yaml", &text).unwrap().config.drain_timeout, Duration::from_secs(10));
}

#[test]
fn an_alias_bomb_is_refused() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..30 {
        let last = format!("*a{}, ", i - 1).repeat(10);
        writeln!(text, "a{i}: &a{i} [{last}]").unwrap();
    }
    let last = faults(&text).pop().unwrap();
    assert!(
        last.ends_with("too many aliased values, expected aliases that add at most 10000 values")
    );
}

#[test]
fn deep_nesting_is_refused() {
    let deep = "1:33: nested too deep, expected at most 32 levels of lists and mappings";
    assert!(faults(&"[".repeat(500_000))[0].ends_with(&deep[6..]));
    let level = |n: usize| format!("{}1{}", "[".repeat(n), "]".repeat(n));
    assert!(!faults(&level(32)).contains(&deep.to_owned()));
    assert_eq!(faults(&level(33)), [deep]);
    // An alias adds its levels: 20 within 20.
    let hidden = format!("a: &a {}\nb: {}*a{}", level(20), "[".repeat(20), "]".repeat(20));
    assert!(faults(&hidden)[0].contains("nested too deep"), "{:?}", faults(&hidden));
}

#[test]
fn nul_is_refused_and_large_values_are_parsed() {
    for (text, at) in [(GOOD.replace("hi", "h\0i"), "2:28"), (format!("{GOOD}\0"), "13:1")] {
        let found = faults(&text);
        assert!(found[0].starts_with(&format!("{at}: the control character `\\0`")), "{found:?}");
    }
    let body = "x".repeat(1 << 20);
    let config = parse("t.yaml", &GOOD.replace("body: hi", &format!("body: {body}"))).unwrap();
    let upstream = config.config.upstreams.values().next().unwrap();
    assert_eq!(upstream.respond.as_ref().unwrap().body, body);
    let comments = "# a comment\n".repeat((MAX_FILE_SIZE - GOOD.len()) / 12);
    assert_eq!(parse("t.yaml", &(comments + GOOD)).unwrap().config.routes.len(), 1);
}

#[test]
fn a_missing_large_or_binary_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("c.yaml");
    assert!(
        load(&file, &|_| None)
            .unwrap_err()
            .to_string()
            .contains("expected the path of a configuration")
    );
    assert!(
        load(folder.path(), &|_| None)
            .unwrap_err()
            .to_string()
            .contains("expected a file that can be read")
    );
    std::fs::write(&file, b"a: 1\nb: \xff").unwrap();
    let fault = load(&file, &|_| None).unwrap_err().faults.iter().next().unwrap().clone();
    assert_eq!((fault.location.line, fault.location.column), (2, 4));
    std::fs::write(&file, vec![b'#'; MAX_FILE_SIZE + 1]).unwrap();
    assert!(load(&file, &|_| None).unwrap_err().to_string().contains("at most 16 MiB"));
}

#[test]
fn only_the_first_faults_of_many_are_reported() {
    let repeated = |line: &str| line.repeat(100_000 / line.len());
    let unknown: Vec<String> = (0..10_000).map(|i| format!("k{i}: 1")).collect();
    let texts = [repeated("a: 1\n"), format!("routes: [{}]", repeated("1,")), unknown.join("\n")];
    for text in texts {
        let faults = parse("t.yaml", &text).unwrap_err().faults;
        assert_eq!(faults.iter().count(), MAX_FAULTS);
        assert!(faults.iter().all(|fault| fault.location.line <= MAX_FAULTS + 2));
    }
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in any::<Vec<u8>>().prop_map(|b| String::from_utf8_lossy(&b).into_owned())) {
        let _ = parse("t.yaml", &text).map_err(|faults| faults.to_string());
    }

    #[test]
    fn yaml_like_text_never_panics(text in "[-a\n :,?*&!|>'\"%@`#{}\\[\\]0\t~<]{0,80}") {
        let _ = parse("t.yaml", &text).map_err(|faults| faults.to_string());
    }

    #[test]
    fn mutated_configurations_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), "[-a\n :,*&'\"{}\\[\\]0é]{0,3}", 0usize..4), 1..6),
    ) {
        let mut text: Vec<char> = include_str!("all_keys.yaml").chars().collect();
        for (at, insert, delete) in edits {
            let at = at.index(text.len());
            let end = (at + delete).min(text.len());
            text.splice(at..end, insert.chars());
        }
        let text: String = text.into_iter().collect();
        if let Err(ReadError { faults, .. }) = parse("t.yaml", &text) {
            let lines = text.split('\n').count();
            prop_assert!(faults.iter().count() > 0);
            prop_assert!(faults.iter().all(|fault| (1..=lines + 1).contains(&fault.location.line)));
            let _ = faults.to_string();
        }
    }
}
