//! What a request asks for, found out before anything is charged: the client, the host, the path in
//! its normal form, the route, the keys that its limits count by, and the target to forward.
//!
//! Pure: no clock, no I/O, nothing remembered. The gateway plans every request with it, `explain` a
//! request that was never sent, and `replay` the lines of a log.

mod target;

use std::{borrow::Cow, net::IpAddr};

use http::Method;
use smallvec::SmallVec;

pub use self::target::{forwarded_path, host};
use crate::{
    error::GatewayError,
    framing::{Fields, RequestHead},
    identity::{ClientAddress, Secret, Subject, TokenSource},
    limit::Charge,
    route::{Lookup, Params, normalize::normalize},
    snapshot::{Action, LimitRequest, Route, Snapshot},
};

/// Refuses what is not served, whatever the route.
#[inline]
pub fn screen(head: &RequestHead) -> Result<(), GatewayError> {
    screen_method(&head.method)?;
    if head.expects {
        let mut values = head.fields.get_all("expect");
        if values.any(|value| !value.eq_ignore_ascii_case(b"100-continue")) {
            return Err(GatewayError::Expectation);
        }
    }
    Ok(())
}

/// Refuses the methods that are not served, whatever the route.
#[inline]
pub fn screen_method(method: &Method) -> Result<(), GatewayError> {
    if matches!(*method, Method::CONNECT | Method::TRACE) {
        return Err(GatewayError::MethodRefused(method.clone()));
    }
    Ok(())
}

/// What a request says of itself, as routes and keys know it.
#[derive(Clone, Debug)]
pub struct Asked<'r> {
    /// The client's address, behind trusted proxies.
    pub client: ClientAddress,
    /// The requested host: lower case, without port.
    pub host: Cow<'r, str>,
    /// The path in normal form.
    pub path: Cow<'r, str>,
    /// The method.
    pub method: &'r Method,
    /// The query, without the question mark.
    pub query: Option<&'r str>,
    /// The headers.
    pub headers: &'r Fields,
    /// Where tokens may stand.
    pub token_sources: &'r [TokenSource],
}

/// A request, and the route that was found for it.
#[derive(Debug)]
pub struct Matched<'a> {
    /// The route's place in the snapshot.
    pub index: usize,
    /// The route.
    pub route: &'a Route,
    asked: &'a Asked<'a>,
    params: Params<'a>,
    ipv6_prefix: u8,
}

impl<'r> Asked<'r> {
    /// Reads a request of `peer` that [`screen`] has passed.
    #[inline]
    pub fn read(
        snapshot: &'r Snapshot,
        peer: IpAddr,
        head: &'r RequestHead,
    ) -> Result<Self, GatewayError> {
        let path = normalize(head.path(), snapshot.http.merge_slashes);
        Ok(Self {
            client: snapshot.identity.trusted_proxies.client(peer, &head.fields),
            host: host(&head.fields),
            path: path.map_err(GatewayError::Path)?,
            method: &head.method,
            query: head.query(),
            headers: &head.fields,
            token_sources: &snapshot.identity.token,
        })
    }

    /// Finds the route.
    #[inline]
    pub fn find<'a>(&'a self, snapshot: &'a Snapshot) -> Result<Matched<'a>, GatewayError> {
        match snapshot.table.find(&self.host, &self.path, self.method) {
            Lookup::Found(found) => Ok(Matched {
                index: found.route,
                route: &snapshot.routes[found.route],
                asked: self,
                params: found.params,
                ipv6_prefix: snapshot.identity.ipv6_prefix,
            }),
            Lookup::OtherMethods(methods) => Err(GatewayError::OtherMethods(methods)),
            Lookup::Nothing => Err(GatewayError::NoRoute),
        }
    }
}

impl Matched<'_> {
    /// Gives `ask` what keys are read from.
    #[inline]
    pub fn subject<T>(&self, ask: impl FnOnce(&Subject<'_>) -> T) -> T {
        let asked = self.asked;
        ask(&Subject {
            client: asked.client,
            host: &asked.host,
            method: asked.method,
            route: &self.route.name,
            path: &asked.path,
            param: &|name| self.params.get(name),
            query: asked.query,
            headers: asked.headers,
            token_sources: asked.token_sources,
            ipv6_prefix: self.ipv6_prefix,
        })
    }
}

/// What a request asks of its limits, in the limits' order.
pub type LimitRequests = SmallVec<[LimitRequest; 4]>;

/// What the request of `subject` asks of the limits of `route`.
#[inline]
pub fn limit_requests(
    route: &Route,
    subject: &Subject<'_>,
    secret: Secret,
) -> Result<LimitRequests, GatewayError> {
    let mut requests = LimitRequests::new();
    for (index, used) in route.limits.iter().enumerate() {
        used.policy
            .request(index, subject, secret, &mut requests)
            .map_err(GatewayError::Uncountable)?;
    }
    Ok(requests)
}

/// What the request of `subject` would ask of the limits that `route` tells of; none where it does not.
pub fn status_requests(
    route: &Route,
    subject: &Subject<'_>,
    secret: Secret,
) -> Result<LimitRequests, GatewayError> {
    let mut requests = LimitRequests::new();
    if let Action::Status(limits) = &route.action {
        for (index, policy) in limits.iter().enumerate() {
            policy.peek(index, subject, secret, &mut requests).map_err(GatewayError::Ambiguous)?;
        }
    }
    Ok(requests)
}

/// The limit of `route` that `request` is about, in the caller's tier; none of a request of another route.
#[inline]
pub fn charge<'a>(route: &'a Route, request: &LimitRequest) -> Option<Charge<'a>> {
    let used = route.limits.get(usize::from(request.limit))?;
    let limit = used.policy.limit(request.tier);
    Some(Charge { limit, key: request.key, cost: request.cost })
}
