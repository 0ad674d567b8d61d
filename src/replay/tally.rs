//! What is counted of a replay: by limit, by route, by caller.

use std::net::IpAddr;

use ahash::RandomState;
use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::limit::Millis;

/// The most callers that are told apart at once. Beyond, those with the least are forgotten.
const MAX_CALLERS: usize = 1 << 17;

const MINUTE: Millis = 60_000;

/// Where a line stands.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Place {
    /// The file's number, from 0.
    pub file: u32,
    /// The line's, from 1.
    pub line: u64,
}

/// A place, and the time there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Moment {
    /// In ms since the epoch.
    pub time: Millis,
    /// The line.
    pub place: Place,
}

/// What became of the requests that a limit, or the limits of a route, were asked about.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Those that were asked about.
    pub requests: u64,
    /// Those of them that may pass.
    pub admitted: u64,
    /// Those that may not.
    pub refused: u64,
    /// The first of those.
    pub first_refusal: Option<Moment>,
    /// The minute with the most refusals: when it began, and how many they are.
    pub worst_minute: Option<(Millis, u64)>,
    /// The last minute with refusals.
    minute: (Millis, u64),
}

impl Counts {
    /// Counts one request; requests come in the order of their times.
    pub(super) fn add(&mut self, admitted: bool, at: Moment) {
        self.requests += 1;
        if admitted {
            self.admitted += 1;
            return;
        }
        self.refused += 1;
        self.first_refusal.get_or_insert(at);
        let begin = at.time / MINUTE * MINUTE;
        if self.minute.0 != begin {
            self.minute = (begin, 0);
        }
        self.minute.1 += 1;
        if self.worst_minute.is_none_or(|(_, worst)| worst < self.minute.1) {
            self.worst_minute = Some(self.minute);
        }
    }
}

/// Who made a request, as far as the log knows.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Caller {
    /// The address, IPv6 by prefix: there was no token.
    Address(IpAddr),
    /// The logged hash of a token.
    Token(SmallVec<[u8; 16]>),
    /// The name of a user, where the log has no tokens.
    User(SmallVec<[u8; 16]>),
}

/// What became of one caller's requests under each of up to two configurations.
#[derive(Clone, Debug, Default)]
pub struct CallerCounts {
    /// Its requests.
    pub requests: u64,
    /// Those refused.
    pub refused: [u64; 2],
    /// Those refused by each limit: its index, and how many.
    pub by_limit: [SmallVec<[(u32, u64); 2]>; 2],
    /// Refused by the second configuration only.
    pub newly_refused: u64,
    /// Refused by the first only.
    pub newly_admitted: u64,
}

impl CallerCounts {
    pub(super) fn refused_by(&mut self, which: usize, limit: u32) {
        let by = &mut self.by_limit[which];
        match by.iter_mut().find(|(index, _)| *index == limit) {
            Some((_, count)) => *count += 1,
            None => by.push((limit, 1)),
        }
    }

    /// What keeps a caller in a crowded table.
    fn weight(&self) -> (u64, u64) {
        (self.refused[0].max(self.refused[1]), self.requests)
    }
}

/// All callers; where there are too many, those that matter.
#[derive(Default)]
pub(super) struct Callers {
    table: HashMap<Caller, CallerCounts, RandomState>,
    forgotten: u64,
}

impl Callers {
    /// The counts of `caller`.
    pub(super) fn of(&mut self, caller: Caller) -> &mut CallerCounts {
        if self.table.len() >= MAX_CALLERS && !self.table.contains_key(&caller) {
            self.forget_half();
        }
        self.table.entry(caller).or_default()
    }

    /// Forgets the half that was refused least, and of those the ones that asked least.
    fn forget_half(&mut self) {
        let mut weights: Vec<_> = self.table.values().map(CallerCounts::weight).collect();
        let middle = weights.len() / 2;
        let (below, &mut median, _) = weights.select_nth_unstable(middle);
        // Of those on the border as many go as must, so that half of all does.
        let mut border = 1 + below.iter().filter(|weight| **weight == median).count();
        let before = self.table.len();
        self.table.retain(|_, counts| {
            let weight = counts.weight();
            let goes = weight < median || (weight == median && border > 0);
            border -= usize::from(goes && weight == median);
            !goes
        });
        self.forgotten += (before - self.table.len()) as u64;
    }

    /// How many times a caller was forgotten, so that what is told of others may be too little.
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// The first `count` in the order of `weight`, the greatest first; those without weight left out.
    pub(super) fn top(
        &self,
        count: usize,
        weight: impl Fn(&CallerCounts) -> (u64, u64),
    ) -> Vec<(&Caller, &CallerCounts)> {
        let mut all: Vec<_> =
            self.table.iter().filter(|(_, counts)| weight(counts) > (0, 0)).collect();
        let order = |(caller, counts): &(&Caller, &CallerCounts)| {
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
    fn the_worst_minute_is_the_first_with_the_most() {
        let mut counts = Counts::default();
        for (line, time) in [1_000, 2_000, 61_000, 62_000, 63_000, 121_000].into_iter().enumerate()
        {
            let place = Place { file: 0, line: line as u64 + 1 };
            counts.add(time == 2_000, Moment { time, place });
        }
        assert_eq!((counts.requests, counts.admitted, counts.refused), (6, 1, 5));
        assert_eq!(counts.worst_minute, Some((60_000, 3)));
        assert_eq!(counts.first_refusal.unwrap().place.line, 1);
    }

    #[test]
    fn a_crowd_of_callers_does_not_hide_those_that_matter() {
        let mut callers = Callers::default();
        let address = |number: u32| Caller::Address(std::net::Ipv4Addr::from(number).into());
        for number in 0..3 * MAX_CALLERS as u32 {
            callers.of(address(number)).requests += 1;
            callers.of(address(7)).requests += 1;
            callers.of(address(9)).refused[0] += 1;
        }
        assert!(callers.table.len() <= MAX_CALLERS && callers.forgotten() > 0);
        let top = callers.top(2, |counts| (counts.refused[0], counts.requests));
        let top: Vec<_> = top.into_iter().map(|(caller, _)| caller.clone()).collect();
        assert_eq!(top, [address(9), address(7)]);
    }
}
