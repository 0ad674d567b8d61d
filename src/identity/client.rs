//! The client's address behind trusted proxies.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;

use crate::framing::Fields;

const X_FORWARDED_FOR: &str = "x-forwarded-for";

/// The networks whose word about the client is believed.
#[derive(Clone, Debug, Default)]
pub struct TrustedProxies(Vec<IpNet>);

impl TrustedProxies {
    /// Trusts exactly these networks; an empty list trusts nobody.
    pub fn new(networks: Vec<IpNet>) -> Self {
        Self(networks)
    }

    /// Whether `address` may say who the client is.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&address))
    }

    /// The client: the peer itself, or the right-most address in `X-Forwarded-For` that is not a
    /// trusted proxy, where the peer is one. What stands left of an unreadable entry is not believed.
    pub fn client(&self, peer: IpAddr, headers: &Fields) -> IpAddr {
        let peer = canonical(peer);
        if self.0.is_empty() || !self.contains(peer) {
            return peer;
        }
        let mut client = peer;
        for line in headers.get_all(X_FORWARDED_FOR).rev() {
            let Ok(line) = std::str::from_utf8(line) else { return client };
            for entry in line.rsplit(',') {
                let Some(address) = parse(entry.trim()) else { return client };
                client = address;
                if !self.contains(address) {
                    return client;
                }
            }
        }
        client
    }
}

/// An IPv4 address in IPv6 clothes is the IPv4 address: one client, one spelling.
pub fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// The part of an address that is counted: all of IPv4, the first `prefix` bits of IPv6.
pub fn counted(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => {
            let host_bits = 128 - u32::from(prefix.min(128));
            let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
        }
    }
}

/// Reads `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]` and `[2001:db8::1]:80`.
fn parse(entry: &str) -> Option<IpAddr> {
    let bare = entry.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(entry);
    bare.parse::<IpAddr>()
        .or_else(|_| entry.parse::<std::net::SocketAddr>().map(|address| address.ip()))
        .ok()
        .map(canonical)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn client(peer: &str, forwarded: &[&str]) -> String {
        let trusted =
            TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()]);
        let mut headers = Fields::default();
        for line in forwarded {
            headers.push(X_FORWARDED_FOR, line);
        }
        trusted.client(peer.parse().unwrap(), &headers).to_string()
    }

    #[test]
    fn only_trusted_proxies_are_believed_and_from_the_right() {
        for (peer, forwarded, wanted) in [
            ("192.0.2.9", &["198.51.100.1"][..], "192.0.2.9"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &["198.51.100.1"], "198.51.100.1"),
            ("10.0.0.1", &["6.6.6.6, 198.51.100.1"], "198.51.100.1"),
            ("10.0.0.1", &["6.6.6.6, 198.51.100.1, 10.2.2.2"], "198.51.100.1"),
            ("10.0.0.1", &["6.6.6.6", "198.51.100.1", "10.2.2.2"], "198.51.100.1"),
            ("10.0.0.1", &["10.3.3.3, 10.2.2.2"], "10.3.3.3"),
            ("10.0.0.1", &["6.6.6.6, nonsense, 10.2.2.2"], "10.2.2.2"),
            ("10.0.0.1", &["nonsense"], "10.0.0.1"),
            ("::ffff:10.0.0.1", &["[2001:db8::1]:443"], "2001:db8::1"),
            ("::1", &["198.51.100.1:8080"], "198.51.100.1"),
        ] {
            assert_eq!(client(peer, forwarded), wanted, "{peer} {forwarded:?}");
        }
    }

    #[test]
    fn ipv6_is_counted_by_prefix() {
        let address = "2001:db8:1:2:3:4:5:6".parse().unwrap();
        assert_eq!(counted(address, 64).to_string(), "2001:db8:1:2::");
        assert_eq!(counted(address, 128), address);
        assert_eq!(counted(address, 0).to_string(), "::");
        assert_eq!(counted("192.0.2.1".parse().unwrap(), 64).to_string(), "192.0.2.1");
    }

    proptest! {
        #[test]
        fn an_untrusted_peer_is_the_client_whatever_it_claims(claim in "[ -~]{0,60}") {
            prop_assert_eq!(client("203.0.113.7", &[&claim]), "203.0.113.7");
        }

        #[test]
        fn no_claim_panics(claim in "[ -~]{0,60}") {
            client("10.0.0.1", &[&claim]);
        }
    }
}
