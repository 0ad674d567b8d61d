//! Checks of the paths that an upstream gets: the request's own, and that of `Destination`.

use std::borrow::Cow;

use tidegate_route::{
    normalize::{PathError, normalize},
    readings::{is_unambiguous, readings},
};

use super::{
    MatchedRoute, RefusedRoute, RequestAttributes, RequestRefusal, RequestSource, forwarded_path,
    own_urls::PublicNames, routed_path,
};
use crate::error::GatewayError;
use crate::snapshot::{ForwardedPath, Snapshot};

impl MatchedRoute<'_> {
    /// Checks that the upstream may get the path in the form that the route demands.
    ///
    /// # Errors
    /// The path is not in normal form on a `strict` route, or a server could read it as a path
    /// outside of this route.
    #[inline]
    pub(super) fn check_sent_path(
        &self,
        snapshot: &Snapshot,
        source: &RequestSource<'_>,
    ) -> Result<(), RequestRefusal> {
        let checked = match self.route.edits.path {
            ForwardedPath::Normalized => return Ok(()),
            ForwardedPath::Strict if *self.request.path == *self.request.sent_path => Ok(()),
            ForwardedPath::Strict => Err(PathError::NotNormal),
            ForwardedPath::AsSent => return self.check_readings(snapshot, source),
        };
        checked.map_err(|error| self.refused(error))
    }

    fn refused(&self, error: PathError) -> RequestRefusal {
        RequestRefusal::at(RefusedRoute::Matched(self.index))(GatewayError::Path(error))
    }

    /// Checks that the upstream has the resource that `Destination` names.
    ///
    /// # Errors
    /// The upstream would take it for another resource.
    #[inline]
    pub(super) fn check_destination(&self, snapshot: &Snapshot) -> Result<(), GatewayError> {
        if self.route.strip_prefix.is_none() {
            return Ok(());
        }
        let names = PublicNames {
            fields: self.request.headers,
            route: self.route,
            slashes: snapshot.http.slashes,
            from_trusted_proxy: self.request.is_from_trusted_proxy,
        };
        names.check_destination()
    }

    /// Checks that every server reads the path as one of this route.
    fn check_readings(
        &self,
        snapshot: &Snapshot,
        source: &RequestSource<'_>,
    ) -> Result<(), RequestRefusal> {
        let request = self.request;
        if request.sent_path.contains('`') {
            return Err(self.refused(PathError::Backtick));
        }
        if is_unambiguous(request.sent_path) {
            return Ok(());
        }
        let slashes = snapshot.http.slashes;
        // The first reading is the one by which this route was found.
        let readings = readings(request.sent_path, slashes).map_err(|error| self.refused(error))?;
        for reading in readings.into_iter().skip(1) {
            let other = RequestAttributes {
                routed_path: routed_path(&reading, slashes),
                path: Cow::Owned(reading),
                ..request.clone()
            };
            match other.find_route(snapshot, source) {
                Ok(found) if self.is_same_as(&found) => {}
                Err(refusal) if refusal.route == RefusedRoute::Undecided => return Err(refusal),
                Ok(_) | Err(_) => return Err(self.refused(PathError::AmbiguousAsSent)),
            }
        }
        let prefix = self.route.strip_prefix.as_deref();
        // `/v1/../v1/a` without its prefix would be `/../v1/a`.
        let forwarded = normalize(forwarded_path(request.sent_path, prefix), slashes);
        if forwarded.is_ok_and(|forwarded| *forwarded == *forwarded_path(&request.path, prefix)) {
            return Ok(());
        }
        Err(self.refused(PathError::AmbiguousAsSent))
    }

    /// True if `other` is the same route with the same parameters, except for one that is the rest
    /// of the path.
    fn is_same_as(&self, other: &MatchedRoute<'_>) -> bool {
        let bounded = self.route.edits.pattern.bounded_params();
        let pairs = self.params.iter().zip(other.params.iter()).take(bounded);
        self.index == other.index && pairs.into_iter().all(|((_, own), (_, other))| own == other)
    }
}
