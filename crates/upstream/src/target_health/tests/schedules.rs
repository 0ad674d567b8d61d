//! 1,000 simulated schedules of failing targets, with a balancer in front.

use std::{cmp::Reverse, collections::BinaryHeap, net::IpAddr};

use tidegate_balance::{Balancer, EndpointView, PickRequest, Policy, TargetKey, WeightedEndpoint};
use tidegate_base::{
    mix::SplitMix,
    time::{CoarseTime, Millis},
};

use super::SETTINGS;
use crate::target_health::{
    AttemptKind, Availability, CheckFailure, ConnectFailure, FailedAttempt, Failure,
    HealthSettings, HealthView, LostConnection, ServiceLevel, TargetHealth, TargetStatus,
    UpstreamHealth,
};

/// The simulated time.
const DURATION: Millis = Millis::from_mins(1);
/// Maximum time between two requests, in ms.
const MAX_PAUSE: u64 = 40;
/// Time for which a silent target keeps an attempt waiting.
const TIMEOUT: Millis = Millis::from_ms(300);
/// Number of clients.
const CLIENTS: u64 = 3;
/// Maximum time for which requests find no target although one works: the timeout of a trial that
/// began before it worked, then the time until the next trial is due and a request chooses that
/// target.
const MAX_OUTAGE: Millis = TIMEOUT.saturating_add(Millis::from_secs(2));

/// A target's behavior until a time.
#[derive(Clone, Copy, Debug)]
struct Behavior {
    until: CoarseTime,
    /// The failure of attempts; `None` while it works.
    failure: Option<Failure>,
}

fn schedule(random: &mut SplitMix) -> Vec<Behavior> {
    let (mut schedule, mut until) = (Vec::new(), CoarseTime::ZERO);
    let is_robust = random.below(4) == 0;
    while until < CoarseTime::ZERO + DURATION {
        until += Millis::from_ms(100 + random.below(20_000));
        let failure = match random.below(9) {
            _ if is_robust => None,
            0 => Some(Failure::Connect(ConnectFailure::Refused)),
            1 => Some(Failure::Reset(LostConnection::Closed)),
            2 => Some(Failure::Timeout),
            3 => Some(Failure::Status(503)),
            _ => None,
        };
        schedule.push(Behavior { until, failure });
    }
    schedule
}

struct Views<'a> {
    health: &'a [HealthView],
    in_flight: &'a [u32],
    now: CoarseTime,
}

impl EndpointView for Views<'_> {
    fn is_available(&self, index: usize) -> bool {
        self.health[index].availability(self.now) != Availability::Unavailable
    }

    fn ramp(&self, index: usize) -> u32 {
        self.health[index].ramp(self.now, SETTINGS.slow_start)
    }

    fn in_flight(&self, index: usize) -> u32 {
        self.in_flight[index]
    }

    fn total_in_flight(&self) -> u64 {
        self.in_flight.iter().copied().map(u64::from).sum()
    }
}

/// An attempt, by the time of its end.
type Attempt = Reverse<EndOfAttempt>;

/// How an attempt will end; ordered by the time.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct EndOfAttempt {
    end: CoarseTime,
    sent: CoarseTime,
    target: usize,
    client: IpAddr,
    is_trial: bool,
    is_failed: bool,
}

struct Run {
    settings: HealthSettings,
    schedules: Vec<Vec<Behavior>>,
    health: UpstreamHealth,
    views: Vec<HealthView>,
    in_flight: Vec<u32>,
    /// The time of each target's last success.
    successes: Vec<CoarseTime>,
    attempts: BinaryHeap<Attempt>,
    refused: u64,
    failed: u64,
    sent: u64,
    /// For each target, the time since which requests find no target although it works.
    outages: Vec<Option<CoarseTime>>,
    /// True if all were down at some time.
    was_down: bool,
}

impl Run {
    fn new(random: &mut SplitMix) -> Self {
        let size = 1 + random.below(8) as usize;
        let settings = HealthSettings {
            failures: 1 + random.below(5) as u32,
            max_share: [50, 50, 50, 30, 100][random.below(5) as usize],
            duration: Millis::from_ms(1_000 + random.below(10_000)),
            check_interval: Millis::from_secs(u64::from(random.below(3) == 0)),
            ..SETTINGS
        };
        Self {
            settings,
            schedules: (0..size).map(|_| schedule(random)).collect(),
            health: UpstreamHealth::new(
                settings,
                vec![TargetHealth::new(); size],
                CoarseTime::ZERO,
            ),
            views: vec![HealthView::default(); size],
            in_flight: vec![0; size],
            successes: vec![CoarseTime::ZERO; size],
            attempts: BinaryHeap::new(),
            refused: 0,
            failed: 0,
            sent: 0,
            outages: vec![None; size],
            was_down: false,
        }
    }

    fn failure(&self, target: usize, now: CoarseTime) -> Option<Failure> {
        let behavior = self.schedules[target].iter().find(|behavior| behavior.until > now);
        behavior.and_then(|behavior| behavior.failure)
    }

    fn publish(&mut self) {
        for (index, view) in self.views.iter_mut().enumerate() {
            *view = self.health.view(index);
        }
    }

    /// Sends one request, if there is a target for it.
    fn send(&mut self, balancer: &Balancer, random: u64, now: CoarseTime) {
        let client = IpAddr::from([10, 0, 0, (random % CLIENTS) as u8]);
        let mut excluded = Vec::new();
        loop {
            let input = PickRequest {
                turn: self.sent,
                key: TargetKey(random),
                random,
                excluded: &excluded,
            };
            let views = Views { health: &self.views, in_flight: &self.in_flight, now };
            let Some(choice) = balancer.choose(&input, &views) else {
                self.refuse(now);
                return;
            };
            let is_trial = self.views[choice.index].availability(now) == Availability::Trial;
            if is_trial && !self.health.begin_trial(choice.index, client, now) {
                excluded.push(choice.index);
                continue;
            }
            self.publish();
            self.outages.fill(None);
            self.sent += 1;
            self.in_flight[choice.index] += 1;
            let failure = self.failure(choice.index, now);
            let latency = match failure {
                Some(Failure::Timeout) => TIMEOUT,
                Some(Failure::Connect(ConnectFailure::Refused)) => Millis::MILLISECOND,
                _ => Millis::from_ms(10),
            };
            self.attempts.push(Reverse(EndOfAttempt {
                end: now + latency,
                sent: now,
                target: choice.index,
                client,
                is_trial,
                is_failed: failure.is_some(),
            }));
            return;
        }
    }

    /// Records a request that finds no target. While one works, this may last only for a moment.
    fn refuse(&mut self, now: CoarseTime) {
        self.refused += 1;
        assert_ne!(
            self.health.state(now),
            ServiceLevel::Serving,
            "refused while one is in service"
        );
        for target in 0..self.views.len() {
            let is_down = self.views[target].status(now, Millis::ZERO) == TargetStatus::Down;
            let works = self.failure(target, now).is_none() && !is_down;
            let since = self.outages[target].filter(|_| works).unwrap_or(now);
            self.outages[target] = works.then_some(since);
            assert!(
                now.since(since) <= MAX_OUTAGE,
                "all ejected while {target} works, since {since:?}"
            );
        }
    }

    /// Records the attempts that end until `now`.
    fn end_attempts(&mut self, now: CoarseTime) {
        while let Some(&Reverse(attempt)) = self.attempts.peek() {
            let EndOfAttempt { end, sent, target, client, is_trial, is_failed } = attempt;
            if end > now {
                return;
            }
            self.attempts.pop();
            self.in_flight[target] -= 1;
            let kind = if is_trial { AttemptKind::Trial } else { AttemptKind::Regular };
            if is_failed {
                self.failed += 1;
                let failure = self
                    .failure(target, end - Millis::MILLISECOND)
                    .unwrap_or(Failure::Reset(LostConnection::Closed));
                self.health.note_success(target, self.successes[target]);
                self.health.record_failure(
                    target,
                    FailedAttempt { kind, failure, client, sent },
                    end,
                );
            } else {
                self.successes[target] = end;
                if is_trial || self.views[target].has_failures() {
                    self.health.record_success(target, kind, end);
                }
            }
            self.publish();
            self.check_bound(end);
        }
    }

    fn check_targets(&mut self, now: CoarseTime) {
        for target in 0..self.views.len() {
            let result = match self.failure(target, now) {
                Some(Failure::Connect(ConnectFailure::Refused)) => {
                    Err(CheckFailure::Connect(ConnectFailure::Refused))
                }
                Some(Failure::Timeout) => Err(CheckFailure::Timeout),
                _ => Ok(()),
            };
            self.health.record_check(target, result, now);
            self.publish();
            self.check_bound(now);
        }
    }

    /// Checks that at most the share is ejected, unless all are.
    fn check_bound(&mut self, now: CoarseTime) {
        if self.health.state(now) != ServiceLevel::Serving {
            self.was_down = true;
            return;
        }
        let is_suspect = |view: &&HealthView| {
            matches!(view.status(now, Millis::ZERO), TargetStatus::Ejected | TargetStatus::HalfOpen)
        };
        let suspects = self.views.iter().filter(is_suspect).count();
        let bound = self.views.len() * self.settings.max_share as usize / 100;
        assert!(suspects <= bound, "{suspects} of {} ejected", self.views.len());
    }
}

#[test]
fn never_all_ejected_while_one_works_and_never_more_than_the_share() {
    let (mut all_down, mut with_refusals, mut sent, mut failed) = (0, 0, 0, 0);
    for seed in 0..1_000 {
        let mut random = SplitMix::new(seed);
        let mut run = Run::new(&mut random);
        let names: Vec<String> = (0..run.views.len()).map(|target| format!("t{target}")).collect();
        let endpoints: Vec<_> =
            names.iter().map(|name| WeightedEndpoint { name, weight: 1 }).collect();
        let policies = [Policy::RoundRobin, Policy::LeastRequests, Policy::PeakEwma, Policy::Hash];
        let balancer = Balancer::new(policies[seed as usize % 4], &endpoints);
        let (mut now, mut next_check) = (CoarseTime::ZERO, CoarseTime::ZERO);
        while now < CoarseTime::ZERO + DURATION {
            now += Millis::from_ms(1 + random.below(MAX_PAUSE));
            run.end_attempts(now);
            if !run.settings.check_interval.is_zero() && now >= next_check {
                run.check_targets(now);
                next_check = now + run.settings.check_interval;
            }
            run.send(&balancer, random.bits(), now);
        }
        all_down += u32::from(run.was_down);
        with_refusals += u32::from(run.refused > 0);
        (sent, failed) = (sent + run.sent, failed + run.failed);
    }
    // The schedules cover both cases.
    assert!(all_down > 100 && with_refusals > 100, "{all_down}, {with_refusals}");
    assert!(failed * 20 > sent / 2 && failed * 4 < sent, "{failed} of {sent}");
}
