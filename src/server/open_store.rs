//! Opens the counter store of a configuration, and reads the secrets and certificates for it.

use std::{path::Path, sync::Arc};

use super::StartError;
use crate::{
    clock::Clock,
    config::{
        self, ConfigSource, EnvLookup, LoadedConfig, Redis, RedisUrl, SecretError, SecretReference,
    },
    file,
    redis::{Credentials, RedisOptions, ShardUrls, Topology},
    secret::{self, SharedSecret},
    store::CounterStore,
};

/// The longest file of CA certificates, in bytes. A whole system's file has about 250,000.
const MAX_CERTIFICATES: u64 = 1 << 20;

/// Opens the store, with secrets from the environment `variables`. Without Redis, keys are hashed
/// under `secret`, or under a random one.
///
/// # Errors
///
/// A secret or the certificates cannot be read, or the store cannot be set up.
pub(super) fn open_store(
    loaded: &LoadedConfig,
    secret: Option<SharedSecret>,
    clock: Clock,
    variables: EnvLookup<'_>,
) -> Result<Arc<CounterStore>, StartError> {
    let config = &loaded.config;
    let max_keys = usize::try_from(config.store.memory.max_keys).unwrap_or(usize::MAX);
    Ok(match &config.store.redis {
        Some(redis) => {
            let secrets = Secrets { source: &loaded.source, variables };
            CounterStore::redis(redis_options(redis, &secrets)?, clock, max_keys)?
        }
        None => match secret {
            Some(secret) => CounterStore::memory_with_secret(secret, clock, max_keys)?,
            None => CounterStore::memory(clock, max_keys)?,
        },
    })
}

/// The secret under which the gateways of this configuration hash keys. `None` without Redis, where
/// each start makes its own.
///
/// # Errors
///
/// The secret cannot be read.
pub fn shared_secret(
    loaded: &LoadedConfig,
    variables: EnvLookup<'_>,
) -> Result<Option<SharedSecret>, StartError> {
    let secrets = Secrets { source: &loaded.source, variables };
    loaded.config.store.redis.as_ref().map(|redis| secrets.shared_secret(redis)).transpose()
}

/// Reads the secrets that the configuration refers to.
struct Secrets<'a> {
    source: &'a ConfigSource,
    variables: EnvLookup<'a>,
}

impl Secrets<'_> {
    /// The credentials with the password at `path`.
    fn credentials(
        &self,
        path: &str,
        username: Option<&str>,
        password: Option<&SecretReference>,
    ) -> Result<Credentials, StartError> {
        let password = password.map(|password| password.reveal(self.variables)).transpose();
        let password = password.map_err(|error| self.fault(path, &error))?;
        Ok(Credentials { username: username.map(Box::from), password })
    }

    /// The secret for hashing keys: the configured one, or one derived from the namespace.
    fn shared_secret(&self, redis: &Redis) -> Result<SharedSecret, StartError> {
        let Some(configured) = &redis.secret else {
            return Ok(SharedSecret::from_namespace(&redis.namespace));
        };
        let text = configured.reveal_at_least(secret::MIN_LEN, self.variables);
        let text = text.map_err(|error| self.fault("store.redis.secret", &error))?;
        Ok(SharedSecret::from_text(&text, &redis.namespace))
    }

    fn fault(&self, path: &str, error: &SecretError) -> StartError {
        let fault = self.source.fault(path, error.to_string(), error.expected());
        StartError::Faults(fault.into())
    }
}

fn redis_options(redis: &Redis, secrets: &Secrets<'_>) -> Result<RedisOptions, StartError> {
    let (username, password) = (redis.username.as_deref(), redis.password.as_ref());
    Ok(RedisOptions {
        topology: topology(redis, secrets)?,
        credentials: secrets.credentials("store.redis.password", username, password)?,
        tls_ca: redis.tls_ca.as_deref().map(read_certificates).transpose()?,
        namespace: redis.namespace.as_str().into(),
        secret: secrets.shared_secret(redis)?,
        connect_timeout: redis.connect_timeout.0,
        response_timeout: redis.response_timeout.0,
    })
}

fn topology(redis: &Redis, secrets: &Secrets<'_>) -> Result<Topology, StartError> {
    let url = |url: &RedisUrl| Box::<str>::from(url.expose_secret());
    if let Some(sentinel) = &redis.sentinel {
        let (username, password) = (sentinel.username.as_deref(), sentinel.password.as_ref());
        let path = "store.redis.sentinel.password";
        return Ok(Topology::Sentinel {
            master: sentinel.master.as_str().into(),
            nodes: sentinel.nodes.iter().map(url).collect(),
            credentials: secrets.credentials(path, username, password)?,
        });
    }
    if !redis.cluster.is_empty() {
        return Ok(Topology::Cluster(redis.cluster.iter().map(url).collect()));
    }
    let shard = |shard: &config::Shard| ShardUrls {
        primary: url(&shard.primary),
        replicas: shard.replicas.iter().map(url).collect(),
    };
    Ok(Topology::Shards(redis.shards.iter().map(shard).collect()))
}

/// Reads the file `tls_ca`.
fn read_certificates(path: &Path) -> Result<Box<[u8]>, StartError> {
    let read = file::read_whole(path, MAX_CERTIFICATES).map(Vec::into_boxed_slice);
    read.map_err(|error| StartError::Certificates {
        path: path.display().to_string(),
        error: error.into_io(),
    })
}
