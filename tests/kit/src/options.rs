//! Connection options for a gateway's Redis.

use std::time::Duration;

use tidegate::{
    redis::{Credentials, RedisOptions, Topology},
    secret::SharedSecret,
};

/// Long enough that a busy machine never looks like an outage. A server that is dead or refuses
/// connections is detected at once anyway.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit of one reply, generous for the same reason.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Options for `topology` with generous timeouts, in the namespace `tidegate`, without credentials
/// and TLS.
pub fn redis_options(topology: Topology) -> RedisOptions {
    RedisOptions {
        topology,
        credentials: Credentials::default(),
        tls_ca: None,
        namespace: "tidegate".into(),
        secret: SharedSecret::from_namespace("tidegate"),
        connect_timeout: CONNECT_TIMEOUT,
        response_timeout: RESPONSE_TIMEOUT,
    }
}
