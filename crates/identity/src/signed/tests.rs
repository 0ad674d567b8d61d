//! Spellings of signed tokens, as the decoders of common libraries read them, and opaque keys,
//! which have none.

use std::borrow::Cow;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use proptest::prelude::*;

use super::super::canonical::canonical_cookie_value;
use super::*;

/// What `binascii.a2b_base64` of Python makes of `text`, as `PyJWT`, python-jose, Authlib and
/// itsdangerous call it: in either alphabet, with padding added.
fn python(text: &[u8]) -> Option<Vec<u8>> {
    let (mut bits, mut count, mut padding, mut out) = (0_u32, 0_usize, 0, Vec::new());
    let added = [b'='].repeat(text.len().wrapping_neg() % 4);
    for byte in text.iter().chain(&added) {
        if *byte == b'=' {
            padding += usize::from(count >= 2);
            if count >= 2 && count + padding >= 4 {
                return Some(out);
            }
            continue;
        }
        let Some(digit) = digit(*byte) else { continue };
        (padding, bits) = (0, bits << 6 | u32::from(digit));
        if count > 0 {
            out.push((bits >> (6 - 2 * count)) as u8);
        }
        count = (count + 1) % 4;
    }
    (count == 0).then_some(out)
}

/// The longest result that Node's `Buffer.from(text, 'base64')` may have for `text`: it skips other
/// characters.
fn node(text: &[u8]) -> Vec<u8> {
    let digits: Vec<u8> = text.iter().filter_map(|byte| digit(*byte)).collect();
    let mut out = Vec::new();
    for group in digits.chunks(4) {
        let bits = group.iter().fold(0_u32, |bits, digit| bits << 6 | u32::from(*digit));
        let bits = bits << (6 * (4 - group.len()));
        out.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    out
}

/// True if the part of `value` before its first dot is empty or base64 of what may be JSON, or a
/// later part is a time.
fn may_be_signed(value: &str) -> bool {
    let may_be_json = |text: &[u8]| {
        let decoded = node(text).trim_ascii().to_vec();
        let ends = (decoded.first(), decoded.last());
        matches!(
            ends,
            (Some(b'{'), Some(b'}')) | (Some(b'['), Some(b']')) | (Some(b'"'), Some(b'"'))
        ) || serde_json::from_slice::<serde_json::Value>(&decoded).is_ok()
    };
    value.split_once('.').is_some_and(|(first, rest)| {
        // Without a scheme before it.
        first.split(' ').any(|word| word.is_empty() || may_be_json(word.as_bytes()))
            || rest.split('.').any(|part| is_time(format!(".{part}").as_bytes()))
    })
}

fn counted(value: &[u8]) -> Option<Vec<u8>> {
    canonical(Cow::Borrowed(value)).map(Cow::into_owned)
}

/// The part of a token that is signed as text, and the signature, in its canonical form.
#[derive(Clone, Debug)]
struct Token {
    signed: Vec<u8>,
    signature: Vec<u8>,
}

impl Token {
    fn text(&self) -> Vec<u8> {
        [&*self.signed, &*self.signature].concat()
    }
}

fn encoded(length: impl Into<prop::collection::SizeRange>) -> impl Strategy<Value = String> {
    prop::collection::vec(any::<u8>(), length).prop_map(|bytes| URL_SAFE_NO_PAD.encode(bytes))
}

fn tokens() -> impl Strategy<Value = Token> {
    let json = "\\{\"[a-z]{1,8}\":\"[ -!#-\\[\\]-~é]{0,20}\"\\}";
    let json = move || json.prop_map(|json| URL_SAFE_NO_PAD.encode(json));
    let time =
        || (0x4e00_0000_u32..0x7fff_ffff).prop_map(|at| URL_SAFE_NO_PAD.encode(at.to_be_bytes()));
    let signature =
        || prop::sample::select(vec![20_usize, 32, 48, 64, 132, 256]).prop_flat_map(encoded);
    let word = "[a-zA-Z0-9][a-zA-Z0-9 -]{0,11}";
    let signed = prop_oneof![
        (json(), json()).prop_map(|(header, payload)| format!("{header}.{payload}.")),
        json().prop_map(|payload| format!("{payload}.")),
        (json(), encoded(0..40), encoded(12), encoded(0..40))
            .prop_map(|(header, key, iv, text)| format!("{header}.{key}.{iv}.{text}.")),
        (encoded(8..40), time()).prop_map(|(data, time)| format!(".eJ{data}.{time}.")),
        prop::sample::select(vec!["42", "true", "null", "-1.5e3", "0"])
            .prop_map(|value| format!("{}.", URL_SAFE_NO_PAD.encode(value))),
        (word, time()).prop_map(|(word, time)| format!("{word}.{time}.")),
        encoded(32..90).prop_map(|payload| format!("v4.public.{payload}.")),
        Just("v2.local.".to_owned()),
    ];
    (signed, signature()).prop_map(|(signed, signature)| Token {
        signed: signed.into(),
        signature: signature.into(),
    })
}

/// A change of a signature: a place, the byte that is set in it, and whether it replaces another.
fn changes() -> impl Strategy<Value = Vec<(prop::sample::Index, u8, bool)>> {
    let byte = prop_oneof![
        Just(b'='),
        prop::sample::select(b"+/-_!~*%:|,;@ \t\"\xe9".to_vec()),
        prop::sample::select(b"ABCDwxyz0189".to_vec()),
    ];
    prop::collection::vec((any::<prop::sample::Index>(), byte, any::<bool>()), 1..6)
}

fn changed(text: &[u8], changes: &[(prop::sample::Index, u8, bool)]) -> Vec<u8> {
    let mut text = text.to_vec();
    for (place, byte, replaces) in changes {
        let at = place.index(text.len() + 1);
        match text.get_mut(at) {
            Some(old) if *replaces => *old = *byte,
            _ => text.insert(at, *byte),
        }
    }
    text
}

/// The signature with each value of its last character's low bits, and the signature in the other
/// alphabet.
fn respelled(signature: &[u8]) -> Vec<Vec<u8>> {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let (last, rest) = signature.split_last().unwrap();
    let mut all: Vec<Vec<u8>> = (0..16)
        .map(|bits| {
            let last = alphabet[usize::from(digit(*last).unwrap() ^ bits)];
            [rest, &[last]].concat()
        })
        .collect();
    let swapped = signature.iter().map(|byte| match byte {
        b'-' => b'+',
        b'_' => b'/',
        byte => *byte,
    });
    all.push(swapped.collect());
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn a_signed_token_has_one_spelling(token in tokens(), changes in changes(), padding in 0_usize..4) {
        let text = token.text();
        prop_assert_eq!(counted(&text), Some(text.clone()), "as issued");
        let mut signatures = respelled(&token.signature);
        signatures.push(changed(&token.signature, &changes));
        signatures.push([&*token.signature, &b"==="[..padding]].concat());
        signatures.push([&*token.signature, b"==", &changed(b"", &changes)].concat());
        for signature in signatures {
            let is_valid = python(&signature) == python(&token.signature)
                || node(&signature) == node(&token.signature);
            let spelling = [&*token.signed, &signature].concat();
            let spelling = trimmed(&spelling);
            if is_valid {
                let counted = counted(spelling);
                prop_assert!(counted.is_none_or(|counted| counted == text), "{}", spelling.escape_ascii());
                let cookie = canonical_cookie_value(spelling);
                prop_assert!(
                    cookie.is_none_or(|cookie| *cookie == *text),
                    "cookie {}", spelling.escape_ascii()
                );
            }
        }
    }

    #[test]
    fn an_escape_in_a_cookie_is_no_other_spelling(
        token in tokens(), places in prop::collection::vec(any::<prop::sample::Index>(), 1..5),
    ) {
        let text = token.text();
        // Upstreams that decode cookies read the token, the others skip the `%`.
        let escapes: Vec<usize> = places.iter().map(|place| place.index(text.len())).collect();
        let escape = |(at, byte): (usize, &u8)| if escapes.contains(&at) {
            format!("%{byte:02x}")
        } else {
            char::from(*byte).to_string()
        };
        let escaped: String = text.iter().enumerate().map(escape).collect();
        let escaped = escaped.into_bytes();
        let mut skipped = token.signature.clone();
        for place in places {
            skipped.insert(place.index(skipped.len()), b'%');
        }
        let skipped = [&*token.signed, &skipped].concat();
        for sent in [escaped, skipped] {
            let counted = canonical_cookie_value(&sent);
            prop_assert!(counted.is_none_or(|counted| *counted == *text), "{}", sent.escape_ascii());
        }
    }

    #[test]
    fn fernet_tokens_have_one_spelling(
        data in prop::collection::vec(any::<u8>(), 60..120), changes in changes(),
    ) {
        let plain = [&[0x80, 0, 0, 0, 0][..], &data].concat();
        let text = URL_SAFE_NO_PAD.encode(plain).into_bytes();
        let padded = [&*text, &b"=="[..text.len().wrapping_neg() % 4]].concat();
        prop_assert_eq!(counted(&padded), Some(text.clone()));
        let mut spellings = respelled(&text);
        spellings.push(changed(&text, &changes));
        for spelling in spellings {
            if python(&spelling) == python(&text) || node(&spelling) == node(&text) {
                let counted = counted(trimmed(&spelling));
                prop_assert!(counted.is_none_or(|counted| counted == text), "{}", spelling.escape_ascii());
            }
        }
    }

    #[test]
    fn opaque_keys_are_counted_as_sent(
        key in "[A-Za-z0-9]{1,12}([.:|][A-Za-z0-9_-]{1,70}){0,3}", other in "[ -~]{0,60}",
    ) {
        for value in [key, other].iter().filter(|value| !may_be_signed(value)) {
            prop_assert_eq!(counted(value.as_bytes()), Some(value.clone().into_bytes()));
        }
    }

    #[test]
    fn any_bytes_are_read(value: Vec<u8>, text in "[eIWg.vJ=A-]{0,40}") {
        for value in [&*value, text.as_bytes()] {
            if let Some(form) = counted(value) {
                prop_assert_eq!(counted(&form), Some(form.clone()), "idempotent");
            }
        }
    }
}

fn trimmed(value: &[u8]) -> &[u8] {
    super::super::canonical::trim(value)
}

#[test]
fn keys_of_real_services_are_counted_as_sent() {
    for key in [
        "a.b.c",
        // The base64 of `1-`, which is no number.
        "MS0.0__0A_-a-0_aaaa-_Aa___A--_aAAa--aa---aa0-__AA0AA--aaa_AAaAa00",
        "10.0.0.12",
        "api.example.com",
        "1.2.3-beta",
        "user.name@example.com",
        "glpat-Sb1a2c3d4e5f6g7h8i9jM6Lg.01.1707chf1e",
        "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",
        "ya29.a0AfH6SMBxyz-abc_def0123456789abcdefghijklmnopqrstuvw1",
        "patAbCdEfGhIjKlMn.0f3a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8",
        "hvs.CAESIJ1a2b3c4d5e6f7g8h9i0jKLMNOPQRSTUVWXYZabcdefGh4KHGh2cy5ab1",
        "xoxb-123456789012-1234567890123-AbCdEfGhIjKlMnOpQrStUvWx",
        "s:8dFq0cS4wV1xYt7uJ3mK9pZ2bN6aHgLe.rQ+3T/5vXk7Zb1cD9eF2gH4iJ6kL8mN0oP2qR4sT6uV",
        "550e8400-e29b-41d4-a716-446655440000",
        "1|laravel_sanctum_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789",
        ".eJxVjMsOwiAQRf-FtSE8hqFv3fcbyAwMUjU0Ke3K-O_apAvd3nPOfamI-1bj3mWNc1YXBer0uxGmh7QD5Du226LT0rZ1Jn0o-qBd35Ysz-vh_h1U7PVbC5NYBAmM0ZhhDBR4EBuQLXgPXMCTc4FSMQGCgQzecHFeuJA_-6j3B1sxOJY:1tabcd:Sig",
        "eyJpdiI6IkFCQ0QiLCJ2YWx1ZSI6IkVGR0gifQ==",
        "MTk4NjIyNDgzNDcxOTI1MjQ4.GhIAYs.ZnCjm1XVW7vRze4b7Cq4se7kKWsZnCjm1XVW7z",
    ] {
        assert_eq!(counted(key.as_bytes()), Some(key.into()), "{key}");
    }
}

#[test]
fn cookies_of_real_frameworks_are_counted_as_sent() {
    let jwt = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
    for (sent, counted) in [
        // Express.
        (
            "s%3A8dFq0cS4wV1xYt7u.rQ%2B3T%2F5vXk7Zb1cD9eF2gH4iJ6kL8mN0oP2qR4sT6uV",
            Some("s:8dFq0cS4wV1xYt7u.rQ 3T/5vXk7Zb1cD9eF2gH4iJ6kL8mN0oP2qR4sT6uV".to_owned()),
        ),
        (jwt, Some(jwt.to_owned())),
        // Nuxt.
        (&*format!("Bearer%20{jwt}"), Some(format!("Bearer {jwt}"))),
        (&*format!("\"{jwt}\""), Some(jwt.to_owned())),
        (&*format!("Bearer%20{jwt}~"), None),
        (&*format!("{jwt}%7E"), None),
        (&*format!("{}%6b", &jwt[..jwt.len() - 1]), None),
        (&*format!("{jwt}+"), None),
        // Supabase and others keep JSON.
        ("%5B%22a.b.c%22%2Cnull%5D", Some("[\"a.b.c\",null]".to_owned())),
    ] {
        let form = canonical_cookie_value(sent.as_bytes());
        assert_eq!(form.as_deref(), counted.as_deref().map(str::as_bytes), "{sent}");
    }
}

#[test]
fn formats_are_canonical_or_rejected() {
    let header = "eyJhbGciOiJIUzI1NiJ9";
    let signature = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
    let session = "dBjftJeZ4CVP-mB92K27uhbUJUA";
    let jwt = format!("{header}.eyJzdWIiOiJhIn0.{signature}");
    let compressed = format!(".eJyrVkrOSy1SsqpWSs5PSVWyMqitBQA5vAYR.aSQ9xQ.{session}");
    for (value, wanted) in [
        (jwt.clone(), Some(jwt.clone())),
        (format!("{jwt}="), Some(jwt.clone())),
        (format!("{jwt}=="), None),
        (format!("{jwt}."), None),
        (format!("{}l", &jwt[..jwt.len() - 1]), None),
        (format!("Bearer {jwt}"), Some(format!("Bearer {jwt}"))),
        (format!("Bearer  {jwt}!"), None),
        (format!("{header}.e30."), Some(format!("{header}.e30."))),
        (format!("{header}==.e30=.{signature}="), None),
        // As Amazon's load balancer sends it.
        (
            format!("{header}.eyJzdWIiOiJhYiJ9.{signature}="),
            Some(format!("{header}.eyJzdWIiOiJhYiJ9.{signature}")),
        ),
        (
            format!("{header}.eyJzdWIiOiJhIn0=.{signature}="),
            Some(format!("{header}.eyJzdWIiOiJhIn0=.{signature}")),
        ),
        (format!("NDI.{session}"), Some(format!("NDI.{session}"))),
        (format!("NDI.{session}="), Some(format!("NDI.{session}"))),
        (format!("NDI.{session}*"), None),
        // A number and a word: an opaque key.
        ("NDI.abcd*".to_owned(), Some("NDI.abcd*".to_owned())),
        // As Starlette writes its session.
        (
            format!("eyJhIjogIj8/PyJ9.aSQ9xQ.{session}"),
            Some(format!("eyJhIjogIj8/PyJ9.aSQ9xQ.{session}")),
        ),
        (compressed.clone(), Some(compressed.clone())),
        (format!("{compressed}*"), None),
        (
            format!("{header}..AAAAAAAAAAAAAAAA.AAAA.AAAAAAAAAAAAAAAAAAAAAA"),
            Some(format!("{header}..AAAAAAAAAAAAAAAA.AAAA.AAAAAAAAAAAAAAAAAAAAAA")),
        ),
        (format!("{header}..AAAAAAAAAAAAAAAA.AAAA.AAAAAAAAAAAAAAAAAAAAAB"), None),
        (format!("{header}..AAAAAAAAAAAAAAAA=.AAAA.AAAAAAAAAAAAAAAAAAAAAA"), None),
    ] {
        let counted = counted(value.as_bytes()).map(|form| String::from_utf8(form).unwrap());
        assert_eq!(counted, wanted, "{value}");
    }
}

#[test]
fn the_models_decode_as_the_libraries() {
    assert_eq!(python(b"YWI").as_deref(), Some(&b"ab"[..]));
    assert_eq!(python(b"Y!W*I").as_deref(), Some(&b"ab"[..]));
    assert_eq!(python(b"YWIjY"), None);
    assert_eq!(python(b"YWI=junk").as_deref(), Some(&b"ab"[..]));
    assert_eq!(python(b"=YW=I=").as_deref(), Some(&b"ab"[..]));
    assert_eq!(node(b"Y!WI"), b"ab");
    assert_eq!(node(b"YWJj_-8"), [97, 98, 99, 0xff, 0xef]);
}
