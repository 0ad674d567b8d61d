//! What is wrong with a text in JSON, in our words.

use serde_json::error::Category;

/// What is wrong with a text that `serde_json` refuses, and where.
pub fn json_error(error: &serde_json::Error) -> String {
    let place = format!("line {}, column {}", error.line(), error.column());
    match error.classify() {
        Category::Syntax | Category::Io => format!("{} in {place}", json_mistake(error)),
        Category::Eof | Category::Data => format!("{}, in {place}", json_mistake(error)),
    }
}

/// What is wrong with a text that `serde_json` refuses.
pub(super) fn json_mistake(error: &serde_json::Error) -> String {
    match error.classify() {
        Category::Syntax | Category::Io => "the text is not JSON: a mistake".to_owned(),
        Category::Eof => "the text is not JSON: it ends early".to_owned(),
        Category::Data => {
            let text = error.to_string();
            let what = text.split(" at line ").next().unwrap_or_default();
            let mut what =
                what.replacen("invalid type: ", "", 1).replacen("invalid value: ", "", 1);
            // The text may be a key at a wrong place.
            if let Some(rest) = what.strip_prefix("string \"") {
                let end = rest.rfind("\", ").map_or(rest.len(), |end| end + 1);
                what = format!("a text{}", &rest[end..]);
            }
            for (theirs, ours) in WORDS {
                what = what.replace(theirs, ours);
            }
            what
        }
    }
}

/// Words of the library, and what they mean to an operator.
const WORDS: [(&str, &str); 11] = [
    ("expected struct ConsumerConfig", "expected an object"),
    ("expected struct ConsumerKeyConfig", "expected an object"),
    ("expected a map", "expected an object"),
    ("expected a sequence", "expected a list"),
    ("expected a string", "expected a text"),
    ("expected u8", "expected a whole number"),
    ("missing field", "no"),
    ("unknown field", "unknown key"),
    ("duplicate field", "duplicate key"),
    ("floating point ", ""),
    ("integer ", ""),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn mistakes_are_in_our_words() {
        let of = |text: &str| {
            json_error(&serde_json::from_str::<BTreeMap<String, u8>>(text).expect_err("a mistake"))
        };
        for (text, expected) in [
            ("", "the text is not JSON: it ends early, in line 1, column 0"),
            ("{\"a\": 1", "the text is not JSON: it ends early, in line 1, column 7"),
            ("{'a': 1}", "the text is not JSON: a mistake in line 1, column 2"),
            ("{\"a\": 1,}", "the text is not JSON: a mistake in line 1, column 9"),
            ("{\"a\": \"b\"}", "a text, expected a whole number, in line 1, column 9"),
            ("{\"a\": 7.5}", "`7.5`, expected a whole number, in line 1, column 9"),
            ("[]", "sequence, expected an object, in line 1, column 0"),
        ] {
            assert_eq!(of(text), expected, "{text}");
        }
    }
}
