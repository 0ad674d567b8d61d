//! sslscan's findings about a listener with TLS.

use crate::{
    edge::{Edge, Listener, NAME},
    tools::{client, run},
};

/// The attributes of each element of this name, as text.
fn elements<'a>(xml: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    let tags = xml.split('<').filter_map(move |tag| tag.strip_prefix(name)?.strip_prefix(' '));
    tags.filter_map(|tag| Some(tag.split_once('>')?.0))
}

fn attribute<'a>(element: &'a str, name: &str) -> &'a str {
    let value = element.split_once(&format!("{name}=\"")).map(|(_, value)| value);
    value.and_then(|value| Some(value.split_once('"')?.0)).unwrap_or_default()
}

#[test]
fn sslscan_finds_no_weakness() {
    let edge = Edge::start(
        "
upstreams: {hello: {respond: {body: hello}}}
routes: [{name: all, match: {path: '/{*rest}'}, upstream: hello}]
",
    );
    let mut command = client("sslscan", "sslscan");
    command.args(["--xml=-", "--no-colour", &format!("--sni-name={NAME}")]);
    let target = format!("127.0.0.1:{}", edge.port(Listener::Tls));
    let xml = run(command.arg(target)).succeeded("sslscan").out;
    let enabled: Vec<_> = elements(&xml, "protocol")
        .filter(|protocol| attribute(protocol, "enabled") == "1")
        .map(|protocol| (attribute(protocol, "type"), attribute(protocol, "version")))
        .collect();
    assert_eq!(enabled, [("tls", "1.2"), ("tls", "1.3")], "{xml}");
    assert!(elements(&xml, "protocol").count() > 2, "no old protocol was tried: {xml}");
    let ciphers: Vec<_> = elements(&xml, "cipher").collect();
    assert!(ciphers.len() >= 5, "{xml}");
    for cipher in ciphers {
        assert!(matches!(attribute(cipher, "strength"), "strong" | "acceptable"), "{cipher}");
        let name = attribute(cipher, "cipher");
        let is_aead = ["GCM", "POLY1305"].iter().any(|mode| name.contains(mode));
        let is_forward_secret = name.starts_with("ECDHE-") || name.starts_with("TLS_");
        assert!(is_aead && is_forward_secret, "{name}");
    }
    let groups: Vec<_> = elements(&xml, "group").collect();
    assert!(!groups.is_empty(), "{xml}");
    for group in groups {
        assert!(attribute(group, "bits").parse::<u32>().unwrap() >= 112, "{group}");
    }
    assert!(elements(&xml, "heartbleed").count() > 0, "{xml}");
    for (name, key) in [("heartbleed", "vulnerable"), ("compression", "supported")] {
        for element in elements(&xml, name) {
            assert_eq!(attribute(element, key), "0", "{name}: {element}");
        }
    }
    let renegotiation = elements(&xml, "renegotiation").next().expect("an element");
    let insecure =
        attribute(renegotiation, "supported") == "1" && attribute(renegotiation, "secure") == "0";
    assert!(!insecure, "{renegotiation}");
}
