//! Asks the sentinels once a second for the primary's address, to follow a failover without a
//! failed call.

use std::sync::Arc;

use ::redis::aio::MultiplexedConnection;
use futures_util::future::join_all;

use super::{
    connect,
    context::RedisContext,
    node::RedisNode,
    sentinel::{SentinelGroup, rank_by_votes},
};

/// Compares the sentinels' replies with the primary in use, over one connection to each sentinel.
pub struct SentinelWatch {
    sentinel: Arc<SentinelGroup>,
    node: Arc<RedisNode>,
    /// In the order of the sentinels; `None` if the next check must connect.
    connections: Box<[Option<MultiplexedConnection>]>,
}

impl SentinelWatch {
    pub(super) fn new(sentinel: Arc<SentinelGroup>, node: Arc<RedisNode>) -> Self {
        let connections = sentinel.sentinels.iter().map(|_| None).collect();
        Self { sentinel, node, connections }
    }

    /// Asks each sentinel once. Replaces all connections if another address has more votes than the
    /// one in use and the server there is a primary.
    pub(super) async fn check(&mut self, context: &RedisContext) {
        let Some(current) = self.sentinel.address() else { return };
        let sentinel = &self.sentinel;
        let replies =
            sentinel.sentinels.iter().zip(&mut self.connections).map(async |(client, cached)| {
                let mut connection = match cached.take() {
                    Some(connection) => connection,
                    None => connect::open(client, context).await.ok()?,
                };
                let address = sentinel.query_address(&mut connection, context).await.ok()?;
                *cached = Some(connection);
                Some(address)
            });
        let addresses: Vec<_> = join_all(replies).await.into_iter().flatten().collect();
        let Some(address) = newly_elected(&addresses, &current) else { return };
        // A working primary is kept rather than replaced by an unusable server.
        if sentinel.open_at(address, context).await.is_err() {
            return;
        }
        sentinel.invalidate();
        let (shard, primary) = (&*sentinel.master, format!("{}:{}", address.0, address.1));
        tracing::info!(shard, primary, "Sentinel names another primary");
        self.node.health.invalidate();
    }
}

/// The address with the most votes, if it has more votes than the one in use.
fn newly_elected<'a>(
    addresses: &'a [(String, u16)],
    current: &(String, u16),
) -> Option<&'a (String, u16)> {
    let ranked = rank_by_votes(addresses);
    let current_votes =
        ranked.iter().find(|(address, _)| *address == current).map_or(0, |&(_, votes)| votes);
    ranked.first().filter(|&&(_, votes)| votes > current_votes).map(|&(address, _)| address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(ports: &[u16]) -> Vec<(String, u16)> {
        ports.iter().map(|&port| ("h".to_owned(), port)).collect()
    }

    #[test]
    fn a_primary_is_replaced_only_by_an_address_with_more_votes() {
        let elected = |ports: &[u16], current| {
            newly_elected(&addresses(ports), &("h".to_owned(), current)).map(|address| address.1)
        };
        assert_eq!(elected(&[2, 1], 1), None, "a tie, in any order");
        assert_eq!(elected(&[2, 1, 1], 1), None, "fewer votes");
        assert_eq!(elected(&[1, 2, 2], 1), Some(2));
        assert_eq!(elected(&[2], 1), Some(2), "no sentinel names the current primary");
        assert_eq!(elected(&[], 1), None, "no sentinel replies");
    }
}
