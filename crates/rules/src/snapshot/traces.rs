//! Compiles the `traces` section.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, header};
use rustls::ClientConfig;
use tidegate_config::{self as config, ConfigSource, EnvLookup, Fault, Faults, SecretReference};
use tidegate_tls::{ClientTls, TlsFile, client::OfferedToServer};
use tidegate_trace::{ExportSettings, ParentTrust, SamplingRules};

use super::Snapshot;
use super::listen::tls_fault;
use super::parts::header as header_name;
use super::section::Section;

/// The header fields that the gateway writes itself in requests to the collector.
const OWN_HEADERS: [HeaderName; 5] = [
    header::CONTENT_TYPE,
    header::CONTENT_LENGTH,
    header::HOST,
    header::TRANSFER_ENCODING,
    header::CONNECTION,
];

/// Sampling, and the destination of spans.
#[derive(Debug)]
pub struct TraceRules {
    /// The rules of sampling.
    pub sampling: SamplingRules,
    endpoint: Box<str>,
    service_name: Box<str>,
    headers: Vec<(HeaderName, SecretReference)>,
    tls: CollectorTls,
    timeout: Duration,
    max_queue: usize,
}

/// TLS settings for the collector.
#[derive(Debug)]
struct CollectorTls {
    config: Arc<ClientConfig>,
    /// The files they were read from.
    files: Arc<[TlsFile]>,
}

impl Snapshot {
    /// The settings for sending spans, with secrets read through `env`; `None` if none are sent.
    ///
    /// # Errors
    ///
    /// A secret cannot be read, or is not a valid header value.
    pub fn export_settings(
        &self,
        source: &ConfigSource,
        env: EnvLookup<'_>,
    ) -> Result<Option<ExportSettings>, Faults> {
        self.traces.as_ref().map(|traces| traces.export_settings(source, env)).transpose()
    }
}

impl TraceRules {
    pub(super) fn tls_files(&self) -> &[TlsFile] {
        &self.tls.files
    }

    fn export_settings(
        &self,
        source: &ConfigSource,
        env: EnvLookup<'_>,
    ) -> Result<ExportSettings, Faults> {
        let mut headers = HeaderMap::new();
        for (name, reference) in &self.headers {
            let fault = |what: String, expected: &str| -> Fault {
                source.fault(&format!("traces.headers.{name}"), what, expected)
            };
            let secret = reference.reveal(env).map_err(|error| {
                fault(error.to_string(), "a secret that the gateway can read when it starts")
            })?;
            let mut value = HeaderValue::from_str(secret.trim()).map_err(|_| {
                let what = format!("the secret in {reference} is not a valid header value");
                fault(what, "visible ASCII")
            })?;
            value.set_sensitive(true);
            headers.insert(name.clone(), value);
        }
        Ok(ExportSettings {
            endpoint: self.endpoint.clone(),
            service_name: self.service_name.clone(),
            headers,
            tls: Arc::clone(&self.tls.config),
            timeout: self.timeout,
            max_queue: self.max_queue,
        })
    }
}

/// Compiles the section; `None` if it is missing or faulty.
pub(super) fn compile(
    section: &Section<'_>,
    traces: Option<&config::Traces>,
) -> Option<TraceRules> {
    let traces = traces?;
    note_endpoint(section, &traces.endpoint);
    if traces.sample <= 0.0 && traces.trust_parent == ParentTrust::None {
        let what = "`0`: no request is sampled";
        section.at("sample").note(what, "more than 0, or a `trust_parent` that decides");
    }
    let is_named = !traces.service_name.trim().is_empty();
    section.at("service_name").ensure(is_named, "an empty name", "a name, such as tidegate");
    let headers = headers(section, traces);
    Some(TraceRules {
        sampling: SamplingRules::new(traces.sample, traces.trust_parent),
        endpoint: traces.endpoint.to_string().into(),
        service_name: traces.service_name.as_str().into(),
        headers,
        tls: tls(section, traces)?,
        timeout: traces.timeout.0,
        max_queue: traces.max_queue,
    })
}

/// Notes endpoints at which no collector accepts spans.
fn note_endpoint(section: &Section<'_>, endpoint: &config::CollectorUrl) {
    let section = section.at("endpoint");
    if endpoint.0.port_u16() == Some(4317) {
        let what = "port 4317, where collectors take OTLP over gRPC";
        section.note(what, "the port for OTLP over HTTP, usually 4318");
    }
    if endpoint.0.path() == "/" {
        let what = format!("`{endpoint}` without a path");
        section.note(what, "the path that spans are sent to, usually /v1/traces");
    }
}

fn headers(section: &Section<'_>, traces: &config::Traces) -> Vec<(HeaderName, SecretReference)> {
    let mut headers: Vec<(HeaderName, SecretReference)> = Vec::new();
    for (name, reference) in &traces.headers {
        let section = section.at("headers").entry(name);
        let Some(header) = header_name(&section, name) else { continue };
        let is_own = OWN_HEADERS.contains(&header);
        let what = format!("`{name}`, which the gateway writes itself");
        section.ensure(!is_own, &what, "another header");
        let is_repeated = headers.iter().any(|(other, _)| *other == header);
        section.ensure(!is_repeated, &format!("`{name}` again"), "each header once");
        headers.push((header, reference.clone()));
    }
    headers
}

fn tls(section: &Section<'_>, traces: &config::Traces) -> Option<CollectorTls> {
    let authorities = section.at("tls_ca");
    if traces.endpoint.is_tls() {
        let rules = ClientTls::new(traces.tls_ca.as_deref(), None, OfferedToServer::Http1);
        let rules = rules.map_err(|error| tls_fault(&authorities, &error)).ok()?;
        return Some(CollectorTls { config: rules.http1_config, files: rules.files });
    }
    authorities.ensure(traces.tls_ca.is_none(), "`tls_ca` without TLS", "an https:// endpoint");
    let rules = ClientTls::without_authorities();
    let config = rules.map_err(|error| tls_fault(&section.at("endpoint"), &error)).ok()?;
    Some(CollectorTls { config, files: Arc::default() })
}

#[cfg(test)]
mod tests {
    use tidegate_config as config;

    use super::super::{SecretReading, Snapshot};

    const REST: &str = "
upstreams: {app: {targets: [http://127.0.0.1:9000]}}
routes: [{name: all, upstream: app}]
";

    fn compile(traces: &str) -> Result<Snapshot, String> {
        let text = format!("traces: {{{traces}}}{REST}");
        let loaded = config::parse("t.yaml", &text).map_err(|error| error.to_string())?;
        Snapshot::compile(&loaded, SecretReading::Unread).map_err(|error| error.to_string())
    }

    #[test]
    fn faults_name_the_key_and_what_is_expected() {
        let cases = [
            ("endpoint: 'grpc://c:4317'", "expected http://host:port/v1/traces"),
            ("endpoint: 'http://me:hunter2@c/v1/traces'", "credentials are in `headers`"),
            ("endpoint: 'http://c/v1', sample: 1.5", "`1.5`, expected a number from 0 to 1"),
            ("endpoint: 'http://c/v1', timeout: 1ms", "from 100ms to 60s"),
            ("endpoint: 'http://c/v1', tls_ca: x.pem", "`tls_ca` without TLS"),
            ("endpoint: 'https://c/v1', tls_ca: /no/where.pem", "/no/where.pem"),
            ("endpoint: 'http://c/v1', service_name: ''", "an empty name"),
            ("endpoint: 'http://c/v1', headers: {authorization: hunter2}", "env:NAME or file:PATH"),
            ("endpoint: 'http://c/v1', headers: {'a b': 'env:A'}", "a header name"),
            (
                "endpoint: 'http://c/v1', headers: {Host: 'env:A'}",
                "which the gateway writes itself",
            ),
            ("endpoint: 'http://c/v1', headers: {a: 'env:A', A: 'env:A'}", "each header once"),
        ];
        for (traces, expected) in cases {
            let fault = compile(traces).map(|_| ()).unwrap_err();
            assert!(fault.contains(expected), "{traces}: {fault}");
            assert!(!fault.contains("hunter2@c"), "{fault}");
        }
    }

    #[test]
    fn endpoints_that_take_no_spans_are_noted() {
        let notes = |traces: &str| {
            let notes = compile(traces).expect("a valid section").notes;
            notes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        assert_eq!(notes("endpoint: 'http://c:4318/v1/traces'"), "");
        assert!(notes("endpoint: 'http://c:4317/v1/traces'").contains("OTLP over gRPC"));
        assert!(notes("endpoint: 'http://c:4318'").contains("without a path"));
        let never = notes("endpoint: 'http://c:4318/v1', sample: 0, trust_parent: none");
        assert!(never.contains("no request is sampled"), "{never}");
    }

    #[test]
    fn secrets_are_read_and_never_shown() {
        let text = format!(
            "traces: {{endpoint: 'http://c/v1', headers: {{Authorization: 'env:KEY'}}}}{REST}"
        );
        let loaded = config::parse("t.yaml", &text).unwrap();
        let snapshot = Snapshot::compile(&loaded, SecretReading::Unread).unwrap();
        let rules = snapshot.traces.as_ref().expect("traces");
        let read = |value: Option<&str>| {
            let value = value.map(std::ffi::OsString::from);
            rules.export_settings(&loaded.source, &move |_| value.clone())
        };
        let settings = read(Some("Bearer hunter2\n")).unwrap();
        assert_eq!(settings.headers["authorization"], "Bearer hunter2");
        assert!(!format!("{settings:?} {rules:?}").contains("hunter2"));
        let missing = read(None).unwrap_err().to_string();
        assert!(missing.contains("KEY is not set") && missing.contains("t.yaml:1:"), "{missing}");
        let broken = read(Some("hunter2\nx")).unwrap_err().to_string();
        assert!(broken.contains("not a valid header value"), "{broken}");
        assert!(!broken.contains("hunter2"), "{broken}");
    }
}
