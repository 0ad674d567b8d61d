use tidegate::clock::Clock;

use crate::{
    redis_server::RedisServer,
    support::{charge, limit, patient},
};

/// How often a command was called.
fn calls(redis: &RedisServer, command: &str) -> u32 {
    let stats: String = redis.command(&["INFO", "commandstats"]);
    let before = format!("cmdstat_{command}:calls=");
    let count = stats.split_once(&before).and_then(|(_, rest)| rest.split(',').next());
    count.map_or(0, |count| count.parse().expect("a number"))
}

#[tokio::test]
async fn a_connection_loads_only_the_scripts_that_redis_does_not_know() {
    let redis = RedisServer::start();
    let limit = limit("loaded", 1_000);
    let first = patient(&redis, Clock::system());
    let workers = [first.worker(), first.worker()];
    for worker in &workers {
        assert!(!worker.charge(&[charge(&limit, 1)], 0).await.unwrap().fallback);
    }
    assert_eq!(calls(&redis, "script|load"), 4, "by the first worker");

    redis.command::<()>(&["SCRIPT", "FLUSH"]);
    assert!(!workers[0].charge(&[charge(&limit, 1)], 0).await.unwrap().fallback);
    assert_eq!(calls(&redis, "eval"), 1, "a script that Redis forgot is sent with the call");
    let second = patient(&redis, Clock::system());
    assert!(!second.worker().charge(&[charge(&limit, 1)], 0).await.unwrap().fallback);
    assert_eq!(calls(&redis, "script|load"), 7, "the three others");
    assert_eq!(calls(&redis, "eval"), 1);
}
