//! Notes on limits that count callers in another way than their routes know them, and on passwords
//! in the clear.

use ahash::RandomState;
use hashbrown::HashSet;
use tidegate_config::{
    AuthMethodConfig, Config, ForwardAuthConfig, LimitConfig, PlanConfig, PlanQuota, RedirectHttps,
    RouteConfig,
};
use tidegate_identity::KeyPart;

use super::section::Section;

/// Notes limits by `token` on routes that know their consumers, limits by `consumer` on routes that
/// do not, and passwords in the clear. Each limit is noted once.
pub(super) fn add(root: &Section<'_>, config: &Config) {
    note_clear_passwords(root, config);
    note_evaded_blocks(root, config);
    note_shared_names(root, config);
    let mut noted = HashSet::<&str, RandomState>::default();
    for route in &config.routes {
        for name in route.limits.iter().chain(route.status.iter().flatten()) {
            let Some(limit) = config.limits.get(name) else { continue };
            let Some(note) = note(route, limit, config) else { continue };
            if noted.insert(name) {
                root.at("limits").entry(name).at("key").note(note.what, note.expected);
            }
        }
    }
}

/// Notes listeners on which passwords would cross a network in the clear.
fn note_clear_passwords(root: &Section<'_>, config: &Config) {
    let is_basic = |name: &String| config.auth.get(name).is_some_and(|own| own.basic.is_some());
    let Some(route) = config.routes.iter().find(|route| route.auth.iter().any(is_basic)) else {
        return;
    };
    for (index, listener) in config.listen.iter().enumerate() {
        let is_local = listener.address.0.ip().to_canonical().is_loopback();
        if listener.tls.is_none() && listener.redirect_https == RedirectHttps::Off && !is_local {
            let what = format!(
                "a listener without `tls`, on which passwords for the route `{}` are in the clear",
                route.name
            );
            root.at("listen").index(index).note_at_key(what, "`tls`, or an address on loopback");
        }
    }
}

/// Notes routes with `auth_optional` on which a plan blocks a limit: its consumers come in without
/// their credentials.
fn note_evaded_blocks(root: &Section<'_>, config: &Config) {
    for (index, route) in config.routes.iter().enumerate().filter(|(_, route)| route.auth_optional)
    {
        let blocks = |limit: &&String| {
            let is_blocked =
                |plan: &PlanConfig| plan.quotas.get(*limit) == Some(&PlanQuota::Blocked);
            config.plans.values().any(is_blocked)
        };
        if let Some(limit) = route.limits.iter().find(blocks) {
            let what = format!(
                "a plan blocks the limit `{limit}` of this route, and its consumers get in without their credentials"
            );
            let expected = "no `auth_optional`, or a plan that leaves a quota";
            root.at("routes").index(index).at("auth_optional").note_at_key(what, expected);
        }
    }
}

/// Notes methods whose consumers get their names from outside, and that share these names with
/// another method.
fn note_shared_names(root: &Section<'_>, config: &Config) {
    let is_used = |name: &&String| config.routes.iter().any(|route| route.auth.contains(name));
    let used: Vec<_> = config.auth.iter().filter(|(name, _)| is_used(name)).collect();
    for (index, (name, method)) in used.iter().enumerate() {
        if !has_outside_names(method) {
            continue;
        }
        // Of two such methods, the second one is noted.
        let others = used.iter().enumerate().filter(|(other, (_, own))| {
            *other != index && (*other < index || !has_outside_names(own))
        });
        let mut shared = others.filter(|(_, (_, own))| share_names(method, own));
        if let Some((_, (other, _))) = shared.next() {
            let what = format!(
                "`{name}` and `{other}` share the names of consumers: whom `{name}` calls `acme` is the consumer `acme` of `{other}`"
            );
            let expected = format!("a `prefix` such as `{name}:`, unless both mean the same");
            root.at("auth").entry(name).note_at_key(what, &expected);
        }
    }
}

/// True if something other than a record names a method's consumers.
fn has_outside_names(method: &AuthMethodConfig) -> bool {
    let names = |forward: &ForwardAuthConfig| forward.consumer.is_some();
    method.jwt.is_some()
        || method.certificate.is_some()
        || method.forward.as_ref().is_some_and(names)
}

/// True if the same name of two methods is one consumer, although two parties give it.
fn share_names(one: &AuthMethodConfig, other: &AuthMethodConfig) -> bool {
    let is_nameless = other.forward.as_ref().is_some_and(|own| own.consumer.is_none());
    let issuer = |own: &AuthMethodConfig| own.jwt.as_ref().map(|jwt| jwt.issuer.clone());
    let is_one_issuer = issuer(one).is_some() && issuer(one) == issuer(other);
    one.prefix == other.prefix && !is_nameless && !is_one_issuer
}

struct KeyNote {
    what: String,
    expected: &'static str,
}

fn note(route: &RouteConfig, limit: &LimitConfig, config: &Config) -> Option<KeyNote> {
    let has = |part: KeyPart| limit.key.contains(&part);
    let name = &route.name;
    if route.auth.is_empty() {
        let is_of_consumer =
            |part: &&KeyPart| matches!(part, KeyPart::Consumer | KeyPart::Plan | KeyPart::Claim(_));
        let part = limit.key.iter().find(is_of_consumer)?;
        let what = format!(
            "`{part}` is empty on the route `{name}`, which has no `auth`: it counts addresses"
        );
        return Some(KeyNote { what, expected: "`auth` of the route, or another key" });
    }
    let has_tokens =
        route.auth.iter().any(|name| config.auth.get(name).is_some_and(|own| own.jwt.is_some()));
    let claim = limit.key.iter().find(|part| matches!(part, KeyPart::Claim(_)));
    if let Some(part) = claim.filter(|_| !has_tokens) {
        let what = format!(
            "`{part}` is empty on the route `{name}`, which has no method `jwt`: it counts addresses"
        );
        return Some(KeyNote { what, expected: "a method `jwt` in `auth` of the route" });
    }
    has(KeyPart::Token).then(|| KeyNote {
        what: format!(
            "`token` on the route `{name}`, which knows its consumers: one with several keys has a quota for each"
        ),
        expected: "`consumer`",
    })
}

#[cfg(test)]
mod tests {
    use tidegate_config as config;

    use crate::snapshot::{SecretReading, Snapshot};

    fn messages(text: &str) -> Vec<String> {
        let first_line = |text: String| text.lines().next().unwrap_or_default().to_owned();
        match config::parse("t.yaml", text) {
            Err(error) => error.faults.iter().map(|fault| first_line(fault.to_string())).collect(),
            Ok(loaded) => match Snapshot::compile(&loaded, SecretReading::Unread) {
                Ok(snapshot) => {
                    snapshot.notes.iter().map(|note| first_line(note.to_string())).collect()
                }
                Err(faults) => faults.iter().map(|fault| first_line(fault.to_string())).collect(),
            },
        }
    }

    const GOOD: &str = "\
auth: {keys: {api_key: {}}}
consumers: {entries: [{name: acme, plan: gold}]}
plans: {gold: {}}
limits: {one: {quota: 5, window: 1m, key: [consumer]}}
upstreams: {app: {respond: {}}}
routes: [{name: a, upstream: app, auth: [keys], limits: [one]}]
";

    /// The messages on [`GOOD`] with this change.
    fn changed(from: &str, to: &str) -> Vec<String> {
        assert!(GOOD.contains(from), "{from}");
        messages(&GOOD.replace(from, to))
    }

    #[test]
    fn a_block_that_callers_evade_without_credentials_is_noted() {
        let optional = GOOD.replace("auth: [keys],", "auth: [keys], auth_optional: true,");
        let noted = |plans: &str| {
            let notes = messages(&optional.replace("gold: {}", plans));
            notes.iter().filter(|note| note.contains("get in without their credentials")).count()
        };
        assert_eq!(
            (noted("gold: {one: 0}"), noted("gold: {one: 5}"), noted("gold: {}")),
            (1, 0, 0)
        );
        assert!(!changed("gold: {}", "gold: {one: 0}").iter().any(|note| note.contains("get in")));
    }

    #[test]
    fn keys_that_do_not_fit_their_route_are_noted() {
        assert_eq!(messages(GOOD), [""; 0]);
        let token = changed("key: [consumer]", "key: [token, client_ip]");
        let expected = "t.yaml:4:38: `token` on the route `a`, which knows its consumers";
        assert!(token.iter().any(|note| note.starts_with(expected)), "{token:?}");
        let plan = changed("auth: [keys], limits", "limits");
        let expected = "t.yaml:4:38: `consumer` is empty on the route `a`, which has no `auth`";
        assert!(plan.iter().any(|note| note.starts_with(expected)), "{plan:?}");
        let query = changed("api_key: {}", "api_key: {from: ['query:key']}");
        assert!(query[0].starts_with("t.yaml:1:32: `query:key`: URLs with keys"), "{query:?}");
        let certificate = changed("api_key: {}", "certificate: {consumer: sha256}");
        assert!(certificate[0].contains("no listener asks clients"), "{certificate:?}");
        let stored = changed(
            "{entries: [{name: acme, plan: gold}]}",
            "{redis: true}\nstore: {redis: {shards: [{primary: 'redis://h'}], secret: env:S}}",
        );
        assert_eq!(stored, [""; 0]);
        let listeners = "listen: [{address: '127.0.0.1:80'}, {address: '0.0.0.0:80'}]\n";
        let clear = messages(&(GOOD.replace("api_key", "basic") + listeners));
        let expected =
            "t.yaml:7:37: a listener without `tls`, on which passwords for the route `a`";
        assert!(clear.iter().any(|note| note.starts_with(expected)), "{clear:?}");
        let jwt = "jwt: {issuer: i, audiences: [a], secret: 'env:S'}";
        let both = |more: &str| {
            let auth = format!("auth: {{keys: {{api_key: {{}}}}, login: {{{jwt}{more}}}}}");
            let text = GOOD.replace("auth: {keys: {api_key: {}}}", &auth);
            messages(&text.replace("auth: [keys]", "auth: [keys, login]"))
        };
        let expected = "t.yaml:1:29: `login` and `keys` share the names of consumers";
        assert!(both("").iter().any(|note| note.starts_with(expected)), "{:?}", both(""));
        let with_prefix = both(", prefix: 'sso:'");
        assert!(!with_prefix.iter().any(|note| note.contains("share")), "{with_prefix:?}");
        let unused = changed(
            "auth: {keys: {api_key: {}}}",
            "auth: {keys: {api_key: {}}, other: {api_key: {}}}",
        );
        assert!(unused[0].contains("no route authenticates by `other`"), "{unused:?}");
    }

    #[test]
    #[allow(clippy::too_many_lines, reason = "a table of faults")]
    fn faulty_authentication_is_refused() {
        let mut wrong = Vec::new();
        for (from, to, expected) in [
            ("api_key: {}", "apikey: {}", "1:15: unknown key `apikey`, expected `api_key`"),
            (
                "{api_key: {}}",
                "{}",
                "1:8: no kind, expected `api_key`, `basic`, `certificate`, `forward` or `jwt`",
            ),
            (
                "{api_key: {}}",
                "{api_key: {}, certificate: {consumer: san_uri}}",
                "1:28: both `api_key` and `certificate`, expected one of them",
            ),
            ("api_key: {}", "forward: {}", "1:15: missing key `to`"),
            (
                "api_key: {}",
                "forward: {to: 'http://me:pw@a/'}",
                "1:29: this value, expected http://host:port/path",
            ),
            (
                "api_key: {}",
                "forward: {to: 'http://a/', request_headers: [Host]}",
                "1:60: `Host`, expected a header that is not of one connection",
            ),
            (
                "api_key: {}",
                "forward: {to: 'http://a/', copy: [x-user, X-User]}",
                "1:57: `X-User` again, expected each header once",
            ),
            (
                "api_key: {}",
                "forward: {to: 'http://a/', request_headers: [], cache: 10s}",
                "1:63: `cache` without credentials in `request_headers`",
            ),
            (
                "api_key: {}",
                "forward: {to: 'http://a/', request_headers: [accept, User-Agent], cache: 10s}",
                "1:81: `cache` without credentials in `request_headers`",
            ),
            (
                "api_key: {}",
                "forward: {to: 'http://a/', plan: 'header:x-plan'}",
                "1:42: `plan` without `consumer`",
            ),
            (
                "api_key: {}",
                "forward: {to: 'http://a/', consumer: x-user}",
                "1:52: `x-user`, expected `header:x-user`: header:NAME",
            ),
            (
                "api_key: {}",
                "forward: {to: 'http://a/', tls_ca: a.pem}",
                "1:50: `tls_ca` without TLS, expected an https:// URL",
            ),
            (
                "plan: gold}",
                "password: secret}",
                "2:46: this hash of a password, expected a hash as `argon2` or `htpasswd -B`",
            ),
            (
                "api_key: {}",
                "api_key: {from: []}",
                "1:25: no place of a key, expected at least one",
            ),
            (
                "api_key: {}",
                "api_key: {from: [x-api-key]}",
                "1:32: `x-api-key`, expected `header:x-api-key`: header:NAME, query:NAME or cookie:NAME",
            ),
            (
                "api_key: {}",
                "api_key: {from: ['header:a', 'header:A']}",
                "1:44: duplicate place `header:a`, expected each place once",
            ),
            (
                "api_key: {}",
                "api_key: {}, max_failures: 30",
                "1:42: `30`, expected off, or a rate such as 30/1m",
            ),
            (
                "api_key: {}",
                "api_key: {}, prefix: 'k:'",
                "1:28: `prefix` of a method whose consumers have the names of their records",
            ),
            (
                "api_key: {}",
                "certificate: {consumer: sha256}, prefix: 'k: '",
                "1:56: `k: `, expected at most 64 bytes without white space at the ends",
            ),
            (
                "api_key: {}",
                "certificate: {consumer: cn}",
                "1:39: `cn`, expected san_uri, san_dns, subject_cn or sha256",
            ),
            (
                "auth: [keys]",
                "auth: [key]",
                "6:42: unknown way to authenticate `key`, expected `keys`",
            ),
            (
                "auth: [keys]",
                "auth: [keys, keys]",
                "6:48: duplicate `keys`, expected each way once",
            ),
            ("auth: [keys],", "auth_optional: true,", "6:35: `auth_optional` without `auth`"),
            ("auth: [keys],", "consumers: {plans: [gold]},", "6:35: `consumers` without `auth`"),
            (
                "auth: [keys],",
                "auth: [keys], consumers: {},",
                "6:49: no consumer may use this route, expected `plans` or `names`",
            ),
            (
                "auth: [keys],",
                "auth: [keys], consumers: {plans: [glod]},",
                "6:69: unknown plan `glod`, expected `gold`",
            ),
            (
                "auth: [keys],",
                "auth: [keys], auth_optional: true, consumers: {names: [acme]},",
                "6:70: `consumers` with `auth_optional`",
            ),
            ("plan: gold}", "plan: glod}", "2:42: unknown plan `glod`, expected `gold`"),
            (
                "{name: acme, plan: gold}",
                "{name: acme}, {name: acme}",
                "2:44: duplicate consumer `acme`, expected each name once (line 2 has it already)",
            ),
            ("name: acme, plan", "name: '', plan", "2:30: this name of a consumer"),
            (
                "plan: gold}",
                "keys: [{sha256: 0b6c}]}",
                "2:52: this value, expected the SHA-256 of the key",
            ),
            (
                "consumers: {entries: [{name: acme, plan: gold}]}\n",
                "",
                "1:8: API keys without `consumers`: every key would be refused",
            ),
            (
                "{entries: [{name: acme, plan: gold}]}",
                "{file: a.yaml, entries: [{name: acme}]}",
                "2:27: both `file` and `entries`, expected one of them",
            ),
            (
                "{entries: [{name: acme, plan: gold}]}",
                "{}",
                "2:1: no consumers, expected `file`, `entries`, or `redis: true`",
            ),
            (
                "{entries: [{name: acme, plan: gold}]}",
                "{redis: true, file: a.yaml}\nstore: {redis: {shards: [{primary: 'redis://h'}]}}",
                "2:26: `file` with `redis: true`, expected one of them",
            ),
            (
                "entries: [{name: acme, plan: gold}]",
                "entries: [{name: acme}], redis: true",
                "2:13: `entries` with `redis: true`, expected one of them",
            ),
            (
                "{entries: [{name: acme, plan: gold}]}",
                "{redis: true}",
                "2:13: consumers in Redis, though the configuration has no Redis, expected `store.redis`",
            ),
        ] {
            let messages = changed(from, to);
            let start = format!("t.yaml:{expected}");
            if !messages.iter().any(|text| text.starts_with(&start)) {
                wrong.push(format!("{to}: {messages:?}"));
            }
        }
        assert_eq!(wrong, [""; 0]);
    }

    #[test]
    fn a_limit_of_failures_is_like_any_other() {
        let compile = |text: &str| {
            Snapshot::compile(&config::parse("t.yaml", text).unwrap(), SecretReading::Unread)
                .unwrap()
        };
        let limit = |snapshot: &Snapshot| {
            let auth = snapshot.routes[0].auth.as_ref().unwrap();
            auth.methods()[0].max_failures.clone()
        };
        let own = limit(&compile(GOOD)).unwrap();
        assert_eq!(
            (own.name(), own.quota.limit, own.quota.window.as_ms()),
            ("keys~failures", 30, 60_000)
        );
        let changed = GOOD.replace("api_key: {}", "api_key: {}, max_failures: 5/1m");
        assert_eq!(limit(&compile(&changed)).unwrap().identity, own.identity, "the counter stays");
        let off = GOOD.replace("api_key: {}", "api_key: {}, max_failures: off");
        assert!(limit(&compile(&off)).is_none());
    }
}
