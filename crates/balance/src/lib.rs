//! The choice of an endpoint for an attempt: pure functions of the caller's input.
//!
//! | policy | choice | cost |
//! |---|---|---|
//! | `round_robin` | a precomputed schedule, in which each endpoint's turns are evenly spaced | one read |
//! | `least_requests` | of two random endpoints the one with fewer requests in flight for its weight | constant |
//! | `peak_ewma` | of two random endpoints the one with the lower latency times requests in flight | constant |
//! | `hash` | the endpoint of the key on a ring, unless its load exceeds 1.25 times the mean | a binary search |
//!
//! Two random choices: M. Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing",
//! IEEE Transactions on Parallel and Distributed Systems 12(10), 2001. Bounded loads: V. Mirrokni,
//! M. Thorup and M. Zadimoghaddam, "Consistent Hashing with Bounded Loads", SODA 2018.
//!
//! The two policies of random choices also weigh an endpoint's errors (`error_rate`), because an
//! endpoint that fails fast has few requests in flight.
//!
//! It has no connections and no memory of its own: whether an endpoint is healthy, and how loaded
//! it is, the caller says with an [`EndpointView`].
//!
//! | file | content |
//! |---|---|
//! | `draw` | one choice, by any policy |
//! | `reason` | why an endpoint was chosen, and others were not |
//! | `rotation`, `alias`, `ring` | what is computed in advance: the schedule of `round_robin`, a table for draws by weight, the ring of `hash` |
//! | `peak_ewma`, `error_rate`, `timed_average` | moving averages of an endpoint's latencies and errors, each in one word |
//!
//! If the drawn endpoint is unavailable, another is drawn by weight, so that its share spreads over
//! all others, not only to its neighbour. If few are available, all are inspected.
//!
//! ```
//! use tidegate_balance::{Balancer, EndpointView, PickRequest, Policy, TargetKey, WeightedEndpoint};
//!
//! struct InFlight([u32; 2]);
//!
//! impl EndpointView for InFlight {
//!     fn is_available(&self, _: usize) -> bool {
//!         true
//!     }
//!
//!     fn in_flight(&self, index: usize) -> u32 {
//!         self.0[index]
//!     }
//!
//!     fn total_in_flight(&self) -> u64 {
//!         self.0.iter().map(|count| u64::from(*count)).sum()
//!     }
//! }
//!
//! let endpoints = ["a", "b"].map(|name| WeightedEndpoint { name, weight: 1 });
//! let balancer = Balancer::new(Policy::LeastRequests, &endpoints);
//! let request = PickRequest { turn: 0, key: TargetKey(0), random: 7, excluded: &[] };
//! let pick = balancer.choose(&request, &InFlight([9, 0])).expect("an endpoint is available");
//! assert_eq!(pick.index, 1);
//! ```

mod alias;
mod draw;
mod error_rate;
mod peak_ewma;
mod reason;
mod ring;
mod rotation;
mod timed_average;

pub use error_rate::{AttemptOutcome, ErrorRate};
pub use peak_ewma::{FAILURE_LATENCY, PeakEwma};
pub use reason::{Description, Reason, SkipCause};
pub use tidegate_vocabulary::Policy;

use self::{alias::AliasTable, draw::Draw, ring::Ring};

/// The ramp of an endpoint that is not in slow start: its whole weight, in 1/1024.
pub const FULL_RAMP: u32 = 1_024;

/// A configured endpoint.
#[derive(Clone, Copy, Debug)]
pub struct WeightedEndpoint<'a> {
    /// Its name. With [`Policy::Hash`], it determines the endpoint's keys, so it must be the same
    /// at all gateways.
    pub name: &'a str,
    /// Its share of the requests, relative to the other weights. With 0 it is never chosen.
    pub weight: u32,
}

/// The state of the endpoints that a choice reads, by their index.
pub trait EndpointView {
    /// True if the endpoint may be chosen: it is not ejected, not down and not full.
    fn is_available(&self, index: usize) -> bool;

    /// The share of its weight that the endpoint has in slow start, in 1/1024: 1 to [`FULL_RAMP`].
    fn ramp(&self, index: usize) -> u32 {
        let _ = index;
        FULL_RAMP
    }

    /// The share of its weight that the endpoint keeps after its errors, in 1/1024: 1 to
    /// [`FULL_RAMP`]. Only load-based policies read it, because they would send more to an endpoint
    /// that fails fast.
    fn success_share(&self, index: usize) -> u32 {
        let _ = index;
        FULL_RAMP
    }

    /// The endpoint's requests in flight.
    fn in_flight(&self, index: usize) -> u32;

    /// [`PeakEwma::cost`] of the endpoint, in us; 0 before the first observation. Only
    /// [`Policy::PeakEwma`] reads it.
    fn cost(&self, index: usize) -> u64 {
        let _ = index;
        0
    }

    /// The requests in flight at all endpoints. Only [`Policy::Hash`] reads it.
    fn total_in_flight(&self) -> u64;

    /// The sum of the weights of the endpoints in service; `None`: all are. Only [`Policy::Hash`]
    /// reads it.
    fn weight_in_service(&self) -> Option<u64> {
        None
    }
}

/// The hash of the parts of a request by which the policy `hash` chooses a target.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TargetKey(pub u64);

/// The input of a choice besides the endpoints.
#[derive(Clone, Copy, Debug)]
pub struct PickRequest<'a> {
    /// The number of the request in the rotation, the same for all its attempts.
    pub turn: u64,
    /// The key of the request; only the policy `hash` reads it.
    pub key: TargetKey,
    /// Random bits, new for each attempt.
    pub random: u64,
    /// The endpoints not to choose, because they were tried before.
    pub excluded: &'a [usize],
}

/// A chosen endpoint.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Pick {
    /// Its index.
    pub index: usize,
    /// The reason for the choice.
    pub reason: Reason,
}

/// Chooses among the endpoints of one upstream. It is immutable: other endpoints or weights need a
/// new one.
#[derive(Debug)]
pub struct Balancer {
    policy: Policy,
    weights: Box<[u32]>,
    total_weight: u64,
    table: Table,
}

/// The precomputed table of a policy.
#[derive(Debug)]
enum Table {
    /// No endpoint has a weight.
    Empty,
    Rotation(Box<[u32]>),
    Alias(AliasTable),
    Ring(Ring),
}

impl Balancer {
    /// A balancer over these endpoints, which are numbered from 0.
    pub fn new(policy: Policy, endpoints: &[WeightedEndpoint<'_>]) -> Self {
        let weights: Box<[u32]> = endpoints.iter().map(|endpoint| endpoint.weight).collect();
        let total_weight = weights.iter().copied().map(u64::from).sum();
        let table = match policy {
            _ if total_weight == 0 => Table::Empty,
            Policy::RoundRobin => Table::Rotation(rotation::schedule(&weights)),
            Policy::LeastRequests | Policy::PeakEwma => {
                AliasTable::new(&weights).map_or(Table::Empty, Table::Alias)
            }
            Policy::Hash => {
                Table::Ring(Ring::new(endpoints.iter().map(|one| (one.name, one.weight))))
            }
        };
        Self { policy, weights, total_weight, table }
    }

    /// The policy.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// The number of endpoints.
    pub fn len(&self) -> usize {
        self.weights.len()
    }

    /// True if there is no endpoint.
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }

    /// Chooses an endpoint; `None` if every available one is excluded.
    pub fn choose(&self, input: &PickRequest<'_>, view: &impl EndpointView) -> Option<Pick> {
        let mut draw = Draw::new(self, input, view);
        if self.weights.len() == 1 {
            let is_usable = self.weights[0] > 0 && draw.is_usable(0);
            return is_usable.then_some(Pick { index: 0, reason: Reason::OnlyTarget });
        }
        match &self.table {
            Table::Empty => None,
            Table::Rotation(schedule) => draw.rotation(schedule),
            Table::Alias(table) => draw.two_choices(table),
            Table::Ring(ring) => draw.ring(ring),
        }
    }
}

#[cfg(test)]
mod tests;
