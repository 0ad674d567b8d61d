//! Lookups of names, through the system's hosts file and name servers.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use hickory_resolver::{
    TokioResolver,
    config::{LookupIpStrategy, NameServerConfig, ResolverConfig, ServerOrderingStrategy},
    net::runtime::TokioRuntimeProvider,
    proto::rr::{RData, RecordType},
};

/// The timeout of one query to one server.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// A resolver with the name servers of now.
pub(super) struct Lookup(Result<TokioResolver, String>);

/// The addresses of a name.
#[derive(Debug)]
pub(super) struct FoundAddresses {
    /// Sorted, each once.
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

impl Lookup {
    /// A resolver that asks `name_servers`, or those of the system if there are none.
    pub(super) fn new(name_servers: &[SocketAddr]) -> Self {
        let builder = if name_servers.is_empty() {
            TokioResolver::builder_tokio().map_err(|error| error.to_string())
        } else {
            let servers = name_servers.iter().map(|address| {
                let mut server = NameServerConfig::udp_and_tcp(address.ip());
                for connection in &mut server.connections {
                    connection.port = address.port();
                }
                server
            });
            let config = ResolverConfig::from_parts(None, Vec::new(), servers.collect());
            Ok(TokioResolver::builder_with_config(config, TokioRuntimeProvider::default()))
        };
        Self(builder.and_then(|mut builder| {
            let options = builder.options_mut();
            // Names are resolved again when their records expire: nothing is to be cached.
            options.cache_size = 0;
            options.timeout = QUERY_TIMEOUT;
            options.attempts = 2;
            options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
            options.server_ordering_strategy = ServerOrderingStrategy::UserProvidedOrder;
            builder.build().map_err(|error| error.to_string())
        }))
    }

    fn resolver(&self) -> Result<&TokioResolver, String> {
        self.0.as_ref().map_err(Clone::clone)
    }

    /// The addresses of `name`, of both families.
    ///
    /// # Errors
    /// The name has none, or no server answers.
    pub(super) async fn addresses(&self, name: &str) -> Result<FoundAddresses, String> {
        let found = self.resolver()?.lookup_ip(name).await.map_err(|error| error.to_string())?;
        let mut addresses: Vec<IpAddr> = found.iter().collect();
        addresses.sort_unstable();
        addresses.dedup();
        if addresses.is_empty() {
            return Err("the name has no address".to_owned());
        }
        let ttl = found.as_lookup().answers().iter().map(|record| record.ttl).min();
        Ok(FoundAddresses { addresses, ttl: Duration::from_secs(ttl.unwrap_or(0).into()) })
    }

    /// The servers of the SRV record `name`.
    ///
    /// # Errors
    /// There is no such record, or no server answers.
    pub(super) async fn services(&self, name: &str) -> Result<FoundServices, String> {
        let found = self.resolver()?.lookup(name, RecordType::SRV).await;
        let found = found.map_err(|error| error.to_string())?;
        let mut services = Vec::new();
        let mut ttl = None;
        for record in found.answers() {
            let RData::SRV(srv) = &record.data else { continue };
            ttl = Some(ttl.map_or(record.ttl, |least: u32| least.min(record.ttl)));
            let host = srv.target.to_ascii();
            // A target of "." means that the service does not exist (RFC 2782).
            let host = host.trim_end_matches('.');
            if !host.is_empty() {
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
            return Err("the record has no server".to_owned());
        }
        Ok(FoundServices { services, ttl: Duration::from_secs(ttl.unwrap_or(0).into()) })
    }
}
