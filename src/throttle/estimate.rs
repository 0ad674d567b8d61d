//! Estimates the number of active users from the fill of the filters.
//!
//! Linear counting (Whang, Vander-Zanden and Taylor, "A linear-time probabilistic counting algorithm
//! for database applications", 1990) with `k` positions per token (Swamidass and Baldi, "Mathematical
//! correction for fingerprint similarity measures to improve chemical retrieval", 2007): for `X`
//! occupied of `m` positions, the most likely number of tokens is `n = -(m/k) ln(1 - X/m)`. A token that
//! was recorded in several generations has the same positions in each and counts once.
//!
//! With the load `t = kn/m`, the number of free positions has the mean `m e^-t` and the variance
//! `m e^-t (1 - (1+t) e^-t)`. The derivative of `n` with respect to it is `-e^t / k`, so the estimate has the
//! variance `m (e^t - t - 1) / k^2` and the relative standard deviation `sqrt((e^t - t - 1) / m) / t`. It
//! grows with `t`, from `1 / sqrt(2m)` without bound as the last positions fill.

use super::geometry::Geometry;

/// Standard deviations of a 95 % confidence interval.
const Z_95: f64 = 1.96;

/// Maximum relative error of an estimate; with a larger one, the filters are saturated.
const MAX_RELATIVE_ERROR: f64 = 0.05;

/// An estimate of the number of distinct tokens over all live generations.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Estimate {
    /// The most likely number; if saturated, the largest number that can be estimated.
    pub tokens: u64,
    /// Half the width of the 95 % confidence interval; meaningless if saturated.
    pub error: u64,
    /// Whether the filters are too full for an estimate: the true number is at least [`Self::tokens`].
    pub saturated: bool,
}

/// Estimates the number of tokens from the number of `occupied` positions.
pub fn estimate(geometry: &Geometry, occupied: usize) -> Estimate {
    let (positions, hashes) = (geometry.bits as f64, f64::from(geometry.hashes));
    // Infinite if all positions are occupied.
    let load = -f64::ln_1p(-(occupied as f64 / positions).min(1.0));
    let max_load = max_load(positions);
    let capped = load.min(max_load);
    Estimate {
        tokens: (capped * positions / hashes).round() as u64,
        error: (Z_95 * deviation(positions, capped) / hashes).ceil() as u64,
        saturated: load > max_load,
    }
}

/// The largest number of tokens that filters of this geometry can estimate; 0 if they are too small for
/// any estimate.
pub fn max_countable(geometry: &Geometry) -> u64 {
    let positions = geometry.bits as f64;
    (max_load(positions) * positions / f64::from(geometry.hashes)) as u64
}

/// The standard deviation of `load * positions`.
fn deviation(positions: f64, load: f64) -> f64 {
    // The subtraction would cancel most digits: use the first term of the series instead.
    let excess = if load < 1e-4 { load * load / 2.0 } else { load.exp_m1() - load };
    (positions * excess).sqrt()
}

/// The largest load whose estimate is within [`MAX_RELATIVE_ERROR`], by bisection.
fn max_load(positions: f64) -> f64 {
    // A load of 64 would need more positions than can exist.
    let (mut low, mut high) = (0.0, 64.0);
    for _ in 0..64 {
        let load = f64::midpoint(low, high);
        let error = Z_95 * deviation(positions, load) / (load * positions);
        if error <= MAX_RELATIVE_ERROR {
            low = load;
        } else {
            high = load;
        }
    }
    low
}

#[cfg(test)]
mod tests;
