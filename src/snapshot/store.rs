//! Where counters are kept: checked here, connected by the store.

use super::check::Check;
use crate::config::{Redis, RedisUrl, Store};

pub(super) fn check(check: &mut Check<'_>, store: &Store) {
    check.ensure(store.memory.max_keys > 0, "store.memory.max_keys", "`0`", "at least 1");
    if let Some(redis) = &store.redis {
        self::redis(check, redis);
    }
}

fn redis(check: &mut Check<'_>, redis: &Redis) {
    const ONE: &str = "`shards` with one primary";
    if !redis.cluster.is_empty() {
        check.unbuilt("store.redis.cluster", "`cluster`", ONE);
    }
    if redis.sentinel.is_some() {
        check.unbuilt("store.redis.sentinel", "`sentinel`", ONE);
    }
    match redis.shards.len() {
        0 if redis.cluster.is_empty() && redis.sentinel.is_none() => {
            check.fault("store.redis.shards", "no shard", ONE);
        }
        0 | 1 => {}
        _ => check.unbuilt("store.redis.shards", "more than one shard", ONE),
    }
    for (index, shard) in redis.shards.iter().enumerate() {
        let path = format!("store.redis.shards[{index}]");
        url(check, &format!("{path}.primary"), &shard.primary);
        if !shard.replicas.is_empty() {
            check.unbuilt(&format!("{path}.replicas"), "`replicas`", "a primary only");
        }
    }
    check.value_name("store.redis.namespace", &redis.namespace);
    check.some_time("store.redis.connect_timeout", redis.connect_timeout);
    check.some_time("store.redis.response_timeout", redis.response_timeout);
}

fn url(check: &mut Check<'_>, path: &str, url: &RedisUrl) {
    if url.is_tls() {
        check.unbuilt(path, "`rediss://`", "redis://");
    }
}
