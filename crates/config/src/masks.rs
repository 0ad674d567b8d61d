//! [`Masks`]: the values of environment variables, and what messages show in their place.

use std::borrow::Cow;

use super::fault::Mismatch;

/// Minimum length, in bytes, of a value that is masked inside words and outside of backticks.
/// Shorter values are not secrets, and would match in any text.
const LONG: usize = 6;
/// Number of a value's first bytes that must match, so that a longer value is also found where a
/// message truncated it.
const TRUNCATED: usize = 32;

/// Replaces values that came from the environment with their references as written.
#[derive(Clone, Debug, Default)]
pub(super) struct Masks {
    /// The values with their references, the longest first.
    masks: Vec<(Box<str>, Box<str>)>,
}

/// The kind of a text, or of a part of it: backticks separate the two kinds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum MaskedText {
    /// Words of a message, with values between backticks.
    Message,
    /// Values.
    Values,
}

impl MaskedText {
    /// The kind of the text after a backtick.
    fn other(self) -> Self {
        match self {
            Self::Message => Self::Values,
            Self::Values => Self::Message,
        }
    }
}

impl Masks {
    /// Masks for references as written, each with its value.
    pub(super) fn of_references(references: Vec<(String, String)>) -> Self {
        Self::new(references.into_iter().map(|(reference, value)| (value, reference)))
    }

    /// Masks for values, each with the text to show instead.
    fn new(masks: impl IntoIterator<Item = (String, String)>) -> Self {
        let masks = masks.into_iter().flat_map(|(value, reference)| {
            // Messages about a server may contain the host and port of its URL.
            let host = value.split_once("://").map(|(_, rest)| {
                rest.rsplit_once('@')
                    .map_or(rest, |(_, host)| host)
                    .trim_end_matches('/')
                    .to_owned()
            });
            let host = host.map(|host| (host, reference.clone()));
            host.into_iter().chain([(value, reference)])
        });
        let masks = masks.filter(|(value, _)| !value.is_empty());
        let mut masks: Vec<_> =
            masks.map(|(value, reference)| (value.into(), reference.into())).collect();
        masks.sort_by(|(a, _): &(Box<str>, Box<str>), (b, _)| {
            b.len().cmp(&a.len()).then_with(|| a.cmp(b))
        });
        masks.dedup();
        Self { masks }
    }

    /// These masks and `others`.
    pub(super) fn with(self, others: impl IntoIterator<Item = (String, String)>) -> Self {
        let masks = self.masks.into_iter();
        let masks = masks.map(|(value, reference)| (value.into(), reference.into()));
        Self::new(masks.chain(others))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.masks.is_empty()
    }

    /// Masks the values in a message, which quotes values between backticks.
    pub(super) fn apply<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.replace(text, MaskedText::Message)
    }

    /// Masks the values in a fault's text.
    pub(super) fn apply_to_mismatch(&self, mismatch: &Mismatch) -> Mismatch {
        Mismatch::new(self.apply(&mismatch.what), self.apply(&mismatch.expected))
    }

    /// Masks the values in a text that consists of values.
    pub(super) fn apply_to_values<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.replace(text, MaskedText::Values)
    }

    fn replace<'t>(&self, text: &'t str, kind: MaskedText) -> Cow<'t, str> {
        if self.masks.is_empty() {
            return Cow::Borrowed(text);
        }
        let (mut masked, mut at, mut place) = (String::new(), 0, kind);
        while let Some(next) = text[at..].chars().next() {
            if let Some((length, reference)) = self.find(text, at, place) {
                masked.push_str(reference);
                at += length;
                continue;
            }
            // A reference as written shows no value and stays as it is.
            if let Some(end) = text[at..].strip_prefix("${").and_then(|_| text[at..].find('}')) {
                masked.push_str(&text[at..=at + end]);
                at += end + 1;
                continue;
            }
            if next == '`' && kind == MaskedText::Message {
                place = place.other();
            }
            masked.push(next);
            at += next.len_utf8();
        }
        Cow::Owned(masked)
    }

    /// The length of the value that begins at `at`, and its mask. The beginning of a long value
    /// matches as well, because messages truncate values.
    fn find(&self, text: &str, at: usize, place: MaskedText) -> Option<(usize, &str)> {
        let is_inner = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        let bytes = text.as_bytes();
        self.masks.iter().find_map(|(value, reference)| {
            let pairs = bytes[at..].iter().zip(value.bytes());
            let mut length =
                pairs.take_while(|(byte, other)| byte.eq_ignore_ascii_case(other)).count();
            while !text.is_char_boundary(at + length) {
                length -= 1;
            }
            let end = at + length;
            if length == 0 || length < value.len().min(TRUNCATED) {
                return None;
            }
            let before = at.checked_sub(1).and_then(|before| bytes.get(before));
            let begins = !is_inner(before) || !is_inner(bytes.get(at));
            let ends = !is_inner(bytes.get(end)) || !is_inner(bytes.get(end - 1));
            let is_word = value.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
            let is_masked = match (place, value.len() >= LONG) {
                (MaskedText::Values, true) => true,
                (MaskedText::Values, false) => begins && ends,
                // Words of messages, such as `upstream`, stand outside of backticks; values do not.
                (MaskedText::Message, is_long) => is_long && !is_word,
            };
            is_masked.then_some((length, &**reference))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_replaced_where_messages_quote_them() {
        let mask = |value: &str, by: &str| (value.to_owned(), by.to_owned());
        let masks = Masks::new([
            mask("5", "${Q}"),
            mask("hush-1234", "${S}"),
            mask("http://hush-1234:80", "http://${S}:80"),
            mask("upstream", "${U}"),
            mask("", "${E}"),
        ]);
        for (text, expected) in [
            ("`5`, expected 5 to 15 or `15`", "`${Q}`, expected 5 to 15 or `15`"),
            ("`HUSH-1234`", "`${S}`"),
            ("of xhush-1234x", "of x${S}x"),
            ("`http://hush-1234:80` is", "`http://${S}:80` is"),
            ("unknown upstream `upstream`", "unknown upstream `${U}`"),
            ("é`5`é", "é`${Q}`é"),
            ("`${Q:-5}` and `${`5`", "`${Q:-5}` and `${`5`"),
        ] {
            assert_eq!(masks.apply(text), expected);
        }
        assert_eq!(masks.apply_to_values("a 5 upstream 15"), "a ${Q} ${U} 15");
        assert!(matches!(Masks::default().apply("5"), Cow::Borrowed("5")));
    }
}
