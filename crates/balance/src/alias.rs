//! Draws a random index in proportion to its weight, in constant time: Vose's alias method.
//!
//! M. D. Vose, "A Linear Algorithm for Generating Random Numbers with a Given Distribution", IEEE
//! Transactions on Software Engineering 17(9), 1991.

/// A table from which random indexes are drawn.
#[derive(Debug)]
pub(super) enum AliasTable {
    /// All indexes below this number have the same weight.
    Uniform(usize),
    /// One column for each index.
    Weighted(Box<[Column]>),
}

/// A column of the table: its own index up to a threshold, another index above.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    /// The share of the column's own index, in 1/2^32. A full column is its own alias.
    threshold: u32,
    alias: u32,
}

impl AliasTable {
    /// The table of these weights; `None` if all are 0.
    pub(super) fn new(weights: &[u32]) -> Option<Self> {
        let first = *weights.first()?;
        if first > 0 && weights.iter().all(|&weight| weight == first) {
            return Some(Self::Uniform(weights.len()));
        }
        let total: u64 = weights.iter().copied().map(u64::from).sum();
        (total > 0).then(|| Self::Weighted(columns(weights, total)))
    }

    /// The index that these random bits select.
    #[inline]
    pub(super) fn draw(&self, random: u64) -> usize {
        let column_of = |columns: usize| (((random >> 32) * columns as u64) >> 32) as usize;
        match self {
            Self::Uniform(count) => column_of(*count),
            Self::Weighted(columns) => {
                let own = column_of(columns.len());
                let column = columns[own];
                if (random as u32) < column.threshold { own } else { column.alias as usize }
            }
        }
    }
}

/// Fills each column that has less than the mean from a column that has more.
fn columns(weights: &[u32], total: u64) -> Box<[Column]> {
    let count = weights.len() as u64;
    // In units of 1/count of a weight, so that the mean is the total.
    let mut rest: Vec<u64> = weights.iter().map(|&weight| u64::from(weight) * count).collect();
    let mut columns: Box<[Column]> =
        (0..weights.len()).map(|own| Column { threshold: 0, alias: own as u32 }).collect();
    let (mut below, mut above): (Vec<usize>, Vec<usize>) =
        (0..weights.len()).partition(|&index| rest[index] < total);
    while let (Some(&donor), Some(index)) = (above.last(), below.pop()) {
        // Below 2^32, because the rest is less than the total.
        let threshold = (u128::from(rest[index]) << 32) / u128::from(total);
        columns[index] = Column { threshold: threshold as u32, alias: donor as u32 };
        rest[donor] -= total - rest[index];
        if rest[donor] < total {
            above.pop();
            below.push(donor);
        }
    }
    columns
}
