//! Domains with limits of the configuration.
//!
//! A rule has names and values of entries, and what applies to its descriptors. Rules with the same
//! names are in the order of the configuration; the first whose values a descriptor has decides.

use std::sync::Arc;

use ahash::RandomState;
use hashbrown::HashMap;
use tidegate_base::sensitive::is_sensitive_name;
use tidegate_charge::{Limit, LimitIdentity};
use tidegate_config::{DomainLimitConfig, FixedAnswer, RateLimitDomainConfig};
use tidegate_identity::{DescriptorEntry, KeyPart, trim_text};
use tidegate_limit::{Algorithm, Millis, Quota};

use super::super::policy::LimitPolicy;
use super::super::section::Section;
use super::{DescriptorRules, RateLimitDomain};

/// The rules of a domain.
#[derive(Debug, Default)]
pub(super) struct NamedRules {
    groups: Vec<RuleGroup>,
}

/// The rules of the descriptors whose entries have these names.
#[derive(Debug)]
struct RuleGroup {
    /// Sorted, each once.
    names: Box<[Box<str>]>,
    rules: Vec<ValueRule>,
}

type EntryValues = Vec<(Box<str>, ValuePattern)>;

/// What applies to descriptors with these values.
#[derive(Debug)]
struct ValueRule {
    /// By the names of entries, sorted. Other entries may have any value.
    values: EntryValues,
    effect: RuleEffect,
}

/// The values of an entry.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
enum ValuePattern {
    Exact(Box<str>),
    /// The beginning of values.
    Prefix(Box<str>),
}

/// What applies to a descriptor.
#[derive(Debug)]
pub(super) enum RuleEffect {
    /// The limits with these indices in [`RateLimitDomain::limits`].
    Counted(Vec<usize>),
    /// Nothing is counted.
    Unlimited,
    /// Nothing is admitted.
    Blocked(Arc<Limit>),
}

impl NamedRules {
    /// What applies to the descriptor with these entries; `None` without a rule.
    pub(super) fn find(&self, entries: &[DescriptorEntry<'_>]) -> Option<&RuleEffect> {
        let group = self.groups.iter().find(|group| group.has_names_of(entries))?;
        let rule = group.rules.iter().find(|rule| rule.has_values_of(entries))?;
        Some(&rule.effect)
    }
}

impl RuleGroup {
    /// True if `entries` have exactly the names of the group, each once.
    fn has_names_of(&self, entries: &[DescriptorEntry<'_>]) -> bool {
        let has = |name: &str| entries.iter().any(|entry| entry.name == name);
        self.names.len() == entries.len() && self.names.iter().all(|name| has(name))
    }
}

impl ValueRule {
    fn has_values_of(&self, entries: &[DescriptorEntry<'_>]) -> bool {
        let value = |name: &str| entries.iter().find(|entry| entry.name == name);
        self.values
            .iter()
            .all(|(name, pattern)| value(name).is_some_and(|entry| pattern.matches(entry.value)))
    }

    /// True if the rule applies to every descriptor with `values`.
    fn covers(&self, values: &[(Box<str>, ValuePattern)]) -> bool {
        self.values.iter().all(|(name, pattern)| {
            values.iter().any(|(other, narrower)| name == other && pattern.covers(narrower))
        })
    }
}

impl ValuePattern {
    /// The pattern of a configured value; `None` if any value has it.
    fn of(text: &str) -> Option<Self> {
        // Values of entries have no white space at their ends.
        let text = trim_text(text);
        match text.strip_suffix('*') {
            Some("") => None,
            Some(start) => Some(Self::Prefix(start.into())),
            None => Some(Self::Exact(text.into())),
        }
    }

    fn is_prefix(&self) -> bool {
        matches!(self, Self::Prefix(_))
    }

    fn matches(&self, value: &str) -> bool {
        match self {
            Self::Exact(exact) => **exact == *value,
            Self::Prefix(start) => value.starts_with(&**start),
        }
    }

    /// True if it matches every value that `narrower` matches.
    fn covers(&self, narrower: &Self) -> bool {
        match (self, narrower) {
            (Self::Exact(own), Self::Exact(other)) => own == other,
            (Self::Prefix(start), Self::Exact(other) | Self::Prefix(other)) => {
                other.starts_with(&**start)
            }
            (Self::Exact(_), Self::Prefix(_)) => false,
        }
    }
}

/// Compiles the domain `name`, at `section`.
pub(super) fn compile(
    section: &Section<'_>,
    name: &str,
    domain: &RateLimitDomainConfig,
    limits: &[Arc<LimitPolicy>],
) -> RateLimitDomain {
    let consumer = consumer_entry(domain);
    let mut compiled = RateLimitDomain {
        name: name.into(),
        consumer: consumer.map(Into::into),
        ..RateLimitDomain::default()
    };
    let mut rules = RulesCompiler::default();
    for (index, item) in domain.limits.iter().enumerate() {
        let (key, effect) = match (&item.limit, item.quota) {
            (Some(limit), _) => {
                let named = limits.iter().find(|policy| policy.limit.name() == limit);
                let Some(policy) = named else { continue };
                (&policy.key.0[..], RuleEffect::Counted(compiled.add(policy)))
            }
            (None, Some(FixedAnswer::Blocked)) => {
                (&[][..], RuleEffect::Blocked(blocked(name, item)))
            }
            (None, _) => (&[][..], RuleEffect::Unlimited),
        };
        let at = section.at("limits").index(index);
        rules.add(&at, names(key, consumer, item), ValueRule { values: values(item), effect });
    }
    compiled.rules = DescriptorRules::Named(rules.rules);
    compiled
}

/// Collects rules.
#[derive(Default)]
struct RulesCompiler {
    rules: NamedRules,
    /// Of each group.
    indices: Vec<GroupIndex>,
}

/// Finds rules of a group, as indices.
#[derive(Default)]
struct GroupIndex {
    by_values: HashMap<EntryValues, usize, RandomState>,
    /// The rules that may have all descriptors of another one: with a prefix, or with an entry of
    /// any value.
    wide: Vec<usize>,
}

impl RulesCompiler {
    /// Adds a rule for descriptors with these names, or joins it with the one of the same values.
    fn add(&mut self, at: &Section<'_>, names: Box<[Box<str>]>, rule: ValueRule) {
        let groups = &mut self.rules.groups;
        let known = groups.iter().position(|group| group.names == names);
        let index = known.unwrap_or(groups.len());
        if known.is_none() {
            groups.push(RuleGroup { names, rules: Vec::new() });
            self.indices.push(GroupIndex::default());
        }
        let (group, index) = (&mut groups[index], &mut self.indices[index]);
        if let Some(own) = index.by_values.get(&rule.values) {
            match (&mut group.rules[*own].effect, rule.effect) {
                (RuleEffect::Counted(all), RuleEffect::Counted(more)) => all.extend(more),
                _ => at.fault("a second item for the same descriptors", "one of them"),
            }
        } else if index.wide.iter().any(|own| group.rules[*own].covers(&rule.values)) {
            let what = "never applies: an earlier item has all of its descriptors";
            at.fault(what, "items with narrower values of `match` first");
        } else {
            let is_prefix = |(_, pattern): &(_, ValuePattern)| pattern.is_prefix();
            if rule.values.len() < group.names.len() || rule.values.iter().any(is_prefix) {
                index.wide.push(group.rules.len());
            }
            index.by_values.insert(rule.values.clone(), group.rules.len());
            group.rules.push(rule);
        }
    }
}

impl RateLimitDomain {
    /// Adds a limit and its candidate, unless the domain has them. Returns their indices.
    fn add(&mut self, policy: &Arc<LimitPolicy>) -> Vec<usize> {
        let mut index_of = |policy: &Arc<LimitPolicy>| {
            let known = self.limits.iter().position(|own| Arc::ptr_eq(own, policy));
            known.unwrap_or_else(|| {
                self.limits.push(Arc::clone(policy));
                self.limits.len() - 1
            })
        };
        let both = [Some(policy), policy.candidate.as_ref()];
        both.into_iter().flatten().map(&mut index_of).collect()
    }
}

/// The limit that refuses the descriptors of `item`. No configured name has the character `:`.
fn blocked(domain: &str, item: &DomainLimitConfig) -> Arc<Limit> {
    let values = item.matches.iter().map(|(name, value)| {
        // The name of a limit is in metrics, logs and responses.
        let value = if is_sensitive_name(name) { "value" } else { value };
        super::plain_text(&format!("{name}_{value}"))
    });
    let name = format!("{domain}:{}", values.collect::<Vec<_>>().join("."));
    let window = Millis::from_secs(1);
    let quota = Quota::new(0, window, Algorithm::FixedWindow);
    Arc::new(Limit::new(LimitIdentity::new(name, window.as_ms()), quota))
}

/// The name of the entry that names the consumer.
fn consumer_entry(domain: &RateLimitDomainConfig) -> Option<&str> {
    match &domain.consumer {
        Some(KeyPart::Descriptor(name)) => Some(name),
        _ => None,
    }
}

/// The names of the entries to which an item applies, whose limit has this key; sorted.
fn names(key: &[KeyPart], consumer: Option<&str>, item: &DomainLimitConfig) -> Box<[Box<str>]> {
    let mut names: Vec<Box<str>> = item.matches.keys().map(|name| name.as_str().into()).collect();
    for part in key {
        match part {
            KeyPart::Descriptor(name) => names.push(name.as_str().into()),
            KeyPart::Consumer | KeyPart::Plan => names.extend(consumer.map(Into::into)),
            _ => {}
        }
    }
    names.sort_unstable();
    names.dedup();
    names.into()
}

/// The values that an item wants, by the names of entries.
fn values(item: &DomainLimitConfig) -> EntryValues {
    let pattern =
        |(name, value): (&String, &String)| Some((name.as_str().into(), ValuePattern::of(value)?));
    item.matches.iter().filter_map(pattern).collect()
}

#[cfg(test)]
mod tests {
    use tidegate_config as config;

    use crate::snapshot::{SecretReading, Snapshot};

    const RULES: &str = "
rate_limit_service:
  address: 127.0.0.1:8081
  domains: {edge: {limits: [ITEMS]}}
limits:
  all: {quota: 5, window: 1m, key: ['descriptor:user', 'descriptor:path']}
  alone: {quota: 2, window: 1m, key: []}
";

    #[test]
    fn faulty_items_are_reported_where_they_are() {
        for (items, expected) in [
            (
                "all, {limit: all, match: {user: a}}",
                "never applies: an earlier item has all of its",
            ),
            (
                "{limit: all, match: {user: 'a*'}}, {quota: blocked, match: {user: ab, path: '*'}}",
                "never applies",
            ),
            (
                "all, {quota: unlimited, match: {user: '*', path: '*'}}",
                "a second item for the same",
            ),
            (
                "{limit: all, match: {user: a}}, {limit: all, match: {user: a}}",
                "duplicate limit `all`",
            ),
            (
                "{limit: all, quota: blocked, match: {user: a}}",
                "expected either `limit: NAME` or `quota",
            ),
            ("{match: {user: a}}", "expected either `limit: NAME` or `quota"),
            ("{quota: blocked}", "`quota` without `match`, expected the entries"),
            ("{limit: al, match: {user: a}}", "unknown limit `al`, expected `all`"),
            ("{limit: all, match: {'': a}}", "an entry without a name"),
            ("{quota: 5, match: {user: a}}", "expected unlimited or blocked"),
            ("alone", "`alone` has no key, so that it applies to no descriptor"),
            ("5", "expected the name of a limit, {limit: NAME, match"),
        ] {
            let loaded = config::parse("t.yaml", &RULES.replace("ITEMS", items));
            let faults = match loaded {
                Ok(loaded) => Snapshot::compile(&loaded, SecretReading::Unread)
                    .map(drop)
                    .unwrap_err()
                    .to_string(),
                Err(faults) => faults.to_string(),
            };
            assert!(faults.contains(expected), "{items}: {faults}");
        }
    }
}
