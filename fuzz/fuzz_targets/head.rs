//! A head that passes has one reading: the same whole or in pieces, and no byte that splits lines.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::framing::{AnswerHead, head::check_request};

fuzz_target!(|bytes: &[u8]| {
    let _ = AnswerHead::check(bytes);
    let Ok(Some((length, body))) = check_request(bytes, 100) else { return };
    let head = &bytes[..length];
    assert!(head.ends_with(b"\r\n\r\n"));
    assert_eq!(check_request(head, 100), Ok(Some((length, body))));
    assert_eq!(check_request(&head[..length - 1], 100), Ok(None));
    for line in head[..length - 2].split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        assert!(!line.contains(&b'\r') && !line.contains(&0));
    }
    let target = head.split(|byte| *byte == b' ').nth(1).expect("a request line has a target");
    assert!(http::Uri::try_from(target).is_ok());
});
