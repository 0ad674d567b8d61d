//! Decodes encoded spans with the decoder that the OTLP project generated.

use std::time::Duration;

use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::any_value::Value,
    trace::v1::{Span, span::SpanKind},
};
use proptest::prelude::*;
use tidegate_base::time::Uptime;

use super::*;
use crate::{
    IdSource, ParentTrust, PeerServer, ReceivedContext, RequestStart, SamplingDecision,
    SamplingRules, UnixNanos,
};

/// A clock's uptime.
fn ms(time: u64) -> Uptime {
    Uptime::from_duration(Duration::from_millis(time))
}

fn begin(parent: Option<&[u8]>) -> Box<RequestTrace> {
    let received = ReceivedContext { parent, state: Some(b"vendor=1"), is_trusted: false };
    let time = UnixNanos::from_nanos(1_700_000_000_000_000_000);
    let start = || RequestStart { uptime: ms(100), time };
    let rules = SamplingRules::new(1.0, ParentTrust::All);
    match rules.begin(received, &IdSource::default(), start) {
        SamplingDecision::Sampled(trace) => trace,
        other => panic!("{other:?}"),
    }
}

fn summary() -> RequestSummary {
    RequestSummary {
        method: "GET".into(),
        path: "/items/7".into(),
        scheme: "https",
        protocol: "HTTP/2",
        host: "[::1]:8443".into(),
        client: Some("192.0.2.7".parse().unwrap()),
        consumer: Some("acme".into()),
        route: Some(("items".into(), "/items/{id}".into())),
        status: Some(200),
        limit: "admitted",
        refused_by: Vec::new(),
        request_id: "id".into(),
        error: None,
    }
}

fn decode(trace: &RequestTrace) -> Vec<Span> {
    let bytes = encode("edge", std::iter::once(trace));
    let request = <ExportTraceServiceRequest as prost::Message>::decode(&*bytes).unwrap();
    let [resource] = &request.resource_spans[..] else { panic!("one resource") };
    let attributes = &resource.resource.as_ref().unwrap().attributes;
    assert_eq!(attributes[0].key, "service.name");
    let [scope] = &resource.scope_spans[..] else { panic!("one scope") };
    assert_eq!(scope.scope.as_ref().unwrap().name, "tidegate");
    scope.spans.clone()
}

fn attribute(span: &Span, key: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        other => Some(format!("{other:?}")),
    }
}

#[test]
fn spans_have_their_times_parents_and_attributes() {
    let mut trace = begin(Some(b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"));
    trace.begin(ChildSpanKind::Charge { store: "redis", decision: "" }, ms(101));
    trace.end_charge("admitted", ms(102));
    let server =
        || PeerServer { address: "app".into(), port: Some(80), peer: None, scheme: "http" };
    trace.begin_attempt(server(), ms(103));
    let first = trace.attempt_id();
    trace.end_attempt(AttemptResult::Failed("timeout"), ms(104));
    trace.begin_attempt(server(), ms(105));
    trace.end_attempt(AttemptResult::Status(200), ms(106));
    trace.begin(ChildSpanKind::Delay, ms(106));
    trace.finish(summary(), Duration::from_millis(10));
    let spans = decode(&trace);
    let [own, charge, failed, repeated, delay] = &spans[..] else { panic!("{spans:#?}") };
    assert_eq!((&*own.name, own.kind), ("GET /items/{id}", SpanKind::Server as i32));
    assert_eq!(own.trace_id[..2], [0x4b, 0xf9]);
    assert_eq!(own.parent_span_id, [0, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]);
    assert_eq!((&*own.trace_state, own.flags, own.status.is_none()), ("vendor=1", 0x301, true));
    assert_eq!(own.start_time_unix_nano, 1_700_000_000_000_000_000);
    assert_eq!(own.end_time_unix_nano, 1_700_000_000_010_000_000);
    for (key, value) in [
        ("http.request.method", "GET"),
        ("http.route", "/items/{id}"),
        ("http.response.status_code", "200"),
        ("url.path", "/items/7"),
        ("url.scheme", "https"),
        ("server.address", "::1"),
        ("server.port", "8443"),
        ("client.address", "192.0.2.7"),
        ("enduser.id", "acme"),
        ("network.protocol.version", "2"),
        ("tidegate.limit.decision", "admitted"),
    ] {
        assert_eq!(attribute(own, key).as_deref(), Some(value), "{key}");
    }
    for child in [charge, failed, repeated, delay] {
        assert_eq!((&child.trace_id, &child.parent_span_id), (&own.trace_id, &own.span_id));
        assert_eq!(child.flags, 0x101);
    }
    assert_eq!(charge.start_time_unix_nano, 1_700_000_000_001_000_000);
    assert_eq!(attribute(charge, "tidegate.limit.decision").as_deref(), Some("admitted"));
    assert_eq!(
        (failed.kind, &failed.span_id[..]),
        (SpanKind::Client as i32, &first.to_be_bytes()[..])
    );
    assert_eq!(attribute(failed, "error.type").as_deref(), Some("timeout"));
    assert_eq!(failed.status.as_ref().unwrap().code, 2);
    assert_eq!(attribute(repeated, "http.request.resend_count").as_deref(), Some("1"));
    assert!(repeated.status.is_none());
    assert_eq!(delay.end_time_unix_nano, own.end_time_unix_nano);
    assert_eq!(attribute(delay, "error.type").as_deref(), Some("cancelled"));
}

#[test]
fn the_children_of_a_request_are_bounded() {
    let mut trace = begin(None);
    for time in 0..100 {
        trace.begin(ChildSpanKind::Delay, ms(time));
        trace.end(ms(time));
    }
    trace.finish(summary(), Duration::from_millis(1));
    let spans = decode(&trace);
    assert_eq!(spans.len(), 65);
    assert_eq!(attribute(&spans[0], "tidegate.dropped_children").as_deref(), Some("36"));
}

#[test]
fn hosts_are_split_at_their_port() {
    for (host, expected) in [
        ("a.test", ("a.test", None)),
        ("a.test:80", ("a.test", Some(80))),
        ("[::1]", ("::1", None)),
        ("[::1]:80", ("::1", Some(80))),
        ("a:x", ("a", None)),
        ("", ("", None)),
    ] {
        assert_eq!(split_port(host), expected, "{host}");
    }
}

proptest! {
    #[test]
    fn a_request_with_any_values_is_encoded(
        texts in proptest::array::uniform4(".{0,40}"),
        status in proptest::option::of(100_u16..600),
        refused_by in proptest::collection::vec("[a-z]{1,9}", 0..3),
    ) {
        let [method, path, host, request_id] = texts.map(String::into_boxed_str);
        let mut trace = begin(None);
        let refused: Vec<Box<str>> = refused_by.iter().map(|name| name.as_str().into()).collect();
        let summary = RequestSummary {
            method, path: path.clone(), host, request_id, status, refused_by: refused, ..summary()
        };
        trace.finish(summary, Duration::from_millis(1));
        let spans = decode(&trace);
        prop_assert_eq!(spans.len(), 1);
        prop_assert_eq!(attribute(&spans[0], "url.path"), Some(path.into_string()));
        let is_failed = status.is_none_or(|status| status >= 500);
        prop_assert_eq!(spans[0].status.is_some(), is_failed);
        let has_names = attribute(&spans[0], "tidegate.limit.refused_by").is_some();
        prop_assert_eq!(has_names, !refused_by.is_empty());
    }
}
