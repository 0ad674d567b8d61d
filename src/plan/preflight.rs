//! The routes of CORS preflights.

use http::Method;

use super::{CallerShare, MatchedRoute, RequestAttributes};
use crate::{error::GatewayError, snapshot::Snapshot};

/// The methods that a log may have had preflights for.
const COMMON_METHODS: [Method; 6] =
    [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::HEAD];

impl<'r> RequestAttributes<'r> {
    /// The same request with another method, which a preflight asks for.
    #[must_use]
    pub fn with_method<'m>(&self, method: &'m Method) -> RequestAttributes<'m>
    where
        'r: 'm,
    {
        RequestAttributes { method, ..self.clone() }
    }

    /// The route whose `cors` answers a preflight for the method of these attributes; `None` if its route has
    /// no `cors`. If no route allows the method, one that allows another tells the browser so.
    #[cold]
    pub fn find_preflight(&self, snapshot: &Snapshot, share: CallerShare) -> Option<usize> {
        let has_cors = |found: MatchedRoute<'_>| found.route.cors.as_ref().map(|_| found.index);
        match self.find_route(snapshot, share) {
            Ok(found) => has_cors(found),
            Err(GatewayError::MethodNotAllowed(methods)) => methods.iter().find_map(|method| {
                self.with_method(method).find_route(snapshot, share).ok().and_then(has_cors)
            }),
            Err(_) => None,
        }
    }

    /// The route with `cors` that an `OPTIONS` in a log is assumed to be a preflight of: the log does not
    /// have its headers. Its queries are known only if `has_query`.
    #[cold]
    pub fn find_assumed_preflight(&self, snapshot: &Snapshot, has_query: bool) -> Option<usize> {
        let routes = || COMMON_METHODS.iter().map(|method| self.with_method(method));
        routes().find_map(|attributes| {
            let found = attributes.find_recorded_route(snapshot, has_query).ok()??;
            found.route.cors.as_ref().map(|_| found.index)
        })
    }
}
