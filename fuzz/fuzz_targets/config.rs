//! Any text is a configuration or a list of faults.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::{config, snapshot::Snapshot};

fuzz_target!(|text: &str| {
    match config::parse("fuzz.yaml", text) {
        Ok(loaded) => {
            let _ = Snapshot::compile(&loaded).map_err(|faults| faults.to_string());
        }
        Err(faults) => assert!(!faults.to_string().is_empty()),
    }
});
