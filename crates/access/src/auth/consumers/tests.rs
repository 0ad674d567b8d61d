//! The table of consumers, its checks, its speed and its size.

use std::fmt::Write as _;

use tidegate_config::{
    ConsumerRecord, ConsumersText, KeyRecord, RecordFault, RecordPart, RecordSink,
};

use super::*;

fn key(id: &str, key: &str, expires: Option<&'static str>) -> KeyRecord<'static> {
    let id = Some(id.to_owned().into());
    KeyRecord { id, sha256: hash(key).to_string().into(), expires: expires.map(Into::into) }
}

fn hash(key: &str) -> KeyHash {
    KeyHash::of(key.as_bytes())
}

fn record(name: &'static str, keys: &[KeyRecord<'static>]) -> ConsumerRecord<'static> {
    let keys = keys.iter().cloned().collect();
    ConsumerRecord { name: name.into(), plan: None, keys, ..ConsumerRecord::default() }
}

fn seconds(text: &str) -> StoreTime {
    let time = humantime::parse_rfc3339(text).unwrap();
    let since = time.duration_since(std::time::UNIX_EPOCH).unwrap();
    StoreTime::from_unix_ms(since.as_millis() as u64)
}

#[test]
fn consumers_are_found_by_key_and_by_name() {
    let plans = [Box::from("free"), Box::from("gold")];
    let mut builder = ConsumerTableBuilder::new(&plans);
    let gold = ConsumerRecord {
        plan: Some("gold".into()),
        ..record("acme", &[key("old", "a", Some("2027-01-01")), key("new", "b", None)])
    };
    let disabled =
        ConsumerRecord { is_disabled: true, ..record("caf\u{e9}", &[key("", "c", None)]) };
    assert_eq!(builder.add(&gold, 1), []);
    assert_eq!(builder.add(&disabled, 5), []);
    assert_eq!(builder.add(&record("bare", &[]), 9), []);
    let table = builder.build();
    assert_eq!((table.len(), table.key_count(), table.is_empty()), (3, 3, false));
    let before = seconds("2026-12-31T23:59:59.999Z");
    let found = table.key(&hash("a"), before).unwrap();
    assert_eq!((found.consumer.name, found.consumer.plan, found.id), ("acme", Some("gold"), "old"));
    assert_eq!(found.validity, KeyValidity::Valid);
    let expired = table.key(&hash("a"), seconds("2027-01-01T00:00:00Z")).unwrap();
    assert_eq!(expired.validity, KeyValidity::Expired);
    assert_eq!(table.key(&hash("b"), StoreTime::MAX).unwrap().validity, KeyValidity::Valid);
    assert_eq!(table.key(&hash("c"), before).unwrap().validity, KeyValidity::Disabled);
    assert_eq!(table.key(&hash("d"), before), None);
    assert!(table.consumer("caf\u{e9}").unwrap().is_disabled);
    assert_eq!(table.consumer("bare").unwrap().consumer.plan, None);
    assert_eq!(table.consumer("other"), None);
    let debug = format!("{table:?}");
    assert!(debug.contains("consumers: 3") && !debug.contains("acme"), "{debug}");
}

#[test]
fn faulty_records_are_reported() {
    let plans = [Box::from("free"), Box::from("gold")];
    let mut builder = ConsumerTableBuilder::new(&plans);
    assert_eq!(builder.add(&record("acme", &[key("a", "a", None)]), 3), []);
    let mut faults = |record: ConsumerRecord<'_>| {
        let faults = builder.add(&record, 7);
        let shown = |fault: RecordFault| {
            (fault.part, format!("{}, expected {}", fault.what, fault.expected))
        };
        faults.into_iter().map(shown).collect::<Vec<_>>()
    };
    let part_of = |faults: &[(RecordPart, String)]| (faults[0].0, faults[0].1.clone());
    let named = |name: &str| ConsumerRecord { name: name.to_owned().into(), ..record("", &[]) };
    for (name, what) in [
        ("acme", "duplicate consumer `acme`, expected each name once (line 3 has it already)"),
        ("", "this name of a consumer, expected 1 to 128 printable characters"),
        (" a", "this name of a consumer"),
        ("a\tb", "this name of a consumer"),
        ("a\u{200b}b", "this name of a consumer"),
        ("a\u{202e}b", "this name of a consumer"),
        (&*"x".repeat(129), "this name of a consumer"),
        ("tg_0123456789AB", "an API key or a token as a name, expected a name"),
    ] {
        let (part, text) = part_of(&faults(named(name)));
        assert!(part == RecordPart::Name && text.starts_with(what), "{name}: {text}");
    }
    assert_eq!(faults(named(&"\u{e9}".repeat(128))), []);
    for (plan, what) in [
        ("glod", "unknown plan `glod`, expected `gold`"),
        ("platinum", "unknown plan `platinum`, expected one of free, gold"),
    ] {
        let planned = ConsumerRecord { plan: Some(plan.into()), ..record("b", &[]) };
        let (part, text) = part_of(&faults(planned));
        assert_eq!((part, text.as_str()), (RecordPart::Plan, what));
    }
    let short = KeyRecord { sha256: "0b6c".into(), ..KeyRecord::default() };
    for (key, part, what) in [
        (short, RecordPart::KeyHash(1), "this value, expected the SHA-256 of the key"),
        (key("a", "a", None), RecordPart::KeyHash(1), "a key that exists, expected each key once"),
        (key("a", "z", Some("soon")), RecordPart::KeyExpiry(1), "`soon`, expected a time such as"),
        (key("a", "z", Some("2027-13-01")), RecordPart::KeyExpiry(1), "`2027-13-01`"),
        (key("a", "z", Some("2200-01-01")), RecordPart::KeyExpiry(1), "`2200-01-01`"),
        (key(&"x".repeat(65), "z", None), RecordPart::KeyId(1), "this name of a key"),
    ] {
        let first = KeyRecord { sha256: hash(what).to_string().into(), ..KeyRecord::default() };
        let keys = [first, key].into_iter().collect();
        let name = what.to_owned().into();
        let (found, text) = part_of(&faults(ConsumerRecord { name, keys, ..record("", &[]) }));
        assert!(found == part && text.starts_with(what), "{what}: {text}");
    }
}

/// A file with this number of consumers, each with one key.
fn large_file(consumers: usize) -> String {
    let mut text = String::new();
    for number in 0..consumers {
        let hash = hash(&format!("key {number}"));
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "- name: customer-{number:07}\n  plan: gold\n  keys:\n    - {{id: 2026-11, sha256: {hash}, expires: \
             2027-01-01T00:00:00Z}}\n"
        );
    }
    text
}

fn read_large(text: &str) -> ConsumerTable {
    let plans = [Box::from("gold")];
    let mut builder = ConsumerTableBuilder::new(&plans);
    let faults = ConsumersText { name: "large.yaml", text }.read(&mut builder);
    assert_eq!(faults.len(), 0);
    builder.build()
}

#[test]
fn a_key_takes_less_than_150_bytes() {
    // Just above a power of two, after which the indexes are emptiest.
    let consumers = 15_000;
    let table = read_large(&large_file(consumers));
    assert_eq!((table.len(), table.key_count()), (consumers, consumers));
    let bytes = table.memory() / consumers;
    assert!(bytes < 150, "{bytes} bytes a key");
    for number in [0, 1, consumers - 1] {
        let found = table.key(&hash(&format!("key {number}")), StoreTime::ZERO).unwrap();
        assert_eq!(found.consumer.name, format!("customer-{number:07}"));
    }
}
