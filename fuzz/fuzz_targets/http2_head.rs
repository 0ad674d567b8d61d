//! An HTTP/2 request that is accepted, written as HTTP/1, parses to the same request.
#![no_main]

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, uri::PathAndQuery};
use libfuzzer_sys::fuzz_target;
use tidegate::http1::{BodyLength, HeadBounds, Http2Head, RequestHead, StreamContent};

const BOUNDS: HeadBounds = HeadBounds { bytes: 4096, headers: 30 };
/// Room for what HTTP/1 adds: the request line, and the length of a body.
const WRITTEN: HeadBounds = HeadBounds { bytes: 8192, headers: 32 };

/// The parts of a request, as bytes.
type Input<'a> = (&'a [u8], &'a [u8], Option<&'a [u8]>, Vec<(&'a [u8], &'a [u8])>, bool);

fuzz_target!(|input: Input<'_>| {
    let content = if input.4 { StreamContent::Nothing } else { StreamContent::Data };
    let Some(request) = request(&input) else { return };
    let (parts, ()) = request.into_parts();
    let head = Http2Head { parts: &parts, protocol: None, content };
    let Ok(head) = RequestHead::from_http2(head, BOUNDS) else { return };
    assert!(head.fields.len() <= BOUNDS.headers);
    assert_eq!(head.fields.get_all("host").count(), 1);
    for (name, value) in head.fields.iter() {
        assert!(!name.is_empty() && name.iter().all(|byte| *byte > b' ' && *byte < 0x7f));
        assert!(!value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)));
        assert_eq!(value.trim_ascii(), value);
    }
    if head.method == Method::CONNECT {
        return;
    }
    let written = write(&head);
    let read = RequestHead::read(&written, WRITTEN);
    let (read, length) = read.expect("a valid head").expect("a complete head");
    assert_eq!(length, written.len(), "another head begins inside");
    assert_eq!(
        (&read.method, read.path(), read.query()),
        (&head.method, head.path(), head.query())
    );
    let fields = |head: &RequestHead| {
        let all = head.fields.iter().map(|(name, value)| (name.to_vec(), value.to_vec()));
        let is_own = |(name, _): &(Vec<u8>, Vec<u8>)| {
            name != b"content-length" && name != b"transfer-encoding"
        };
        all.filter(is_own).collect::<Vec<_>>()
    };
    assert_eq!(fields(&read), fields(&head));
    assert_eq!(read.length, head.length);
});

/// What the library makes of the parts; `None` if it rejects one.
fn request(input: &Input<'_>) -> Option<Request<()>> {
    let (method, path, authority, fields, _) = input;
    let mut uri = http::uri::Parts::default();
    uri.path_and_query = Some(PathAndQuery::try_from(*path).ok()?);
    if let Some(authority) = authority {
        uri.authority = Some((*authority).try_into().ok()?);
        uri.scheme = Some(http::uri::Scheme::HTTP);
    }
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        let name = HeaderName::from_lowercase(name).ok()?;
        headers.try_append(name, HeaderValue::from_bytes(value).ok()?).ok()?;
    }
    let mut request = Request::new(());
    *request.method_mut() = Method::from_bytes(method).ok()?;
    *request.uri_mut() = uri.try_into().ok()?;
    *request.headers_mut() = headers;
    Some(request)
}

/// The head as HTTP/1 sends it.
fn write(head: &RequestHead) -> Vec<u8> {
    let path = if head.is_asterisk_form() { "*" } else { head.path() };
    let mut bytes = format!("{} {path}", head.method).into_bytes();
    if let Some(query) = head.query() {
        bytes.push(b'?');
        bytes.extend_from_slice(query.as_bytes());
    }
    bytes.extend_from_slice(b" HTTP/1.1\r\n");
    head.fields.write_to(&mut bytes, |name| name != b"content-length");
    match head.length {
        BodyLength::Known(length) => {
            bytes.extend_from_slice(format!("content-length: {length}\r\n").as_bytes());
        }
        BodyLength::Chunked => bytes.extend_from_slice(b"transfer-encoding: chunked\r\n"),
    }
    bytes.extend_from_slice(b"\r\n");
    bytes
}
