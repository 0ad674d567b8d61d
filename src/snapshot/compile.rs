//! Assembles the snapshot. Every section is compiled even if others are faulty, so that all faults are
//! found at once.

use super::check::Check;
use super::parts::header;
use super::{
    IdentityRules, RateHeaders, Snapshot, limits, listen, routes, store, throttle, upstreams,
};
use crate::config::{
    Client, Faults, LoadedConfig, StandardHeaders, TokenSource as ConfiguredSource,
};
use crate::identity::{TokenSource, TrustedProxies};

pub(super) fn snapshot(loaded: &LoadedConfig) -> Result<Snapshot, Faults> {
    let config = &loaded.config;
    let mut check = Check::new(&loaded.source);
    listen::check(&mut check, config);
    store::check(&mut check, &config.store);
    let upstreams = upstreams::compile(&mut check, &config.upstreams);
    let identity = identity(&mut check, &config.client);
    let limits = limits::compile(&mut check, config, &identity.token);
    let (table, routes) = routes::compile(&mut check, config, &upstreams, &limits);
    let throttle = throttle::compile(&mut check, config);
    match Faults::new(check.faults) {
        Some(faults) => Err(faults),
        None => Ok(Snapshot {
            table,
            routes,
            limits,
            upstreams,
            identity,
            headers: RateHeaders {
                x_ratelimit: config.headers.x_ratelimit,
                draft_11: config.headers.standard == StandardHeaders::Draft11,
            },
            http: listen::http_rules(&config.http),
            throttle,
            notes: check.notes,
        }),
    }
}

fn identity(check: &mut Check<'_>, client: &Client) -> IdentityRules {
    let prefix = client.ipv6_prefix;
    let is_valid = (1..=128).contains(&prefix);
    check.ensure(is_valid, "client.ipv6_prefix", &format!("`{prefix}`"), "1 to 128 bits");
    let mut token = Vec::new();
    for (index, source) in client.token.iter().enumerate() {
        match source {
            ConfiguredSource::Cookie(name) => token.push(TokenSource::Cookie(name.clone())),
            ConfiguredSource::Header(name) => {
                let path = format!("client.token[{index}]");
                token.extend(header(check, &path, name).map(TokenSource::Header));
            }
        }
    }
    if token.len() > 1 {
        let what = format!("{} token sources: a request may carry several tokens", token.len());
        check.note("client.token", what, "that each token is counted as a separate caller");
    }
    let networks = client.trusted_proxies.iter().map(|network| network.0).collect();
    IdentityRules { trusted_proxies: TrustedProxies::new(networks), ipv6_prefix: prefix, token }
}
