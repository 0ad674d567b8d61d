//! One configuration under replay: its rules, its counters, and what became of the requests.

use std::collections::BTreeMap;

use http::{HeaderMap, Method, Request as HttpRequest, header};
use smallvec::SmallVec;

use super::{
    line::Line,
    tally::{Counts, Moment},
};
use crate::{
    error::GatewayError,
    framing::head::is_target,
    identity::{Secret, TokenSource},
    limit::{Key, Millis},
    plan::{self, Asked},
    route::normalize::normalize,
    snapshot::Snapshot,
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

/// The keys of one request's limits, under one configuration after the other.
pub(super) type Keys = SmallVec<[Key; 4]>;

/// One request of a log, as far as it is the same for every configuration.
pub(super) struct Request<'r> {
    pub(super) line: &'r Line<'r>,
    /// None where the log has no request, or one with a malformed method.
    pub(super) method: Option<&'r Method>,
    pub(super) host: &'r str,
    /// Hold the token, and nothing else.
    pub(super) headers: &'r HeaderMap,
    pub(super) sources: &'r [TokenSource],
}

/// What a request asks for; found out in the log's order, while its line is at hand. Its keys are kept
/// apart, with those under the other configuration.
#[derive(Clone, Copy)]
pub(super) enum Outcome {
    Unasked,
    Unserved(u16),
    /// A route, and how many keys its limits have.
    Route(u32, u32),
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
    pub(super) fn plan(&self, request: &Request<'_>, keys: &mut Keys) -> Outcome {
        if request.line.unasked {
            return Outcome::Unasked;
        }
        let planned = match request.method {
            Some(method) => self.plan_target(request, method, keys),
            // As the gateway says of a request line that is none.
            None => Err(GatewayError::Target),
        };
        planned.unwrap_or_else(|error| Outcome::Unserved(error.status().as_u16()))
    }

    fn plan_target(
        &self,
        request: &Request<'_>,
        method: &Method,
        keys: &mut Keys,
    ) -> Result<Outcome, GatewayError> {
        let target = &*request.line.target;
        // What passes is plain ASCII.
        let text = std::str::from_utf8(target).ok().filter(|_| is_target(target));
        let text = text.ok_or(GatewayError::Target)?;
        if !text.starts_with('/') {
            return self.plan_absolute(request, method, text, keys);
        }
        plan::screen_method(method)?;
        self.plan_path(request, method, [request.host, text], keys)
    }

    /// A target such as `http://host/path`, brought into origin form as the gateway does.
    #[cold]
    fn plan_absolute(
        &self,
        request: &Request<'_>,
        method: &Method,
        target: &str,
        keys: &mut Keys,
    ) -> Result<Outcome, GatewayError> {
        let sent = HttpRequest::builder().method(method).uri(target);
        let sent = sent.header(header::HOST, request.host).body(());
        let (mut parts, ()) = sent.map_err(|_| GatewayError::Target)?.into_parts();
        plan::screen(&mut parts, false)?;
        let target = parts.uri.path_and_query().map_or("", |target| target.as_str());
        self.plan_path(request, method, [&plan::host(&parts), target], keys)
    }

    fn plan_path(
        &self,
        request: &Request<'_>,
        method: &Method,
        [host, target]: [&str; 2],
        keys: &mut Keys,
    ) -> Result<Outcome, GatewayError> {
        let query = memchr::memchr(b'?', target.as_bytes());
        let (path, query) = match query {
            Some(mark) => (&target[..mark], Some(&target[mark + 1..])),
            None => (target, None),
        };
        let merge_slashes = self.snapshot.http.merge_slashes;
        let asked = Asked {
            client: request.line.client,
            host: host.into(),
            path: normalize(path, merge_slashes).map_err(GatewayError::Path)?,
            method,
            query,
            headers: request.headers,
            token_sources: request.sources,
        };
        let matched = asked.find(&self.snapshot)?;
        let own = matched.subject(|subject| plan::keys(matched.route, subject, self.secret))?;
        keys.extend_from_slice(&own);
        Ok(Outcome::Route(matched.index as u32, own.len() as u32))
    }

    /// Charges a request at the virtual time `at`, which never runs back; its keys stand first in
    /// `keys`, and are taken from there.
    pub(super) fn decide(&mut self, outcome: Outcome, keys: &mut &[Key], at: Moment) -> Fate {
        let (index, keys) = match outcome {
            Outcome::Unasked => return Fate::Unasked,
            Outcome::Unserved(status) => {
                *self.unserved.entry(status).or_default() += 1;
                return Fate::Unserved(status);
            }
            Outcome::Route(index, count) => {
                let (own, rest) = keys.split_at(count as usize);
                *keys = rest;
                (index as usize, own)
            }
        };
        if keys.is_empty() {
            self.unlimited += 1;
            self.routes[index].add(true, at);
            return Fate::Unlimited { route: index };
        }
        self.tick(at.time);
        let charges = plan::charges(&self.snapshot.routes[index], keys);
        let verdict = self.memory.charge(&charges, at.time);
        let mut refusing = SmallVec::new();
        for (charge, decision) in charges.iter().zip(&verdict.decisions) {
            let limit = charge.limit.index;
            self.limits[limit].add(decision.admitted, at);
            if !decision.admitted {
                refusing.push(limit as u32);
            }
        }
        self.routes[index].add(verdict.admitted, at);
        if verdict.admitted {
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
