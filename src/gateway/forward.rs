//! Forwards a request to its upstream, and turns a failure into a [`GatewayError`].

use super::{
    Gateway, Peer, context::RequestContext, draft_response::DraftResponse, rules::WorkerRules,
};
use crate::{
    error::GatewayError,
    framing::BodyError,
    plan::forwarded_path,
    respond,
    upstream::{
        AddedHeaders, ForwardError, OutgoingRequest, Servers, Upstream, UpstreamError, UpstreamKind,
    },
};

/// Least time between two warnings of a worker about failed upstreams, in ms.
const WARNING_INTERVAL: u64 = 1000;

impl Gateway {
    /// Forwards the request; returns the upstream's response, with its body unread.
    ///
    /// # Errors
    ///
    /// The upstream failed, or the client's body is malformed, too long, late or incomplete.
    pub(super) async fn forward(
        &self,
        rules: &WorkerRules,
        route: usize,
        upstream: &Upstream,
        peer: &Peer,
        context: &mut RequestContext,
    ) -> Result<DraftResponse, GatewayError> {
        let servers = match &upstream.kind {
            UpstreamKind::Fixed(fixed) => {
                return Ok(DraftResponse::Local(respond::fixed_reply(fixed)));
            }
            UpstreamKind::Servers(servers) => servers,
        };
        let Some(outgoing) = self.outgoing(rules, route, servers, peer, context) else {
            return Err(GatewayError::MalformedTarget);
        };
        let RequestContext { head: Some(head), client, attempts, .. } = context else {
            return Err(GatewayError::MalformedTarget);
        };
        let stopwatch = self.shared.clock.stopwatch();
        let balancer = &rules.load_balancers[upstream.index];
        let result = balancer
            .forward(servers, outgoing, &head.method, &**client, peer.proxied, attempts)
            .await;
        context.upstream_time = result.is_ok().then(|| stopwatch.read());
        if let Some(counters) = &rules.routes[route].upstream {
            let retries = context.attempts.count.saturating_sub(1);
            if retries > 0 {
                counters.retries.add(u64::from(retries));
            }
        }
        match result {
            Ok((head, content)) => Ok(DraftResponse::Upstream(head, content)),
            Err(ForwardError::Upstream(error)) => {
                Err(self.upstream_error(rules, route, upstream, context, error))
            }
            Err(ForwardError::Request(error)) => Err(GatewayError::Framing(error)),
            Err(ForwardError::Body(error)) => {
                context.client.abandon_body();
                Err(match error {
                    BodyError::TooLong => {
                        GatewayError::BodyTooLong(rules.snapshot.routes[route].max_body)
                    }
                    BodyError::TimedOut => GatewayError::BodyTimeout,
                    BodyError::Malformed(error) => GatewayError::Framing(error),
                    BodyError::ClientClosed => GatewayError::BodyIncomplete,
                })
            }
        }
    }

    /// The request for the upstream, with its body.
    fn outgoing(
        &self,
        rules: &WorkerRules,
        route: usize,
        servers: &Servers,
        peer: &Peer,
        context: &RequestContext,
    ) -> Option<OutgoingRequest> {
        let head = context.head.as_ref()?;
        let state = &rules.routes[route];
        let route = &rules.snapshot.routes[route];
        let path = forwarded_path(context.path(), route.strip_prefix.as_deref());
        let added = AddedHeaders {
            peer: &peer.forwarding,
            trusted: context.from_trusted_proxy,
            request_id: context.request_id.as_bytes(),
            server: &servers.targets[0].address,
            via: self.shared.via.entry(head.version),
        };
        let client = &context.client;
        Some(OutgoingRequest::new(
            head,
            path,
            &added,
            &state.protected_headers,
            client,
            route.max_body,
        ))
    }

    /// Counts an upstream's failure, and logs it at most once per [`WARNING_INTERVAL`].
    #[cold]
    fn upstream_error(
        &self,
        rules: &WorkerRules,
        route: usize,
        upstream: &Upstream,
        context: &RequestContext,
        error: UpstreamError,
    ) -> GatewayError {
        if let Some(counters) = &rules.routes[route].upstream {
            match &error {
                UpstreamError::Connect(_) => counters.connect.add(1),
                UpstreamError::Timeout => counters.timeout.add(1),
                UpstreamError::Failed(_) => counters.broken.add(1),
                // The server works; it lacks a feature.
                UpstreamError::UpgradeUnsupported => {}
            }
        }
        let now = self.coarse_clock.get();
        if now.saturating_sub(self.warned_at.get()) >= WARNING_INTERVAL {
            self.warned_at.set(now);
            let server = context.attempts.server.as_ref().map_or("", |server| server.name());
            let (upstream, attempts) = (&upstream.name, context.attempts.count);
            tracing::warn!(%upstream, server, attempts, %error, "the upstream failed");
        }
        GatewayError::Upstream(error)
    }
}
