//! References to environment variables: no message shows their values, not even a check of several
//! values.

use std::ffi::OsString;

use proptest::prelude::*;
use tidegate_config::{Fault, Faults, ReadError, parse_with};

use super::parsed::{GOOD, env};
use super::*;

/// The first lines of the faults of `text`, from the parser and from the compiler.
fn faults(text: &str) -> Vec<String> {
    let all = match parse_with("t.yaml", text, &env) {
        Ok(loaded) => Snapshot::compile(&loaded, SecretReading::Unread).err(),
        Err(error) => Some(error.faults),
    };
    let first_line = |fault: &Fault| fault.to_string().lines().next().unwrap_or("").to_owned();
    let all = all.iter().flat_map(Faults::iter);
    all.map(|fault| first_line(fault).replacen("t.yaml:", "", 1)).collect()
}

#[test]
fn a_fault_shows_the_reference_and_not_its_value() {
    let number = "expected a whole number from 1 to 9007199254740991";
    for (from, to, expected) in [
        ("quota: 5", "quota: ${WORD}", format!("5:12: `${{WORD}}`, {number}")),
        ("quota: 5", "quota: \"1${WORD}\"", format!("5:12: `1${{WORD}}`, {number}")),
        // A correction would also show the value.
        (
            "window: 10s",
            "window: ${X:-10d 1s}x",
            "6:13: `${X:-10d 1s}x`, expected a duration such as 250ms, 10s, 30m, 1h or 7d, or hour, day, week or month"
                .to_owned(),
        ),
        ("limits: [a.b]", "limits: ${WORD}", "12:13: `${WORD}`, expected a list, such as [${WORD}]".to_owned()),
        (
            "upstream: hello",
            "upstream: ${WORD}",
            "11:15: unknown upstream `${WORD}`, expected one of hello".to_owned(),
        ),
    ] {
        assert!(GOOD.contains(from));
        let found = faults(&GOOD.replace(from, to));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(&*expected), "{found:?}");
        assert!(!found[0].contains("hush") && !found[0].contains("60s"), "{found:?}");
    }
    let found = faults(&format!(
        "listen: [{{address: \"${{PLACE}}\"}}, {{address: '127.0.0.1:81'}}]\n{GOOD}"
    ));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("duplicate address `${PLACE}`"),
        "the value in another form: {found:?}"
    );
}

#[test]
fn no_fault_follows_from_a_missing_value() {
    let text = GOOD
        .replace("quota: 5", "quota: ${GONE}\n    cost: 7")
        .replace("hello\n    limits", "'${GONE}'\n    limits");
    let found = faults(&text);
    assert!(
        found.len() == 2 && found.iter().all(|fault| fault.contains("GONE is not set")),
        "{found:?}"
    );
}

/// Present in every value of the property test.
const MARK: &str = "Hush7f3A9c";

/// Values of variables: some plain, some close to valid values of keys.
const VALUES: [&str; 16] = [
    "M",
    "1M",
    "M1s",
    "http://M:80",
    "http://M/x",
    "/M/{x}",
    "/M",
    "header:M",
    "path:M",
    "env:M",
    "file:/M",
    "redis://u:M@h",
    "M.example.com:99999",
    "10.0.0.1/M",
    "M\u{7}\n\"`{",
    "{M",
];

proptest! {
    #[test]
    fn a_value_never_reaches_a_message_and_never_panics(
        at in any::<prop::sample::Index>(),
        value in prop::sample::select(&VALUES[..]),
        repeated in prop::sample::select(&[1usize, 1, 30][..]),
        written in prop::sample::select(&["${V}", "a${V}", "${V}-b", "${V:-x}", "x ${V}${V}"][..]),
        mutation in "[-a {}$:\\]\"']{0,2}",
        edit in any::<prop::sample::Index>(),
    ) {
        let mut text = include_str!("../../../../config/src/tests/all_keys.yaml").to_owned();
        let values: Vec<_> = text.match_indices(": ").map(|(at, _)| at + 2).collect();
        let start = values[at.index(values.len())];
        let end = start + text[start..].find([',', '}', ']', '\n']).unwrap_or(0);
        text.replace_range(start..end, &format!("\"{written}\""));
        let edit = edit.index(text.len());
        if !mutation.is_empty() && text.is_char_boundary(edit) {
            text.insert_str(edit, &mutation);
        }
        let value = value.replace('M', &MARK.repeat(repeated));
        let env = |name: &str| (name == "V").then(|| OsString::from(&value));
        let mut messages = Vec::new();
        match parse_with("t.yaml", &text, &env) {
            Ok(loaded) => match Snapshot::compile(&loaded, SecretReading::Unread) {
                Ok(snapshot) => messages.extend(snapshot.notes.iter().map(ToString::to_string)),
                Err(faults) => messages.push(faults.to_string()),
            },
            Err(ReadError { faults, partial }) => {
                messages.push(faults.to_string());
                let more = partial.and_then(|partial| Snapshot::compile(&partial, SecretReading::Unread).err());
                messages.extend(more.map(|faults| faults.to_string()));
            }
        }
        for message in messages {
            let is_shown = message.to_lowercase().contains(&MARK.to_lowercase());
            prop_assert!(!is_shown, "{}", message);
        }
    }
}
