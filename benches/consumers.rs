//! A file of a million consumers: the time to read it as YAML and as JSON, and the memory of its keys.
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::fmt::Write as _;

use tidegate::{
    auth::{ConsumerTable, ConsumerTableBuilder, KeyHash},
    clock::{self, StoreTime},
    config::ConsumersText,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CONSUMERS: usize = 1_000_000;
const LOOKUPS: usize = 200_000;

fn main() {
    let mut json = String::new();
    for number in 0..CONSUMERS {
        let hash = KeyHash::of(format!("key {number}").as_bytes());
        // Writing to a string cannot fail.
        let _ = writeln!(
            json,
            r#"{{"name":"customer-{number:07}","plan":"gold","keys":[{{"id":"2026-11","sha256":"{hash}","expires":"2027-01-01T00:00:00Z"}}]}}"#
        );
    }
    let _table = read("JSON", &json);
    let mut text = String::new();
    for number in 0..CONSUMERS {
        let hash = KeyHash::of(format!("key {number}").as_bytes());
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "- name: customer-{number:07}\n  plan: gold\n  keys:\n    \
             - {{id: 2026-11, sha256: {hash}, expires: 2027-01-01T00:00:00Z}}\n"
        );
    }
    let table = read("YAML", &text);
    let hashes = (0..LOOKUPS).map(|number| {
        // Far apart, so that no lookup finds the last one's memory.
        KeyHash::of(format!("key {}", number * 7_919 % CONSUMERS).as_bytes())
    });
    let hashes: Vec<KeyHash> = hashes.collect();
    let now = StoreTime::from_unix_ms(1_790_000_000_000);
    let start = clock::instant();
    let found = hashes.iter().filter(|hash| table.key(hash, now).is_some()).count();
    let each = start.elapsed() / LOOKUPS as u32;
    assert_eq!(found, LOOKUPS);
    println!("a lookup by the hash of a key: {each:.0?}");
}

fn read(form: &str, text: &str) -> ConsumerTable {
    let plans = [Box::from("gold")];
    let start = clock::instant();
    let mut builder = ConsumerTableBuilder::new(&plans);
    let faults = ConsumersText { name: "consumers", text }.read(&mut builder);
    let table = builder.build();
    let took = start.elapsed();
    assert_eq!((faults.len(), table.key_count()), (0, CONSUMERS));
    let (size, bytes) = (text.len() >> 20, table.memory() / CONSUMERS);
    println!("{CONSUMERS} consumers, {size} MiB of {form}: {took:.2?}, {bytes} bytes a key");
    table
}
