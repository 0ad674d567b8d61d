//! The credentials of an `Authorization` header in the one form that is counted.
//!
//! Upstreams disagree about what is not exactly `Bearer TOKEN`: many take the second word whatever the
//! scheme, some the last word, some the whole with `Bearer ` cut off, and Rails reads `Token token="a"` as
//! `Bearer a`. So one word is one token, with any scheme and with none. `Basic` is decoded as lenient
//! decoders do. Lists of parameters (`Digest`, AWS signatures) are counted whole, with their scheme.
//! Everything else would be a new caller with every spelling, and is refused.

use std::borrow::Cow;

use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};

use super::{spelling::trim, token::Token};

/// What was expected of credentials that have no form.
pub(super) const EXPECTED: &str =
    "`Bearer` and one word, or `Basic` and the base64 of a name, a colon and a password";

/// Decodes whatever the unused bits of the last digit are: no decoder in use looks at them.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The form of the header's value: an empty token where there are no credentials, `None` where upstreams
/// read them in different ways.
pub(super) fn credentials(value: &[u8]) -> Option<Token<'_>> {
    let value = trim(value);
    let Some(space) = memchr::memchr2(b' ', b'\t', value) else {
        let known = ["basic", "bearer", "token"];
        if known.iter().any(|scheme| value.eq_ignore_ascii_case(scheme.as_bytes())) {
            return Some(Token::default());
        }
        return value.iter().all(u8::is_ascii_graphic).then(|| Token::plain(value.into()));
    };
    let (scheme, rest) = (&value[..space], trim(&value[space..]));
    if scheme.eq_ignore_ascii_case(b"basic") {
        let value = Cow::Owned(basic(rest)?);
        return Some(Token { scheme: Cow::Borrowed(b"basic"), value });
    }
    if scheme.eq_ignore_ascii_case(b"bearer") || scheme.eq_ignore_ascii_case(b"token") {
        let word = unquoted(rest);
        return is_word(word).then(|| Token::plain(word.into()));
    }
    if is_parameters(rest) {
        let scheme = Cow::Owned(scheme.to_ascii_lowercase());
        return Some(Token { scheme, value: rest.into() });
    }
    is_word(rest).then(|| Token::plain(rest.into()))
}

/// `user:password`. Padding may be missing or too long, and a digit too many says nothing; other junk is
/// skipped by some decoders, ends the text for others, and is a part of it for a third kind.
fn basic(text: &[u8]) -> Option<Vec<u8>> {
    let end = text.iter().rposition(|byte| *byte != b'=').map_or(0, |last| last + 1);
    let digits = &text[..end];
    let sound = digits.iter().all(|byte| byte.is_ascii_alphanumeric() || b"+/".contains(byte));
    let whole = digits.len() - usize::from(digits.len() % 4 == 1);
    let decoded = BASE64.decode(&digits[..whole]).ok().filter(|_| sound)?;
    memchr::memchr(b':', &decoded).is_some().then_some(decoded)
}

/// The token in `token="a"`, `"a"` and `a`, which Rails reads alike.
fn unquoted(text: &[u8]) -> &[u8] {
    let text = text.strip_prefix(b"token=").unwrap_or(text);
    let inside = text.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    inside.unwrap_or(text)
}

/// Whether it is plain ASCII without a separator of any upstream.
fn is_word(text: &[u8]) -> bool {
    let fits = |byte: &&u8| matches!(byte, b'!' | b'#'..=b'+' | b'-'..=b':' | b'<'..=b'~');
    // Counted to the end, so that many bytes are looked at together.
    !text.is_empty() && text.iter().filter(fits).count() == text.len()
}

/// Whether it is a list of `name=value` and `name="value"`, RFC 9110, 11.2: no word of it could be a token.
fn is_parameters(text: &[u8]) -> bool {
    let mut rest = text;
    loop {
        let Some(equals) = memchr::memchr(b'=', rest) else { return false };
        let (name, value) = (&rest[..equals], &rest[equals + 1..]);
        let tokenish = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.*".contains(byte);
        if name.is_empty() || !name.iter().all(tokenish) {
            return false;
        }
        let Some(length) = value_length(value) else { return false };
        rest = value[length..].trim_ascii_start();
        match rest.split_first() {
            None => return true,
            Some((b',', more)) => rest = more.trim_ascii_start(),
            Some(_) => return false,
        }
    }
}

/// How long the value of a parameter is that `text` begins with.
fn value_length(text: &[u8]) -> Option<usize> {
    let Some(quoted) = text.strip_prefix(b"\"") else {
        let ends = |byte: &u8| matches!(byte, b',' | b'"') || !byte.is_ascii_graphic();
        let length = text.iter().position(ends).unwrap_or(text.len());
        return (length > 0 && text[0] != b'=').then_some(length);
    };
    let mut at = 0;
    loop {
        at += memchr::memchr2(b'"', b'\\', quoted.get(at..)?)?;
        if quoted[at] == b'"' {
            return Some(at + 2);
        }
        at += 2;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(value: &[u8]) -> Option<(String, Vec<u8>)> {
        let token = credentials(value)?;
        Some((String::from_utf8(token.scheme.into_owned()).unwrap(), token.value.into_owned()))
    }

    #[test]
    fn credentials_have_one_form_or_none() {
        for (value, scheme, wanted) in [
            (&b"Bearer abc"[..], "", &b"abc"[..]),
            (b"  bearer \t abc\xa0", "", b"abc"),
            (b"Token token=\"abc\"", "", b"abc"),
            (b"Bearer token=abc", "", b"abc"),
            (b"whatever abc", "", b"abc"),
            (b"abc", "", b"abc"),
            (b"1|a:b/c==", "", b"1|a:b/c=="),
            (b"Negotiate YII=", "", b"YII="),
            (b"ApiKey YWJj==", "", b"YWJj=="),
            (b"Bearer", "", b""),
            (b"basic ", "", b""),
            (b"", "", b""),
            (b"Basic YTpi", "basic", b"a:b"),
            (b"basic YTpiYw==", "basic", b"a:bc"),
            (b"basic YTpiYx", "basic", b"a:bc"),
            (b"basic YTpiX=====", "basic", b"a:b"),
            (
                b"Digest username=\"a, b\", uri=/x, n=\"\\\"\"",
                "digest",
                b"username=\"a, b\", uri=/x, n=\"\\\"\"",
            ),
            (
                b"AWS4-HMAC-SHA256 Credential=A/b, Signature=0f",
                "aws4-hmac-sha256",
                b"Credential=A/b, Signature=0f",
            ),
        ] {
            let wanted = Some((scheme.to_owned(), wanted.to_vec()));
            assert_eq!(read(value), wanted, "{}", String::from_utf8_lossy(value));
        }
        for value in [
            &b"Bearer abc junk"[..],
            b"Bearer abc,junk",
            b"Bearer abc;junk",
            b"Bearer \"abc",
            b"Bearer token=",
            b"Bearer\xa0abc",
            b"Bearer abc\xc3\xa9",
            b"Token token=\"abc\", nonce=1",
            b"whatever abc junk",
            b"whatever a=1, abc",
            b"whatever a=1 abc",
            b"whatever a=\"1\" abc",
            b"whatever a=\"abc",
            b"Basic abc",
            b"Basic YT pi",
            b"Basic YT-pi",
            b"Basic YTpi=x",
            b"Basic YWJj",
            b"Basic =",
        ] {
            assert_eq!(read(value), None, "{}", String::from_utf8_lossy(value));
        }
    }

    proptest! {
        #[test]
        fn one_word_is_one_token_whatever_stands_around_it(
            word in "[!#-+\\-:<-~]{1,20}", scheme in "([a-z-]{1,8}[ \t]{1,3})?", end in "[ \t\u{a0}]{0,3}",
        ) {
            let known = ["basic", "bearer", "token"];
            let listed = is_parameters(word.as_bytes()) || word.starts_with("token=");
            prop_assume!(!listed && !known.contains(&word.to_ascii_lowercase().as_str()));
            prop_assume!(scheme.trim() != "basic");
            let read = read(format!("{scheme}{word}{end}").as_bytes());
            prop_assert_eq!(read, Some((String::new(), word.into_bytes())));
        }

        #[test]
        fn basic_is_what_it_decodes_to(user in "[^:]{0,8}", password in any::<Vec<u8>>(), pad in 0usize..5) {
            let plain = [user.as_bytes(), b":", &password].concat();
            let text = base64::engine::general_purpose::STANDARD_NO_PAD.encode(&plain);
            let read = read(format!("Basic {text}{}", "=".repeat(pad)).as_bytes());
            prop_assert_eq!(read, Some(("basic".to_owned(), plain)));
        }

        #[test]
        fn no_bytes_panic(value: Vec<u8>) {
            let _ = (credentials(&value), basic(&value), is_parameters(&value));
        }
    }
}
