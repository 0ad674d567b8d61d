//! [`ForwardAuth`]: authentication by another service, which is asked with a request of its own.

use std::{sync::Arc, time::Duration};

use http::{HeaderName, header};
use rustls::ClientConfig;
use tidegate_base::time::Millis;
use tidegate_http1::Fields;
use tidegate_tls::TlsFile;

/// Headers that say what a client is or wants, and prove nothing: browsers send them with every
/// request. A service may read them, for example to redirect a browser and refuse a script.
const DESCRIPTIVE: [HeaderName; 9] = [
    header::ACCEPT,
    header::ACCEPT_CHARSET,
    header::ACCEPT_ENCODING,
    header::ACCEPT_LANGUAGE,
    header::CONTENT_TYPE,
    header::ORIGIN,
    header::REFERER,
    header::USER_AGENT,
    HeaderName::from_static("x-requested-with"),
];

/// A service that decides who sends a request. It is asked with a GET that has the headers that it
/// needs, and no body.
#[derive(Clone, Debug)]
pub struct ForwardAuth {
    /// The URL that is asked.
    pub url: Box<str>,
    /// The headers of a request that are sent to it.
    pub request_headers: Box<[HeaderName]>,
    /// The headers of its answer that are added to the forwarded request. A client's own are
    /// removed.
    pub copied_headers: Box<[HeaderName]>,
    /// The header of its answer that names the consumer; `None`: no consumer is known.
    pub consumer: Option<HeaderName>,
    /// The text before the consumer's name.
    pub prefix: Box<str>,
    /// The header of its answer that names the consumer's plan.
    pub plan: Option<HeaderName>,
    /// How long it is waited for.
    pub timeout: Duration,
    /// How long its admission of a request's headers is remembered; zero: not at all.
    pub cache_time: Millis,
    /// What becomes of a request if the service fails.
    pub on_failure: ServiceFailure,
    /// The settings of TLS.
    pub tls: Arc<ClientConfig>,
    /// The files that they were read from.
    pub tls_files: Arc<[TlsFile]>,
}

impl ForwardAuth {
    /// True if `fields` have a header of `request_headers` that may prove who sends the request.
    pub fn has_credentials(&self, fields: &Fields) -> bool {
        self.request_headers.iter().any(|name| may_prove(name) && fields.contains(name))
    }
}

/// True if a header may prove who sends a request.
pub fn may_prove(name: &HeaderName) -> bool {
    !DESCRIPTIVE.contains(name)
}

/// True if several fields with this name say the same as one: cookies, and lists that prove
/// nothing.
pub(super) fn may_be_sent_in_parts(name: &HeaderName) -> bool {
    name == header::COOKIE || !may_prove(name)
}

/// What becomes of a request that a failed service did not decide on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ServiceFailure {
    /// It is refused with a 503.
    Deny,
    /// It proceeds without a consumer.
    Allow,
}
