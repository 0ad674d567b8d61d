//! Arbitrary bodies in arbitrary pieces do not panic the scanners, and give the same numbers as in
//! one piece.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use tidegate::usage::{BodyFormat, BodyScanner, PathSet, RequestMembers, UsageDecoder};

const PATHS: [&str; 5] = ["a", "a.b", "*.a.b", "a.0", "usage.total_tokens"];

fn paths() -> PathSet {
    let paths = PATHS.iter().filter_map(|path| path.parse().ok()).collect();
    PathSet::new(paths).unwrap_or_else(|| panic!("the paths are few"))
}

fuzz_target!(|input: (u8, Vec<u8>)| {
    let (step, body) = input;
    let paths = Arc::new(paths());
    for format in [BodyFormat::Json, BodyFormat::Events, BodyFormat::Lines] {
        let mut whole = BodyScanner::new(format, Arc::clone(&paths));
        whole.push(&body);
        let mut pieces = BodyScanner::new(format, Arc::clone(&paths));
        body.chunks(usize::from(step).max(1)).for_each(|piece| pieces.push(piece));
        for path in 0..PATHS.len() {
            assert_eq!(whole.quantity(path), pieces.quantity(path));
        }
        for coding in [&b"gzip"[..], b"deflate", b"zstd"] {
            let scanner = BodyScanner::new(format, Arc::clone(&paths));
            if let Some(mut decoder) = UsageDecoder::new(Some(coding), scanner) {
                decoder.push(&body);
                decoder.flush();
            }
        }
    }
    let _ = RequestMembers::of(PathSet::clone(&paths), &body);
});
