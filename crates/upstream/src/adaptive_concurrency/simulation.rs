//! A simulated server with a queue, behind a limit on the requests in flight.
//!
//! `benches/balance.rs` includes this file, so it imports from the crate only the names in its
//! parent module.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use super::{SampleOutcome, SplitMix};

/// A limit on the requests in flight.
pub(crate) trait Limiter {
    /// The limit.
    fn limit(&self) -> u32;
    /// Records an ended request: its latency in us, the requests in flight at its start, its
    /// outcome, and the time in ms.
    fn record(&mut self, latency: u64, in_flight: u32, outcome: SampleOutcome, now: u64);
}

/// A limit that never changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FixedLimit(pub(crate) u32);

impl Limiter for FixedLimit {
    fn limit(&self) -> u32 {
        self.0
    }

    fn record(&mut self, _: u64, _: u32, _: SampleOutcome, _: u64) {}
}

/// The server's capacity from a time on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capacity {
    /// The start, in us.
    pub(crate) from: u64,
    /// The number of requests that it serves at a time.
    pub(crate) workers: u32,
    /// The mean service time, in us; distributed exponentially.
    pub(crate) service: u64,
}

/// A simulation.
#[derive(Clone, Debug)]
pub(crate) struct Simulation {
    /// The seed of the random numbers.
    pub(crate) seed: u64,
    /// The mean time between requests, in us; distributed exponentially.
    pub(crate) pause: u64,
    /// The time after which a client gives up, in us. The server does not notice.
    pub(crate) timeout: u64,
    /// The duration, in us.
    pub(crate) duration: u64,
    /// Sorted by `from`; the first starts at 0.
    pub(crate) capacities: Vec<Capacity>,
}

/// The outcomes of the requests that started in one second.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Second {
    /// Answered in time.
    pub(crate) answered: u64,
    /// Refused at the limit.
    pub(crate) refused: u64,
    /// The client gave up.
    pub(crate) timed_out: u64,
    /// The sum of the latencies of answered requests, in us.
    pub(crate) latency: u64,
    /// The limit at the end of the second.
    pub(crate) limit: u32,
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Event {
    Arrival,
    Completion(usize),
    Timeout(usize),
    /// The server's capacity changes.
    Change,
}

struct Request {
    started: u64,
    in_flight: u32,
    is_over: bool,
}

struct SimulationRun<'a> {
    simulation: &'a Simulation,
    random: SplitMix,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    requests: Vec<Request>,
    queue: VecDeque<usize>,
    busy: u32,
    in_flight: u32,
    seconds: Vec<Second>,
}

impl Simulation {
    /// Runs the simulation. Returns the outcomes of each second's requests.
    pub(crate) fn run(&self, limiter: &mut dyn Limiter) -> Vec<Second> {
        let seconds = vec![Second::default(); self.duration.div_ceil(1_000_000) as usize];
        let mut run = SimulationRun {
            simulation: self,
            random: SplitMix::new(self.seed),
            events: BinaryHeap::new(),
            requests: Vec::new(),
            queue: VecDeque::new(),
            busy: 0,
            in_flight: 0,
            seconds,
        };
        run.events.push(Reverse((0, Event::Arrival)));
        for capacity in &self.capacities {
            run.events.push(Reverse((capacity.from, Event::Change)));
        }
        while let Some(Reverse((now, event))) = run.events.pop() {
            if now >= self.duration {
                break;
            }
            match event {
                Event::Arrival => run.arrive(now, limiter),
                Event::Completion(request) => {
                    run.busy -= 1;
                    run.end(request, now, SampleOutcome::Responded, limiter);
                }
                Event::Timeout(request) => run.end(request, now, SampleOutcome::Dropped, limiter),
                Event::Change => {}
            }
            run.serve(now);
            run.seconds[(now / 1_000_000) as usize].limit = limiter.limit();
        }
        run.seconds
    }

    fn capacity(&self, now: u64) -> Capacity {
        let past = self.capacities.iter().rev().find(|capacity| capacity.from <= now);
        *past.unwrap_or(&self.capacities[0])
    }
}

impl SimulationRun<'_> {
    /// A random time with an exponential distribution, in us.
    fn exponential(&mut self, mean: u64) -> u64 {
        let uniform = (self.random.bits() >> 11) as f64 / (1_u64 << 53) as f64;
        (-(1.0 - uniform).ln() * mean as f64) as u64
    }

    fn arrive(&mut self, now: u64, limiter: &dyn Limiter) {
        let next = now + self.exponential(self.simulation.pause);
        self.events.push(Reverse((next, Event::Arrival)));
        if self.in_flight >= limiter.limit() {
            self.seconds[(now / 1_000_000) as usize].refused += 1;
            return;
        }
        self.in_flight += 1;
        let request = self.requests.len();
        self.requests.push(Request { started: now, in_flight: self.in_flight, is_over: false });
        self.queue.push_back(request);
        self.events.push(Reverse((now + self.simulation.timeout, Event::Timeout(request))));
    }

    /// Starts queued requests at idle workers.
    fn serve(&mut self, now: u64) {
        let capacity = self.simulation.capacity(now);
        while self.busy < capacity.workers {
            let Some(request) = self.queue.pop_front() else { return };
            self.busy += 1;
            let end = now + self.exponential(capacity.service);
            self.events.push(Reverse((end, Event::Completion(request))));
        }
    }

    fn end(&mut self, request: usize, now: u64, outcome: SampleOutcome, limiter: &mut dyn Limiter) {
        let request = &mut self.requests[request];
        if std::mem::replace(&mut request.is_over, true) {
            return;
        }
        self.in_flight -= 1;
        let latency = now - request.started;
        let second = &mut self.seconds[(request.started / 1_000_000) as usize];
        match outcome {
            SampleOutcome::Dropped => second.timed_out += 1,
            SampleOutcome::Responded => {
                second.answered += 1;
                second.latency += latency;
            }
        }
        limiter.record(latency, request.in_flight, outcome, now / 1_000);
    }
}
