//! Both forms of the file of consumers.

use proptest::prelude::*;

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
}

fn read(text: &str) -> (Collected, Vec<String>) {
    let mut records = Collected::default();
    let faults = ConsumersText { name: "c.yaml", text }.read(&mut records);
    let first_line = |fault: &Fault| fault.to_string().lines().next().unwrap_or("").to_owned();
    (records, faults.iter().map(first_line).collect())
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
fn records_are_read_with_their_lines() {
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

/// The records of [`RECORDS`], in the other form.
const JSON_RECORDS: &str = r#"
{"name": "acme", "plan": "gold", "keys": [{"id": "2026-11", "sha256": "0b6c", "expires": "2027-01-01T00:00:00Z"}, {"sha256": "ff00"}], "password": "$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHQ$aGFzaGhhc2g", "labels": {"team": "shop"}}

{"name": "Example Corp", "disabled": true, "keys": [{"id": "a", "sha256": "00"}, {"sha256": "11", "expires": "2027-01-01"}], "plan": "free"}
{"name": "bare"}
"#;

#[test]
fn records_in_json_are_read_line_by_line() {
    let (records, faults) = read(JSON_RECORDS);
    assert_eq!(faults, [""; 0]);
    let lines: Vec<_> = records.0.iter().map(|(_, line)| *line).collect();
    assert_eq!(lines, [2, 4, 5]);
    let of = |records: Collected| records.0.into_iter().map(|(record, _)| record);
    assert!(of(records).eq(of(read(RECORDS).0)));
    let (records, faults) = read("\u{feff}{\"name\": \"a\", \"billing_day\": 31}\r\n");
    assert_eq!((records.0[0].0.billing_day.as_deref(), faults.len()), (Some("31"), 0));
}

#[test]
fn faults_in_json_have_their_places() {
    let record = ", expected a record in each line, such as `{\"name\": \"acme\"}`";
    for (line, fault) in [
        (r#"{"name": "b""#, format!("12: the text is not JSON: it ends early{record}")),
        ("{name: b}", format!("2: the text is not JSON: a mistake{record}")),
        ("{}", format!("2: no `name`{record}")),
        ("[\"b\"]", format!("1: no object in JSON{record}")),
        ("- name: b", format!("1: no object in JSON{record}")),
        (r#"{"name": "b", "disabled": 1}"#, "27: `1`, expected a boolean".to_owned()),
        (r#"{"name": "b", "name": "c"}"#, format!("20: duplicate key `name`{record}")),
        (r#"{"name": "b", "keys": [{"sha256": 1}]}"#, "35: `***`, expected a text".to_owned()),
    ] {
        let text = format!("{{\"name\": \"a\"}}\n{line}\n{{\"name\": \"c\"}}\n");
        let (records, faults) = read(&text);
        assert_eq!(faults, [format!("c.yaml:2:{fault}")], "{line}");
        assert_eq!(records.0.len(), 2, "{line}");
    }
    let (_, faults) = read("{\"name\": \"refused\"}");
    assert_eq!(faults[0], "c.yaml:1:1: this, expected another");
    let (_, faults) = read(&"{\"nme\": \"a\"}\n".repeat(100));
    assert_eq!(faults.len(), MAX_FAULTS);
}

#[test]
fn a_faulty_record_is_not_passed_on() {
    let (records, faults) = read("- name: a\n  plan: [b]\n- name: c\n");
    assert_eq!((records.0.len(), faults.len()), (1, 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn any_text_is_read_without_a_panic(text in "(- |  |name: |keys:|\\{|\\}|\"|:|\n|\\PC){0,30}") {
        let _ = read(&text);
    }
}
