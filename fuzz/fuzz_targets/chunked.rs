//! A chunked body ends at the same byte however it is cut.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::framing::chunked::Chunked;

fuzz_target!(|input: (u16, &[u8])| {
    let (cut, bytes) = (usize::from(input.0).min(input.1.len()), input.1);
    let mut whole = Chunked::default();
    let length = whole.feed(bytes);
    let mut parts = Chunked::default();
    let cut_length = parts.feed(&bytes[..cut]).and_then(|first| {
        let second = if first == cut { parts.feed(&bytes[cut..])? } else { 0 };
        Ok(first + second)
    });
    assert_eq!(length, cut_length);
    if let Ok(length) = length {
        assert_eq!(whole.is_done(), parts.is_done());
        assert!(whole.is_done() || length == bytes.len());
    }
});
