//! Counts of a replay's decisions by limit, route and caller.

use std::net::IpAddr;

use ahash::RandomState;
use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::clock::{StoreTime, ms};

/// Maximum number of callers in the table. When it is full, the half with the lowest weight is
/// evicted.
const MAX_CALLERS: usize = 1 << 17;

const MINUTE: u64 = 60_000;

/// The position of a line in the log.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LogPosition {
    /// Index of the file, from 0.
    pub file: u32,
    /// Line number, from 1.
    pub line: u64,
}

/// A line of the log with its virtual time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LogEvent {
    /// Virtual time, in ms since the epoch.
    pub time: StoreTime,
    /// Position of the line.
    pub position: LogPosition,
}

/// Decisions of a limit, or of the limits of a route.
#[derive(Clone, Debug, Default)]
pub struct DecisionCounts {
    /// Number of requests.
    pub requests: u64,
    /// Number of admitted requests.
    pub admitted: u64,
    /// Number of refused requests.
    pub refused: u64,
    /// The first refused request.
    pub first_refusal: Option<LogEvent>,
    /// The minute with the most refusals: its start, in ms since the epoch, and their number.
    pub worst_minute: Option<(StoreTime, u64)>,
    /// The latest minute with refusals, in the form of `worst_minute`.
    last_minute: (StoreTime, u64),
}

impl DecisionCounts {
    /// Counts an admitted request.
    pub(super) fn add_admitted(&mut self) {
        self.requests += 1;
        self.admitted += 1;
    }

    /// Counts a refused request, in the order of their times.
    pub(super) fn add_refused(&mut self, at: LogEvent) {
        self.requests += 1;
        self.refused += 1;
        self.first_refusal.get_or_insert(at);
        let start = at.time.round_down_to(ms(MINUTE));
        if self.last_minute.0 != start {
            self.last_minute = (start, 0);
        }
        self.last_minute.1 += 1;
        if self.worst_minute.is_none_or(|(_, worst)| worst < self.last_minute.1) {
            self.worst_minute = Some(self.last_minute);
        }
    }
}

/// The caller of a request, as far as the log identifies it.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum LoggedCaller {
    /// The client's address (IPv6 by prefix), for a request without a consumer or a token.
    Address(IpAddr),
    /// The name of the consumer.
    Consumer(SmallVec<[u8; 32]>),
    /// The logged hash of a token.
    Token(SmallVec<[u8; 32]>),
    /// The user name, in a log without tokens.
    User(SmallVec<[u8; 32]>),
}

/// One caller's requests and their decisions under up to two configurations.
#[derive(Clone, Debug, Default)]
pub struct CallerCounts {
    /// Number of requests.
    pub requests: u64,
    /// Number of refused requests, by configuration.
    pub refused: [u64; 2],
    /// By configuration: limits that refused, as pairs of index and number of refusals.
    pub by_limit: [SmallVec<[(u32, u64); 2]>; 2],
    /// Number of requests that only the second configuration refuses.
    pub newly_refused: u64,
    /// Number of requests that only the first configuration refuses.
    pub newly_admitted: u64,
}

impl CallerCounts {
    /// Counts a refusal by the limit with this index under configuration `config_index`.
    pub(super) fn add_refusal(&mut self, config_index: usize, limit: u32) {
        let by = &mut self.by_limit[config_index];
        match by.iter_mut().find(|(index, _)| *index == limit) {
            Some((_, count)) => *count += 1,
            None => by.push((limit, 1)),
        }
    }

    /// Callers with the lowest weight are evicted first: by refusals, then by requests.
    fn weight(&self) -> (u64, u64) {
        (self.refused[0].max(self.refused[1]), self.requests)
    }
}

/// The callers with their counts, bounded in number.
#[derive(Default)]
pub(super) struct CallerTable {
    table: HashMap<LoggedCaller, CallerCounts, RandomState>,
    evicted: u64,
}

impl CallerTable {
    /// The counts of `caller`.
    pub(super) fn entry(&mut self, caller: LoggedCaller) -> &mut CallerCounts {
        if self.table.len() >= MAX_CALLERS && !self.table.contains_key(&caller) {
            self.evict_half();
        }
        self.table.entry(caller).or_default()
    }

    /// Evicts the half with the lowest weight.
    fn evict_half(&mut self) {
        let mut weights: Vec<_> = self.table.values().map(CallerCounts::weight).collect();
        let middle = weights.len() / 2;
        let (below, &mut median, _) = weights.select_nth_unstable(middle);
        // Of the callers with the median weight, only as many are evicted as it takes to reach the
        // half.
        let mut at_median = 1 + below.iter().filter(|weight| **weight == median).count();
        let before = self.table.len();
        self.table.retain(|_, counts| {
            let weight = counts.weight();
            let is_evicted = weight < median || (weight == median && at_median > 0);
            at_median -= usize::from(is_evicted && weight == median);
            !is_evicted
        });
        self.evicted += (before - self.table.len()) as u64;
    }

    /// Number of evictions. If it is not zero, counts may be too low.
    pub(super) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// The callers with the highest `weight`, at most `count`; callers of weight zero are left out.
    pub(super) fn top(
        &self,
        count: usize,
        weight: impl Fn(&CallerCounts) -> (u64, u64),
    ) -> Vec<(&LoggedCaller, &CallerCounts)> {
        let mut all: Vec<_> =
            self.table.iter().filter(|(_, counts)| weight(counts) > (0, 0)).collect();
        let order = |(caller, counts): &(&LoggedCaller, &CallerCounts)| {
            (std::cmp::Reverse(weight(counts)), (*caller).clone())
        };
        if all.len() > count && count > 0 {
            all.select_nth_unstable_by_key(count - 1, order);
        }
        all.truncate(count);
        all.sort_unstable_by_key(order);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_minute_is_the_first_of_equals() {
        let mut counts = DecisionCounts::default();
        for (line, time) in [1_000, 2_000, 61_000, 62_000, 63_000, 121_000].into_iter().enumerate()
        {
            let position = LogPosition { file: 0, line: line as u64 + 1 };
            let at = LogEvent { time: StoreTime::from_unix_ms(time), position };
            if time == 2_000 {
                counts.add_admitted();
            } else {
                counts.add_refused(at);
            }
        }
        assert_eq!((counts.requests, counts.admitted, counts.refused), (6, 1, 5));
        assert_eq!(counts.worst_minute, Some((StoreTime::from_unix_ms(60_000), 3)));
        assert_eq!(counts.first_refusal.unwrap().position.line, 1);
    }

    #[test]
    fn refused_and_busy_callers_are_not_evicted() {
        let mut callers = CallerTable::default();
        let address = |number: u32| LoggedCaller::Address(std::net::Ipv4Addr::from(number).into());
        for number in 0..3 * MAX_CALLERS as u32 {
            callers.entry(address(number)).requests += 1;
            callers.entry(address(7)).requests += 1;
            callers.entry(address(9)).refused[0] += 1;
        }
        assert!(callers.table.len() <= MAX_CALLERS && callers.evicted() > 0);
        let top = callers.top(2, |counts| (counts.refused[0], counts.requests));
        let top: Vec<_> = top.into_iter().map(|(caller, _)| caller.clone()).collect();
        assert_eq!(top, [address(9), address(7)]);
    }
}
