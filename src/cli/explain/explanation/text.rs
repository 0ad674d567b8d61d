//! An explanation as text.

use std::io::{self, Write};

use super::{Explanation, UpstreamProtocol};
use crate::identity::AddressSource;

impl Explanation {
    /// Prints the explanation as text.
    pub(in crate::cli::explain) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { method, host, path, client, .. } = self;
        if !path.is_empty() {
            writeln!(out, "request    {method} {path} for host `{host}` from {client}")?;
        }
        if let Some(sent) = &self.sent_path {
            writeln!(out, "           its path was sent as {sent}")?;
        }
        if let Some(question) = &self.question {
            writeln!(out, "           a proxy asks about it by {question}")?;
        }
        if self.client_source == AddressSource::Unverified.label() {
            writeln!(
                out,
                "           a trusted proxy that names no client; tiers by address do not apply"
            )?;
        }
        let prefix = self.prefix.iter().map(|prefix| format!(", by the prefix {prefix}"));
        let prefix: String = prefix.collect();
        writeln!(out, "route      {}{prefix}", self.route.as_deref().unwrap_or("none"))?;
        self.changes.print_match(out)?;
        if let Some(consumer) = &self.consumer {
            let plan = self.plan.as_ref().map_or(String::new(), |plan| format!(", plan {plan}"));
            writeln!(out, "consumer   {consumer}{plan}")?;
        }
        if let Some(reason) = self.consumer_undecided {
            writeln!(
                out,
                "consumer   undecided: {reason}; the rest is for a caller without a consumer, and `--consumer NAME` names one"
            )?;
        }
        if self.consumers_in_redis {
            writeln!(
                out,
                "           consumers are in Redis, where no record is read: `--consumer NAME` is taken as given, without a plan"
            )?;
        }
        for own in &self.overrides {
            own.print(out)?;
        }
        for limit in &self.limits {
            limit.print(out)?;
        }
        let tier = if self.plan.is_some() { "tier or plan" } else { "tier" };
        for name in &self.unlimited {
            let is_overridden = self.overrides.iter().any(|own| own.limit == *name);
            let reason = if is_overridden {
                "by an override".to_owned()
            } else {
                format!("the caller is in an unlimited {tier}")
            };
            writeln!(out, "limit      {name}: not counted, {reason}")?;
        }
        if self.throttle {
            writeln!(out, "throttle   while throttling, only active users are admitted")?;
        }
        if let Some(turn) = self.waiting_room {
            writeln!(out, "room       {}", turn.text())?;
        }
        let caller = if self.limits.is_empty() { "" } else { " (for a caller with unused quotas)" };
        writeln!(out, "decision   {}{caller}", self.decision)?;
        if let Some(status) = self.status {
            let reason = self.reason.as_deref().unwrap_or("a response of the gateway itself");
            let sent = self.sent_status.map(|sent| format!(", sent as {sent}"));
            writeln!(out, "response   {status}{}: {reason}", sent.unwrap_or_default())?;
        }
        for (index, (name, value)) in self.headers.iter().enumerate() {
            let label = if index == 0 { "headers" } else { "" };
            let value = if value.is_empty() { "(empty)" } else { value };
            writeln!(out, "{label:11}{name}: {value}")?;
        }
        if let (Some(upstream), Some(target)) = (&self.upstream, &self.forwarded) {
            let targets = self.targets.join(", ");
            let over = match self.upstream_protocol {
                Some(UpstreamProtocol::Http2) => " over HTTP/2",
                Some(UpstreamProtocol::Auto) => " over HTTP/2, if the server chooses it",
                Some(UpstreamProtocol::Http1) | None => "",
            };
            writeln!(out, "forwarded  {method} {target} to {upstream}{over}: {targets}")?;
            if let Some(priority) = self.priority {
                writeln!(
                    out,
                    "priority   {priority} of 0 to 9 while all servers are full; 0 comes first"
                )?;
            }
            let has_choice = self.targets.len() > 1;
            if let (Some(target), Some(reason), true) =
                (&self.target, &self.target_reason, has_choice)
            {
                writeln!(out, "target     {target}: {reason}, if all are in service without load")?;
            }
        }
        self.changes.print_changes(out)
    }
}
