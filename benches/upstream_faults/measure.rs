//! One cell of the matrix: a run of one proxy through one scenario.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use testkit::faults::{End, KernelCounter, Load, Outcome, Request};

use crate::{
    configuration::{Support, Variant},
    contestant::Program,
    scenario::{Scenario, Targets},
};

/// Time after which a request of the client fails.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Start of the load that is not measured.
const WARM_UP: Duration = Duration::from_millis(300);
/// Time for which the load goes on once the failing target is used again.
const AFTER_RETURN: Duration = Duration::from_millis(300);
/// Time in which a found target gets few requests.
const FOUND_WINDOW: Duration = Duration::from_millis(500);
/// Share of its requests below which a target is found.
const FOUND_SHARE: f64 = 0.2;

/// The load and the phases of a run.
pub(crate) struct Bench {
    /// Requests a second.
    pub(crate) rate: u32,
    /// Number of targets, in scenarios without names.
    pub(crate) targets: usize,
    /// Time before the fault.
    pub(crate) good: Duration,
    pub(crate) fault: Duration,
    /// Longest time after the fault.
    pub(crate) recovery: Duration,
    pub(crate) support: Support,
}

/// The figures of a run.
pub(crate) struct Row {
    /// Shares of GETs and POSTs that failed during the fault.
    pub(crate) failed: [f64; 2],
    /// Latency added at the 99th percentile of GETs.
    pub(crate) added: Duration,
    /// Time until the failing target is found; `None` if it was not.
    pub(crate) found: Option<Duration>,
    /// Time until the target is used again; `None` if it was not.
    pub(crate) used_again: Option<Duration>,
    /// Requests at the targets per request of the client, during the fault.
    pub(crate) attempts: f64,
    /// Responses with the head or body of another request.
    pub(crate) foreign: usize,
    /// Truncated bodies that were passed as whole.
    pub(crate) truncated: usize,
    /// POSTs that the targets received more than once.
    pub(crate) repeated: usize,
    /// Requests that failed before the fault, which is a fault of this program or a busy machine.
    pub(crate) failed_before: usize,
}

impl Bench {
    /// A sentence that describes the runs.
    pub(crate) fn describe(&self) -> String {
        let missing = if self.support.missing.is_empty() {
            String::new()
        } else {
            format!(" Tidegate does not know yet: {}.", self.support.missing.join(", "))
        };
        format!(
            "{} targets, {} requests a second; the fault lasts {} s.{missing}",
            self.targets,
            self.rate,
            self.fault.as_secs()
        )
    }

    /// Runs `program` through `scenario`.
    pub(crate) fn measure(
        &self,
        scenario: &Scenario<'_>,
        program: &Program,
        variant: Variant,
    ) -> Result<Row> {
        let targets = scenario.start(self.targets);
        let proxy = program.start(targets.is_named, |listen| {
            variant.configuration(listen, &targets, &self.support)
        })?;
        let load = Load::start(proxy.address(), self.rate, CLIENT_TIMEOUT);
        thread::sleep(WARM_UP);
        let warm = Instant::now();
        thread::sleep(self.good);
        let counter = scenario.unseen_attempts().map(KernelCounter::start);
        let start = Instant::now();
        scenario.run(&targets, self.fault);
        let end = Instant::now();
        let unseen = counter.map(KernelCounter::finish).unwrap_or_default();
        let used_again = self.wait_until_used(scenario, &targets, end);
        let outcomes = load.finish();
        let fault = Phase { start, end };
        let before = Phase { start: warm, end: start }.of(&outcomes);
        let during = fault.of(&outcomes);
        let count = |end| outcomes.iter().filter(|outcome| outcome.end == end).count();
        let arrivals = targets.record.arrivals();
        let arrivals = arrivals.iter().filter(|arrival| fault.contains(arrival.at));
        let at_faulty = arrivals.clone().filter(|arrival| arrival.target < targets.faulty);
        let mut at_faulty: Vec<_> = at_faulty.map(|arrival| arrival.at).collect();
        at_faulty.extend(unseen.iter().filter(|at| fault.contains(**at)));
        let attempts = arrivals.count() + unseen.len();
        let share = f64::from(self.rate) / self.targets as f64;
        let found = scenario.is_findable().then(|| fault.found(&at_faulty, share)).flatten();
        let added = p99(&during).saturating_sub(p99(&before));
        Ok(Row {
            failed: [Request::Get, Request::Post].map(|request| failed(&during, request)),
            added,
            found,
            used_again,
            attempts: attempts as f64 / during.len().max(1) as f64,
            foreign: count(End::Foreign),
            truncated: count(End::TruncatedAsWhole),
            repeated: targets.record.repeated_posts().len(),
            failed_before: before.iter().filter(|outcome| has_failed_by(outcome, start)).count(),
        })
    }

    /// Waits until a target that failed serves a request, and returns when it did.
    fn wait_until_used(
        &self,
        scenario: &Scenario<'_>,
        targets: &Targets,
        end: Instant,
    ) -> Option<Duration> {
        if !scenario.is_used_again() {
            return None;
        }
        while end.elapsed() < self.recovery {
            thread::sleep(AFTER_RETURN);
            let arrivals = targets.record.arrivals();
            let first = arrivals.iter().rev().take_while(|arrival| arrival.at > end);
            let served =
                first.filter(|arrival| arrival.target < targets.faulty && arrival.is_served);
            if let Some(first) = served.last() {
                return Some(first.at - end);
            }
        }
        None
    }
}

/// A part of a run.
#[derive(Clone, Copy)]
struct Phase {
    start: Instant,
    end: Instant,
}

impl Phase {
    fn contains(self, at: Instant) -> bool {
        (self.start..self.end).contains(&at)
    }

    /// The requests that were due in it.
    fn of(self, outcomes: &[Outcome]) -> Vec<Outcome> {
        outcomes.iter().filter(|outcome| self.contains(outcome.due)).copied().collect()
    }

    /// When the requests to a target became few; `share` is the number a second that it would get.
    fn found(self, requests: &[Instant], share: f64) -> Option<Duration> {
        let few = share * FOUND_WINDOW.as_secs_f64() * FOUND_SHARE;
        let mut starts: Vec<_> = requests.iter().copied().chain([self.start]).collect();
        starts.sort_unstable();
        let found = starts.into_iter().find(|start| {
            let window = *start..*start + FOUND_WINDOW;
            let later = requests.iter().filter(|at| **at > *start && window.contains(*at));
            window.end <= self.end && (later.count() as f64) < few
        });
        found.map(|found| found - self.start)
    }
}

/// Whether a request failed before the fault, which ends requests in flight, too.
fn has_failed_by(outcome: &Outcome, start: Instant) -> bool {
    outcome.end != End::Whole && outcome.due + outcome.latency < start
}

/// The share of the requests of this kind that failed.
fn failed(outcomes: &[Outcome], request: Request) -> f64 {
    let of_kind = outcomes.iter().filter(|outcome| outcome.request == request);
    let all = of_kind.clone().count().max(1);
    of_kind.filter(|outcome| outcome.end != End::Whole).count() as f64 / all as f64
}

/// The 99th percentile of the latencies of GETs.
fn p99(outcomes: &[Outcome]) -> Duration {
    let gets = outcomes.iter().filter(|outcome| outcome.request == Request::Get);
    let mut latencies: Vec<_> = gets.map(|outcome| outcome.latency).collect();
    latencies.sort_unstable();
    latencies.get(latencies.len() * 99 / 100).copied().unwrap_or_default()
}
