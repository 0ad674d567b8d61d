//! The grammar of `Host`. Pure.

use super::{characters::plain_run, error::FramingError};

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

fn is_name(mut name: &[u8]) -> bool {
    loop {
        let length = label_length(name);
        match (length, &name[length..]) {
            (0, _) => return false,
            (_, []) => return true,
            (_, [b'.', next @ ..]) => name = next,
            _ => return false,
        }
    }
}

/// The length of the label at the start of `name`, in bytes.
fn label_length(name: &[u8]) -> usize {
    let start = plain_run(name);
    let is_other = |byte: &u8| !(byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    start + name[start..].iter().position(is_other).unwrap_or(name.len() - start)
}

#[cfg(test)]
mod tests {
    use super::*;

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
