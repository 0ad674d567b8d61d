//! The grammar of `Host`. Pure.

use std::net::Ipv6Addr;

use wide::u8x16;

use super::{
    blocks::{equal, filled, find, in_range},
    characters::plain,
    error::FramingError,
};

/// The longest `Host`, port included, in bytes.
pub const MAX_HOST: usize = 255;

/// A value of `Host` that is a name or an IPv4 address, without its port.
pub struct BareHost<'h> {
    /// The name, as it was sent.
    pub name: &'h [u8],
    /// True if it has a letter in upper case.
    pub has_upper_case: bool,
}

impl<'h> BareHost<'h> {
    /// The host in `value`, which passed [`check`].
    pub fn of(value: &'h [u8]) -> Self {
        let is_special = |block| equal(block, b':') | in_range(block, b'A', b'Z');
        let end = match find(value, b'a', is_special) {
            Some(upper) if value[upper] != b':' => {
                let colon = find(value, b'a', |block| equal(block, b':'));
                return Self { name: &value[..colon.unwrap_or(value.len())], has_upper_case: true };
            }
            colon => colon.unwrap_or(value.len()),
        };
        Self { name: &value[..end], has_upper_case: false }
    }
}

/// Checks a `Host` value, RFC 9110, 7.2 and RFC 3986, 3.2.2: a name without empty labels, an IPv4
/// address or `[v6]`, and an optional port. One trailing dot is allowed.
///
/// # Errors
/// [`FramingError::HostMissing`] if the value is empty, [`FramingError::HostMalformed`] otherwise.
pub fn check(value: &[u8]) -> Result<(), FramingError> {
    let (is_valid, port) = match value {
        [] => return Err(FramingError::HostMissing),
        [b'[', rest @ ..] => {
            let end = rest.iter().position(|byte| *byte == b']').unwrap_or(rest.len());
            let address = std::str::from_utf8(&rest[..end]).unwrap_or_default();
            (address.parse::<Ipv6Addr>().is_ok(), rest.get(end + 1..))
        }
        _ => {
            let end = find(value, b'a', |block| equal(block, b':')).unwrap_or(value.len());
            let name = &value[..end];
            (is_name(name.strip_suffix(b".").unwrap_or(name)), Some(&value[end..]))
        }
    };
    if is_valid && port.is_some_and(is_port) && value.len() <= MAX_HOST {
        Ok(())
    } else {
        Err(FramingError::HostMalformed)
    }
}

/// True if `port` is empty, or a colon and at most five digits of a port.
fn is_port(port: &[u8]) -> bool {
    match port {
        [] => true,
        [b':', digits @ ..] if digits.len() <= 5 && digits.iter().all(u8::is_ascii_digit) => {
            digits.iter().fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0')) <= 65_535
        }
        _ => false,
    }
}

/// True if `name` consists of labels with dots between them.
fn is_name(name: &[u8]) -> bool {
    let (blocks, rest) = name.as_chunks::<16>();
    // The byte before a block, as a bit: a name may not begin with a dot, as after another one.
    let mut after_dot = 1;
    let mut is_valid = |block| {
        let block = u8x16::new(block);
        let dots = equal(block, b'.');
        let allowed = plain(block) | equal(block, b'_') | dots;
        let dots = dots.to_bitmask();
        let has_empty_label = dots & (dots << 1 | after_dot) != 0;
        after_dot = dots >> 15;
        allowed.all() && !has_empty_label
    };
    let is_end = |byte: &u8| *byte != b'.';
    name.last().is_some_and(is_end)
        && blocks.iter().all(|block| is_valid(*block))
        && (rest.is_empty() || is_valid(filled(rest, b'a')))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_name_has_no_empty_label_and_no_other_character(
            mut name in "[a-c0-1_.-]{0,40}".prop_map(String::into_bytes), other: Option<(prop::sample::Index, u8)>,
        ) {
            if let Some((at, byte)) = other && !name.is_empty() {
                let at = at.index(name.len());
                name[at] = byte;
            }
            let is_label = |label: &[u8]| {
                let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
                !label.is_empty() && label.iter().all(allowed)
            };
            prop_assert_eq!(is_name(&name), name.split(|byte| *byte == b'.').all(is_label));
        }
    }

    #[test]
    fn only_names_and_addresses_with_an_optional_port_are_accepted() {
        for host in ["a", "a.b", "a.b.", "a_b-c.d:80", "a:", "192.0.2.1:65535", "[::1]", "[::1]:80"]
        {
            assert_eq!(check(host.as_bytes()), Ok(()), "{host}");
        }
        let long = "a.".repeat(128);
        for host in [
            ".",
            "a..",
            "..a",
            "a..b",
            "a b",
            "a/b",
            "a@b",
            "a:b",
            "a:65536",
            "a:+1",
            "[::1",
            "::1",
            "[a]",
            "a%2eb",
            "a,b",
            ":80",
            long.as_str(),
        ] {
            assert_eq!(check(host.as_bytes()), Err(FramingError::HostMalformed), "{host}");
        }
        assert_eq!(check(b""), Err(FramingError::HostMissing));
    }
}
