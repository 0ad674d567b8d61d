//! One choice: draws endpoints until one can take the request.

use std::cmp::Ordering;

use tidegate_base::mix::SplitMix;

use super::{
    Balancer, EndpointView, FULL_RAMP, Pick, PickRequest, Policy, Reason, SkipCause,
    alias::AliasTable, ring::Ring,
};

/// Number of draws before all endpoints are inspected.
const MAX_DRAWS: usize = 8;
/// Number of points of the ring to visit before all endpoints are inspected.
const MAX_POINTS: usize = 64;
/// The bound of consistent hashing: an endpoint's load is at most 5/4 of the mean for its weight,
/// or [`MIN_LOAD_BOUND`] if that is more.
const LOAD_BOUND: (u64, u64) = (5, 4);
/// Minimum of that bound, in requests: a lower bound would scatter a caller's requests.
const MIN_LOAD_BOUND: u64 = 4;

/// The cost of an endpoint that has requests in flight but has not responded yet. It is so high
/// that a new endpoint gets one request and no other before its response. Finagle calls it the
/// penalty.
const UNKNOWN_COST: f64 = 1e12;

/// One choice.
pub(super) struct Draw<'a, V> {
    balancer: &'a Balancer,
    input: &'a PickRequest<'a>,
    view: &'a V,
    random: SplitMix,
}

impl<'a, V: EndpointView> Draw<'a, V> {
    /// A choice of `balancer`.
    pub(super) fn new(balancer: &'a Balancer, input: &'a PickRequest<'a>, view: &'a V) -> Self {
        Self { balancer, input, view, random: SplitMix::new(input.random) }
    }

    #[inline]
    pub(super) fn is_usable(&self, index: usize) -> bool {
        !self.input.excluded.contains(&index) && self.view.is_available(index)
    }

    /// The share of its weight that the endpoint has, in 1/1024: reduced by slow start and, with a
    /// load-based policy, by its errors.
    #[inline]
    fn ramp(&self, index: usize) -> u32 {
        let ramp = self.view.ramp(index).clamp(1, FULL_RAMP);
        match self.balancer.policy {
            Policy::LeastRequests | Policy::PeakEwma => {
                (ramp * self.view.success_share(index).min(FULL_RAMP) / FULL_RAMP).max(1)
            }
            Policy::RoundRobin | Policy::Hash => ramp,
        }
    }

    /// True if an endpoint that was drawn by its weight may be chosen: only with the probability of
    /// its ramp.
    #[inline]
    fn accept(&mut self, index: usize) -> bool {
        if !self.is_usable(index) {
            return false;
        }
        let ramp = self.ramp(index);
        ramp >= FULL_RAMP || self.random.below(u64::from(FULL_RAMP)) < u64::from(ramp)
    }

    /// True with the probability of the endpoint's share of successes.
    #[inline]
    fn succeeds(&mut self, index: usize) -> bool {
        let share = self.view.success_share(index);
        share >= FULL_RAMP || self.random.below(u64::from(FULL_RAMP)) < u64::from(share)
    }

    /// The endpoint's weight in 1/1024, with slow start and errors.
    #[inline]
    fn weight(&self, index: usize) -> u64 {
        u64::from(self.balancer.weights[index]) * u64::from(self.ramp(index))
    }

    /// A random usable endpoint other than `without`, by weight. Inspects all.
    fn scan(&mut self, without: Option<usize>) -> Option<usize> {
        let (mut chosen, mut total) = (None, 0);
        for index in 0..self.balancer.len() {
            let weight = self.weight(index);
            if weight > 0 && Some(index) != without && self.is_usable(index) {
                total += weight;
                if self.random.below(total) < weight {
                    chosen = Some(index);
                }
            }
        }
        chosen
    }

    /// The endpoint whose turn it is, or a random one by weight.
    pub(super) fn rotation(&mut self, schedule: &[u32]) -> Option<Pick> {
        let turn_of = schedule[(self.input.turn % schedule.len() as u64) as usize] as usize;
        if self.accept(turn_of) {
            return Some(Pick { index: turn_of, reason: Reason::Rotation });
        }
        let reason = Reason::Redrawn { turn_of };
        for _ in 0..MAX_DRAWS {
            let index = schedule[self.random.below(schedule.len() as u64) as usize] as usize;
            if self.accept(index) {
                return Some(Pick { index, reason });
            }
        }
        self.scan(None).map(|index| Pick { index, reason })
    }

    /// The better one of two random endpoints.
    pub(super) fn two_choices(&mut self, table: &AliasTable) -> Option<Pick> {
        let first = self.draw(table, None)?;
        let Some(second) = self.draw(table, Some(first)) else {
            return Some(Pick { index: first, reason: Reason::OnlyAvailable });
        };
        // A failing endpoint must get at most its share, however low its load. Its lower weight in
        // the draw is not enough: of only two endpoints, both are always drawn.
        if !self.succeeds(second) {
            return Some(Pick { index: first, reason: Reason::DrawnByWeight { other: second } });
        }
        if self.balancer.policy != Policy::PeakEwma {
            return Some(self.fewer_requests(first, second));
        }
        if self.keeps_first(first, second) {
            return Some(Pick { index: first, reason: Reason::DrawnByWeight { other: second } });
        }
        Some(self.lower_cost(first, second))
    }

    /// A random usable endpoint other than `without`, by weight.
    fn draw(&mut self, table: &AliasTable, without: Option<usize>) -> Option<usize> {
        for _ in 0..MAX_DRAWS {
            let index = table.draw(self.random.bits());
            if Some(index) != without && self.accept(index) {
                return Some(index);
            }
        }
        self.scan(without)
    }

    /// True if the first endpoint is chosen without a comparison, with the probability that a
    /// second, independent draw between the two would select it again. So an endpoint of little
    /// weight gets at most twice its share, however low its cost. With equal weights, the costs are
    /// always compared.
    fn keeps_first(&mut self, first: usize, second: usize) -> bool {
        let (weight, other) = (self.weight(first), self.weight(second));
        weight != other && self.random.below(weight + other) < weight
    }

    /// The second endpoint if its requests, including this one, are at most those of the first,
    /// both relative to weight. With equal weights, the second then has fewer. Otherwise the first:
    /// it was drawn by weight, so each endpoint has its share while there is no load.
    fn fewer_requests(&self, first: usize, second: usize) -> Pick {
        let (in_flight, other_in_flight) =
            (self.view.in_flight(first), self.view.in_flight(second));
        let (weight, other_weight) =
            (u128::from(self.weight(first)), u128::from(self.weight(second)));
        let load = u128::from(in_flight) * other_weight;
        if (u128::from(other_in_flight) + 1) * weight <= load {
            let reason = Reason::FewerRequests {
                in_flight: other_in_flight,
                other: first,
                other_in_flight: in_flight,
            };
            return Pick { index: second, reason };
        }
        let reason = match load.cmp(&(u128::from(other_in_flight) * weight)) {
            Ordering::Less => Reason::FewerRequests { in_flight, other: second, other_in_flight },
            Ordering::Equal => Reason::EqualRequests { in_flight, other: second },
            Ordering::Greater => Reason::DrawnByWeight { other: second },
        };
        Pick { index: first, reason }
    }

    fn lower_cost(&self, first: usize, second: usize) -> Pick {
        let (cost, other_cost) = (self.cost(first), self.cost(second));
        let (index, cost, other, other_cost) = if other_cost < cost {
            (second, other_cost, first, cost)
        } else {
            (first, cost, second, other_cost)
        };
        let reason = Reason::LowerCost { cost: cost as u64, other, other_cost: other_cost as u64 };
        Pick { index, reason }
    }

    /// The latency, in us, times the requests in flight relative to the endpoint's weight.
    fn cost(&self, index: usize) -> f64 {
        let (latency, in_flight) = (self.view.cost(index), self.view.in_flight(index));
        if latency == 0 && in_flight > 0 {
            return UNKNOWN_COST + f64::from(in_flight);
        }
        let mean = self.balancer.total_weight as f64 / self.balancer.len() as f64;
        let share = self.weight(index) as f64 / (mean * f64::from(FULL_RAMP));
        latency as f64 * (f64::from(in_flight) / share + 1.0)
    }

    /// The first endpoint from the key's point on that can take the request.
    pub(super) fn ring(&self, ring: &Ring) -> Option<Pick> {
        let key = self.input.key.0;
        let (mut owner, mut previous) = (None, None);
        for index in ring.walk(key).take(MAX_POINTS) {
            if previous == Some(index) {
                continue;
            }
            previous = Some(index);
            match self.skip_cause(ring, index) {
                None => return Some(Pick { index, reason: ring_reason(owner) }),
                Some(cause) => owner = owner.or(Some((index, cause))),
            }
        }
        self.scan_ring(ring).map(|index| Pick { index, reason: ring_reason(owner) })
    }

    /// The reason why the endpoint cannot take the key; `None` if it can.
    fn skip_cause(&self, ring: &Ring, index: usize) -> Option<SkipCause> {
        if self.input.excluded.contains(&index) {
            return Some(SkipCause::Tried);
        }
        if !self.view.is_available(index) {
            return Some(SkipCause::Unavailable);
        }
        // During slow start, the endpoint gets its keys gradually: a key that it has stays.
        let ramp = u64::from(self.view.ramp(index));
        if ring.rank(index, self.input.key.0) % u64::from(FULL_RAMP) >= ramp {
            return Some(SkipCause::SlowStart);
        }
        let (in_flight, bound) = (self.view.in_flight(index), self.load_bound(index));
        (u64::from(in_flight) >= bound).then_some(SkipCause::Overloaded { in_flight, bound })
    }

    /// Maximum number of requests in flight at the endpoint, including this one.
    fn load_bound(&self, index: usize) -> u64 {
        let weight = self.view.weight_in_service().unwrap_or(self.balancer.total_weight).max(1);
        let load = (self.view.total_in_flight() + 1) * u64::from(self.balancer.weights[index]);
        (load * LOAD_BOUND.0).div_ceil(weight * LOAD_BOUND.1).max(MIN_LOAD_BOUND)
    }

    /// The usable endpoint with the highest rank for the key, within the bound if possible.
    /// Inspects all.
    fn scan_ring(&self, ring: &Ring) -> Option<usize> {
        let indexes = 0..self.balancer.len();
        let usable =
            indexes.filter(|&index| self.balancer.weights[index] > 0 && self.is_usable(index));
        usable.max_by_key(|&index| {
            let is_within = u64::from(self.view.in_flight(index)) < self.load_bound(index);
            (is_within, ring.rank(index, self.input.key.0))
        })
    }
}

fn ring_reason(owner: Option<(usize, SkipCause)>) -> Reason {
    owner.map_or(Reason::KeyOwner, |(owner, cause)| Reason::KeySuccessor { owner, cause })
}
