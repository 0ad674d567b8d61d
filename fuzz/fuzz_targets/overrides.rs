//! The readers of overrides accept any text: the body of a request, a record in Redis, and the
//! file. What is read is written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::overrides::{Override, parse_file, parse_request};

fuzz_target!(|text: &str| {
    let _ = parse_request(text.as_bytes());
    if let Ok(own) = Override::of_json(text.as_bytes()) {
        assert_eq!(Override::of_json(own.to_json().as_bytes()), Ok(own));
    }
    match parse_file("fuzz.yaml", text) {
        Ok(content) => {
            for (id, own) in content.set.iter() {
                assert_eq!(id, own.id());
                assert_eq!(Override::of_json(own.to_json().as_bytes()).as_ref(), Ok(&**own));
            }
        }
        Err(faults) => faults.iter().for_each(|fault| assert!(!fault.to_string().is_empty())),
    }
});
