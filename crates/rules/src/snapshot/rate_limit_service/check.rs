//! Checks of `rate_limit_service` that need more than one value, and of limits by descriptors
//! elsewhere.

use ahash::RandomState;
use hashbrown::HashSet;
use tidegate_config::{
    AlgorithmConfig, Config, CostConfig, DOMAIN_SYNTAX, DomainLimitConfig, LimitConfig,
    RateLimitDomainConfig, RateLimitServiceConfig, is_domain_name,
};
use tidegate_identity::KeyPart;

use super::super::section::Section;

/// Reports an address that another listener has.
pub(super) fn address(root: &Section<'_>, config: &Config, service: &RateLimitServiceConfig) {
    let address = service.address;
    let is_same = |other| other == address && address.0.port() != 0;
    let taken = if config.listen.iter().any(|listener| is_same(listener.address)) {
        "listen"
    } else if config.admin.as_ref().and_then(|own| own.address.tcp()).is_some_and(is_same) {
        "admin"
    } else {
        return;
    };
    let section = root.at("rate_limit_service").at("address");
    section.fault(format!("`{address}`, which `{taken}` also has"), "an address of its own");
}

/// Notes a listener that every host may call: who calls it can use up and give back what any caller
/// has.
pub(super) fn note_open(root: &Section<'_>, service: &RateLimitServiceConfig) {
    let is_local = service.address.0.ip().to_canonical().is_loopback();
    let has_client_ca = service.tls.as_ref().is_some_and(|tls| {
        tls.certificates.iter().all(|certificate| certificate.client_ca.is_some())
    });
    if !is_local && !has_client_ca {
        let what = format!("`{}` serves every host that reaches it", service.address);
        let expected =
            "an address of this host or `tls` with `client_ca`, or a network of proxies alone";
        root.at("rate_limit_service").at("address").note(what, expected);
    }
}

/// Reports domains with faulty names.
pub(super) fn names(section: &Section<'_>, service: &RateLimitServiceConfig) {
    let section = section.at("domains");
    section.ensure(!service.domains.is_empty(), "no domain", "at least one");
    for name in service.domains.keys() {
        if !is_domain_name(name) {
            section.entry(name).fault_at_key(format!("`{name}`"), DOMAIN_SYNTAX);
        }
    }
}

/// Reports limits that do not exist, or that cannot be charged for descriptors.
pub(super) fn limits(section: &Section<'_>, domain: &RateLimitDomainConfig, config: &Config) {
    if let Some(part) = &domain.consumer {
        let section = section.at("consumer");
        section.ensure(
            is_entry(part),
            &format!("`{part}`"),
            "the entry with its name: `descriptor:NAME`",
        );
    }
    if domain.file.is_some() {
        let has_none = domain.limits.is_empty() && domain.consumer.is_none();
        let what = "`file` with `limits` or `consumer`";
        section.at("file").ensure(has_none, what, "`file` alone, or another domain");
        return;
    }
    let at = section.at("limits");
    at.ensure(!domain.limits.is_empty(), "no limit", "at least one, or `file`");
    let mut seen = HashSet::<_, RandomState>::default();
    for (index, item) in domain.limits.iter().enumerate() {
        let at = at.index(index);
        check_match(&at, item);
        let Some(name) = &item.limit else { continue };
        at.ensure_reference("limit", name, &config.limits);
        let is_new = seen.insert((name, &item.matches));
        at.ensure(is_new, &format!("duplicate limit `{name}`"), "each limit once");
        if let Some(limit) = config.limits.get(name) {
            check_limit(&at, item, limit, domain);
        }
    }
}

/// Reports an item without descriptors, or with none or two of `limit` and `quota`.
fn check_match(at: &Section<'_>, item: &DomainLimitConfig) {
    let answers = usize::from(item.limit.is_some()) + usize::from(item.quota.is_some());
    at.ensure(answers == 1, "an item", "either `limit: NAME` or `quota: unlimited` or `blocked`");
    let has_names = item.quota.is_none() || !item.matches.is_empty();
    at.ensure(has_names, "`quota` without `match`", "the entries of its descriptors in `match`");
    let is_named = item.matches.keys().all(|name| !name.is_empty());
    at.at("match").ensure(is_named, "an entry without a name", "the names of entries");
}

fn check_limit(
    at: &Section<'_>,
    item: &DomainLimitConfig,
    limit: &LimitConfig,
    domain: &RateLimitDomainConfig,
) {
    let name = item.limit.as_deref().unwrap_or_default();
    let own = at.root().at("limits").entry(name);
    if !own.can_read(&["key", "algorithm", "cost"]) {
        return;
    }
    for part in limit.key.iter().chain(limit.tiers.iter().map(|tier| &tier.matches.part)) {
        let (is_valid, expected) = match part {
            KeyPart::Descriptor(_) => (true, ""),
            KeyPart::Consumer | KeyPart::Plan => {
                (domain.consumer.is_some(), "`consumer: descriptor:NAME` in the domain")
            }
            _ => (false, "parts `descriptor:NAME`, `consumer` or `plan`"),
        };
        let what = format!("`{name}` reads `{part}`, which a descriptor does not have");
        at.ensure(is_valid, &what, expected);
    }
    if limit.key.is_empty() && item.matches.is_empty() {
        let what = format!("`{name}` has no key, so that it applies to no descriptor");
        at.fault(what, "a key such as [descriptor:user], or `match`");
    }
    if limit.algorithm == AlgorithmConfig::LeakyBucket {
        let what = format!("`{name}` is a `leaky_bucket`, whose requests wait in the gateway");
        at.fault(what, "another algorithm");
    }
    if !matches!(limit.cost, CostConfig::Fixed(_)) {
        let what = format!("`{name}` reads its cost from a message, and a call has hits instead");
        at.fault(what, "a limit with a fixed cost");
    }
    if !limit.refund.is_empty() || limit.charge_on.is_some() {
        let what = format!("`{name}` refunds by statuses of responses, which a call does not have");
        at.fault(what, "a limit without `refund` and `charge_on`");
    }
}

/// Reports parts `descriptor:NAME` where requests are counted or hashed: a request has none.
pub(super) fn requests(root: &Section<'_>, config: &Config) {
    for (index, route) in config.routes.iter().enumerate() {
        let section = root.at("routes").index(index);
        let status = route.status.as_deref().unwrap_or_default();
        for (key, names) in [("limits", &route.limits[..]), ("status", status)] {
            for (index, name) in names.iter().enumerate() {
                let Some(limit) = config.limits.get(name) else { continue };
                let tiers = limit.tiers.iter().map(|tier| &tier.matches.part);
                if let Some(part) = limit.key.iter().chain(tiers).find(|part| is_entry(part)) {
                    let what = format!("`{name}` reads `{part}`, which a request does not have");
                    let expected = "it in a domain of `rate_limit_service`, or another limit";
                    section.at(key).index(index).fault(what, expected);
                }
            }
        }
    }
    for (name, upstream) in &config.upstreams {
        let section = root.at("upstreams").entry(name).at("hash_key");
        for (index, part) in upstream.hash_key.iter().enumerate().filter(|(_, own)| is_entry(own)) {
            let what = format!("`{part}`, which a request does not have");
            section.index(index).fault(what, "a part of a request, such as client_ip");
        }
    }
}

fn is_entry(part: &KeyPart) -> bool {
    matches!(part, KeyPart::Descriptor(_))
}
