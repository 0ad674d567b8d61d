//! Compiles `rate_limit_service`: its listener, and the domains whose limits apply to descriptors.
//!
//! | file | content |
//! |---|---|
//! | `check` | which limits a domain may name, and which a route |
//! | `plan` | the charges of a call: [`RateLimitDomain::plan`] |

mod check;
mod plan;

use std::sync::Arc;

use ahash::RandomState;
use hashbrown::HashMap;

use super::ListenerRules;
use super::limits::{self, NamedLimit};
use super::listen::certificates;
use super::policy::LimitPolicy;
use super::section::Section;
use crate::config::{
    AlgorithmConfig, Config, Duration, LimitConfig, RateLimitDomainConfig, RateLimitServiceConfig,
    WindowConfig,
};
use crate::identity::{DescriptorEntry, KeyPart};
use crate::tls::server::OfferedProtocols;

pub use self::plan::{DescriptorRule, HitAct, PlannedCall, PlannedHit, UnreadableCall};

/// Envoy's rate limit service.
#[derive(Debug)]
pub struct RateLimitService {
    /// How connections of its listener begin.
    pub listener: Arc<ListenerRules>,
    /// The domains, by name.
    pub domains: HashMap<Box<str>, Arc<RateLimitDomain>, RandomState>,
}

/// The limits of one domain.
#[derive(Debug)]
pub struct RateLimitDomain {
    /// How metrics, the access log and traces name it, where they name routes: `rate_limit_service:NAME`.
    pub label: Box<str>,
    /// All limits and their candidates; the last is [`Self::requested`].
    pub limits: Vec<Arc<LimitPolicy>>,
    /// Which of them apply to which descriptors.
    rules: Vec<NameRule>,
    /// The name of the entry that names the consumer.
    consumer: Option<Box<str>>,
    /// The index of the limit of descriptors that have a quota of their own, without that quota.
    requested: usize,
}

/// The limits of the descriptors whose entries have these names.
#[derive(Debug)]
struct NameRule {
    names: Box<[Box<str>]>,
    /// Indices in [`RateLimitDomain::limits`].
    limits: Vec<usize>,
}

impl NameRule {
    /// True if `entries` have exactly the names of the rule, each once.
    fn applies_to(&self, entries: &[DescriptorEntry<'_>]) -> bool {
        let has = |name: &str| entries.iter().any(|entry| entry.name == name);
        self.names.len() == entries.len() && self.names.iter().all(|name| has(name))
    }
}

/// Compiles the service; `None` without one, or if its certificates are faulty.
pub(super) fn compile(
    root: &Section<'_>,
    config: &Config,
    limits: &[Arc<LimitPolicy>],
) -> Option<RateLimitService> {
    check::requests(root, config);
    let service = config.rate_limit_service.as_ref()?;
    let section = root.at("rate_limit_service");
    check::address(root, config, service);
    check::names(&section, service);
    let domains = service.domains.iter().map(|(name, domain)| {
        let section = section.at("domains").entry(name);
        check::limits(&section, domain, config);
        let mut compiled = compile_domain(name, domain, limits);
        compiled.limits.push(requested_limit(&section, name, config));
        (name.as_str().into(), Arc::new(compiled))
    });
    let domains = domains.collect();
    Some(RateLimitService { listener: Arc::new(listener(&section, service)), domains })
}

/// The rules of the listener.
fn listener(section: &Section<'_>, service: &RateLimitServiceConfig) -> ListenerRules {
    let offered = OfferedProtocols::Http2AndHttp1;
    let tls = service.tls.as_ref().and_then(|tls| certificates(section, tls, offered));
    ListenerRules {
        address: service.address.to_string().into(),
        tls,
        http2: true,
        proxy_protocol: None,
        redirect_https: None,
    }
}

fn compile_domain(
    name: &str,
    domain: &RateLimitDomainConfig,
    limits: &[Arc<LimitPolicy>],
) -> RateLimitDomain {
    let consumer = consumer_entry(domain);
    let (mut compiled, mut rules) = (Vec::new(), Vec::<NameRule>::new());
    for limit in &domain.limits {
        let Some(policy) = limits.iter().find(|policy| policy.limit.name() == limit) else {
            continue;
        };
        let names = names(&policy.key.0, consumer);
        let known = rules.iter().position(|rule| rule.names == names);
        let index = known.unwrap_or(rules.len());
        if known.is_none() {
            rules.push(NameRule { names, limits: Vec::new() });
        }
        for policy in [Some(policy), policy.candidate.as_ref()].into_iter().flatten() {
            rules[index].limits.push(compiled.len());
            compiled.push(Arc::clone(policy));
        }
    }
    RateLimitDomain {
        label: format!("rate_limit_service:{name}").into(),
        requested: compiled.len(),
        limits: compiled,
        rules,
        consumer: consumer.map(Into::into),
    }
}

/// The limit of descriptors that have a quota of their own. No configured name has the character `:`.
fn requested_limit(section: &Section<'_>, domain: &str, config: &Config) -> Arc<LimitPolicy> {
    let window = WindowConfig::Length(Duration::from_secs(1));
    let limit = LimitConfig {
        algorithm: AlgorithmConfig::FixedWindow,
        key: Vec::new(),
        ..LimitConfig::new(1, window)
    };
    let name = format!("{domain}:descriptor");
    // It is in no list of limits: its quota is that of each call.
    let named = NamedLimit { name: &name, limit: &limit, index: usize::MAX };
    limits::compile_one(section, &named, config, &[])
}

/// The name of the entry that names the consumer.
fn consumer_entry(domain: &RateLimitDomainConfig) -> Option<&str> {
    match &domain.consumer {
        Some(KeyPart::Descriptor(name)) => Some(name),
        _ => None,
    }
}

/// The names of the entries to which a limit with this key applies, sorted.
fn names(key: &[KeyPart], consumer: Option<&str>) -> Box<[Box<str>]> {
    let mut names: Vec<Box<str>> = Vec::new();
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

impl RateLimitDomain {
    /// True if an entry of its descriptors names the consumer.
    pub fn has_consumers(&self) -> bool {
        self.consumer.is_some()
    }
}
