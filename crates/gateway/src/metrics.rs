//! Counters of requests, decisions and connections, per worker.
//!
//! Only a worker writes its [`WorkerMetrics`]; a reader sums them over all workers. Counters of
//! routes, limits and upstreams are kept by name, so a reload removes only the counters of names
//! that it removes.
//!
//! | file | content |
//! |---|---|
//! | `counters` | the counters of routes, plans, limits, upstreams and the throttle |
//! | `latency` | [`Histogram`]: durations of requests |
//! | `refused_callers` | the callers that limits refuse most, in bounded space |

mod counters;
mod latency;
mod refused_callers;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::AtomicU64},
};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;

pub use self::counters::{
    AuthRejection, ConnectionProtocol, LimitCounters, MirrorOutcome, OpeningFailure, PlanCounters,
    RouteCounters, SettlementCounters, ThrottleCounters, UpstreamCounters,
};
pub use self::latency::{Exemplar, Histogram, LATENCY_BOUNDS};
pub use self::refused_callers::{RefusedCaller, WINDOW as REFUSED_WINDOW};

use tidegate_base::{counter::Counter, time::StoreTime};

use self::refused_callers::{RefusedCallers, most_refused};

/// Counters by name.
type CountersByName<K, T> = Mutex<BTreeMap<K, Arc<CachePadded<T>>>>;

/// The counters of one worker.
#[derive(Debug, Default)]
pub struct WorkerMetrics {
    /// Sweeps of the worker's connections: a worker that makes progress adds some each second.
    pub sweeps: Counter,
    /// Open client connections.
    pub connections: Counter,
    /// Accepted client connections.
    pub accepted: Counter,
    /// Client connections closed immediately, because their client had too many.
    pub connections_refused: Counter,
    /// Requests refused because their client had too many in flight.
    pub requests_refused: Counter,
    /// HTTP/2 streams refused because the heads of open streams had used up their room, or because
    /// their client had received GOAWAY.
    pub streams_refused: Counter,
    /// Client connections on which HTTP began, by `ConnectionProtocol::index`.
    pub opened: [Counter; ConnectionProtocol::COUNT],
    /// Client connections that ended before HTTP, by [`OpeningFailure`].
    pub openings_failed: [Counter; OpeningFailure::ALL.len()],
    /// Requests by version, in the order of [`tidegate_http1::Version::ALL`].
    pub requests_by_version: [Counter; 3],
    /// Requests refused before routing: malformed or too slow.
    pub malformed: Counter,
    /// Requests that are being delayed.
    pub waiting: Counter,
    /// Open tunnels: requests whose connection was upgraded to another protocol.
    pub tunnels: Counter,
    /// The decisions of the throttle.
    pub throttle: CachePadded<ThrottleCounters>,
    routes: CountersByName<Box<str>, RouteCounters>,
    plans: CountersByName<Box<str>, PlanCounters>,
    limits: CountersByName<(Box<str>, Box<str>), LimitCounters>,
    upstreams: CountersByName<Box<str>, UpstreamCounters>,
    /// Locked by the worker for each refusal, and by a reader once a second.
    refused_callers: CachePadded<Mutex<RefusedCallers>>,
}

impl WorkerMetrics {
    /// Counts that the limit or policy called `limit` refused the caller with this keyed hash.
    /// `consumer` is its name, if the limit counts consumers.
    pub fn count_refused_caller(
        &self,
        now: StoreTime,
        limit: &str,
        key: u128,
        consumer: Option<&str>,
    ) {
        self.refused_callers.lock().count(now, limit, key, consumer);
    }

    /// Counts a client connection on which HTTP begins.
    pub fn count_opened(&self, protocol: ConnectionProtocol) {
        self.opened[protocol.index()].add(1);
    }

    /// Counts a client connection that ended before HTTP.
    pub fn count_opening_failure(&self, failure: OpeningFailure) {
        self.openings_failed[failure as usize].add(1);
    }

    /// The counters of a route. Locks: call it once per reload, not per request.
    pub fn route(&self, name: &str) -> Arc<CachePadded<RouteCounters>> {
        self.routes.lock().entry(name.into()).or_default().clone()
    }

    /// The counters of a plan. Locks, as [`Self::route`] does.
    pub fn plan(&self, name: &str) -> Arc<CachePadded<PlanCounters>> {
        self.plans.lock().entry(name.into()).or_default().clone()
    }

    /// The counters of a limit on a route.
    pub fn limit(&self, route: &str, limit: &str) -> Arc<CachePadded<LimitCounters>> {
        self.limits.lock().entry((route.into(), limit.into())).or_default().clone()
    }

    /// The counters of an upstream.
    pub fn upstream(&self, name: &str) -> Arc<CachePadded<UpstreamCounters>> {
        self.upstreams.lock().entry(name.into()).or_default().clone()
    }

    /// Keeps the counters of these routes, limits (each with its route) and upstreams, and of
    /// requests without a route; removes all others.
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

    /// Keeps the counters of these plans; removes all others.
    pub fn retain_plans(&self, plans: &BTreeSet<&str>) {
        self.plans.lock().retain(|name, _| plans.contains(&**name));
    }
}

/// The counters of all workers.
#[derive(Debug, Default)]
pub struct Metrics {
    workers: Mutex<Vec<Arc<WorkerMetrics>>>,
    /// Reloads that were applied.
    pub reloads: AtomicU64,
    /// Reloads that were rejected because of a fault.
    pub reload_faults: AtomicU64,
}

/// Sums of counters over all workers, by name.
type Sums<K, const N: usize> = BTreeMap<K, [u64; N]>;

impl Metrics {
    /// Adds the counters of a new worker.
    pub fn add_worker(&self) -> Arc<WorkerMetrics> {
        let worker = Arc::new(WorkerMetrics::default());
        self.workers.lock().push(worker.clone());
        worker
    }

    /// The numbers of client connections: open, accepted, and refused because their client had too
    /// many. The last number is of requests refused before routing.
    pub fn connections(&self) -> [u64; 4] {
        let workers = self.workers.lock();
        let sum =
            |pick: fn(&WorkerMetrics) -> &Counter| workers.iter().map(|w| pick(w).get()).sum();
        [
            sum(|w| &w.connections),
            sum(|w| &w.accepted),
            sum(|w| &w.connections_refused),
            sum(|w| &w.malformed),
        ]
    }

    /// Requests refused because their client had too many in flight.
    pub fn requests_refused(&self) -> u64 {
        self.workers.lock().iter().map(|worker| worker.requests_refused.get()).sum()
    }

    /// HTTP/2 streams refused after GOAWAY, or because their heads had no room.
    pub fn streams_refused(&self) -> u64 {
        self.workers.lock().iter().map(|worker| worker.streams_refused.get()).sum()
    }

    /// Client connections on which HTTP began, by protocol.
    pub fn opened(&self) -> impl Iterator<Item = (ConnectionProtocol, u64)> {
        ConnectionProtocol::all().map(|protocol| {
            let workers = self.workers.lock();
            (protocol, workers.iter().map(|worker| worker.opened[protocol.index()].get()).sum())
        })
    }

    /// Client connections that ended before HTTP, by reason.
    pub fn openings_failed(&self) -> impl Iterator<Item = (OpeningFailure, u64)> {
        OpeningFailure::ALL.into_iter().map(|failure| {
            let workers = self.workers.lock();
            let counts = workers.iter().map(|worker| &worker.openings_failed[failure as usize]);
            (failure, counts.map(Counter::get).sum())
        })
    }

    /// The requests with and without a token on routes where the throttle applies.
    pub fn throttle_requests(&self) -> [u64; 2] {
        let workers = self.workers.lock();
        let sum = |pick: fn(&ThrottleCounters) -> &Counter| {
            workers.iter().map(|worker| pick(&worker.throttle).get()).sum()
        };
        [sum(|t| &t.with_token), sum(|t| &t.without_token)]
    }

    /// The waiting room: requests that it admitted, tickets that it gave out, and tickets that were
    /// not accepted, by reason.
    pub fn waiting_room(&self) -> [u64; 6] {
        let workers = self.workers.lock();
        let sum = |pick: fn(&ThrottleCounters) -> &Counter| {
            workers.iter().map(|worker| pick(&worker.throttle).get()).sum()
        };
        [
            sum(|own| &own.room_admitted),
            sum(|own| &own.room_tickets),
            sum(|own| &own.room_faults[0]),
            sum(|own| &own.room_faults[1]),
            sum(|own| &own.room_faults[2]),
            sum(|own| &own.room_faults[3]),
        ]
    }

    /// The decisions of the throttle: known, unknown, missing, rejected; and the tokens recorded as
    /// active.
    pub fn throttle(&self) -> [u64; 5] {
        let workers = self.workers.lock();
        let sum = |pick: fn(&ThrottleCounters) -> &Counter| {
            workers.iter().map(|worker| pick(&worker.throttle).get()).sum()
        };
        [
            sum(|t| &t.known),
            sum(|t| &t.unknown),
            sum(|t| &t.missing),
            sum(|t| &t.rejected),
            sum(|t| &t.recorded),
        ]
    }

    /// Requests whose head was read, by version.
    pub fn requests_by_version(&self) -> [u64; 3] {
        let workers = self.workers.lock();
        std::array::from_fn(|index| {
            workers.iter().map(|worker| worker.requests_by_version[index].get()).sum()
        })
    }

    /// Responses by route and status class, `1xx` to `5xx`.
    pub fn responses(&self) -> Sums<Box<str>, 5> {
        self.sum(|worker| &worker.routes, |route| std::array::from_fn(|i| route.responses[i].get()))
    }

    /// Requests of consumers by plan: all, and refused by limits.
    pub fn plans(&self) -> Sums<Box<str>, 2> {
        self.sum(|worker| &worker.plans, |plan| [plan.requests.get(), plan.refused.get()])
    }

    /// Requests that `allow` and `deny` refused, by route.
    pub fn denied(&self) -> Sums<Box<str>, 1> {
        self.sum(|worker| &worker.routes, |route| [route.denied.get()])
    }

    /// Requests that were refused for their credentials or their consumer, by route, in the order
    /// of [`AuthRejection::ALL`].
    pub fn auth_rejected(&self) -> Sums<Box<str>, { AuthRejection::ALL.len() }> {
        self.sum(
            |worker| &worker.routes,
            |route| std::array::from_fn(|i| route.auth_rejected[i].get()),
        )
    }

    /// Copies of requests by route, in the order of [`MirrorOutcome::ALL`].
    pub fn mirrored(&self) -> Sums<Box<str>, { MirrorOutcome::ALL.len() }> {
        self.sum(|worker| &worker.routes, |route| std::array::from_fn(|i| route.mirrored[i].get()))
    }

    /// The sweeps of each worker.
    pub fn sweeps(&self) -> Vec<u64> {
        self.workers.lock().iter().map(|worker| worker.sweeps.get()).collect()
    }

    /// Latencies by route: the buckets, not cumulative, and the sum in µs.
    pub fn latencies(&self) -> Sums<Box<str>, { LATENCY_BOUNDS.len() + 2 }> {
        self.sum(
            |worker| &worker.routes,
            |route| {
                let latency = &route.latency;
                std::array::from_fn(|i| latency.buckets.get(i).unwrap_or(&latency.micros).get())
            },
        )
    }

    /// The newest exemplar of each bucket of the latencies, by route and bucket.
    pub fn exemplars(&self) -> BTreeMap<(Box<str>, usize), Exemplar> {
        let mut newest = BTreeMap::new();
        for worker in &*self.workers.lock() {
            for (route, counters) in &*worker.routes.lock() {
                for (bucket, exemplar) in counters.latency.exemplars() {
                    let kept = newest.entry((route.clone(), bucket)).or_insert(exemplar);
                    if kept.time < exemplar.time {
                        *kept = exemplar;
                    }
                }
            }
        }
        newest
    }

    /// Decisions by route and limit: admitted, refused, unknown, would refuse.
    pub fn decisions(&self) -> Sums<(Box<str>, Box<str>), 4> {
        self.sum(
            |worker| &worker.limits,
            |limit| {
                let decided = [&limit.admitted, &limit.refused, &limit.unknown];
                let [admitted, refused, unknown] = decided.map(Counter::get);
                [admitted, refused, unknown, limit.would_refuse.get()]
            },
        )
    }

    /// Costs that are settled when responses end, by route and limit: reserved, settled and
    /// overspent units, and responses that could not be decoded.
    pub fn settlements(&self) -> Sums<(Box<str>, Box<str>), 4> {
        self.sum(
            |worker| &worker.limits,
            |limit| {
                let SettlementCounters { reserved, settled, overspent, unreadable } =
                    &limit.settlement;
                [reserved, settled, overspent, unreadable].map(Counter::get)
            },
        )
    }

    /// The `count` callers that limits refused most within the last one or two [`REFUSED_WINDOW`]s.
    pub fn refused_callers(&self, now: StoreTime, count: usize) -> Vec<RefusedCaller> {
        let mut callers = Vec::new();
        for worker in &*self.workers.lock() {
            callers.extend(worker.refused_callers.lock().callers(now).cloned());
        }
        most_refused(callers, count)
    }

    /// Open tunnels.
    pub fn tunnels(&self) -> u64 {
        self.workers.lock().iter().map(|worker| worker.tunnels.get()).sum()
    }

    /// Requests that are being delayed.
    pub fn waiting(&self) -> u64 {
        self.workers.lock().iter().map(|worker| worker.waiting.get()).sum()
    }

    /// Charges that blocks refused, by route and limit.
    pub fn blocked(&self) -> Sums<(Box<str>, Box<str>), 1> {
        self.sum(|worker| &worker.limits, |limit| [limit.blocked.get()])
    }

    /// Delays by route and limit: number of requests, and the sum of their delays in µs.
    pub fn delays(&self) -> Sums<(Box<str>, Box<str>), 2> {
        self.sum(|worker| &worker.limits, |limit| [limit.delayed.get(), limit.delay_micros.get()])
    }

    /// Failures by upstream: connect, timeout, broken.
    pub fn upstream_failures(&self) -> Sums<Box<str>, 3> {
        self.sum(
            |worker| &worker.upstreams,
            |upstream| [upstream.connect.get(), upstream.timeout.get(), upstream.broken.get()],
        )
    }

    /// Retries by upstream.
    pub fn upstream_retries(&self) -> Sums<Box<str>, 1> {
        self.sum(|worker| &worker.upstreams, |upstream| [upstream.retries.get()])
    }

    fn sum<K: Ord + Clone, T, const N: usize>(
        &self,
        table: impl Fn(&WorkerMetrics) -> &CountersByName<K, T>,
        read: impl Fn(&T) -> [u64; N],
    ) -> Sums<K, N> {
        let mut sums = BTreeMap::new();
        for worker in &*self.workers.lock() {
            for (name, counters) in &*table(worker).lock() {
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
    fn counters_are_summed_over_workers_and_survive_a_reload() {
        let metrics = Metrics::default();
        for worker in [metrics.add_worker(), metrics.add_worker()] {
            worker.route("items").responses[1].add(2);
            // Looked up again, as after a reload.
            worker.route("items").responses[1].add(1);
            worker.limit("items", "per-caller").refused.add(5);
        }
        assert_eq!(metrics.responses()["items"], [0, 6, 0, 0, 0]);
        assert_eq!(metrics.decisions()[&("items".into(), "per-caller".into())], [0, 10, 0, 0]);
    }

    #[test]
    fn counters_of_removed_names_are_removed() {
        let metrics = Metrics::default();
        let worker = metrics.add_worker();
        let unrouted = worker.route("");
        for round in 0..1_000 {
            let name = format!("route-{round}");
            let names = |name| [name, "kept"].into_iter().collect();
            worker.route("kept").responses[1].add(1);
            worker.route(&name).responses[1].add(1);
            worker.limit("kept", &name).refused.add(1);
            worker.limit(&name, "few").refused.add(1);
            worker.upstream(&name).connect.add(1);
            worker.retain(&names(&name), &[("kept", &*name)].into(), &names(&name));
        }
        unrouted.responses[3].add(7);
        let responses = metrics.responses();
        assert_eq!(
            responses.keys().map(|name| &**name).collect::<Vec<_>>(),
            ["", "kept", "route-999"]
        );
        assert_eq!((responses[""][3], responses["kept"][1]), (7, 1_000));
        assert_eq!(metrics.latencies().len(), 3);
        let limit = ("kept".into(), "route-999".into());
        assert_eq!(metrics.decisions().into_keys().collect::<Vec<_>>(), [limit]);
        assert_eq!(metrics.upstream_failures().len(), 1);
    }
}
