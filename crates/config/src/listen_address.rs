//! [`ListenAddress`]: where a listener accepts connections.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tidegate_scalar::{ScalarValue, impl_scalar};

/// An address to listen on: an IP address and a port, `localhost` and a port, or a port alone for
/// all addresses.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct ListenAddress(pub SocketAddr);

impl ScalarValue for ListenAddress {
    const EXPECTED: &'static str =
        "an address such as 127.0.0.1:8080, [::1]:8080, localhost:8080, or :8080 for all addresses";
    const PATTERN: &'static str = "^(\\[[0-9A-Fa-f:.]+\\]|[0-9.]+|localhost|):[0-9]+$";
    const EXAMPLE: &'static str = "127.0.0.1:8080";

    /// `localhost` is 127.0.0.1; a port alone listens on `[::]`, which accepts IPv4 as well.
    fn parse(text: &str) -> Option<Self> {
        let named = |ip: IpAddr, port: &str| {
            let is_number = port.bytes().all(|b| b.is_ascii_digit());
            let port = port.parse().ok().filter(|_| is_number);
            port.map(|port| Self(SocketAddr::new(ip, port)))
        };
        if let Some(port) = text.strip_prefix("localhost:") {
            return named(Ipv4Addr::LOCALHOST.into(), port);
        }
        match text.strip_prefix(':') {
            Some(port) => named(Ipv6Addr::UNSPECIFIED.into(), port),
            None => text.parse().ok().map(Self),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl_scalar!(ListenAddress);

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn short_addresses_are_expanded() {
        for (text, address) in [
            ("localhost:80", "127.0.0.1:80"),
            (":80", "[::]:80"),
            ("0.0.0.0:0", "0.0.0.0:0"),
            ("[::1]:80", "[::1]:80"),
        ] {
            assert_eq!(ListenAddress::parse(text).unwrap().to_string(), address);
        }
        for bad in ["localhost", "localhost:", ":", ":+80", ":99999", "::80", "host:80", "80", ""] {
            assert!(ListenAddress::parse(bad).is_none(), "{bad}");
        }
    }
}
