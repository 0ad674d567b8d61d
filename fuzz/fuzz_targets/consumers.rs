//! The reader of a file of consumers accepts any text, in YAML or JSON, and reports its faults.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::{auth::ConsumerTableBuilder, config::ConsumersText};

fuzz_target!(|text: &str| {
    let plans = [Box::from("free"), Box::from("gold")];
    let mut builder = ConsumerTableBuilder::new(&plans);
    let faults = ConsumersText { name: "fuzz.yaml", text }.read(&mut builder);
    let table = builder.build();
    assert!(table.key_count() == 0 || !table.is_empty());
    faults.iter().for_each(|fault| assert!(!fault.to_string().is_empty()));
});
