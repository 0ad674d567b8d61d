//! Settles costs that are known when a response ends.
//!
//! A request whose limits have such a cost holds a [`Settlement`] from its charge to its end. When
//! the request is dropped, whatever ended it, [`Settlement::settle`] corrects each estimate once,
//! in the background.

use std::{cell::RefCell, rc::Rc, sync::Arc};

use smallvec::SmallVec;
use tidegate_base::time::{Millis, StoreTime};
use tidegate_http1::Fields;
use tidegate_rules::snapshot::{ActualCost, ResponseOutcome, SettledCost};
use tidegate_store::Correction;
use tidegate_upstream::{BodyObserver, ResponseBody, UpstreamContent};
use tidegate_usage::{BodyFormat, BodyScanner, PathSet, UsageDecoder};

use super::{
    background::Background,
    charged_costs::ChargedCosts,
    charged_limit::{ChargedLimit, ChargedLimits},
    draft_response::DraftResponse,
    settled_report::SettledReport,
};

/// The estimates that were charged for a request, and what its response reports.
pub(super) struct Settlement {
    background: Rc<Background>,
    /// The limits whose cost is settled at the end.
    limits: ChargedLimits,
    meter: Option<Rc<ResponseMeter>>,
    /// What the response's status says, once there is a response.
    outcome: ResponseOutcome,
    /// True if the response's coding cannot be decoded.
    is_unreadable: bool,
    /// The gateway's time of the charge.
    charged_at: StoreTime,
    /// What the trailers will show; `None` if none are sent.
    report: Option<SettledReport>,
    /// What was known when the trailers were written. The costs that they show are final.
    reported: Option<ResponseTotals>,
}

impl Drop for Settlement {
    fn drop(&mut self) {
        self.background.end_settlement();
    }
}

/// What is known at the end of a response.
#[derive(Clone, Copy)]
pub(super) struct ResponseTotals {
    /// Bytes of its body.
    pub(super) bytes: u64,
    /// The time since the request's head.
    pub(super) duration: Millis,
}

/// A scanner for each set of paths.
type Scanners = SmallVec<[(Arc<PathSet>, UsageDecoder); 1]>;

/// Looks for numbers in a response's body while it passes.
struct ResponseMeter {
    scanners: RefCell<Scanners>,
}

impl BodyObserver for ResponseMeter {
    fn observe(&self, bytes: &[u8]) {
        for (_, scanner) in self.scanners.borrow_mut().iter_mut() {
            scanner.push(bytes);
        }
    }
}

impl Settlement {
    /// The settlement of a request whose `limits` were just charged; `None` if none has a cost that
    /// is settled.
    pub(super) fn new(background: &Rc<Background>, limits: &[ChargedLimit]) -> Option<Box<Self>> {
        let settled = limits.iter().filter(|limit| limit.settled_cost().is_some());
        let settled = settled.filter(|limit| limit.outcome.admitted().is_some());
        let limits: ChargedLimits = settled.cloned().collect();
        for limit in &limits {
            limit.rule().counters.settlement.reserved.add(limit.cost());
        }
        if limits.is_empty() {
            return None;
        }
        background.begin_settlement();
        let (charged_at, background) = (background.now(), Rc::clone(background));
        Some(Box::new(Self {
            background,
            limits,
            meter: None,
            outcome: ResponseOutcome::Completed,
            is_unreadable: false,
            charged_at,
            report: None,
            reported: None,
        }))
    }

    /// Begins to observe the body of `response`. Leaves out the limits whose charge its head
    /// decides: see [`ChargedLimit::head_cost`].
    pub(super) fn begin_response(&mut self, response: &mut DraftResponse) {
        self.limits.retain(|limit| match limit.head_cost(response) {
            Some(cost) => {
                limit.count_settled(cost);
                false
            }
            None => true,
        });
        self.outcome = ResponseOutcome::of(response.status().as_u16());
        let DraftResponse::Upstream(head, UpstreamContent::Body(body)) = response else { return };
        let format = BodyFormat::of(head.fields.get("content-type"));
        let mut codings = head.fields.get_all("content-encoding");
        let coding = codings.next();
        let is_coded_twice = codings.next().is_some();
        let mut scanners = Scanners::new();
        for limit in &self.limits {
            let Some(ActualCost::Json(paths, _)) = limit.settled_cost().map(|cost| &cost.actual)
            else {
                continue;
            };
            if scanners.iter().any(|(known, _)| known == paths) {
                continue;
            }
            let scanner = BodyScanner::new(format, Arc::clone(paths));
            match UsageDecoder::new(coding, scanner).filter(|_| !is_coded_twice) {
                Some(decoder) => scanners.push((Arc::clone(paths), decoder)),
                None => self.is_unreadable = true,
            }
        }
        if !scanners.is_empty() {
            self.observe(body, scanners);
        }
    }

    fn observe(&mut self, body: &mut ResponseBody, scanners: Scanners) {
        let meter = Rc::new(ResponseMeter { scanners: RefCell::new(scanners) });
        body.observe(Rc::<ResponseMeter>::clone(&meter));
        self.meter = Some(meter);
    }

    /// Reports `limits`, those of the request, in trailers, if the response's end settles one that
    /// responses show.
    pub(super) fn report_in_trailers(&mut self, limits: &[ChargedLimit]) {
        if self.limits.iter().any(|limit| limit.limit().enforce) {
            self.report = Some(SettledReport::new(limits));
        }
    }

    /// True if trailers will be sent.
    pub(super) fn has_report(&self) -> bool {
        self.report.is_some()
    }

    /// The trailers of a response whose last byte was read; `None` if none are sent. Fixes its
    /// costs.
    pub(super) fn trailers(&mut self, totals: ResponseTotals) -> Option<Fields> {
        let mut report = self.report.take()?;
        let decided_at = self.limits.first()?.outcome.decided()?.at;
        self.reported = Some(totals);
        for limit in &self.limits {
            if let Some(cost) = limit.settled_cost() {
                let (actual, _) = self.actual(cost, &totals);
                report.settle(limit, cost.settled(actual, self.outcome, limit.cost()));
            }
        }
        // By the store's clock.
        let now = decided_at + self.background.now().since(self.charged_at);
        Some(report.fields(now))
    }

    /// Corrects each estimate to what the response has cost, and records it in `costs`.
    pub(super) fn settle(&self, totals: &ResponseTotals, costs: &mut ChargedCosts) {
        let totals = self.reported.as_ref().unwrap_or(totals);
        let mut corrections = SmallVec::<[Correction; 2]>::new();
        for limit in &self.limits {
            let Some(cost) = limit.settled_cost() else { continue };
            let (actual, is_unreadable) = self.actual(cost, totals);
            if is_unreadable {
                limit.rule().counters.settlement.unreadable.add(1);
            }
            let settled = cost.settled(actual, self.outcome, limit.cost());
            limit.count_settled(settled);
            costs.correct(limit, settled);
            corrections.extend(limit.correction_to(settled));
        }
        if !corrections.is_empty() {
            self.background.adjust_in_background(corrections);
        }
    }

    /// The cost that the response reports, and true if its body could not be decoded.
    fn actual(&self, cost: &SettledCost, totals: &ResponseTotals) -> (Option<u64>, bool) {
        let (paths, formula) = match &cost.actual {
            ActualCost::Bytes => return (Some(totals.bytes), false),
            ActualCost::DurationMs => return (Some(totals.duration.as_ms()), false),
            ActualCost::Header(_) => return (None, false),
            ActualCost::Json(paths, formula) => (paths, formula),
        };
        let Some(meter) = &self.meter else { return (None, self.is_unreadable) };
        let mut scanners = meter.scanners.borrow_mut();
        let Some((_, decoder)) = scanners.iter_mut().find(|(known, _)| known == paths) else {
            return (None, self.is_unreadable);
        };
        decoder.flush();
        (formula.cost(|path| decoder.quantity(path)), decoder.has_failed())
    }
}
