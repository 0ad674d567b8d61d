//! Escapes text from files and requests, so that a terminal displays it as it is.

use std::borrow::Cow;

/// True for characters that a terminal acts on or hides: control characters, line separators, and
/// characters that are invisible or change the direction of text.
pub fn is_unprintable(char: char) -> bool {
    char.is_control()
        || matches!(char,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

/// The text with every unprintable character escaped as in Rust: `\n`, `\u{1b}`.
pub fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unprintable) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for char in text.chars() {
        match char {
            '\0' | '\t' | '\n' | '\r' => escaped.extend(char.escape_debug()),
            _ if is_unprintable(char) => escaped.extend(char.escape_unicode()),
            _ => escaped.push(char),
        }
    }
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unprintable_characters_are_escaped() {
        for (text, escaped) in [
            ("caf\u{e9} \"a\" 'b' \\ e\u{301} 日本", "caf\u{e9} \"a\" 'b' \\ e\u{301} 日本"),
            ("\u{1b}[31m\r\n\t\0", "\\u{1b}[31m\\r\\n\\t\\0"),
            ("qu\u{202e}ota\u{7f}\u{9b}\u{feff}", "qu\\u{202e}ota\\u{7f}\\u{9b}\\u{feff}"),
        ] {
            assert_eq!(escape(text), escaped);
        }
    }
}
