//! No fault quotes a credential, wherever it stands and however it is written.

use std::{fs, path::Path};

use serde_json::{Value, json};

use super::super::{
    ConsumerRecord, ConsumersText, OverrideFault, OverrideField, OverrideFields, OverrideSink,
    OverridesText, RecordFault, RecordPart, RecordSink, parse, read_descriptors,
};

/// Stands for the secret in a document.
const SLOT: &str = "SLOT";
/// A password has no form. Its second word is in another line if the style has several.
const PASSWORD: &str = "own-Hu5h.7 more-Hu5h";
/// Credentials with a form, each with the part that must not be shown.
const FORMS: [(&str, &str); 5] = [
    ("tg_Hu5h456789ABCDEFGHIJabcdefghij01234567", "Hu5h"),
    ("$2y$05$Hu5hefghijklmnopqrstuvABCDEFGHIJKLMNOPQRSTUVWXYZ01234", "Hu5h"),
    ("eyJhbGciOi.eyJzdWIiOiIHu5h.x-y_z", "Hu5h"),
    ("ba7816bf8f01cfea414140de5dae2223", "ba7816bf"),
    ("redis://user:Hu5h@h/x", "Hu5h"),
];

/// Number of styles of a scalar.
const STYLES: usize = 11;
/// Number of styles in which each place of a credential is tried.
const TURNS: usize = 3;

/// The documents, each a section of a configuration.
fn sections() -> Vec<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/examples");
    let examples = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let examples = examples.filter(|path| path.extension().is_some_and(|ext| ext == "yaml"));
    let texts = examples.map(|path| fs::read_to_string(path).unwrap());
    let mut sections = Vec::new();
    for text in texts.chain([include_str!("all_keys.yaml").to_owned()]) {
        let Ok(Value::Object(whole)) = serde_yaml::from_str(&text) else { continue };
        sections.extend(whole.into_iter().map(|(key, value)| json!({ key: value })));
    }
    sections
}

/// The pointers to the scalars of a document.
fn scalars(value: &Value, pointer: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                let name = name.replace('~', "~0").replace('/', "~1");
                scalars(value, &format!("{pointer}/{name}"), found);
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                scalars(value, &format!("{pointer}/{index}"), found);
            }
        }
        _ => found.push(pointer.to_owned()),
    }
}

/// True for a place of a credential. This is a list by hand, independent of the code.
fn is_credential(pointer: &str) -> bool {
    let names: Vec<&str> = pointer.split('/').collect();
    let has = |name: &str| names.contains(&name);
    let is_last = |name: &str| names.last() == Some(&name);
    has("set") && !is_last("retry-after")
        || has("add")
        || ["password", "secret", "sha256", "hmac_key", "storage_key"].iter().any(|n| is_last(n))
        || names[1..] == ["admin", "token"]
        || has("tiers") && has("values")
        || has("traces") && has("headers")
        || has("match") && has("headers") && names.iter().any(|n| n.to_lowercase().contains("key"))
}

/// The document with `value` at `pointer`, and faults beside it.
fn with(section: &Value, pointer: &str, value: &Value) -> Value {
    let mut document = section.clone();
    *document.pointer_mut(pointer).unwrap() = value.clone();
    let parent = &pointer[..pointer.rfind('/').unwrap()];
    if let Some(Value::Object(members)) = document.pointer_mut(parent) {
        members.insert("nonsense".to_owned(), json!([1]));
    }
    if let Value::Object(members) = &mut document {
        members.insert("nonsense".to_owned(), json!(1));
    }
    document
}

/// The document in every style of its secret.
fn texts(document: &Value, secret: &str) -> [String; STYLES] {
    let flow = document.to_string();
    let block = serde_yaml::to_string(document).unwrap();
    let first = secret.chars().next().unwrap();
    let escaped = format!("\\x{:02x}{}", u32::from(first), &secret[first.len_utf8()..]);
    let single = format!("'{secret}'");
    let double = format!("\"{escaped}\"");
    let in_flow = [secret, &single, &double].map(|text| flow.replace("\"SLOT\"", text));
    let in_block = [secret, &single, &double].map(|text| block.replace(SLOT, text));
    let lines = secret.split(' ').collect::<Vec<_>>();
    let scalar = |mark: &str| {
        let lines = block.lines().map(|line| {
            if !line.ends_with(SLOT) {
                return line.to_owned();
            }
            let indent = " ".repeat(line.len() - line.trim_start().len() + 6);
            let text: Vec<String> = lines.iter().map(|word| format!("{indent}{word}")).collect();
            format!("{}\n{}", line.replace(SLOT, mark), text.join("\n"))
        });
        lines.collect::<Vec<_>>().join("\n")
    };
    let twice = block.lines().flat_map(|line| {
        let count = if line.contains(SLOT) { 2 } else { 1 };
        std::iter::repeat_n(line.replace(SLOT, secret), count)
    });
    let twice = twice.collect::<Vec<_>>().join("\n");
    let unclosed = block.replace(SLOT, &format!("'{secret}"));
    let [flow, flow_single, flow_double] = in_flow;
    let [plain, single, double] = in_block;
    let blocks = [scalar("|"), scalar(">-"), scalar("")];
    let [literal, folded, continued] = blocks;
    [
        twice,
        unclosed,
        literal,
        folded,
        continued,
        flow,
        flow_single,
        flow_double,
        plain,
        single,
        double,
    ]
}

#[track_caller]
fn assert_hidden(text: &str, shown: &str, marks: &[&str]) {
    for mark in marks {
        assert!(!shown.contains(mark), "{mark} of\n{text}\nis in\n{shown}");
    }
}

/// Each place of a credential has one shape and one style in turn: all pairs of them occur.
#[test]
fn no_fault_of_a_configuration_quotes_a_password() {
    let mut count: usize = 0;
    let shapes = [json!(SLOT), json!([SLOT]), json!({"x": SLOT}), json!([{"x": [SLOT]}])];
    for section in sections() {
        let mut pointers = Vec::new();
        scalars(&section, "", &mut pointers);
        for pointer in pointers.iter().filter(|pointer| is_credential(pointer)) {
            for _ in 0..TURNS {
                let document = with(&section, pointer, &shapes[count / STYLES % shapes.len()]);
                let text = &texts(&document, PASSWORD)[count % STYLES];
                count += 1;
                let Err(faults) = parse("t.yaml", text) else { continue };
                assert_hidden(text, &faults.to_string(), &["Hu5h"]);
            }
        }
    }
    assert!(count > STYLES * shapes.len(), "{count}");
}

#[test]
fn no_fault_quotes_a_password_as_a_key_or_in_a_wrong_member() {
    for (document, places) in [
        (
            json!({"consumers": {"entries": [{"name": "a", "keys": [{"id": "b", "other": SLOT}]}]}}),
            1,
        ),
        (json!({"consumers": {"entries": [{"name": "a", "keys": [{SLOT: "b"}]}]}}), 1),
        (json!({"consumers": {"entries": [{"name": "a", "key": SLOT}]}}), 1),
        (json!({"store": {"redis": {"password": {SLOT: 1}}}}), 1),
        (json!({"limits": {"a": {"tiers": [{"match": {"part": "token", "valus": [SLOT]}}]}}}), 1),
        (json!({"limits": {"a": {"tiers": [{"values": [SLOT]}]}}}), 1),
        (json!({"routes": [{"match": {"headers": [{"name": "x", "value": SLOT}]}}]}), 1),
        (json!({"routes": [{"match": {"headers": [{"x-api-key": SLOT}]}}]}), 1),
        (json!({"routes": [{"match": {"headers": [SLOT]}}]}), 1),
        (json!({"routes": [{"headers": {"request": {"set": SLOT}}}]}), 1),
        (json!({"routes": [{"headers": {"request": {"set": [SLOT]}}}]}), 1),
        (json!({"routes": [{"headers": {"request": {"set": {"x": {SLOT: 1}}}}}]}), 1),
    ] {
        assert_eq!(document.to_string().matches(SLOT).count(), places);
        let mut document = document;
        document.as_object_mut().unwrap().insert("nonsense".to_owned(), json!(1));
        for text in texts(&document, PASSWORD) {
            let shown = parse("t.yaml", &text).map(drop).unwrap_err().to_string();
            assert_hidden(&text, &shown, &["Hu5h"]);
        }
    }
}

#[test]
fn no_fault_quotes_what_its_form_betrays() {
    let mut turn = 0;
    for section in sections() {
        let mut pointers = Vec::new();
        scalars(&section, "", &mut pointers);
        for pointer in &pointers {
            turn += 1;
            let (secret, mark) = FORMS[turn % FORMS.len()];
            let value = [json!(SLOT), json!([SLOT]), json!({SLOT: 1})][turn % 3].clone();
            let texts = texts(&with(&section, pointer, &value), secret);
            let text = &texts[turn % texts.len()];
            if let Err(faults) = parse("t.yaml", text) {
                assert_hidden(text, &faults.to_string(), &[mark]);
            }
        }
    }
}

/// Reports every value.
struct Quoting;

impl RecordSink for Quoting {
    fn add(&mut self, record: &ConsumerRecord<'_>, _: usize) -> Vec<RecordFault> {
        let fault = |part, text: &str| RecordFault::new(part, &format!("`{text}`"), "another");
        let keys = record.keys.iter().enumerate();
        keys.map(|(index, key)| fault(RecordPart::KeyHash(index), &key.sha256))
            .chain(record.password.iter().map(|text| fault(RecordPart::Password, text)))
            .collect()
    }
}

impl OverrideSink for Quoting {
    fn secret(&mut self, text: &str) -> Option<OverrideFault> {
        Some(OverrideFault { field: None, what: format!("`{text}`"), expected: String::new() })
    }

    fn add(&mut self, fields: OverrideFields, _: usize) -> Vec<OverrideFault> {
        let field = OverrideField::Hash;
        let fault = fields.get(field).map(|text| OverrideFault {
            field: Some(field),
            what: format!("`{text}`"),
            expected: "another".to_owned(),
        });
        fault.into_iter().collect()
    }
}

#[test]
fn no_fault_of_another_file_quotes_a_password() {
    for document in [
        json!([{"name": "a", "password": SLOT}]),
        json!([{"name": "a", "keys": [{"id": "b", "sha256": SLOT}]}]),
        json!([{"name": "a", "keys": [SLOT]}]),
        json!([{"name": "a", "keys": SLOT}]),
        json!([{"name": "a", "keys": [{"id": "b", "other": SLOT}]}]),
        json!([{"name": "a", "keys": [{SLOT: "b"}]}]),
        json!([{"name": "a", "key": SLOT}]),
        json!([{"name": "a", "hash": [SLOT], "x": 1}]),
    ] {
        let of_lines = texts(&document[0], PASSWORD).into_iter().filter(|own| own.starts_with('{'));
        for text in texts(&document, PASSWORD).into_iter().chain(of_lines) {
            let faults = ConsumersText { name: "c.yaml", text: &text }.read(&mut Quoting);
            let shown: Vec<String> = faults.iter().map(ToString::to_string).collect();
            assert_hidden(&text, &shown.concat(), &["Hu5h"]);
        }
    }
    for document in [
        json!({"secret": SLOT}),
        json!({"secret": [SLOT], "x": 1}),
        json!({"overrides": [{"limit": "a", "key": SLOT}]}),
        json!({"overrides": [{"limit": "a", "key": [SLOT]}]}),
        json!({"overrides": [{"limit": "a", "key": {"x": SLOT}}]}),
        json!({"overrides": [{"limit": "a", "hash": SLOT}]}),
        json!({"overrides": [{"limit": "a", "hash": [SLOT], "x": 1}]}),
    ] {
        for text in texts(&document, PASSWORD) {
            let faults = OverridesText { name: "o.yaml", text: &text }.read(&mut Quoting);
            let shown: Vec<String> = faults.iter().map(ToString::to_string).collect();
            assert_hidden(&text, &shown.concat(), &["Hu5h"]);
        }
    }
    for document in [
        json!({"domain": "a", "descriptors": [{"key": "api_key", "value": SLOT, "x": 1}]}),
        json!({"domain": "a", "descriptors": [{"key": "a", "password": SLOT}]}),
        json!({"domain": "a", "descriptors": [{"key": "a", "token": [SLOT]}]}),
        json!({"domain": "a", "descriptors": [{"key": "a", "rate_limit": {"secret": SLOT}}]}),
    ] {
        for text in texts(&document, PASSWORD) {
            let Err(faults) = read_descriptors("d.yaml", &text) else { continue };
            assert_hidden(&text, &faults.to_string(), &["Hu5h"]);
        }
    }
}
