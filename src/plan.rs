//! The plan of a request, made before a limit is charged: the client, the host, the normalized path, the
//! route, the keys and costs for its limits, and the path to forward.
//!
//! Pure and stateless. The gateway, `explain` and `replay` share it, so a simulated request is decided
//! like a real one. `target` reads the host, the path to forward and the URL to redirect to; `condition`
//! decides the conditions of routes; `route_values` has the values that routes write into messages, and
//! `location` changes an upstream's locations back. `preflight` finds the routes of CORS preflights.
//!
//! ```
//! use tidegate::{framing::Fields, plan};
//!
//! let fields: Fields = [("Host", "API.example.com:8080")].into_iter().collect();
//! assert_eq!(plan::host(&fields), "api.example.com");
//! assert_eq!(plan::forwarded_path("/v1/items", Some("/v1")), "/items");
//! ```

mod condition;
mod location;
mod preflight;
mod route_values;
mod target;

use std::{borrow::Cow, cell::OnceCell, net::IpAddr};

use http::Method;
use smallvec::SmallVec;

pub use self::{
    condition::CallerShare,
    location::PublicUrl,
    route_values::RoutedRequest,
    target::{forwarded_path, host, https_location},
};
use crate::{
    error::GatewayError,
    framing::{Fields, RequestHead},
    identity::{ClientAddress, CredentialSource, KeyPlan, KeySecret, Subject},
    limit::Charge,
    route::{
        ConditionalRoute, Lookup, Params, Verdict,
        normalize::{normalize, routed_form},
    },
    snapshot::{Action, LimitRequest, Route, Snapshot},
};

/// Checks that the gateway supports the method and the expectation, on any route.
///
/// # Errors
/// The method is `CONNECT` or `TRACE`, or `Expect` is not `100-continue`.
#[inline]
pub fn check_method_and_expect(head: &RequestHead) -> Result<(), GatewayError> {
    check_method(&head.method)?;
    if head.has_expect {
        let mut values = head.fields.get_all("expect");
        if values.any(|value| !value.eq_ignore_ascii_case(b"100-continue")) {
            return Err(GatewayError::UnsupportedExpectation);
        }
    }
    Ok(())
}

/// Checks that the gateway supports the method, on any route.
///
/// # Errors
/// The method is `CONNECT` or `TRACE`.
#[inline]
pub fn check_method(method: &Method) -> Result<(), GatewayError> {
    if matches!(*method, Method::CONNECT | Method::TRACE) {
        return Err(GatewayError::MethodNotSupported(method.clone()));
    }
    Ok(())
}

/// The form of the normal `path` that routes and keys use, if it differs: see [`routed_form`].
pub fn routed_path(path: &str, merge_slashes: bool) -> Option<Box<str>> {
    match routed_form(path, merge_slashes) {
        Cow::Borrowed(_) => None,
        Cow::Owned(routed) => Some(routed.into_boxed_str()),
    }
}

/// The attributes of a request that routes and keys use.
#[derive(Clone, Debug)]
pub struct RequestAttributes<'r> {
    /// The client's address, behind trusted proxies.
    pub client: ClientAddress,
    /// The requested host: lower case, without port.
    pub host: Cow<'r, str>,
    /// The path in normal form, as it is forwarded.
    pub path: Cow<'r, str>,
    /// The form that routes and keys use, if it differs: see [`routed_path`].
    pub routed_path: Option<Box<str>>,
    /// The method.
    pub method: &'r Method,
    /// The query, without the question mark.
    pub query: Option<&'r str>,
    /// The headers.
    pub headers: &'r Fields,
    /// Where access tokens are looked for, in order.
    pub token_sources: &'r [CredentialSource],
    /// Whether the peer is a trusted proxy, whose `X-Forwarded-*` are used.
    pub is_from_trusted_proxy: bool,
}

/// The route that matches a request.
#[derive(Debug)]
pub struct MatchedRoute<'a> {
    /// The route's index in the snapshot.
    pub index: usize,
    /// The route.
    pub route: &'a Route,
    request: &'a RequestAttributes<'a>,
    params: Params<'a>,
    ipv6_prefix: u8,
}

impl<'r> RequestAttributes<'r> {
    /// Reads the attributes of a request from `peer` that [`check_method_and_expect`] has accepted.
    ///
    /// # Errors
    /// The path has no normal form.
    #[inline]
    pub fn read(
        snapshot: &'r Snapshot,
        peer: IpAddr,
        head: &'r RequestHead,
    ) -> Result<Self, GatewayError> {
        let merge_slashes = snapshot.http.merge_slashes;
        let path = normalize(head.path(), merge_slashes).map_err(GatewayError::Path)?;
        Ok(Self {
            client: snapshot.identity.trusted_proxies.client(peer, &head.fields),
            host: host(&head.fields),
            routed_path: routed_path(&path, merge_slashes),
            path,
            method: &head.method,
            query: head.query(),
            headers: &head.fields,
            token_sources: &snapshot.identity.token,
            is_from_trusted_proxy: snapshot.identity.trusted_proxies.contains(peer),
        })
    }

    /// The path as routes and keys see it.
    pub fn routed_path(&self) -> &str {
        self.routed_path.as_deref().unwrap_or(&self.path)
    }

    /// Finds the most specific route that matches. `share` decides the share of callers that a route's weight is
    /// for.
    ///
    /// # Errors
    /// No route matches the host and path, none of them allows the method, or a value that a condition tests
    /// can be read in more than one way.
    #[inline]
    pub fn find_route<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        share: CallerShare,
    ) -> Result<MatchedRoute<'a>, GatewayError> {
        let (mut ambiguous, query) = (None, OnceCell::new());
        let decide = |route: &ConditionalRoute| match self.meets(snapshot, route, share, &query) {
            Ok(true) => Verdict::Met,
            Ok(false) => Verdict::Unmet,
            Err(error) => {
                ambiguous = Some(error);
                Verdict::Unknown
            }
        };
        let (host, path) = (&self.host, self.routed_path());
        let found = snapshot.table.find_where(host, path, self.method, decide);
        self.matched(snapshot, found, ambiguous)
    }

    /// As [`Self::find_route`], for a request of a log. `None` if a condition decides its route that the log
    /// does not show; its queries are known only if `has_query`.
    ///
    /// # Errors
    /// No route matches the host and path, or none of them allows the method.
    pub fn find_recorded_route<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        has_query: bool,
    ) -> Result<Option<MatchedRoute<'a>>, GatewayError> {
        let query = OnceCell::new();
        let decide = |route: &ConditionalRoute| self.recorded_verdict(route, has_query, &query);
        let (host, path) = (&self.host, self.routed_path());
        match snapshot.table.find_where(host, path, self.method, decide) {
            Lookup::Undecided(_) => Ok(None),
            found => self.matched(snapshot, found, None).map(Some),
        }
    }

    #[inline]
    fn matched<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        found: Lookup<'a>,
        ambiguous: Option<GatewayError>,
    ) -> Result<MatchedRoute<'a>, GatewayError> {
        match found {
            Lookup::Found(found) => Ok(MatchedRoute {
                index: found.route,
                route: &snapshot.routes[found.route],
                request: self,
                params: found.params,
                ipv6_prefix: snapshot.identity.ipv6_prefix,
            }),
            Lookup::Undecided(_) => Err(ambiguous.unwrap_or(GatewayError::NoRoute)),
            Lookup::MethodNotAllowed(methods) => Err(GatewayError::MethodNotAllowed(methods)),
            Lookup::NotFound => Err(GatewayError::NoRoute),
        }
    }
}

impl MatchedRoute<'_> {
    /// Checks that the route's `allow` and `deny` admit the client.
    ///
    /// # Errors
    /// They do not.
    #[inline]
    pub fn check_access(&self) -> Result<(), GatewayError> {
        check_access(self.route, self.request.client)
    }

    /// Calls `read` with the subject that keys are read from.
    #[inline]
    pub fn with_subject<T>(&self, read: impl FnOnce(&Subject<'_>) -> T) -> T {
        let request = self.request;
        read(&Subject {
            client: request.client,
            host: &request.host,
            method: request.method,
            route: &self.route.name,
            path: request.routed_path(),
            param: &|name| self.params.get(name),
            query: request.query,
            headers: request.headers,
            token_sources: request.token_sources,
            ipv6_prefix: self.ipv6_prefix,
        })
    }
}

/// Checks that `allow` and `deny` of `route` admit `client`.
///
/// # Errors
/// They do not.
#[inline]
pub fn check_access(route: &Route, client: ClientAddress) -> Result<(), GatewayError> {
    match &route.access {
        Some(access) if !access.admits(client) => Err(GatewayError::AccessDenied),
        _ => Ok(()),
    }
}

/// The limit requests of one request, in the order of the route's limits: one per limit, or one per access
/// token for a limit by token.
pub type LimitRequests = SmallVec<[LimitRequest; 4]>;

/// The limit requests of `subject` to the limits of `route`.
///
/// # Errors
/// A key or cost cannot be read unambiguously from the request.
#[inline]
pub fn limit_requests(
    route: &Route,
    subject: &Subject<'_>,
    secret: KeySecret,
) -> Result<LimitRequests, GatewayError> {
    let mut requests = LimitRequests::new();
    for (index, policy) in route.limits.iter().enumerate() {
        policy
            .add_requests(index, subject, secret, &mut requests)
            .map_err(GatewayError::LimitRequest)?;
    }
    Ok(requests)
}

/// The requests to the limits that a `status` route reports. Empty for another route.
///
/// # Errors
/// A key cannot be read unambiguously from the request.
pub fn status_requests(
    route: &Route,
    subject: &Subject<'_>,
    secret: KeySecret,
) -> Result<LimitRequests, GatewayError> {
    let mut requests = LimitRequests::new();
    if let Action::Status(limits) = &route.action {
        for (index, policy) in limits.iter().enumerate() {
            policy
                .add_status_requests(index, subject, secret, &mut requests)
                .map_err(GatewayError::Ambiguous)?;
        }
    }
    Ok(requests)
}

/// The hash that a target is chosen by: the same on all gateways. 0 if the parts are ambiguous.
pub fn target_key(plan: &KeyPlan, subject: &Subject<'_>) -> u64 {
    // Not a secret: a caller that chooses its target gains nothing.
    plan.key(subject, KeySecret(0, 0)).map_or(0, |key| key as u64)
}

/// The charge of `request`: its limit in the caller's tier, its key and its cost. `None`: the route has no
/// such limit.
#[inline]
pub fn charge_for<'a>(route: &'a Route, request: &LimitRequest) -> Option<Charge<'a>> {
    let policy = route.limits.get(usize::from(request.limit_index))?;
    let limit = policy.limit_for_tier(request.tier);
    Some(Charge { limit, key: request.key, cost: request.cost })
}
