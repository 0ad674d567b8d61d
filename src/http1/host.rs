//! The grammar of `Host`. Pure.

use super::error::FramingError;

/// The longest `Host`, port included, in bytes.
pub const MAX_HOST: usize = 255;

/// Checks a `Host` value, RFC 9110, 7.2 and RFC 3986, 3.2.2: a name without empty labels, an IPv4 address
/// or `[v6]`, and an optional port. One trailing dot is allowed.
///
/// # Errors
/// [`FramingError::HostMissing`] if the value is empty, [`FramingError::HostMalformed`] otherwise.
pub fn check(value: &[u8]) -> Result<(), FramingError> {
    if value.is_empty() {
        return Err(FramingError::HostMissing);
    }
    let (host, port) = match value.iter().rposition(|&b| b == b':') {
        Some(colon) if !value[colon..].contains(&b']') => (&value[..colon], &value[colon + 1..]),
        _ => (value, &b""[..]),
    };
    let literal = host.strip_prefix(b"[").and_then(|rest| rest.strip_suffix(b"]"));
    let well_formed = match literal {
        Some(inner) => {
            std::str::from_utf8(inner).is_ok_and(|text| text.parse::<std::net::Ipv6Addr>().is_ok())
        }
        None => is_name(host.strip_suffix(b".").unwrap_or(host)),
    };
    let port_fits = match port {
        [] => true,
        _ if port.len() > 5 || !port.iter().all(u8::is_ascii_digit) => false,
        _ => port.iter().fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0')) <= 65_535,
    };
    if well_formed && port_fits && value.len() <= MAX_HOST {
        Ok(())
    } else {
        Err(FramingError::HostMalformed)
    }
}

/// True if `name` consists of labels with dots between them.
fn is_name(name: &[u8]) -> bool {
    let mut last = NameByte::Dot;
    for byte in name {
        let class = NAME_BYTES[usize::from(*byte)];
        if class == NameByte::Other || class == NameByte::Dot && last == NameByte::Dot {
            return false;
        }
        last = class;
    }
    last == NameByte::Label
}

/// What a byte is in a name.
#[derive(Clone, Copy, Eq, PartialEq)]
enum NameByte {
    /// A part of a label.
    Label,
    /// The end of a label.
    Dot,
    /// Not allowed.
    Other,
}

static NAME_BYTES: [NameByte; 256] = {
    let mut table = [NameByte::Other; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = match byte as u8 {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'_' => NameByte::Label,
            b'.' => NameByte::Dot,
            _ => NameByte::Other,
        };
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_name_has_no_empty_label_and_no_other_character(
            mut name in "[a-c0-1_.-]{0,12}".prop_map(String::into_bytes), other: Option<(prop::sample::Index, u8)>,
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
