//! The routes of CORS preflights.

use http::Method;
use tidegate_http1::Fields;

use super::{HeaderTests, MatchedRoute, RequestAttributes, RequestSource};
use crate::error::GatewayError;
use crate::snapshot::Snapshot;

/// The methods that a logged `OPTIONS` may have asked for as a preflight.
const COMMON_METHODS: [Method; 6] =
    [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::HEAD];

impl<'r> RequestAttributes<'r> {
    /// The index of the route whose `cors` answers the request; `None` if the request is not a
    /// preflight, or its route has no `cors`. The route is that of the request which the preflight
    /// announces. A log has no headers: each of its `OPTIONS` is assumed to be a preflight.
    #[inline]
    pub(super) fn find_preflight(
        &self,
        snapshot: &Snapshot,
        source: &RequestSource<'_>,
    ) -> Option<usize> {
        if *self.method != Method::OPTIONS {
            return None;
        }
        match source {
            RequestSource::Request { .. } => self.find_requested(snapshot, source),
            RequestSource::Log { .. } => self.find_assumed(snapshot, source),
        }
    }

    #[cold]
    fn find_requested(&self, snapshot: &Snapshot, source: &RequestSource<'_>) -> Option<usize> {
        let requested = requested_method(self.headers)?;
        let has_cors = |found: MatchedRoute<'_>| found.route.cors.as_ref().map(|_| found.index);
        let find = HeaderTests::Announced;
        match self.with_method(&requested).find_route_as(snapshot, source, find) {
            Ok(found) => has_cors(found),
            // No route allows the method: a route that allows another one answers, so that the
            // browser shows the allowed methods.
            Err(refusal) => match refusal.error {
                GatewayError::MethodNotAllowed(methods) => methods.iter().find_map(|method| {
                    let attributes = self.with_method(method);
                    attributes.find_route_as(snapshot, source, find).ok().and_then(has_cors)
                }),
                _ => None,
            },
        }
    }

    #[cold]
    fn find_assumed(&self, snapshot: &Snapshot, source: &RequestSource<'_>) -> Option<usize> {
        COMMON_METHODS.iter().find_map(|method| {
            let attributes = self.with_method(method);
            let found = attributes.find_route(snapshot, source).ok()?;
            found.route.cors.as_ref().map(|_| found.index)
        })
    }

    /// The same request with another method.
    fn with_method<'m>(&self, method: &'m Method) -> RequestAttributes<'m>
    where
        'r: 'm,
    {
        RequestAttributes { method, ..self.clone() }
    }
}

/// The method that an `OPTIONS` asks for; `None` if it is not a preflight, which has an `Origin`
/// and one `Access-Control-Request-Method`.
fn requested_method(headers: &Fields) -> Option<Method> {
    if !headers.contains("origin") {
        return None;
    }
    let mut requested = headers.get_all("access-control-request-method");
    let method = requested.next().filter(|_| requested.next().is_none())?;
    Method::from_bytes(method).ok()
}
