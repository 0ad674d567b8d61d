//! Any text is a file of envoyproxy/ratelimit, or has faults with a place in it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::config::read_descriptors;

fuzz_target!(|text: &str| {
    if let Err(faults) = read_descriptors("fuzz.yaml", text) {
        faults.iter().for_each(|fault| assert!(fault.to_string().starts_with("fuzz.yaml")));
    }
});
