//! The binary with a Redis that hangs or refuses.

use std::time::Duration;

use rustix::process::Signal;
use testkit::{
    client::get,
    redis_server::RedisServer,
    wait::{eventually, timed},
    yaml::fill,
};

use crate::unit_lease::start_process;

#[test]
fn sigterm_stops_the_gateway_while_redis_hangs() {
    let redis = RedisServer::start();
    let mut process = start_process(&fill(
        "
        listen: [{address: '127.0.0.1:0'}]
        admin: {address: '127.0.0.1:0', hosts: [gateway.test]}
        workers: 2
        access_log: off
        drain_timeout: 1s
        store: {redis: {shards: [{primary: '{redis}'}], connect_timeout: 1m, response_timeout: 1m}}
        upstreams: {hello: {respond: {body: hello}}}
        limits: {calls: {quota: 1000, window: 24h, resolution: 1, key: [], reserve: 100}}
        routes: [{name: a, match: {path: /a}, upstream: hello, limits: [calls]}]
        ",
        [("redis", redis.url())],
    ));
    redis.suspend();
    process.signal(Signal::TERM);
    // At most three seconds, plus slack for a busy machine.
    let (ended, took) = timed(|| process.wait_exit());
    assert_eq!(ended.code(), Some(0));
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[test]
fn the_log_names_the_error_code_that_redis_returns() {
    let redis = RedisServer::start();
    let process = start_process(&fill(
        "
        listen: [{address: '127.0.0.1:0'}]
        admin: {address: '127.0.0.1:0', hosts: [gateway.test]}
        workers: 2
        access_log: off
        store: {redis: {shards: [{primary: '{redis}'}], connect_timeout: 5s, response_timeout: 5s}}
        upstreams: {hello: {respond: {body: hello}}}
        limits: {calls: {quota: 1000, window: 24h, resolution: 1, key: [], reserve: 1}}
        routes: [{name: a, match: {path: /a}, upstream: hello, limits: [calls]}]
        ",
        [("redis", redis.url())],
    ));
    let command = ["ACL", "SETUSER", "default", "-evalsha"];
    assert_eq!(redis.command::<String>(&command), "OK");
    eventually("it is logged", || {
        assert_eq!(get(process.address, "/a", "Connection: close\r\n").status, 200);
        process.log_line("NOPERM").is_some()
    });
    let log = process.log_line("NOPERM").expect("a log line");
    assert!(log.contains("Redis refuses script calls"), "{log}");
    assert!(log.contains(&redis.address()), "{log}");
}
