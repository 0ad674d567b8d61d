//! `compress` of a route.

use tidegate_config as config;
use tidegate_transport::compress::Encoding;

use super::{GOOD, compile};

fn with(compress: &str) -> String {
    GOOD.replace("limits: [one]}", &format!("limits: [one], compress: {compress}}}"))
}

#[test]
fn defaults_prefer_zstd() {
    let snapshot = compile(&with("{}")).unwrap();
    assert!(snapshot.notes.is_empty());
    assert!(snapshot.routes[1].compress.is_none());
    let rules = snapshot.routes[0].compress.as_ref().unwrap();
    assert_eq!(rules.encodings, [Encoding::Zstd, Encoding::Gzip]);
    assert_eq!((rules.min_size, rules.gzip_level, rules.zstd_level), (1024, 5, 3));
    assert!(rules.has_type(b"text/html; charset=utf-8") && rules.has_type(b"application/json"));
    assert!(!rules.has_type(b"image/png"));
}

#[test]
fn every_key_is_used() {
    let text = "{encodings: [gzip], min_size: 5KiB, types: ['*/*'], level: {gzip: 9, zstd: 12}}";
    let snapshot = compile(&with(text)).unwrap();
    let rules = snapshot.routes[0].compress.as_ref().unwrap();
    assert_eq!(rules.encodings, [Encoding::Gzip]);
    assert_eq!((rules.min_size, rules.gzip_level, rules.zstd_level), (5 << 10, 9, 12));
    assert!(rules.has_type(b"image/png"));
}

#[test]
fn what_cannot_work_is_a_fault() {
    for (compress, expected) in [
        ("{encodings: []}", "no encoding, expected at least one of `gzip` and `zstd`"),
        ("{encodings: [gzip, gzip]}", "duplicate encoding `gzip`, expected each encoding once"),
        ("{types: []}", "no media type, expected at least one"),
        ("{types: [html]}", "`html`, expected a media type without parameters"),
        ("{types: ['text/html; charset=utf-8']}", "expected a media type without parameters"),
        ("{types: [text/event-stream]}", "`text/event-stream`, which is never compressed"),
        ("{types: [application/grpc]}", "`application/grpc`, which is never compressed"),
    ] {
        let faults = compile(&with(compress)).unwrap_err();
        assert!(faults.len() == 1 && faults[0].contains(expected), "{compress}: {faults:?}");
    }
}

#[test]
fn unknown_encodings_and_levels_are_faults() {
    for (compress, expected) in [
        ("{encodings: [br]}", "`br`"),
        ("{level: {gzip: 0}}", "`0`, expected a whole number from 1 to 9"),
        ("{level: {gzip: 10}}", "`10`, expected a whole number from 1 to 9"),
        ("{level: {zstd: 13}}", "`13`, expected a whole number from 1 to 12"),
        ("{level: {br: 3}}", "unknown key `br`"),
    ] {
        let error = config::parse("t.yaml", &with(compress)).unwrap_err().to_string();
        assert!(error.contains(expected), "{compress}: {error}");
    }
}

#[test]
fn responses_of_the_gateway_are_not_compressed() {
    for text in [
        GOOD.replace("upstream: hello}", "upstream: hello, compress: {}}"),
        with("{}").replace("upstream: app, limits: [one]", "status: [one]"),
    ] {
        let notes = compile(&text).unwrap().notes;
        let [note] = &notes[..] else { panic!("{notes:?}") };
        assert!(note.to_string().contains("`compress` without effect"), "{note}");
    }
}
