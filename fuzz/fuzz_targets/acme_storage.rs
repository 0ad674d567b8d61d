//! Whatever the storage of certificates has, in Redis or in a folder, is read or rejected. A sealed
//! record opens only with its key and its name, and what was read survives a round trip.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use tidegate::{
    acme::{
        ChallengeResponse, LeaseText, SealError, StorageKey, open_record, parse_account,
        seal_record,
    },
    tls::Certificate,
};

fn key(secret: &str) -> StorageKey {
    StorageKey::new(Some(secret.into()))
}

/// Reads the content of a record as each kind that there is.
fn parse(content: &[u8]) {
    let _ = (Certificate::parse(Path::new("record"), content), parse_account(content));
    if let Some(response) = ChallengeResponse::parse(content) {
        let text = response.to_string();
        assert_eq!(ChallengeResponse::parse(text.as_bytes()), Some(response));
    }
    let text = String::from_utf8_lossy(content);
    if let LeaseText::Paused { failures, error } = LeaseText::parse(&text) {
        let again = LeaseText::parse(&format!("paused {failures} {error}"));
        assert_eq!(again, LeaseText::Paused { failures, error });
    }
}

fuzz_target!(|input: (u8, u16, Vec<u8>)| {
    let (form, at, bytes) = input;
    let (own, other) = (key("0123456789abcdef0123456789abcdef"), key("another"));
    parse(&bytes);
    // What starts a record, so that the reader reads what follows.
    let start = [&b""[..], b"plain\n", b"aes-256-gcm\n"][usize::from(form % 3)];
    let record = [start, &bytes].concat();
    assert!(open_record(Some(&own), "a", &record).is_err(), "a record that was not sealed");
    match open_record(None, "a", &record) {
        Ok(content) => {
            assert_eq!(seal_record(None, "b", &content).as_deref(), Ok(&record[..]));
            parse(&content);
        }
        Err(error) => assert!(matches!(error, SealError::Unknown | SealError::NoKey), "{error}"),
    }
    let mut sealed = seal_record(Some(&own), "a", &bytes).expect("random numbers");
    assert_eq!(open_record(Some(&own), "a", &sealed).as_deref(), Ok(&bytes[..]));
    assert!(open_record(Some(&own), "b", &sealed).is_err(), "another name");
    assert!(open_record(Some(&other), "a", &sealed).is_err(), "another key");
    assert_eq!(open_record(None, "a", &sealed), Err(SealError::NoKey));
    let at = usize::from(at) % sealed.len();
    sealed[at] ^= form | 1;
    assert!(open_record(Some(&own), "a", &sealed).is_err(), "a changed record");
});
