//! [`CostFormula`]: a weighted sum of the numbers that a body reports.

use tidegate_limit::MAX_UNITS;

use super::number::Quantity;

/// Steps of a factor: it has nine decimal places.
const STEPS: u64 = 1_000_000_000;
/// The largest factor.
const MAX_FACTOR: f64 = 1e9;

/// A factor from 0 to 10^9, with nine decimal places.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Factor(u64);

impl Factor {
    /// The factor 1.
    pub const ONE: Self = Self(STEPS);

    /// This number; `None` if it is negative or above 10^9.
    pub fn new(number: f64) -> Option<Self> {
        let is_valid = (0.0..=MAX_FACTOR).contains(&number);
        is_valid.then(|| Self((number * STEPS as f64).round() as u64))
    }
}

/// One summand: the first of a few members that a body has, times a factor.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CostTerm {
    /// The indexes of the members' paths, the preferred one first.
    pub alternatives: Vec<usize>,
    /// What a unit of it costs.
    pub factor: Factor,
    /// What a body without it costs.
    pub absence: TermAbsence,
}

/// What a body costs that lacks a term.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum TermAbsence {
    /// What its other terms cost.
    #[default]
    Nothing,
    /// It is not known: the body ended before it reported its cost.
    Unknown,
}

/// The cost of a body: the sum of its terms, rounded up to whole units. A term that the body lacks
/// adds nothing, or means that the cost is not known; a body that has none of the terms reports no
/// cost.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct CostFormula {
    /// The sums, of which the first that a body has any term of counts.
    pub sums: Vec<Vec<CostTerm>>,
}

impl CostFormula {
    /// The number at the path with index 0.
    pub fn single() -> Self {
        let absence = TermAbsence::Unknown;
        Self { sums: vec![vec![CostTerm { alternatives: vec![0], factor: Factor::ONE, absence }]] }
    }

    /// The cost, at most 2^53 - 1; `None` if no number was found. `quantity` gives the number at
    /// the path with an index.
    pub fn cost(&self, quantity: impl Fn(usize) -> Option<Quantity>) -> Option<u64> {
        self.sums.iter().find_map(|terms| sum(terms, &quantity))
    }
}

fn sum(terms: &[CostTerm], quantity: impl Fn(usize) -> Option<Quantity>) -> Option<u64> {
    let mut total: Option<u128> = None;
    for CostTerm { alternatives, factor, absence } in terms {
        match alternatives.iter().find_map(|path| quantity(*path)) {
            Some(quantity) => {
                let cost = quantity.billionths().saturating_mul(u128::from(factor.0));
                total = Some(total.unwrap_or(0).saturating_add(cost));
            }
            None if *absence == TermAbsence::Unknown => return None,
            None => {}
        }
    }
    let total = total?;
    let unit = u128::from(STEPS) * u128::from(STEPS);
    Some(u64::try_from(total.div_ceil(unit)).unwrap_or(MAX_UNITS).min(MAX_UNITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn term(path: usize, factor: f64) -> CostTerm {
        let absence = TermAbsence::Nothing;
        CostTerm { alternatives: vec![path], factor: Factor::new(factor).unwrap(), absence }
    }

    #[test]
    fn sums_are_weighted_and_rounded_up_once() {
        let formula = CostFormula { sums: vec![vec![term(0, 1.0), term(1, 4.0)]] };
        let units =
            |numbers: [Option<u64>; 2]| formula.cost(|path| numbers[path].map(Quantity::units));
        assert_eq!(units([Some(10), Some(5)]), Some(30));
        assert_eq!(units([Some(10), None]), Some(10));
        assert_eq!(units([None, None]), None);
        assert_eq!(units([Some(MAX_UNITS), Some(MAX_UNITS)]), Some(MAX_UNITS));
        let halves = CostFormula { sums: vec![vec![term(0, 0.25), term(1, 0.25)]] };
        assert_eq!(halves.cost(|_| Some(Quantity::units(1))), Some(1));
        let most = CostFormula { sums: vec![vec![term(0, 1e9), term(0, 1e9)]] };
        assert_eq!(most.cost(|_| Some(Quantity::MAX)), Some(MAX_UNITS));
    }

    #[test]
    fn factors_have_bounds() {
        for number in [-0.1, 1.1e9, f64::NAN, f64::INFINITY] {
            assert_eq!(Factor::new(number), None, "{number}");
        }
        assert_eq!(Factor::new(1.0), Some(Factor::ONE));
    }
}
