//! Traces: what a collector receives, decoded by OTLP's own generated messages.

/// Trace contexts: continued, or begun anew.
mod context;

use std::{
    io::Write,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU16, AtomicUsize, Ordering::SeqCst},
    },
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::any_value::Value,
    trace::v1::{Span, span::SpanKind},
};
use prost::Message;
use testkit::{
    client::get,
    gateway::Gateway,
    protocol::on_every_protocol,
    tls::{Authority, TlsUpstream},
    upstream::Upstream,
    wait::eventually,
    yaml::fill,
};
use tidegate::clock::{Clock, StoreTime};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// A trace collector that keeps the spans of the requests that it accepts.
struct Collector {
    server: Upstream,
    spans: Arc<Mutex<Vec<Span>>>,
    /// The status of its responses.
    status: Arc<AtomicU16>,
}

impl Collector {
    fn start() -> Self {
        let (spans, status) = (Arc::<Mutex<Vec<Span>>>::default(), Arc::new(AtomicU16::new(200)));
        let (kept, answered) = (spans.clone(), status.clone());
        let server = Upstream::with_handler(move |request, socket| {
            let status = answered.load(SeqCst);
            if status == 200 {
                kept.lock().expect("no panic").extend(decode(request));
            }
            let head = format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n");
            socket.write_all(head.as_bytes()).is_ok()
        });
        Self { server, spans, status }
    }

    /// `yaml` with its URL as `{collector}`, and the upstream's as `{app}`.
    fn fill(&self, yaml: &str, app: &Upstream) -> String {
        fill(yaml, [("collector", self.server.target()), ("app", app.target())])
    }

    fn spans(&self) -> Vec<Span> {
        self.spans.lock().expect("no panic").clone()
    }

    /// Waits for this number of request spans, and returns all spans in the order of their
    /// requests.
    fn wait(&self, requests: usize) -> Vec<Span> {
        eventually("the collector has the requests", || servers(&self.spans()).len() >= requests);
        self.spans()
    }
}

fn decode(request: &[u8]) -> Vec<Span> {
    let end = request.windows(4).position(|window| window == b"\r\n\r\n").expect("a head") + 4;
    let head = String::from_utf8_lossy(&request[..end]).to_ascii_lowercase();
    assert!(head.starts_with("post /v1/traces http/1.1\r\n"), "{head}");
    assert!(head.contains("content-type: application/x-protobuf\r\n"), "{head}");
    let decoded = ExportTraceServiceRequest::decode(&request[end..]).expect("OTLP");
    let resources = decoded.resource_spans.into_iter();
    resources.flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans).collect()
}

/// The requests' own spans.
fn servers(spans: &[Span]) -> Vec<&Span> {
    spans.iter().filter(|span| span.kind == SpanKind::Server as i32).collect()
}

fn children<'s>(spans: &'s [Span], parent: &Span) -> Vec<&'s Span> {
    spans.iter().filter(|span| span.parent_span_id == parent.span_id).collect()
}

fn text(span: &Span, key: &str) -> String {
    let found = span.attributes.iter().find(|attribute| attribute.key == key);
    match found.and_then(|attribute| attribute.value.as_ref()?.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(other) => format!("{other:?}"),
        None => String::new(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// The value of a header in a request that an upstream received.
fn header(request: &str, name: &str) -> Option<String> {
    let fields = request.lines().skip(1).filter_map(|line| line.split_once(": "));
    let mut values = fields.filter(|(field, _)| field.eq_ignore_ascii_case(name));
    let value = values.next().map(|(_, value)| value.to_owned());
    assert!(values.next().is_none(), "{name} twice: {request}");
    value
}

/// Every request is traced.
const TRACED: &str = "
workers: 1
traces: {endpoint: '{collector}/v1/traces'}
upstreams: {app: {targets: ['{app}']}}
routes: [{name: rest, upstream: app}]
";

const NOT_TRACED: &str = "
workers: 1
upstreams: {app: {targets: ['{app}']}}
routes: [{name: rest, upstream: app}]
";

#[test]
fn a_request_is_a_span_with_its_decision_and_its_attempts() {
    let collector = Collector::start();
    let bad = Upstream::with_handler(|_, _| false);
    let good = Upstream::hello();
    let gateway = Gateway::for_every_protocol(&fill(
        "
        workers: 1
        traces: {endpoint: '{collector}/v1/traces', service_name: edge}
        upstreams: {app: {targets: ['{bad}', '{good}'], balance: round_robin, retries: 1}}
        limits: {few: {quota: 3, window: 1h, key: [token]}}
        routes: [{name: items, match: {path: '/items/{id}'}, upstream: app, limits: [few]}]
        ",
        [("collector", collector.server.target()), ("bad", bad.target()), ("good", good.target())],
    ));
    let traced = std::cell::Cell::new(0);
    on_every_protocol(|protocol| {
        let mut client = protocol.connect(&gateway);
        let authorization = format!("Authorization: Bearer secret-{protocol:?}\r\n");
        let before = good.request_count();
        for _ in 0..2 {
            let response = client.get("/items/7?key=hunter2", &authorization);
            assert_eq!(response.status, 200);
        }
        traced.set(traced.get() + 2);
        let spans = collector.wait(traced.get());
        let own = servers(&spans);
        let own = &own[traced.get() - 2..];
        let mut attempts: Vec<usize> = Vec::new();
        for (at, request) in own.iter().enumerate() {
            assert_eq!(
                (&*request.name, &*text(request, "http.route")),
                ("GET /items/{id}", "/items/{id}")
            );
            assert_eq!(text(request, "http.response.status_code"), "200");
            assert_eq!(text(request, "tidegate.limit.decision"), "admitted");
            assert_eq!(text(request, "url.path"), "/items/7");
            assert_eq!(text(request, "url.scheme"), protocol.scheme());
            let of_request = children(&spans, request);
            let [charge, tries @ ..] = &of_request[..] else { panic!("{of_request:#?}") };
            assert_eq!(
                (&*charge.name, &*text(charge, "tidegate.store")),
                ("charge limits", "memory")
            );
            for child in &of_request {
                assert_eq!(child.trace_id, request.trace_id);
                let is_within = request.start_time_unix_nano <= child.start_time_unix_nano
                    && child.start_time_unix_nano <= child.end_time_unix_nano
                    && child.end_time_unix_nano <= request.end_time_unix_nano + 1_000_000;
                assert!(is_within, "{child:#?} in {request:#?}");
            }
            let last = tries.last().expect("an attempt");
            assert_eq!(text(last, "http.response.status_code"), "200");
            assert_eq!(text(last, "server.port"), good.address.port().to_string());
            if let [failed, _] = tries {
                assert_eq!(text(failed, "error.type"), "connection_lost");
                assert_eq!(text(failed, "server.port"), bad.address.port().to_string());
                assert_eq!(text(last, "http.request.resend_count"), "1");
            }
            attempts.push(tries.len());
            // The server's spans are children of the attempt that it got.
            let received = good.request_texts()[before + at].clone();
            let expected = format!("00-{}-{}-01", hex(&request.trace_id), hex(&last.span_id));
            assert_eq!(header(&received, "traceparent"), Some(expected));
        }
        attempts.sort_unstable();
        assert_eq!(attempts, [1, 2], "one of the two began at the target that fails");
    });
    let bytes = String::from_utf8_lossy(&collector.server.received_bytes()).into_owned();
    assert!(bytes.contains("edge"));
    for secret in ["secret-", "hunter2"] {
        assert!(!bytes.contains(secret), "{secret} was sent to the collector");
    }
}

#[test]
fn a_span_names_the_consumer() {
    let collector = Collector::start();
    let upstream = Upstream::hello();
    let yaml = "
        workers: 1
        traces: {endpoint: '{collector}/v1/traces'}
        auth: {keys: {api_key: {}}}
        consumers: {entries: [{name: acme, keys: [{sha256: {hash}}]}]}
        upstreams: {app: {targets: ['{app}']}}
        routes: [{name: rest, upstream: app, auth: [keys]}]
        "
    .replace("{hash}", &tidegate::auth::KeyHash::of(b"hunter2").to_string());
    let gateway = Gateway::start(&collector.fill(&yaml, &upstream));
    for (key, status) in [("hunter2", 200), ("other", 401)] {
        assert_eq!(get(gateway.address(), "/", &format!("X-Api-Key: {key}\r\n")).status, status);
    }
    let spans = collector.wait(2);
    let names = servers(&spans).into_iter().map(|span| text(span, "enduser.id"));
    assert_eq!(names.collect::<Vec<_>>(), ["acme", ""]);
    let bytes = String::from_utf8_lossy(&collector.server.received_bytes()).into_owned();
    assert!(!bytes.contains("hunter2"));
}

#[test]
fn a_refusal_is_a_span_without_attempts() {
    let collector = Collector::start();
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&collector.fill(
        "
        workers: 1
        traces: {endpoint: '{collector}/v1/traces'}
        upstreams: {app: {targets: ['{app}']}}
        limits: {few: {quota: 3, window: 1h, key: [token]}}
        routes: [{name: items, match: {path: '/items/{id}'}, upstream: app, limits: [few]}]
        ",
        &upstream,
    ));
    for _ in 0..4 {
        get(gateway.address(), "/items/1", "Authorization: Bearer a\r\n");
    }
    let spans = collector.wait(4);
    let refused = servers(&spans)[3];
    assert_eq!(text(refused, "http.response.status_code"), "429");
    assert_eq!(text(refused, "tidegate.limit.decision"), "refused");
    assert!(text(refused, "tidegate.limit.refused_by").contains("few"));
    assert_eq!(children(&spans, refused).len(), 1, "the decision alone");
    assert!(refused.status.is_none(), "what a client did wrong is no error of the server");
    gateway.wait_for_metric("tidegate_trace_spans_total{outcome=\"sent\"", spans.len() as u64);
    let accept = "Accept: application/openmetrics-text\r\n";
    let metrics = get(gateway.admin(), "/metrics", accept).text();
    let exemplar = format!(" # {{trace_id=\"{}\"}} ", hex(&refused.trace_id));
    let line = metrics.lines().find(|line| line.contains(&exemplar)).expect("an exemplar");
    assert!(line.starts_with("tidegate_request_duration_seconds_bucket{"), "{line}");
    assert!(!get(gateway.admin(), "/metrics", "").text().contains("trace_id"));
}

#[test]
fn without_a_sampled_request_no_request_is_sent_to_the_collector() {
    let collector = Collector::start();
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&collector.fill(
        "
        workers: 1
        traces: {endpoint: '{collector}/v1/traces', sample: 0}
        upstreams: {app: {targets: ['{app}']}}
        routes: [{name: rest, upstream: app}]
        ",
        &upstream,
    ));
    for _ in 0..20 {
        assert_eq!(get(gateway.address(), "/", &format!("traceparent: {PARENT}\r\n")).status, 200);
    }
    gateway.stop();
    assert_eq!(collector.server.connections(), 0);
}

#[test]
fn spans_that_wait_are_sent_when_the_gateway_stops() {
    let collector = Collector::start();
    let upstream = Upstream::hello();
    let clock = Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000));
    let gateway = Gateway::start_at(&collector.fill(TRACED, &upstream), clock);
    for _ in 0..3 {
        assert_eq!(get(gateway.address(), "/", "").status, 200);
    }
    assert_eq!(collector.spans().len(), 0, "the clock stands");
    gateway.stop();
    assert_eq!(servers(&collector.spans()).len(), 3);
}

#[test]
fn a_collector_that_is_down_costs_a_bounded_queue() {
    let collector = Collector::start();
    collector.status.store(503, SeqCst);
    let upstream = Upstream::hello();
    let clock = Clock::simulated(StoreTime::from_unix_ms(1_700_000_000_000));
    let yaml = collector.fill(
        "
        workers: 1
        traces: {endpoint: '{collector}/v1/traces', max_queue: 5}
        upstreams: {app: {targets: ['{app}']}}
        routes: [{name: rest, upstream: app}]
        ",
        &upstream,
    );
    let gateway = Gateway::start_at(&yaml, clock);
    gateway.while_time_passes(|| {
        assert_eq!(get(gateway.address(), "/", "").status, 200);
        eventually("the first is refused", || collector.server.request_count() > 0);
        for _ in 0..20 {
            assert_eq!(get(gateway.address(), "/", "").status, 200);
        }
        // Each has two spans: its own and an attempt.
        gateway.wait_for_metric("tidegate_trace_spans_total{outcome=\"dropped\"", 30);
        assert_eq!(gateway.metric("tidegate_trace_queue"), 5);
        collector.status.store(200, SeqCst);
        assert_eq!(servers(&collector.wait(6)).len(), 6);
        gateway.wait_for_metric("tidegate_trace_spans_total{outcome=\"sent\"", 12);
        assert_eq!(gateway.metric("tidegate_trace_queue"), 0);
        // What the collector refuses for good is not repeated.
        collector.status.store(400, SeqCst);
        assert_eq!(get(gateway.address(), "/", "").status, 200);
        gateway.wait_for_metric("tidegate_trace_spans_total{outcome=\"rejected\"", 2);
    });
}

#[test]
fn a_reload_moves_the_spans_to_another_collector() {
    let (first, second) = (Collector::start(), Collector::start());
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&first.fill(TRACED, &upstream));
    assert_eq!(get(gateway.address(), "/", "").status, 200);
    first.wait(1);
    gateway.reload(&second.fill(TRACED, &upstream)).expect("a reload");
    eventually("the workers have the new rules", || {
        get(gateway.address(), "/", "");
        !second.spans().is_empty()
    });
    let without = fill(NOT_TRACED, [("app", upstream.target())]);
    gateway.reload(&without).expect("a reload");
    eventually("the workers have the new rules", || {
        get(gateway.address(), "/", "");
        header(upstream.request_texts().last().expect("a request"), "traceparent").is_none()
    });
}

#[test]
fn a_collector_behind_tls_gets_its_credentials() {
    let directory = tempfile::tempdir().expect("a directory");
    let authority = Authority::new("collectors");
    let ca = authority.write(directory.path(), "ca");
    let key = directory.path().join("key");
    std::fs::write(&key, "Bearer collector-key\n").expect("a file");
    let received = Arc::new(AtomicUsize::new(0));
    let counted = received.clone();
    let identity = authority.issue(&["127.0.0.1"]);
    let collector = TlsUpstream::start(identity.server(), move |head, stream| {
        if head.contains("Bearer collector-key") {
            counted.fetch_add(1, SeqCst);
        }
        let _ =
            stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        false
    });
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&fill(
        "
        workers: 1
        traces:
          endpoint: 'https://{collector}/v1/traces'
          tls_ca: {ca}
          headers: {authorization: 'file:{key}'}
        upstreams: {app: {targets: ['{app}']}}
        routes: [{name: rest, upstream: app}]
        ",
        [
            ("collector", collector.address.to_string()),
            ("ca", ca.display().to_string()),
            ("key", key.display().to_string()),
            ("app", upstream.target()),
        ],
    ));
    assert_eq!(get(gateway.address(), "/", "").status, 200);
    eventually("the collector gets the credentials", || received.load(SeqCst) > 0);
    gateway.wait_for_metric("tidegate_trace_spans_total{outcome=\"sent\"", 2);
}
