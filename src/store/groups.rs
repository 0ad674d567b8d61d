//! Charges of one request whose records live at several places of the shared store.
//!
//! All places are asked at the same time, each all or nothing. Where the whole is refused, or the request
//! ends before all have answered, what a place has charged is given back behind the request: for a moment
//! too much is counted, and never too much admitted.

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use futures_util::{
    future::join_all,
    stream::{FuturesUnordered, StreamExt as _},
};
use smallvec::SmallVec;

use super::{
    StoreError, Stores, fallback,
    record_id::record,
    redis::{Failure, Place, Shared, Worker},
    stats::WorkerCounts,
};
use crate::limit::{Change, Charge, Decision, Key, Limit, Millis, Origin, Settlement, Verdict};

/// The place that all of these share, if they do.
pub(super) fn common<T>(items: &[T], place: impl Fn(&T) -> Place) -> Option<Place> {
    let (first, rest) = items.split_first()?;
    let first = place(first);
    rest.iter().all(|item| place(item) == first).then_some(first)
}

/// What lives at one place.
struct Group<T> {
    place: Place,
    /// Where the items stand among all, in order.
    at: SmallVec<[usize; 4]>,
    items: SmallVec<[T; 4]>,
}

fn split<T: Copy>(items: &[T], place: impl Fn(&T) -> Place) -> Vec<Group<T>> {
    let mut groups: Vec<Group<T>> = Vec::new();
    for (at, item) in items.iter().enumerate() {
        let place = place(item);
        let known = groups.iter().position(|group| group.place == place);
        let known = known.unwrap_or_else(|| {
            groups.push(Group { place, at: SmallVec::new(), items: SmallVec::new() });
            groups.len() - 1
        });
        groups[known].at.push(at);
        groups[known].items.push(*item);
    }
    groups
}

/// A worker's door where one call does not do.
pub(super) struct Apart<'a> {
    pub(super) worker: &'a Arc<Worker>,
    pub(super) counts: &'a Arc<CachePadded<WorkerCounts>>,
    pub(super) stores: &'a Stores,
}

impl Apart<'_> {
    /// Decides all charges, and charges all or none. Waits once for the response timeout at the most. A
    /// place that gives no decision is decided by its limits' policies alone.
    pub(super) async fn charge(
        &self,
        charges: &[Charge<'_>],
        now: Millis,
    ) -> Result<Verdict, StoreError> {
        let groups = split(charges, |charge| self.worker.place(charge.key));
        let mut answers = self.counted(self.charged(&groups).await);
        let shared = answers.iter().flatten().all(|verdict| verdict.admitted);
        let lost = lost(&groups, &answers);
        let (memory, gateways) = (&self.stores.memory, self.stores.presence.gateways());
        // If one may have been charged at its place, none is noted.
        let noting = answers.iter().filter_map(|answer| answer.as_ref().err());
        let noting = noting.map(|&failure| self.stores.noting(failure));
        let noting = noting.reduce(Option::and).flatten();
        let local = if lost.items.is_empty() {
            Ok(Verdict::empty(now))
        } else if let Some(denied) = fallback::denied(&lost.items, now, self.stores) {
            Ok(denied)
        } else if shared {
            fallback::decide(&lost.items, now, memory, gateways, self.counts, noting)
        } else {
            fallback::refused(&lost.items, now, memory, gateways, self.counts)
        };
        let admitted = shared && local.as_ref().is_ok_and(|verdict| verdict.admitted);
        if !admitted {
            for (group, answer) in groups.iter().zip(&mut answers) {
                if let Ok(verdict) = answer {
                    self.undo(group, verdict);
                }
            }
        }
        let parts = parts(&groups, answers).chain([(&lost.at, local?)]);
        Ok(Verdict { admitted, ..merged(charges.len(), parts, now) })
    }

    /// What each place answers. Whoever gives up before all have leaves nothing charged that is known of.
    async fn charged(&self, groups: &[Group<Charge<'_>>]) -> Vec<Result<Verdict, Failure>> {
        let told = groups.iter().map(|_| None).collect();
        let mut answers = Answers { apart: self, groups, told };
        let asked = groups.iter().zip(0..).map(|(group, at): (_, usize)| async move {
            (at, self.worker.charge(group.place, &group.items).await)
        });
        let mut asked: FuturesUnordered<_> = asked.collect();
        while let Some((at, answer)) = asked.next().await {
            answers.told[at] = Some(answer);
        }
        answers.told.drain(..).flatten().collect()
    }

    /// What each of these charges would meet by itself; charges nothing.
    pub(super) async fn look(
        &self,
        charges: &[Charge<'_>],
        now: Millis,
    ) -> Result<Verdict, StoreError> {
        let groups = split(charges, |charge| self.worker.place(charge.key));
        let asked = groups.iter().map(|group| self.worker.look(group.place, &group.items));
        let answers = self.counted(join_all(asked).await);
        let lost = lost(&groups, &answers);
        let (memory, gateways) = (&self.stores.memory, self.stores.presence.gateways());
        let local = fallback::look(&lost.items, now, memory, gateways)?;
        let parts = parts(&groups, answers).chain([(&lost.at, local)]);
        Ok(merged(charges.len(), parts, now))
    }

    /// Corrects each at its place; `None` where nothing could be. What could not is not counted in the
    /// verdict.
    pub(super) async fn settle(&self, settlements: &[Settlement<'_>]) -> Option<Verdict> {
        let groups = split(settlements, |settlement| self.worker.place(settlement.key));
        let asked = groups.iter().map(|group| self.worker.settle(group.place, &group.items));
        let answers = self.counted(join_all(asked).await);
        let now = answers.iter().flatten().next()?.now;
        let mut lost = Verdict::empty(now);
        let mut at = SmallVec::<[usize; 4]>::new();
        for (group, _) in groups.iter().zip(&answers).filter(|(_, answer)| answer.is_err()) {
            at.extend_from_slice(&group.at);
            let limits = group.items.iter().map(|settlement| settlement.limit);
            lost.decisions.extend(limits.map(|limit| fallback::uncounted(limit, now)));
        }
        let parts = parts(&groups, answers).chain([(&at, lost)]);
        Some(merged(settlements.len(), parts, now))
    }

    fn counted(&self, answers: Vec<Result<Verdict, Failure>>) -> Vec<Result<Verdict, Failure>> {
        for failure in answers.iter().filter_map(|answer| answer.as_ref().err()) {
            self.counts.failed(*failure);
        }
        answers
    }

    /// Gives back what a place has charged, behind the request, and tells in `verdict` what holds then. One
    /// that does not arrive is counted as a failure, and not repeated: it may have been made.
    fn undo(&self, group: &Group<Charge<'_>>, verdict: &mut Verdict) {
        if !verdict.admitted {
            return;
        }
        let mut owed: Vec<(Limit, Key, Change)> = Vec::new();
        for (charge, decision) in group.items.iter().zip(&mut verdict.decisions) {
            if decision.admitted && charge.cost > 0 {
                let charged_at = verdict.now + decision.wait;
                let change = Change::Refund { charged_at, cost: charge.cost };
                owed.push((charge.limit.clone(), charge.key, change));
                let cost = u64::from(charge.cost);
                decision.remaining = (decision.remaining + cost).min(decision.limit);
                decision.used = decision.used.saturating_sub(cost);
            }
        }
        if owed.is_empty() {
            return;
        }
        let (worker, counts, place) = (self.worker.clone(), self.counts.clone(), group.place);
        let (deny_cache, clock) = (Arc::clone(&self.stores.deny_cache), self.stores.clock.clone());
        tokio::spawn(async move {
            let settlements: SmallVec<[Settlement<'_>; 4]> =
                owed.iter().map(|(limit, key, change)| settlement(limit, *key, *change)).collect();
            if let Err(failure) = worker.settle(place, &settlements).await {
                counts.failed(failure);
                tracing::debug!(failure = failure.label(), "a refused charge was not given back");
            }
            // Others may have been refused for it meanwhile.
            for (limit, key, _) in &owed {
                deny_cache.invalidate(record(limit, *key), clock.ticks());
            }
        });
    }
}

/// What places have answered so far. Dropped before all have, it gives back what they have charged.
struct Answers<'a, 'c> {
    apart: &'a Apart<'a>,
    groups: &'a [Group<Charge<'c>>],
    told: Vec<Option<Result<Verdict, Failure>>>,
}

impl Drop for Answers<'_, '_> {
    fn drop(&mut self) {
        for (group, answer) in self.groups.iter().zip(self.told.drain(..)) {
            if let Some(Ok(mut verdict)) = answer {
                self.apart.undo(group, &mut verdict);
            }
        }
    }
}

fn settlement(limit: &Limit, key: Key, change: Change) -> Settlement<'_> {
    Settlement { limit, key, change }
}

/// What each of these charges would meet by itself, for whoever asks seldom: over connections of their own.
pub(super) async fn look_apart(
    shared: &Shared,
    charges: &[Charge<'_>],
    now: Millis,
) -> Result<Verdict, Failure> {
    let groups = split(charges, |charge| shared.place(charge.key));
    let asked = groups.iter().map(|group| shared.look(group.place, &group.items, now));
    let answers = join_all(asked).await;
    if let Some(failure) = answers.iter().find_map(|answer| answer.as_ref().err()) {
        return Err(*failure);
    }
    Ok(merged(charges.len(), parts(&groups, answers), now))
}

/// Those that their places gave no decision to, in the order of places.
struct Lost<'a> {
    at: SmallVec<[usize; 4]>,
    items: SmallVec<[Charge<'a>; 4]>,
}

fn lost<'a>(groups: &[Group<Charge<'a>>], answers: &[Result<Verdict, Failure>]) -> Lost<'a> {
    let mut lost = Lost { at: SmallVec::new(), items: SmallVec::new() };
    for (group, _) in groups.iter().zip(answers).filter(|(_, answer)| answer.is_err()) {
        lost.at.extend_from_slice(&group.at);
        lost.items.extend_from_slice(&group.items);
    }
    lost
}

/// What was answered, and what about.
fn parts<T>(
    groups: &[Group<T>],
    answers: Vec<Result<Verdict, Failure>>,
) -> impl Iterator<Item = (&SmallVec<[usize; 4]>, Verdict)> {
    let answered = groups.iter().zip(answers);
    answered.filter_map(|(group, answer)| Some((&group.at, answer.ok()?)))
}

/// One verdict on all, in their order. `now` is that of a verdict on nothing.
fn merged<'a>(
    count: usize,
    parts: impl Iterator<Item = (&'a SmallVec<[usize; 4]>, Verdict)>,
    now: Millis,
) -> Verdict {
    let mut verdict = Verdict::empty(now);
    let mut decided: Vec<Option<(Decision, Origin)>> = vec![None; count];
    let mut together = 0;
    for (at, part) in parts.filter(|(at, _)| !at.is_empty()) {
        together += 1;
        verdict.admitted &= part.admitted;
        verdict.fallback |= part.fallback;
        let origin = Origin { now: part.now, fallback: part.fallback };
        for (at, decision) in at.iter().zip(part.decisions) {
            if let Some(place) = decided.get_mut(*at) {
                *place = Some((decision, origin));
            }
        }
    }
    let decided: Vec<(Decision, Origin)> = decided.into_iter().flatten().collect();
    verdict.now = decided.first().map_or(now, |(_, origin)| origin.now);
    verdict.decisions = decided.iter().map(|(decision, _)| *decision).collect();
    verdict.origins = (together > 1).then(|| decided.iter().map(|(_, origin)| *origin).collect());
    verdict
}
