//! Estimates the number of active users from the fill of the filters.
//!
//! Linear counting (Whang, Vander-Zanden and Taylor, "A linear-time probabilistic counting
//! algorithm for database applications", 1990) with `k` positions per token (Swamidass and Baldi,
//! "Mathematical correction for fingerprint similarity measures to improve chemical retrieval",
//! 2007): for `X` occupied of `m` positions, the most likely number of tokens is
//! `n = -(m/k) ln(1 - X/m)`. A token that was recorded in several generations has the same
//! positions in each and counts once.
//!
//! With the load `t = kn/m`, the number of free positions has the mean `m e^-t` and the variance
//! `m e^-t (1 - (1+t) e^-t)`. The derivative of `n` with respect to it is `-e^t / k`, so the
//! estimate has the variance `m (e^t - t - 1) / k^2` and the relative standard deviation
//! `sqrt((e^t - t - 1) / m) / t`. It grows with `t`: it begins at `1 / sqrt(2m)`, and is unbounded
//! as the last positions fill.
//!
//! Grown filters are read as if they had the configured size, so that the estimate does not depend
//! on the time of growth. Only `s` of the `m` positions of that size are read. With the share
//! `q = s/m`, the estimate has the relative standard deviation `sqrt((e^t - qt - 1) / s) / t`.

use super::geometry::Geometry;

/// Standard deviations of a 95 % confidence interval.
const Z_95: f64 = 1.96;

/// Maximum relative error of an estimate. Above it, the filters are saturated.
const MAX_RELATIVE_ERROR: f64 = 0.05;

/// An estimate of the number of distinct tokens over all live generations.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Estimate {
    /// The most likely number; if saturated, the largest number that can be estimated.
    pub tokens: u64,
    /// Half the width of the 95 % confidence interval; meaningless if saturated.
    pub error: u64,
    /// True if the filters are too full for an estimate: the true number is at least
    /// [`Self::tokens`].
    pub saturated: bool,
}

/// Estimates the number of tokens from the number of `occupied` positions
/// ([`super::Filter::occupied`]).
pub fn estimate(geometry: &Geometry, occupied: usize) -> Estimate {
    let survey = Survey::of(geometry);
    // Infinite if all positions are occupied.
    let load = -f64::ln_1p(-(occupied as f64 / survey.positions).min(1.0));
    let max_load = survey.max_load();
    let capped = load.min(max_load);
    let tokens_per_load = geometry.configured_bits() as f64 / f64::from(geometry.hashes);
    Estimate {
        tokens: (capped * tokens_per_load).round() as u64,
        error: (Z_95 * survey.deviation(capped) * tokens_per_load).ceil() as u64,
        saturated: load > max_load,
    }
}

/// The largest number of tokens that filters of this geometry can estimate; 0 if they are too small
/// for any estimate.
pub fn max_countable(geometry: &Geometry) -> u64 {
    let tokens_per_load = geometry.configured_bits() as f64 / f64::from(geometry.hashes);
    (Survey::of(geometry).max_load() * tokens_per_load) as u64
}

/// The share of unknown tokens that filters of this geometry mistake for recorded ones. `fills` are
/// the shares of set positions in each live generation.
pub fn false_positive(geometry: &Geometry, fills: &[f64]) -> f64 {
    let in_one = |fill: &f64| fill.powi(geometry.hashes.cast_signed());
    // `ln_1p` and `exp_m1` avoid the rounding of `1 - p` for a small `p`.
    -fills.iter().map(|fill| f64::ln_1p(-in_one(fill))).sum::<f64>().exp_m1()
}

/// The positions that are read for an estimate.
struct Survey {
    /// Their number.
    positions: f64,
    /// Their share of all positions of the configured size.
    share: f64,
}

impl Survey {
    fn of(geometry: &Geometry) -> Self {
        let positions = geometry.surveyed() as f64;
        Self { positions, share: positions / geometry.configured_bits() as f64 }
    }

    /// The standard deviation of an estimated load.
    fn deviation(&self, load: f64) -> f64 {
        // The subtraction would cancel most digits: use the first term of the series instead.
        let is_tiny = load < 1e-4 && self.share >= 1.0;
        let excess = if is_tiny { load * load / 2.0 } else { load.exp_m1() - self.share * load };
        (excess / self.positions).sqrt()
    }

    /// The maximum load whose estimate is within [`MAX_RELATIVE_ERROR`], by bisection.
    fn max_load(&self) -> f64 {
        // A load of 64 would need more positions than can exist.
        let (mut low, mut high) = (0.0, 64.0);
        for _ in 0..64 {
            let load = f64::midpoint(low, high);
            if Z_95 * self.deviation(load) / load <= MAX_RELATIVE_ERROR {
                low = load;
            } else {
                high = load;
            }
        }
        low
    }
}

#[cfg(test)]
mod tests;
