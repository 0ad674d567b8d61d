//! Assembles the snapshot. Every section is compiled even if others are faulty, so that all faults are
//! found at once.

use super::fault_collector::FaultCollector;
use super::parts::header;
use super::{
    IdentityRules, RateHeaders, Snapshot, access_log, files, limits, listen, notes, routes, store,
    throttle, traces, upstreams,
};
use crate::config::{
    Client, Faults, LoadedConfig, StandardHeaders, TokenSource as ConfiguredSource,
};
use crate::identity::{TokenSource, TrustedProxies};

pub(super) fn snapshot(loaded: &LoadedConfig) -> Result<Snapshot, Faults> {
    let config = &loaded.config;
    let mut collector = FaultCollector::new(&loaded.source);
    listen::check(&mut collector, config);
    let listeners = listen::listeners(&mut collector, config);
    let admin_tls = listen::admin_tls(&mut collector, config);
    access_log::check(&mut collector, &config.access_log);
    store::check(&mut collector, &config.store);
    let upstreams = upstreams::compile(&mut collector, &config.upstreams);
    let identity = identity(&mut collector, &config.client);
    let limits = limits::compile(&mut collector, config, &identity.token);
    let (table, routes) =
        routes::compile(&mut collector, config, &upstreams, &limits, &identity.token);
    let throttle = throttle::compile(&mut collector, config);
    let traces = traces::compile(&mut collector, config.traces.as_ref());
    notes::add(&mut collector, config);
    files::check(&mut collector, config, loaded.source.name());
    match Faults::new(collector.faults) {
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
            listeners,
            admin_tls,
            throttle,
            traces,
            notes: collector.notes,
        }),
    }
}

fn identity(collector: &mut FaultCollector<'_>, client: &Client) -> IdentityRules {
    let prefix = client.ipv6_prefix;
    let mut token = Vec::new();
    for (index, source) in client.token.iter().enumerate() {
        match source {
            ConfiguredSource::Cookie(name) => token.push(TokenSource::Cookie(name.clone())),
            ConfiguredSource::Header(name) => {
                let path = format!("client.token[{index}]");
                token.extend(header(collector, &path, name).map(TokenSource::Header));
            }
        }
    }
    if token.len() > 1 {
        let what = format!("{} token sources: a request may carry several tokens", token.len());
        collector.note(
            "client.token",
            what,
            "one token source, or callers that may be counted once per token",
        );
    }
    let networks = client.trusted_proxies.iter().map(|network| network.0).collect();
    IdentityRules { trusted_proxies: TrustedProxies::new(networks), ipv6_prefix: prefix, token }
}
