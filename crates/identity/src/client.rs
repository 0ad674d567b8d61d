//! The client's address behind trusted proxies.
//!
//! `X-Forwarded-For` is read from right to left: trusted proxies append on the right, and entries
//! further left are the client's claims. The first address that is not a trusted proxy is the
//! client. An entry that is not an address ends the search. So does an empty entry: a proxy appends
//! it for a client without address.
//!
//! If only trusted proxies are listed, or the header is missing, the client is unknown: a proxy has
//! sent its own request, or a client made the proxy drop the header
//! (`Connection: X-Forwarded-For`). The connection's address is then counted, but it is unverified:
//! tiers that match networks do not apply to it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use tidegate_http1::Fields;

const X_FORWARDED_FOR: &str = "x-forwarded-for";

/// The maximum number of entries of `X-Forwarded-For` that are read.
const MAX_HOPS: usize = 64;

/// The longest entry, in bytes: `[`, IPv6 with an IPv4 tail, `%` and a zone, `]:` and a port.
const MAX_ENTRY: usize = 72;

/// A client's address and its source.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ClientAddress {
    /// The address.
    pub ip: IpAddr,
    /// Where the address comes from.
    pub source: AddressSource,
}

/// Where a client's address comes from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AddressSource {
    /// The connection's peer, which is not a trusted proxy.
    Peer,
    /// `X-Forwarded-For` of a trusted proxy.
    Forwarded,
    /// The connection's peer, a trusted proxy that reports no client: the client is unknown.
    Unverified,
}

impl AddressSource {
    /// The name in results of `explain`.
    pub fn label(self) -> &'static str {
        match self {
            Self::Peer => "peer",
            Self::Forwarded => "forwarded",
            Self::Unverified => "unverified",
        }
    }
}

impl ClientAddress {
    /// The address of a client that connects directly.
    pub fn of_peer(ip: IpAddr) -> Self {
        Self { ip, source: AddressSource::Peer }
    }

    /// True if the address is the client's own, so that address-based rules may apply.
    pub fn is_verified(self) -> bool {
        self.source != AddressSource::Unverified
    }
}

/// The networks of the proxies whose `X-Forwarded-For` is trusted.
#[derive(Clone, Debug, Default)]
pub struct TrustedProxies(Vec<IpNet>);

impl TrustedProxies {
    /// Trusts these networks.
    pub fn new(networks: Vec<IpNet>) -> Self {
        Self(networks)
    }

    /// True if `address` is a trusted proxy.
    #[inline]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&address))
    }

    /// The client of a request that `peer` sent.
    pub fn client(&self, peer: IpAddr, headers: &Fields) -> ClientAddress {
        let peer_client = self.client_from_address(canonical_address(peer));
        if peer_client.is_verified() {
            return peer_client;
        }
        let lines = headers.get_all(X_FORWARDED_FOR).rev();
        let entries = lines.flat_map(|line| line.rsplit(|byte| *byte == b','));
        // An empty entry ends the search, as an unreadable one does: a proxy that does not know its
        // peer may write one, and what stands before it then comes from anyone.
        let mut addresses = entries.map_while(parse_address).take(MAX_HOPS);
        match addresses.find(|address| !self.contains(*address)) {
            Some(ip) => ClientAddress { ip, source: AddressSource::Forwarded },
            None => peer_client,
        }
    }

    /// The client if only its address is available, as in a log line. A verified client is never a
    /// trusted proxy, so the address of a trusted proxy is unverified.
    pub fn client_from_address(&self, ip: IpAddr) -> ClientAddress {
        let source =
            if self.contains(ip) { AddressSource::Unverified } else { AddressSource::Peer };
        ClientAddress { ip, source }
    }
}

/// Maps an IPv4-mapped IPv6 address to the IPv4 address, so one client has one address.
pub fn canonical_address(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// The counted part of an address: all of IPv4, the first `prefix` bits of IPv6.
pub fn mask_address(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => {
            let host_bits = 128 - u32::from(prefix.min(128));
            let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
        }
    }
}

/// Parses `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]` and `[2001:db8::1]:80`, with
/// white space around it. The zone of an IPv6 address (`fe80::1%eth0`) is dropped: it has only a
/// local meaning. Leading zeros, quotes and names are rejected.
pub(super) fn parse_address(entry: &[u8]) -> Option<IpAddr> {
    let entry = entry.trim_ascii();
    let text = std::str::from_utf8(entry).ok().filter(|text| text.len() <= MAX_ENTRY)?;
    let address = if let Some(rest) = text.strip_prefix('[') {
        let (inside, after) = rest.split_once(']')?;
        if !after.is_empty() && !after.strip_prefix(':').is_some_and(is_port) {
            return None;
        }
        IpAddr::V6(parse_ipv6(inside)?)
    } else {
        match text.split_once(':') {
            None => IpAddr::V4(text.parse::<Ipv4Addr>().ok()?),
            Some((host, port)) if is_port(port) && !host.is_empty() => {
                IpAddr::V4(host.parse::<Ipv4Addr>().ok()?)
            }
            Some(_) => IpAddr::V6(parse_ipv6(text)?),
        }
    };
    Some(canonical_address(address))
}

fn parse_ipv6(text: &str) -> Option<Ipv6Addr> {
    let (address, zone) = text.split_once('%').unwrap_or((text, "0"));
    let is_zone_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let has_valid_zone = !zone.is_empty() && zone.bytes().all(is_zone_byte);
    address.parse().ok().filter(|_| has_valid_zone)
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::AddressSource::{Forwarded, Peer, Unverified};
    use super::*;
    use proptest::prelude::*;

    fn find(peer: &str, lines: &[&[u8]]) -> ClientAddress {
        let trusted =
            TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()]);
        let mut headers = Fields::default();
        for line in lines {
            headers.push(X_FORWARDED_FOR, line);
        }
        trusted.client(peer.parse().unwrap(), &headers)
    }

    #[test]
    fn forwarded_for_is_read_from_the_right_past_trusted_proxies() {
        let client = |peer: &str, forwarded: &[&str]| {
            let lines: Vec<&[u8]> = forwarded.iter().map(|line| line.as_bytes()).collect();
            let found = find(peer, &lines);
            (found.ip.to_string(), found.source)
        };
        for (peer, forwarded, wanted, source) in [
            ("192.0.2.9", &["198.51.100.1"][..], "192.0.2.9", Peer),
            ("192.0.2.9", &["10.0.0.1"], "192.0.2.9", Peer),
            ("10.0.0.1", &[], "10.0.0.1", Unverified),
            ("10.0.0.1", &["198.51.100.1"], "198.51.100.1", Forwarded),
            ("10.0.0.1", &["6.6.6.6, 198.51.100.1"], "198.51.100.1", Forwarded),
            ("10.0.0.1", &["6.6.6.6, 198.51.100.1, 10.2.2.2"], "198.51.100.1", Forwarded),
            ("10.0.0.1", &["6.6.6.6", "198.51.100.1", "10.2.2.2"], "198.51.100.1", Forwarded),
            ("10.0.0.1", &["10.3.3.3, 10.2.2.2"], "10.0.0.1", Unverified),
            ("10.0.0.1", &["6.6.6.6, nonsense, 10.2.2.2"], "10.0.0.1", Unverified),
            ("10.0.0.1", &["6.6.6.6,, 10.2.2.2"], "10.0.0.1", Unverified),
            ("10.0.0.1", &["6.6.6.6,"], "10.0.0.1", Unverified),
            ("10.0.0.1", &["6.6.6.6", ""], "10.0.0.1", Unverified),
            ("10.0.0.1", &["nonsense"], "10.0.0.1", Unverified),
            ("10.0.0.1", &["nonsense, 198.51.100.1"], "198.51.100.1", Forwarded),
            ("::ffff:10.0.0.1", &["[2001:db8::1]:443"], "2001:db8::1", Forwarded),
            ("10.0.0.1", &["6.6.6.6, ::ffff:10.1.1.1"], "6.6.6.6", Forwarded),
            ("::1", &["198.51.100.1:8080"], "198.51.100.1", Forwarded),
        ] {
            assert_eq!(
                client(peer, forwarded),
                (wanted.to_owned(), source),
                "{peer} {forwarded:?}"
            );
        }
    }

    #[test]
    fn addresses_are_parsed_as_proxies_write_them() {
        for (entry, wanted) in [
            ("192.0.2.1", Some("192.0.2.1")),
            ("\t 192.0.2.1 \t", Some("192.0.2.1")),
            ("192.0.2.1:4711", Some("192.0.2.1")),
            ("2001:DB8::1", Some("2001:db8::1")),
            ("[2001:db8::1]", Some("2001:db8::1")),
            ("[2001:db8::1]:80", Some("2001:db8::1")),
            ("::ffff:192.0.2.1", Some("192.0.2.1")),
            ("[::ffff:192.0.2.1]:80", Some("192.0.2.1")),
            ("fe80::1%eth0", Some("fe80::1")),
            ("[fe80::1%25]:80", Some("fe80::1")),
            ("::", Some("::")),
            ("1::", Some("1::")),
            ("", None),
            ("unknown", None),
            ("_hidden", None),
            ("\"192.0.2.1\"", None),
            ("010.0.0.1", None),
            ("0x7f.0.0.1", None),
            ("127.1", None),
            ("2130706433", None),
            ("192.0.2.1:", None),
            ("192.0.2.1:65536", None),
            ("192.0.2.1:+80", None),
            (":80", None),
            ("[192.0.2.1]", None),
            ("[2001:db8::1", None),
            ("[2001:db8::1]80", None),
            ("[2001:db8::1]:", None),
            ("fe80::1%", None),
            ("fe80::1%a b", None),
            ("192.0.2.1%eth0", None),
            ("192.0.2.1 192.0.2.2", None),
        ] {
            let found = parse_address(entry.as_bytes()).map(|address| address.to_string());
            assert_eq!(found.as_deref(), wanted, "{entry}");
        }
    }

    #[test]
    fn number_of_hops_is_bounded() {
        let chain = |hops: usize| format!("6.6.6.6{}", ", 10.2.2.2".repeat(hops));
        assert!(find("10.0.0.1", &[chain(MAX_HOPS - 1).as_bytes()]).is_verified());
        assert!(!find("10.0.0.1", &[chain(MAX_HOPS).as_bytes()]).is_verified());
        assert!(!find("10.0.0.1", &[chain(10_000).as_bytes()]).is_verified());
    }

    #[test]
    fn address_of_a_trusted_proxy_is_unverified() {
        let trusted = TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap()]);
        assert!(!trusted.client_from_address("10.0.0.1".parse().unwrap()).is_verified());
        assert!(trusted.client_from_address("192.0.2.1".parse().unwrap()).is_verified());
    }

    #[test]
    fn ipv6_is_masked_to_its_prefix() {
        let address = "2001:db8:1:2:3:4:5:6".parse().unwrap();
        assert_eq!(mask_address(address, 64).to_string(), "2001:db8:1:2::");
        assert_eq!(mask_address(address, 128), address);
        assert_eq!(mask_address(address, 0).to_string(), "::");
        assert_eq!(mask_address("192.0.2.1".parse().unwrap(), 64).to_string(), "192.0.2.1");
    }

    /// The bytes of a header value as a client may send them.
    fn line() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![
            4 => prop::sample::select(b"0123456789.,:[]%a \t".to_vec()),
            1 => (0x20..=0xff_u8).prop_filter("no DEL", |byte| *byte != 0x7f),
        ];
        prop::collection::vec(byte, 0..60)
    }

    proptest! {
        #[test]
        fn claims_of_an_untrusted_peer_are_ignored(claims in prop::collection::vec(line(), 0..3)) {
            let claims: Vec<&[u8]> = claims.iter().map(Vec::as_slice).collect();
            let peer = "203.0.113.7";
            prop_assert_eq!(find(peer, &claims), ClientAddress::of_peer(peer.parse().unwrap()));
        }

        #[test]
        fn claims_left_of_the_proxies_entries_are_ignored(
            claims in prop::collection::vec(line(), 1..4),
            client: std::net::Ipv4Addr,
            proxies in prop::collection::vec(any::<u16>(), 0..5),
            separate_lines: bool,
        ) {
            prop_assume!(client.octets()[0] != 10);
            let mut appended = vec![client.to_string()];
            appended.extend(proxies.iter().map(|host| format!("10.0.{}.{}", host >> 8, host & 255)));
            let mut lines = claims.clone();
            if separate_lines {
                // Each proxy adds a line of its own.
                lines.extend(appended.iter().map(|entry| entry.clone().into_bytes()));
            } else if let Some(last) = lines.last_mut() {
                last.extend(format!(", {}", appended.join(", ")).into_bytes());
            }
            let lines: Vec<&[u8]> = lines.iter().map(Vec::as_slice).collect();
            let wanted = ClientAddress { ip: client.into(), source: AddressSource::Forwarded };
            prop_assert_eq!(find("10.0.0.1", &lines), wanted);
        }
    }
}
