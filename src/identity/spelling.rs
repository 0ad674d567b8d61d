//! The one form of each value that is counted, so that two spellings that an upstream reads alike are
//! one caller.
//!
//! | source | form |
//! |---|---|
//! | all | without white space at its ends: ASCII, Unicode's in UTF-8, and 0x85 and 0xA0 of Latin-1 |
//! | `header:NAME` | the value; of `Authorization` the credentials, see [`super::credentials`] |
//! | `cookie:NAME` | without quotes, percent-decoded, a `+` as a space |
//! | `query:NAME` | percent-decoded, a `+` as a space |
//! | `path`, `path:NAME` | without matrix parameters (`;v=1`); a parameter percent-decoded |
//!
//! An escape that is none stays as it stands. What upstreams read in different ways has no form, and is
//! refused: a quoted cookie with a backslash or without its second quote.

use std::borrow::Cow;

use percent_encoding::percent_decode;

/// `value` without the white space at its ends, as upstreams trim it. Where the bytes are no UTF-8
/// there, 0x85 and 0xA0 are Latin-1's: some upstreams read headers so.
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

fn space_at_end(text: &[u8]) -> Option<usize> {
    let last = *text.last()?;
    if last.is_ascii() {
        return is_space(char::from(last)).then_some(1);
    }
    let longest = text.len().min(char::MAX_LEN_UTF8);
    let mut tails = (2..=longest).map(|length| &text[text.len() - length..]);
    match tails.find_map(only_char) {
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
    match (2..=longest).map(|length| &text[..length]).find_map(only_char) {
        Some(char) => is_space(char).then_some(char.len_utf8()),
        None => is_space(char::from(first)).then_some(1),
    }
}

/// The only character of `text`, where that is UTF-8.
fn only_char(text: &[u8]) -> Option<char> {
    let mut chars = std::str::from_utf8(text).ok()?.chars();
    chars.next().filter(|_| chars.next().is_none())
}

/// White space: Unicode's, and the separators that Python trims, too.
fn is_space(char: char) -> bool {
    char.is_whitespace() || matches!(char, '\u{1c}'..='\u{1f}')
}

/// [`trim`] of a value that may be decoded already.
fn trimmed(value: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    match value {
        Cow::Borrowed(value) => Cow::Borrowed(trim(value)),
        Cow::Owned(value) => {
            let short = trim(&value);
            if short.len() == value.len() { Cow::Owned(value) } else { Cow::Owned(short.to_vec()) }
        }
    }
}

/// Each `+` as a space.
fn spaced(value: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    if memchr::memchr(b'+', &value).is_none() {
        return value;
    }
    let mut value = value.into_owned();
    value.iter_mut().filter(|byte| **byte == b'+').for_each(|byte| *byte = b' ');
    Cow::Owned(value)
}

fn decoded(value: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    match value {
        Cow::Borrowed(value) => percent_decode(value).into(),
        Cow::Owned(value) => Cow::Owned(percent_decode(&value).collect()),
    }
}

/// The name or value of a query's parameter as it is sent, decoded.
pub(super) fn form_decoded(text: &str) -> Cow<'_, [u8]> {
    decoded(spaced(Cow::Borrowed(text.as_bytes())))
}

/// The form of a query's parameter, as it is sent.
pub(super) fn query_value(sent: &str) -> Cow<'_, [u8]> {
    trimmed(form_decoded(sent))
}

/// The form of a parameter of the path, as it stands in the path's normal form.
pub(super) fn path_value(sent: &str) -> Cow<'_, [u8]> {
    trimmed(match without_matrix(sent) {
        Cow::Borrowed(path) => percent_decode(path.as_bytes()).into(),
        Cow::Owned(path) => decoded(Cow::Owned(path.into_bytes())),
    })
}

/// A path without matrix parameters, which some upstreams take out of each segment before they read it.
pub(super) fn without_matrix(path: &str) -> Cow<'_, str> {
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

/// The form of a cookie's value, as it is sent; `None` where upstreams read it in different ways.
pub(super) fn cookie_value(sent: &[u8]) -> Option<Cow<'_, [u8]>> {
    let value = trim(sent);
    let bare = match value.strip_prefix(b"\"") {
        None => value,
        Some(rest) => {
            let inside = rest.strip_suffix(b"\"")?;
            // An escape for some upstreams, two characters for others.
            if memchr::memchr2(b'\\', b'"', inside).is_some() {
                return None;
            }
            inside
        }
    };
    Some(plain_cookie_value(percent_decode(bare).into()))
}

/// The form of a cookie's value that is decoded already. Some upstreams read `+` as a space.
pub(super) fn plain_cookie_value(value: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    trimmed(spaced(value))
}

/// The form of a host that a person gives: as the gateway reads the one of a request.
pub(super) fn host(value: &str) -> String {
    let value = value.trim();
    let end = match (value.rfind(':'), value.rfind(']')) {
        (Some(colon), Some(bracket)) if colon < bracket => value.len(),
        (Some(colon), _) => colon,
        (None, _) => value.len(),
    };
    let name = &value[..end];
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// What the name of a cookie or a parameter is to the one that is counted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Name {
    /// The same.
    Same,
    /// Another one, which some upstreams read as the same: `k[]`, `k.x` for `k_x`, ` k`.
    Twin,
    /// Another one.
    Other,
}

/// Compares a decoded name with the `wanted` one.
pub(super) fn compare_names(name: &[u8], wanted: &[u8]) -> Name {
    if name == wanted {
        return Name::Same;
    }
    let (mut name, mut wanted) = (mangled(name), mangled(wanted));
    loop {
        match (name.next(), wanted.next()) {
            (None | Some(b'['), None) => return Name::Twin,
            (one, other) if one == other => {}
            _ => return Name::Other,
        }
    }
}

/// A name as PHP reads it: no spaces before it, nothing from a NUL on, `.` and ` ` as `_`.
fn mangled(name: &[u8]) -> impl Iterator<Item = u8> {
    let name = name.iter().copied().skip_while(|byte| *byte == b' ').take_while(|byte| *byte != 0);
    name.map(|byte| if matches!(byte, b'.' | b' ') { b'_' } else { byte })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn white_space_at_the_ends_is_no_part_of_a_value() {
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
    fn a_name_is_known_however_an_upstream_mangles_it() {
        for (name, wanted, told) in [
            ("k", "k", Name::Same),
            ("k[]", "k", Name::Twin),
            ("k[a][b]", "k", Name::Twin),
            (" k", "k", Name::Twin),
            ("k\0x", "k", Name::Twin),
            ("a.b", "a_b", Name::Twin),
            ("a b", "a.b", Name::Twin),
            ("filter[a][b]", "filter[a]", Name::Twin),
            ("filter[b]", "filter[a]", Name::Other),
            ("kk", "k", Name::Other),
            ("", "k", Name::Other),
            ("K", "k", Name::Other),
        ] {
            assert_eq!(compare_names(name.as_bytes(), wanted.as_bytes()), told, "{name} {wanted}");
        }
    }

    #[test]
    fn a_quoted_cookie_has_one_reading_or_none() {
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
            assert_eq!(cookie_value(sent).as_deref(), wanted, "{sent:?}");
        }
    }

    /// Every byte as `%41`, or as it stands where `plain` says so.
    fn spelt(value: &[u8], plain: &[bool]) -> String {
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
        fn the_form_is_its_own_form(value in prop::collection::vec(prop_oneof![
            Just(0xa0), Just(0xc2), Just(0xe3), Just(0x80), Just(0x85), Just(b' '), Just(b'a'), any::<u8>()
        ], 0..12)) {
            let once = trim(&value);
            prop_assert_eq!(trim(once), once);
        }

        #[test]
        fn an_escape_makes_no_new_value(value: Vec<u8>, plain: Vec<bool>) {
            let sent = spelt(&value, &plain);
            prop_assert_eq!(&*query_value(&sent), trim(&value));
            prop_assert_eq!(&*path_value(&sent), trim(&value));
            let cookie = plain_cookie_value(Cow::Borrowed(&value));
            prop_assert_eq!(cookie_value(sent.as_bytes()), Some(cookie.clone()));
            let quoted = format!("\"{sent}\"");
            prop_assert_eq!(cookie_value(quoted.as_bytes()), Some(cookie));
        }

        #[test]
        fn no_bytes_panic(value: Vec<u8>, text in "\\PC{0,30}") {
            let _ = (trim(&value), cookie_value(&value), compare_names(&value, b"k"));
            let _ = (query_value(&text), path_value(&text), host(&text));
        }
    }
}
