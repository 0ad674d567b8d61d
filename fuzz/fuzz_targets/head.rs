//! A head parses alike in one piece and in many, and no field contains a line break.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::http1::{
    BodyLength, Fields, FramingError, HeadBounds, HeadParser, RequestHead, ResponseHead,
    head::ConnectionOptions,
};

const BOUNDS: HeadBounds = HeadBounds { bytes: 4096, headers: 30 };

/// The content of a head, for comparison.
#[derive(Debug, Eq, PartialEq)]
struct ParsedHead {
    /// The first line.
    start: String,
    fields: Vec<(Vec<u8>, Vec<u8>)>,
    length: Option<BodyLength>,
    connection: ConnectionOptions,
    /// The length of the head in bytes.
    end: usize,
}

type Outcome = Result<Option<ParsedHead>, FramingError>;

fuzz_target!(|input: (Vec<u8>, &[u8])| {
    let (piece_lengths, bytes) = input;
    let whole = RequestHead::read(bytes, BOUNDS).map(|read| read.map(parsed_request));
    let mut parser = HeadParser::request(BOUNDS);
    let pieces = in_pieces(&piece_lengths, bytes, |bytes| parser.parse(bytes)).and_then(|length| {
        let Some(length) = length else { return Ok(None) };
        Ok(Some(parsed_request((parser.finish(&bytes[..length])?, length))))
    });
    check(bytes, &whole, &pieces);
    if let Ok(Some(read)) = &whole {
        assert!(read.end <= BOUNDS.bytes && read.fields.len() <= BOUNDS.headers + 1);
    }
    let whole = ResponseHead::read(bytes).map(|read| read.map(parsed_response));
    let mut parser = HeadParser::response();
    let pieces = in_pieces(&piece_lengths, bytes, |bytes| parser.parse(bytes)).and_then(|length| {
        let Some(length) = length else { return Ok(None) };
        Ok(Some(parsed_response((parser.finish(&bytes[..length])?, length))))
    });
    check(bytes, &whole, &pieces);
});

/// Calls `parse` with growing prefixes of `bytes`, each longer by the next of `piece_lengths`.
fn in_pieces(
    piece_lengths: &[u8],
    bytes: &[u8],
    mut parse: impl FnMut(&[u8]) -> Result<Option<usize>, FramingError>,
) -> Result<Option<usize>, FramingError> {
    let mut at = 0;
    for length in piece_lengths {
        at = (at + usize::from(*length)).min(bytes.len());
        if let Some(length) = parse(&bytes[..at])? {
            return Ok(Some(length));
        }
    }
    parse(bytes)
}

fn check(bytes: &[u8], whole: &Outcome, pieces: &Outcome) {
    assert_eq!(whole, pieces);
    let Ok(Some(read)) = whole else { return };
    let head = &bytes[..read.end];
    assert!(head.ends_with(b"\r\n\r\n"));
    assert_eq!(find_head_end(head), Some(head.len() - 4), "the first empty line ends the head");
    for (name, value) in &read.fields {
        let is_forbidden = |byte: &u8| matches!(byte, b'\r' | b'\n' | 0);
        assert!(!name.is_empty() && !name.iter().any(|byte| *byte <= b' ' || *byte >= 0x7f));
        assert!(!value.iter().any(is_forbidden));
        assert_eq!(value.trim_ascii(), &value[..]);
    }
    let named = |name: &str| {
        read.fields.iter().filter(|field| field.0.eq_ignore_ascii_case(name.as_bytes())).count()
    };
    let lengths = named("content-length") + named("transfer-encoding");
    assert!(lengths <= 1, "the body's length is ambiguous");
}

fn find_head_end(head: &[u8]) -> Option<usize> {
    head.windows(4).position(|four| four == b"\r\n\r\n")
}

fn owned_fields(fields: &Fields) -> Vec<(Vec<u8>, Vec<u8>)> {
    fields.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
}

fn parsed_request((head, end): (RequestHead, usize)) -> ParsedHead {
    let hosts = head.fields.get_all("host").count();
    assert!(hosts <= 1);
    assert!(
        head.path() == "*" || head.path().starts_with('/') || head.method == http::Method::CONNECT
    );
    ParsedHead {
        start: format!("{} {:?} {:?} {:?}", head.method, head.path(), head.query(), head.version),
        fields: owned_fields(&head.fields),
        length: Some(head.length),
        connection: head.connection,
        end,
    }
}

fn parsed_response((head, end): (ResponseHead, usize)) -> ParsedHead {
    assert!((100..600).contains(&head.status));
    ParsedHead {
        start: format!("{} {:?}", head.status, head.version),
        fields: owned_fields(&head.fields),
        length: head.length,
        connection: head.connection,
        end,
    }
}
