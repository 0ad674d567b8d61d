//! Encodes the spans of requests as OTLP messages. Attributes have the names of the semantic
//! conventions for HTTP where these define one.

use prost::Message;

use super::{
    AttemptResult, ChildSpanKind, RequestTrace, SpanContext,
    messages::{
        AnyValue, ArrayValue, ExportRequest, KeyValue, Resource, ResourceSpans, Scope, ScopeSpans,
        Span, SpanKind, SpanLink, SpanStatus, SpanStatusCode, Value,
    },
    request::{Child, RequestSummary},
};

/// The flags of each span: it is sampled, and [`IS_REMOTE`] is valid.
const FLAGS: u32 = 0x101;
/// The flag of a span whose parent is in another process.
const IS_REMOTE: u32 = 0x200;
/// The known methods; any other becomes `_OTHER`.
const METHODS: [&str; 9] =
    ["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"];

/// The body of a request to the collector, with the spans of `traces`.
pub(super) fn encode<'t>(
    service_name: &str,
    traces: impl Iterator<Item = &'t RequestTrace>,
) -> Vec<u8> {
    let version = env!("CARGO_PKG_VERSION");
    let resource = Resource {
        attributes: vec![text("service.name", service_name), text("service.version", version)],
    };
    let scope = Scope { name: "tidegate".to_owned(), version: version.to_owned() };
    let spans = traces.flat_map(spans).collect();
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans }];
    let resource_spans = vec![ResourceSpans { resource: Some(resource), scope_spans }];
    ExportRequest { resource_spans }.encode_to_vec()
}

fn spans(trace: &RequestTrace) -> impl Iterator<Item = Span> {
    let method = trace.summary.as_ref().map_or("", |summary| &*summary.method);
    let children = trace.children.iter().map(move |child| child_span(trace, child, method));
    trace.summary.iter().map(|summary| request_span(trace, summary)).chain(children)
}

fn request_span(trace: &RequestTrace, summary: &RequestSummary) -> Span {
    let method = known_method(&summary.method);
    let route = summary.route.as_ref();
    let name = match (method, route) {
        (None, None) => "HTTP".to_owned(),
        (None, Some((_, pattern))) => format!("HTTP {pattern}"),
        (Some(method), None) => method.to_owned(),
        (Some(method), Some((_, pattern))) => format!("{method} {pattern}"),
    };
    let links = trace.link.iter().map(|link| SpanLink {
        trace_id: link.trace_id.to_be_bytes().into(),
        span_id: link.span_id.to_be_bytes().into(),
        flags: 0x100 | IS_REMOTE,
    });
    let is_failed = summary.error.is_some() || summary.status.is_none_or(|status| status >= 500);
    Span {
        parent_span_id: trace.parent.map(|id| id.to_be_bytes().into()).unwrap_or_default(),
        flags: if trace.parent.is_some() { FLAGS | IS_REMOTE } else { FLAGS },
        attributes: request_attributes(summary, method, trace.dropped_children),
        links: links.collect(),
        status: is_failed.then_some(ERROR),
        start_time_unix_nano: trace.start.time.as_nanos(),
        end_time_unix_nano: trace.nanos(trace.end),
        ..span(trace, trace.context.span_id, name, SpanKind::Server)
    }
}

const ERROR: SpanStatus = SpanStatus { code: SpanStatusCode::Error as i32 };

fn span(trace: &RequestTrace, id: u64, name: String, kind: SpanKind) -> Span {
    let SpanContext { trace_id, span_id } = trace.context;
    Span {
        trace_id: trace_id.to_be_bytes().into(),
        span_id: id.to_be_bytes().into(),
        trace_state: trace.state.as_deref().unwrap_or_default().to_owned(),
        parent_span_id: span_id.to_be_bytes().into(),
        flags: FLAGS,
        name,
        kind: kind.into(),
        ..Span::default()
    }
}

fn request_attributes(
    summary: &RequestSummary,
    method: Option<&str>,
    dropped_children: u32,
) -> Vec<KeyValue> {
    let mut attributes = vec![
        text("http.request.method", method.unwrap_or("_OTHER")),
        text("url.path", &summary.path),
        text("url.scheme", summary.scheme),
        text("tidegate.limit.decision", summary.limit),
        text("tidegate.request_id", &summary.request_id),
    ];
    if method.is_none() && !summary.method.is_empty() {
        attributes.push(text("http.request.method_original", &summary.method));
    }
    if let Some((name, pattern)) = &summary.route {
        attributes.push(text("http.route", pattern));
        attributes.push(text("tidegate.route", name));
    }
    if let Some((_, version)) = summary.protocol.split_once('/') {
        attributes.push(text("network.protocol.version", version));
    }
    let (host, port) = split_port(&summary.host);
    if !host.is_empty() {
        attributes.push(text("server.address", host));
    }
    attributes.extend(port.map(|port| number("server.port", port.into())));
    attributes.extend(summary.client.map(|ip| text("client.address", &ip.to_string())));
    attributes.extend(summary.consumer.as_deref().map(|name| text("enduser.id", name)));
    attributes.extend(summary.status.map(|it| number("http.response.status_code", it.into())));
    if !summary.refused_by.is_empty() {
        let names = summary
            .refused_by
            .iter()
            .map(|name| AnyValue { value: Some(Value::Text(name.to_string())) });
        let value = Value::List(ArrayValue { values: names.collect() });
        attributes.push(attribute("tidegate.limit.refused_by", value));
    }
    let status = summary.status.filter(|status| *status >= 500).map(|status| status.to_string());
    if let Some(error) = summary.error.map(str::to_owned).or(status) {
        attributes.push(text("error.type", &error));
    }
    if dropped_children > 0 {
        attributes.push(number("tidegate.dropped_children", dropped_children.into()));
    }
    attributes
}

fn child_span(trace: &RequestTrace, child: &Child, method: &str) -> Span {
    let mut attributes = Vec::new();
    let mut is_failed = child.end.is_none();
    let (name, kind) = match &child.work {
        ChildSpanKind::Charge { store, decision } => {
            attributes.push(text("tidegate.store", store));
            if !decision.is_empty() {
                attributes.push(text("tidegate.limit.decision", decision));
            }
            ("charge limits", SpanKind::Internal)
        }
        ChildSpanKind::Correction { store } => {
            attributes.push(text("tidegate.store", store));
            ("correct charges", SpanKind::Internal)
        }
        ChildSpanKind::Delay => ("wait for a slot", SpanKind::Internal),
        ChildSpanKind::Attempt { server, resends, result } => {
            let method = known_method(method);
            attributes.push(text("http.request.method", method.unwrap_or("_OTHER")));
            attributes.push(text("server.address", &server.address));
            attributes.push(text("url.scheme", server.scheme));
            attributes.extend(server.port.map(|port| number("server.port", port.into())));
            if let Some(peer) = server.peer {
                attributes.push(text("network.peer.address", &peer.ip().to_string()));
                attributes.push(number("network.peer.port", peer.port().into()));
            }
            if *resends > 0 {
                attributes.push(number("http.request.resend_count", i64::from(*resends)));
            }
            match result {
                Some(AttemptResult::Status(status)) => {
                    attributes.push(number("http.response.status_code", i64::from(*status)));
                    is_failed = *status >= 400;
                    if is_failed {
                        attributes.push(text("error.type", &status.to_string()));
                    }
                }
                Some(AttemptResult::Failed(error)) => {
                    attributes.push(text("error.type", error));
                    is_failed = true;
                }
                None => {}
            }
            (method.unwrap_or("HTTP"), SpanKind::Client)
        }
    };
    if child.end.is_none() {
        attributes.push(text("error.type", "cancelled"));
    }
    Span {
        attributes,
        status: is_failed.then_some(ERROR),
        start_time_unix_nano: trace.nanos(child.start),
        end_time_unix_nano: trace.nanos(child.end.unwrap_or(trace.end)),
        ..span(trace, child.id, name.to_owned(), kind)
    }
}

fn known_method(method: &str) -> Option<&str> {
    METHODS.contains(&method).then_some(method)
}

/// The host, without the brackets of IPv6, and the port.
fn split_port(host: &str) -> (&str, Option<u16>) {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port.parse().ok()),
        _ => (host, None),
    };
    (name.trim_start_matches('[').trim_end_matches(']'), port)
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::Text(value.to_owned()))
}

fn number(key: &str, value: i64) -> KeyValue {
    attribute(key, Value::Number(value))
}

#[cfg(test)]
mod tests;
