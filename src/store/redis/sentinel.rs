//! A primary that Sentinel watches: asked for whenever a connection is made, and once a second.

use std::sync::Arc;

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

    /// Connects to the primary: to the one that most sentinels name, if it says that it is one.
    pub(super) async fn primary(
        &self,
        options: &RedisOptions,
    ) -> Result<MultiplexedConnection, Unconnected> {
        let asked = self.nodes.iter().map(async |sentinel| {
            let mut connection = node::open(sentinel, options.connect_timeout).await?;
            self.ask(&mut connection, options).await.map_err(Unconnected::from)
        });
        let (mut named, mut last) = (Vec::new(), None);
        for answer in join_all(asked).await {
            match answer {
                Ok(address) => named.push(address),
                Err(why) => last = Some(why),
            }
        }
        let Some(address) = most_named(&named) else {
            let why = last.map_or_else(|| "no sentinel is known".to_owned(), |last| last.why);
            let why = format!("no sentinel names a primary: {why}");
            return Err(Unconnected { failure: Failure::Io, why });
        };
        let client = node::client_at(&self.primary, &address.0, address.1);
        let client = client.ok_or(Unconnected::from(Failure::Reply))?;
        let mut connection = node::open(&client, options.connect_timeout).await?;
        if !is_primary(&mut connection, options).await? {
            let why = format!("{}:{} is not the primary yet", address.0, address.1);
            return Err(Unconnected { failure: Failure::Server, why });
        }
        *self.current.lock() = Some(address.clone());
        Ok(connection)
    }

    async fn ask(
        &self,
        connection: &mut MultiplexedConnection,
        options: &RedisOptions,
    ) -> Result<(String, u16), Failure> {
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&*self.master);
        let asking = command.query_async::<Option<(String, u16)>>(connection);
        match time::timeout(options.connect_timeout, asking).await {
            Ok(Ok(address)) => address.ok_or(Failure::Reply),
            Ok(Err(error)) => Err(Failure::of(&error)),
            Err(_) => Err(Failure::Timeout),
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

    /// Asks once; when another address is named by the most, every connection is called wrong.
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
        let Some(address) = most_named(&named).filter(|address| **address != current) else {
            return;
        };
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
) -> Result<bool, Failure> {
    let command = redis::cmd("ROLE");
    let asking = command.query_async::<Vec<redis::Value>>(connection);
    let role = match time::timeout(options.connect_timeout, asking).await {
        Ok(Ok(role)) => role,
        Ok(Err(error)) => return Err(Failure::of(&error)),
        Err(_) => return Err(Failure::Timeout),
    };
    let name =
        role.into_iter().next().and_then(|name| redis::from_redis_value::<String>(name).ok());
    Ok(name.ok_or(Failure::Reply)? == "master")
}

/// What the most agree on; of several, the first.
fn most_named(named: &[(String, u16)]) -> Option<&(String, u16)> {
    let votes = |address: &(String, u16)| named.iter().filter(|other| *other == address).count();
    named.iter().rev().max_by_key(|address| votes(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_are_believed_and_of_several_the_first() {
        let named = |ports: &[u16]| ports.iter().map(|&p| ("h".to_owned(), p)).collect::<Vec<_>>();
        assert_eq!(most_named(&named(&[1, 2, 2])).unwrap().1, 2);
        assert_eq!(most_named(&named(&[1, 2])).unwrap().1, 1);
        assert_eq!(most_named(&[]), None);
    }
}
