//! `rate_limit_service`: its faults.

use tidegate_config as config;

use super::super::{SecretReading, Snapshot};

/// The faults of a configuration with this service, limit and route.
fn faults(service: &str, limit: &str, route: &str) -> String {
    let text = format!(
        "rate_limit_service: {{address: 127.0.0.1:8081, {service}}}
limits: {{own: {{quota: 5, window: 1m, {limit}}}, ip: 5/1m, user: {{quota: 5, window: 1m, key: [descriptor:user]}}}}
upstreams: {{app: {{respond: {{}}}}}}
routes: [{{name: a, upstream: app, {route}}}]
"
    );
    let loaded = match config::parse("t.yaml", &text) {
        Ok(loaded) => loaded,
        Err(error) => return error.to_string(),
    };
    match Snapshot::compile(&loaded, SecretReading::Unread) {
        Ok(_) => String::new(),
        Err(faults) => faults.to_string(),
    }
}

const KEY: &str = "key: [descriptor:user]";
const OWN: &str = "domains: {edge: {limits: [own]}}";

#[test]
fn a_domain_has_limits_that_descriptors_can_be_charged_to() {
    assert_eq!(faults(OWN, KEY, "limits: [ip]"), "");
    for (service, limit, expected) in [
        ("domains: {}", KEY, "1:47: no domain, expected at least one"),
        ("domains: {'a b': {limits: [own]}}", KEY, "`a b`, expected a domain of 1 to 128 letters"),
        ("domains: {edge: {}}", KEY, "no limit, expected at least one, or `file`"),
        ("domains: {edge: {limits: [onw]}}", KEY, "unknown limit `onw`, expected `own`"),
        ("domains: {edge: {limits: [own, own]}}", KEY, "duplicate limit `own`"),
        (OWN, "key: [client_ip]", "`own` reads `client_ip`, which a descriptor does not have"),
        (OWN, "key: [descriptor:user, path]", "`own` reads `path`, which a descriptor"),
        (OWN, "key: [consumer]", "expected `consumer: descriptor:NAME` in the domain"),
        (OWN, "key: []", "`own` has no key, so that it applies to no descriptor"),
        (
            OWN,
            "key: [descriptor:user], tiers: [{match: {part: host, values: [a]}, quota: 9}]",
            "`own` reads `host`",
        ),
        (
            OWN,
            "key: [descriptor:user], algorithm: leaky_bucket",
            "`own` is a `leaky_bucket`, whose requests wait",
        ),
        (OWN, "key: [descriptor:user], cost: header:x-cost", "`own` reads its cost from a message"),
        (OWN, "key: [descriptor:user], charge_on: [401]", "`own` refunds by statuses"),
        (
            "domains: {edge: {limits: [own], consumer: client_ip}}",
            KEY,
            "`client_ip`, expected the entry with its name",
        ),
        (
            "domains: {edge: {limits: [own], file: a.yaml}}",
            KEY,
            "`file` with `limits` or `consumer`",
        ),
        ("domains: {edge: {file: /no/such/file}}", KEY, "/no/such/file"),
    ] {
        let found = faults(service, limit, "limits: [ip]");
        assert!(found.contains(expected), "{service} {limit}: {found}");
    }
    assert_eq!(
        faults(
            "domains: {edge: {limits: [own], consumer: 'descriptor:user'}}",
            "key: [consumer, plan]",
            ""
        ),
        ""
    );
}

#[test]
fn a_request_has_no_descriptor() {
    let fault = faults(OWN, KEY, "limits: [user]");
    assert!(
        fault.contains("4:44: `user` reads `descriptor:user`, which a request does not have"),
        "{fault}"
    );
}

#[test]
fn the_service_has_an_address_of_its_own() {
    let text = |address: &str| {
        format!(
            "listen: [{{address: 127.0.0.1:8081}}]
admin: {{address: 127.0.0.1:8082}}
rate_limit_service: {{address: '{address}', domains: {{edge: {{limits: [user]}}}}}}
limits: {{user: {{quota: 5, window: 1m, key: [descriptor:user]}}}}
upstreams: {{app: {{respond: {{}}}}}}
routes: [{{name: a, upstream: app}}]
"
        )
    };
    let compile = |address: &str| {
        let loaded = config::parse("t.yaml", &text(address)).unwrap();
        Snapshot::compile(&loaded, SecretReading::Unread)
            .map(drop)
            .map_err(|faults| faults.to_string())
    };
    assert_eq!(compile("127.0.0.1:8083"), Ok(()));
    let fault = compile("127.0.0.1:8081").unwrap_err();
    assert!(fault.contains("3:31: `127.0.0.1:8081`, which `listen` also has"), "{fault}");
    let fault = compile("127.0.0.1:8082").unwrap_err();
    assert!(fault.contains("`127.0.0.1:8082`, which `admin` also has"), "{fault}");
}

#[test]
fn a_listener_for_every_host_is_noted() {
    let text = |address: &str| {
        format!(
            "
rate_limit_service: {{address: '{address}', domains: {{edge: {{limits: [user]}}}}}}
limits: {{user: {{quota: 5, window: 1m, key: [descriptor:user]}}}}
upstreams: {{app: {{respond: {{}}}}}}
routes: [{{name: a, upstream: app}}]
"
        )
    };
    let notes = |address: &str| {
        let loaded = config::parse("t.yaml", &text(address)).unwrap();
        let notes = Snapshot::compile(&loaded, SecretReading::Unread).unwrap().notes;
        notes.iter().filter(|note| note.to_string().contains("every host")).count()
    };
    assert_eq!(notes("127.0.0.1:8083"), 0);
    assert_eq!(notes("[::1]:8083"), 0);
    assert_eq!(notes("0.0.0.0:8083"), 1);
}

#[test]
fn routes_may_be_missing_only_beside_the_service() {
    let compile = |text: &str| {
        let loaded = config::parse("t.yaml", text).unwrap();
        Snapshot::compile(&loaded, SecretReading::Unread)
            .map(drop)
            .map_err(|faults| faults.to_string())
    };
    let service = "
rate_limit_service: {address: '127.0.0.1:8083', domains: {edge: {limits: [user]}}}
limits: {user: {quota: 5, window: 1m, key: [descriptor:user]}}
";
    assert_eq!(compile(service), Ok(()));
    let routes = "upstreams: {a: {respond: {}}}\nroutes: [{name: all, upstream: a}]\n";
    let ports = |text: &str| -> Vec<u16> {
        let config = config::parse("t.yaml", text).unwrap().config;
        config.listen.iter().map(|listener| listener.address.0.port()).collect()
    };
    assert_eq!(ports(service), [0; 0], "no port that nothing serves");
    assert_eq!(ports(&format!("{service}listen: [{{address: ':8080'}}]\n")), [8080]);
    assert_eq!(ports(&format!("{service}{routes}")), [8080]);
    assert_eq!(compile(&format!("{service}listen: []\n")), Ok(()));
    let fault = compile(&format!("{service}{routes}listen: []\n")).unwrap_err();
    assert!(fault.contains("no listener, expected at least one address"), "{fault}");
    for text in ["", "# nothing\n", "limits: {}\n", "routes: []\n"] {
        let fault = compile(text).unwrap_err();
        let expected = "t.yaml:1:1: no route, expected at least one, or `rate_limit_service`";
        assert!(fault.starts_with(expected) || text.starts_with("routes"), "{fault}");
        assert!(fault.contains("no route"), "{fault}");
    }
}
