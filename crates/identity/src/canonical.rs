//! The canonical form of each counted value: two spellings that an upstream reads alike have one
//! form.
//!
//! | source | canonical form |
//! |---|---|
//! | all | without white space at the ends: ASCII, Unicode in UTF-8, and 0x85 and 0xA0 in Latin-1 |
//! | `header:NAME` | the value; for `Authorization` the credentials, see [`super::credentials`] |
//! | `cookie:NAME` | without quotes, percent-decoded, a `+` as a space |
//! | `query:NAME` | percent-decoded, a `+` as a space |
//! | `path`, `path:NAME` | without matrix parameters (`;v=1`); a parameter percent-decoded |
//!
//! A malformed percent-escape is kept unchanged. A value that upstreams read in different ways has
//! no canonical form and is rejected: a quoted cookie with a backslash or without its closing
//! quote, and a signed token that is not in its canonical spelling (see [`super::signed`]).

use std::borrow::Cow;

use percent_encoding::percent_decode;

use super::signed::{self, SignedToken};

/// `value` without the white space at its ends, as upstreams trim it. At an end that is not UTF-8,
/// 0x85 and 0xA0 are also trimmed: they are white space in Latin-1, which some upstreams use for
/// headers.
pub fn trim(value: &[u8]) -> &[u8] {
    let mut rest = value;
    while let Some(length) = space_at_end(rest) {
        rest = &rest[..rest.len() - length];
    }
    while let Some(length) = space_at_start(rest) {
        rest = &rest[length..];
    }
    rest
}

/// [`trim`] of a text.
pub fn trim_text(value: &str) -> &str {
    value.trim_matches(is_space)
}

fn space_at_end(text: &[u8]) -> Option<usize> {
    let last = *text.last()?;
    if last.is_ascii() {
        return is_space(char::from(last)).then_some(1);
    }
    let longest = text.len().min(char::MAX_LEN_UTF8);
    let mut tails = (2..=longest).map(|length| &text[text.len() - length..]);
    match tails.find_map(single_char) {
        Some(char) => is_space(char).then_some(char.len_utf8()),
        None => is_space(char::from(last)).then_some(1),
    }
}

fn space_at_start(text: &[u8]) -> Option<usize> {
    let first = *text.first()?;
    if first.is_ascii() {
        return is_space(char::from(first)).then_some(1);
    }
    let longest = text.len().min(char::MAX_LEN_UTF8);
    match (2..=longest).map(|length| &text[..length]).find_map(single_char) {
        Some(char) => is_space(char).then_some(char.len_utf8()),
        None => is_space(char::from(first)).then_some(1),
    }
}

/// The character of `text`, if `text` is exactly one character in UTF-8.
fn single_char(text: &[u8]) -> Option<char> {
    let mut chars = std::str::from_utf8(text).ok()?.chars();
    chars.next().filter(|_| chars.next().is_none())
}

/// Unicode white space, and the separators that Python also trims.
fn is_space(char: char) -> bool {
    char.is_whitespace() || matches!(char, '\u{1c}'..='\u{1f}')
}

/// [`trim`] for a value that may be owned.
fn trim_cow(value: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    match value {
        Cow::Borrowed(value) => Cow::Borrowed(trim(value)),
        Cow::Owned(value) => {
            let short = trim(&value);
            if short.len() == value.len() { Cow::Owned(value) } else { Cow::Owned(short.to_vec()) }
        }
    }
}

/// Replaces each `+` by a space.
fn plus_to_space(value: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    if memchr::memchr(b'+', &value).is_none() {
        return value;
    }
    let mut value = value.into_owned();
    value.iter_mut().filter(|byte| **byte == b'+').for_each(|byte| *byte = b' ');
    Cow::Owned(value)
}

fn decode_percent(value: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    match value {
        Cow::Borrowed(value) => percent_decode(value).into(),
        Cow::Owned(value) => Cow::Owned(percent_decode(&value).collect()),
    }
}

/// Decodes the name or value of a query parameter.
pub(super) fn decode_form(text: &str) -> Cow<'_, [u8]> {
    decode_percent(plus_to_space(Cow::Borrowed(text.as_bytes())))
}

/// The canonical form of a query parameter's value as sent; `None` for a respelled signed token.
pub(super) fn canonical_query_value(sent: &str) -> Option<Cow<'_, [u8]>> {
    signed::canonical(trim_cow(decode_form(sent)))
}

/// The canonical form of a normalized path's parameter; `None` for a respelled signed token.
pub(super) fn canonical_path_param(sent: &str) -> Option<Cow<'_, [u8]>> {
    signed::canonical(trim_cow(match strip_matrix_params(sent) {
        Cow::Borrowed(path) => percent_decode(path.as_bytes()).into(),
        Cow::Owned(path) => decode_percent(Cow::Owned(path.into_bytes())),
    }))
}

/// Removes the matrix parameters (`;v=1`) from each segment, as some upstreams do.
pub(super) fn strip_matrix_params(path: &str) -> Cow<'_, str> {
    if memchr::memchr(b';', path.as_bytes()).is_none() {
        return Cow::Borrowed(path);
    }
    let mut out = String::with_capacity(path.len());
    for (index, segment) in path.split('/').enumerate() {
        if index > 0 {
            out.push('/');
        }
        out.push_str(segment.split(';').next().unwrap_or_default());
    }
    Cow::Owned(out)
}

/// The canonical form of a cookie's value as sent; `None` if it is ambiguous. For some upstreams a
/// space, a comma or a quote ends the value and begins another cookie: RFC 6265, 4.1.1, allows none
/// of these characters.
pub(super) fn canonical_cookie_value(sent: &[u8]) -> Option<Cow<'_, [u8]>> {
    let value = trim(sent);
    let bare = match value.strip_prefix(b"\"") {
        None => value,
        Some(rest) => {
            // Some upstreams read a backslash in quotes as an escape, others as a character.
            rest.strip_suffix(b"\"").filter(|inside| !inside.contains(&b'\\'))?
        }
    };
    if bare.iter().any(|byte| *byte == b'"' || is_cookie_separator(*byte)) {
        return None;
    }
    let decoded = match percent_decode(bare).into() {
        Cow::Borrowed(bare) => signed::canonical(Cow::Borrowed(bare))?,
        // Upstreams that do not decode cookies would read another token.
        Cow::Owned(decoded) => has_plain_token(bare, &decoded).then_some(Cow::Owned(decoded))?,
    };
    Some(decoded_cookie_value(decoded))
}

/// True if a cookie's value has no signed token, or a canonical one without percent-escapes.
fn has_plain_token(sent: &[u8], decoded: &[u8]) -> bool {
    let is_plain = |token: SignedToken<'_>| {
        token.canonical().is_some_and(|text| text == token.text && sent.ends_with(text))
    };
    SignedToken::find(sent).is_none() && SignedToken::find(decoded).is_none_or(is_plain)
}

/// True if some upstreams begin another cookie after this byte, as all upstreams do after `;`.
pub(super) fn is_cookie_separator(byte: u8) -> bool {
    byte == b',' || byte == 0x0b || byte.is_ascii_whitespace()
}

/// The canonical form of a decoded cookie value. Some upstreams read `+` as a space.
pub(super) fn decoded_cookie_value(value: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    trim_cow(plus_to_space(value))
}

/// The canonical form of an entered host, equal to the form of a requested host.
pub(super) fn canonical_host(value: &str) -> String {
    let value = value.trim();
    let end = match (value.rfind(':'), value.rfind(']')) {
        (Some(colon), Some(bracket)) if colon < bracket => value.len(),
        (Some(colon), _) => colon,
        (None, _) => value.len(),
    };
    let name = &value[..end];
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// How the name of a cookie or parameter compares with the wanted name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum NameMatch {
    /// Equal.
    Same,
    /// Different, but read as the same by some upstreams: `k[]`, `k.x` and `k[x` for `k_x`, ` k`,
    /// `K`.
    Alias,
    /// Different.
    Other,
}

/// Compares a decoded name with the `wanted` one.
pub(super) fn compare_names(name: &[u8], wanted: &[u8]) -> NameMatch {
    if name == wanted {
        return NameMatch::Same;
    }
    let (mut name, mut wanted) = (loosely_read(name), loosely_read(wanted));
    loop {
        match (name.next(), wanted.next()) {
            (None | Some((b'[', _)), None) => return NameMatch::Alias,
            (Some((_, one)), Some((_, other))) if one == other => {}
            _ => return NameMatch::Other,
        }
    }
}

/// Compares the name of a cookie, as sent, with the `wanted` one. Some upstreams decode the names
/// of cookies.
pub(super) fn compare_cookie_names(name: &[u8], wanted: &[u8]) -> NameMatch {
    let sent = compare_names(name, wanted);
    if sent != NameMatch::Other || memchr::memchr2(b'%', b'+', name).is_none() {
        return sent;
    }
    match compare_names(&decode_percent(plus_to_space(Cow::Borrowed(name))), wanted) {
        NameMatch::Other => NameMatch::Other,
        NameMatch::Same | NameMatch::Alias => NameMatch::Alias,
    }
}

/// The bytes of a name, each with the byte that upstreams may read in its place. PHP drops leading
/// spaces, cuts at a NUL, and reads `.`, ` ` and a `[` that is not closed as `_`; ASP.NET ignores
/// the case.
fn loosely_read(name: &[u8]) -> impl Iterator<Item = (u8, u8)> {
    let name = name.iter().copied().skip_while(|byte| *byte == b' ').take_while(|byte| *byte != 0);
    name.map(|byte| {
        let read =
            if matches!(byte, b'.' | b' ' | b'[') { b'_' } else { byte.to_ascii_lowercase() };
        (byte, read)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn white_space_is_trimmed_at_both_ends() {
        for (sent, wanted) in [
            (&b" \ta b\t "[..], &b"a b"[..]),
            (b"a\xa0", b"a"),
            (b"\x85a\xa0\xa0", b"a"),
            (b"a\xc2\xa0 \xc2\x85", b"a"),
            (b"\xe3\x80\x80a\xe2\x80\x83", b"a"),
            (b"caf\xc3\xa0", b"caf\xc3\xa0"),
            (b"caf\xc3\x85\xa0", b"caf\xc3\x85"),
            (b"\xf0\x9f\x98\x80", b"\xf0\x9f\x98\x80"),
            (b"\xff", b"\xff"),
            (b"\xa0", b""),
            (b"", b""),
        ] {
            assert_eq!(trim(sent), wanted, "{sent:?}");
        }
    }

    #[test]
    fn names_that_upstreams_read_alike_are_aliases() {
        for (name, wanted, expected) in [
            ("k", "k", NameMatch::Same),
            ("k[]", "k", NameMatch::Alias),
            ("k[a][b]", "k", NameMatch::Alias),
            (" k", "k", NameMatch::Alias),
            ("k\0x", "k", NameMatch::Alias),
            ("a.b", "a_b", NameMatch::Alias),
            ("a b", "a.b", NameMatch::Alias),
            ("filter[a][b]", "filter[a]", NameMatch::Alias),
            ("filter[b]", "filter[a]", NameMatch::Other),
            ("kk", "k", NameMatch::Other),
            ("", "k", NameMatch::Other),
            ("K", "k", NameMatch::Alias),
            ("a[b", "a_b", NameMatch::Alias),
            ("a[b.c", "a_b_c", NameMatch::Alias),
            ("Session.ID", "session_id", NameMatch::Alias),
        ] {
            assert_eq!(
                compare_names(name.as_bytes(), wanted.as_bytes()),
                expected,
                "{name} {wanted}"
            );
        }
    }

    #[test]
    fn names_of_cookies_may_be_decoded() {
        for (name, expected) in [
            ("sid", NameMatch::Same),
            ("s%69d", NameMatch::Alias),
            ("%53ID", NameMatch::Alias),
            ("+sid", NameMatch::Alias),
            ("sid%5b%5d", NameMatch::Alias),
            ("s%69", NameMatch::Other),
            ("100%", NameMatch::Other),
        ] {
            assert_eq!(compare_cookie_names(name.as_bytes(), b"sid"), expected, "{name}");
        }
    }

    #[test]
    fn quoted_cookies_are_canonical_or_rejected() {
        for (sent, wanted) in [
            (&b"a"[..], Some(&b"a"[..])),
            (b"\"a\"", Some(b"a")),
            (b" \"%61\" ", Some(b"a")),
            (b"%22a%22", Some(b"\"a\"")),
            (b"%zz%6", Some(b"%zz%6")),
            (b"\"\"", Some(b"")),
            (b"a\\b", Some(b"a\\b")),
            (b"\"", None),
            (b"\"a", None),
            (b"\"a\"b\"", None),
            (b"\"\\141\"", None),
        ] {
            assert_eq!(canonical_cookie_value(sent).as_deref(), wanted, "{sent:?}");
        }
    }

    /// `value` percent-encoded, except the alphanumeric bytes for which `plain` is true.
    fn percent_encoded(value: &[u8], plain: &[bool]) -> String {
        let byte = |(index, byte): (usize, &u8)| {
            if byte.is_ascii_alphanumeric() && plain.get(index).is_some_and(|plain| *plain) {
                char::from(*byte).to_string()
            } else {
                format!("%{byte:02x}")
            }
        };
        value.iter().enumerate().map(byte).collect()
    }

    proptest! {
        #[test]
        fn trim_is_idempotent(value in prop::collection::vec(prop_oneof![
            Just(0xa0), Just(0xc2), Just(0xe3), Just(0x80), Just(0x85), Just(b' '), Just(b'a'), any::<u8>()
        ], 0..12)) {
            let once = trim(&value);
            prop_assert_eq!(trim(once), once);
        }

        #[test]
        fn percent_encoding_does_not_change_the_value(value: Vec<u8>, plain: Vec<bool>) {
            let sent = percent_encoded(&value, &plain);
            let plain = Some(Cow::Borrowed(trim(&value)));
            prop_assert_eq!(canonical_query_value(&sent), plain.clone());
            prop_assert_eq!(canonical_path_param(&sent), plain);
            let cookie = decoded_cookie_value(Cow::Borrowed(&value));
            prop_assert_eq!(canonical_cookie_value(sent.as_bytes()), Some(cookie.clone()));
            let quoted = format!("\"{sent}\"");
            prop_assert_eq!(canonical_cookie_value(quoted.as_bytes()), Some(cookie));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(value: Vec<u8>, text in "\\PC{0,30}") {
            let _ = (trim(&value), canonical_cookie_value(&value), compare_names(&value, b"k"));
            let _ = (canonical_query_value(&text), canonical_path_param(&text), canonical_host(&text));
        }
    }
}
