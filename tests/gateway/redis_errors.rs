use std::time::Duration;

use rustix::process::Signal;
use testkit::{
    client::get,
    redis_server::RedisServer,
    wait::{eventually, timed},
};

use crate::unit_lease::{fixed_response_rules, start_process, with_redis};

const LIMIT: &str = "calls: {quota: 1000, window: 24h, resolution: 1, key: [], reserve: 100}";

#[test]
fn sigterm_stops_the_gateway_while_redis_hangs() {
    let redis = RedisServer::start();
    let yaml = with_redis(&redis, &fixed_response_rules(LIMIT, "calls"))
        .replace("timeout: 5s", "timeout: 1m");
    let mut process = start_process(&format!("drain_timeout: 1s\n{yaml}"));
    redis.suspend();
    process.signal(Signal::TERM);
    // At most three seconds, plus slack for a busy machine.
    let (ended, took) = timed(|| process.wait_exit());
    assert_eq!(ended.code(), Some(0));
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[test]
fn log_contains_the_error_code_of_redis() {
    let redis = RedisServer::start();
    let process = start_process(&with_redis(
        &redis,
        &fixed_response_rules(&LIMIT.replace("100}", "1}"), "calls"),
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
