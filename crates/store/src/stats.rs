//! The store's counts for metrics: one set per worker, summed when they are read.

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use tidegate_base::counter::Counter;
use tidegate_charge::{OnFailure, Verdict};
use tidegate_redis::RedisFailure;

use super::{deny_cache::DenyStats, unit_lease::LeaseStats};

/// One worker's counts.
#[derive(Debug, Default)]
pub(super) struct WorkerCounts {
    requests: Counter,
    charged_requests: Counter,
    store_calls: Counter,
    leased_charges: Counter,
    failures: [Counter; RedisFailure::ALL.len()],
    fallbacks: [Counter; 3],
}

impl WorkerCounts {
    pub(super) fn count_request(&self) {
        self.requests.add(1);
    }

    /// Counts the request if its charges were made.
    pub(super) fn count_verdict(&self, verdict: &Verdict) {
        if verdict.is_charged() {
            self.charged_requests.add(1);
        }
    }

    /// Counts a call to Redis, for a decision or for units.
    pub(super) fn count_call(&self) {
        self.store_calls.add(1);
    }

    /// Counts a charge made from leased units, without waiting for them.
    pub(super) fn count_leased_charge(&self) {
        self.leased_charges.add(1);
    }

    /// Counts a request, or another call, to which Redis gave no decision.
    pub(super) fn count_failure(&self, failure: RedisFailure) {
        self.failures[failure.index()].add(1);
    }

    /// Counts the decision of one limit by its failure policy.
    pub(super) fn count_fallback(&self, policy: OnFailure) {
        self.fallbacks[policy_index(policy)].add(1);
    }
}

/// Every worker's counts, including those of workers that have ended.
#[derive(Debug, Default)]
pub(super) struct CountsRegistry(Mutex<Vec<Arc<CachePadded<WorkerCounts>>>>);

impl CountsRegistry {
    /// Adds the counts of a new worker.
    pub(super) fn add_worker(&self) -> Arc<CachePadded<WorkerCounts>> {
        let counts = Arc::default();
        self.0.lock().push(Arc::clone(&counts));
        counts
    }

    /// The sum over all workers.
    pub(super) fn total(&self) -> StoreStats {
        let mut total = StoreStats::default();
        for worker in self.0.lock().iter() {
            total.requests += worker.requests.get();
            total.charged_requests += worker.charged_requests.get();
            total.store_calls += worker.store_calls.get();
            total.leased_charges += worker.leased_charges.get();
            for (sum, count) in total.failures.iter_mut().zip(&worker.failures) {
                *sum += count.get();
            }
            for (sum, count) in total.fallbacks.iter_mut().zip(&worker.fallbacks) {
                *sum += count.get();
            }
        }
        total
    }
}

/// The store's counts since the process started, and its current sizes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct StoreStats {
    /// Requests that the store decided, refused ones included.
    pub requests: u64,
    /// Of these, the requests that were charged to a limit.
    pub charged_requests: u64,
    /// Calls to Redis, for decisions and for units.
    pub store_calls: u64,
    /// Charges made from leased units, without waiting for them.
    pub leased_charges: u64,
    /// The deny cache's counts.
    pub denials: DenyStats,
    /// Leased units.
    pub leases: LeaseStats,
    /// Requests and other calls to which Redis gave no decision, indexed by
    /// [`RedisFailure::index`].
    pub failures: [u64; RedisFailure::ALL.len()],
    /// Indexed by `policy_index`.
    fallbacks: [u64; 3],
    /// Records evicted from memory before they expired, because it was full.
    pub evictions: u64,
    /// Records in memory.
    pub keys: usize,
    /// Corrections of charges (except returned units) that were dropped: there were too many, Redis
    /// refused them twice, or it is unknown whether Redis made them.
    pub dropped_corrections: u64,
    /// Live gateways on the same Redis, including this one.
    pub gateways: u32,
}

impl StoreStats {
    /// Decisions of single limits by this failure policy.
    pub fn fallbacks(&self, policy: OnFailure) -> u64 {
        self.fallbacks[policy_index(policy)]
    }
}

fn policy_index(policy: OnFailure) -> usize {
    match policy {
        OnFailure::Local => 0,
        OnFailure::Open => 1,
        OnFailure::Closed => 2,
    }
}
