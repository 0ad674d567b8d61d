//! The requests that the targets of a run have received.

use std::{collections::BTreeMap, sync::Mutex, time::Instant};

use tidegate::clock;

/// A request at a target.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The time at which its head had arrived.
    pub at: Instant,
    /// The target's number.
    pub target: usize,
    /// True if the target answered it as a good target does.
    pub is_served: bool,
}

/// The requests at all targets of a run, without health checks.
#[derive(Default)]
pub struct Record {
    arrivals: Mutex<Vec<Arrival>>,
    /// Number of arrivals of each POST, by its id.
    posts: Mutex<BTreeMap<u64, u32>>,
}

impl Record {
    /// The requests so far, in the order of their arrival.
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.arrivals.lock().expect("no panic").clone()
    }

    /// The ids of POSTs that arrived more than once, at one target or at several.
    pub fn repeated_posts(&self) -> Vec<u64> {
        let posts = self.posts.lock().expect("no panic");
        posts.iter().filter(|(_, count)| **count > 1).map(|(id, _)| *id).collect()
    }

    /// Number of POSTs that arrived, each counted once.
    pub fn posts(&self) -> usize {
        self.posts.lock().expect("no panic").len()
    }

    pub(super) fn add(&self, target: usize, is_served: bool) {
        let arrival = Arrival { at: clock::instant(), target, is_served };
        self.arrivals.lock().expect("no panic").push(arrival);
    }

    pub(super) fn add_post(&self, id: u64) {
        *self.posts.lock().expect("no panic").entry(id).or_default() += 1;
    }
}
