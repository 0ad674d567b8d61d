//! Assembles the snapshot. Every section is compiled even if others are faulty, so that all faults
//! are found at once.

use tidegate_config::{Client, Faults, LoadedConfig, StandardHeaders};
use tidegate_identity::TrustedProxies;

use super::routes::RouteParts;
use super::section::{FaultCollector, SecretReading, Section};
use super::{
    IdentityRules, RateHeaders, Snapshot, access_log, acme, auth, consumers, files, limits, listen,
    notes, overrides, plans, priorities, rate_limit_service, routes, store, throttle, tiers,
    traces, upstreams,
};

pub(super) fn snapshot(
    loaded: &LoadedConfig,
    secrets: SecretReading<'_>,
) -> Result<Snapshot, Faults> {
    let config = &loaded.config;
    let collector = FaultCollector::new(&loaded.source, secrets);
    let root = &collector.root();
    listen::check(root, config);
    acme::check(root, config);
    let listeners = listen::listeners(root, config);
    let admin_tls = listen::admin_tls(root, config);
    access_log::check(root, &config.access_log);
    store::check(&root.at("store"), &config.store);
    let upstreams = upstreams::compile(root, &config.upstreams);
    let identity = identity(&root.at("client"), &config.client);
    let mut limits = limits::compile(root, config, &identity.token);
    plans::check(root, config);
    let mut auth_files = Vec::new();
    let auth = auth::methods(root, config, &mut auth_files);
    let consumers = consumers::compile(root, config);
    let parts =
        RouteParts { upstreams: &upstreams, limits: &limits, tokens: &identity.token, auth: &auth };
    let (table, routes, doors) = routes::compile(root, config, &parts);
    let rate_limit_service = rate_limit_service::compile(root, config, &mut limits);
    tiers::check_parameters(root, config);
    overrides::check(root, config);
    let throttle = throttle::compile(root, config);
    let waiting_room = throttle::compile_waiting_room(root, config);
    let traces = traces::compile(&root.at("traces"), config.traces.as_ref());
    priorities::check(root, config);
    notes::add(root, config);
    files::check(root, config, loaded.source.name());
    let (faults, notes) = collector.into_faults_and_notes();
    match Faults::new(faults) {
        Some(faults) => Err(faults),
        None => Ok(Snapshot {
            table,
            doors,
            routes,
            limits,
            upstreams,
            identity,
            headers: RateHeaders {
                x_ratelimit: config.headers.x_ratelimit,
                draft_11: config.headers.standard == StandardHeaders::Draft11,
                upstream: config.headers.upstream,
            },
            http: listen::http_rules(&config.http),
            listeners,
            admin_tls,
            rate_limit_service,
            throttle,
            waiting_room,
            traces,
            auth_methods: auth.into_values().collect(),
            plans: config.plans.keys().map(|name| name.as_str().into()).collect(),
            plan_priorities: priorities::of_plans(config),
            auth_files,
            consumers,
            overrides_file: config.overrides.as_ref().map(|own| own.file.clone()),
            notes,
        }),
    }
}

fn identity(section: &Section<'_>, client: &Client) -> IdentityRules {
    let token = client.token.clone();
    if token.len() > 1 {
        let what = format!("{} token sources: a request may carry several tokens", token.len());
        let expected = "one token source, or callers that may be counted once per token";
        section.at("token").note(what, expected);
    }
    let networks = client.trusted_proxies.iter().map(|network| network.0).collect();
    IdentityRules {
        trusted_proxies: TrustedProxies::new(networks),
        ipv6_prefix: client.ipv6_prefix,
        token,
    }
}
