//! A PROXY protocol header is read alike in one piece and in many, and nothing behind it is
//! consumed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::connection::proxy_protocol::parse;

fuzz_target!(|input: (u8, &[u8])| {
    // With the start of each version, or as it is.
    const STARTS: [&[u8]; 3] = [b"", b"PROXY ", b"\r\n\r\n\0\r\nQUIT\n"];
    let (start, rest) = input;
    let bytes = [STARTS[usize::from(start) % STARTS.len()], rest].concat();
    let whole = parse(&bytes);
    if let Ok(Some((_, length))) = &whole {
        assert!(*length > 0 && *length <= bytes.len());
    }
    for end in 0..bytes.len() {
        match parse(&bytes[..end]) {
            // Incomplete: the rest decides.
            Ok(None) => {}
            // Complete: what follows does not matter.
            Ok(Some((address, length))) => {
                assert!(length <= end);
                let Ok(Some((same, same_length))) = &whole else {
                    panic!("complete after {end} bytes only")
                };
                assert_eq!((format!("{address:?}"), length), (format!("{same:?}"), *same_length));
            }
            Err(_) => assert!(whole.is_err(), "malformed after {end} bytes only"),
        }
    }
});
