//! Notes on limits that a client can evade with a new key for each request: tokens are not verified
//! here, and clients choose other headers and parameters freely.

use ahash::RandomState;
use hashbrown::HashSet;
use tidegate_base::sensitive::is_sensitive_name;
use tidegate_config::{Client, Config, LimitConfig};
use tidegate_identity::{CredentialSource, KeyPart};

use super::section::Section;

/// The party that decides how many values a part of a key has.
#[derive(Clone, Copy, Eq, PartialEq)]
enum ValueOrigin {
    /// The gateway: for an address, or the requested method, host, route or path.
    Gateway,
    /// The upstream, which verifies the value.
    Upstream,
    /// The client alone.
    Client,
}

/// Notes limits that a client can evade by choosing another value, on routes where no other limit
/// counts the client. Each limit is noted once, for all routes together.
pub(super) fn add(root: &Section<'_>, config: &Config) {
    let mut noted = HashSet::<&str, RandomState>::default();
    let mut unbounded = Vec::new();
    for (index, route) in config.routes.iter().enumerate() {
        let named = route.limits.iter().filter_map(|name| config.limits.get_key_value(name));
        let enforced: Vec<_> = named.filter(|(_, limit)| limit.enforce).collect();
        let is_invented = |limit: &LimitConfig| !is_of_gateway(limit, config);
        if !enforced.iter().any(|(_, limit)| is_invented(limit))
            || enforced.iter().any(|(_, limit)| counts_each_caller(limit, config))
        {
            continue;
        }
        let escapable: Vec<_> = enforced
            .iter()
            .filter_map(|(name, limit)| Some((name, chosen_beside_others(limit, config)?)))
            .collect();
        if escapable.is_empty() {
            unbounded.push(index);
        }
        for (name, part) in escapable {
            if noted.insert(name) {
                let what = format!(
                    "the client chooses `{part}`, and the same caller has a quota for each value of it"
                );
                let identity = config.limits.get(name.as_str()).and_then(identity_part);
                let own = identity.map_or_else(|| "client_ip".to_owned(), KeyPart::to_string);
                let expected = format!(
                    "a key without it, or a limit with `key: [{own}]` beside it on each route"
                );
                root.at("limits").entry(name).at("key").note(what, &expected);
            }
        }
    }
    if let [first, others @ ..] = &unbounded[..] {
        note_unbounded(root, config, *first, others.len());
    }
}

/// Adds one note for the route with the index `first` and for `others` like it.
fn note_unbounded(root: &Section<'_>, config: &Config, first: usize, others: usize) {
    let route = &config.routes[first];
    let limits = route.limits.iter().filter_map(|name| config.limits.get(name));
    let mut parts: Vec<String> = limits
        .flat_map(|limit| &limit.key)
        .filter(|part| origin(part, &config.client) != ValueOrigin::Gateway)
        .map(|part| format!("`{part}`"))
        .collect();
    parts.sort_unstable();
    parts.dedup();
    let more = match others {
        0 => String::new(),
        1 => " (and of another route)".to_owned(),
        others => format!(" (and of {others} other routes)"),
    };
    let what = format!(
        "every limit of the route `{}`{more} counts by {}, which is not verified here: each invented value has \
         a quota of its own",
        route.name,
        parts.join(" or "),
    );
    let expected = "a limit with `key: [client_ip]` beside it";
    root.at("routes").index(first).at("limits").note(what, expected);
}

/// True if the limit counts each address or each verified caller separately, whatever else the
/// client sends. A limit that counts all callers together is not enough: one client can lock out
/// the others.
fn counts_each_caller(limit: &LimitConfig, config: &Config) -> bool {
    identity_part(limit).is_some() && is_of_gateway(limit, config)
}

/// The part of the key that identifies the caller, and that the gateway has from the connection or
/// has verified. A request without credentials, where a route admits it, is counted by its address.
fn identity_part(limit: &LimitConfig) -> Option<&KeyPart> {
    limit
        .key
        .iter()
        .find(|part| matches!(part, KeyPart::ClientIp | KeyPart::Consumer | KeyPart::Claim(_)))
}

fn is_of_gateway(limit: &LimitConfig, config: &Config) -> bool {
    limit.key.iter().all(|part| origin(part, &config.client) == ValueOrigin::Gateway)
}

/// A part of the key that the client chooses freely, if another part also identifies the caller.
fn chosen_beside_others<'c>(limit: &'c LimitConfig, config: &Config) -> Option<&'c KeyPart> {
    let sent = limit.key.iter().filter(|part| origin(part, &config.client) != ValueOrigin::Gateway);
    let is_only = identity_part(limit).is_none() && sent.count() < 2;
    let mut parts = limit.key.iter().rev().filter(|_| !is_only);
    parts.find(|part| origin(part, &config.client) == ValueOrigin::Client)
}

fn origin(part: &KeyPart, client: &Client) -> ValueOrigin {
    let verified_if =
        |is_verified| if is_verified { ValueOrigin::Upstream } else { ValueOrigin::Client };
    match part {
        KeyPart::Token | KeyPart::Cookie(_) => ValueOrigin::Upstream,
        KeyPart::Header(name) if name == "host" => ValueOrigin::Gateway,
        KeyPart::Header(name) => {
            let is_token = client.token.contains(&CredentialSource::Header(name.clone()));
            verified_if(is_token || is_sensitive_name(name.as_str()))
        }
        KeyPart::Query(name) => verified_if(is_sensitive_name(name)),
        KeyPart::Json(_) => ValueOrigin::Client,
        KeyPart::ClientIp
        | KeyPart::Consumer
        | KeyPart::Plan
        | KeyPart::Claim(_)
        | KeyPart::Host
        | KeyPart::Method
        | KeyPart::Route
        | KeyPart::Path
        | KeyPart::PathParam(_)
        | KeyPart::Descriptor(_) => ValueOrigin::Gateway,
    }
}

#[cfg(test)]
mod tests {
    use tidegate_config as config;

    use crate::snapshot::{SecretReading, Snapshot};

    /// The notes on a configuration with these limits, and a route for each list of their names.
    fn notes(limits: &str, routes: &[&str]) -> Vec<String> {
        let routes: Vec<String> = (0..)
            .zip(routes)
            .map(|(n, limits)| {
                format!("{{name: r{n}, match: {{path: /{n}}}, upstream: app, limits: [{limits}]}}")
            })
            .collect();
        let text = format!(
            "limits: {{{limits}}}\nupstreams: {{app: {{targets: [http://h:1]}}}}\nroutes: [{}]\n",
            routes.join(", ")
        );
        let loaded = config::parse("t.yaml", &text).unwrap_or_else(|error| panic!("{error}"));
        let snapshot = Snapshot::compile(&loaded, SecretReading::Unread)
            .unwrap_or_else(|faults| panic!("{faults}"));
        snapshot.notes.iter().map(ToString::to_string).collect()
    }

    fn limit(name: &str, key: &str) -> String {
        format!("{name}: {{quota: 5, window: 10s, key: [{key}]}}")
    }

    #[test]
    fn limits_by_what_a_client_invents_are_noted_once() {
        let (token, address) = (limit("t", "token, route"), limit("a", "client_ip, method"));
        let noted = notes(&token, &["t", "t", "t"]);
        assert_eq!(noted.len(), 1, "{noted:?}");
        for part in ["t.yaml:3:", "`r0` (and of 2 other routes)", "`token`", "`key: [client_ip]`"] {
            assert!(noted[0].contains(part), "{part}: {noted:?}");
        }
        assert_eq!(notes(&format!("{token}, {address}"), &["t, a", "t, a"]), [] as [&str; 0]);
        let noted = notes(&format!("{token}, {address}"), &["t, a", "t"]);
        assert!(noted.len() == 1 && noted[0].contains("`r1` counts"), "{noted:?}");
        let shared = format!("{token}, {}", limit("all", ""));
        assert_eq!(notes(&shared, &["t, all"]).len(), 1, "one client exhausts it");
        let dry = format!("{token}, a: {{quota: 5, window: 10s, enforce: false}}");
        assert_eq!(notes(&dry, &["t, a"]).len(), 1, "a dry run refuses no request");
        for key in ["client_ip", "", "route", "'path:id'", "host"] {
            let route = if key.contains("id") { "" } else { "l" };
            let noted = notes(&limit("l", key), &[route]);
            assert!(!noted.iter().any(|note| note.contains("invented value")), "{key}: {noted:?}");
        }
        for key in ["token", "'cookie:c'", "'header:x-api-key'", "'header:x-tenant'"] {
            let noted = notes(&limit("l", key), &["l"]);
            assert!(noted.len() == 1 && noted[0].contains("invented"), "{key}: {noted:?}");
        }
    }

    #[test]
    fn a_verified_caller_bounds_what_the_client_chooses() {
        let chosen = |limits: &str, route: &str| {
            // The route has no `auth`, which is noted for `consumer`.
            let noted = notes(limits, &[route]).into_iter();
            noted.filter(|note| !note.contains("no `auth`")).collect::<Vec<_>>()
        };
        let by_model = limit("m", "consumer, 'json:model'");
        for own in ["consumer", "'claim:sub'", "client_ip", "consumer, route"] {
            let both = format!("{by_model}, {}", limit("c", own));
            assert_eq!(chosen(&both, "m, c"), [] as [&str; 0], "{own}");
        }
        let noted = chosen(&by_model, "m");
        assert_eq!(noted.len(), 1, "{noted:?}");
        for part in ["the client chooses `json:model`", "a limit with `key: [consumer]` beside"] {
            assert!(noted[0].contains(part), "{part}: {noted:?}");
        }
        let shared = format!("{by_model}, {}", limit("all", "plan"));
        assert_eq!(chosen(&shared, "m, all").len(), 1, "one client exhausts it");
    }

    #[test]
    fn a_part_that_the_client_chooses_beside_the_caller_is_noted() {
        for (key, part) in [
            ("'header:x-tenant', 'query:lang'", "`query:lang`"),
            ("token, 'query:lang'", "`query:lang`"),
            ("client_ip, 'header:x-plan', route", "`header:x-plan`"),
        ] {
            let noted = notes(&limit("l", key), &["l", "l"]);
            assert!(noted.len() == 1 && noted[0].contains(part), "{key}: {noted:?}");
            let both = format!("{}, {}", limit("l", key), limit("a", "client_ip"));
            assert_eq!(notes(&both, &["l, a"]), [] as [&str; 0]);
        }
        let noted = notes(&limit("l", "token, 'header:x-api-key'"), &["l"]);
        assert!(noted.len() == 1 && noted[0].contains("invented"), "{noted:?}");
    }
}
