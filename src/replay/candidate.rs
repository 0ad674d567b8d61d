//! One configuration under replay: its rules, its counters, and what became of the requests.

use std::collections::BTreeMap;

use http::Method;
use smallvec::SmallVec;

use super::{
    line::Line,
    tally::{Counts, Moment},
};
use crate::{
    error::GatewayError,
    framing::{Fields, RequestHead, is_origin_form},
    identity::{Secret, TokenSource},
    limit::{Algorithm, Change, Charge, Millis, Settlement},
    plan::{self, Asked},
    route::normalize::normalize,
    snapshot::{LimitRequest, Policy, Snapshot},
    store::memory::Memory,
};

/// Counters that have ended are looked for once a virtual second at the most, and once in so many
/// requests: a look at a part of the table would else cost more than the requests.
const REQUESTS_PER_TICK: u32 = 1 << 16;

/// One configuration under replay.
pub struct Candidate {
    /// The configuration's file.
    pub name: String,
    /// Its rules.
    pub snapshot: Snapshot,
    /// What became of the requests of each route, in the snapshot's order.
    pub routes: Vec<Counts>,
    /// What each limit decided, in the snapshot's order.
    pub limits: Vec<Counts>,
    /// Of each limit, the refusals that the other configuration would not have made.
    pub changed: Vec<u64>,
    /// Requests of limited routes that may pass.
    pub admitted: u64,
    /// Requests that a limit refused.
    pub refused: u64,
    /// Requests of routes without limits.
    pub unlimited: u64,
    /// Requests that the gateway would have answered with an error of its own, by status.
    pub unserved: BTreeMap<u16, u64>,
    memory: Memory,
    secret: Secret,
    ticked: (Millis, u32),
}

/// What one request asks of its limits, under one configuration after the other.
pub(super) type Asks = plan::LimitRequests;

/// One request of a log, as far as it is the same for every configuration.
pub(super) struct Request<'r> {
    pub(super) line: &'r Line<'r>,
    /// None where the log has no request, or one with a malformed method.
    pub(super) method: Option<&'r Method>,
    pub(super) host: &'r str,
    /// Hold the token, and nothing else.
    pub(super) headers: &'r Fields,
    pub(super) sources: &'r [TokenSource],
}

/// What a request asks for; found out in the log's order, while its line is at hand. What it asks is kept
/// apart, with those under the other configuration.
#[derive(Clone, Copy)]
pub(super) enum Outcome {
    Unasked,
    Unserved(u16),
    /// A route, how many limits it asks, and the status of the answer that was logged.
    Route(u32, u32, u16),
}

/// What became of a request. Routes and limits are told by their place in the snapshot.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Fate {
    /// It had ended before any limit was asked.
    Unasked,
    /// The gateway answers with this status by itself.
    Unserved(u16),
    /// Nothing limits its route.
    Unlimited {
        /// The route.
        route: usize,
    },
    /// All limits admit it.
    Admitted {
        /// The route.
        route: usize,
    },
    /// These limits refuse it.
    Refused {
        /// The route.
        route: usize,
        /// The limits; at least one.
        limits: SmallVec<[u32; 4]>,
    },
}

impl Fate {
    /// Whether a limit refused it.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }

    /// The limits that refused it.
    pub fn refusing(&self) -> &[u32] {
        match self {
            Self::Refused { limits, .. } => limits,
            _ => &[],
        }
    }
}

impl Candidate {
    /// Fresh counters, at most `max_keys` of them, under the rules of `snapshot`. `secret` is that of
    /// the counters' names.
    pub fn new(name: &str, snapshot: Snapshot, max_keys: usize, secret: Secret) -> Self {
        Self {
            name: name.to_owned(),
            routes: vec![Counts::default(); snapshot.routes.len()],
            limits: vec![Counts::default(); snapshot.limits.len()],
            changed: vec![0; snapshot.limits.len()],
            admitted: 0,
            refused: 0,
            unlimited: 0,
            unserved: BTreeMap::new(),
            memory: Memory::new(max_keys),
            secret,
            ticked: (0, 0),
            snapshot,
        }
    }

    /// Counters that were dropped because memory was full.
    pub fn evictions(&self) -> u64 {
        self.memory.evictions()
    }

    /// Finds out what a request asks for, and adds the keys of its limits to `keys`.
    pub(super) fn plan(&self, request: &Request<'_>, asks: &mut Asks) -> Outcome {
        if request.line.unasked {
            return Outcome::Unasked;
        }
        let planned = match request.method {
            Some(method) => self.plan_target(request, method, asks),
            // As the gateway says of a request line that is none.
            None => Err(GatewayError::Target),
        };
        planned.unwrap_or_else(|error| Outcome::Unserved(error.status().as_u16()))
    }

    fn plan_target(
        &self,
        request: &Request<'_>,
        method: &Method,
        asks: &mut Asks,
    ) -> Result<Outcome, GatewayError> {
        let target = &*request.line.target;
        plan::screen_method(method)?;
        if !is_origin_form(target) {
            return self.plan_other(request, method, target, asks);
        }
        // What passes is plain ASCII.
        let text = std::str::from_utf8(target).map_err(|_| GatewayError::Target)?;
        self.plan_path(request, method, [request.host, text], asks)
    }

    /// A target such as `http://host/path`, read as the gateway does.
    #[cold]
    fn plan_other(
        &self,
        request: &Request<'_>,
        method: &Method,
        target: &[u8],
        asks: &mut Asks,
    ) -> Result<Outcome, GatewayError> {
        let host = if request.host.is_empty() { "localhost" } else { request.host };
        let pieces = [method.as_str().as_bytes(), b" ", target, b" HTTP/1.1\r\nHost: "];
        let sent = [&pieces.concat(), host.as_bytes(), b"\r\n\r\n"].concat();
        let read =
            RequestHead::read(&sent, self.snapshot.http.head).map_err(GatewayError::Framing)?;
        let (head, _) = read.ok_or(GatewayError::Target)?;
        if head.is_about_server() {
            return Ok(Outcome::Unserved(200));
        }
        let target = match head.query() {
            Some(query) => format!("{}?{query}", head.path()),
            None => head.path().to_owned(),
        };
        self.plan_path(request, method, [&plan::host(&head.fields), &target], asks)
    }

    fn plan_path(
        &self,
        request: &Request<'_>,
        method: &Method,
        [host, target]: [&str; 2],
        asks: &mut Asks,
    ) -> Result<Outcome, GatewayError> {
        let query = memchr::memchr(b'?', target.as_bytes());
        let (path, query) = match query {
            Some(mark) => (&target[..mark], Some(&target[mark + 1..])),
            None => (target, None),
        };
        let merge_slashes = self.snapshot.http.merge_slashes;
        let asked = Asked {
            client: self.snapshot.identity.trusted_proxies.logged(request.line.client),
            host: host.into(),
            path: normalize(path, merge_slashes).map_err(GatewayError::Path)?,
            method,
            query,
            headers: request.headers,
            token_sources: request.sources,
        };
        let matched = asked.find(&self.snapshot)?;
        let own =
            matched.subject(|subject| plan::limit_requests(matched.route, subject, self.secret))?;
        asks.extend_from_slice(&own);
        Ok(Outcome::Route(matched.index as u32, own.len() as u32, request.line.status))
    }

    /// Charges a request at the virtual time `at`, which never runs back; what it asks stands first in
    /// `asks`, and is taken from there.
    pub(super) fn decide(
        &mut self,
        outcome: Outcome,
        asks: &mut &[LimitRequest],
        at: Moment,
    ) -> Fate {
        let (index, asks, status) = match outcome {
            Outcome::Unasked => return Fate::Unasked,
            Outcome::Unserved(status) => {
                *self.unserved.entry(status).or_default() += 1;
                return Fate::Unserved(status);
            }
            Outcome::Route(index, count, status) => {
                let (own, rest) = asks.split_at(count as usize);
                *asks = rest;
                (index as usize, own, status)
            }
        };
        if asks.is_empty() {
            self.unlimited += 1;
            self.routes[index].add(true, at);
            return Fate::Unlimited { route: index };
        }
        self.tick(at.time);
        let route = &self.snapshot.routes[index];
        let charges: SmallVec<[Charge<'_>; 4]> =
            asks.iter().filter_map(|request| plan::charge(route, request)).collect();
        let verdict = self.memory.charge(&charges, at.time);
        let (mut refusing, mut refunds) = (SmallVec::new(), SmallVec::<[Settlement<'_>; 2]>::new());
        for ((request, charge), outcome) in asks.iter().zip(&charges).zip(&verdict.outcomes) {
            let Some(decided) = outcome.decided() else { continue };
            let (decision, limit) = (&decided.decision, charge.limit.index);
            // A candidate's place is that of the limit that it is tried for.
            if *charge.limit.name == *self.snapshot.limits[limit].limit.name {
                self.limits[limit].add(decision.admitted, at);
            }
            if !decision.admitted && charge.limit.enforce {
                refusing.push(limit as u32);
            }
            let policy = &route.limits[usize::from(request.limit)].policy;
            if decision.admitted && is_given_back(policy, status) {
                let change = Change::Refund { charged_at: decided.charged_at(), cost: charge.cost };
                refunds.push(Settlement { limit: charge.limit, key: charge.key, change });
            }
        }
        let admitted = verdict.admitted;
        self.routes[index].add(admitted, at);
        if admitted {
            for refund in &refunds {
                self.memory.settle(refund, at.time, 1);
            }
            self.admitted += 1;
            Fate::Admitted { route: index }
        } else {
            self.refused += 1;
            Fate::Refused { route: index, limits: refusing }
        }
    }

    /// Lets counters that have ended go.
    fn tick(&mut self, now: Millis) {
        let (last, requests) = &mut self.ticked;
        *requests += 1;
        if *requests >= REQUESTS_PER_TICK && now.saturating_sub(*last) >= 1_000 {
            (*last, *requests) = (now, 0);
            self.memory.tick(now);
        }
    }
}

/// Whether an answer of this status gives back what its request was charged by this limit.
fn is_given_back(policy: &Policy, status: u16) -> bool {
    // A log does not tell what was in flight at once: as if each had ended before the next.
    let ended = policy.limit.algorithm == Algorithm::Concurrency;
    ended || policy.refund.contains(&status)
}
