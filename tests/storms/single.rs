use std::{cell::RefCell, time::Duration};

use testkit::{
    redis_server::RedisServer,
    redis_topology::{primary, replicate},
    truncating_proxy::TruncatingProxy,
    wait::sleep,
};

use crate::{report::DataLoss, storm::Storm};

fn over(url: &str) -> Storm {
    Storm::over(&format!("shards: [{{primary: '{url}'}}]"), &[])
}

fn set(redis: &RedisServer, key: &str, value: &str) {
    let _: String = redis.command(&["CONFIG", "SET", key, value]);
}

#[test]
fn killed_and_started_empty() {
    let redis = RefCell::new(RedisServer::start());
    let storm = over(&redis.borrow().url());
    storm.rages(
        "killed, started again empty",
        DataLoss::AllBefore,
        |storm| {
            redis.borrow_mut().kill();
            storm.wait_detected();
        },
        |_| redis.borrow_mut().restart(),
    );
}

#[test]
fn hung() {
    let redis = RedisServer::start();
    over(&redis.url()).rages(
        "hangs (kill -STOP, -CONT)",
        DataLoss::Nothing,
        |storm| {
            redis.suspend();
            storm.wait_detected();
            // Each client is affected once: with more requests, the share is smaller.
            (0..3).for_each(|_| storm.goes_on());
        },
        |_| redis.resume(),
    );
}

#[test]
fn out_of_memory() {
    let redis = RedisServer::start_with(&["--maxmemory-policy", "noeviction"]);
    over(&redis.url()).rages(
        "out of memory (maxmemory 1, noeviction)",
        DataLoss::Nothing,
        |storm| {
            set(&redis, "maxmemory", "1");
            storm.wait_detected();
        },
        |_| set(&redis, "maxmemory", "0"),
    );
}

#[test]
fn demoted_and_promoted() {
    let [redis, other] = [primary(), primary()];
    over(&redis.url()).rages(
        "turned into a replica of an empty one (READONLY) and back",
        // It takes over the other's data, which is empty.
        DataLoss::AllBefore,
        |storm| {
            replicate(&redis, &other);
            storm.wait_detected();
        },
        |_| {
            let _: String = redis.command(&["REPLICAOF", "NO", "ONE"]);
        },
    );
}

#[test]
fn paused() {
    let redis = RedisServer::start();
    over(&redis.url()).rages(
        "CLIENT PAUSE for 2 s",
        DataLoss::Nothing,
        |storm| {
            let _: String = redis.command(&["CLIENT", "PAUSE", "2000", "ALL"]);
            storm.wait_detected();
            // The pause ends by itself.
            sleep(Duration::from_secs(2));
        },
        |_| {},
    );
}

#[test]
fn scripts_flushed() {
    let redis = RedisServer::start();
    let figures = over(&redis.url()).rages(
        "SCRIPT FLUSH, three times",
        DataLoss::Nothing,
        |storm| {
            for _ in 0..3 {
                let _: String = redis.command(&["SCRIPT", "FLUSH"]);
                storm.goes_on();
            }
        },
        |_| {},
    );
    assert_eq!(figures.over(), 0, "{figures:?}");
}

#[test]
fn replies_truncated() {
    let redis = RedisServer::start();
    let proxy = TruncatingProxy::start(redis.port());
    over(&proxy.url()).rages(
        "answers cut in half",
        DataLoss::Nothing,
        |storm| {
            proxy.truncate();
            storm.wait_detected();
        },
        |_| proxy.forward(),
    );
}
