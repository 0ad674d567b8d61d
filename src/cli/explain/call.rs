//! How one call to the rate limit service is decided, with empty counters; printed as text or JSON.

use std::io::{self, Write};

use serde::Serialize;

use super::limit_explanation::{LimitExplanation, call_charges, charge};
use super::overridden::ExplainedOverrides;
use crate::auth::{ConsumerTable, certified};
use crate::clock::StoreTime;
use crate::identity::{Consumer, OwnedConsumer};
use crate::rate_limit_service::messages::{
    DescriptorEntryMessage, RateLimitDescriptor, RateLimitRequest,
};
use crate::snapshot::{ChargeContext, DescriptorRule, Snapshot, agreed_name};

/// What would happen to a call. The field names are those of the JSON: a stable interface.
#[derive(Serialize)]
pub(super) struct CallExplanation {
    /// The domain.
    domain: String,
    /// False if the configuration has no such domain, which admits.
    known: bool,
    /// The name of the consumer, if the domain names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    consumer: Option<String>,
    /// The consumer's plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<String>,
    /// The descriptors, in their order.
    descriptors: Vec<DescriptorExplanation>,
    /// `admitted`, `refused`, or `none` without limits.
    decision: &'static str,
}

/// What applies to one descriptor.
#[derive(Serialize)]
struct DescriptorExplanation {
    /// Its entries, as they were given.
    descriptor: String,
    /// The limit that admits it never.
    #[serde(skip_serializing_if = "Option::is_none")]
    blocked_by: Option<String>,
    limits: Vec<LimitExplanation>,
}

/// The call that `--descriptor DOMAIN ENTRIES` describes.
///
/// # Errors
///
/// The descriptors are of several domains, or an entry is no `NAME=VALUE`.
pub(super) fn call_of(values: &[String]) -> Result<RateLimitRequest, String> {
    let mut call = RateLimitRequest::default();
    for pair in values.chunks_exact(2) {
        let (domain, text) = (&pair[0], &pair[1]);
        if !call.descriptors.is_empty() && call.domain != *domain {
            return Err(format!("domains `{}` and `{domain}`; expected one", call.domain));
        }
        call.domain.clone_from(domain);
        let entry = |entry: &str| match entry.split_once('=') {
            Some((key, value)) if !key.is_empty() => {
                Ok(DescriptorEntryMessage { key: key.to_owned(), value: value.to_owned() })
            }
            _ => Err(format!("`{entry}`, expected an entry as NAME=VALUE")),
        };
        let entries: Vec<_> = text.split(',').map(entry).collect::<Result<_, _>>()?;
        call.descriptors.push(RateLimitDescriptor { entries, ..RateLimitDescriptor::default() });
    }
    Ok(call)
}

impl CallExplanation {
    /// Explains what the gateway would do with `call` at `now`.
    ///
    /// # Errors
    ///
    /// The call cannot be planned.
    pub(super) fn new(
        snapshot: &Snapshot,
        call: &RateLimitRequest,
        consumers: &ConsumerTable,
        overrides: &ExplainedOverrides,
        now: StoreTime,
    ) -> Result<Self, String> {
        let service = snapshot.rate_limit_service.as_ref();
        let service = service.ok_or("the configuration has no `rate_limit_service`")?;
        let descriptors = call.descriptors.iter().map(DescriptorExplanation::of);
        let mut explanation = Self {
            domain: call.domain.clone(),
            known: false,
            consumer: None,
            plan: None,
            descriptors: descriptors.collect(),
            decision: "none",
        };
        let Some(domain) = service.domains.get(&*call.domain) else { return Ok(explanation) };
        explanation.known = true;
        let names = domain.consumers_of(call);
        let read = |name| -> OwnedConsumer {
            certified(name, consumers).unwrap_or_else(|| Consumer::new(name, None)).into()
        };
        let consumers: Vec<_> = names.iter().map(|name| name.map(read)).collect();
        let agreed = agreed_name(&names).and(consumers.first()).and_then(Option::as_ref);
        let consumer = agreed.map(OwnedConsumer::view);
        explanation.consumer = consumer.map(|consumer| consumer.name.to_owned());
        explanation.plan = consumer.and_then(|consumer| consumer.plan).map(str::to_owned);
        let context = ChargeContext::new(overrides.secret, overrides.at.as_ref());
        let planned = domain.plan(call, &consumers, context).map_err(|error| error.to_string())?;
        for (own, rule) in explanation.descriptors.iter_mut().zip(&planned.rules) {
            if let DescriptorRule::Blocked(limit) = rule {
                own.blocked_by = Some(limit.name().to_string());
            }
        }
        let mut limits = call_charges(domain, call, &consumers, &planned);
        let is_admitted = charge(&mut limits, now) && planned.blocked_by().is_none();
        let has_rules = !limits.is_empty() || planned.blocked_by().is_some();
        explanation.decision = match (has_rules, is_admitted) {
            (false, _) => "none",
            (true, true) => "admitted",
            (true, false) => "refused",
        };
        for (hit, limit) in planned.hits.iter().zip(limits) {
            // Two equal descriptors are charged together, and shown at the first.
            let first = hit.descriptors.first();
            if let Some(own) = first.and_then(|index| explanation.descriptors.get_mut(*index)) {
                own.limits.push(LimitExplanation::new(limit));
            }
        }
        Ok(explanation)
    }

    /// Prints the explanation as text.
    pub(super) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let unknown = if self.known { "" } else { ": not in the configuration" };
        writeln!(out, "domain     {}{unknown}", self.domain)?;
        if let Some(consumer) = &self.consumer {
            let plan = self.plan.as_ref().map_or(String::new(), |plan| format!(", plan {plan}"));
            writeln!(out, "consumer   {consumer}{plan}")?;
        }
        for own in &self.descriptors {
            writeln!(out, "descriptor {}", own.descriptor)?;
            if let Some(limit) = &own.blocked_by {
                writeln!(out, "limit      {limit}: admits nothing")?;
            }
            for limit in &own.limits {
                limit.print(out)?;
            }
        }
        let is_counted = self.descriptors.iter().any(|own| !own.limits.is_empty());
        let caller = if is_counted { " (for a caller with unused quotas)" } else { "" };
        writeln!(out, "decision   {}{caller}", self.decision)
    }
}

impl DescriptorExplanation {
    fn of(descriptor: &RateLimitDescriptor) -> Self {
        let entries = descriptor.entries.iter().map(|own| format!("{}={}", own.key, own.value));
        let descriptor = entries.collect::<Vec<_>>().join(",");
        Self { descriptor, blocked_by: None, limits: Vec::new() }
    }
}
