//! References to environment variables: the types get their values; no message shows them.

use std::ffi::OsString;

use proptest::prelude::*;

use super::super::*;
use super::GOOD;

/// Variables that [`GOOD`] and other configurations refer to.
fn env(name: &str) -> Option<OsString> {
    match name {
        "QUOTA" => Some("5".into()),
        "WINDOW" => Some("10s".into()),
        "NAME" => Some("hello".into()),
        "NO" => Some("false".into()),
        "WORD" => Some("hush-me-1".into()),
        "MINUTE" => Some("60s".into()),
        "PLACE" => Some("127.0.0.1:081".into()),
        "RATE" => Some("5/10s".into()),
        _ => None,
    }
}

fn parsed(text: &str) -> Config {
    parse_with("t.yaml", text, &env).unwrap_or_else(|error| panic!("{text}\n{error}")).config
}

/// The first lines of the faults of `text`.
fn faults(text: &str) -> Vec<String> {
    let error = parse_with("t.yaml", text, &env).err();
    let first_line = |fault: &Fault| fault.to_string().lines().next().unwrap_or("").to_owned();
    let all = error.iter().flat_map(|error| error.faults.iter());
    all.map(|fault| first_line(fault).replacen("t.yaml:", "", 1)).collect()
}

#[test]
fn references_are_replaced_before_types_are_checked() {
    let good = parsed(GOOD);
    for (from, to) in [
        ("quota: 5", "quota: ${QUOTA}"),
        ("quota: 5", "quota: '${QUOTA}'"),
        ("quota: 5", "quota: ${GONE:-5}"),
        ("window: 10s", "window: ${WINDOW}"),
        ("window: 10s", "window: \"1${ZERO:-0}s\""),
        ("key: [client_ip]", "key: [\"${KEY:-client_ip}\"]"),
        ("path: /x}", "path: '/${X:-x}'}"),
        ("upstream: hello", "upstream: &name ${NAME}"),
        ("limits: [a.b]", "limits: ['a.${B:-b}']"),
        ("body: hi", "body: '${H:-h}i'"),
    ] {
        assert!(GOOD.contains(from));
        assert_eq!(parsed(&GOOD.replace(from, to)), good, "{to}");
    }
    let limit = |line: &str| {
        let text = GOOD.replace("quota: 5\n", &format!("quota: 5\n    {line}\n"));
        parsed(&text).limits["a.b"].clone()
    };
    assert_eq!(limit("enforce: ${NO}"), limit("enforce: false"));
    assert_eq!(limit("algorithm: ${A:-fixed_window}"), limit("algorithm: fixed_window"));
    assert_eq!(limit("cost: ${QUOTA}"), limit("cost: 5"));
    assert_eq!(limit("cost: '${X:-header:x-cost}'"), limit("cost: header:x-cost"));
    assert_eq!(limit("max_queue: ${QUOTA}"), limit("max_queue: 5"));
    assert_eq!(limit("refund: ['30${X:-4}']"), limit("refund: [304]"));
    let rate = GOOD.replace(
        "  a.b:\n    quota: 5\n    window: 10s\n    key: [client_ip]\n",
        "  a.b: ${RATE}\n",
    );
    assert_eq!(parsed(&rate), good);
    let throttle = |value: &str| {
        parsed(&format!("throttle: {{max_active: 5, false_positive: {value}}}\n{GOOD}")).throttle
    };
    assert_eq!(throttle("'${X:-0.25}'"), throttle("0.25"));
}

#[test]
fn block_text_aliases_and_escapes() {
    let respond = |body: &str| {
        let text =
            GOOD.replace("{respond: {body: hi}}", &format!("\n    respond:\n      body: {body}"));
        parsed(&text).upstreams["hello"].respond.as_ref().unwrap().body.clone()
    };
    assert_eq!(
        respond("|\n        Hi ${NAME}\n        $${NAME} $$ $1"),
        "Hi hello\n${NAME} $$ $1\n"
    );
    assert_eq!(respond("a$${b}"), "a${b}");
    let text = GOOD.replace("window: 10s", "window: &w ${WINDOW}") + "drain_timeout: *w\n";
    assert_eq!(parsed(&text).drain_timeout, Duration::from_secs(10));
    // References in keys are not replaced, and an alias of a value with a reference cannot be a
    // key.
    let found = faults(&GOOD.replace("quota: 5", "${NAME}: 5"));
    assert!(found[1].starts_with("5:5: unknown key `${NAME}`"), "{found:?}");
    let found = faults(&(GOOD.replace("window: 10s", "window: &w ${WINDOW}") + "*w : 1\n"));
    assert!(found[0].contains(": no key, expected a plain key"), "{found:?}");
}

#[test]
fn a_reference_without_a_value_is_located() {
    for (from, to, expected) in [
        (
            "quota: 5",
            "quota: ${GONE}",
            "5:12: the environment variable GONE is not set, expected a value for it, or a default as in `${GONE:-default}`",
        ),
        (
            "body: hi",
            "body: \"hi ${NAME} ${GONE} you\"",
            "2:39: the environment variable GONE is not set, expected a value for it, or a default as in `${GONE:-default}`",
        ),
        (
            "/x}",
            "'/${a b}'}",
            "10:21: `${a b}` is not a variable, expected `${NAME}`, `${NAME:-default}`, or `$${` for a literal `${`",
        ),
    ] {
        assert_eq!(faults(&GOOD.replace(from, to)), [expected]);
    }
    let quoted =
        parse_with("t.yaml", &GOOD.replace("quota: 5", "quota: ${GONE}"), &env).unwrap_err();
    assert!(
        quoted.to_string().contains("\n5 |     quota: ${GONE}\n  |            ^^^^^^^\n"),
        "{quoted}"
    );
}

#[test]
fn values_are_bounded() {
    let long = |_: &str| Some(OsString::from("x".repeat(1 << 20)));
    let many = "${X}".repeat(17);
    let text = GOOD.replace("body: hi", &format!("body: '{many}'"));
    let error = parse_with("t.yaml", &text, &long).unwrap_err().to_string();
    assert!(error.starts_with("t.yaml:2:28: more than 16 MiB with the values of env"), "{error}");
}

proptest! {
    #[test]
    fn any_text_with_references_is_read_or_refused(
        text in "[a-z$:{}\" -]{0,20}(\\$\\{[A-Z:}$-]{0,6}){0,3}[}a-z:-]{0,4}",
    ) {
        let env = |name: &str| (name.len() < 3).then(|| OsString::from("${V}"));
        let _ = parse_with("t.yaml", &format!("routes: {text}\n"), &env);
        let _ = parse_with("t.yaml", &GOOD.replace("quota: 5", &format!("quota: {text}")), &env);
    }
}
