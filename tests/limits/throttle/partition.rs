use testkit::{
    client::get, gateway::Gateway, redis_server::RedisServer, stalling_proxy::StallingProxy,
    wait::eventually, yaml::fill,
};

use super::{ON_REDIS, api};

const LAST_EXCHANGE: &str = "tidegate_throttle_sync_last_seconds";
const CALLS: &str = "tidegate_throttle_sync_calls_total";

#[test]
fn an_exchange_goes_on_over_a_new_connection_after_a_partition() {
    let (redis, upstream) = (RedisServer::start(), api());
    let proxy = StallingProxy::start(redis.port());
    let values = [
        ("redis", proxy.url()),
        ("target", upstream.target()),
        ("settings", "max_active: 60, resume_below: 54, capacity: 1000".to_owned()),
    ];
    let gateway = Gateway::start(&fill(ON_REDIS, values));
    eventually("it is ready", || get(gateway.admin(), "/readyz", "").status == 200);
    // Directly after an exchange, so that the next one begins on a connection that has stalled.
    let first = gateway.metric(LAST_EXCHANGE);
    eventually("an exchange", || gateway.metric(LAST_EXCHANGE) > first);
    proxy.stall();
    let (calls, last) = (gateway.metric(CALLS), gateway.metric(LAST_EXCHANGE));
    eventually("the next exchange has begun", || gateway.metric(CALLS) > calls);
    // Requests that wait in vain find the loss; a new connection works at once.
    eventually("filters are exchanged again", || {
        let response = get(gateway.address(), "/a", "Authorization: Bearer user\r\n");
        assert_eq!(response.status, 200, "{}", response.head);
        gateway.metric(LAST_EXCHANGE) > last + 1
    });
    let timeouts = gateway.metric("tidegate_throttle_sync_failures_total{kind=\"timeout\"}");
    assert_eq!(timeouts, 0, "no exchange waited for the old connection until its timeout");
}
