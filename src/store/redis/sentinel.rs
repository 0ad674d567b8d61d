//! Where Sentinel says that the primary is.

use std::cmp::Reverse;

use futures_util::future::join_all;
use parking_lot::Mutex;
use redis::{Client, ConnectionInfo, aio::MultiplexedConnection};
use tokio::time;

use super::{
    Failure, RedisOptions,
    client::{self, ConnectError},
};

/// The sentinels, and the primary that they watch.
pub(super) struct Sentinel {
    /// The name that they know the primary by.
    pub(super) master: Box<str>,
    pub(super) nodes: Box<[Client]>,
    /// How the primary is connected to, but for its address.
    primary: ConnectionInfo,
    /// Where the primary was found last.
    current: Mutex<Option<(String, u16)>>,
}

impl Sentinel {
    pub(super) fn new(master: Box<str>, nodes: Box<[Client]>, primary: ConnectionInfo) -> Self {
        Self { master, nodes, primary, current: Mutex::new(None) }
    }

    /// Where the primary was found last.
    pub(super) fn current(&self) -> Option<(String, u16)> {
        self.current.lock().clone()
    }

    /// Lets the next connection ask the sentinels.
    pub(super) fn forget(&self) {
        *self.current.lock() = None;
    }

    /// Connects to the primary where it was found last; where it was not, asks the sentinels first.
    pub(super) async fn open(
        &self,
        options: &RedisOptions,
    ) -> Result<MultiplexedConnection, ConnectError> {
        match self.current() {
            Some(address) => self.open_at(&address, options).await,
            None => self.find(options).await,
        }
    }

    /// Connects to the one that most sentinels name, if it says that it is a primary; of several that as many
    /// name, to the first that does.
    async fn find(&self, options: &RedisOptions) -> Result<MultiplexedConnection, ConnectError> {
        let asked = self.nodes.iter().map(async |sentinel| {
            let mut connection = client::open(sentinel, options.connect_timeout).await?;
            self.ask(&mut connection, options).await
        });
        let (mut named, mut last) = (Vec::new(), None);
        for answer in join_all(asked).await {
            match answer {
                Ok(address) => named.push(address),
                Err(why) => last = Some(why),
            }
        }
        let mut first = None;
        let ranked = by_votes(&named);
        let most = ranked.first().map_or(0, |&(_, votes)| votes);
        // One that fewer name may be a primary that was, and counts apart from the others.
        for (address, _) in ranked.into_iter().take_while(|&(_, votes)| votes == most) {
            match self.open_at(address, options).await {
                Ok(connection) => {
                    *self.current.lock() = Some(address.clone());
                    return Ok(connection);
                }
                Err(why) => drop(first.get_or_insert(why)),
            }
        }
        Err(first.unwrap_or_else(|| {
            let why = last.map_or_else(|| "no sentinel is known".to_owned(), |last| last.why);
            let why = format!("no sentinel names a primary: {why}");
            ConnectError { failure: Failure::Io, why }
        }))
    }

    /// Connects to a primary at this address.
    pub(super) async fn open_at(
        &self,
        (host, port): &(String, u16),
        options: &RedisOptions,
    ) -> Result<MultiplexedConnection, ConnectError> {
        let client = client::client_at(&self.primary, host, *port);
        let client = client.ok_or(ConnectError::from(Failure::Reply))?;
        let mut connection = client::open(&client, options.connect_timeout).await?;
        if is_primary(&mut connection, options).await? {
            return Ok(connection);
        }
        let why = format!("{host}:{port} is not the primary yet");
        Err(ConnectError { failure: Failure::Server, why })
    }

    /// Asks one sentinel.
    pub(super) async fn ask(
        &self,
        connection: &mut MultiplexedConnection,
        options: &RedisOptions,
    ) -> Result<(String, u16), ConnectError> {
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&*self.master);
        let asking = command.query_async::<Option<(String, u16)>>(connection);
        match time::timeout(options.connect_timeout, asking).await {
            Ok(Ok(address)) => address.ok_or(Failure::Reply.into()),
            Ok(Err(error)) => Err(ConnectError::by(&error)),
            Err(_) => Err(Failure::Timeout.into()),
        }
    }
}

async fn is_primary(
    connection: &mut MultiplexedConnection,
    options: &RedisOptions,
) -> Result<bool, ConnectError> {
    let command = redis::cmd("ROLE");
    let asking = command.query_async::<Vec<redis::Value>>(connection);
    let role = match time::timeout(options.connect_timeout, asking).await {
        Ok(Ok(role)) => role,
        Ok(Err(error)) => return Err(ConnectError::by(&error)),
        Err(_) => return Err(Failure::Timeout.into()),
    };
    let name =
        role.into_iter().next().and_then(|name| redis::from_redis_value::<String>(name).ok());
    Ok(name.ok_or(Failure::Reply)? == "master")
}

/// Where sentinels say that the primary is, and how many of them do: the address with the most votes first,
/// and of several the one that was named first.
pub(super) fn by_votes(named: &[(String, u16)]) -> Vec<(&(String, u16), usize)> {
    let mut ranked = Vec::<(&(String, u16), usize)>::new();
    for address in named {
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

    fn named(ports: &[u16]) -> Vec<(String, u16)> {
        ports.iter().map(|&port| ("h".to_owned(), port)).collect()
    }

    #[test]
    fn the_most_come_first_and_of_several_the_first() {
        let order = |ports: &[u16]| {
            let named = named(ports);
            let order = by_votes(&named).into_iter();
            order.map(|(address, votes)| (address.1, votes)).collect::<Vec<_>>()
        };
        assert_eq!(order(&[]), []);
        assert_eq!(order(&[1, 2, 2]), [(2, 2), (1, 1)]);
        assert_eq!(order(&[2, 1]), [(2, 1), (1, 1)]);
        assert_eq!(order(&[3, 1, 2, 1]), [(1, 2), (3, 1), (2, 1)]);
    }
}
