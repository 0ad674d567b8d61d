//! [`Reason`]: the reason why an endpoint was chosen, for `explain`.

use std::fmt;

/// The reason why an endpoint was chosen.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reason {
    /// The upstream has one endpoint.
    OnlyTarget,
    /// No other endpoint is both available and untried.
    OnlyAvailable,
    /// It is its turn.
    Rotation,
    /// It was drawn at random: the endpoint whose turn it was cannot take the request, or is in
    /// slow start.
    Redrawn {
        /// The endpoint whose turn it was.
        turn_of: usize,
    },
    /// Of two random endpoints, it has fewer requests in flight for its weight.
    FewerRequests {
        /// Its requests in flight.
        in_flight: u32,
        /// The other endpoint.
        other: usize,
        /// The other endpoint's requests in flight.
        other_in_flight: u32,
    },
    /// Of two random endpoints with equal requests in flight for their weights, it was drawn first.
    EqualRequests {
        /// Its requests in flight.
        in_flight: u32,
        /// The other endpoint.
        other: usize,
    },
    /// Of two random endpoints, it was drawn first by its weight. The other's load does not
    /// outweigh that, or was not compared.
    DrawnByWeight {
        /// The other endpoint.
        other: usize,
    },
    /// Of two random endpoints, it has the lower cost, or was drawn first at equal costs. The cost
    /// is the moving average of the latency times the requests in flight with this one.
    LowerCost {
        /// Its cost, in us.
        cost: u64,
        /// The other endpoint.
        other: usize,
        /// The other endpoint's cost, in us.
        other_cost: u64,
    },
    /// The key belongs to it.
    KeyOwner,
    /// The key belongs to an endpoint that cannot take the request; the chosen one is next on the
    /// ring.
    KeySuccessor {
        /// The endpoint that the key belongs to.
        owner: usize,
        /// The reason why the owner was skipped.
        cause: SkipCause,
    },
}

/// The reason why the owner of a key was skipped.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SkipCause {
    /// It was tried before.
    Tried,
    /// It is ejected, down or full.
    Unavailable,
    /// Its slow start has not reached the key yet.
    SlowStart,
    /// Its load exceeds the bound of consistent hashing.
    Overloaded {
        /// Its requests in flight.
        in_flight: u32,
        /// The bound.
        bound: u64,
    },
}

impl Reason {
    /// The reason in words. `name` gives the name of an endpoint by its index.
    pub fn describe<'a, F: Fn(usize) -> &'a str>(self, name: F) -> Description<F> {
        Description { reason: self, name }
    }
}

/// A [`Reason`] in words.
#[derive(Clone, Copy, Debug)]
pub struct Description<F> {
    reason: Reason,
    name: F,
}

impl<'a, F: Fn(usize) -> &'a str> fmt::Display for Description<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match self.reason {
            Reason::OnlyTarget => f.write_str("the only target"),
            Reason::OnlyAvailable => f.write_str("the only available target"),
            Reason::Rotation => f.write_str("next in the rotation"),
            Reason::Redrawn { turn_of } => {
                write!(
                    f,
                    "drawn instead of {}, whose turn it is, but which cannot take the request or is in slow start",
                    name(turn_of)
                )
            }
            Reason::FewerRequests { in_flight, other, other_in_flight } => {
                write!(
                    f,
                    "fewer requests in flight than {}: {in_flight} against {other_in_flight}",
                    name(other)
                )
            }
            Reason::EqualRequests { in_flight, other } => {
                write!(
                    f,
                    "drawn before {}, which has as many requests in flight: {in_flight}",
                    name(other)
                )
            }
            Reason::DrawnByWeight { other } => {
                write!(f, "drawn by its weight before {}", name(other))
            }
            Reason::LowerCost { cost, other, other_cost } => {
                write!(
                    f,
                    "lower latency times requests than {}: {} ms against {} ms",
                    name(other),
                    cost as f64 / 1_000.0,
                    other_cost as f64 / 1_000.0
                )
            }
            Reason::KeyOwner => f.write_str("the key belongs to it"),
            Reason::KeySuccessor { owner, cause } => {
                write!(f, "next on the ring after {}, which {cause}", name(owner))
            }
        }
    }
}

impl fmt::Display for SkipCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tried => f.write_str("was tried before"),
            Self::Unavailable => f.write_str("is not available"),
            Self::SlowStart => f.write_str("is in slow start"),
            Self::Overloaded { in_flight, bound } => {
                write!(f, "has {in_flight} requests in flight, at a bound of {bound}")
            }
        }
    }
}
