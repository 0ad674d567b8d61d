//! What a store counts of itself: one shard a worker, added up when they are read.

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;

use super::{deny_cache::DenyStats, redis::Failure, token_lease::Numbers};
use crate::{counter::Counter, limit::OnFailure};

/// One worker's counts.
#[derive(Debug, Default)]
pub(super) struct WorkerCounts {
    calls: Counter,
    asked: Counter,
    ahead: Counter,
    failures: [Counter; Failure::ALL.len()],
    fallbacks: [Counter; 3],
}

impl WorkerCounts {
    /// One request was brought to the store.
    pub(super) fn called(&self) {
        self.calls.add(1);
    }

    /// The shared store was asked for a decision, or for tokens.
    pub(super) fn asked(&self) {
        self.asked.add(1);
    }

    /// A charge was made from tokens taken ahead.
    pub(super) fn spent_ahead(&self) {
        self.ahead.add(1);
    }

    /// The shared store gave no decision.
    pub(super) fn failed(&self, failure: Failure) {
        self.failures[failure.index()].add(1);
    }

    /// A limit was decided by its failure policy.
    pub(super) fn fell_back(&self, policy: OnFailure) {
        self.fallbacks[place(policy)].add(1);
    }
}

/// Every worker's counts, those of workers that have ended included.
#[derive(Debug, Default)]
pub(super) struct Register(Mutex<Vec<Arc<CachePadded<WorkerCounts>>>>);

impl Register {
    /// A new worker's own shard.
    pub(super) fn enter(&self) -> Arc<CachePadded<WorkerCounts>> {
        let counts = Arc::default();
        self.0.lock().push(Arc::clone(&counts));
        counts
    }

    /// All shards added up.
    pub(super) fn total(&self) -> Stats {
        let mut total = Stats::default();
        for worker in self.0.lock().iter() {
            total.calls += worker.calls.get();
            total.asked += worker.asked.get();
            total.ahead += worker.ahead.get();
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

/// What the store has done since the process began.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Stats {
    /// Requests brought to the store.
    pub calls: u64,
    /// How often the shared store was asked, for decisions and for tokens.
    pub asked: u64,
    /// Charges that were made from tokens taken ahead.
    pub ahead: u64,
    /// The deny cache.
    pub denials: DenyStats,
    /// Tokens taken ahead.
    pub tokens: Numbers,
    /// Of the requests, those to which the shared store gave no decision, by [`Failure::index`].
    pub failures: [u64; Failure::ALL.len()],
    /// Decisions of single limits by their failure policy; see [`Stats::fallbacks`].
    fallbacks: [u64; 3],
    /// Records in memory that were removed before their time, because it was full.
    pub evictions: u64,
    /// Records in memory.
    pub keys: usize,
    /// Records whose local charges wait for Redis to come back.
    pub unmerged: usize,
    /// Sums of local charges that were charged in Redis.
    pub merged: u64,
    /// Local charges, sums of them and other corrections, but those of tokens, that Redis will never hear
    /// of: there were too many, or it is not known whether it heard.
    pub merge_drops: u64,
    /// Gateways alive on the same Redis, this one included.
    pub gateways: u32,
}

impl Stats {
    /// Decisions of single limits that their failure policy took.
    pub fn fallbacks(&self, policy: OnFailure) -> u64 {
        self.fallbacks[place(policy)]
    }
}

fn place(policy: OnFailure) -> usize {
    match policy {
        OnFailure::Local => 0,
        OnFailure::Open => 1,
        OnFailure::Closed => 2,
    }
}
