//! The rank correlation of two measures.

/// Spearman's rank correlation of pairs: 1 if both grow alike, -1 if one falls as the other grows.
pub fn spearman(pairs: impl IntoIterator<Item = (usize, usize)>) -> f64 {
    let (first, second): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    let (one, other) = (ranks(&first), ranks(&second));
    let mean = (one.len() as f64 - 1.0) / 2.0;
    let products = one.iter().zip(&other).map(|(a, b)| (a - mean) * (b - mean));
    let square = |ranks: &[f64]| ranks.iter().map(|rank| (rank - mean).powi(2)).sum::<f64>();
    products.sum::<f64>() / (square(&one) * square(&other)).sqrt()
}

/// The ranks of values; equal values share their average rank.
fn ranks(values: &[usize]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by_key(|index| values[*index]);
    let mut ranks = vec![0.0; values.len()];
    for group in order.chunk_by(|one, other| values[*one] == values[*other]) {
        let below = order.partition_point(|index| values[*index] < values[group[0]]);
        for index in group {
            ranks[*index] = below as f64 + (group.len() as f64 - 1.0) / 2.0;
        }
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_correlation_is_that_of_the_ranks() {
        let close = |pairs: &[(usize, usize)], expected: f64| {
            (spearman(pairs.iter().copied()) - expected).abs() < 1e-9
        };
        assert!(close(&[(1, 10), (2, 100), (3, 1_000)], 1.0));
        assert!(close(&[(1, 9), (2, 5), (3, 1)], -1.0));
        assert!(close(&[(1, 1), (2, 3), (3, 2)], 0.5));
        // Ties: ranks 0.5, 0.5, 2 and 0, 1.5, 1.5.
        assert!(close(&[(1, 1), (1, 2), (2, 2)], 0.5));
    }
}
