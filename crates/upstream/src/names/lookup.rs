//! Lookups of names, through the system's hosts file and name servers.

use std::{
    net::{IpAddr, SocketAddr},
    pin::pin,
    time::Duration,
};

use futures_util::future::{Either, select};
use hickory_resolver::{
    TokioResolver,
    config::{LookupIpStrategy, NameServerConfig, ResolverConfig, ServerOrderingStrategy},
    net::runtime::TokioRuntimeProvider,
    proto::rr::{Name, RData, RecordType},
};
use tidegate_system::clock::Clock;

/// The timeout of one query to one server.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// Time to wait for one address family after the other has answered.
const OTHER_FAMILY_TIMEOUT: Duration = Duration::from_secs(1);

/// Resolvers with the current name servers.
pub(super) struct NameLookup(Result<Families, String>);

/// A resolver for each address family, so that one does not wait for the other.
struct Families {
    v4: TokioResolver,
    v6: TokioResolver,
}

/// The addresses of a name.
#[derive(Debug)]
pub(super) struct FoundAddresses {
    /// Sorted, without duplicates.
    pub(super) addresses: Vec<IpAddr>,
    pub(super) ttl: Duration,
}

/// The servers of an SRV record.
#[derive(Debug)]
pub(super) struct FoundServices {
    /// In the order of priority, host and port.
    pub(super) services: Vec<Service>,
    pub(super) ttl: Duration,
}

/// One server of an SRV record.
#[derive(Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Service {
    pub(super) priority: u16,
    pub(super) host: String,
    pub(super) port: u16,
    /// At least 1.
    pub(super) weight: u32,
}

impl NameLookup {
    /// A resolver that asks `name_servers`, or the system's if that is empty.
    pub(super) fn new(name_servers: &[SocketAddr]) -> Self {
        Self(resolver(name_servers, LookupIpStrategy::Ipv4Only).and_then(|v4| {
            Ok(Families { v4, v6: resolver(name_servers, LookupIpStrategy::Ipv6Only)? })
        }))
    }

    fn families(&self) -> Result<&Families, String> {
        self.0.as_ref().map_err(Clone::clone)
    }

    /// The addresses of `name` in both families, or in one if the other has no answer within
    /// [`OTHER_FAMILY_TIMEOUT`].
    ///
    /// # Errors
    /// The name has no usable address, or no server answers.
    pub(super) async fn addresses(
        &self,
        name: &str,
        clock: &Clock,
    ) -> Result<FoundAddresses, String> {
        let families = self.families()?;
        let name = name_of(name)?;
        let (v4, v6) =
            (pin!(families.v4.lookup_ip(name.clone())), pin!(families.v6.lookup_ip(name)));
        let (first, other) = match select(v4, v6).await {
            Either::Left((first, other)) | Either::Right((first, other)) => (first, other),
        };
        let other = match &first {
            Ok(_) => clock.timeout(OTHER_FAMILY_TIMEOUT, other).await.ok(),
            Err(_) => Some(other.await),
        };
        let (mut addresses, mut ttl, mut error) = (Vec::<IpAddr>::new(), None, None);
        for found in [Some(first), other].into_iter().flatten() {
            match found {
                Ok(found) => {
                    addresses.extend(found.iter().filter(is_usable));
                    let records = found.as_lookup().answers().iter();
                    ttl = records.map(|record| record.ttl).chain(ttl).min();
                }
                Err(failed) => error = error.or(Some(failed.to_string())),
            }
        }
        addresses.sort_unstable();
        addresses.dedup();
        if addresses.is_empty() {
            return Err(error.unwrap_or_else(|| "the name has no usable address".to_owned()));
        }
        Ok(FoundAddresses { addresses, ttl: Duration::from_secs(ttl.unwrap_or(0).into()) })
    }

    /// The servers of the SRV record `name`.
    ///
    /// # Errors
    /// There is no such record, or no server answers.
    pub(super) async fn services(&self, name: &str) -> Result<FoundServices, String> {
        let found = self.families()?.v4.lookup(name_of(name)?, RecordType::SRV).await;
        let found = found.map_err(|error| error.to_string())?;
        let mut services = Vec::new();
        let mut ttl = None;
        for record in found.answers() {
            let RData::SRV(srv) = &record.data else { continue };
            ttl = Some(ttl.map_or(record.ttl, |least: u32| least.min(record.ttl)));
            let host = srv.target.to_ascii();
            // A target of "." means that the service does not exist (RFC 2782).
            let host = host.trim_end_matches('.');
            if !host.is_empty() && srv.port > 0 {
                services.push(Service {
                    priority: srv.priority,
                    host: host.to_owned(),
                    port: srv.port,
                    weight: u32::from(srv.weight).max(1),
                });
            }
        }
        services.sort_unstable();
        services.dedup();
        if services.is_empty() {
            return Err("the SRV record lists no server".to_owned());
        }
        Ok(FoundServices { services, ttl: Duration::from_secs(ttl.unwrap_or(0).into()) })
    }
}

/// `name` for a query. ASCII is asked as it is written: names in networks of containers have
/// underscores, which names of hosts may not have.
fn name_of(name: &str) -> Result<Name, String> {
    let parsed = if name.is_ascii() { Name::from_ascii(name) } else { Name::from_utf8(name) };
    parsed.map_err(|error| error.to_string())
}

/// A resolver for one family that asks `name_servers`, or the system's if that is empty.
fn resolver(
    name_servers: &[SocketAddr],
    strategy: LookupIpStrategy,
) -> Result<TokioResolver, String> {
    let mut builder = if name_servers.is_empty() {
        TokioResolver::builder_tokio().map_err(|error| error.to_string())?
    } else {
        let servers = name_servers.iter().map(|address| {
            let mut server = NameServerConfig::udp_and_tcp(address.ip());
            for connection in &mut server.connections {
                connection.port = address.port();
            }
            server
        });
        let config = ResolverConfig::from_parts(None, Vec::new(), servers.collect());
        TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
    };
    let options = builder.options_mut();
    // No cache: a name is resolved again when its records may have changed, also before they
    // expire.
    options.cache_size = 0;
    options.timeout = QUERY_TIMEOUT;
    options.attempts = 2;
    options.ip_strategy = strategy;
    options.server_ordering_strategy = ServerOrderingStrategy::UserProvidedOrder;
    builder.build().map_err(|error| error.to_string())
}

/// True if a server can have this address.
fn is_usable(address: &IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    !(address.is_unspecified() || address.is_multicast() || is_broadcast)
}
