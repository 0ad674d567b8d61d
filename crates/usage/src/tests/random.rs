//! Random texts in random pieces, against `serde_json`. `PROPTEST_CASES` is the number of cases.

use proptest::prelude::*;
use serde_json::Value;
use tidegate_limit::MAX_UNITS;

use super::*;

/// The paths that are looked for. The names of random objects are those of the paths, so that they
/// meet.
const PATHS: [&str; 6] = ["a", "a.b", "b.a", "a.0", "a.b.1.a", "ä.b"];

/// A JSON text: with spaces, names spelled with escapes, and members that repeat.
fn text() -> impl Strategy<Value = String> {
    let number = prop_oneof![
        any::<u32>().prop_map(|number| number.to_string()),
        any::<i64>().prop_map(|number| number.to_string()),
        any::<f64>().prop_filter("JSON has none", |x| x.is_finite()).prop_map(|x| format!("{x:e}")),
        (0..1000u32, 0..1000u32).prop_map(|(whole, part)| format!("{whole}.{part:03}")),
    ];
    let string = "[ab\"\\\\/\n{}\\[\\],:é😀 ]{0,12}"
        .prop_map(|text| serde_json::to_string(&text).unwrap_or_default());
    let leaf = prop_oneof![
        3 => number,
        2 => string,
        1 => prop_oneof![Just("true"), Just("false"), Just("null")].prop_map(str::to_owned),
    ];
    let name = prop_oneof![
        4 => Just("\"a\""),
        4 => Just("\"b\""),
        1 => Just("\"\\u0061\""),
        1 => Just("\"ä\""),
        1 => Just("\"\\u00e4\""),
        1 => Just("\"A\""),
        1 => Just("\"a\\\"\""),
        1 => Just("\"\""),
    ];
    let space = prop_oneof![4 => Just(""), 1 => Just(" "), 1 => Just("\r\n\t")];
    leaf.prop_recursive(6, 48, 5, move |inner| {
        let elements = (proptest::collection::vec(inner.clone(), 0..4), space.clone());
        let members = proptest::collection::vec((name.clone(), inner), 0..5);
        prop_oneof![
            1 => elements.prop_map(|(elements, space)| {
                format!("[{space}{}{space}]", elements.join(&format!("{space},{space}")))
            }),
            2 => (members, space.clone()).prop_map(|(members, space)| {
                let members: Vec<_> =
                    members.iter().map(|(name, value)| format!("{name}{space}:{space}{value}")).collect();
                format!("{{{space}{}{space}}}", members.join(&format!("{space},{space}")))
            }),
        ]
    })
}

/// The number at `path`, as `serde_json` reads it.
fn expected(document: &Value, path: &str) -> Option<f64> {
    let mut value = document;
    for segment in path.split('.') {
        value = match value {
            Value::Array(elements) => elements.get(segment.parse::<usize>().ok()?)?,
            _ => value.get(segment)?,
        };
    }
    value.as_f64()
}

fn same(found: Option<Quantity>, expected: Option<f64>) -> bool {
    let (Some(found), Some(expected)) = (found, expected) else {
        return found.is_none() && expected.is_none();
    };
    let found = found.billionths() as f64 / 1e9;
    let expected = expected.clamp(0.0, MAX_UNITS as f64);
    // A quantity is rounded up to its ninth decimal place; a float has 15 digits.
    let difference = found - expected;
    difference.abs() <= 1.1e-9 + expected * 1e-14
}

/// Splits `bytes` at positions that `seed` chooses, and passes the pieces.
fn in_pieces(bytes: &[u8], seed: u64, mut push: impl FnMut(&[u8])) {
    let (mut rest, mut seed) = (bytes, seed);
    while !rest.is_empty() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let length = ((seed >> 33) as usize % (bytes.len() + 1).min(24) + 1).min(rest.len());
        let (piece, left) = rest.split_at(length);
        push(piece);
        rest = left;
    }
}

proptest! {
    #[test]
    fn a_text_is_read_as_serde_json_reads_it(text in text(), seed: u64) {
        let document: Value = serde_json::from_str(&text).unwrap();
        let mut scanner = BodyScanner::new(BodyFormat::Json, paths(&PATHS));
        in_pieces(text.as_bytes(), seed, |piece| scanner.push(piece));
        // A number that is the whole text ends with it.
        scanner.push(b" ");
        for (index, path) in PATHS.iter().enumerate() {
            let (found, expected) = (scanner.quantity(index), expected(&document, path));
            prop_assert!(same(found, expected), "{path}: {found:?}, {expected:?} in {text}");
        }
    }

    #[test]
    fn events_are_read_as_serde_json_reads_them(
        texts in proptest::collection::vec(text(), 1..6),
        seed: u64,
        end in prop_oneof![Just("\n"), Just("\r\n"), Just("\r")],
    ) {
        let mut stream = String::new();
        let mut last = [None; PATHS.len()];
        for text in &texts {
            stream += "event: x\n";
            // A line feed within a text becomes the end of a line of data.
            for line in text.replace('\r', " ").split('\n') {
                stream.extend(["data: ", line, "\n"]);
            }
            stream += "\n";
            let document: Value = serde_json::from_str(text).unwrap();
            for (last, path) in last.iter_mut().zip(PATHS) {
                *last = expected(&document, path).or(*last);
            }
        }
        let stream = stream.replace('\n', end);
        let mut scanner = BodyScanner::new(BodyFormat::Events, paths(&PATHS));
        in_pieces(stream.as_bytes(), seed, |piece| scanner.push(piece));
        for (index, path) in PATHS.iter().enumerate() {
            let found = scanner.quantity(index);
            prop_assert!(same(found, last[index]), "{path}: {found:?}, {:?} in {stream}", last[index]);
        }
    }

    #[test]
    fn any_bytes_in_any_pieces_give_the_same(
        bytes in proptest::collection::vec(prop_oneof![
            prop::sample::select(&b"{}[]\":,\\ab01-.e \n\rdatufn"[..]), any::<u8>()
        ], 0..200),
        seed: u64,
    ) {
        for format in [BodyFormat::Json, BodyFormat::Events, BodyFormat::Lines] {
            let mut whole = BodyScanner::new(format, paths(&PATHS));
            whole.push(&bytes);
            let mut pieces = BodyScanner::new(format, paths(&PATHS));
            in_pieces(&bytes, seed, |piece| pieces.push(piece));
            for path in 0..PATHS.len() {
                prop_assert_eq!(whole.quantity(path), pieces.quantity(path));
            }
        }
    }
}
