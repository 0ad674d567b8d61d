use std::{cell::RefCell, time::Duration};

use crate::{
    cutter::Cutter,
    figures::Forgets,
    redis_server::RedisServer,
    redis_topology::{primary, replicate},
    storm::Storm,
    wait::pause,
};

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
        Forgets::AllBefore,
        |storm| {
            redis.borrow_mut().kill();
            storm.is_noticed();
        },
        |_| redis.borrow_mut().restart(),
    );
}

#[test]
fn hung() {
    let redis = RedisServer::start();
    over(&redis.url()).rages(
        "hangs (kill -STOP, -CONT)",
        Forgets::Nothing,
        |storm| {
            redis.suspend();
            storm.is_noticed();
            // Each client meets it once: the more requests, the fewer of a hundred they are.
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
        Forgets::Nothing,
        |storm| {
            set(&redis, "maxmemory", "1");
            storm.is_noticed();
        },
        |_| set(&redis, "maxmemory", "0"),
    );
}

#[test]
fn turned_into_a_replica_and_back() {
    let [redis, other] = [primary(), primary()];
    over(&redis.url()).rages(
        "turned into a replica of an empty one (READONLY) and back",
        // It takes over the other's data: none.
        Forgets::AllBefore,
        |storm| {
            replicate(&redis, &other);
            storm.is_noticed();
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
        Forgets::Nothing,
        |storm| {
            let _: String = redis.command(&["CLIENT", "PAUSE", "2000", "ALL"]);
            storm.is_noticed();
            // The pause is over when its time is.
            pause(Duration::from_secs(2));
        },
        |_| {},
    );
}

#[test]
fn scripts_forgotten() {
    let redis = RedisServer::start();
    let figures = over(&redis.url()).rages(
        "SCRIPT FLUSH, three times",
        Forgets::Nothing,
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
fn answers_cut_in_half() {
    let redis = RedisServer::start();
    let cutter = Cutter::before(redis.port());
    over(&cutter.url()).rages(
        "answers cut in half",
        Forgets::Nothing,
        |storm| {
            cutter.cut();
            storm.is_noticed();
        },
        |_| cutter.pass(),
    );
}
