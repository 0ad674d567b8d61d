//! Keys of descriptors, and the subject that a limit reads from one.

use std::net::{IpAddr, Ipv4Addr};

use http::Method;
use tidegate_http1::Fields;
use tidegate_system::secret::KeySecret;

use super::{
    client::ClientAddress,
    consumer::Consumer,
    descriptor::DescriptorEntry,
    key::{DESCRIPTOR_NAME_TAG, DESCRIPTOR_TAG, KeyHasher, PartSink, Subject},
};

impl Subject<'_> {
    /// Calls `read` with the subject of a descriptor. It has no attribute of a request.
    pub fn with_descriptor<T>(
        entries: &[DescriptorEntry<'_>],
        consumer: Option<Consumer<'_>>,
        read: impl FnOnce(&Subject<'_>) -> T,
    ) -> T {
        read(&Subject {
            client: ClientAddress::of_peer(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            host: "",
            method: &Method::POST,
            route: "",
            path: "",
            param: &|_| None,
            query: None,
            headers: &Fields::new(),
            token_sources: &[],
            token_hash: None,
            ipv6_prefix: 128,
            consumer,
            body: None,
            descriptor: entries,
        })
    }
}

/// The key of values of descriptors, in their order. Equal to the key of a plan of the parts
/// `descriptor:NAME` whose entries have these values.
pub fn descriptor_values_key<'v>(values: impl Iterator<Item = &'v str>, secret: KeySecret) -> u128 {
    let mut hash = KeyHasher::new(secret);
    values.for_each(|value| hash.put(DESCRIPTOR_TAG, value.as_bytes()));
    hash.finish()
}

/// The key of a whole descriptor: of the names and the values of its entries, in their order.
pub fn descriptor_key(entries: &[DescriptorEntry<'_>], secret: KeySecret) -> u128 {
    let mut hash = KeyHasher::new(secret);
    for DescriptorEntry { name, value } in entries {
        hash.put(DESCRIPTOR_NAME_TAG, name.as_bytes());
        hash.put(DESCRIPTOR_TAG, value.as_bytes());
    }
    hash.finish()
}

#[cfg(test)]
mod tests {
    use super::super::{KeyInput, KeyPart, KeyPlan};
    use super::*;

    const SECRET: KeySecret = KeySecret(3, 4);

    fn entries<'r>(pairs: &[(&'r str, &'r str)]) -> Vec<DescriptorEntry<'r>> {
        pairs.iter().map(|&(name, value)| DescriptorEntry { name, value }).collect()
    }

    fn plan_key(names: &[&str], pairs: &[(&str, &str)], consumer: Option<&str>) -> u128 {
        let part = |name: &&str| match *name {
            "consumer" => KeyPart::Consumer,
            name => KeyPart::Descriptor(name.to_owned()),
        };
        let plan = KeyPlan(names.iter().map(part).collect());
        let consumer = consumer.map(|name| Consumer::new(name, None));
        Subject::with_descriptor(&entries(pairs), consumer, |subject| plan.key(subject, SECRET))
            .unwrap()
    }

    #[test]
    fn a_key_has_the_values_in_the_order_of_its_parts() {
        let one = plan_key(&["user", "path"], &[("user", "a"), ("path", "/x")], None);
        assert_eq!(one, plan_key(&["user", "path"], &[("path", "/x"), ("user", "a")], None));
        assert_ne!(one, plan_key(&["path", "user"], &[("user", "a"), ("path", "/x")], None));
        assert_ne!(one, plan_key(&["user", "path"], &[("user", "a/"), ("path", "x")], None));
        assert_eq!(one, descriptor_values_key(["a", "/x"].into_iter(), SECRET));
        let input =
            KeyInput { values: &["a", "/x"], client_ip: None, token_sources: &[], ipv6_prefix: 64 };
        let parts = ["user", "path"].map(|name| KeyPart::Descriptor(name.to_owned()));
        assert_eq!(KeyPlan(parts.to_vec()).key_of_input(&input, SECRET), Ok(one));
    }

    #[test]
    fn an_empty_value_is_a_value() {
        let empty = plan_key(&["user"], &[("user", "")], None);
        assert_eq!(empty, descriptor_values_key([""].into_iter(), SECRET));
        assert_ne!(empty, plan_key(&["user"], &[("user", "0.0.0.0")], None));
    }

    #[test]
    fn a_consumer_is_the_one_of_the_call() {
        let one = plan_key(&["consumer"], &[("user", "a")], Some("acme"));
        assert_eq!(one, plan_key(&["consumer"], &[("user", "b")], Some("acme")));
        assert_ne!(one, plan_key(&["consumer"], &[("user", "a")], Some("other")));
    }

    #[test]
    fn a_whole_descriptor_has_the_key_of_its_names_and_values() {
        let key = |pairs: &[(&str, &str)]| descriptor_key(&entries(pairs), SECRET);
        let one = key(&[("user", "a"), ("path", "/x")]);
        for other in [
            &[("user", "b"), ("path", "/x")][..],
            &[("users", "a"), ("path", "/x")],
            &[("path", "/x"), ("user", "a")],
            &[("user", "a")],
        ] {
            assert_ne!(one, key(other), "{other:?}");
        }
    }
}
