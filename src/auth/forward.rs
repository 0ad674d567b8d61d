//! [`ForwardAuth`]: authentication by another service, which is asked with a request of its own.

use std::sync::Arc;

use http::HeaderName;
use rustls::ClientConfig;

use crate::tls::TlsFile;

/// A service that decides who sends a request. It is asked with a GET that has the headers that it needs, and no body.
#[derive(Clone, Debug)]
pub struct ForwardAuth {
    /// The URL that is asked.
    pub url: Box<str>,
    /// The headers of a request that are sent to it.
    pub request_headers: Box<[HeaderName]>,
    /// The headers of its answer that are added to the forwarded request. A client's own are removed.
    pub copied_headers: Box<[HeaderName]>,
    /// The header of its answer that names the consumer; `None`: no consumer is known.
    pub consumer: Option<HeaderName>,
    /// The header of its answer that names the consumer's plan.
    pub plan: Option<HeaderName>,
    /// How long it is waited for, in ms.
    pub timeout: u64,
    /// How long its admission of a request's headers is remembered, in ms; 0: not at all.
    pub cache_time: u64,
    /// What becomes of a request if the service fails.
    pub on_failure: ServiceFailure,
    /// The settings of TLS.
    pub tls: Arc<ClientConfig>,
    /// The files that they were read from.
    pub tls_files: Arc<[TlsFile]>,
}

/// What becomes of a request that a failed service did not decide on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ServiceFailure {
    /// It is refused with a 503.
    Deny,
    /// It proceeds without a consumer.
    Allow,
}
