use std::cell::RefCell;

use testkit::{
    redis_server::RedisServer,
    redis_topology::{primary, replicate},
    truncating_proxy::TruncatingProxy,
    yaml::fill,
};

use crate::{report::DataLoss, storm::Storm};

fn start_storm(url: &str) -> Storm {
    Storm::start(&fill("shards: [{primary: '{url}'}]", [("url", url)]), &[])
}

fn set_config(redis: &RedisServer, key: &str, value: &str) {
    let _: String = redis.command(&["CONFIG", "SET", key, value]);
}

#[test]
fn a_restart_without_data_loses_only_earlier_charges() {
    let redis = RefCell::new(RedisServer::start());
    let storm = start_storm(&redis.borrow().url());
    storm.run(
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
fn a_hang_loses_no_charge() {
    let redis = RedisServer::start();
    start_storm(&redis.url()).run(
        "hangs (kill -STOP, -CONT)",
        DataLoss::Nothing,
        |storm| {
            redis.suspend();
            storm.wait_detected();
            // Each client waits for one timeout: more requests make that a smaller share.
            (0..3).for_each(|_| storm.wait_for_traffic());
        },
        |_| redis.resume(),
    );
}

#[test]
fn an_out_of_memory_redis_loses_no_charge() {
    let redis = RedisServer::start_with(&["--maxmemory-policy", "noeviction"]);
    start_storm(&redis.url()).run(
        "out of memory (maxmemory 1, noeviction)",
        DataLoss::Nothing,
        |storm| {
            set_config(&redis, "maxmemory", "1");
            storm.wait_detected();
        },
        |_| set_config(&redis, "maxmemory", "0"),
    );
}

#[test]
fn a_demotion_loses_only_earlier_charges() {
    let [redis, other] = [primary(), primary()];
    start_storm(&redis.url()).run(
        "turned into a replica of an empty one (READONLY) and back",
        // It loads the data of the other, which is empty.
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
fn a_pause_loses_no_charge() {
    let redis = RedisServer::start();
    start_storm(&redis.url()).run(
        "CLIENT PAUSE for 2 s",
        DataLoss::Nothing,
        |storm| {
            let _: String = redis.command(&["CLIENT", "PAUSE", "2000", "ALL"]);
            storm.wait_detected();
            // A reply is sent when the pause ends.
            let _: String = redis.command(&["PING"]);
        },
        |_| {},
    );
}

#[test]
fn flushed_scripts_exceed_no_quota() {
    let redis = RedisServer::start();
    let figures = start_storm(&redis.url()).run(
        "SCRIPT FLUSH, three times",
        DataLoss::Nothing,
        |storm| {
            for _ in 0..3 {
                let _: String = redis.command(&["SCRIPT", "FLUSH"]);
                storm.wait_for_traffic();
            }
        },
        |_| {},
    );
    assert_eq!(figures.excess(), 0, "{figures:?}");
}

#[test]
fn truncated_replies_lose_no_charge() {
    let redis = RedisServer::start();
    let proxy = TruncatingProxy::start(redis.port());
    start_storm(&proxy.url()).run(
        "replies cut in half",
        DataLoss::Nothing,
        |storm| {
            proxy.truncate();
            storm.wait_detected();
        },
        |_| proxy.forward(),
    );
}
