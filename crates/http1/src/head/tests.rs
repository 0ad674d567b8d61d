use super::{
    reference::{self, ReferenceHead},
    *,
};
use proptest::{collection::vec, prelude::*, sample::select};

const BOUNDS: HeadBounds = HeadBounds { bytes: 1 << 20, headers: 100 };

fn request(head: &str) -> Result<BodyLength, FramingError> {
    let (read, end) = RequestHead::read(head.as_bytes(), BOUNDS)?.expect("a complete head");
    assert_eq!(end, head.len());
    Ok(read.length)
}

/// Parses a request's head that arrives in pieces of `step` bytes.
fn in_pieces(head: &[u8], step: usize) -> Result<Option<(RequestHead, usize)>, FramingError> {
    let mut parser = HeadParser::request(BOUNDS);
    for end in (0..head.len()).step_by(step).skip(1).chain([head.len()]) {
        if let Some(length) = parser.parse(&head[..end])? {
            return Ok(Some((parser.finish(&head[..length])?, length)));
        }
    }
    Ok(None)
}

#[test]
fn well_formed_requests_are_accepted() {
    for (head, length) in [
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", BodyLength::Known(0)),
        ("GET / HTTP/1.0\r\n\r\n", BodyLength::Known(0)),
        ("POST /a?b HTTP/1.1\r\nHOST:a:80\r\ncontent-length: 12\r\n\r\n", BodyLength::Known(12)),
        (
            "POST / HTTP/1.1\r\nHost: [::1]:80\r\nTransfer-Encoding: Chunked \r\n\r\n",
            BodyLength::Chunked,
        ),
        ("GET http://a/ HTTP/1.1\r\nHost: a\r\nX:\r\nY: \tz\u{e9}\r\n\r\n", BodyLength::Known(0)),
    ] {
        assert_eq!(request(head), Ok(length), "{head:?}");
    }
}

#[test]
fn rare_fields_are_noted_alike_in_all_versions() {
    let none = RareFields::default();
    for (name, rare) in [
        ("Authorization", RareFields { authorization: true, ..none }),
        ("eXPECT", RareFields { expect: true, ..none }),
        ("via", RareFields { via: true, ..none }),
        ("Tidegate-Via", RareFields { via: true, ..none }),
        ("x-via", none),
        ("Proxy-Authorization", none),
    ] {
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{name}: x\r\n\r\n");
        let (head, _) = RequestHead::read(head.as_bytes(), BOUNDS).unwrap().unwrap();
        assert_eq!(head.rare, rare, "{name}");
        let request = http::Request::get("https://a/").header(name, "x").body(()).unwrap();
        let (parts, ()) = request.into_parts();
        let head = RequestHead::from_http2(
            Http2Head { parts: &parts, protocol: None, content: StreamContent::Nothing },
            BOUNDS,
        )
        .unwrap();
        assert_eq!(head.rare, rare, "{name}");
    }
}

#[test]
fn ambiguous_and_malformed_requests_are_rejected() {
    let with = |line: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{line}\r\n\r\n");
    for (head, error) in [
        (with("Content-Length: 1\r\nTransfer-Encoding: chunked"), FramingError::LengthAndCoding),
        (with("Transfer-Encoding: chunked\r\nContent-Length: 1"), FramingError::LengthAndCoding),
        (with("Content-Length: 1\r\nContent-Length: 1"), FramingError::LengthRepeated),
        (with("Content-Length: 1, 1"), FramingError::LengthMalformed),
        (with("Content-Length: +1"), FramingError::LengthMalformed),
        (with("Content-Length: 1a"), FramingError::LengthMalformed),
        (with("Content-Length: 1 1"), FramingError::LengthMalformed),
        (with("Content-Length:"), FramingError::LengthMalformed),
        (with("Content-Length: 0x10"), FramingError::LengthMalformed),
        (with("Content-Length: 9999999999999999999"), FramingError::LengthMalformed),
        (with("Transfer-Encoding: chunked, chunked"), FramingError::Coding),
        (with("Transfer-Encoding: gzip, chunked"), FramingError::Coding),
        (with("Transfer-Encoding: identity"), FramingError::Coding),
        (with("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked"), FramingError::Coding),
        (with("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"), FramingError::Coding),
        (with("Transfer-Encoding:\u{b}chunked"), FramingError::Control),
        (with("A: b\r\n folded"), FramingError::Folded),
        (with("A : b"), FramingError::HeaderName),
        (with(": b"), FramingError::HeaderName),
        (with("no colon"), FramingError::HeaderName),
        (with("A: b\0c"), FramingError::Control),
        (with("A: b\rc"), FramingError::Control),
        (with("A: b\nC: d"), FramingError::BareLf),
        (with("host: b"), FramingError::HostRepeated),
        (with(&format!("Connection: {}", "a,".repeat(64))), FramingError::ConnectionOptions),
        (with("Connection: a\r\n".repeat(65).trim_end()), FramingError::ConnectionOptions),
        ("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".into(), FramingError::Coding),
        ("GET / HTTP/1.1\r\n\r\n".into(), FramingError::HostMissing),
        ("GET / HTTP/1.1\r\nHost: \r\n\r\n".into(), FramingError::HostMissing),
        ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n".into(), FramingError::HostMalformed),
        ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n".into(), FramingError::HostMalformed),
        ("GET / HTTP/1.1\r\nHost: a@b\r\n\r\n".into(), FramingError::HostMalformed),
        ("GET / HTTP/1.1\r\nHost: a:b\r\n\r\n".into(), FramingError::HostMalformed),
        ("GET / HTTP/1.1\r\nHost: [::1\r\n\r\n".into(), FramingError::HostMalformed),
        ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n".into(), FramingError::RequestLine),
        ("GET / x HTTP/1.1\r\nHost: a\r\n\r\n".into(), FramingError::RequestLine),
        ("GET /\r\nHost: a\r\n\r\n".into(), FramingError::RequestLine),
        ("G@T / HTTP/1.1\r\nHost: a\r\n\r\n".into(), FramingError::Method),
        ("GET / HTTP/2.0\r\nHost: a\r\n\r\n".into(), FramingError::Version),
        ("GET / HTTP/0.9\r\nHost: a\r\n\r\n".into(), FramingError::Version),
        ("GET / HTTP/01.1\r\nHost: a\r\n\r\n".into(), FramingError::RequestLine),
        ("GET / HTTP/1.10\r\nHost: a\r\n\r\n".into(), FramingError::RequestLine),
        ("GET / HTTP/1\r\nHost: a\r\n\r\n".into(), FramingError::RequestLine),
        ("GET / HTTP/1.1x\r\nHost: a\r\n\r\n".into(), FramingError::RequestLine),
        ("GET / HTTP/a.b\r\nHost: a\r\n\r\n".into(), FramingError::RequestLine),
        ("GET / HTTP/1.1\nHost: a\r\n\r\n".into(), FramingError::BareLf),
    ] {
        assert_eq!(request(&head), Err(error), "{head:?}");
    }
}

#[test]
fn heads_are_bounded_in_fields_and_bytes() {
    let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "A: b\r\n".repeat(99));
    let bounded = |bytes, headers| {
        let bounds = HeadBounds { bytes, headers };
        RequestHead::read(head.as_bytes(), bounds).map(|read| read.map(|(_, length)| length))
    };
    assert_eq!(bounded(head.len(), 100), Ok(Some(head.len())));
    assert_eq!(bounded(head.len(), 99), Err(FramingError::TooManyFields(99)));
    assert_eq!(bounded(head.len() - 1, 100), Err(FramingError::HeadTooLarge(head.len() - 1)));
    assert_eq!(bounded(10, 100), Err(FramingError::TargetTooLong(10)));
    for (error, text) in [
        (FramingError::TooManyFields(99), "the head has more than 99 header fields"),
        (FramingError::HeadTooLarge(8192), "the head is larger than 8192 bytes"),
        (FramingError::TargetTooLong(10), "the request line is longer than 10 bytes"),
    ] {
        assert_eq!(error.to_string(), text, "a client reads the bound");
    }
    let unfinished = HeadBounds { bytes: 20, headers: 100 };
    for (sent, error) in [
        ("GET /", None),
        ("GET /aaaaaaaaaaaaaaaaaaaaa", Some(FramingError::TargetTooLong(20))),
        ("GET / HTTP/1.1\r\nA: bbbbbbb", Some(FramingError::HeadTooLarge(20))),
    ] {
        assert_eq!(RequestHead::read(sent.as_bytes(), unfinished).err(), error, "{sent}");
    }
}

#[test]
fn head_is_the_same_however_its_bytes_are_split() {
    let head =
        b"POST /a?b HTTP/1.1\r\nHost: a\r\nConnection: close, X-A\r\nExpect: 100-continue\r\n\
        X-A:\t 1 \r\nx-a:2\r\nContent-Length: 3\r\n\r\nabc";
    for step in 1..head.len() {
        let (read, length) = in_pieces(head, step).unwrap().expect("a complete head");
        assert_eq!(length, head.len() - 3, "step {step}");
        assert_eq!(
            (read.path(), read.query(), read.length),
            ("/a", Some("b"), BodyLength::Known(3))
        );
        assert_eq!(read.fields.get_all("X-A").collect::<Vec<_>>(), [b"1", b"2"]);
        let connection =
            ConnectionOptions { close: true, lists_fields: true, ..ConnectionOptions::default() };
        assert_eq!((read.connection, read.rare.expect), (connection, true));
    }
}

#[test]
fn bytes_are_searched_once_in_a_head_that_trickles_in() {
    let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{}", "A: b\r\n".repeat(90));
    let mut parser = HeadParser::request(BOUNDS);
    for end in 0..=head.len() {
        assert_eq!(parser.parse(&head.as_bytes()[..end]), Ok(None));
        // A CR at the end is tested again, with the byte after it.
        let is_cr = head.as_bytes()[..end].ends_with(b"\r");
        assert_eq!(parser.searched, end - usize::from(is_cr));
    }
}

#[test]
fn persistence_follows_version_and_connection_options() {
    for (version, options, persistent) in [
        ("1.1", "", true),
        ("1.1", "Connection: close\r\n", false),
        ("1.1", "Connection: keep-alive, CLOSE\r\n", false),
        ("1.1", "Connection: keep-alive\r\nConnection: close\r\n", false),
        ("1.0", "", false),
        ("1.0", "Connection: Keep-Alive\r\n", true),
    ] {
        let head = format!("GET / HTTP/{version}\r\nHost: a\r\n{options}\r\n");
        let (head, _) = RequestHead::read(head.as_bytes(), BOUNDS).unwrap().unwrap();
        assert_eq!(head.is_persistent(), persistent, "{version} {options}");
    }
}

#[test]
fn ambiguous_and_malformed_responses_are_rejected() {
    let status = |head: &str| {
        ResponseHead::read(head.as_bytes()).map(|h| h.expect("a complete head").0.status)
    };
    assert_eq!(status("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n"), Ok(200));
    assert_eq!(status("HTTP/1.0 404\r\n\r\n"), Ok(404));
    // RFC 9110, 2.5: a higher minor version is read as the highest known one.
    assert_eq!(status("HTTP/1.2 200 OK\r\nContent-Length: 1\r\n\r\n"), Ok(200));
    for (head, error) in [
        ("HTTP/1.1 200 OK\r\nA: b\nC: d\r\n\r\n", FramingError::BareLf),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            FramingError::LengthRepeated,
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            FramingError::LengthAndCoding,
        ),
        ("HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", FramingError::Folded),
        ("HTTP/1.1 101 Switching\r\n\r\n", FramingError::UnexpectedUpgrade),
        ("HTTP/1.1 20 OK\r\n\r\n", FramingError::StatusLine),
        ("HTTP/1.1 600 Odd\r\n\r\n", FramingError::StatusLine),
        ("HTTP/1.1 2000\r\n\r\n", FramingError::StatusLine),
        ("HTTP/2 200\r\n\r\n", FramingError::StatusLine),
        ("HTTP/2.0 200 OK\r\n\r\n", FramingError::StatusLine),
        ("HTTP/1.1200 OK\r\n\r\n", FramingError::StatusLine),
        ("hello\r\n\r\n", FramingError::StatusLine),
    ] {
        assert_eq!(status(head), Err(error), "{head:?}");
    }
}

/// The head that the parser reads from `bytes`, which arrive in pieces of `step` bytes.
fn parsed<S: StartLine>(
    mut parser: HeadParser<S>,
    bytes: &[u8],
    step: usize,
) -> Result<Option<ReferenceHead>, ()> {
    for end in (step..bytes.len()).step_by(step).chain([bytes.len()]) {
        if let Some(length) = parser.parse(&bytes[..end]).map_err(drop)? {
            let mut lines = Vec::new();
            parser.take_fields(&bytes[..length]).write_to(&mut lines, |_| true);
            return Ok(Some(ReferenceHead { lines, length }));
        }
    }
    Ok(None)
}

/// Heads of pieces that are well formed, almost well formed, and random.
fn heads() -> impl Strategy<Value = Vec<u8>> {
    let first = select(vec![
        "GET / HTTP/1.1\r\n",
        "POST /a?b=%20 HTTP/1.0\r\n",
        "OPTIONS * HTTP/1.1\r\n",
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.0 404\r\n",
        "GET /",
        "\r\n",
    ]);
    let part = prop_oneof![
        8 => select(vec![
            "Host: a\r\n", "X-A:b\r\n", "x-b: \tc \t\r\n", "Content-Length: 3\r\n", "E:\r\n",
            "Accept: text/html, */*\r\n", "Connection: close, x-a\r\n", ": x\r\n", "N : x\r\n",
            "Transfer-Encoding: chunked\r\n", " folded\r\n", "A: b\n", "A: b\rc\r\n", "\r\n", "\r", "\n",
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..20),
        1 => vec(prop_oneof![b'a'..=b'z', Just(b':'), Just(b' '), 0x80..=0xff_u8], 0..40),
    ];
    (first, vec(part, 0..9), any::<bool>()).prop_map(|(first, parts, ends)| {
        let end = if ends { b"\r\n".to_vec() } else { Vec::new() };
        [first.as_bytes().to_vec(), parts.concat(), end].concat()
    })
}

proptest! {
    /// Run with `PROPTEST_CASES=1000000` for a long comparison.
    #[test]
    fn heads_are_read_as_by_the_reference(
        head in heads(), step in 1usize..80, bytes in 40usize..400, headers in 1usize..9,
    ) {
        let bounds = HeadBounds { bytes, headers };
        let request = HeadParser::<RequestLine>::new(bounds);
        prop_assert_eq!(
            parsed(request, &head, step),
            reference::read::<RequestLine>(&head, bounds),
            "{:?}", String::from_utf8_lossy(&head)
        );
        let response = HeadParser::<StatusLine>::new(bounds);
        prop_assert_eq!(parsed(response, &head, step), reference::read::<StatusLine>(&head, bounds));
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>) {
        let _ = RequestHead::read(&bytes, BOUNDS);
        let _ = ResponseHead::read(&bytes);
    }

    #[test]
    fn head_is_complete_exactly_at_its_last_byte(end in 0usize..47) {
        let head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
        prop_assert!(RequestHead::read(&head[..end], BOUNDS).unwrap().is_none());
        let (read, length) = RequestHead::read(head, BOUNDS).unwrap().unwrap();
        prop_assert_eq!((length, read.length), (47, BodyLength::Known(3)));
    }

    #[test]
    fn accepted_heads_have_one_body_length(lines in prop::collection::vec(
        prop::sample::select(vec![
            "Host: a", "Content-Length: 3", "content-length: 4", "Transfer-Encoding: chunked",
            "TRANSFER-ENCODING: gzip", "A: b", " c", "Content-Length : 3",
        ]), 0..5), step in 1usize..40)
    {
        let head = format!("POST / HTTP/1.1\r\n{}\r\n\r\n", lines.join("\r\n"));
        let whole = RequestHead::read(head.as_bytes(), BOUNDS);
        let pieces = in_pieces(head.as_bytes(), step);
        prop_assert_eq!(whole.as_ref().err(), pieces.as_ref().err());
        if let (Ok(Some((head, length))), Ok(Some((other, other_length)))) = (whole, pieces) {
            prop_assert_eq!((length, head.length), (other_length, other.length));
            let lower = lines.join(" ").to_ascii_lowercase();
            let lengths = lower.matches("content-length").count();
            let codings = lower.matches("transfer-encoding").count();
            prop_assert!(lengths + codings <= 1);
            prop_assert_eq!(head.length == BodyLength::Chunked, codings == 1);
        }
    }
}
