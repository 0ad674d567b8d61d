//! The canonical form of the credentials in `Authorization`.
//!
//! Upstreams agree only on `Bearer TOKEN`. For any other value, they differ: many take the second
//! word under any scheme, some take the last word, some take the value without `Bearer `, and Rails
//! reads `Token token="a"` as `Bearer a`. So a single word is the token, under any scheme or none.
//! After `Bearer` it is a `token68`, and a signed token has one spelling (see [`super::signed`]).
//! `Basic` is decoded leniently. Parameter lists (`Digest`, AWS signatures) are counted whole, with
//! their scheme. Other values are rejected: each spelling would be a new caller.

use std::borrow::Cow;

use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};

use super::{canonical::trim, signed};

/// An access token in its canonical form.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Token<'r> {
    /// The scheme in lower case, for `Basic` and for schemes with a parameter list; otherwise
    /// empty.
    pub scheme: Cow<'r, [u8]>,
    /// The token; for `Basic` the decoded `user:password`.
    pub value: Cow<'r, [u8]>,
}

impl<'r> Token<'r> {
    /// A token whose scheme is not counted.
    pub(super) fn plain(value: Cow<'r, [u8]>) -> Self {
        Self { scheme: Cow::Borrowed(b""), value }
    }

    /// Scheme and value, separated by a space. Unambiguous: a token without a scheme has no space.
    pub(super) fn joined(self) -> Cow<'r, [u8]> {
        if self.scheme.is_empty() {
            return self.value;
        }
        Cow::Owned([&*self.scheme, b" ", &*self.value].concat())
    }
}

/// The expected syntax in the error for credentials without a canonical form.
pub(super) const EXPECTED: &str = "`Bearer` and one token (RFC 6750; a signed one as it was issued), or `Basic` and the base64 of a name, a colon and a password";

/// Ignores the unused bits of the last digit, as common decoders do.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The canonical form of the header's value: an empty token without credentials, `None` if
/// upstreams could read the value in different ways.
pub(super) fn canonical_credentials(value: &[u8]) -> Option<Token<'_>> {
    let value = trim(value);
    let Some(space) = memchr::memchr2(b' ', b'\t', value) else {
        if value == b"\"\"" || is_scheme_alone(value) {
            return Some(Token::default());
        }
        let is_graphic = value.iter().all(u8::is_ascii_graphic);
        return is_graphic.then(|| plain_word(value))?;
    };
    let (scheme, rest) = (&value[..space], trim(&value[space..]));
    if scheme.eq_ignore_ascii_case(b"basic") {
        let value = Cow::Owned(decode_basic(rest)?);
        if *value == *b":" {
            return Some(Token::default());
        }
        return Some(Token { scheme: Cow::Borrowed(b"basic"), value });
    }
    if scheme.eq_ignore_ascii_case(b"bearer") {
        let word = unquote(rest);
        return is_bearer_token(word).then(|| plain_word(word))?;
    }
    if scheme.eq_ignore_ascii_case(b"token") {
        let word = unquote(rest);
        return is_word(word).then(|| plain_word(word))?;
    }
    if !is_scheme(scheme) {
        return None;
    }
    if is_param_list(rest) {
        let scheme = Cow::Owned(scheme.to_ascii_lowercase());
        return Some(Token { scheme, value: rest.into() });
    }
    is_word(rest).then(|| plain_word(rest))?
}

/// True if `word` is the name of a scheme in IANA's registry, or one of two other common ones.
fn is_scheme_alone(word: &[u8]) -> bool {
    const SCHEMES: [&str; 17] = [
        "apikey",
        "aws4-hmac-sha256",
        "basic",
        "bearer",
        "concealed",
        "digest",
        "dpop",
        "gnap",
        "hoba",
        "mutual",
        "negotiate",
        "ntlm",
        "oauth",
        "privatetoken",
        "scram-sha-256",
        "token",
        "vapid",
    ];
    word.len() <= 16 && SCHEMES.iter().any(|scheme| word.eq_ignore_ascii_case(scheme.as_bytes()))
}

/// True if `word` can only be the name of a scheme. Some upstreams read the whole value as the
/// token and skip characters outside of its alphabet. If `word` were a token, each text after it
/// would be a new spelling of that token.
fn is_scheme(word: &[u8]) -> bool {
    const MAX_LENGTH: usize = 24;
    let is_name_byte = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-';
    word.len() <= MAX_LENGTH && word[0].is_ascii_alphabetic() && word.iter().all(is_name_byte)
}

/// A token of one word; `None` for a respelled signed token.
fn plain_word(word: &[u8]) -> Option<Token<'_>> {
    signed::canonical(Cow::Borrowed(word)).map(Token::plain)
}

/// True if `text` is a `token68`: RFC 6750, 2.1. `|` and `:` are also allowed: in Laravel Sanctum
/// and others, they separate a token's id from its secret.
fn is_bearer_token(text: &[u8]) -> bool {
    let end = text.iter().rposition(|byte| *byte != b'=').map_or(0, |last| last + 1);
    let is_token_byte = |byte: &&u8| byte.is_ascii_alphanumeric() || b"-._~+/|:".contains(byte);
    end > 0 && text[..end].iter().filter(is_token_byte).count() == end
}

/// Decodes `user:password`. Missing or excess padding and one excess digit are ignored. Other bytes
/// are rejected: some decoders skip them, some stop at them, and some decode them.
fn decode_basic(text: &[u8]) -> Option<Vec<u8>> {
    let end = text.iter().rposition(|byte| *byte != b'=').map_or(0, |last| last + 1);
    let digits = &text[..end];
    let is_base64 = digits.iter().all(|byte| byte.is_ascii_alphanumeric() || b"+/".contains(byte));
    let whole = digits.len() - usize::from(digits.len() % 4 == 1);
    let decoded = BASE64.decode(&digits[..whole]).ok().filter(|_| is_base64)?;
    memchr::memchr(b':', &decoded).is_some().then_some(decoded)
}

/// The token `a` in `token="a"`, `"a"` and `a`, which Rails reads alike.
fn unquote(text: &[u8]) -> &[u8] {
    let text = text.strip_prefix(b"token=").unwrap_or(text);
    let inside = text.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    inside.unwrap_or(text)
}

/// True if `text` is graphic ASCII without quotes, commas and semicolons, the separators of
/// upstreams.
fn is_word(text: &[u8]) -> bool {
    let is_word_byte = |byte: &&u8| matches!(byte, b'!' | b'#'..=b'+' | b'-'..=b':' | b'<'..=b'~');
    // `count` has no early exit, so the loop is vectorized.
    !text.is_empty() && text.iter().filter(is_word_byte).count() == text.len()
}

/// True if `text` is a list of `name=value` and `name="value"`: RFC 9110, 11.2.
fn is_param_list(text: &[u8]) -> bool {
    let mut rest = text;
    loop {
        let Some(equals) = memchr::memchr(b'=', rest) else { return false };
        let (name, value) = (&rest[..equals], &rest[equals + 1..]);
        let is_name_byte = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.*".contains(byte);
        if name.is_empty() || !name.iter().all(is_name_byte) {
            return false;
        }
        let Some(length) = param_value_length(value) else { return false };
        rest = value[length..].trim_ascii_start();
        match rest.split_first() {
            None => return true,
            Some((b',', more)) => rest = more.trim_ascii_start(),
            Some(_) => return false,
        }
    }
}

/// The length of the parameter value at the start of `text`, in bytes.
fn param_value_length(text: &[u8]) -> Option<usize> {
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
        let token = canonical_credentials(value)?;
        Some((String::from_utf8(token.scheme.into_owned()).unwrap(), token.value.into_owned()))
    }

    #[test]
    fn credentials_are_canonical_or_rejected() {
        for (value, scheme, wanted) in [
            (&b"Bearer abc"[..], "", &b"abc"[..]),
            (b"  bearer \t abc\xa0", "", b"abc"),
            (b"Token token=\"abc\"", "", b"abc"),
            (b"Bearer 1|abc", "", b"1|abc"),
            (b"Bearer 12:a_b-c~d+e/f==", "", b"12:a_b-c~d+e/f=="),
            (b"Token a!b", "", b"a!b"),
            (b"Bearer token=abc", "", b"abc"),
            (b"whatever abc", "", b"abc"),
            (b"abc", "", b"abc"),
            (b"1|a:b/c==", "", b"1|a:b/c=="),
            (b"Negotiate YII=", "", b"YII="),
            (b"ApiKey YWJj==", "", b"YWJj=="),
            (b"Bearer", "", b""),
            (b"basic ", "", b""),
            (b"DIGEST", "", b""),
            (b"Negotiate", "", b""),
            (b"\"\"", "", b""),
            (b"Basic Og==", "", b""),
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
            b"Bearer a!b",
            b"Bearer a%b",
            b"Bearer a=b",
            b"Bearer ==",
            b"Bearer {abc}",
            b"Bearer token=",
            b"Bearer\xa0abc",
            b"Bearer abc\xc3\xa9",
            b"Token token=\"abc\", nonce=1",
            b"whatever abc junk",
            b"eyJhbGciOiJIUzI1NiJ9.e30.dBjftJeZ4CVP-mB92K27uhbUJUA !",
            b"eyJhbGciOiJIUzI1NiJ9.e30.dBjftJeZ4CVP-mB92K27uhbUJUA a=1",
            b"eyJhbGciOiJIUzI1NiJ9. .AAAA.AAAA.AAAA",
            b"gAAAAABkAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA ~",
            b"key_of_2026 junk",
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
        fn single_word_is_the_token_under_any_scheme(
            word in "[!#-+\\-:<-~]{1,20}", scheme in "([a-z][a-z-]{0,7}[ \t]{1,3})?", end in "[ \t\u{a0}]{0,3}",
        ) {
            let listed = is_param_list(word.as_bytes()) || word.starts_with("token=");
            prop_assume!(!listed && !is_scheme_alone(word.as_bytes()) && word != "\"\"");
            prop_assume!(scheme.trim() != "basic");
            let read = read(format!("{scheme}{word}{end}").as_bytes());
            prop_assert_eq!(read, Some((String::new(), word.into_bytes())));
        }

        #[test]
        fn basic_decodes_to_user_and_password(user in "[^:]{0,8}", password in any::<Vec<u8>>(), pad in 0usize..5) {
            let plain = [user.as_bytes(), b":", &password].concat();
            prop_assume!(plain != b":");
            let text = base64::engine::general_purpose::STANDARD_NO_PAD.encode(&plain);
            let read = read(format!("Basic {text}{}", "=".repeat(pad)).as_bytes());
            prop_assert_eq!(read, Some(("basic".to_owned(), plain)));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(value: Vec<u8>) {
            let _ = (canonical_credentials(&value), decode_basic(&value), is_param_list(&value));
        }
    }
}
