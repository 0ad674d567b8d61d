//! [`RequestView`]: the parts of a request that a decision reads.

use std::borrow::Cow;

use http::Method;
use tidegate_http1::{BodyLength, Expectation, Fields, RareFields, RequestHead};

use super::host;
use crate::error::GatewayError;

/// The parts of a request that a decision reads, from its head or from a line of a log.
#[derive(Clone, Debug)]
pub struct RequestView<'r> {
    /// The method.
    pub method: &'r Method,
    /// The requested host: lower case, without port.
    pub host: Cow<'r, str>,
    /// The path as it was sent.
    pub path: &'r str,
    /// The query, without the question mark.
    pub query: Option<&'r str>,
    /// The headers; empty for a log line.
    pub headers: &'r Fields,
    /// Which of the rare fields `headers` may have.
    pub rare: RareFields,
    /// True for the target `*`.
    pub is_asterisk_form: bool,
    /// How the body is delimited.
    pub length: BodyLength,
}

impl<'r> RequestView<'r> {
    /// The parts of the request with this head.
    #[inline]
    pub fn of(head: &'r RequestHead) -> Self {
        Self {
            method: &head.method,
            host: host(&head.fields),
            path: head.path(),
            query: head.query(),
            headers: &head.fields,
            rare: head.rare,
            is_asterisk_form: head.is_asterisk_form(),
            length: head.length,
        }
    }

    /// Checks that the gateway supports the method and the expectation, on any route.
    #[inline]
    pub(super) fn check_method_and_expect(&self) -> Result<(), GatewayError> {
        if matches!(*self.method, Method::CONNECT | Method::TRACE) {
            return Err(GatewayError::MethodNotSupported(self.method.clone()));
        }
        if self.rare.expect && Expectation::of(self.headers) == Expectation::Unknown {
            return Err(GatewayError::UnsupportedExpectation);
        }
        Ok(())
    }

    /// The URL of the same resource at an `https` listener on `port`: the host without its port,
    /// and the path and query as they were sent. `None` for a request without a host.
    pub(super) fn https_location(&self, port: u16) -> Option<String> {
        if self.host.is_empty() {
            return None;
        }
        let mut location = format!("https://{}", self.host);
        if port != 443 {
            location.push(':');
            location += itoa::Buffer::new().format(port);
        }
        location += self.path;
        if let Some(query) = self.query {
            location.push('?');
            location += query;
        }
        Some(location)
    }
}
