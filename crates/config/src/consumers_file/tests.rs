//! Both readers of the file of consumers.

use proptest::prelude::*;

use super::events::EventReader;
use super::*;

/// Keeps what it receives.
#[derive(Default)]
struct Collected(Vec<(ConsumerRecord<'static>, usize)>);

fn own(text: &str) -> Cow<'static, str> {
    Cow::Owned(text.to_owned())
}

impl RecordSink for Collected {
    fn add(&mut self, record: &ConsumerRecord<'_>, line: usize) -> Vec<RecordFault> {
        let keys = record.keys.iter().map(|key| KeyRecord {
            id: key.id.as_deref().map(own),
            sha256: own(&key.sha256),
            expires: key.expires.as_deref().map(own),
        });
        let record = ConsumerRecord {
            name: own(&record.name),
            plan: record.plan.as_deref().map(own),
            billing_day: record.billing_day.as_deref().map(own),
            keys: keys.collect(),
            password: record.password.as_deref().map(own),
            is_disabled: record.is_disabled,
        };
        let is_refused = record.name == "refused";
        self.0.push((record, line));
        let faults = [RecordPart::Name, RecordPart::KeyHash(0)].map(|part| RecordFault {
            part,
            what: "this".to_owned(),
            expected: "another".to_owned(),
        });
        if is_refused { faults.into() } else { Vec::new() }
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

fn read(text: &str) -> (Collected, Vec<String>) {
    let mut records = Collected::default();
    let faults = ConsumersText { name: "c.yaml", text }.read(&mut records);
    let first_line = |fault: &Fault| fault.to_string().lines().next().unwrap_or("").to_owned();
    (records, faults.iter().map(first_line).collect())
}

/// What the events alone give, for the whole text.
fn read_by_events(text: &str) -> (Collected, Vec<Fault>) {
    let mut records = Collected::default();
    let file = ConsumersText { name: "c.yaml", text };
    let mut faults = FileFaults::of(file);
    if let Err((location, mismatch)) = EventReader::new(text, 0).read(&mut records, &mut faults) {
        faults.add(location, &mismatch);
    }
    (records, faults.faults)
}

const RECORDS: &str = "\
# The customers of the shop.
- name: acme                            
  plan: gold
  keys:
    - {id: 2026-11, sha256: 0b6c, expires: 2027-01-01T00:00:00Z}
    - {sha256: 'ff00'}
  password: $argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHQ$aGFzaGhhc2g
  labels: {team: shop, cost-center: \"12\"}
  disabled: false

- name: \"Example Corp\"
  disabled: true
  keys:
  - id: a
    sha256: 00
  - sha256: 11
    expires: '2027-01-01'
  plan: free
  labels:
    team: other
- name: bare
";

#[test]
fn records_are_read_line_by_line_as_by_events() {
    let (records, faults) = read(RECORDS);
    assert_eq!(faults, [""; 0]);
    let names: Vec<_> = records.0.iter().map(|(record, line)| (&*record.name, *line)).collect();
    assert_eq!(names, [("acme", 2), ("Example Corp", 11), ("bare", 21)]);
    let acme = &records.0[0].0;
    assert_eq!((acme.plan.as_deref(), acme.is_disabled, acme.keys.len()), (Some("gold"), false, 2));
    let key = &acme.keys[0];
    assert_eq!((key.id.as_deref(), &*key.sha256), (Some("2026-11"), "0b6c"));
    assert_eq!(key.expires.as_deref(), Some("2027-01-01T00:00:00Z"));
    let password = "$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHQ$aGFzaGhhc2g";
    assert_eq!(acme.password.as_deref(), Some(password));
    let example = &records.0[1].0;
    assert_eq!((example.is_disabled, example.plan.as_deref()), (true, Some("free")));
    assert_eq!(example.keys[1].expires.as_deref(), Some("2027-01-01"));
    let (by_events, faults) = read_by_events(RECORDS);
    assert_eq!((by_events.0, faults), (records.0, Vec::new()));
}

#[test]
fn unusual_records_are_read_among_others() {
    for unusual in [
        "- {name: flow, keys: [{sha256: a}]}",
        "- name: >-\n    folded\n  keys: []",
        "-\n  name: apart",
        "- name: caf\u{e9} # a comment",
        "- name: a\r\n  plan: b\r",
        "- name: 'it''s'",
        "- keys:\n      - sha256: deep\n  name: deep",
        "- name: p\n  password: $a,b # a comment",
        "- {name: p, password: $2y$05$a}",
    ] {
        let text = format!("- name: one\n{unusual}\n- name: two\n");
        let (records, faults) = read(&text);
        assert_eq!(faults, [""; 0], "{unusual}");
        assert_eq!(records.0.len(), 3, "{unusual}");
        assert_eq!(read_by_events(&text).0.0, records.0, "{unusual}");
    }
    for text in ["[]", "# none\n[]", "---\n- name: a\n", "--- [{name: a}]", "- name: a\n..."] {
        let (records, faults) = read(text);
        assert_eq!(faults, [""; 0], "{text}");
        assert_eq!(records.0.len(), usize::from(text.contains("name")), "{text}");
    }
}

#[test]
fn a_file_without_content_is_a_fault() {
    for text in ["", "\n", "# none\n", "\u{feff}\n---\n  # none"] {
        let (records, faults) = read(text);
        let fault =
            "c.yaml:1:1: the file has no content, expected a list of consumers, or `[]` for none";
        assert_eq!((records.0.len(), faults), (0, vec![fault.to_owned()]), "{text}");
    }
    for text in ["null", "~", "# none\n---\nnull\n", "--- ~", "Null\n...", "...", "--- # none"] {
        let (records, faults) = read(text);
        assert_eq!((records.0.len(), faults.len()), (0, 1), "{text}: {faults:?}");
        let expected = ", expected a list of consumers, or `[]` for none";
        assert!(faults[0].ends_with(expected), "{text}: {faults:?}");
    }
}

#[test]
fn faults_have_their_places() {
    for (text, expected) in [
        ("a: b", "1:1: a mapping, expected a list of consumers, such as `- name: acme`"),
        ("- plan: a", "1:3: missing key `name`, expected a line `name: ...` in this record"),
        (
            "- name: a\n- nme: b",
            "2:3: unknown key `nme`, expected `name` (valid keys: name, plan, billing_day, keys, password, labels, disabled)",
        ),
        ("- name: a\n  name: b", "2:3: duplicate key `name`, expected it once in a mapping"),
        ("- name: a\n  disabled: yes", "2:13: `yes`, expected true or false"),
        ("- name: a\n  plan: [b]", "2:9: a list, expected text"),
        ("- acme", "1:3: `acme`, expected a mapping with the name of a consumer"),
        (
            "- name: a\n  keys: {sha256: b}",
            "2:9: a mapping, expected a list of keys, such as `- {id: 2026-11, sha256: ...}`",
        ),
        (
            "- name: a\n  keys:\n    - id: b",
            "3:7: missing key `sha256`, expected `sha256`, the hash of the key",
        ),
        (
            "- name: a\n  keys:\n    - {sha: b}",
            "3:8: unknown key `sha`, expected one of id, sha256, expires",
        ),
        (
            "- name: a\n  labels: b",
            "2:11: `b`, expected a mapping of names to texts, such as {team: shop}",
        ),
        ("- name: &x a\n- name: *x", "2:9: an alias (`*`), expected the value itself"),
        ("- name: !!str a", "1:15: a tag (`!`), expected a value without one"),
        ("- name: a\n---\n- name: b", "2:1: a second document, expected one document in a file"),
        ("- name: refused\n", "1:9: this, expected another"),
        ("- name: \"refused\" # here\n", "1:9: this, expected another"),
        (
            "- keys: [{sha256: x}]\n  secret: x\n  name: b",
            "2:3: unknown key `secret`, expected one of name, plan, billing_day, keys, password, labels, disabled",
        ),
    ] {
        let (_, faults) = read(text);
        assert_eq!(faults[0], format!("c.yaml:{expected}"), "{text}");
    }
    let text = "- name: a\n- name: 'b\n";
    let (_, faults) = read(text);
    assert!(faults[0].starts_with("c.yaml:2:9: not YAML"), "{faults:?}");
    let (_, faults) = read("- name: a\n- name: b\u{1b}\n");
    assert!(faults[0].starts_with("c.yaml:2:10: the control character"), "{faults:?}");
    let (_, faults) = read(&"- nme: a\n".repeat(100));
    assert_eq!(faults.len(), MAX_FAULTS);
}

#[test]
fn a_faulty_record_is_not_passed_on() {
    let (records, faults) = read("- name: a\n  plan: [b]\n- name: c\n");
    assert_eq!((records.0.len(), faults.len()), (1, 1));
}

/// Lines of records, usual and unusual.
fn line() -> impl Strategy<Value = String> {
    let scalar = prop_oneof![
        "[a-z0-9:.#'\" ~-]{0,8}",
        Just("acme".to_owned()),
        "[$][a-z$,=+./:# -]{0,6}",
        Just("2027-01-01T00:00:00Z".to_owned()),
        Just("null".to_owned()),
        Just("true".to_owned()),
        Just("15".to_owned()),
        "\"[a-z ,:#]{0,5}\"",
        "'[a-z ,:#]{0,5}'",
    ];
    let key = prop::sample::select(vec![
        "name",
        "plan",
        "billing_day",
        "keys",
        "password",
        "labels",
        "disabled",
        "id",
        "sha256",
        "expires",
        "x-y",
    ]);
    let dash = prop::sample::select(vec!["", "", "- "]);
    let indent = prop::sample::select(vec!["", "", "  ", "  ", "    ", "      ", " "]);
    prop_oneof![
        6 => (indent, dash, key.clone(), scalar.clone())
            .prop_map(|(indent, dash, key, value)| format!("{indent}{dash}{key}: {value}\n")),
        2 => (key.clone(), scalar.clone(), key, scalar)
            .prop_map(|(one, a, other, b)| format!("    - {{{one}: {a}, {other}: {b}}}\n")),
        1 => Just("- name: next\n".to_owned()),
        1 => Just("  keys:\n".to_owned()),
        1 => Just("# comment\n".to_owned()),
        1 => Just("\n".to_owned()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn lines_are_read_as_events(lines in prop::collection::vec(line(), 0..8)) {
        let text = format!("- name: first\n{}", lines.concat());
        let (records, faults) = {
            let mut records = Collected::default();
            let faults = ConsumersText { name: "c.yaml", text: &text }.read(&mut records);
            (records, faults)
        };
        let (by_events, faults_by_events) = read_by_events(&text);
        prop_assert_eq!(faults.is_empty(), faults_by_events.is_empty(), "{}", text);
        if faults.is_empty() {
            prop_assert_eq!(records.0, by_events.0, "{}", text);
        } else {
            let place = |faults: &[Fault]| faults[0].location.line;
            prop_assert_eq!(place(&faults), place(&faults_by_events), "{}", text);
        }
    }

    #[test]
    fn any_text_is_read_without_a_panic(text in "(- |  |name: |keys:|\\{|\\}|:|\n|\\PC){0,30}") {
        let _ = read(&text);
    }
}
