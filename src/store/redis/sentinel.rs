//! A primary that Sentinel watches: asked for whenever a connection is made, and once a second.

use std::{cmp::Reverse, sync::Arc};

use futures_util::future::join_all;
use parking_lot::Mutex;
use redis::{Client, ConnectionInfo, aio::MultiplexedConnection};
use tokio::time;

use super::{
    Failure, RedisOptions,
    node::{self, Node, Unconnected},
};

/// The sentinels, and whom they watch.
pub(super) struct Sentinel {
    /// The name that they know the primary by.
    pub(super) master: Box<str>,
    nodes: Box<[Client]>,
    /// How the primary is connected to, but for its address.
    primary: ConnectionInfo,
    /// Where the last connection to the primary went.
    current: Mutex<Option<(String, u16)>>,
}

impl Sentinel {
    pub(super) fn new(master: Box<str>, nodes: Box<[Client]>, primary: ConnectionInfo) -> Self {
        Self { master, nodes, primary, current: Mutex::new(None) }
    }

    /// Connects to the primary: to the one that most sentinels name, if it says that it is one; of several
    /// that as many name, to the first that does.
    pub(super) async fn primary(
        &self,
        options: &RedisOptions,
    ) -> Result<MultiplexedConnection, Unconnected> {
        let asked = self.nodes.iter().map(async |sentinel| {
            let mut connection = node::open(sentinel, options.connect_timeout).await?;
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
            match self.open(address, options).await {
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
            Unconnected { failure: Failure::Io, why }
        }))
    }

    async fn open(
        &self,
        (host, port): &(String, u16),
        options: &RedisOptions,
    ) -> Result<MultiplexedConnection, Unconnected> {
        let client = node::client_at(&self.primary, host, *port);
        let client = client.ok_or(Unconnected::from(Failure::Reply))?;
        let mut connection = node::open(&client, options.connect_timeout).await?;
        if is_primary(&mut connection, options).await? {
            return Ok(connection);
        }
        let why = format!("{host}:{port} is not the primary yet");
        Err(Unconnected { failure: Failure::Server, why })
    }

    async fn ask(
        &self,
        connection: &mut MultiplexedConnection,
        options: &RedisOptions,
    ) -> Result<(String, u16), Unconnected> {
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&*self.master);
        let asking = command.query_async::<Option<(String, u16)>>(connection);
        match time::timeout(options.connect_timeout, asking).await {
            Ok(Ok(address)) => address.ok_or(Failure::Reply.into()),
            Ok(Err(error)) => Err(Unconnected::by(&error)),
            Err(_) => Err(Failure::Timeout.into()),
        }
    }
}

/// Asks the sentinels whether the primary is where the connections go. Each keeps one connection.
pub(in crate::store) struct Watch {
    sentinel: Arc<Sentinel>,
    node: Arc<Node>,
    connections: Box<[Option<MultiplexedConnection>]>,
}

impl Watch {
    pub(super) fn new(sentinel: Arc<Sentinel>, node: Arc<Node>) -> Self {
        let connections = sentinel.nodes.iter().map(|_| None).collect();
        Self { sentinel, node, connections }
    }

    /// Asks once; when more name another address than the one that is in use, and that one says that it is
    /// the primary, every connection is called wrong.
    pub(super) async fn look(&mut self, options: &RedisOptions) {
        let Some(current) = self.sentinel.current.lock().clone() else { return };
        let sentinel = &self.sentinel;
        let asked = sentinel.nodes.iter().zip(&mut self.connections).map(async |(node, kept)| {
            let mut connection = match kept.take() {
                Some(connection) => connection,
                None => node::open(node, options.connect_timeout).await.ok()?,
            };
            let address = sentinel.ask(&mut connection, options).await.ok()?;
            *kept = Some(connection);
            Some(address)
        });
        let named: Vec<_> = join_all(asked).await.into_iter().flatten().collect();
        let Some(address) = overruled(&named, &current) else { return };
        // A primary that is well is not left for one that would not do, once a second.
        if sentinel.open(address, options).await.is_err() {
            return;
        }
        // Once for each move: the next connection tells where it went.
        *sentinel.current.lock() = None;
        let (shard, primary) = (&*sentinel.master, format!("{}:{}", address.0, address.1));
        tracing::info!(shard, primary, "Sentinel names another primary");
        self.node.revoke();
    }
}

async fn is_primary(
    connection: &mut MultiplexedConnection,
    options: &RedisOptions,
) -> Result<bool, Unconnected> {
    let command = redis::cmd("ROLE");
    let asking = command.query_async::<Vec<redis::Value>>(connection);
    let role = match time::timeout(options.connect_timeout, asking).await {
        Ok(Ok(role)) => role,
        Ok(Err(error)) => return Err(Unconnected::by(&error)),
        Err(_) => return Err(Failure::Timeout.into()),
    };
    let name =
        role.into_iter().next().and_then(|name| redis::from_redis_value::<String>(name).ok());
    Ok(name.ok_or(Failure::Reply)? == "master")
}

/// Where sentinels say that the primary is, and how many of them do: those that the most name first, and
/// of several the one that was named first.
fn by_votes(named: &[(String, u16)]) -> Vec<(&(String, u16), usize)> {
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

/// The address that more sentinels name than the one that is in use.
fn overruled<'a>(named: &'a [(String, u16)], current: &(String, u16)) -> Option<&'a (String, u16)> {
    let ranked = by_votes(named);
    let held =
        ranked.iter().find(|(address, _)| *address == current).map_or(0, |&(_, votes)| votes);
    ranked.first().filter(|&&(_, votes)| votes > held).map(|&(address, _)| address)
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

    #[test]
    fn only_more_votes_than_its_own_take_a_primary_away() {
        let overruled = |ports: &[u16], current| {
            overruled(&named(ports), &("h".to_owned(), current)).map(|address| address.1)
        };
        assert_eq!(overruled(&[2, 1], 1), None, "a tie, whoever was named first");
        assert_eq!(overruled(&[2, 1, 1], 1), None, "the fewer");
        assert_eq!(overruled(&[1, 2, 2], 1), Some(2));
        assert_eq!(overruled(&[2], 1), Some(2), "nobody names it any more");
        assert_eq!(overruled(&[], 1), None, "nobody answers");
    }
}
