//! [`AccessRules`]: the networks whose clients may use a route.

use ipnet::IpNet;
use tidegate_config as config;
use tidegate_identity::ClientAddress;

use super::section::Section;

/// The networks whose clients may use a route: its `allow` and `deny`.
#[derive(Debug)]
pub struct AccessRules {
    /// `None` allows all.
    allow: Option<Box<[IpNet]>>,
    deny: Box<[IpNet]>,
}

impl AccessRules {
    /// True if `client` may use the route: no network of `deny` contains it and, with `allow`, one
    /// of its networks does. An unverified address is refused, because a client can make a proxy
    /// drop its address.
    pub fn admits(&self, client: ClientAddress) -> bool {
        let contains = |networks: &[IpNet]| {
            let address = client.ip.to_canonical();
            networks.iter().any(|network| network.contains(&address))
        };
        client.is_verified() && !contains(&self.deny) && self.allow.as_deref().is_none_or(contains)
    }
}

/// Compiles a route's `allow` and `deny`; `None` if it has neither.
pub(super) fn compile(section: &Section<'_>, route: &config::RouteConfig) -> Option<AccessRules> {
    let is_empty = route.allow.as_ref().is_some_and(Vec::is_empty);
    let expected = "at least one; without `allow`, all clients may use the route";
    section.at("allow").ensure(!is_empty, "no network", expected);
    let deny: Box<[IpNet]> = route.deny.iter().map(|network| network.0).collect();
    let allow = route.allow.as_ref();
    let allow: Option<Box<[IpNet]>> =
        allow.map(|all| all.iter().map(|network| network.0).collect());
    note_duplicates(&section.at("deny"), &deny);
    if let Some(allow) = &allow {
        note_duplicates(&section.at("allow"), allow);
        note_denied(&section.at("allow"), allow, &deny);
    }
    (allow.is_some() || !deny.is_empty()).then_some(AccessRules { allow, deny })
}

/// Notes networks that are within an earlier entry of the list.
fn note_duplicates(section: &Section<'_>, networks: &[IpNet]) {
    for (index, network) in networks.iter().enumerate() {
        if let Some(first) = networks[..index].iter().find(|first| first.contains(network)) {
            let what = format!("`{network}` is within `{first}`, which is listed before it");
            section.index(index).note(what, "each network once");
        }
    }
}

/// Notes allowed networks that `deny` covers entirely.
fn note_denied(section: &Section<'_>, allow: &[IpNet], deny: &[IpNet]) {
    for (index, network) in allow.iter().enumerate() {
        if let Some(denied) = deny.iter().find(|denied| denied.contains(network)) {
            let what = format!("`{network}` is allowed, but `deny` has `{denied}`, which wins");
            let expected = "a network that is not denied as a whole";
            section.index(index).note(what, expected);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_http1::Fields;
    use tidegate_identity::client::{AddressSource, TrustedProxies};

    use super::*;

    fn rules(allow: Option<&[&str]>, deny: &[&str]) -> AccessRules {
        let network = |text: &&str| config::parse_network(text).unwrap();
        AccessRules {
            allow: allow.map(|all| all.iter().map(network).collect()),
            deny: deny.iter().map(network).collect(),
        }
    }

    fn admits(rules: &AccessRules, address: &str) -> bool {
        // As for a connection, IPv4-mapped addresses become IPv4.
        let client = TrustedProxies::default().client(address.parse().unwrap(), &Fields::default());
        rules.admits(client)
    }

    #[test]
    fn deny_wins_over_allow() {
        let both = rules(Some(&["10.0.0.0/8", "2001:db8::/32"]), &["10.1.0.0/16"]);
        for (address, expected) in [
            ("10.0.0.1", true),
            ("10.1.0.1", false),
            ("10.2.0.1", true),
            ("::ffff:10.0.0.1", true),
            ("::ffff:10.1.0.1", false),
            ("11.0.0.1", false),
            ("2001:db8::1", true),
            ("2001:db9::1", false),
            // IPv4-compatible, not IPv4-mapped.
            ("::10.0.0.1", false),
        ] {
            assert_eq!(admits(&both, address), expected, "{address}");
        }
        let only_deny = rules(None, &["10.1.0.0/16"]);
        assert!(admits(&only_deny, "192.0.2.1") && !admits(&only_deny, "10.1.2.3"));
    }

    #[test]
    fn mapped_networks_are_those_of_ipv4() {
        let mapped = rules(Some(&["::ffff:10.0.0.0/104"]), &["::ffff:10.1.0.0/112"]);
        for (address, expected) in [("10.0.0.1", true), ("10.1.0.1", false), ("11.0.0.1", false)] {
            assert_eq!(admits(&mapped, address), expected, "{address}");
        }
        // This network contains all mapped addresses, and others.
        let wide = rules(Some(&["::/0"]), &[]);
        assert!(admits(&wide, "2001:db8::1") && !admits(&wide, "10.0.0.1"));
    }

    #[test]
    fn clients_that_are_not_known_are_refused() {
        let client =
            ClientAddress { ip: "10.0.0.1".parse().unwrap(), source: AddressSource::Unverified };
        assert!(!rules(Some(&["10.0.0.0/8"]), &[]).admits(client));
        assert!(!rules(None, &["192.0.2.0/24"]).admits(client));
    }

    proptest! {
        #[test]
        fn a_denied_client_is_never_admitted(
            address: std::net::Ipv4Addr,
            (allow, deny) in (0..=32_u8, 0..=32_u8),
            mapped: bool,
        ) {
            let network = |prefix| IpNet::new(address.into(), prefix).unwrap().trunc();
            let rules = AccessRules {
                allow: Some([network(allow)].into()),
                deny: [network(deny)].into(),
            };
            let ip = if mapped { address.to_ipv6_mapped().into() } else { address.into() };
            prop_assert!(!rules.admits(ClientAddress::of_peer(ip)));
            let rules = AccessRules { deny: [].into(), ..rules };
            prop_assert!(rules.admits(ClientAddress::of_peer(ip)));
        }
    }
}
