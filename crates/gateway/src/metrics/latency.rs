//! [`Histogram`]: durations of requests, with an exemplar for each bucket.

use std::{collections::BTreeMap, time::Duration};

use parking_lot::Mutex;
use tidegate_base::{counter::Counter, time::StoreTime};

/// Upper bounds of the latency histogram's buckets, in seconds. One more bucket has no bound.
pub const LATENCY_BOUNDS: [f64; 16] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0,
    30.0,
];

/// A histogram of durations.
#[derive(Debug, Default)]
pub struct Histogram {
    /// Number of durations in each bucket, not cumulative.
    pub buckets: [Counter; LATENCY_BOUNDS.len() + 1],
    /// The sum of all durations, in µs.
    pub micros: Counter,
    /// The newest exemplar of each bucket. Only sampled requests take the lock.
    exemplars: Mutex<BTreeMap<usize, Exemplar>>,
}

/// A sampled request in a bucket. Its trace shows where the time went.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exemplar {
    /// The id of its trace: 32 hexadecimal digits.
    pub trace_id: [u8; 32],
    /// Its duration.
    pub duration: Duration,
    /// When it ended.
    pub time: StoreTime,
}

impl Histogram {
    /// Adds a duration.
    pub fn observe(&self, duration: Duration) {
        self.buckets[bucket(duration)].add(1);
        self.micros.add(duration.as_micros() as u64);
    }
    /// Keeps a request as the exemplar of its bucket.
    pub fn keep_exemplar(&self, exemplar: Exemplar) {
        self.exemplars.lock().insert(bucket(exemplar.duration), exemplar);
    }

    /// The exemplars, with their buckets.
    pub(super) fn exemplars(&self) -> Vec<(usize, Exemplar)> {
        self.exemplars.lock().iter().map(|(bucket, exemplar)| (*bucket, *exemplar)).collect()
    }
}

fn bucket(duration: Duration) -> usize {
    let seconds = duration.as_secs_f64();
    LATENCY_BOUNDS.iter().take_while(|bound| seconds > **bound).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_counted_in_the_first_bucket_whose_bound_is_not_less() {
        let histogram = Histogram::default();
        for micros in [500, 501, 30_000_001] {
            histogram.observe(Duration::from_micros(micros));
        }
        assert_eq!(histogram.buckets[0].get(), 1);
        assert_eq!(histogram.buckets[1].get(), 1);
        assert_eq!(histogram.buckets[LATENCY_BOUNDS.len()].get(), 1);
        assert_eq!(histogram.micros.get(), 30_001_002);
    }
}
