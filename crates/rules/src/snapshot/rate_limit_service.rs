//! Compiles `rate_limit_service`: its listener, and the domains whose limits apply to descriptors.
//!
//! | file | content |
//! |---|---|
//! | `check` | which limits a domain may name, and which a route |
//! | `named` | domains with limits of the configuration: which apply by names and values of entries |
//! | `plan` | the charges of a call: [`RateLimitDomain::plan`] |
//! | `replaces` | limits of such a file that replace each other |
//! | `tree` | the tree of descriptors of a file of envoyproxy/ratelimit |

mod check;
mod hits;
mod named;
mod plan;
mod replaces;
mod tree;

use std::{path::Path, sync::Arc};

use ahash::RandomState;
use hashbrown::{HashMap, HashSet};
use tidegate_config::{
    self as config, AlgorithmConfig, Config, Duration, Faults, LateHits, LimitConfig,
    RateLimitServiceConfig, WindowConfig,
};
use tidegate_envoy::rate_limit_service::LimitRole;
use tidegate_tls::{LiveCertificates, TlsError, TlsFile, server::OfferedProtocols};

use self::named::NamedRules;
use self::tree::{CompiledTree, DescriptorTree};
use super::ListenerRules;
use super::limits::{self, NamedLimit};
use super::listen::{certificates, tls_fault};
use super::policy::LimitPolicy;
use super::section::Section;

pub use self::plan::{
    DescriptorRule, HitAct, OnRefusal, PlannedCall, PlannedHit, UnreadableCall, agreed_name,
};

/// Maximum length of the part of a limit's name that is after its domain, in bytes.
const MAX_NAME: usize = 200;

/// Envoy's rate limit service.
#[derive(Debug)]
pub struct RateLimitService {
    /// How connections of its listener begin.
    pub listener: Arc<ListenerRules>,
    /// The domains, by name.
    pub domains: HashMap<Box<str>, Arc<RateLimitDomain>, RandomState>,
    /// The files of domains, as they were read.
    pub(super) files: Vec<TlsFile>,
}

/// The limits of one domain.
#[derive(Debug, Default)]
pub struct RateLimitDomain {
    /// Its name.
    pub name: Box<str>,
    /// How metrics, the access log and traces name it, where they name routes:
    /// `rate_limit_service:NAME`.
    pub label: Box<str>,
    /// All limits and their candidates; the last is that of descriptors with a quota of their own.
    pub limits: Vec<Arc<LimitPolicy>>,
    /// Which of them apply to which descriptors.
    rules: DescriptorRules,
    /// The indices of limits that report that a descriptor is over them, instead of refusing.
    reporting: HashSet<usize, RandomState>,
    /// The name of the entry that names the consumer.
    consumer: Option<Box<str>>,
    /// What a call of several hits charges where they do not fit.
    late_hits: OnRefusal,
    /// The index of the limit of descriptors that have a quota of their own, without that quota.
    requested: usize,
}

/// Which limits apply to which descriptors.
#[derive(Debug)]
enum DescriptorRules {
    /// By the names and values of their entries.
    Named(NamedRules),
    /// By a tree of names and values.
    Tree(DescriptorTree),
}

impl Default for DescriptorRules {
    fn default() -> Self {
        Self::Named(NamedRules::default())
    }
}

/// Compiles the service; `None` without one. Adds the limits of files to `limits`.
pub(super) fn compile(
    root: &Section<'_>,
    config: &Config,
    limits: &mut Vec<Arc<LimitPolicy>>,
) -> Option<RateLimitService> {
    check::requests(root, config);
    let service = config.rate_limit_service.as_ref()?;
    let section = root.at("rate_limit_service");
    check::address(root, config, service);
    check::names(&section, service);
    check::note_open(root, service);
    let mut files = Vec::new();
    let mut domains = HashMap::default();
    for (name, domain) in &service.domains {
        let section = section.at("domains").entry(name);
        check::limits(&section, domain, config);
        let mut compiled = match &domain.file {
            None => named::compile(&section, name, domain, limits),
            Some(path) => {
                file_domain(&section, name, path, config, limits, &mut files).unwrap_or_default()
            }
        };
        let is_charged = match domain.late_hits {
            Some(late_hits) => late_hits == LateHits::Charge,
            None => domain.file.is_some(),
        };
        if is_charged {
            compiled.late_hits = OnRefusal::Overdraw;
        }
        compiled.label = format!("rate_limit_service:{name}").into();
        compiled.requested = compiled.limits.len();
        compiled.limits.push(requested_limit(&section, name, config));
        let fits = u16::try_from(compiled.limits.len()).is_ok();
        let expected = format!("at most {}", u16::MAX - 1);
        section.ensure(fits, "too many limits", &expected);
        domains.insert(name.as_str().into(), Arc::new(compiled));
    }
    Some(RateLimitService { listener: Arc::new(listener(&section, service)), domains, files })
}

/// The rules of the listener.
fn listener(section: &Section<'_>, service: &RateLimitServiceConfig) -> ListenerRules {
    let offered = OfferedProtocols::Http2AndHttp1;
    let tls = service.tls.as_ref().and_then(|tls| certificates(section, tls, offered));
    ListenerRules {
        address: service.address.to_string().into(),
        tls: tls.map(|tls| Arc::new(LiveCertificates::new(tls, None, offered))),
        acme: None,
        http2: true,
        proxy_protocol: None,
        redirect_https: None,
    }
}

/// A domain with the limits of a file; `None` if the file is faulty.
fn file_domain(
    section: &Section<'_>,
    name: &str,
    path: &Path,
    config: &Config,
    limits: &mut Vec<Arc<LimitPolicy>>,
    files: &mut Vec<TlsFile>,
) -> Option<RateLimitDomain> {
    let at = section.at("file");
    let read = TlsFile::read(path).map_err(|error| match error {
        TlsError::Pem { path, what } => at.fault(format!("`{path}`: {what}"), "at most 1 MiB"),
        error => tls_fault(&at, &error),
    });
    let (file, bytes) = read.ok()?;
    files.push(file);
    let shown = at.file_name(path);
    let report = |faults: Faults| faults.iter().for_each(|own| section.fault_of_file(own.clone()));
    let text = config::text_of(&shown, &bytes).map_err(report).ok()?;
    let read = config::read_descriptors(&shown, text).map_err(report).ok()?;
    if read.domain != *name {
        let what = format!("the domain `{}` in the file of the domain `{name}`", read.domain);
        let expected = format!("`{name}`, or the domain of the file in `domains`");
        let location = read.domain_location;
        section.fault_of_file(config::descriptors_fault((&shown, text), location, what, &expected));
    }
    if let Some((limit, location)) = replaces::cycle(&read) {
        let what = format!("the limit `{limit}` is replaced by one that it replaces");
        let expected = "one of them to stay: in a call with both, none would apply";
        section.fault_of_file(config::descriptors_fault((&shown, text), location, what, expected));
    }
    let CompiledTree { tree, limits: own, reporting } =
        tree::compile(section, name, &read, config, limits.len());
    limits.extend(own.iter().map(Arc::clone));
    Some(RateLimitDomain {
        name: name.into(),
        limits: own,
        rules: DescriptorRules::Tree(tree),
        reporting,
        ..RateLimitDomain::default()
    })
}

/// The limit of descriptors that have a quota of their own. No configured name has the character
/// `:`.
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

/// A part of a limit's name with printable characters alone, which header fields can quote.
fn plain_text(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.-/*@".contains(c);
    let plain = text.chars().map(|c| if is_plain(c) { c } else { '_' });
    plain.take(MAX_NAME).collect()
}

impl RateLimitDomain {
    /// What the limit with this index does with a call that it does not admit.
    pub fn role(&self, limit: u16) -> LimitRole {
        let index = usize::from(limit);
        let is_own = matches!(self.rules, DescriptorRules::Named(_));
        if self.reporting.contains(&index) {
            LimitRole::Reports
        } else if is_own && self.limits.get(index).is_some_and(|own| !own.limit.enforce) {
            LimitRole::Counts
        } else {
            LimitRole::Refuses
        }
    }
}
