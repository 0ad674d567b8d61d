//! Asks the sentinels once a second whether the primary is another one.

use std::sync::Arc;

use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;

use super::{
    RedisOptions, client,
    node::Node,
    sentinel::{Sentinel, by_votes},
};

/// Asks the sentinels whether the primary is where connections go, over one connection to each.
pub(in crate::store) struct SentinelWatch {
    sentinel: Arc<Sentinel>,
    node: Arc<Node>,
    connections: Box<[Option<MultiplexedConnection>]>,
}

impl SentinelWatch {
    pub(super) fn new(sentinel: Arc<Sentinel>, node: Arc<Node>) -> Self {
        let connections = sentinel.nodes.iter().map(|_| None).collect();
        Self { sentinel, node, connections }
    }

    /// Asks once. When more sentinels name another address than the one that is in use, and the server there
    /// says that it is a primary, all connections are replaced.
    pub(super) async fn look(&mut self, options: &RedisOptions) {
        let Some(current) = self.sentinel.current() else { return };
        let sentinel = &self.sentinel;
        let asked = sentinel.nodes.iter().zip(&mut self.connections).map(async |(node, kept)| {
            let mut connection = match kept.take() {
                Some(connection) => connection,
                None => client::open(node, options.connect_timeout).await.ok()?,
            };
            let address = sentinel.ask(&mut connection, options).await.ok()?;
            *kept = Some(connection);
            Some(address)
        });
        let named: Vec<_> = join_all(asked).await.into_iter().flatten().collect();
        let Some(address) = overruled(&named, &current) else { return };
        // A primary that works is not left for one that would not.
        if sentinel.open_at(address, options).await.is_err() {
            return;
        }
        sentinel.forget();
        let (shard, primary) = (&*sentinel.master, format!("{}:{}", address.0, address.1));
        tracing::info!(shard, primary, "Sentinel names another primary");
        self.node.keeper.revoke();
    }
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
