//! The primary's address according to Sentinel.

use std::cmp::Reverse;

use ::redis::{Client, ConnectionInfo, aio::MultiplexedConnection};
use futures_util::future::join_all;
use parking_lot::Mutex;

use super::{
    RedisFailure,
    connect::{self, ConnectError},
    context::RedisContext,
};

/// The sentinels, and the primary that they monitor.
pub(super) struct SentinelGroup {
    /// The primary's name in Sentinel's configuration.
    pub(super) master: Box<str>,
    /// One client for each sentinel.
    pub(super) sentinels: Box<[Client]>,
    /// The primary's credentials and TLS settings; the address is a placeholder.
    template: ConnectionInfo,
    /// The primary's cached address (host, port).
    address: Mutex<Option<(String, u16)>>,
}

impl SentinelGroup {
    pub(super) fn new(
        master: Box<str>,
        sentinels: Box<[Client]>,
        template: ConnectionInfo,
    ) -> Self {
        Self { master, sentinels, template, address: Mutex::new(None) }
    }

    /// The primary's cached address (host, port).
    pub(super) fn address(&self) -> Option<(String, u16)> {
        self.address.lock().clone()
    }

    /// Drops the cached address, so that the sentinels are asked before the next connection.
    pub(super) fn invalidate(&self) {
        *self.address.lock() = None;
    }

    /// Connects to the primary's cached address, or asks the sentinels for it.
    ///
    /// # Errors
    ///
    /// No sentinel names a primary, or the server that they name cannot be reached or is not a
    /// primary.
    pub(super) async fn open(
        &self,
        context: &RedisContext,
    ) -> Result<MultiplexedConnection, ConnectError> {
        match self.address() {
            Some(address) => self.open_at(&address, context).await,
            None => self.discover(context).await,
        }
    }

    /// Connects to the address that most sentinels name, if the server there is a primary. In a
    /// tie, connects to the first such server.
    async fn discover(
        &self,
        context: &RedisContext,
    ) -> Result<MultiplexedConnection, ConnectError> {
        let replies = self.sentinels.iter().map(async |sentinel| {
            let mut connection = connect::open(sentinel, context).await?;
            self.query_address(&mut connection, context).await
        });
        let (mut addresses, mut sentinel_error) = (Vec::new(), None);
        for reply in join_all(replies).await {
            match reply {
                Ok(address) => addresses.push(address),
                Err(error) => sentinel_error = Some(error),
            }
        }
        let mut first_error = None;
        let ranked = rank_by_votes(&addresses);
        let most = ranked.first().map_or(0, |&(_, votes)| votes);
        // An address with fewer votes may be a former primary, which would count separately.
        for (address, _) in ranked.into_iter().take_while(|&(_, votes)| votes == most) {
            match self.open_at(address, context).await {
                Ok(connection) => {
                    *self.address.lock() = Some(address.clone());
                    return Ok(connection);
                }
                Err(error) => drop(first_error.get_or_insert(error)),
            }
        }
        Err(first_error.unwrap_or_else(|| {
            let reason = sentinel_error
                .map_or_else(|| "no sentinel is configured".to_owned(), |error| error.reason);
            let reason = format!("no sentinel names a primary: {reason}");
            ConnectError { failure: RedisFailure::Io, reason }
        }))
    }

    /// Connects to a primary at this address.
    ///
    /// # Errors
    ///
    /// The failure to connect, or [`RedisFailure::Server`] if the server's role is not primary.
    pub(super) async fn open_at(
        &self,
        (host, port): &(String, u16),
        context: &RedisContext,
    ) -> Result<MultiplexedConnection, ConnectError> {
        let client = connect::client_at(&self.template, host, *port);
        let client = client.ok_or(ConnectError::from(RedisFailure::Reply))?;
        let mut connection = connect::open(&client, context).await?;
        if is_primary(&mut connection, context).await? {
            return Ok(connection);
        }
        let reason = format!("{host}:{port} is not the primary yet");
        Err(ConnectError { failure: RedisFailure::Server, reason })
    }

    /// Asks one sentinel for the primary's address (host, port).
    ///
    /// # Errors
    ///
    /// No reply, or [`RedisFailure::Reply`] if the sentinel does not monitor that primary.
    pub(super) async fn query_address(
        &self,
        connection: &mut MultiplexedConnection,
        context: &RedisContext,
    ) -> Result<(String, u16), ConnectError> {
        let mut command = ::redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&*self.master);
        let reply = command.query_async::<Option<(String, u16)>>(connection);
        match context.clock.timeout(context.options.connect_timeout, reply).await {
            Ok(Ok(address)) => address.ok_or(RedisFailure::Reply.into()),
            Ok(Err(error)) => Err(ConnectError::from(&error)),
            Err(_) => Err(RedisFailure::Timeout.into()),
        }
    }
}

async fn is_primary(
    connection: &mut MultiplexedConnection,
    context: &RedisContext,
) -> Result<bool, ConnectError> {
    let command = ::redis::cmd("ROLE");
    let reply = command.query_async::<Vec<::redis::Value>>(connection);
    let role = match context.clock.timeout(context.options.connect_timeout, reply).await {
        Ok(Ok(role)) => role,
        Ok(Err(error)) => return Err(ConnectError::from(&error)),
        Err(_) => return Err(RedisFailure::Timeout.into()),
    };
    let name =
        role.into_iter().next().and_then(|name| ::redis::from_redis_value::<String>(name).ok());
    Ok(name.ok_or(RedisFailure::Reply)? == "master")
}

/// The addresses that sentinels named, each with its number of votes, most votes first. Addresses
/// with equally many votes keep the order in which they were named.
pub(super) fn rank_by_votes(addresses: &[(String, u16)]) -> Vec<(&(String, u16), usize)> {
    let mut ranked = Vec::<(&(String, u16), usize)>::new();
    for address in addresses {
        match ranked.iter_mut().find(|(other, _)| *other == address) {
            Some((_, votes)) => *votes += 1,
            None => ranked.push((address, 1)),
        }
    }
    ranked.sort_by_key(|&(_, votes)| Reverse(votes));
    ranked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(ports: &[u16]) -> Vec<(String, u16)> {
        ports.iter().map(|&port| ("h".to_owned(), port)).collect()
    }

    #[test]
    fn addresses_are_ranked_by_votes_then_by_first_mention() {
        let ranking = |ports: &[u16]| {
            let addresses = addresses(ports);
            let ranking = rank_by_votes(&addresses).into_iter();
            ranking.map(|(address, votes)| (address.1, votes)).collect::<Vec<_>>()
        };
        assert_eq!(ranking(&[]), []);
        assert_eq!(ranking(&[1, 2, 2]), [(2, 2), (1, 1)]);
        assert_eq!(ranking(&[2, 1]), [(2, 1), (1, 1)]);
        assert_eq!(ranking(&[3, 1, 2, 1]), [(1, 2), (3, 1), (2, 1)]);
    }
}
