//! Counters of what happened, one shard a worker.
//!
//! A worker alone writes its shard; a reader adds the shards up. Shards keep their counters by name,
//! so that a reload loses none but those of names that it removed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;

use crate::counter::Counter;

/// The upper bounds of the latency histogram's buckets, in seconds; one more has no bound.
pub const LATENCY_BOUNDS: [f64; 12] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];

/// How long things took.
#[derive(Debug, Default)]
pub struct Histogram {
    /// How many fell into each bucket, not cumulated.
    pub buckets: [Counter; LATENCY_BOUNDS.len() + 1],
    /// The sum of all, in microseconds.
    pub micros: Counter,
}

impl Histogram {
    /// Counts one.
    pub fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = LATENCY_BOUNDS.iter().take_while(|bound| seconds > **bound).count();
        self.buckets[bucket].add(1);
        self.micros.add(took.as_micros() as u64);
    }
}

/// What one route did.
#[derive(Debug, Default)]
pub struct RouteCounters {
    /// Answers by class, `1xx` to `5xx`; a client that was gone before its answer counts as `4xx`.
    pub answers: [Counter; 5],
    /// From the request's head to the answer's last byte.
    pub latency: Histogram,
}

/// What one limit decided on one route.
#[derive(Debug, Default)]
pub struct LimitCounters {
    /// Charges that it let pass.
    pub admitted: Counter,
    /// Charges that it refused.
    pub refused: Counter,
    /// Charges that it would have refused, if it were enforced.
    pub would_refuse: Counter,
    /// Requests that were decided without knowing, because the store could not be asked.
    pub unknown: Counter,
    /// Requests that were held back, and longest by this limit.
    pub delayed: Counter,
    /// How long they were held, in microseconds.
    pub delay: Counter,
}

/// What one upstream failed at, by [`crate::upstream::UpstreamError::kind`].
#[derive(Debug, Default)]
pub struct UpstreamCounters {
    /// No connection could be made.
    pub connect: Counter,
    /// No answer came in time.
    pub timeout: Counter,
    /// The connection broke or the answer was malformed, before its head or within its body.
    pub broken: Counter,
    /// Attempts beyond a request's first.
    pub retries: Counter,
}

impl UpstreamCounters {
    /// The counter of one kind of failure.
    pub fn of(&self, kind: &str) -> &Counter {
        match kind {
            "connect" => &self.connect,
            "timeout" => &self.timeout,
            _ => &self.broken,
        }
    }
}

/// What the throttle decided.
#[derive(Debug, Default)]
pub struct ThrottleCounters {
    /// Requests of active users that were let in while newcomers were refused.
    pub known: Counter,
    /// Requests refused: the token had not been active lately.
    pub unknown: Counter,
    /// Requests refused: there was no token.
    pub missing: Counter,
    /// Requests refused: the token had been turned away lately.
    pub rejected: Counter,
    /// Tokens that became known, counted once a generation and worker.
    pub remembered: Counter,
}

/// Counters by the names they are kept under.
type Named<K, T> = Mutex<BTreeMap<K, Arc<CachePadded<T>>>>;

/// One worker's counters.
#[derive(Debug, Default)]
pub struct Shard {
    /// Connections that are open.
    pub connections: Counter,
    /// Connections that were accepted.
    pub accepted: Counter,
    /// Connections that were closed at once: their client had too many.
    pub connections_refused: Counter,
    /// Requests that were refused before they had a route: malformed or late.
    pub malformed: Counter,
    /// Requests that are held back now.
    pub waiting: Counter,
    /// What the throttle decided.
    pub throttle: CachePadded<ThrottleCounters>,
    routes: Named<Box<str>, RouteCounters>,
    limits: Named<(Box<str>, Box<str>), LimitCounters>,
    upstreams: Named<Box<str>, UpstreamCounters>,
}

impl Shard {
    /// The counters of a route. Asked for once a reload, not once a request.
    pub fn route(&self, name: &str) -> Arc<CachePadded<RouteCounters>> {
        self.routes.lock().entry(name.into()).or_default().clone()
    }

    /// The counters of a limit on a route.
    pub fn limit(&self, route: &str, limit: &str) -> Arc<CachePadded<LimitCounters>> {
        self.limits.lock().entry((route.into(), limit.into())).or_default().clone()
    }

    /// The counters of an upstream.
    pub fn upstream(&self, name: &str) -> Arc<CachePadded<UpstreamCounters>> {
        self.upstreams.lock().entry(name.into()).or_default().clone()
    }
}

impl Shard {
    /// Removes counters that no rule names any more: all but those of these routes, of these limits on
    /// their routes and of these upstreams. Those of requests without a route stay.
    pub fn retain(
        &self,
        routes: &BTreeSet<&str>,
        limits: &BTreeSet<(&str, &str)>,
        upstreams: &BTreeSet<&str>,
    ) {
        self.routes.lock().retain(|name, _| name.is_empty() || routes.contains(&**name));
        self.limits.lock().retain(|(route, limit), _| limits.contains(&(&**route, &**limit)));
        self.upstreams.lock().retain(|name, _| upstreams.contains(&**name));
    }
}

/// The counters of all workers.
#[derive(Debug, Default)]
pub struct Metrics {
    shards: Mutex<Vec<Arc<Shard>>>,
    /// Reloads that were applied.
    pub reloads: AtomicU64,
    /// Reloads that were refused because of a fault.
    pub reload_faults: AtomicU64,
}

/// Counters by name, added up over all workers.
type Sums<K, const N: usize> = BTreeMap<K, [u64; N]>;

impl Metrics {
    /// A further worker's counters.
    pub fn shard(&self) -> Arc<Shard> {
        let shard = Arc::new(Shard::default());
        self.shards.lock().push(shard.clone());
        shard
    }

    /// Connections open, ever accepted, and refused as one client's too many; and requests refused before
    /// they had a route.
    pub fn connections(&self) -> [u64; 4] {
        let shards = self.shards.lock();
        let sum = |pick: fn(&Shard) -> &Counter| shards.iter().map(|s| pick(s).get()).sum();
        [
            sum(|s| &s.connections),
            sum(|s| &s.accepted),
            sum(|s| &s.connections_refused),
            sum(|s| &s.malformed),
        ]
    }

    /// What the throttle decided: known, unknown, missing, rejected; and tokens remembered.
    pub fn throttle(&self) -> [u64; 5] {
        let shards = self.shards.lock();
        let sum = |pick: fn(&ThrottleCounters) -> &Counter| {
            shards.iter().map(|shard| pick(&shard.throttle).get()).sum()
        };
        [
            sum(|t| &t.known),
            sum(|t| &t.unknown),
            sum(|t| &t.missing),
            sum(|t| &t.rejected),
            sum(|t| &t.remembered),
        ]
    }

    /// Answers by route and class.
    pub fn answers(&self) -> Sums<Box<str>, 5> {
        self.sum(|shard| &shard.routes, |route| std::array::from_fn(|i| route.answers[i].get()))
    }

    /// Latencies by route: the buckets, not cumulated, and the sum in microseconds.
    pub fn latencies(&self) -> Sums<Box<str>, { LATENCY_BOUNDS.len() + 2 }> {
        self.sum(
            |shard| &shard.routes,
            |route| {
                let latency = &route.latency;
                std::array::from_fn(|i| latency.buckets.get(i).unwrap_or(&latency.micros).get())
            },
        )
    }

    /// Decisions by route and limit: admitted, refused, unknown, would refuse.
    pub fn decisions(&self) -> Sums<(Box<str>, Box<str>), 4> {
        self.sum(
            |shard| &shard.limits,
            |limit| {
                let decided = [&limit.admitted, &limit.refused, &limit.unknown];
                let [admitted, refused, unknown] = decided.map(Counter::get);
                [admitted, refused, unknown, limit.would_refuse.get()]
            },
        )
    }

    /// Requests that are held back now.
    pub fn waiting(&self) -> u64 {
        self.shards.lock().iter().map(|shard| shard.waiting.get()).sum()
    }

    /// Requests held back by route and limit, and for how long, in microseconds.
    pub fn delays(&self) -> Sums<(Box<str>, Box<str>), 2> {
        self.sum(|shard| &shard.limits, |limit| [limit.delayed.get(), limit.delay.get()])
    }

    /// Failures by upstream: connect, timeout, broken.
    pub fn upstream_failures(&self) -> Sums<Box<str>, 3> {
        self.sum(
            |shard| &shard.upstreams,
            |upstream| [upstream.connect.get(), upstream.timeout.get(), upstream.broken.get()],
        )
    }

    /// Attempts beyond a request's first, by upstream.
    pub fn upstream_retries(&self) -> Sums<Box<str>, 1> {
        self.sum(|shard| &shard.upstreams, |upstream| [upstream.retries.get()])
    }

    fn sum<K: Ord + Clone, T, const N: usize>(
        &self,
        table: impl Fn(&Shard) -> &Named<K, T>,
        read: impl Fn(&T) -> [u64; N],
    ) -> Sums<K, N> {
        let mut sums = BTreeMap::new();
        for shard in &*self.shards.lock() {
            for (name, counters) in &*table(shard).lock() {
                let sum = sums.entry(name.clone()).or_insert([0; N]);
                for (sum, value) in sum.iter_mut().zip(read(counters)) {
                    *sum += value;
                }
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_add_up_and_names_outlive_a_reload() {
        let metrics = Metrics::default();
        for worker in [metrics.shard(), metrics.shard()] {
            worker.route("items").answers[1].add(2);
            worker.route("items").answers[1].add(1);
            worker.limit("items", "per-caller").refused.add(5);
        }
        assert_eq!(metrics.answers()["items"], [0, 6, 0, 0, 0]);
        assert_eq!(metrics.decisions()[&("items".into(), "per-caller".into())], [0, 10, 0, 0]);
    }

    #[test]
    fn counters_of_removed_names_are_forgotten() {
        let metrics = Metrics::default();
        let shard = metrics.shard();
        let unrouted = shard.route("");
        for round in 0..1_000 {
            let name = format!("route-{round}");
            let names = |name| [name, "kept"].into_iter().collect();
            shard.route("kept").answers[1].add(1);
            shard.route(&name).answers[1].add(1);
            shard.limit("kept", &name).refused.add(1);
            shard.limit(&name, "few").refused.add(1);
            shard.upstream(&name).connect.add(1);
            shard.retain(&names(&name), &[("kept", &*name)].into(), &names(&name));
        }
        unrouted.answers[3].add(7);
        let answers = metrics.answers();
        assert_eq!(
            answers.keys().map(|name| &**name).collect::<Vec<_>>(),
            ["", "kept", "route-999"]
        );
        assert_eq!((answers[""][3], answers["kept"][1]), (7, 1_000));
        assert_eq!(metrics.latencies().len(), 3);
        let limit = ("kept".into(), "route-999".into());
        assert_eq!(metrics.decisions().into_keys().collect::<Vec<_>>(), [limit]);
        assert_eq!(metrics.upstream_failures().len(), 1);
    }

    #[test]
    fn a_latency_falls_into_the_first_bucket_that_holds_it() {
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
