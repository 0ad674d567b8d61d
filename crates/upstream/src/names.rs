//! Resolves the names of targets in the background: all addresses of a name are endpoints.
//!
//! A name is resolved again after the TTL of its records, and when a target has gone out of
//! service. While it cannot be resolved, the last answer is kept. But a server of an SRV record
//! whose own name cannot be resolved is left out while others can be. None of this runs on a
//! worker.

mod lookup;

use std::{pin::pin, sync::Arc, sync::mpsc::Sender, time::Duration};

use futures_util::future::select;
use tidegate_system::clock::Clock;
use tidegate_system::clock::Uptime;
use tidegate_tls::ClientTls;
use tokio::task::JoinSet;

use self::lookup::NameLookup;
use super::{
    ServerAddress, Servers, Target, TargetTls, TlsNameSource,
    endpoint_address::EndpointAddress,
    registry::{UpstreamRegistry, UpstreamRuntime},
};

/// Minimum time between two resolutions of a name.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum time until a name is resolved again while all its targets work.
const MIN_TTL: Duration = Duration::from_secs(5);
/// Maximum time until a name is resolved again.
const MAX_TTL: Duration = Duration::from_mins(5);
/// Time after which a failed resolution is repeated.
const RETRY_AFTER_FAILURE: Duration = Duration::from_secs(5);
/// Maximum number of endpoints of one upstream. Further addresses of names are not used.
const MAX_ENDPOINTS: usize = 1024;

/// Maximum number of addresses in a log line.
const MAX_LOGGED: usize = 16;

/// Resolves the names of all upstreams, including upstreams added by reloads. Drops `resolved` once
/// the names of the first configuration have been tried. Runs until it is dropped.
pub async fn resolve(registry: Arc<UpstreamRegistry>, resolved: Sender<()>) {
    let (mut tasks, mut first) = (JoinSet::new(), Some(resolved));
    let mut running: Vec<Arc<UpstreamRuntime>> = Vec::new();
    loop {
        // Created before the upstreams are read, so that a change in between is not missed.
        let changed = registry.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        running.retain(|state| !state.is_removed());
        for state in registry.all() {
            if !running.iter().any(|known| Arc::ptr_eq(known, &state)) {
                running.push(Arc::clone(&state));
                tasks.spawn(resolve_upstream(state, Arc::clone(&registry), first.clone()));
            }
        }
        first = None;
        while tasks.try_join_next().is_some() {}
        changed.await;
    }
}

/// Resolves the names of one upstream until it is removed.
async fn resolve_upstream(
    state: Arc<UpstreamRuntime>,
    registry: Arc<UpstreamRegistry>,
    mut first: Option<Sender<()>>,
) {
    let mut last_error = None;
    while !state.is_removed() {
        let changed = registry.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        let servers = Arc::clone(&state.endpoints().servers);
        let wait = if servers.targets.iter().any(|target| target.target.needs_resolving()) {
            Some(resolve_once(&state, &servers, &mut last_error).await)
        } else {
            None
        };
        let now = state.clock().uptime();
        first = None;
        match wait {
            Some(wait) => wait_for_doubt(&state, now, wait, changed.as_mut()).await,
            None => changed.await,
        }
    }
    drop(first);
}

/// Waits until the names may have changed: until `ttl` has passed since `resolved`, a target fails,
/// or the configuration changes. `resolved` is an uptime of the clock.
async fn wait_for_doubt(
    state: &UpstreamRuntime,
    resolved: Uptime,
    ttl: Duration,
    mut changed: impl Future<Output = ()> + Unpin,
) {
    let clock = state.clock();
    if clock.timeout_at(resolved + MIN_INTERVAL, &mut changed).await.is_err() {
        let doubted = pin!(state.load.resolve_now.notified());
        let _ = clock.timeout_at(resolved + ttl, select(doubted, changed)).await;
    }
}

/// Resolves all names of an upstream once. Returns the time until the next resolution.
async fn resolve_once(
    state: &UpstreamRuntime,
    servers: &Arc<Servers>,
    last_error: &mut Option<String>,
) -> Duration {
    let lookup = NameLookup::new(&servers.name_servers);
    let known = state.endpoints();
    let (mut addresses, mut ttl, mut error) = (Vec::new(), MAX_TTL, None);
    for configured in &servers.targets {
        let (target, weight) = (&configured.target, configured.weight);
        if !target.needs_resolving() {
            addresses.push(EndpointAddress::of_target(target, weight));
            continue;
        }
        match resolve_target(&lookup, state.clock(), target, weight).await {
            Ok(answer) => {
                ttl = ttl.min(answer.ttl);
                addresses.extend(answer.addresses);
            }
            Err(failed) => {
                ttl = ttl.min(RETRY_AFTER_FAILURE);
                error = Some(format!("{}: {failed}", target.address));
                // The last good answer stays.
                let kept = known.addresses.iter();
                addresses.extend(kept.filter_map(|known| known.adapted_to(target, weight)));
            }
        }
    }
    log_error(state, last_error, error);
    if addresses.len() > MAX_ENDPOINTS {
        let (upstream, found, used) = (&*state.name, addresses.len(), MAX_ENDPOINTS);
        tracing::warn!(upstream, found, used, "the names of the upstream have too many addresses");
    }
    addresses.truncate(MAX_ENDPOINTS);
    let before = known.addresses.clone();
    if before != addresses && state.set_addresses(servers, addresses.clone()) {
        let (upstream, count) = (&*state.name, addresses.len());
        let named = addresses.iter().filter_map(|one| one.target.socket_address());
        let named: Vec<_> = named.take(MAX_LOGGED).map(|address| address.to_string()).collect();
        let addresses = named.join(", ");
        tracing::info!(upstream, count, addresses, "the names of the upstream have new addresses");
    }
    ttl.clamp(MIN_TTL, MAX_TTL)
}

/// Logs an error when it first occurs, and the first answer after it.
fn log_error(state: &UpstreamRuntime, last: &mut Option<String>, error: Option<String>) {
    let upstream = &*state.name;
    if *last == error {
        return;
    }
    if let Some(error) = &error {
        tracing::warn!(upstream, error, "a name cannot be resolved; its last addresses are kept");
    } else {
        tracing::info!(upstream, "all names can be resolved again");
    }
    *last = error;
}

/// The endpoints of a name.
struct Answer {
    addresses: Vec<EndpointAddress>,
    ttl: Duration,
}

async fn resolve_target(
    lookup: &NameLookup,
    clock: &Clock,
    target: &Target,
    weight: u32,
) -> Result<Answer, String> {
    let mut answer = Answer { addresses: Vec::new(), ttl: MAX_TTL };
    match &target.address {
        ServerAddress::Tcp { host, port } => {
            let found = lookup.addresses(host, clock).await?;
            answer.ttl = found.ttl;
            for ip in found.addresses {
                let mut resolved = target.clone();
                resolved.resolved = Some((ip, *port).into());
                answer.addresses.push(EndpointAddress {
                    source: target.clone(),
                    target: resolved,
                    weight,
                    priority: 0,
                });
            }
        }
        ServerAddress::Service(name) => {
            let found = lookup.services(name).await?;
            answer.ttl = found.ttl;
            let mut error = None;
            for service in found.services {
                match lookup.addresses(&service.host, clock).await {
                    Ok(found) => {
                        answer.ttl = answer.ttl.min(found.ttl);
                        let weight = weight.saturating_mul(service.weight);
                        let (port, priority) = (service.port, service.priority);
                        for ip in found.addresses {
                            let mut resolved = service_target(target, &service.host, port);
                            resolved.resolved = Some((ip, port).into());
                            answer.addresses.push(EndpointAddress {
                                source: target.clone(),
                                target: resolved,
                                weight,
                                priority,
                            });
                        }
                    }
                    Err(failed) => error = Some(failed),
                }
            }
            if let Some(error) = error.filter(|_| answer.addresses.is_empty()) {
                return Err(error);
            }
        }
        ServerAddress::Unix(_) => {}
    }
    Ok(answer)
}

/// The server of an SRV record. Unless a name is configured, its certificate must have the server's
/// name.
fn service_target(target: &Target, host: &str, port: u16) -> Target {
    let mut server = target.clone();
    server.address = ServerAddress::Tcp { host: host.into(), port };
    if let Some(tls) = server.tls.as_mut().filter(|_| target.tls_name != TlsNameSource::Configured)
        && let Ok(name) = ClientTls::server_name(host)
    {
        *tls = TargetTls { rules: tls.rules.clone(), name };
    }
    server
}
