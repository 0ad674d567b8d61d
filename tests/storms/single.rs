use std::time::Duration;

use crate::{
    cutter::Cutter,
    redis_server::RedisServer,
    storm::{FEW, Storm},
    wait::pause,
};

fn section(url: &str) -> String {
    format!("shards: [{{primary: '{url}'}}]")
}

fn set(redis: &RedisServer, key: &str, value: &str) {
    let _: String = redis.command(&["CONFIG", "SET", key, value]);
}

#[test]
fn killed_and_started_empty() {
    let mut redis = RedisServer::start();
    let storm = Storm::over(&section(&redis.url()));
    let redis = std::cell::RefCell::new(&mut redis);
    let figures = storm.rages(
        "killed, started again empty",
        |storm| {
            redis.borrow_mut().kill();
            storm.is_noticed();
        },
        |_| redis.borrow_mut().restart(),
    );
    // What it knew is gone; what was let in while it was away is told to it.
    assert!(figures.over <= FEW, "{figures:?}");
}

#[test]
fn hung() {
    let redis = RedisServer::start();
    let storm = Storm::over(&section(&redis.url()));
    let figures = storm.rages(
        "kill -STOP, -CONT",
        |storm| {
            redis.suspend();
            storm.is_noticed();
        },
        |_| redis.resume(),
    );
    assert_eq!(figures.over, 0, "{figures:?}");
}

#[test]
fn out_of_memory() {
    let redis = RedisServer::start_with(&["--maxmemory-policy", "noeviction"]);
    let storm = Storm::over(&section(&redis.url()));
    let figures = storm.rages(
        "maxmemory 1, noeviction",
        |storm| {
            set(&redis, "maxmemory", "1");
            storm.is_noticed();
        },
        |_| set(&redis, "maxmemory", "0"),
    );
    assert_eq!(figures.over, 0, "{figures:?}");
}

#[test]
fn turned_into_a_replica_and_back() {
    let redis = RedisServer::start();
    let other = RedisServer::start();
    let storm = Storm::over(&section(&redis.url()));
    let port = other.url().rsplit_once(':').expect("a port").1.to_owned();
    let figures = storm.rages(
        "turned into a replica (READONLY) and back",
        |storm| {
            let _: String = redis.command(&["REPLICAOF", "127.0.0.1", &port]);
            storm.is_noticed();
        },
        |_| {
            let _: String = redis.command(&["REPLICAOF", "NO", "ONE"]);
        },
    );
    // It took over the other's data: none.
    assert!(figures.over <= FEW, "{figures:?}");
}

#[test]
fn paused() {
    let redis = RedisServer::start();
    let storm = Storm::over(&section(&redis.url()));
    let figures = storm.rages(
        "CLIENT PAUSE 2 s",
        |storm| {
            let _: String = redis.command(&["CLIENT", "PAUSE", "2000", "ALL"]);
            storm.is_noticed();
            pause(Duration::from_secs(2));
        },
        |_| {},
    );
    // Calls that were given up are carried out when the pause ends, and count.
    assert_eq!(figures.over, 0, "{figures:?}");
}

#[test]
fn scripts_forgotten() {
    let redis = RedisServer::start();
    let storm = Storm::over(&section(&redis.url()));
    let figures = storm.rages(
        "SCRIPT FLUSH, five times",
        |storm| {
            for _ in 0..5 {
                let _: String = redis.command(&["SCRIPT", "FLUSH"]);
                storm.goes_on();
            }
        },
        |_| {},
    );
    assert_eq!(figures.over, 0, "{figures:?}");
}

#[test]
fn answers_cut_in_half() {
    let redis = RedisServer::start();
    let port = redis.url().rsplit_once(':').expect("a port").1.parse().expect("a number");
    let cutter = Cutter::before(port);
    let storm = Storm::over(&section(&cutter.url()));
    let figures = storm.rages(
        "answers cut in half",
        |storm| {
            cutter.cut();
            storm.is_noticed();
        },
        |_| cutter.pass(),
    );
    assert_eq!(figures.over, 0, "{figures:?}");
}
