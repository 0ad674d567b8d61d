//! A request that a proxy describes is, written as HTTP/1, the same request; a check of Envoy has
//! no broken field.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message;
use tidegate::{
    ext_authz::{CheckedRequest, messages::CheckRequest},
    http1::{DescribedRequest, HeadBounds, RequestDescription, RequestHead},
};

const BOUNDS: HeadBounds = HeadBounds { bytes: 1 << 16, headers: 100 };

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Some((head, _))) = RequestHead::read(bytes, BOUNDS)
        && let Ok(Some(family)) = RequestDescription::find(&head.fields)
        && let Ok(described) = family.read(&head.fields)
    {
        check(&described);
        let asked = head.about(described.clone());
        assert_eq!((asked.path(), asked.query()), (described.path(), described.query()));
        assert_eq!(asked.fields.get_all("host").collect::<Vec<_>>(), [described.host()]);
    }
    if let Ok(message) = CheckRequest::decode(bytes)
        && let Ok(checked) = CheckedRequest::read(&message, BOUNDS)
    {
        check(&checked.described);
        for (name, value) in checked.fields.iter() {
            assert!(!name.is_empty() && name.iter().all(|byte| *byte > b' ' && *byte < 0x7f));
            assert!(!value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)));
        }
    }
});

/// Asserts that HTTP/1 reads the described request as it is.
fn check(described: &DescribedRequest) {
    let query = described.query().map(|query| format!("?{query}")).unwrap_or_default();
    let line = format!("{} {}{query} HTTP/1.1\r\nHost: ", described.method(), described.path());
    let written = [line.as_bytes(), described.host(), b"\r\n\r\n"].concat();
    let read = RequestHead::read(&written, BOUNDS).expect("a valid head").expect("a complete head");
    assert_eq!(read.1, written.len(), "another head begins inside");
    assert_eq!(&read.0.method, described.method());
    assert_eq!((read.0.path(), read.0.query()), (described.path(), described.query()));
}
