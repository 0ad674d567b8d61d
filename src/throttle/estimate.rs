//! How many users are active, from how full the filters are.
//!
//! Linear counting (Whang, Vander-Zanden and Taylor, "A linear-time probabilistic counting algorithm
//! for database applications", 1990) with `k` positions a token (Swamidass and Baldi, "Mathematical
//! correction for fingerprint similarity measures to improve chemical retrieval", 2007): `X` occupied
//! of `m` positions are most likely `n = -(m/k) ln(1 - X/m)` tokens. A token that was seen in several
//! generations has the same positions in each, and counts once.
//!
//! With the load `t = kn/m`, the number of free positions has the mean `m e^-t` and the variance
//! `m e^-t (1 - (1+t) e^-t)`. By the slope of `n` in it, `e^t / k`, the estimate has the variance
//! `m (e^t - t - 1) / k^2`, and relative to `n` the deviation `sqrt((e^t - t - 1) / m) / t`, which grows
//! with `t`: from `1 / sqrt(2m)`, to without bounds as the last positions fill.

use super::geometry::Geometry;

/// Within so many deviations lie 95 of 100.
const DEVIATIONS: f64 = 1.96;

/// The estimate is of use while its error is within this part of it.
const TOLERANCE: f64 = 0.05;

/// Distinct tokens over all live generations.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Estimate {
    /// The most likely number; when saturated, the largest that can be told.
    pub tokens: u64,
    /// The true number is within this of it in 95 of 100 cases; without meaning when saturated.
    pub error: u64,
    /// The filters are too full to tell: at least [`Self::tokens`].
    pub saturated: bool,
}

/// Reads the estimate off the `occupied` positions.
pub fn estimate(geometry: &Geometry, occupied: usize) -> Estimate {
    let (positions, hashes) = (geometry.bits as f64, f64::from(geometry.hashes));
    // All occupied, or more than there are, is without bounds.
    let load = -f64::ln_1p(-(occupied as f64 / positions).min(1.0));
    let most = max_load(positions);
    let told = load.min(most);
    Estimate {
        tokens: (told * positions / hashes).round() as u64,
        error: (DEVIATIONS * deviation(positions, told) / hashes).ceil() as u64,
        saturated: load > most,
    }
}

/// The largest number of tokens that filters of this geometry can tell; 0 if they are so small that
/// none is told well.
pub fn ceiling(geometry: &Geometry) -> u64 {
    let positions = geometry.bits as f64;
    (max_load(positions) * positions / f64::from(geometry.hashes)) as u64
}

/// The deviation of the load, in positions.
fn deviation(positions: f64, load: f64) -> f64 {
    // The difference of two numbers that are almost the same is best not taken.
    let excess = if load < 1e-4 { load * load / 2.0 } else { load.exp_m1() - load };
    (positions * excess).sqrt()
}

/// The largest load that is told within the tolerance.
fn max_load(positions: f64) -> f64 {
    // Positions enough for the one bound are more than can be, and the other is where nothing is told.
    let (mut low, mut high) = (0.0, 64.0);
    for _ in 0..64 {
        let load = f64::midpoint(low, high);
        let error = DEVIATIONS * deviation(positions, load) / (load * positions);
        if error <= TOLERANCE {
            low = load;
        } else {
            high = load;
        }
    }
    low
}

#[cfg(test)]
mod tests;
