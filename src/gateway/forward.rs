//! A request on its way to an upstream, and whose fault it is where none answers.

use super::{Gateway, Peer, context::RequestContext, draft::Draft, rules::Rules};
use crate::{
    clock,
    error::GatewayError,
    framing::BodyFault,
    plan::forwarded_path,
    respond,
    upstream::{ForwardError, Hop, Kind, Outgoing, Servers, Upstream, UpstreamError},
};

impl Gateway {
    /// Asks the upstream.
    pub(super) async fn forward(
        &self,
        rules: &Rules,
        route: usize,
        upstream: &Upstream,
        peer: &Peer,
        context: &mut RequestContext,
    ) -> Result<Draft, GatewayError> {
        let servers = match &upstream.kind {
            Kind::Respond(fixed) => return Ok(Draft::Reply(respond::fixed(fixed))),
            Kind::Servers(servers) => servers,
        };
        let Some(outgoing) = self.outgoing(rules, route, servers, peer, context) else {
            return Err(GatewayError::Target);
        };
        let RequestContext { head: Some(head), client, attempts, .. } = context else {
            return Err(GatewayError::Target);
        };
        let started = clock::instant();
        let balance = &rules.balances[upstream.index];
        let answered = balance.forward(servers, outgoing, &head.method, &**client, attempts).await;
        context.upstream_time = Some(clock::instant().saturating_duration_since(started));
        if let Some(counters) = &rules.routes[route].upstream {
            let again = context.attempts.count.saturating_sub(1);
            if again > 0 {
                counters.retries.add(u64::from(again));
            }
        }
        match answered {
            Ok((head, stream)) => Ok(Draft::Upstream(head, stream)),
            Err(ForwardError::Upstream(error)) => {
                Err(self.blame(rules, route, upstream, context, error))
            }
            Err(ForwardError::Body(fault)) => {
                context.client.give_up_body();
                Err(match fault {
                    BodyFault::TooLong => GatewayError::BodyTooLong,
                    BodyFault::TimedOut => GatewayError::BodyTimeout,
                    BodyFault::Malformed(fault) => GatewayError::Framing(fault),
                    BodyFault::Gone => GatewayError::BodyMalformed,
                })
            }
        }
    }

    /// The request as the upstream gets it. Its body goes with it.
    fn outgoing(
        &self,
        rules: &Rules,
        route: usize,
        servers: &Servers,
        peer: &Peer,
        context: &RequestContext,
    ) -> Option<Outgoing> {
        let view = &rules.routes[route];
        let route = &rules.snapshot.routes[route];
        let path = forwarded_path(context.path(), route.strip_prefix.as_deref());
        let hop = Hop {
            from: &peer.forwarding,
            trusted: context.trusted,
            request_id: context.request_id.as_bytes(),
            server: &servers.targets[0],
            via: &self.shared.via.value,
        };
        let head = context.head.as_ref()?;
        let client = &context.client;
        Some(Outgoing::new(head, path, &hop, &view.protected, client, route.max_body))
    }

    /// Counts and tells an upstream's failure.
    #[cold]
    fn blame(
        &self,
        rules: &Rules,
        route: usize,
        upstream: &Upstream,
        context: &RequestContext,
        error: UpstreamError,
    ) -> GatewayError {
        if let Some(counters) = &rules.routes[route].upstream {
            counters.of(error.kind()).add(1);
        }
        let now = self.clock.get();
        if now.saturating_sub(self.warned_at.get()) >= 1000 {
            self.warned_at.set(now);
            let server = context.attempts.server.as_ref().map_or("", |server| server.authority());
            let (upstream, attempts) = (&upstream.name, context.attempts.count);
            tracing::warn!(%upstream, server, attempts, %error, "the upstream failed");
        }
        GatewayError::Upstream(error)
    }
}
