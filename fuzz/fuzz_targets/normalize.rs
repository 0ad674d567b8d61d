//! Normalization of a path is idempotent and leaves no dot segments.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::route::normalize::normalize;

fuzz_target!(|input: (bool, &str)| {
    let (merge_slashes, path) = input;
    let Ok(normal) = normalize(path, merge_slashes) else { return };
    assert!(normal.starts_with('/'));
    assert!(normal.split('/').all(|segment| segment != "." && segment != ".."));
    assert!(!merge_slashes || !normal.contains("//"));
    assert!(!normal.contains("%00"));
    assert_eq!(normalize(&normal, merge_slashes).as_deref(), Ok(&*normal));
});
