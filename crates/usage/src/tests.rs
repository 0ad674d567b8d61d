//! Scanners against `serde_json`, in pieces of any length; the presets against recorded responses.

mod presets;
mod random;

use std::{io::Write as _, sync::Arc};

use tidegate_limit::MAX_UNITS;

use super::*;

fn paths(paths: &[&str]) -> Arc<PathSet> {
    Arc::new(PathSet::new(paths.iter().map(|path| path.parse().unwrap()).collect()).unwrap())
}

/// The numbers that a scanner finds in `body`, if it arrives in pieces of `step` bytes.
fn found(format: BodyFormat, looked_for: &[&str], body: &[u8], step: usize) -> Vec<Option<u64>> {
    let mut scanner = BodyScanner::new(format, paths(looked_for));
    body.chunks(step).for_each(|piece| scanner.push(piece));
    (0..looked_for.len()).map(|path| scanner.quantity(path).map(Quantity::ceil)).collect()
}

/// As [`found`], which must be the same in pieces of every length.
fn found_in_any_pieces(format: BodyFormat, looked_for: &[&str], body: &str) -> Vec<Option<u64>> {
    let whole = found(format, looked_for, body.as_bytes(), body.len().max(1));
    for step in 1..body.len() {
        let pieces = found(format, looked_for, body.as_bytes(), step);
        assert_eq!(pieces, whole, "in pieces of {step} bytes: {body}");
    }
    whole
}

#[test]
fn members_are_found_where_serde_finds_them() {
    for (body, tokens) in [
        (r#"{"usage":{"total_tokens":7}}"#, Some(7)),
        (" {\n\t\"usage\" : { \"total_tokens\" : 7 } }\r\n", Some(7)),
        (r#"{"a":"\"usage\":{\"total_tokens\":9}","usage":{"total_tokens":7}}"#, Some(7)),
        (r#"{"choices":[{"usage":{"total_tokens":9}}],"usage":{"total_tokens":7}}"#, Some(7)),
        (r#"{"usage":{"usage":{"total_tokens":9}}}"#, None),
        (r#"{"usage":{"total_tokens":9,"total_tokens":7}}"#, Some(7)),
        (r#"{"usage":{"total_tokens":9},"usage":{"total_tokens":7}}"#, Some(7)),
        (r#"{"usage":{"total_tokens":9},"usage":{}}"#, None),
        (r#"{"usage":{"total_tokens":9},"usage":null}"#, None),
        (r#"{"usage":{"total_tokens":"9"}}"#, None),
        (r#"{"usage":{"total_tokens":9,"total_tokens":"x"}}"#, None),
        (r#"{"usage":{"total_tokens":null}}"#, None),
        (r#"{"usage":{"total_tokens":{"total_tokens":9}}}"#, None),
        (r#"{"usage":[{"total_tokens":9}]}"#, None),
        (r#"{"us\u0061ge":{"total\u005ftokens":7}}"#, Some(7)),
        (r#"{"usage\\":{"total_tokens":9},"\\":"\\\\","usage":{"total_tokens":7}}"#, Some(7)),
        (r#"{"usage":{"total_tokens":7.01}}"#, Some(8)),
        (r#"{"usage":{"total_tokens":7e1}}"#, Some(70)),
        (r#"{"usage":{"total_tokens":-7}}"#, Some(0)),
        (r#"{"usage":{"total_tokens":1e99}}"#, Some(MAX_UNITS)),
        (r#"{"usage":{"total_tokens":7"#, None),
        (r#"{"usage":{"total_tokens":7}"#, Some(7)),
        (r#"{"usage":{"total_tokens":07}}"#, None),
        (r#"{"usage":{"total_tokens":7},,}"#, Some(7)),
        (r#"["usage",{"total_tokens":9}]"#, None),
        (r#""usage""#, None),
        ("", None),
        ("<html>{\"usage\":{\"total_tokens\":9}}", None),
    ] {
        let found = found_in_any_pieces(BodyFormat::Json, &["usage.total_tokens"], body);
        assert_eq!(found, [tokens], "{body}");
    }
}

#[test]
fn elements_are_found_by_their_index() {
    let body = r#"{"a":[[1,2],{"b":3},4],"0":5}"#;
    let looked_for = ["a.0.1", "a.1.b", "a.2", "a.3", "0"];
    let found = found_in_any_pieces(BodyFormat::Json, &looked_for, body);
    assert_eq!(found, [Some(2), Some(3), Some(4), None, Some(5)]);
    let chunks = r#"[{"u":{"t":1}}, {"u":{"t":2}}, {"u":{}}]"#;
    let found = found_in_any_pieces(BodyFormat::Json, &["*.u.t", "0.u.t"], chunks);
    assert_eq!(found, [Some(2), Some(1)], "the last element that has it");
}

#[test]
fn the_last_event_that_has_a_member_counts() {
    let event = "event: x\nid: 1\ndata: {\"u\":{\"t\":1}}\n\n";
    for (stream, tokens) in [
        (event.to_owned(), Some(1)),
        (format!("{event}data: {{\"u\":{{\"t\":2}}}}\n\ndata: [DONE]\n\n"), Some(2)),
        (format!("{event}data: {{\"u\":null}}\n\n"), Some(1)),
        (format!("{event}: {{\"u\":{{\"t\":2}}}}\n\n"), Some(1)),
        (format!("{event}datas: {{\"u\":{{\"t\":2}}}}\n\n"), Some(1)),
        (format!("{event}data:{{\"u\":\ndata: {{\"t\":2}}}}\n\n"), Some(2)),
        (format!("{event}data: {{\"u\":{{\"t\":2}}}}"), Some(2)),
        (
            format!("{event}data: {{\"u\":{{\"t\":\n\n{event}data: {{\"u\":{{\"t\":3}}}}\n\n"),
            Some(3),
        ),
        (format!("\u{feff}{event}"), Some(1)),
        (format!("{event}data\n\ndata:\n\n\n\n"), Some(1)),
        ("data: {\"u\\u0022\":1, \"\\u0075\":{\"t\":4}}\n\n".to_owned(), Some(4)),
    ] {
        for end in ["\n", "\r\n", "\r"] {
            let stream = stream.replace('\n', end);
            let found = found_in_any_pieces(BodyFormat::Events, &["u.t"], &stream);
            assert_eq!(found, [tokens], "{stream:?}");
        }
    }
}

#[test]
fn each_line_is_a_text() {
    for (lines, tokens) in [
        ("{\"t\":1}\n{\"t\":2}\n{}\n", Some(2)),
        ("{\"t\":1}\nno JSON {\n{\"t\":3}", Some(3)),
        ("{\"x\":\n{\"t\":3}\n\n", Some(3)),
        ("\n\n{\"a\":\"b\"}\n", None),
    ] {
        assert_eq!(found_in_any_pieces(BodyFormat::Lines, &["t"], lines), [tokens], "{lines:?}");
    }
}

#[test]
fn repeated_and_misspelt_members_are_reported() {
    for (body, repeated, misspelt) in [
        (r#"{"model":"a"}"#, 0, 0),
        (r#"{"model":"a","model":"b"}"#, 1, 0),
        (r#"{"model":"a","mode\u006c":"b"}"#, 1, 0),
        (r#"{"model":"a","Model":"b"}"#, 0, 1),
        (r#"{"MODEL":"b"}"#, 0, 1),
        (r#"{"x":{"model":"a"},"model":"b"}"#, 0, 0),
        (r#"{"o":{"max":1},"o":{}}"#, 2, 0),
        ("{\"o\":{\"maxto\u{212a}ens\":1}}", 0, 4),
        ("{\"o\":{\"maxto\u{212b}ens\":1}}", 0, 0),
    ] {
        for step in [1, 2, 3, 100] {
            let mut scanner =
                JsonScanner::new(paths(&["model", "o.max", "o.maxtokens"]), Grammar::Strict);
            body.as_bytes().chunks(step).for_each(|piece| scanner.push(piece));
            let repeated = if body.contains("\"o\":{},") { 0 } else { repeated };
            let found = (scanner.repeated() & 3, scanner.misspelt());
            assert_eq!(found, (repeated, misspelt), "{body}");
        }
    }
}

/// JSON5 drops a backslash before any other character, and a backslash with the end of a line.
#[test]
fn escapes_that_only_lenient_parsers_read_are_no_json() {
    for (body, is_broken) in [
        (r#"{"a":"\"\\/\b\f\n\r\t\u0061","mode\u006c":"b"}"#, false),
        (r#"{"mode\l":"b"}"#, true),
        (r#"{"mod\x65l":"b"}"#, true),
        ("{\"mo\\\ndel\":\"b\"}", true),
        (r#"{"a":"\l"}"#, true),
        (r#"{"a":["\l"]}"#, true),
        (r#"{"mode\u00zz":"b"}"#, true),
    ] {
        for step in [1, 2, 3, 100] {
            let mut scanner = JsonScanner::new(paths(&["model"]), Grammar::Strict);
            body.as_bytes().chunks(step).for_each(|piece| scanner.push(piece));
            assert_eq!(scanner.is_broken(), is_broken, "{body} {step}");
        }
    }
}

#[test]
fn deep_and_long_texts_need_no_memory() {
    let mut scanner = JsonScanner::new(paths(&["a.b"]), Grammar::Lenient);
    scanner.push(b"{\"a\":{\"x\":");
    for _ in 0..100_000 {
        scanner.push(b"[[[{\"b\":");
    }
    let mut name = JsonScanner::new(paths(&["a.b"]), Grammar::Lenient);
    name.push(b"{\"");
    for _ in 0..10_000 {
        name.push(b"aaaaaaaa\\u0061");
    }
    name.push(b"\":1,\"a\":{\"b\":2}}");
    assert_eq!(name.quantity(0), Some(Quantity::units(2)));
    assert!(size_of::<JsonScanner>() <= 704, "{}", size_of::<JsonScanner>());
}

#[test]
fn what_python_writes_is_read_in_responses() {
    let body = r#"{"x":NaN,"y":[-Infinity],"z":-Infinity,"t":7,"w":Infinity}"#;
    assert_eq!(found_in_any_pieces(BodyFormat::Json, &["t"], body), [Some(7)]);
}

#[test]
fn a_body_that_expands_too_much_is_not_decoded() {
    let body = format!("{{\"t\":7,\"x\":\"{}\"}}", "a".repeat(64 << 20));
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(body.as_bytes()).unwrap();
    let zstd = zstd::encode_all(body.as_bytes(), 3).unwrap();
    for (coding, coded) in [(&b"gzip"[..], gzip.finish().unwrap()), (b"zstd", zstd)] {
        let scanner = BodyScanner::new(BodyFormat::Json, paths(&["t"]));
        let mut decoder = UsageDecoder::new(Some(coding), scanner).unwrap();
        coded.chunks(4_096).for_each(|piece| decoder.push(piece));
        assert!(decoder.has_failed());
    }
}

#[test]
fn paths_have_bounds() {
    let deep = "a.".repeat(8) + "a";
    let long = "a".repeat(65);
    for (text, error) in [
        ("", InvalidPath::Empty),
        ("a..b", InvalidPath::Empty),
        (".", InvalidPath::Empty),
        (&*deep, InvalidPath::Deep),
        (&*long, InvalidPath::LongName),
        ("*", InvalidPath::Star),
        ("a.*", InvalidPath::Star),
        ("a b", InvalidPath::Character),
        ("a\"", InvalidPath::Character),
        ("a\\u0062", InvalidPath::Character),
        ("max_tokens*n", InvalidPath::Formula),
        ("usage.in+usage.out", InvalidPath::Formula),
        ("max(a,b)", InvalidPath::Formula),
        ("max_tokens/2", InvalidPath::Formula),
        ("a|b", InvalidPath::Formula),
        ("choices[0].n", InvalidPath::Brackets),
    ] {
        assert_eq!(text.parse::<JsonPath>(), Err(error), "{text}");
    }
    for text in
        ["a", "a.0.b", "*.a", "ä.b-c", "a.007", "@type", "gpt-4", "text/plain", "$ref", "a:b"]
    {
        assert_eq!(text.parse::<JsonPath>().unwrap().to_string(), text);
    }
}

#[test]
fn coded_bodies_are_decoded_beside() {
    let body = format!("{{\"x\":\"{}\",\"t\":7}}", "abc ".repeat(50_000));
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(body.as_bytes()).unwrap();
    let gzip = gzip.finish().unwrap();
    let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    zlib.write_all(body.as_bytes()).unwrap();
    let zlib = zlib.finish().unwrap();
    let zstd = zstd::encode_all(body.as_bytes(), 3).unwrap();
    let scanner = || BodyScanner::new(BodyFormat::Json, paths(&["t"]));
    let bodies = [
        (None, body.as_bytes()),
        (Some(&b"identity"[..]), body.as_bytes()),
        (Some(b"gzip"), &gzip),
        (Some(b"X-GZIP"), &gzip),
        (Some(b" deflate "), &zlib),
        (Some(b"zstd"), &zstd),
    ];
    for (coding, coded) in bodies {
        for step in [1, 7, 100_000] {
            let mut decoder = UsageDecoder::new(coding, scanner()).unwrap();
            coded.chunks(step).for_each(|piece| decoder.push(piece));
            decoder.flush();
            let found = decoder.quantity(0).map(Quantity::ceil);
            assert_eq!((found, decoder.has_failed()), (Some(7), false), "{coding:?} {step}");
        }
    }
    for coding in [&b"br"[..], b"gzip, gzip", b"compress"] {
        assert!(UsageDecoder::new(Some(coding), scanner()).is_none(), "{coding:?}");
    }
    let mut damaged = UsageDecoder::new(Some(b"gzip"), scanner()).unwrap();
    damaged.push(body.as_bytes());
    damaged.flush();
    assert_eq!((damaged.quantity(0), damaged.has_failed()), (None, true));
}
