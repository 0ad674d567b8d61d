//! Whatever spelling of a signed token a lenient decoder of base64 accepts, it is the same caller
//! or is rejected: in a header and in a cookie.
#![no_main]

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::HeaderName;
use libfuzzer_sys::fuzz_target;
use tidegate::{
    http1::Fields,
    identity::{CredentialSource, token},
};

/// What `binascii.a2b_base64` of Python makes of `text`, in either alphabet and with padding added.
fn python(text: &[u8]) -> Option<Vec<u8>> {
    let (mut bits, mut count, mut padding, mut out) = (0_u32, 0_usize, 0, Vec::new());
    let added = [b'='].repeat(text.len().wrapping_neg() % 4);
    for byte in text.iter().chain(&added) {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'-' | b'+' => 62,
            b'_' | b'/' => 63,
            b'=' => {
                padding += usize::from(count >= 2);
                if count >= 2 && count + padding >= 4 {
                    return Some(out);
                }
                continue;
            }
            _ => continue,
        };
        (padding, bits) = (0, bits << 6 | u32::from(digit));
        if count > 0 {
            out.push((bits >> (6 - 2 * count)) as u8);
        }
        count = (count + 1) % 4;
    }
    (count == 0).then_some(out)
}

/// The token that a request with this header is counted by; `None` if it is rejected.
fn counted(name: &str, value: &[u8]) -> Option<Vec<u8>> {
    let mut headers = Fields::new();
    headers.push(name, value);
    let sources = [
        CredentialSource::Header(HeaderName::from_static("x-token")),
        CredentialSource::Cookie("session".to_owned()),
    ];
    let found = token(&sources, &headers).ok()?;
    Some(found.unwrap_or_default().value.into_owned())
}

fuzz_target!(|input: (u8, Vec<u8>, Vec<(u16, u8, bool)>)| {
    let (format, key, changes) = input;
    let mut bytes = key;
    bytes.resize([20, 32, 48, 64][usize::from(format % 4)], 7);
    let signature = URL_SAFE_NO_PAD.encode(bytes).into_bytes();
    let signed = [
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.",
        "eyJfdXNlcl9pZCI6ImEifQ.awWXqA.",
        ".eJyrVirNTFGyUjJUqgUAFVwDNQ.awWXqA.",
        "alice.awWXqA.",
    ][usize::from(format / 4 % 4)];
    let mut spelled = signature.clone();
    for (place, byte, replaces) in changes.iter().take(32) {
        let at = usize::from(*place) % (spelled.len() + 1);
        match spelled.get_mut(at) {
            _ if byte.is_ascii_control() => {}
            Some(old) if *replaces => *old = *byte,
            _ => spelled.insert(at, *byte),
        }
    }
    if python(&spelled) != python(&signature) {
        return;
    }
    let token = [signed.as_bytes(), &signature].concat();
    let sent = [signed.as_bytes(), &spelled].concat();
    assert_eq!(counted("x-token", &token).as_deref(), Some(&*token));
    assert!(counted("x-token", sent.trim_ascii()).is_none_or(|counted| counted == token));
    // In a cookie `;` ends the value, so that the upstream reads another one.
    if !sent.contains(&b';') {
        let cookie = [b"session=", &*sent].concat();
        assert!(counted("cookie", cookie.trim_ascii()).is_none_or(|counted| counted == token));
    }
});
