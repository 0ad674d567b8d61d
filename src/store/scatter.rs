//! Charges of one request whose records live at several places of the shared store.
//!
//! All places are asked at the same time, each all or nothing. Where the whole is refused, or the request
//! ends before all have answered, what a place has charged is given back behind the request: for a moment
//! too much is counted, and never too much admitted.

use std::{sync::Arc, time::Instant};

use crossbeam_utils::CachePadded;
use futures_util::{
    future::join_all,
    stream::{FuturesUnordered, StreamExt as _},
};
use smallvec::SmallVec;

use super::{
    StoreError, Stores,
    corrections::{CorrectionSender, Source},
    fallback,
    redis::{Failure, LateReply, Place, Shared, Unanswered, Worker},
    stats::WorkerCounts,
};
use crate::limit::{Change, Charge, Millis, Outcome, Settlement, Verdict};

/// The place that all of these share, if they do.
pub(super) fn common<T>(items: &[T], place: impl Fn(&T) -> Place) -> Option<Place> {
    let (first, rest) = items.split_first()?;
    let first = place(first);
    rest.iter().all(|item| place(item) == first).then_some(first)
}

/// What came of asking one place.
type Answer = Result<Verdict, Unanswered>;

/// One item of a request, the place of its record, and what came of it.
struct Scattered<T> {
    item: T,
    place: Place,
    outcome: Outcome,
}

/// What a place is asked.
struct Part<T> {
    place: Place,
    items: SmallVec<[T; 4]>,
}

/// The items of a request, in order.
struct Items<T>(SmallVec<[Scattered<T>; 4]>);

impl<T: Copy> Items<T> {
    fn new(items: &[T], place: impl Fn(&T) -> Place) -> Self {
        let scattered =
            |item: &T| Scattered { item: *item, place: place(item), outcome: Outcome::NotCharged };
        Self(items.iter().map(scattered).collect())
    }

    /// One part for each place, in the order of the places' first items.
    fn parts(&self) -> Vec<Part<T>> {
        let mut parts: Vec<Part<T>> = Vec::new();
        for Scattered { item, place, .. } in &self.0 {
            match parts.iter_mut().find(|part| part.place == *place) {
                Some(part) => part.items.push(*item),
                None => parts.push(Part { place: *place, items: [*item].into_iter().collect() }),
            }
        }
        parts
    }

    /// Notes the outcomes of those at the places of which `is_meant`, in their order.
    fn note(
        &mut self,
        is_meant: impl Fn(Place) -> bool,
        outcomes: impl IntoIterator<Item = Outcome>,
    ) {
        let meant = self.0.iter_mut().filter(|scattered| is_meant(scattered.place));
        for (scattered, outcome) in meant.zip(outcomes) {
            scattered.outcome = outcome;
        }
    }

    fn outcomes(self) -> SmallVec<[Outcome; 2]> {
        self.0.into_iter().map(|scattered| scattered.outcome).collect()
    }
}

/// A worker's calls for a request whose records live at several places.
pub(super) struct Scatter<'a> {
    pub(super) worker: &'a Arc<Worker>,
    pub(super) counts: &'a Arc<CachePadded<WorkerCounts>>,
    pub(super) stores: &'a Stores,
    pub(super) corrections: &'a CorrectionSender,
}

impl Scatter<'_> {
    /// Decides all charges, and charges all or none. Waits once for the response timeout at the most. A
    /// place that gives no decision is decided by its limits' policies alone.
    pub(super) async fn charge(
        &self,
        charges: &[Charge<'_>],
        now: Millis,
        until: Option<Instant>,
    ) -> Result<Verdict, StoreError> {
        let mut items = Items::new(charges, |charge| self.worker.place(charge.key));
        let mut asked = self.charged(items.parts(), until).await;
        let shared = asked.answers().all(|verdict| verdict.admitted);
        let local = self.decide_lost(&items, &asked, shared, now);
        let admitted = shared && local.as_ref().is_ok_and(|verdict| verdict.admitted);
        asked.undo_late(admitted);
        if !admitted {
            asked.undo();
        }
        for Asked { part, answer } in asked.parts.drain(..) {
            if let Some(Ok(verdict)) = answer {
                items.note(|place| place == part.place, outcomes_of(verdict, admitted));
            }
        }
        let lost = std::mem::take(&mut asked.lost);
        items.note(|place| lost.contains(&place), outcomes_of(local?, admitted));
        Ok(Verdict { admitted, outcomes: items.outcomes() })
    }

    /// Decides by their failure policies the charges whose places gave no decision. `shared`: the others
    /// admit.
    fn decide_lost(
        &self,
        items: &Items<Charge<'_>>,
        asked: &AllAsked<'_, '_>,
        shared: bool,
        now: Millis,
    ) -> Result<Verdict, StoreError> {
        let lost = items.0.iter().filter(|scattered| asked.lost.contains(&scattered.place));
        let lost: SmallVec<[Charge<'_>; 4]> = lost.map(|scattered| scattered.item).collect();
        if lost.is_empty() {
            return Ok(Verdict::empty());
        }
        if let Some(denied) = fallback::denied(&lost, self.stores) {
            return Ok(denied);
        }
        let (memory, gateways) = (&self.stores.memory, self.stores.presence.gateways());
        if !shared {
            return fallback::refused(&lost, now, memory, gateways, self.counts);
        }
        // If one may have been charged at its place, none is recorded.
        let recorder = asked.failures().map(|failure| self.stores.recorder_after(failure));
        let recorder = recorder.reduce(Option::and).flatten();
        fallback::decide(&lost, now, memory, gateways, self.counts, recorder)
    }

    /// What each place answers. A request that is given up before all have leaves nothing charged of what
    /// was answered.
    async fn charged<'s, 'c>(
        &'s self,
        parts: Vec<Part<Charge<'c>>>,
        until: Option<Instant>,
    ) -> AllAsked<'s, 'c> {
        let parts = parts.into_iter().map(|part| Asked { part, answer: None }).collect();
        let mut asked = AllAsked { scatter: self, parts, lost: SmallVec::new() };
        let calls = asked.parts.iter_mut().map(|Asked { part, answer }| async {
            *answer = Some(self.worker.charge(part.place, &part.items, until).await);
        });
        let mut calls: FuturesUnordered<_> = calls.collect();
        while calls.next().await.is_some() {}
        drop(calls);
        asked.failures().for_each(|failure| self.counts.failed(failure));
        asked.find_lost();
        asked
    }

    /// What each of these charges would meet by itself; charges nothing.
    pub(super) async fn look(
        &self,
        charges: &[Charge<'_>],
        now: Millis,
    ) -> Result<Verdict, StoreError> {
        let mut items = Items::new(charges, |charge| self.worker.place(charge.key));
        let parts = items.parts();
        let answers = join_all(parts.iter().map(|p| self.worker.look(p.place, &p.items))).await;
        let mut lost: SmallVec<[Charge<'_>; 4]> = SmallVec::new();
        let mut lost_places: SmallVec<[Place; 4]> = SmallVec::new();
        for (part, answer) in parts.iter().zip(answers) {
            match answer {
                Ok(verdict) => items.note(|place| place == part.place, verdict.outcomes),
                Err(failure) => {
                    self.counts.failed(failure);
                    lost_places.push(part.place);
                }
            }
        }
        let at_lost = items.0.iter().filter(|scattered| lost_places.contains(&scattered.place));
        lost.extend(at_lost.map(|scattered| scattered.item));
        let (memory, gateways) = (&self.stores.memory, self.stores.presence.gateways());
        let local = fallback::look(&lost, now, memory, gateways)?;
        items.note(|place| lost_places.contains(&place), local.outcomes);
        Ok(verdict_of(charges, items))
    }

    /// Corrects each at its place; [`Outcome::Unknown`] where that gave no answer. What was certainly not
    /// sent is queued.
    pub(super) async fn settle(&self, settlements: &[Settlement<'_>]) -> SmallVec<[Outcome; 2]> {
        let items = Items::new(settlements, |settlement| self.worker.place(settlement.key));
        let parts = items.parts();
        let answers = join_all(parts.iter().map(|p| self.worker.settle(p.place, &p.items))).await;
        for (part, answer) in parts.iter().zip(&answers) {
            if let Err(failure) = answer {
                self.corrections.push_unsent(&part.items, *failure);
            }
        }
        self.settled(items, &parts, answers)
    }

    /// The same, patiently and with nothing queued.
    pub(super) async fn renew(&self, settlements: &[Settlement<'_>]) -> SmallVec<[Outcome; 2]> {
        let items = Items::new(settlements, |settlement| self.worker.place(settlement.key));
        let parts = items.parts();
        let asking = parts.iter().map(|p| self.worker.settle_patiently(p.place, &p.items));
        let answers = join_all(asking).await;
        self.settled(items, &parts, answers)
    }

    fn settled(
        &self,
        mut items: Items<Settlement<'_>>,
        parts: &[Part<Settlement<'_>>],
        answers: Vec<Result<Verdict, Failure>>,
    ) -> SmallVec<[Outcome; 2]> {
        for (part, answer) in parts.iter().zip(answers) {
            match answer {
                Ok(verdict) => items.note(|place| place == part.place, verdict.outcomes),
                Err(failure) => {
                    self.counts.failed(failure);
                    let unknown = part.items.iter().map(|_| Outcome::Unknown);
                    items.note(|place| place == part.place, unknown);
                }
            }
        }
        items.outcomes()
    }

    /// Gives back what a place has charged, behind the request.
    fn undo(&self, part: &Part<Charge<'_>>, verdict: &Verdict) {
        if !verdict.admitted {
            return;
        }
        let made = part.items.iter().zip(&verdict.outcomes);
        let refunds = made.filter_map(|(charge, outcome)| {
            let charged_at = outcome.admitted()?.charged_at();
            let change = Change::Refund { charged_at, cost: charge.cost };
            Some((Arc::new(charge.limit.clone()), charge.key, change))
        });
        self.corrections.push(refunds, Source::Request);
    }
}

/// One place, and what it has answered so far.
struct Asked<'c> {
    part: Part<Charge<'c>>,
    answer: Option<Answer>,
}

/// All places of a request. Dropped before the verdict is made, it gives back what they have charged.
struct AllAsked<'s, 'c> {
    scatter: &'s Scatter<'s>,
    parts: Vec<Asked<'c>>,
    /// Places that gave no decision.
    lost: SmallVec<[Place; 4]>,
}

impl AllAsked<'_, '_> {
    fn answers(&self) -> impl Iterator<Item = &Verdict> {
        self.parts.iter().filter_map(|asked| asked.answer.as_ref()?.as_ref().ok())
    }

    fn failures(&self) -> impl Iterator<Item = Failure> {
        self.parts.iter().filter_map(|asked| Some(asked.answer.as_ref()?.as_ref().err()?.failure))
    }

    fn find_lost(&mut self) {
        let failed = self.parts.iter().filter(|asked| matches!(asked.answer, Some(Err(_))));
        self.lost = failed.map(|asked| asked.part.place).collect();
    }

    /// Takes back what places charge whose replies may still come; `passed`: the request was admitted
    /// without them.
    fn undo_late(&mut self, passed: bool) {
        for Asked { part, answer } in &mut self.parts {
            let late: Option<LateReply> = match answer {
                Some(Err(unanswered)) => unanswered.late.take(),
                _ => None,
            };
            if let Some(late) = late {
                self.scatter.corrections.undo_late(late, &part.items, passed);
            }
        }
    }

    /// Gives back what the places have charged.
    fn undo(&self) {
        for Asked { part, answer } in &self.parts {
            if let Some(Ok(verdict)) = answer {
                self.scatter.undo(part, verdict);
            }
        }
    }
}

impl Drop for AllAsked<'_, '_> {
    fn drop(&mut self) {
        self.undo();
    }
}

/// The outcomes of a part of a request; where the whole is refused, only of what refuses.
fn outcomes_of(verdict: Verdict, admitted: bool) -> impl Iterator<Item = Outcome> {
    verdict.outcomes.into_iter().map(move |outcome| {
        if admitted || outcome.refused().is_some() { outcome } else { Outcome::NotCharged }
    })
}

/// The verdict of looks that were each made by itself.
fn verdict_of(charges: &[Charge<'_>], items: Items<Charge<'_>>) -> Verdict {
    let outcomes = items.outcomes();
    let mut refused = charges.iter().zip(&outcomes);
    let admitted = !refused.any(|(charge, o)| charge.limit.enforce && o.refused().is_some());
    Verdict { admitted, outcomes }
}

/// What each of these charges would meet by itself, over a connection of its own: for the operator, who
/// asks seldom.
pub(super) async fn look_each(
    shared: &Shared,
    charges: &[Charge<'_>],
    now: Millis,
) -> Result<Verdict, Failure> {
    let mut items = Items::new(charges, |charge| shared.place(charge.key));
    let parts = items.parts();
    let answers = join_all(parts.iter().map(|p| shared.look(p.place, &p.items, now))).await;
    for (part, answer) in parts.iter().zip(answers) {
        items.note(|place| place == part.place, answer?.outcomes);
    }
    Ok(verdict_of(charges, items))
}
