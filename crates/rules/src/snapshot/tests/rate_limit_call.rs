//! The plans of arbitrary calls to the rate limit service.

use proptest::{collection::vec, option, prelude::*};
use prost::Message;
use tidegate_config as config;
use tidegate_envoy::rate_limit_service::messages::{
    DescriptorEntryMessage, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, UInt32Value,
    UInt64Value,
};
use tidegate_identity::{Consumer, KeySecret, OwnedConsumer};
use tidegate_limit::MAX_UNITS;

use super::super::{ChargeContext, HitAct, SecretReading, Snapshot};

const RULES: &str = "
rate_limit_service:
  address: 127.0.0.1:8081
  domains: {edge: {limits: [user, path, plan], consumer: 'descriptor:user'}}
limits:
  user: {quota: 5, window: 1m, key: [descriptor:user]}
  path: {quota: 2, window: 10s, key: [descriptor:user, descriptor:path]}
  plan: {quota: 7, window: 1h, key: [consumer], cost: 3}
plans: {none: {plan: 0}}
upstreams: {app: {respond: {}}}
routes: [{name: all, upstream: app}]
";

fn entry() -> impl Strategy<Value = DescriptorEntryMessage> {
    let key = prop::sample::select(vec!["user", "path", "other", ""]);
    (key, "[ab]{0,2}").prop_map(|(key, value)| DescriptorEntryMessage { key: key.into(), value })
}

fn own_limit() -> impl Strategy<Value = RateLimitOverride> {
    let count = option::of(any::<u32>().prop_map(|value| UInt32Value { value }));
    (0..3_u32, -1..9_i32, count).prop_map(|(requests_per_unit, unit, unit_multiplier)| {
        RateLimitOverride { requests_per_unit, unit, unit_multiplier }
    })
}

fn descriptor() -> impl Strategy<Value = RateLimitDescriptor> {
    let hits = option::of(prop_oneof![0..3_u64, any::<u64>()]);
    (vec(entry(), 0..4), option::weighted(0.1, own_limit()), hits, any::<bool>()).prop_map(
        |(entries, limit, hits, is_negative_hits)| RateLimitDescriptor {
            entries,
            limit,
            hits_addend: hits.map(|value| UInt64Value { value }),
            is_negative_hits,
        },
    )
}

fn call() -> impl Strategy<Value = RateLimitRequest> {
    (vec(descriptor(), 0..6), prop_oneof![0..3_u32, any::<u32>()]).prop_map(
        |(descriptors, hits_addend)| RateLimitRequest {
            domain: "edge".into(),
            descriptors,
            hits_addend,
        },
    )
}

fn snapshot() -> Snapshot {
    let loaded = config::parse("t.yaml", RULES).expect("a configuration");
    Snapshot::compile(&loaded, SecretReading::Unread).expect("rules")
}

/// Asserts what holds for the plan of every call.
fn check(snapshot: &Snapshot, call: &RateLimitRequest, plan: Option<&str>) {
    let domain = &snapshot.rate_limit_service.as_ref().expect("the service").domains["edge"];
    let context = ChargeContext::new(KeySecret(1, 2), None);
    let names = domain.consumers_of(call);
    assert_eq!(names.len(), call.descriptors.len());
    let consumers: Vec<Option<OwnedConsumer>> =
        names.iter().map(|name| name.map(|name| Consumer::new(name, plan).into())).collect();
    let Ok(planned) = domain.plan(call, &consumers, context) else {
        assert!(call.descriptors.iter().any(|own| own.limit.is_some()), "{call:?}");
        return;
    };
    assert_eq!(planned.rules.len(), call.descriptors.len());
    let mut seen = Vec::new();
    for hit in &planned.hits {
        assert!((1..=MAX_UNITS).contains(&hit.charge.cost), "{hit:?}");
        assert!(usize::from(hit.charge.limit_index) < domain.limits.len());
        for &index in &hit.descriptors {
            let own = &call.descriptors[index];
            let of_call = u64::from(call.hits_addend.max(1));
            let count = own.hits_addend.map_or(of_call, |own| own.value);
            let act = match (count, own.is_negative_hits) {
                (0, _) => HitAct::Peek,
                (_, true) => HitAct::Refund,
                (_, false) => HitAct::Charge,
            };
            assert_eq!(hit.act, act, "{own:?}");
        }
        let record = (hit.act, hit.charge.limit_index, hit.charge.key, hit.charge.quota.clone());
        assert!(!seen.contains(&record), "one record twice: {hit:?}");
        seen.push(record);
    }
    let again = domain.plan(call, &consumers, context).expect("a plan");
    assert_eq!(format!("{planned:?}"), format!("{again:?}"));
}

#[test]
fn every_call_has_a_plan_without_a_record_twice() {
    let snapshot = snapshot();
    proptest!(|(call in call(), plan in option::of(Just("none")))| {
        let decoded = RateLimitRequest::decode(&call.encode_to_vec()[..]);
        prop_assert_eq!(decoded.as_ref(), Ok(&call));
        check(&snapshot, &call, plan);
    });
}

#[test]
fn arbitrary_bytes_are_a_call_or_an_error() {
    let snapshot = snapshot();
    proptest!(|(call in call(), cuts in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4))| {
        let mut bytes = call.encode_to_vec();
        for (at, byte) in cuts.iter().filter(|_| !bytes.is_empty()).collect::<Vec<_>>() {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        if let Ok(call) = RateLimitRequest::decode(&bytes[..]) {
            check(&snapshot, &call, None);
        }
    });
}
