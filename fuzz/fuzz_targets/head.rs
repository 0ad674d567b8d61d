//! A head has one reading: the same whole and in pieces, and no field that splits lines.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::framing::{
    AnswerHead, Fault, Fields, HeadBounds, HeadParser, Length, RequestHead, head::Connection,
};

const BOUNDS: HeadBounds = HeadBounds { bytes: 4096, headers: 30 };

/// All that a head says, to be compared.
#[derive(Debug, Eq, PartialEq)]
struct Reading {
    start: String,
    fields: Vec<(Vec<u8>, Vec<u8>)>,
    length: Option<Length>,
    connection: Connection,
    end: usize,
}

type Outcome = Result<Option<Reading>, Fault>;

fuzz_target!(|input: (Vec<u8>, &[u8])| {
    let (cuts, bytes) = input;
    let whole = RequestHead::read(bytes, BOUNDS).map(|read| read.map(of_request));
    let mut parser = HeadParser::request(BOUNDS);
    let pieces = in_pieces(&cuts, bytes, |bytes| parser.parse(bytes)).and_then(|length| {
        let Some(length) = length else { return Ok(None) };
        Ok(Some(of_request((parser.finish(&bytes[..length])?, length))))
    });
    check(bytes, &whole, &pieces);
    if let Ok(Some(read)) = &whole {
        assert!(read.end <= BOUNDS.bytes && read.fields.len() <= BOUNDS.headers + 1);
    }
    let whole = AnswerHead::read(bytes).map(|read| read.map(of_answer));
    let mut parser = HeadParser::answer();
    let pieces = in_pieces(&cuts, bytes, |bytes| parser.parse(bytes)).and_then(|length| {
        let Some(length) = length else { return Ok(None) };
        Ok(Some(of_answer((parser.finish(&bytes[..length])?, length))))
    });
    check(bytes, &whole, &pieces);
});

/// Gives `parse` more and more of `bytes`, each time as many as the next of `cuts` says.
fn in_pieces(
    cuts: &[u8],
    bytes: &[u8],
    mut parse: impl FnMut(&[u8]) -> Result<Option<usize>, Fault>,
) -> Result<Option<usize>, Fault> {
    let mut at = 0;
    for cut in cuts {
        at = (at + usize::from(*cut)).min(bytes.len());
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
    assert_eq!(memchr(head), Some(head.len() - 4), "the first empty line ends it");
    for (name, value) in &read.fields {
        let splits = |byte: &u8| matches!(byte, b'\r' | b'\n' | 0);
        assert!(!name.is_empty() && !name.iter().any(|byte| *byte <= b' ' || *byte >= 0x7f));
        assert!(!value.iter().any(splits));
        assert_eq!(value.trim_ascii(), &value[..]);
    }
    let named = |name: &str| {
        read.fields.iter().filter(|field| field.0.eq_ignore_ascii_case(name.as_bytes())).count()
    };
    let lengths = named("content-length") + named("transfer-encoding");
    assert!(lengths <= 1, "a body has one end");
}

fn memchr(head: &[u8]) -> Option<usize> {
    head.windows(4).position(|four| four == b"\r\n\r\n")
}

fn own(fields: &Fields) -> Vec<(Vec<u8>, Vec<u8>)> {
    fields.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
}

fn of_request((head, end): (RequestHead, usize)) -> Reading {
    let hosts = head.fields.get_all("host").count();
    assert!(hosts <= 1);
    assert!(head.path() == "*" || head.path().starts_with('/') || head.method == http::Method::CONNECT);
    Reading {
        start: format!("{} {:?} {:?} {:?}", head.method, head.path(), head.query(), head.version),
        fields: own(&head.fields),
        length: Some(head.body),
        connection: head.connection,
        end,
    }
}

fn of_answer((head, end): (AnswerHead, usize)) -> Reading {
    assert!((100..1000).contains(&head.status));
    Reading {
        start: format!("{} {:?}", head.status, head.version),
        fields: own(&head.fields),
        length: head.length,
        connection: head.connection,
        end,
    }
}
