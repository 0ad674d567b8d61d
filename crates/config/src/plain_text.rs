//! Texts of an operator that stay in one printable line, names of consumers among them, and their
//! patterns in schemas.
//!
//! A character that is invisible, or changes the direction of text, would make a name look like
//! another one.

use tidegate_base::escape::is_unprintable;

/// Maximum length of a consumer's name, in characters.
pub const MAX_CONSUMER_NAME: usize = 128;

/// The characters of [`is_unprintable`], as a part of a class in a regular expression. The last
/// range has no short escape that all engines know.
const UNPRINTABLE: &str = "\\u0000-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u180e\\u200b-\\u200f\\u2028-\\u202e\
                           \\u2060-\\u206f\\ufeff\\ufff9-\\ufffb\u{e0000}-\u{e007f}";
/// White space that is printable.
const SPACES: &str = " \\u00a0\\u1680\\u2000-\\u200a\\u202f\\u205f\\u3000";

/// True if a consumer may have this name: it is shown in logs, and sent to upstreams in a header
/// field.
pub fn is_consumer_name(name: &str) -> bool {
    (1..=MAX_CONSUMER_NAME).contains(&name.chars().count())
        && is_printable(name)
        && name.trim() == name
}

/// True if a text has only characters that are seen where they stand.
pub fn is_printable(text: &str) -> bool {
    !text.contains(is_unprintable)
}

/// The pattern of texts that [`is_printable`] accepts.
pub fn printable_pattern() -> String {
    format!("^[^{UNPRINTABLE}]*$")
}

/// The pattern of names that [`is_consumer_name`] accepts, apart from their length.
pub fn consumer_name_pattern() -> String {
    let end = format!("[^{UNPRINTABLE}{SPACES}]");
    format!("^{end}([^{UNPRINTABLE}]*{end})?$")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn validator(pattern: &str) -> jsonschema::Validator {
        let schema = json!({"type": "string", "pattern": pattern, "minLength": 1, "maxLength": MAX_CONSUMER_NAME});
        jsonschema::validator_for(&schema).expect("a schema")
    }

    #[test]
    fn the_patterns_accept_the_same_characters() {
        let (name, line) = (validator(&consumer_name_pattern()), validator(&printable_pattern()));
        for char in '\0'..=char::MAX {
            // Most of the planes are unassigned.
            if u32::from(char) > 0x3200 && u32::from(char) % 97 > 0 && !is_unprintable(char) {
                continue;
            }
            for text in
                [format!("{char}"), format!("a{char}"), format!("{char}a"), format!("a{char}a")]
            {
                let value = json!(text);
                assert_eq!(name.is_valid(&value), is_consumer_name(&text), "{text:?}");
                assert_eq!(line.is_valid(&value), is_printable(&text), "{text:?}");
            }
        }
    }

    #[test]
    fn a_name_has_a_length() {
        for (length, accepted) in [(0, false), (1, true), (128, true), (129, false)] {
            assert_eq!(is_consumer_name(&"\u{e9}".repeat(length)), accepted, "{length}");
        }
    }
}
