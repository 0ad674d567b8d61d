//! Trace contexts of senders: continued, replaced or untouched, as configured.

use testkit::{client::get, gateway::Gateway, upstream::Upstream, yaml::fill};

use super::{Collector, NOT_TRACED, PARENT, header, hex, servers};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const NOT_SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

/// The `traceparent` and the `tracestate` that the upstream receives for a request with these
/// headers, from an address that is no trusted proxy's.
fn forwarded(yaml: &str, upstream: &Upstream, headers: &str) -> (Option<String>, Option<String>) {
    let gateway = Gateway::start(yaml);
    assert_eq!(get(gateway.address(), "/", headers).status, 200);
    let request = upstream.request_texts().pop().expect("a request");
    (header(&request, "traceparent"), header(&request, "tracestate"))
}

#[test]
fn without_traces_a_context_passes_untouched() {
    let upstream = Upstream::hello();
    let yaml = fill(NOT_TRACED, [("app", upstream.target())]);
    let sent = format!("traceparent: {PARENT}\r\ntracestate: a=1\r\n");
    let received = forwarded(&yaml, &upstream, &sent);
    assert_eq!(received, (Some(PARENT.to_owned()), Some("a=1".to_owned())));
    assert_eq!(forwarded(&yaml, &upstream, ""), (None, None));
}

#[test]
fn a_trusted_context_is_continued_whatever_is_sampled() {
    let (collector, upstream) = (Collector::start(), Upstream::hello());
    let yaml = collector.fill(
        "
        workers: 1
        traces: {endpoint: '{collector}/v1/traces', sample: 0, trust_parent: all}
        upstreams: {app: {targets: ['{app}']}}
        routes: [{name: rest, upstream: app}]
        ",
        &upstream,
    );
    // The trace is the sender's, the parent is a span of the gateway.
    let sent = format!("traceparent: {PARENT}\r\ntracestate: a=1\r\n");
    let (parent, state) = forwarded(&yaml, &upstream, &sent);
    let parent = parent.expect("a context");
    assert!(parent.starts_with(&format!("00-{TRACE}-")) && parent.ends_with("-01"), "{parent}");
    assert_ne!(parent, PARENT);
    assert_eq!(state.as_deref(), Some("a=1"));
    let spans = collector.wait(1);
    assert_eq!(
        (hex(&spans[0].trace_id), hex(&spans[0].parent_span_id)),
        (TRACE.into(), "00f067aa0ba902b7".into())
    );
}

#[test]
fn a_trusted_context_that_is_not_sampled_stays_as_it_is() {
    let (collector, upstream) = (Collector::start(), Upstream::hello());
    let yaml = collector.fill(
        "
        workers: 1
        traces: {endpoint: '{collector}/v1/traces', trust_parent: all}
        upstreams: {app: {targets: ['{app}']}}
        routes: [{name: rest, upstream: app}]
        ",
        &upstream,
    );
    let (parent, _) = forwarded(&yaml, &upstream, &format!("traceparent: {NOT_SAMPLED}\r\n"));
    assert_eq!(parent.as_deref(), Some(NOT_SAMPLED));
    assert_eq!(collector.server.connections(), 0);
}

#[test]
fn an_untrusted_or_malformed_context_is_replaced() {
    let (collector, upstream) = (Collector::start(), Upstream::hello());
    let sent = format!("traceparent: {PARENT}\r\ntracestate: a=1\r\n");
    let malformed = "traceparent: 00-xyz-1-01\r\ntracestate: a=1\r\n".to_owned();
    let twice = format!("{sent}{sent}");
    for (trust, headers) in
        [("trusted_proxies", &sent), ("all", &malformed), ("all", &twice), ("none", &sent)]
    {
        for (sample, flag) in [("0", "-00"), ("1", "-01")] {
            let yaml = fill(
                "
                workers: 1
                client: {trusted_proxies: [127.0.0.2/32]}
                traces: {endpoint: '{collector}/v1/traces', sample: {sample}, trust_parent: {trust}}
                upstreams: {app: {targets: ['{app}']}}
                routes: [{name: rest, upstream: app}]
                ",
                [
                    ("collector", &*collector.server.target()),
                    ("app", &upstream.target()),
                    ("sample", sample),
                    ("trust", trust),
                ],
            );
            let (parent, state) = forwarded(&yaml, &upstream, headers);
            let parent = parent.expect("a context");
            assert!(!parent.contains(TRACE) && parent.ends_with(flag), "{trust}: {parent}");
            assert_eq!((parent.len(), state), (55, None), "{trust}");
        }
    }
    assert_eq!(servers(&collector.wait(4)).len(), 4, "those with a sample of 1");
}
