//! Bytes of a client of the rate limit service are split into messages, and read and planned as a
//! call, or refused.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use prost::Message;
use tidegate::{
    config,
    grpc::{decode_message, frame_message, next_frame, reflection::ReflectionRequest},
    identity::{Consumer, OwnedConsumer},
    limit::MAX_UNITS,
    rate_limit_service::messages::RateLimitRequest,
    secret::KeySecret,
    snapshot::{ChargeContext, SecretReading, Snapshot},
};

const RULES: &str = "
rate_limit_service:
  address: 127.0.0.1:8081
  domains: {edge: {limits: [user, path], consumer: 'descriptor:user'}}
limits:
  user: {quota: 5, window: 1m, key: [descriptor:user]}
  path: {quota: 2, window: 10s, key: [descriptor:user, descriptor:path]}
upstreams: {app: {respond: {}}}
routes: [{name: all, upstream: app}]
";

static SNAPSHOT: LazyLock<Snapshot> = LazyLock::new(|| {
    let loaded = config::parse("fuzz.yaml", RULES).expect("a configuration");
    Snapshot::compile(&loaded, SecretReading::Unread).expect("rules")
});

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    while let Ok(Some(frame)) = next_frame(rest) {
        assert!(frame.rest.len() < rest.len());
        assert_eq!(decode_message(&frame_message(frame.message)), Ok(frame.message));
        rest = frame.rest;
    }
    let _ = ReflectionRequest::decode(bytes);
    let Ok(call) = RateLimitRequest::decode(bytes) else { return };
    let service = SNAPSHOT.rate_limit_service.as_ref().expect("the service");
    let domain = &service.domains["edge"];
    let context = ChargeContext::new(KeySecret(1, 2), None);
    let names = domain.consumers_of(&call);
    assert_eq!(names.len(), call.descriptors.len());
    let consumers: Vec<Option<OwnedConsumer>> =
        names.iter().map(|name| name.map(|name| Consumer::new(name, None).into())).collect();
    let Ok(planned) = domain.plan(&call, &consumers, context) else { return };
    assert_eq!(planned.rules.len(), call.descriptors.len());
    for hit in &planned.hits {
        assert!((1..=MAX_UNITS).contains(&hit.charge.cost));
        assert!(hit.descriptors.iter().all(|index| *index < call.descriptors.len()));
        assert!(usize::from(hit.charge.limit_index) < domain.limits.len());
    }
});
