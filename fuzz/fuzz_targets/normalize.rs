//! Normalization of a path is idempotent and leaves no dot segments.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::route::normalize::{Slashes, normalize};

fuzz_target!(|input: (bool, &str)| {
    let (merges, path) = input;
    let slashes = if merges { Slashes::Merge } else { Slashes::Keep };
    let Ok(normal) = normalize(path, slashes) else { return };
    assert!(normal.starts_with('/'));
    assert!(normal.split('/').all(|segment| segment != "." && segment != ".."));
    assert!(!merges || !normal.contains("//"));
    assert!(!normal.contains("%00"));
    assert_eq!(normalize(&normal, slashes).as_deref(), Ok(&*normal));
});
